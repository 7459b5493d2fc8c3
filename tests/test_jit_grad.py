"""Gradients through a compiled function that is called from eager code: forward and backward are
compiled as a pair. Each test compares with the plain function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import forget_plans
from jitgrad.jit import jit
from jitgrad.runtime.errors import FallbackWarning
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def near(a: Any, b: Any) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=2e-6)


def leaf(*shape: int, seed: int = 0) -> Any:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return jg.tensor(data, requires_grad=True)


def compare(function: Callable[..., Any], *shapes: tuple[int, ...], calls: int = 3) -> Any:
    """Results and gradients of all arguments, plain and compiled; returns the jitted function."""
    fast = jit(function)
    for k in range(calls):
        runs = []
        for f in (function, fast):
            args = [leaf(*s, seed=10 * k + i) for i, s in enumerate(shapes)]
            out = f(*args)
            outs = list(out) if isinstance(out, tuple) else [out]
            loss = sum((y * jg.arange(1.0, y.numel() + 1).reshape(y.shape)).sum() for y in outs)
            assert all(y.requires_grad and not y.is_leaf for y in outs)
            loss.backward()
            runs.append([*outs, *(a.grad for a in args)])
        for a, b in zip(*runs, strict=True):
            near(a, b)
    assert fast.stats.traces == 1 and fast.stats.hits == calls - 1
    return fast


FUNCTIONS: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (lambda x: x * 2, [(3,)]),
    (lambda x: x.exp().sum(), [(3, 4)]),
    (lambda x, w: (x @ w).tanh(), [(4, 3), (3, 2)]),
    (lambda x, y: (x * y + x, y.sigmoid()), [(3, 1), (3,)]),
    (lambda x: x.t()[1:] * 3, [(3, 4)]),
    (lambda x: (x * 2).t(), [(3, 4)]),
    (lambda x: (x * x).reshape(2, 6)[0], [(3, 4)]),
    (lambda x: F.log_softmax(x, dim=1), [(3, 4)]),
    (lambda x: x.max(1).values + x.sort(1)[0].sum(1), [(3, 4)]),
    (lambda x, y: x * y.detach() + y, [(3,), (3,)]),
    (lambda x: x.cumsum(0).pow(2).mean(), [(5,)]),
]


def test_gradients_that_are_expanded_may_be_written():
    def f(w):
        g = jg.autograd.grad(w.sum(), w)[0]
        g[0].sub_(1)
        return g

    w = jg.rand(3, 4, requires_grad=True)
    compiled = jg.jit(f, fallback="error")
    for _ in range(3):
        assert compiled(w).equal(f(w))


@pytest.mark.parametrize(("function", "shapes"), FUNCTIONS)
def test_gradients_of_arguments(function: Any, shapes: Any) -> None:
    compare(function, *shapes)


def test_in_place_inside() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y[0] = y[1] * x[0]
        y.mul_(x)
        return y.tanh()

    compare(f, (3, 4))


def test_a_view_of_an_argument() -> None:
    def f(x: Any) -> Any:
        return x[1], x * 1

    compare(f, (3, 4))


def test_non_leaf_arguments_and_results_used_on() -> None:
    fast = jit(lambda x: x.exp() * 2)
    grads = []
    for f in (fast.__wrapped__, fast, fast):
        w = leaf(3)
        y = f(w * 3)
        (y * y).sum().backward()
        grads.append(w.grad)
    near(grads[0], grads[1])
    near(grads[0], grads[2])
    assert fast.stats.hits == 1


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3)),
    lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 3)),
])  # fmt: skip
def test_training_with_a_compiled_model(make: Any) -> None:
    jg.manual_seed(0)
    slow = make()
    fast_model = copy.deepcopy(slow)
    fast = jit(fast_model)
    data = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    losses = []
    for model, forward in ((slow, slow), (fast_model, fast)):
        jg.manual_seed(1)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        mine = []
        for _ in range(5):
            loss = F.cross_entropy(forward(jg.tensor(data)), jg.tensor([0, 1, 2, 0, 1, 2]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mine.append(loss.item())
        losses.append(mine)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert fast.jitted.stats.traces == 1 and fast.jitted.stats.hits == 4
    for p, q in zip(slow.state_dict().values(), fast_model.state_dict().values(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-4, atol=1e-5)


def test_backward_twice() -> None:
    fast = jit(lambda x: x.exp())
    fast(leaf(3))
    x = leaf(3)
    y = fast(x).sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    near(x.grad, once * 2)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_saved_values_are_checked() -> None:
    fast = jit(lambda x, w: (x * w).exp())
    for _ in range(2):
        x, w = leaf(3), leaf(3, seed=1)
        y = fast(x, w)
        with jg.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    for _ in range(2):
        x, w = leaf(3), leaf(3, seed=1)
        y = fast(x, w)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_in_place_on_a_result_that_is_not_saved() -> None:
    fast = jit(lambda x: x * 2)
    for _ in range(2):
        x = leaf(3)
        y = fast(x)
        y.mul_(3)
        y[0] = 0
        y.sum().backward()
        assert x.grad.tolist() == [0.0, 6.0, 6.0]


def test_second_derivative() -> None:
    fast = jit(lambda x: (x**3).sum() + x.exp().sum())
    for _ in range(2):
        x = leaf(4)
        (g,) = jg.autograd.grad(fast(x), x, create_graph=True)
        (h,) = jg.autograd.grad((g * g).sum(), x)
        (g2,) = jg.autograd.grad(fast.__wrapped__(x), x, create_graph=True)
        (h2,) = jg.autograd.grad((g2 * g2).sum(), x)
        near(g, g2)
        near(h, h2)


def test_only_some_results_are_used() -> None:
    fast = jit(lambda x, y: (x * 2, y * x))
    for _ in range(2):
        x, y = leaf(3), leaf(3, seed=1)
        a, b = fast(x, y)
        a.sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        assert y.grad is None or y.grad.tolist() == [0.0] * 3


def test_result_beside_its_detached_self() -> None:
    @jit
    def f(x: Any) -> Any:
        y = x * 2
        return y, y.detach()

    for _ in range(2):
        x = leaf(3)
        y, off = f(x)
        assert y.requires_grad and not off.requires_grad
        assert y._storage is off._storage
        y.sum().backward()
        assert x.grad.tolist() == [2.0] * 3


def test_dropout_recomputes_nothing_and_repeats() -> None:
    fast = jit(lambda x: F.dropout(x, 0.5) * 3)
    for k in range(3):
        jg.manual_seed(k)
        x = leaf(64)
        y = fast(x)
        y.sum().backward()
        kept = y.detach().numpy() != 0
        np.testing.assert_array_equal(x.grad.numpy() != 0, kept)
        jg.manual_seed(k)
        near(y, fast.__wrapped__(x))


def test_grad_mode_is_a_guard() -> None:
    fast = jit(lambda x: x * 2)
    x = leaf(3)
    for _ in range(2):
        assert fast(x).requires_grad
        with jg.no_grad():
            assert not fast(x).requires_grad
    assert fast.stats.traces == 2


class Cube(jg.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def test_custom_function() -> None:
    compare(lambda x: Cube.apply(x) * 2, (3,))


class Reversed(jg.autograd.Function):
    """Its backward computes with numbers that forward kept."""

    @staticmethod
    def forward(ctx: Any, x: Any, rate: float, count: int) -> Any:
        ctx.rate, ctx.more = rate, {"rates": (rate * 2, [rate]), "count": count}
        ctx.times = lambda g: g * (rate - 1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        double, (rate,) = ctx.more["rates"]
        g = -ctx.rate * g * double + ctx.times(g) * ctx.more["count"]
        return g / (1 + rate) + max(rate, double), None, None


def test_numbers_that_custom_functions_keep() -> None:
    """The first backward runs after the recorded call, with what that kept."""

    def f(x: Any, rate: float, count: int) -> Any:
        return Reversed.apply(x * 2, rate, count).sum()

    fast = jit(f)
    for rate, count in ((1.0, 2), (0.5, 2), (0.25, 3), (0.125, 4), (2.0, 4)):
        grads = []
        for g in (f, fast):
            x = leaf(3)
            g(x, rate, count).backward()
            grads.append(x.grad)
        near(*grads)
    assert fast.stats.hits == 3


@knob(segments=False)
def test_hooks_on_leaves_run_once() -> None:
    w = leaf(3)
    seen: list[Any] = []
    fast = jit(lambda x: x * w)
    for _ in range(2):
        fast(jg.ones(3)).sum().backward()
    handle = w.register_hook(lambda g: seen.append(g.tolist()))
    fast(jg.ones(3)).sum().backward()
    assert seen == [[1.0] * 3]
    assert w.grad.tolist() == [3.0] * 3
    handle.remove()
    fast(jg.ones(3)).sum().backward()
    assert w.grad.tolist() == [4.0] * 3 and fast.stats.hits == 2


def test_hook_registered_after_a_step_with_backward_inside() -> None:
    w = leaf(3)

    @jit
    def step(x: Any) -> None:
        w.grad = None
        (x * w).sum().backward()

    for _ in range(2):
        step(jg.ones(3))
    handle = w.register_hook(lambda g: g * 10)
    for _ in range(2):
        step(jg.ones(3))
        assert w.grad.tolist() == [10.0] * 3
    handle.remove()
    step(jg.ones(3))
    assert w.grad.tolist() == [1.0] * 3
    assert step.stats.traces == 2


class Remembers(nn.Module):
    """Keeps a tensor that is on the tape as an attribute, as hooks of weight norm do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(3, 3)
        self.state: Any = None

    def forward(self, x: Any) -> Any:
        self.state = self.cell(x, self.state)
        return self.state.sum()


