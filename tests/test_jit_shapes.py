"""jit: symbolic sizes: how often functions are compiled, which guards they have, and that sizes
other than the recorded ones give what eager code, and code compiled for them, gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler import symbolic
from jitgrad.compiler.passes.fix_sizes import decided
from jitgrad.compiler.symbolic import ShapeEnv, bounds, evaluate, expression, smax, smin
from jitgrad.jit import compile as jg_compile
from jitgrad.jit import jit
from jitgrad.runtime.errors import CompileError
from jitgrad.utils.checkpoint import checkpoint

SIZES = (4, 6, 2, 3, 9, 33)


def make(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return jg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def numbers(*shape: int, below: int = 10, seed: int = 0) -> Any:
    return jg.tensor(np.random.default_rng(seed).integers(0, below, shape))


def leaves(x: Any) -> list[Any]:
    return [y for part in x for y in leaves(part)] if isinstance(x, (tuple, list)) else [x]


def assert_same(found: Any, wanted: Any, close: bool = False) -> None:
    a, b = leaves(found), leaves(wanted)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert type(x) is type(y)
        if not isinstance(x, jg.Tensor):
            assert x == y
            continue
        assert x.dtype is y.dtype and tuple(x.shape) == tuple(y.shape)
        assert all(type(d) is int for d in x.shape)
        u, v = x.detach().numpy(), y.detach().numpy()
        if close:
            np.testing.assert_allclose(u, v, rtol=2e-5, atol=2e-6)
        else:
            np.testing.assert_array_equal(u, v)


def both(
    function: Callable[..., Any], calls: Sequence[Sequence[Any]], traces: int = 2, **options: Any
) -> Any:
    """Calls a jitted function; compares each call with eager code, and the bits of the last, if it
    is no recording, with what code compiled for the very shapes gives. Asserts how many traces."""
    fast = jit(function, fallback="error", **options)
    static = jit(function, fallback="error", dynamic=False)
    for k, args in enumerate(calls):
        hits = fast.stats.hits
        found = fast(*args)
        assert_same(found, function(*args), close=True)
        if fast.stats.hits > hits and k >= len(calls) - 1:
            static(*args)
            assert_same(found, static(*args))
    assert fast.stats.traces == traces, fast.explain_last_miss()
    return fast


# -- what code does with sizes ---------------------------------------------------------------------
def masked(x: Any) -> Any:
    t = x.shape[-1]
    mask = jg.triu(jg.ones(t, t), 1)
    return (x @ x.mT).masked_fill(mask[:1, :1] == 1, 0.0), mask


def attention(x: Any) -> Any:
    b, t, d = x.size()
    q = x.view(b, t, 2, d // 2).transpose(1, 2)
    scores = q @ q.transpose(-2, -1) / (d // 2) ** 0.5
    causal = jg.tril(jg.ones(t, t, dtype=jg.bool))
    out = scores.masked_fill(~causal, float("-inf")).softmax(-1) @ q
    return out.transpose(1, 2).reshape(b, t, d), F.scaled_dot_product_attention(q, q, q)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(x.shape[0], -1) + 1,
    "flatten": lambda x: (x.flatten(), x.reshape(-1, x.size(0)), x.view(-1)),
    "arithmetic": lambda x: x * x.shape[0] + x.shape[0] * 2 - x.shape[0] // 2,
    "division": lambda x: x / x.shape[0] + x.shape[0] / 3 + 1 / x.shape[0],
    "powers": lambda x: x * x.size(0) ** 2 + x * x.size(0) ** 0.5 - x * 2.0 * x.size(0),
    "numel": lambda x: x.sum() / x.numel(),
    "stride": lambda x: x * x.stride(0) + x.t().contiguous().stride(0),
    "loose_stride": lambda x: x + x.t()[:, :2].contiguous().t()[:, :2].stride(1),
    "arange": lambda x: (jg.arange(x.shape[0]), jg.arange(1, x.shape[0] + 1) * x[:, 0].long()),
    "create": lambda x: (
        jg.zeros(x.shape[0], 3), jg.ones(x.shape), jg.full((x.shape[0],), 2.5), jg.zeros_like(x)
    ),
    "eye": lambda x: jg.eye(x.shape[0]) @ x,
    "slices": lambda x: (x[: x.shape[0] // 2], x[x.shape[0] // 2 :], x[1:], x[:-1], x[::2], x[-1]),
    "means": lambda x: (x.mean(), x.mean(0), x.mean(1), x.var(0), x.std(0)),
    "reductions": lambda x: (x.sum(), x.amax(0), x.prod(0), x.norm(), x.median(1)[0]),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(1), x.logsumexp(0)),
    "cat": lambda x: (jg.cat([x, x]), jg.cat([x, x[:1]]), jg.stack([x, x])),
    "expand": lambda x: (x[:1].expand(x.shape[0], 3), x.sum(0).expand_as(x), x.repeat(2, 1)),
    "transpose": lambda x: (x.t(), x.t().contiguous(), x.t() @ x, x @ x.t()),
    "sort": lambda x: (x.sort(0)[0], x.argmax(0), x.cumsum(0), x.topk(2, 0)[0]),
    "flip": lambda x: (x.flip(0), x.roll(1, 0)),
    "index": lambda x: x[jg.arange(x.shape[0]), jg.zeros(x.shape[0], dtype=jg.int64)],
    "gather": lambda x: x.gather(0, jg.zeros(x.shape[0], 1, dtype=jg.int64)),
    "chunk": lambda x: x.t().contiguous().view(3, -1).chunk(3),
    "pad": lambda x: F.pad(x, (1, 0, 0, 1)),
    "shape": lambda x: (x.shape[0], x.shape[0] * 2 + 1, list(x.shape), x.numel()),
    "isinstance": lambda x: x + (1 if isinstance(x.shape[0], int) else 2),
    "broadcast": lambda x: x[:, None] - x[None],
    "masks": lambda x: jg.where(jg.arange(x.shape[0])[:, None] < x.shape[0] // 2, x, -x),
    "losses": lambda x: (F.mse_loss(x, x * 2), F.cross_entropy(x, x.argmax(1))),
    "layers": lambda x: (F.layer_norm(x, (3,)), F.gelu(x), F.linear(x, jg.ones(4, 3))),
    "normalize": lambda x: (F.normalize(x), F.softmin(x, 0), F.cosine_similarity(x, x + 1)),
    "einsum": lambda x: (jg.einsum("bi,bj->ij", x, x), jg.einsum("bi,ci->bc", x, x)),
    "embedding": lambda x: F.embedding(x.argmax(1), jg.ones(3, 4)),
    "one_hot": lambda x: F.one_hot(x.argmax(1), 3),
    "dot": lambda x: (x[:, 0] @ x[:, 1], jg.outer(x[:, 0], x[:, 1])),
    "max": lambda x: x * max(x.shape[0], 2) + min(3, x.shape[0]),
    "copy": lambda x: (x.clone(), x.detach(), x.double(), x.long()),
}  # fmt: skip

FREE = {"max": 3, "slices": 4, "flip": 3, "loose_stride": 6}
"""Programs that add a guard which some size breaks, and how often they are recorded."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    calls = [(make(n, 3, seed=n),) for n in SIZES]
    f = both(PROGRAMS[name], calls, FREE.get(name, 2))
    assert f.stats.compiles == f.stats.traces


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("shape",)])
def test_gradients(name: str) -> None:
    """Backward inside the function, whose bits do not depend on sizes being symbolic either."""

    def step(x: Any, w: Any) -> Any:
        outs = [y for y in leaves(PROGRAMS[name](x * w)) if y.requires_grad]
        if not outs:
            return w
        return jg.autograd.grad(sum((y * y).sum() for y in outs), [w])[0]

    w = make(3, seed=1).requires_grad_()
    traces = {"loose_stride": 3, "max": 2}.get(name, 2)
    both(step, [(make(n, 3, seed=n), w) for n in (4, 6, 9)], traces)


