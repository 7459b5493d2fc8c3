"""vmap against a loop over examples: functions, layers, views and writes, random numbers, @jit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import func, nn
from jitgrad.compiler.ops.record import OPS, Op
from jitgrad.func import grad, vmap
from jitgrad.levels import Relay
from jitgrad.pytree import flatten
from jitgrad.state import state

RNG = np.random.default_rng(0)
B = 3


def floats(*shape: int) -> Any:
    return jg.from_numpy(RNG.standard_normal(shape).astype(np.float32))


X, Y = floats(B, 4, 6), floats(B, 4, 6)
IMAGES = floats(B, 2, 3, 8, 8)
N = jg.from_numpy(RNG.integers(0, 4, (B, 5)))
W, V = floats(6, 6), floats(5, 3, 3, 3)
KEY = nn.Parameter(floats(4, 6))


def loop(f: Any, *args: Any) -> list[Any]:
    """The results of f for each example, stacked."""
    rows = [flatten(f(*[a[i] for a in args]))[0] for i in range(B)]
    return [jg.stack(column) for column in zip(*rows, strict=True)]


def agree(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        np.testing.assert_allclose(a.detach(), b.detach(), rtol=2e-5, atol=2e-6)


def indexing(x: Any) -> Any:
    i = jg.tensor([2, 0])
    return x[1], x[:, ::2], x[..., None], x[i], x[i, :2], x[i, i], x[-1:, 1:5:2].flip(1)


def indexing_by_examples(x: Any, n: Any) -> Any:
    return x[n], x[:, n], x.gather(0, n[:3, None].expand(3, 6)), x.index_select(1, n), x[n, n]


def shapes(x: Any) -> Any:
    return (
        x.t().reshape(3, 8), x.view(2, 12).transpose(0, 1), x.flatten(),
        x.unsqueeze(0).squeeze(),
        x.expand(2, 4, 6), x.repeat(2, 1), jg.cat([x, x * 2], -1), jg.stack([x, x], 1),
        x.chunk(2, 1),
        x.roll(1, 0), x.tril(), x.diagonal(), jg.diag(x[0]), x.unfold(1, 3, 2), F.pad(x, (1, 2)),
        x.split([1, 3]), x.movedim(0, 1), x.rot90(), x.repeat_interleave(2, 1), x.permute(1, 0),
    )  # fmt: skip


def reductions(x: Any) -> Any:
    return (
        x.sum(), x.mean(0), x.var(1), x.std(), x.prod(1), x.amax(0), x.max(1), x.min(), x.argmax(),
        x.argmin(1), x.logsumexp(0), x.norm(), x.cumsum(1), x.cumprod(0), x.sort(1), x.topk(2),
        x.median(), (x > 0).any(0), (x > 0).all(), x.softmax(0), x.log_softmax(-1),
    )  # fmt: skip


def products(x: Any) -> Any:
    return (
        x @ W, W @ x.t(), x @ x.t(), x.mv(W[0]), x[0] @ x[1], jg.outer(x[0], x[1]),
        jg.einsum("ij,kj->ik", x, x), jg.bmm(x.unsqueeze(0), W.unsqueeze(0)), jg.addmm(W[0], x, W),
        jg.tensordot(x, W, 1), jg.dot(x[0], W[0]),
    )  # fmt: skip


def pointwise(x: Any, y: Any) -> Any:
    return (
        x + 1, 2 / (x.abs() + 1), x * y, x - KEY, jg.where(x > y, x, 0.0), x.clamp(-1, 1),
        jg.maximum(x, y[0]), x.double() + y, (x > 0) & (y > 0), x.masked_fill(y > 0, 3.0),
        jg.lerp(x, y, 0.3), x.pow(2), x.sigmoid() * y.tanh(), x.to(jg.int64),
        x.new_ones(2) * x[0, :2],
        jg.zeros_like(x) + 1, jg.full_like(y, 2.0), x.atan2(y), x.floor_divide(2),
    )  # fmt: skip


def writes(x: Any, y: Any) -> Any:
    z = x.clone()
    z[0] = y[1]
    z[1:, ::2] += 1
    z.t()[2].mul_(y[:, 0])
    w = jg.zeros_like(z)
    w.copy_(z)
    w.flatten()[3:7].zero_()
    v = z.view(-1)
    v[5] = 7.0
    u = jg.zeros(2)
    u[0] = 3.0  # the same for all examples
    z.masked_fill_(y > 1, 0.5)
    return z, w, v, u, z.index_add(0, jg.tensor([0, 2]), y[:2])


def losses(x: Any, n: Any) -> Any:
    return (
        F.cross_entropy(x[:, :4], n[:4]), F.mse_loss(x, W[:4]), F.nll_loss(x.log_softmax(1), n[:4]),
        F.smooth_l1_loss(x, x * 2), F.binary_cross_entropy_with_logits(x, (W[:4] > 0).float()),
        F.one_hot(n, 4), F.embedding(n, W),
    )  # fmt: skip


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "indexing": (indexing, (X,)),
    "indexing by examples": (indexing_by_examples, (X, N)),
    "shapes": (shapes, (X,)),
    "reductions": (reductions, (X,)),
    "products": (products, (X,)),
    "pointwise": (pointwise, (X, Y)),
    "writes": (writes, (X, Y)),
    "losses": (losses, (X, N)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    f, args = FUNCTIONS[name]
    wanted = loop(f, *args)

    def run(*xs: Any) -> Any:
        return vmap(f)(*xs)

    agree(flatten(run(*args))[0], wanted)
    compiled = jg.jit(run, fallback="error")
    for _ in range(2):
        agree(flatten(compiled(*args))[0], wanted)
    assert compiled.stats.hits == 1


LAYERS: dict[str, tuple[Any, Any]] = {
    "linear": (nn.Linear(6, 5), X),
    "layer norm": (nn.LayerNorm(6), X),
    "conv": (nn.Conv2d(3, 5, 3, padding=1, stride=2), IMAGES),
    "grouped conv": (nn.Conv2d(3, 6, 3, groups=3), IMAGES),
    "conv1d": (nn.Conv1d(4, 5, 3), X),
    "max pool": (nn.MaxPool2d(2), IMAGES),
    "avg pool": (nn.AvgPool2d(3, 2, 1), IMAGES),
    "batch norm, eval": (nn.BatchNorm2d(3).eval(), IMAGES),
    "batch norm, no statistics": (nn.BatchNorm2d(3, track_running_stats=False), IMAGES),
    "a network": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
        ),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    """Results, and per-example gradients of the parameters."""
    layer, x = LAYERS[name]
    agree([vmap(layer)(x)], loop(layer, x))
    params = {k: p.detach() for k, p in layer.named_parameters()}
    if not params:
        return

    def loss(p: Any, a: Any) -> Any:
        return func.functional_call(layer, p, (a,)).sin().sum()

    found = vmap(grad(loss), in_dims=(None, 0))(params, x)
    agree(list(found.values()), loop(lambda a: grad(loss)(params, a), x))


def test_attention() -> None:
    def attend(q: Any, k: Any) -> Any:
        mask = jg.ones(4, 4, dtype=jg.bool).tril()
        scores = (q @ k.t() / 2).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ k

    agree([vmap(attend)(X, Y)], loop(attend, X, Y))
    heads = vmap(vmap(attend), in_dims=(0, None))(X.unsqueeze(1), Y[:1])
    assert heads.shape == (B, 1, 4, 6)


def test_an_op_without_a_rule_runs_for_each_example(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cumsum", "sin"):
        monkeypatch.setattr(type(OPS[name]), "batch", Op.batch)
    agree([vmap(lambda x: x.sin().cumsum(1))(X)], loop(lambda x: x.sin().cumsum(1), X))
    agree(
        [vmap(grad(lambda x: x.sin().cumsum(1).prod()))(X)],
        loop(grad(lambda x: x.sin().cumsum(1).prod()), X),
    )


# -- random numbers --------------------------------------------------------------------------------
def test_randomness() -> None:
    def f(x: Any) -> Any:
        return x * 0 + jg.rand(6)

    jg.manual_seed(0)
    same = vmap(f, randomness="same")(X)
    assert same[0].equal(same[1]) and same[0].equal(same[2])
    jg.manual_seed(0)
    assert same[0, 0].equal(jg.rand(6))
    other = vmap(f, randomness="different")(X)
    assert not other[0].equal(other[1])
    with pytest.raises(RuntimeError, match="randomness error mode"):
        vmap(f)(X)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        vmap(vmap(f), randomness="different")(X)


def test_randomness_of_nested_maps() -> None:
    def f(x: Any) -> Any:
        return x * 0 + jg.randn(())

    def values(outer: str, inner: str) -> Any:
        rows = vmap(vmap(f, randomness=inner), randomness=outer)(X[..., 0])
        return len(set(rows[0].tolist())), len(set(rows[:, 0].tolist()))

    assert values("same", "same") == (1, 1)
    assert values("different", "same") == (1, B)
    assert values("same", "different") == (4, 1)
    assert values("different", "different") == (4, B)


def test_dropout_bernoulli_and_fills() -> None:
    dropped = vmap(lambda x: F.dropout(x, 0.5), randomness="different")(jg.ones(B, 50))
    assert not dropped[0].equal(dropped[1]) and set(dropped.flatten().tolist()) == {0.0, 2.0}
    p = jg.tensor([0.0, 1.0, 0.5])
    drawn = vmap(lambda q: jg.bernoulli(q.expand(40)), randomness="different")(p)
    assert drawn[0].sum() == 0 and drawn[1].sum() == 40 and 0 < drawn[2].sum() < 40
    filled = vmap(lambda x: jg.zeros_like(x).normal_(), randomness="different")(X)
    assert not filled[0].equal(filled[1])
    likes = vmap(jg.randn_like, randomness="different")(X)
    assert likes.shape == X.shape and not likes[0].equal(likes[1])


def test_randomness_under_jit() -> None:
    @jg.jit(fallback="error")
    def f(x: Any) -> Any:
        return vmap(lambda a: F.dropout(a, 0.5), randomness="different")(x)

    jg.manual_seed(1)
    compiled = [f(X), f(X)]
    jg.manual_seed(1)
    with jg.disable_jit():
        assert all(a.equal(f(X)) for a in compiled)
    assert f.stats.hits == 1


# -- what a tensor inside is -------------------------------------------------------------------
def test_a_jitted_function_inside_runs_as_part_of_the_map() -> None:
    inner = jg.jit(lambda x: (x.sin() @ W).sum(), fallback="error")
    for _ in range(3):
        agree([vmap(inner)(X)], loop(inner.__wrapped__, X))
        agree([vmap(grad(inner))(X)], loop(grad(inner.__wrapped__), X))
    assert inner.stats.traces == 0
    for _ in range(3):
        agree([grad(inner)(X[0])], [grad(inner.__wrapped__)(X[0])])
    assert inner.stats.hits > 0


def test_values_are_not_there() -> None:
    for read in (float, bool, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.data_ptr()):
        with pytest.raises(RuntimeError, match="vmap: It looks like you're calling"):
            vmap(lambda x, read=read: read(x.sum()))(X)
    with pytest.raises(RuntimeError, match="vmap"):
        vmap(lambda x: x[x > 0])(X)
    texts: list[str] = []

    def shown(x: Any) -> Any:
        texts.append(repr(x + 1))
        return x

    vmap(vmap(shown))(X[:2, :1, :1])
    below = repr(X[:2, :1, :1] + 1).replace("\n", "\n        ")
    inner = f"BatchedTensor(lvl=1, bdim=0, value=\n        {below}\n    )"
    assert texts == [f"BatchedTensor(lvl=2, bdim=0, value=\n    {inner}\n)"]


def test_a_tensor_kept_beyond_its_map_says_so() -> None:
    kept = []
    vmap(lambda x: (kept.append(x), x)[1])(X)
    with pytest.raises(RuntimeError, match="kept beyond its vmap"):
        kept[0] + 1


def test_errors_leave_the_levels_as_they_were() -> None:
    def fails(x: Any) -> Any:
        raise KeyError("here")

    for form in (vmap(fails), grad(fails), func.jacfwd(fails), vmap(grad(fails))):
        with pytest.raises(KeyError):
            form(X)
    assert state.levels == () and state.recorder is None and state.grad_enabled
    agree([vmap(lambda x: x + 1)(X)], [X + 1])


def test_no_examples_and_one() -> None:
    assert vmap(lambda x: (x @ W).sum(0))(X[:0]).shape == (0, 6)
    agree([vmap(lambda x: (x @ W).softmax(0))(X[:1])], [(X[:1] @ W).softmax(1)])


def test_dims_that_are_not_first_and_strided_arguments() -> None:
    x = X.permute(2, 0, 1)
    agree([vmap(lambda a: a.sum(0), in_dims=1, out_dims=1)(x)], [X.sum(2).t()])
    base = floats(4, 2 * B, 6)[:, ::2].flip(0)
    agree(
        [vmap(lambda a: a.t() @ a, in_dims=1)(base)],
        loop(lambda a: a.t() @ a, base.transpose(0, 1)),
    )


def test_versions_are_checked_inside() -> None:
    def f(x: Any) -> Any:
        y = x.exp()
        z = (y * y).sum()
        y.add_(1)
        return z

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        vmap(grad(f))(X)


def test_writes_go_to_the_argument_and_count() -> None:
    x = X.clone()
    version = x._version
    vmap(lambda a: a[1].zero_() if True else a)(x)
    assert x[:, 1].abs().sum() == 0 and x._version == version + 1


def test_a_module_is_written_when_its_buffers_are_mapped() -> None:
    norm = nn.BatchNorm1d(6)
    buffers = {k: jg.stack([b] * B) for k, b in norm.named_buffers()}
    out = vmap(lambda b, x: func.functional_call(norm, b, (x,)))(buffers, X)
    own = nn.BatchNorm1d(6)
    agree([out[1]], [own(X[1])])
    agree([buffers["running_mean"][1]], [own.running_mean])
    assert buffers["num_batches_tracked"].tolist() == [1] * B


def test_a_compiled_backward_of_many_cotangents() -> None:
    f = jg.jit(lambda x: (x.sin() @ W).sum(1), fallback="error")
    for _ in range(3):
        x = X[0].clone().requires_grad_()
        found = func.jacrev(f)(X[0])
        (rows,) = jg.autograd.grad(f(x), x, jg.eye(4), is_grads_batched=True)
        agree([found, rows], [func.jacrev(f.__wrapped__)(X[0])] * 2)
    assert f.stats.hits > 0


def test_levels_pass_on_all_that_recorders_are_told() -> None:
    """Whatever code asks of the recorder in force, that of a level has, too."""
    told: set[str] = set()
    for path in Path(jg.__file__).parent.rglob("*.py"):
        told |= set(re.findall(r"\b(?:state|current)\.recorder\.(\w+)\(", path.read_text("utf-8")))
    dispatch = Path(jg.dispatch.__file__).read_text("utf-8")  # it has the recorder in a variable
    told |= set(re.findall(r"\brecorder\.(op|write)\(", dispatch))
    assert {"op", "write", "draw", "postpone"} <= told <= set(vars(Relay))
    lazy = nn.LazyLinear(3)
    assert vmap(lambda x: x.sum())(lazy(X)).shape == (B,)
    assert func.jvp(nn.LazyLinear(3), (X,), (X,))[1].shape == (B, 4, 3)