@pytest.mark.parametrize("inside", [False, True])
def test_attribute_on_the_tape(inside: bool) -> None:
    """After a compiled call it is on the tape as eager code leaves it."""
    models = [Remembers(), Remembers()]
    models[1].load_state_dict(models[0].state_dict())

    def stepper(model: Remembers) -> Any:
        def step(x: Any) -> Any:
            model.state = None if model.state is None else model.state.detach()
            loss = model(x)
            if inside:
                loss.backward()
            return loss.detach() if inside else loss

        return step

    steps = [jit(stepper(models[0])), stepper(models[1])]
    for seed in range(4):
        losses = [step(leaf(2, 3, seed=seed).detach()) for step in steps]
        near(*losses)
        for model in models:
            if inside:
                with pytest.raises(RuntimeError, match="a second time"):
                    model.state.square().sum().backward()
            else:
                model.zero_grad()
                model.state.square().sum().backward()
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            near(a.grad, b.grad)
        for model in models:
            model.zero_grad()
    assert steps[0].stats.hits == 2


@knob(segments=False)
def test_state_on_the_tape_of_the_call_before() -> None:
    """It is differentiated through both calls: the second runs eagerly, with its reason."""
    models = [Remembers(), Remembers()]
    models[1].load_state_dict(models[0].state_dict())
    steps = [jit(lambda x: models[0](x), fallback="warn"), lambda x: models[1](x)]
    with pytest.warns(FallbackWarning, match="made before the call"):
        for seed in range(4):
            losses = [step(leaf(2, 3, seed=seed).detach()) for step in steps]
            for model, loss in zip(models, losses, strict=True):
                model.zero_grad()
                loss.backward(retain_graph=True)
            for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
                near(a.grad, b.grad)
    assert steps[0].stats.fallbacks == 3