@pytest.mark.parametrize("function", [masked, attention])
def test_two_sizes(function: Callable[[Any], Any]) -> None:
    """Batch and time vary on their own."""
    shapes = [(4, 8, 6), (3, 8, 6), (4, 5, 6), (2, 9, 6), (7, 3, 6), (3, 3, 6)]
    both(function, [(make(*s, seed=s[1]),) for s in shapes], 3)


# -- arguments, state and results ------------------------------------------------------------------
def test_int_arguments() -> None:
    """An int that changes is symbolic; 0, 1 and negative ones are recorded for themselves."""

    def f(x: Any, n: int) -> Any:
        return x * n + n / 3, jg.arange(n), x.expand(n, 3), n * 2

    both(f, [(make(3), n) for n in (2, 3, 5, 9, 4)], 2)
    both(lambda x, n: x * n, [(make(3), n) for n in (2, 3, 0, 1, -2, 5, 0, 1, -2)], 5)
    both(lambda x, n: x[:, :n], [(make(2, 8), n) for n in (3, 4, 5, 8)], 2)
    both(lambda x, n: sum(x[i] for i in range(n)), [(make(8), n) for n in (3, 4, 4, 5)], 3)


def _in_parts(x: Any, n: Any) -> Any:
    return x.sum() + (n["k"] if isinstance(n, dict) else n[1])