@knob(segments=False)
def test_an_alias_made_inside_may_require_grad() -> None:
    """x.detach().requires_grad_() of an argument, differentiated inside; or kept."""
    kept: list[Any] = []

    def slope(x: Any) -> Any:
        own = x.detach().requires_grad_()
        (g,) = jg.autograd.grad((own**3).sum(), own)
        return g

    f = jg.jit(slope, fallback="error")
    x = jg.arange(3.0)
    for _ in range(3):
        assert f(x).tolist() == [0.0, 3.0, 12.0] and not x.requires_grad
    assert f.stats.hits == 2

    def keeps(x: Any) -> Any:
        own = x.detach().requires_grad_()
        kept.append(own)
        return own.detach() + 1

    f = jg.jit(keeps, fallback="error")
    for n in range(1, 4):
        assert f(x).tolist() == [1.0, 2.0, 3.0] and len(kept) == n
    assert f.stats.hits == 2
    assert all(y.requires_grad and y.is_leaf and y.data_ptr() == x.data_ptr() for y in kept)


@pytest.mark.parametrize("first", [True, False])
def test_a_result_and_a_part_of_it_off_the_tape(first: bool) -> None:
    w = jg.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        y = (x * w).exp()
        part = y.detach()[1:]
        return (part, y) if first else (y, part)

    compiled = jg.jit(f, fallback="error")
    x = jg.arange(3.0)
    for _ in range(3):
        part, y = compiled(x) if first else reversed(compiled(x))
        assert part.is_leaf and y.requires_grad and not (part.requires_grad or y.is_leaf)
        assert part.data_ptr() == y.data_ptr() + 4
        (g,) = jg.autograd.grad(y.sum(), [w])
        assert jg.allclose(g, x * x.exp())
    assert compiled.stats.hits == 2


def test_a_result_on_what_backward_freed() -> None:
    """As the state of a recurrent net: off the loss, on operations that the loss went through."""

    def f(x: jg.Tensor, w: jg.Tensor) -> tuple[jg.Tensor, jg.Tensor]:
        h = (x * w).tanh()
        h.exp().sum().backward()
        return h * 2, h.detach()

    compiled = jg.jit(f, fallback="error")
    x = jg.tensor([1.0, 2.0])
    for _ in range(3):
        w = jg.tensor([0.5, -1.0], requires_grad=True)
        carried, value = compiled(x, w)
        assert carried.requires_grad and carried.tolist() == (value * 2).tolist()
        assert not carried.detach().requires_grad
        with pytest.raises(RuntimeError, match="second time"):
            carried.sum().backward()
    assert compiled.stats.hits == 2


def test_hooks_on_saved_tensors_inside() -> None:
    """What the pack hook does is recorded, for gradients inside and outside; forward mode, too."""
    w = jg.nn.Parameter(jg.randn(4, 4))
    hooks = jg.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())

    def loss(x: Any) -> Any:
        with hooks:
            return (x @ w).sin().exp().sum()

    def inside(x: Any) -> Any:
        return jg.autograd.grad(loss(x), w)[0]

    def forward(x: Any) -> Any:
        with jg.autograd.forward_ad.dual_level():
            d = jg.autograd.forward_ad.make_dual(x, x * 2)
            return jg.autograd.forward_ad.unpack_dual(loss(d)).tangent

    x = jg.randn(3, 4)
    wanted, along = inside(x), forward(x)
    own, outer, ahead = (jg.jit(f, fallback="error") for f in (inside, loss, forward))
    for _ in range(3):
        w.grad = None
        outer(x).backward()
        assert w.grad is not None
        for found in (own(x), w.grad):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ahead(x).detach(), along.detach(), rtol=1e-5)
    assert own.stats.hits == 2 and outer.stats.hits == 2
    plain = jg.autograd.grad((x @ w).sin().exp().sum(), w)[0]
    assert not plain.equal(wanted)  # the hooks were used


def _products(x: Any, w: Any) -> Any:
    y = x * w
    return y.tanh()


def _rows(x: Any, w: Any) -> Any:
    return x[:1] * w


def _weighted(x: Any, w: Any) -> Any:
    return (x.exp() @ w.reshape(3, 1)).sum(1)