@pytest.mark.parametrize("wrap", [
    lambda n: [4, n, 1],
    lambda n: {"k": n},
    lambda n: (4, n),
    lambda n: ({"a": 1}, n),
    lambda n: [n + 1, n],
])  # fmt: skip
def test_ints_in_containers(wrap: Callable[[int], Any]) -> None:
    """Lists and dicts are handed on with the ints that they hold: these are guarded by value."""
    compiled = jit(_in_parts, fallback="error")
    x = make(3, 4)
    for n in (2, 3, 4, 2, 5, 0, 3, 1):
        assert_same(compiled(x, wrap(n)), _in_parts(x, wrap(n)), close=True)
    if isinstance(wrap(2), tuple):
        assert compiled.stats.traces == 4  # 2, any, 0, 1


def test_lengths_in_a_list() -> None:
    def total(x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return packed.data.sum()

    compiled = jit(total, fallback="error")
    x = make(3, 4, 2)
    for lengths in ([4, 2, 1], [4, 3, 1], [4, 2, 2], [4, 2, 1], [4, 4, 1], [4, 1, 4], [2, 3, 4]):
        assert_same(compiled(x, lengths), total(x, lengths), close=True)


def test_crops_of_symbolic_sizes() -> None:
    """A pad whose amounts depend on sizes may crop: forward, backward, and at other sizes."""

    def cropped(x: Any) -> Any:
        rows, columns = x.shape[-2] // 2 * 2 - 5, 4 - x.shape[-1]
        y = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return jg.autograd.grad((y * y).sum(), x)[0]

    compiled = jit(cropped, fallback="error")
    for n, m in ((4, 6), (5, 7), (7, 3), (8, 9), (4, 2), (3, 5)):
        x = make(2, n, m).requires_grad_()
        assert_same(compiled(x), cropped(x), close=True)


def test_sizes_zero_and_one() -> None:
    both(lambda x: (x.sum(0), x * x.shape[0]), [(make(n, 2),) for n in (3, 0, 1, 4, 5, 0, 1)], 4)


def test_captured_tensors() -> None:
    """A cache that grows, on a Module; and a tensor in a container, replaced by longer ones."""

    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", jg.zeros(2, 3))

        def forward(self, x: Any) -> Any:
            self.held = jg.cat([self.held, x])
            return self.held.sum(0) / self.held.shape[0]

    model, plain = Cache(), Cache()
    fast = jit(plain_call := lambda x: model(x), fallback="error")
    del plain_call
    for k in range(8):
        assert_same(fast(make(1, 3, seed=k)), plain(make(1, 3, seed=k)), close=True)
        assert_same(model.held, plain.held)
    assert fast.stats.traces == 2

    state = {"w": make(3)}
    scaled = jit(lambda x: x * state["w"].sum() * state["w"].shape[0], fallback="error")
    for n in (3, 5, 4, 7):
        state["w"] = make(n, seed=n)
        want = make(2) * state["w"].sum() * n
        assert_same(scaled(make(2)), want, close=True)
    assert scaled.stats.traces == 2


def test_writes_and_aliases() -> None:
    """In-place writes through views of symbolic sizes land in the argument; results alias it."""

    def f(x: Any, y: Any) -> Any:
        x += y
        x[1:] *= 2
        x.view(-1)[: x.shape[0]] -= 1
        return x[: x.shape[0] // 2], x.view(-1), x.detach(), x

    fast = jit(f, fallback="error")
    for n in (4, 6, 8, 5, 7):
        a = make(n, 2, seed=n)
        b, y = a.clone(), jg.ones(n, 2)
        version = a._version
        found, want = fast(a, y), f(b, y)
        assert_same(found, want)
        assert_same(a, b)
        assert found[3] is a and a._version - version == b._version
        found[0].zero_()
        want[0].zero_()
        assert_same(a, b)
    assert fast.stats.traces == 2


def test_backward_pairs() -> None:
    """Results that are differentiated outside: gradients, second ones, and some of them only."""

    def f(x: Any, w: Any) -> Any:
        return (x.view(x.shape[0], -1) * w).tanh().expand(2, x.shape[0], 3).sum((0, 2)) / len(w)

    fast = jit(f, fallback="error")
    for n in (3, 4, 5, 6, 2):
        grads = []
        for g in (fast, f):
            x, w = make(n, 3, seed=n).requires_grad_(), make(3).requires_grad_()
            y = g(x, w)
            assert type(y.shape[0]) is int and y._type is jg.empty(n)._type
            first = jg.autograd.grad((y * y).sum(), [x, w], create_graph=True)
            second = jg.autograd.grad(first[0].sin().sum(), [w])
            only = jg.autograd.grad(g(x, w).sum(), [w])
            grads.append((y, *first, *second, *only))
        assert_same(*grads, close=True)
    assert fast.stats.traces == 2


def test_the_tape_of_a_recorded_call() -> None:
    """What the recorded call leaves behind has plain sizes: types, chains, nodes, attributes."""
    kept = []

    class Twice(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.n = x.shape[0]
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * jg.ones(ctx.n) / ctx.n

    def f(x: Any) -> Any:
        y = Twice.apply(x).view(1, x.shape[0]).expand(3, x.shape[0])[:, : x.shape[0] - 1]
        return y, y.sum().reshape(1)

    fast = jit(f, fallback="error", dynamic=True)
    for n in (4, 6):
        x, z = make(n).requires_grad_(), make(n).requires_grad_()
        (y, total), want = fast(x), f(z)
        assert_same((y, total), want, close=True)
        (y.sum() + total.sum()).backward()
        (want[0].sum() + want[1].sum()).backward()
        assert_same(x.grad, z.grad)
        kept.append(y)
    assert fast.stats.traces == 1


def test_gradients_of_arguments_accumulate() -> None:
    def f(x: Any) -> None:
        (x * x).sum().backward()

    fast = jit(f, fallback="error")
    for n in (3, 4, 5, 6):
        x = make(n).requires_grad_()
        for _ in range(3):
            fast(x)
        assert_same(x.grad, 6 * x.detach(), close=True)
    assert fast.stats.traces == 4  # .grad None or not; the first sizes, others


def test_random_draws() -> None:
    """A draw's numbers depend on where an element is, so symbolic sizes draw eager's bits."""
    fast = jit(lambda x: F.dropout(x, 0.5) + jg.randn(x.shape[0], 5), fallback="error")
    for n in (3, 4, 5, 6, 7):
        jg.manual_seed(n)
        found = fast(jg.ones(n, 5))
        jg.manual_seed(n)
        assert_same(found, F.dropout(jg.ones(n, 5), 0.5) + jg.randn(n, 5), close=True)
    assert fast.stats.traces == 2


def test_code_that_needs_the_value() -> None:
    """type(), text, dict keys, range and len fix a size, and give what ints give."""

    def f(x: Any) -> Any:
        n = x.shape[0]
        return x * {3: 1, 4: 2}.get(n, 3) + len(f"{n}") + len(x), type(n) is int, str(x.shape)

    both(f, [(make(n),) for n in (3, 4, 5, 12, 4)], 4)

    def helper(n: Any) -> int:
        return 2 if type(n) is int else 3

    both(lambda x: x * helper(x.shape[0]), [(make(n),) for n in (3, 4, 5, 4)], 3)


def test_a_roll_by_a_multiple_of_the_size() -> None:
    """Nothing moves then, by the program of the other sizes; sizes stay the input's."""
    both(lambda x: x.roll(2, 0) + x, [(make(n),) for n in (8, 5, 2, 4, 2, 9)], 2)
    both(lambda x: (x.roll(-4) * x).view(-1), [(make(n),) for n in (8, 9, 4, 7, 4)], 2)


@pytest.mark.parametrize("first", [3, 34])
def test_a_size_that_code_fixes_is_fixed_everywhere(first: int) -> None:
    """A write to a part whose end turns out to be the size: the graph and its backward say so of
    sizes from before and after the guard, and words of errors that nobody sees fix nothing."""

    def f(y: Any) -> Any:
        y = y.detach().requires_grad_()
        (y @ y.t())[:, :33].mul_(2).sum().backward()
        return y.grad

    both(f, [(make(n, 4),) for n in (first, 33, 5, 40, 33, 34, 7)], 3)


def test_two_sizes_that_turn_out_to_be_equal() -> None:
    def f(x: Any, y: Any) -> Any:
        z = (x + y).requires_grad_()
        jg.cat([z, x, y * 2]).view(3, -1)[:, : x.shape[0]].mul(x.shape[0]).sum().backward()
        return z.grad

    both(f, [(make(n), make(m)) for n, m in ((4, 4), (6, 6), (5, 5))])
    g = jit(f, fallback="error", dynamic_shapes={"x": {0: jg.Dim("a")}, "y": {0: jg.Dim("b")}})
    for n in (4, 6, 5):
        assert_same(g(make(n), make(n)), f(make(n), make(n)))
    assert g.stats.traces == 1 and decided(g.specialisations[0].trace.graph.env).keys() == {"a"}


def test_sizes_that_guards_decide() -> None:
    env = ShapeEnv()
    a, b, c = (env.dim(n, h) for n, h in (("a", 33), ("b", 8), ("c", 4)))
    for x, y in ((a, 33), (2 * b, 4 * c), (a // b, 4), (a % 2, 1), (b * c, 32)):
        assert x == y
    assert {n: str(d) for n, d in decided(env).items()} == {"a": "33", "b": "2*c"}
    assert (c > 3) and decided(env).keys() == {"a", "b"}  # other guards decide nothing
    assert b == 8
    assert {n: str(d) for n, d in decided(env).items()} == {"a": "33", "b": "8", "c": "4"}


def test_numbers_with_tensors() -> None:
    """Sizes meet tensors of every dtype as Python ints do."""
    for dtype in (jg.float16, jg.bfloat16, jg.float32, jg.float64, jg.int64, jg.int8, jg.uint8):
        x = jg.tensor([1, 2, 3]).to(dtype)
        calls = [(make(n), x) for n in (4, 5, 6, 9)]
        both(lambda y, x: (x * y.shape[0], y.shape[0] - x, x + y.shape[0] // 2), calls)
    half = jg.ones(3, dtype=jg.float16)
    both(lambda y, x: x * (y.shape[0] * 12345), [(make(n), half) for n in (4, 5, 6)])
    small = jg.ones(3, dtype=jg.int8)
    both(lambda y, x: (x * y.shape[0], x < y.shape[0]), [(make(n), small) for n in (4, 300, 200)])


# -- guards and declarations -----------------------------------------------------------------------
def test_guards_are_told() -> None:
    @jit(fallback="error")
    def f(x: Any, y: Any) -> Any:
        if x.shape[0] > 5:
            return x + y
        return x - y

    for n in (3, 4, 5):
        f(make(n), make(n))
    text = str(f.explain())
    assert "sizes: s0 is x.shape[0]" in text and "guard: x.shape[0] == y.shape[0]" in text
    line = f"(at {__file__}:"
    assert f"guard: x.shape[0] <= 5 {line}" in text and f"x.shape[0] <= 5 {line}" in f.guards()
    f(make(9), make(9))
    assert f"0: x.shape[0] <= 5 {line}" in f.explain_last_miss()
    assert f.explain_last_miss().splitlines()[0].endswith("x.shape[0] = 9")
    assert_same(f(make(8), make(8)), make(8) * 2)
    assert f.stats.traces == 3


def test_equal_sizes_that_part() -> None:
    """Sizes that were equal so far are one; when they differ, two."""
    calls = [(make(n), make(m)) for n, m in ((3, 3), (4, 4), (5, 5), (5, 6), (7, 4), (4, 4))]
    both(lambda x, y: (x * 2, y.sum() * y.shape[0]), calls, 3)


def test_declared() -> None:
    batch = jg.Dim("batch", min=2, max=16)
    shapes = {"x": {0: batch}, "rest": [{0: batch}, None]}
    f = jit(lambda x, rest: x + rest[0] * rest[1].sum(), fallback="error", dynamic_shapes=shapes)
    for n in (4, 5, 16, 2):
        assert_same(f(make(n), [make(n), make(2)]), make(n) + make(n) * make(2).sum(), close=True)
    assert f.stats.traces == 1 and "2 <= x.shape[0] <= 16" in f.guards()
    f(make(17), [make(17), make(2)])  # for itself
    assert f.stats.traces == 2 and "x.shape[0] <= 16: it is 17" in f.explain_last_miss()
    with pytest.raises(ValueError, match="Dim 'batch' to be equal; x.shape"):
        f(make(4), [make(5), make(2)])


@pytest.mark.parametrize(
    ("shapes", "error", "text"),
    [
        ({"z": {0: jg.Dim("b")}}, ValueError, "name arguments \\(x\\); got \\['z'\\]"),
        ({"x": {3: jg.Dim("b")}}, ValueError, "expected dims of x: float32\\[4\\]; got \\[3\\]"),
        ({"x": 3}, TypeError, "dynamic_shapes of x as a dict of dims"),
    ],
)
def test_wrong_declarations(shapes: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        jit(lambda x: x * 2, dynamic_shapes=shapes)(make(4))


def test_a_declared_size_that_is_fixed() -> None:
    def f(x: Any) -> Any:
        return x * sum(range(x.shape[0]))

    shapes = {"x": {0: jg.Dim("batch")}}
    with pytest.raises(
        CompileError, match=r"x\.shape\[0\] \(batch\) .* fixes it: .* == 4 \(at .*py:"
    ):
        jit(f, dynamic_shapes=shapes)(make(4))
    shapes = {"x": {0: jg.Dim.STATIC}}
    assert_same(jit(f, fallback="error", dynamic_shapes=shapes)(make(4)), make(4) * 6)


def test_dims() -> None:
    assert repr(jg.Dim("n", max=3)) == "Dim('n', min=0, max=3)"
    for wrong in ({"name": "a b"}, {"name": "n", "min": 4, "max": 2}):
        with pytest.raises(ValueError, match="Dim"):
            jg.Dim(**wrong)
    assert [d.__name__ for d in jg.export.dims("a", "b")] == ["a", "b"]


def test_transforms_and_checkpoints() -> None:
    """vmap, grad and checkpoint on symbolic sizes; the same is saved as on fixed ones."""
    w = make(3, 3, seed=1)
    both(lambda x: jg.func.vmap(lambda r: (r * r).sum() / x.shape[0])(x),
         [(make(n, 3),) for n in (4, 5, 6)])  # fmt: skip
    both(lambda x: jg.func.grad(lambda v: ((x @ v).tanh() * x.shape[0]).mean())(w),
         [(make(n, 3),) for n in (4, 5, 6)])  # fmt: skip

    def f(x: Any) -> Any:
        inner = lambda y: (y @ w).relu() * y.shape[0]  # noqa: E731
        return checkpoint(inner, x, use_reentrant=False).sum()

    fast = jit(f, fallback="error")
    for n in (4, 5, 6, 3):
        x, z = make(n, 3).requires_grad_(), make(n, 3).requires_grad_()
        fast(x).backward()
        f(z).backward()
        assert_same(x.grad, z.grad, close=True)
    assert fast.stats.traces == 2


def test_declared_for_modules_and_methods() -> None:
    """Arguments have the names that forward, or the method, gives them."""

    class Scaled(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * x.shape[0]

        def twice(self, x: Any) -> Any:
            return self.forward(x) * 2

    shapes, model = {"x": {0: jg.Dim("batch")}}, Scaled(3, 2)
    for fast, plain in (
        (jit(model, fallback="error", dynamic_shapes=shapes), model),
        (jit(model.twice, fallback="error", dynamic_shapes=shapes), model.twice),
    ):
        for n in (3, 4, 5):
            assert_same(fast(make(n, 3)), plain(make(n, 3)), close=True)
        stats = fast.stats if plain is not model else type(fast).jitted.stats
        assert stats.traces == 1


def test_dims_of_exports() -> None:
    """export takes Dims, as jit does: min and max are conditions; Dim.DYNAMIC needs no name."""
    shapes = {"x": {0: jg.Dim("n", min=3, max=8), 1: jg.Dim.DYNAMIC}, "y": {0: jg.Dim.STATIC}}
    exported = jg.export(lambda x, y: x @ y[:1].expand(x.shape[1]), make(4, 5), make(2),
                         dynamic_shapes=shapes)  # fmt: skip
    for n, m in ((3, 4), (8, 2)):
        x, y = make(n, m), make(2)
        assert_same(exported(x, y), x @ y[:1].expand(m), close=True)
    for n, text in ((9, "n <= 8; got n = 9"), (2, "3 <= n; got n = 2")):
        with pytest.raises(ValueError, match=text):
            exported(make(n, 5), make(2))


def test_marks_and_switches() -> None:
    f = jit(lambda x: x * x.shape[0], fallback="error")
    for n in (4, 5, 6):
        x = make(n)
        jg.mark_dynamic(x, 0)
        assert_same(f(x), x * n)
    assert f.stats.traces == 1
    with pytest.raises(IndexError, match="expected a dim of float32"):
        jg.mark_dynamic(make(3), 1)
    for dynamic, traces in ((True, 1), (False, 3), (None, 2)):
        g = jg_compile(lambda x: x * x.shape[0], fullgraph=True, dynamic=dynamic)
        for n in (4, 5, 6):
            assert_same(g(make(n)), make(n) * n)
        assert g.stats.traces == traces


def test_memory_plan_as_a_formula() -> None:
    """The arena is planned for the sizes of each call."""
    f = jit(lambda x: ((x @ x.t()).softmax(1) @ x).sum(), fallback="error", dynamic=True)
    for n in (64, 500, 32):
        assert_same(f(make(n, 8)), f.__wrapped__(make(n, 8)), close=True)
    plan = f.memory_plan()
    assert "where x.shape[0] = 64, " in plan and "4 * x.shape[0] * x.shape[0]" in plan


def test_expressions() -> None:
    """The Python that guards, numbers and results are computed by is what the dim is."""
    env = ShapeEnv()
    a, b, c = (env.dim(name, hint) for name, hint in (("a", 5), ("b", 7), ("c", 3)))
    cases = [
        a // (b * c), (a * b) // c, (a + b) // (2 * c), a * b * 100 // (a * c), -a // b, a - b * 2,
        (a * 3) % (b * c), smax(a * b, c * 20) // c, 7 // a, (a - 1) * (b + 1), 2 * (a // 2) - c,
        smin(a, b * c) - smax(-a, b - c), -1 * a, (a // (b // c)) % 4,
    ]  # fmt: skip
    for values in ({"a": 5, "b": 7, "c": 3}, {"a": 90, "b": 4, "c": 2}, {"a": 2, "b": 31, "c": 8}):
        for d in cases:
            assert eval(expression(d), {}, values) == evaluate(d, values), d
            low, high = bounds(d)
            assert (low is None or low <= evaluate(d, values)) and (
                high is None or evaluate(d, values) <= high
            )


def test_check_compares_with_references() -> None:
    f = jit(lambda x: x.view(x.shape[0], -1).sum(1) / x.shape[0], check=True, fallback="error")
    for n in (3, 4, 5, 6):
        f(make(n, 4))
    assert f.stats.hits == 2


def test_an_error_says_the_sizes_of_the_call() -> None:
    @jit(fallback="error")
    def f(x: Any, i: Any) -> Any:
        return x[i]

    for n in (3, 4, 5):
        f(make(n), jg.tensor([n - 1]))
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 6"):
        f(make(6), jg.tensor([7]))
    assert f.stats.traces == 2


# -- training --------------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.head = nn.Conv2d(4, 6, 3, stride=2), nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.second(x)), 1)
        return self.head(F.dropout(x.view(x.size(0), -1), 0.1))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 8), nn.Embedding(16, 8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 9)

    def forward(self, i: Any) -> Any:
        b, t = i.size()
        x = self.tokens(i) + self.places(jg.arange(t))
        parts = self.qkv(self.norm(x)).split(x.size(2), dim=2)
        q, k, v = (y.view(b, t, 2, -1).transpose(1, 2) for y in parts)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        mask = jg.tril(jg.ones(t, t)).view(1, 1, t, t)
        y = scores.masked_fill(mask == 0, float("-inf")).softmax(-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).contiguous().view(b, t, -1)))


def mlp() -> Any:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)
    )


LOOPS: dict[str, Any] = {
    "mlp": (mlp, [((n, 4, 4), (n,)) for n in (8, 8, 8, 5, 8, 8, 5, 3)]),
    "conv": (Net, [((n, 1, 8, 8), (n,)) for n in (4, 4, 3, 4, 4, 3, 2)]),
    "gpt": (Gpt, [((b, t),) * 2 for b, t in ((4, 8), (3, 12), (4, 9), (2, 15), (5, 8), (4, 4))]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_training_with_ragged_batches(name: str) -> None:
    """Two compilations, whatever the sizes; and the losses of eager training."""
    model_of, shapes = LOOPS[name]

    def train(wrap: Callable[[Any], Any]) -> tuple[list[float], Any]:
        jg.manual_seed(0)
        model = model_of()
        optimizer = jg.optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        losses = []
        for k, (x, y) in enumerate(shapes):
            given = numbers(*x, below=9, seed=k) if name == "gpt" else make(*x, seed=k)
            losses.append(run(given, numbers(*y, below=5, seed=k)).item())
        return losses, run

    losses, fast = train(lambda f: jit(f, fallback="error"))
    np.testing.assert_allclose(losses, train(lambda f: f)[0], rtol=1e-4)
    assert fast.stats.compiles <= 2 and fast.stats.traces <= 3  # the first call makes state
    assert fast.stats.hits >= len(shapes) - 3


def test_parts_of_a_shape():
    """Slices and sums of a shape are Sizes, with symbolic sizes as well."""

    def function(x: Any) -> Any:
        rest = x.shape[1:]
        assert isinstance(rest, jg.Size)
        one = jg.ones(x.shape[:1] + (1,)).expand((x.shape[0],) + (rest.numel(),))
        return x.reshape(x.shape[0], rest.numel()) + one, rest, x.shape[:2].numel()

    both(function, [(make(n, 3, 4),) for n in (2, 5, 7)])


def test_errors_name_the_sizes_of_the_call() -> None:
    """Also where the call is recorded with symbolic ones."""
    functions = [
        lambda a, b: a + b,
        lambda a, b: a[None].mT * b.T,
        lambda a, b: jg.cat([a, b], 1),
        lambda a, b: a @ b.T @ a,
    ]
    for f in functions:
        fast = jit(f, fallback="error")
        fast(jg.ones(3, 3), jg.ones(3, 3))
        texts = []
        for g in (f, fast):
            with pytest.raises(RuntimeError) as caught:
                g(jg.ones(5, 3), jg.ones(6, 3))
            texts.append(str(caught.value))
        assert texts[0] == texts[1] and "s0" not in texts[1]


def test_bounds_of_nested_quotients_are_found_once(monkeypatch: Any) -> None:
    """Not by each quotient that is around them: a loop over halves of a size ends."""
    asked = []
    plain = symbolic._func_bounds
    monkeypatch.setattr(symbolic, "_func_bounds", lambda *a: asked.append(a[0]) or plain(*a))
    n: Any = ShapeEnv().dim("n", 1 << 12)
    for _ in range(12):
        n = (n + 1) // 2
    asked.clear()
    assert bounds(n)[0] == 1 and len(asked) == 12

    @jg.jit(fallback="error", dynamic=True)
    def halved(x: Any) -> Any:
        left, steps = x.shape[0], 0
        while left:
            left -= (left + 1) // 2
            steps += 1
        return x + steps

    for size in (64, 100):
        assert halved(jg.zeros(size)).tolist() == [7.0] * size


@pytest.mark.parametrize("wrong", [True, 3, "batch", {0}])
def test_dynamic_shapes_of_another_kind_are_refused_at_decoration(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"\[jit\] expected dynamic_shapes as a dict"):
        jg.jit(lambda x: x, dynamic_shapes=wrong)