@pytest.mark.parametrize("function", [_products, _rows, _weighted])
@pytest.mark.parametrize("change", ["x", "w", "y"])
def test_a_change_in_place_is_told_as_eager_code_tells_it(function: Any, change: str) -> None:
    told = []
    for f in (function, jg.jit(function, fallback="error")):
        w = jg.ones(3, requires_grad=True)
        x = jg.ones(2, 3)
        for _ in range(2):
            y = f(x, w)
        with jg.no_grad():
            {"x": x, "w": w, "y": y}[change].add_(1)
        try:
            y.sum().backward()
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
    eager, compiled = told
    assert bool(eager) == bool(compiled)
    for inside in (" (x)", " (w)"):
        compiled = compiled.replace(inside, "")
    assert "replay" not in compiled and "kept" not in compiled
    if function is not _rows:  # what eager code keeps is the part; compiled code keeps all of x
        assert compiled == eager


# -- only what is needed -------------------------------------------------------------------------
def test_gradients_nobody_asks_for_are_not_computed() -> None:
    def f(x: Any, w: Any) -> Any:
        return ((x @ w).tanh() @ w.t()).sum()

    fast = jit(f)
    x, w = leaf(4, 3), leaf(3, 5, seed=1)
    fast(x, w)
    pair = fast.specialisations[0].trace.pair
    make, graphs = pair.make, []

    def noted(graph: Any, count: int) -> Any:
        graphs.append(graph)
        return make(graph, count)

    pair.make = noted
    (only,) = jg.autograd.grad(fast(x, w), [x])
    near(only, jg.autograd.grad(f(x, w), [x])[0])
    (part,) = pair.parts
    assert part == ((True,), (True, False))
    _, places, types = pair.parts[part]
    assert places == [0, None] and len(types) == 1
    products = [n.op.name for n in graphs[0].nodes].count("matmul")
    assert products == 2  # of four: those for w are left out
    fast(x, w).backward()
    near(w.grad, jg.autograd.grad(f(x, w), [w])[0])
    fast(x, w).backward(inputs=[w])
    assert fast.stats.compiles == 4  # forward, backward, the part for x, the part for w


def test_a_result_that_is_not_used_passes_no_gradient() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y.sum(), 1 / x, (y * x).sum()  # the second has no finite derivative at 0

    fast = jit(f)
    for create_graph in (False, True):
        for pick in ([0], [2], [0, 2]):
            grads = []
            for g in (f, fast, fast):
                x = jg.tensor([0.0, 1.0, 2.0], requires_grad=True)
                out = g(x)
                loss = sum(out[i] for i in pick)
                grads.append(jg.autograd.grad(loss, [x], create_graph=create_graph)[0])
            assert grads[0].isfinite().all()
            near(grads[0], grads[1])
            near(grads[0], grads[2])


def test_an_input_that_no_used_result_depends_on_gets_none() -> None:
    fast = jit(lambda x, w: (x.sin(), w.cos() + x))
    for _ in range(3):
        x, w = leaf(3), leaf(3, seed=1)
        fast(x, w)[0].sum().backward()
        assert w.grad is None and x.grad is not None
        found = jg.autograd.grad(fast(x, w)[0].sum(), [x, w], allow_unused=True)
        assert found[1] is None
        with pytest.raises(RuntimeError, match="not have been used"):
            jg.autograd.grad(fast.__wrapped__(x, w)[0].sum(), [x, w])


# -- hooks ---------------------------------------------------------------------------------------
def test_hooks_on_arguments_captured_tensors_and_results() -> None:
    w = leaf(3, seed=1)
    log: list[Any] = []
    seen = []
    w.register_hook(lambda g: log.append(("w", g.sum().item())))
    w.register_post_accumulate_grad_hook(lambda p: log.append(("after", p.grad.sum().item())))
    fast = jit(lambda x: (x * w).sin())
    for f in (fast.__wrapped__, fast, fast, fast):
        log.clear()
        w.grad = None
        x = leaf(3)
        x.register_hook(lambda g: g * 2)
        middle = x * 3
        middle.retain_grad()
        middle.register_hook(lambda g: log.append(("middle", g.sum().item())))
        y = f(middle)
        y.register_hook(lambda g: g + 1)
        y.sum().backward()
        assert [name for name, _ in log] == ["w", "after", "middle"]
        seen.append([x.grad.tolist(), middle.grad.tolist(), w.grad.tolist(),
                     [v for _, v in log]])  # fmt: skip
    assert fast.stats.hits == 2 and fast.stats.traces == 1
    for other in seen[1:]:
        for a, b in zip(seen[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_hooks_that_come_later_count_where_backward_runs_inside() -> None:
    def f(x: Any) -> Any:
        return jg.autograd.grad((x * x).sum(), [x])[0]

    fast = jit(f, fallback="silent")
    x = leaf(3)
    fast(x), fast(x)
    assert fast.stats.hits == 1
    x.register_hook(lambda g: g * 10)
    near(fast(x), f(x))
    near(fast(x), x.detach() * 20)


def test_node_hooks_on_a_result() -> None:
    fast = jit(lambda x: x.exp())
    fast(leaf(3))
    x = leaf(3)
    y = fast(x)
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 2,))
    y.sum().backward()
    near(x.grad, 2 * x.detach().exp())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sin() * x.exp()).sum() + (x**3).mean(),
        lambda x: ((x @ x).tanh() @ x).sum(),
        lambda x: F.layer_norm(x, (3,)).pow(3).sum(),
        lambda x: F.softmax(x, 1).square().sum() + F.gelu(x).sum(),
        lambda x: Cube.apply(x.sin()).sum(),
        lambda x: jg.where(x > 0, x * x * x, x.sin()).sum(),
    ],
)
def test_gradgradcheck(function: Any) -> None:
    fast = jit(function)
    x = jg.tensor(np.random.default_rng(5).standard_normal((3, 3)), requires_grad=True)
    fast(x)
    assert jg.autograd.gradcheck(fast, (x,))
    assert jg.autograd.gradgradcheck(fast, (x,))
    assert fast.stats.traces == 2 and fast.stats.hits > 10  # numbers are taken under no_grad


def test_a_gradient_penalty_inside() -> None:
    def step(x: Any, w: Any) -> Any:
        y = (x @ w).tanh().sum()
        (g,) = jg.autograd.grad(y, [x], create_graph=True)
        return y + g.square().sum()

    compare(step, (4, 3), (3, 2))


def test_a_recorded_call_copies_no_gradient_that_nobody_else_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied: list[Any] = []
    copies = OPS["contiguous"]
    reference = copies.reference

    def counted(x: Any, **attrs: Any) -> Any:
        copied.append(x.shape)
        return reference(x, **attrs)

    monkeypatch.setattr(copies, "reference", counted)
    forget_plans()

    @jit
    def step(x: Any, w: Any, b: Any) -> Any:
        ((x @ w).exp() + b).square().sum().backward()

    leaves = [leaf(5, 4), leaf(4, 3), leaf(5, 3)]
    others = [copy.deepcopy(x) for x in leaves]
    copied.clear()
    step(*leaves)
    assert copied == [(5, 3)]  # of b: the rest of backward reads that, too
    step.__wrapped__(*others)
    for x, y in zip(leaves, others, strict=True):
        near(x.grad, y.grad)
    grads = [x.grad for x in leaves]
    step(*leaves)  # accumulates: another recording
    step(*leaves)
    step.__wrapped__(*others), step.__wrapped__(*others)
    for x, y, grad in zip(leaves, others, grads, strict=True):
        near(x.grad, y.grad)
        assert x.grad is grad
    monkeypatch.undo()
    forget_plans()


def test_one_gradient_of_two_leaves_is_no_shared_memory() -> None:
    kept: list[Any] = []

    @jit
    def step(x: Any, y: Any, c: Any) -> Any:
        ((x + y) * c).sum().backward()

    @jit(fallback="silent")
    def hooked(x: Any, y: Any, c: Any) -> Any:
        z = x * y
        z.register_hook(kept.append)
        (z + x * 1).backward(c)

    for function in (step, hooked):
        for _ in range(3):
            x, y, c = leaf(3), leaf(3, seed=1), leaf(3, seed=2).detach()
            function(x, y, c)
            before = [y.grad.clone(), c.clone(), *[g.clone() for g in kept]]
            x.grad.fill_(7)
            for a, b in zip([y.grad, c, *kept], before, strict=True):
                assert a.equal(b)
