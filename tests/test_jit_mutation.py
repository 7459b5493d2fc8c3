"""jit and mutation: in-place writes, views, buffers, parameters, `.grad`, optimizer state.

Each test runs the plain function and the jitted one on equal state and compares both.
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
from jitgrad.jit import jit
from jitgrad.replay_support import clash
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def array(t: Any) -> np.ndarray[Any, Any]:
    return np.array(t.detach().numpy())


def same(a: Any, b: Any, tolerance: float = 1e-6) -> None:
    assert (a is None) == (b is None)
    if a is not None:
        assert a.dtype is b.dtype and a.shape == b.shape
        assert a.requires_grad == b.requires_grad
        np.testing.assert_allclose(array(a), array(b), rtol=tolerance, atol=tolerance)


def both(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], calls: int = 3) -> Any:
    """Runs the function plain and jitted, on arguments that make() gives, and compares them after
    each call. Returns the jitted function."""
    fast = jit(function)
    a, b = make(), make()
    for _ in range(calls):
        ra, rb = function(*a), fast(*b)
        for x, y in zip(flat(ra), flat(rb), strict=True):
            same(x, y)
        for x, y in zip(flat(a), flat(b), strict=True):
            same(x, y)
            assert x._version == y._version
    assert fast.stats.hits == calls - fast.stats.traces
    return fast


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, jg.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for x in tree for t in flat(x)] if isinstance(tree, (tuple, list)) else []


def x34() -> Any:
    return jg.arange(12.0).reshape(3, 4).clone()


# -- writes --------------------------------------------------------------------------------------
def test_in_place_on_an_argument() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        x.add_(1)
        return x.sum()

    assert both(f, lambda: (x34(),)).stats.traces == 1


def test_write_through_a_view() -> None:
    def f(x: Any) -> Any:
        row = x[1]
        row += 10
        x[:, 0] = 7.0
        x[1:, 2:].zero_()
        return row * 1, x.t() * 2

    assert both(f, lambda: (x34(),)).stats.traces == 1


def test_view_made_before_a_write_is_read_after_it() -> None:
    def f(x: Any) -> Any:
        v = x.reshape(-1)[2:6]
        before = v * 1
        x *= 3
        return before, v * 1

    assert both(f, lambda: (x34(),)).stats.traces == 1


def test_write_through_views_of_views() -> None:
    def f(x: Any) -> Any:
        x.t()[1:3].reshape(2, 3)[0, 1:].fill_(9.0)
        x.t()[2].mul_(2)
        return x + 0

    assert both(f, lambda: (x34(),)).stats.traces == 1


def test_overlapping_shift() -> None:
    def f(x: Any) -> Any:
        x[1:] = x[:-1].clone()
        return x.sum(0)

    assert both(f, lambda: (x34(),)).stats.traces == 1


def test_in_place_on_an_intermediate() -> None:
    def f(x: Any) -> Any:
        y = x + 1
        z = y[0]
        y.mul_(z)
        return y, z

    a = both(f, lambda: (x34(),))
    assert a.stats.traces == 1
    y, z = a(x34())
    y[0, 0] = 77.0
    assert z[0].item() == 77.0  # the results still share memory


def test_copy_between_arguments() -> None:
    def f(x: Any, y: Any) -> None:
        x.copy_(y)
        y.add_(1)

    assert both(f, lambda: (x34(), x34() * 2)).stats.traces == 1


def test_swap() -> None:
    def f(x: Any, y: Any) -> None:
        t = x.clone()
        x.copy_(y)
        y.copy_(t)

    assert both(f, lambda: (x34(), x34() * 2)).stats.traces == 1


def test_arguments_that_share_memory() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    def shared() -> Any:
        x = x34()
        return x, x[1]

    fast = both(f, shared)
    assert fast.stats.traces == 1
    x, y = x34(), jg.ones(4)
    same(fast(x, y), jg.full((4,), 2.0))
    assert fast.stats.traces == 2


def test_written_argument_that_overlaps_a_capture() -> None:
    held = x34()

    def f(x: Any) -> Any:
        x.add_(1)
        return held * 2

    fast = jit(f)
    fast(x34())
    fast(x34())
    assert (fast.stats.traces, fast.stats.hits) == (1, 1)
    expected = (array(held) + 1) * 2
    np.testing.assert_array_equal(array(fast(held)), expected)
    np.testing.assert_array_equal(array(fast(held)), expected + 2)
    assert fast.stats.traces == 2


def test_storages_that_overlap() -> None:
    memory = np.arange(8, dtype=np.float32)

    @jit(fallback="silent")
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 1

    f(jg.ones(4), jg.ones(4))
    x, y = jg.from_numpy(memory[:4]), jg.from_numpy(memory[2:6])
    for _ in range(2):
        got = f(x, y)
        np.testing.assert_array_equal(array(got), memory[2:6])


# -- results that alias --------------------------------------------------------------------------
def test_results_that_are_arguments_views_and_captures() -> None:
    held = jg.tensor([1.0, 2.0])

    @jit
    def f(x: Any) -> Any:
        return x, x[1], x.detach(), held, held[:1], x * 2

    for _ in range(3):
        x = x34()
        whole, row, off, h, part, new = f(x)
        assert whole is x and h is held
        row.zero_()
        off[0, 0] = 5.0
        part.fill_(8.0)
        assert x[1].sum().item() == 0 and x[0, 0].item() == 5.0 and held[0].item() == 8.0
        new.zero_()
        assert x[0, 0].item() == 5.0
    assert f.stats.traces == 1


def test_same_result_twice_and_copies() -> None:
    @jit
    def f(x: Any) -> Any:
        y = x + 1
        z = jg.empty(3, 4)
        z.copy_(y)
        return y, y, z

    for _ in range(2):
        a, b, c = f(x34())
        assert a is b or a._storage is b._storage
        a.zero_()
        assert b.sum().item() == 0 and c.sum().item() != 0


def test_result_is_the_written_argument() -> None:
    @jit
    def f(x: Any) -> Any:
        return x.add_(1)

    for _ in range(3):
        x = x34()
        assert f(x) is x
        same(x, x34() + 1)


def test_constant_results_are_fresh_at_each_call() -> None:
    @jit
    def f() -> Any:
        return jg.tensor([1.0, 2.0]), jg.zeros(2)

    for _ in range(3):
        a, b = f()
        assert a.tolist() == [1.0, 2.0] and b.tolist() == [0.0, 0.0]
        a += 1
        b += 1


# -- state ---------------------------------------------------------------------------------------
def test_captured_tensor_is_updated() -> None:
    total = jg.zeros(3, 4)

    @jit
    def f(x: Any) -> None:
        total.add_(x)

    for i in range(4):
        f(x34())
        same(total, x34() * (i + 1))
    assert f.stats.traces == 1


def test_numpy_memory_is_updated() -> None:
    memory = np.zeros(3, np.float32)

    @jit
    def f(x: Any) -> None:
        jg.from_numpy(memory).add_(x)

    for i in range(3):
        f(jg.ones(3))
        np.testing.assert_array_equal(memory, [i + 1] * 3)
    assert f.stats.traces == 1


def test_buffer_that_is_rebound() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", jg.zeros(4))

        def forward(self, x: Any) -> Any:
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    slow, fast = Average(), Average()
    compiled = jit(fast)
    for i in range(4):
        same(slow(x34() * i), compiled(x34() * i))
        same(slow.mean, fast.mean)
    assert compiled.jitted.stats.traces == 1


def test_hidden_state_that_begins_as_none() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = None

        def forward(self, x: Any) -> Any:
            self.h = x if self.h is None else self.h * 0.5 + x
            return self.h * 1

    slow, fast = Recurrent(), Recurrent()
    compiled = jit(fast)
    for i in range(5):
        same(slow(x34() * i), compiled(x34() * i))
    assert compiled.jitted.stats.traces == 2
    slow.h = fast.h = None
    same(slow(x34()), compiled(x34()))
    assert compiled.jitted.stats.traces == 2


def test_grad_accumulates_and_is_cleared() -> None:
    w1, w2 = (jg.ones(4, requires_grad=True) for _ in range(2))

    def step(w: Any, x: Any) -> Any:
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    fast = jit(step)
    for i in range(6):
        same(step(w1, x34()), fast(w2, x34()))
        same(w1.grad, w2.grad)
        if i == 3:
            w1.grad = w2.grad = None
    assert fast.stats.traces == 2


def test_grad_captured_by_another_function() -> None:
    w = jg.ones(4, requires_grad=True)

    @jit
    def backward(x: Any) -> None:
        w.grad = None
        (x * w).sum().backward()

    @jit
    def read() -> Any:
        return w.grad * 2

    for i in range(4):
        backward(x34() * i)
        same(read(), (x34() * i).sum(0) * 2)
    assert backward.stats.traces == 1 and read.stats.traces == 1


OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: optim.SGD(p, lr=0.1),
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda p: optim.Adam(p, lr=0.01),
    lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_training_step(make: Callable[[Any], Any]) -> None:
    jg.manual_seed(0)
    slow = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    fast = copy.deepcopy(slow)
    slow_optimizer, fast_optimizer = make(slow.parameters()), make(fast.parameters())

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    @jit
    def compiled(x: Any, y: Any) -> Any:
        return step(fast, fast_optimizer, x, y)

    for i in range(8):
        x, y = jg.randn(6, 4), jg.randint(0, 3, (6,))
        if i == 4:
            for o in (slow_optimizer, fast_optimizer):
                o.param_groups[0]["lr"] *= 0.5
        same(step(slow, slow_optimizer, x, y), compiled(x, y), 1e-5)
        for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
            same(p, q, 1e-5)
            same(p.grad, q.grad, 1e-5)
            for key in slow_optimizer.state[p]:
                same(slow_optimizer.state[p][key], fast_optimizer.state[q][key], 1e-5)
    assert compiled.stats.traces <= 2
    assert compiled.stats.hits >= 6


def test_zero_grad_and_step_outside() -> None:
    jg.manual_seed(0)
    slow = nn.Linear(4, 2)
    fast = copy.deepcopy(slow)
    o1, o2 = (optim.SGD(m.parameters(), lr=0.1) for m in (slow, fast))

    def losses(model: Any, x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss.detach()

    @jit
    def compiled(x: Any) -> Any:
        return losses(fast, x)

    for _ in range(5):
        same(losses(slow, x34()), compiled(x34()))
        for o in (o1, o2):
            o.step()
            o.zero_grad()
        same(slow.weight, fast.weight)
    assert compiled.stats.traces == 1


def test_batch_norm_and_dropout() -> None:
    jg.manual_seed(0)
    slow = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    fast = copy.deepcopy(slow)

    def run(model: Any, x: Any) -> Any:
        with jg.no_grad():
            return model(x)

    compiled = jit(lambda x: run(fast, x))
    for i in range(4):
        x = jg.randn(6, 4)
        jg.manual_seed(i)
        a = run(slow, x)
        draws = jg.default_generator.draws
        jg.manual_seed(i)
        b = compiled(x)
        assert jg.default_generator.draws == draws
        same(a, b, 1e-5)
        for p, q in zip(slow.buffers(), fast.buffers(), strict=True):
            same(p, q)
    assert compiled.stats.traces == 1
    slow.eval()
    fast.eval()
    same(run(slow, x), compiled(x), 1e-5)
    assert compiled.stats.traces == 2


def test_random_numbers_continue() -> None:
    generator = jg.Generator()

    def f(x: Any) -> Any:
        return x + jg.rand(4) + jg.randn(4), jg.rand(4, generator=generator)

    fast = jit(f)
    runs = []
    for g in (f, fast):
        jg.manual_seed(3)
        generator.manual_seed(4)
        runs.append([array(t) for _ in range(4) for t in g(jg.ones(4))])
    for a, b in zip(*runs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert fast.stats.traces == 1


def test_failed_compiled_call_changes_nothing() -> None:
    table = jg.arange(5.0)
    count = jg.zeros(1)

    @jit
    def f(i: Any) -> Any:
        count.add_(1)
        return table[i]

    f(jg.tensor([1, 2]))
    f(jg.tensor([1, 3]))
    before = count.item()
    with pytest.raises(IndexError):
        f(jg.tensor([1, 9]))
    assert count.item() == before
    same(f(jg.tensor([0, 4])), jg.tensor([0.0, 4.0]))


def test_returns_the_loss_that_backward_has_freed() -> None:
    """As most training loops do: the loss comes back on a tape that cannot run again."""
    layer = nn.Linear(3, 1)

    @jit(fallback="error")
    def step(x: jg.Tensor) -> tuple[jg.Tensor, jg.Tensor]:
        layer.zero_grad()
        out = layer(x)
        loss = (out * out).mean()
        loss.backward()
        return loss, out

    for i in range(4):
        x = jg.randn(4, 3)
        loss, out = step(x)
        with jg.no_grad():
            want = layer(x)
        assert abs(loss.item() - (want * want).mean().item()) < 1e-6
        assert loss.requires_grad and loss.grad_fn is not None and out.requires_grad, i
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert step.stats.fallbacks == 0 and step.stats.hits >= 2


def test_clash_is_overlap_of_pairs() -> None:
    """One sweep finds what comparing all pairs finds."""
    rng = np.random.default_rng(0)
    memory = np.zeros(64, np.float32)
    seen = set()
    for _ in range(300):
        arrays = []
        for _ in range(int(rng.integers(1, 5))):
            a, b = sorted(rng.integers(0, 65, 2))
            view = memory[a:b] if rng.random() < 0.5 else memory[a:b][:: int(rng.integers(-3, 0))]
            arrays.append(view)
        cut = int(rng.integers(0, len(arrays) + 1))
        pairs = [
            np.may_share_memory(a, b)
            for i, a in enumerate(arrays[:cut])
            for j, b in enumerate(arrays)
            if i != j
        ]
        wanted = any(pairs)
        assert clash(arrays[:cut], arrays[cut:]) is wanted
        seen.add(wanted)
    assert seen == {True, False}


@pytest.mark.parametrize("form", ["augmented", "view", "module"])
def test_data_written_in_place_and_set(form: str) -> None:
    """`w.data -= step` writes in place and sets .data to the memory that it has."""
    found = []
    for compiled in (False, True):
        layer = jg.nn.Linear(3, 1)
        with jg.no_grad():
            layer.weight.copy_(jg.tensor([[1.0, -2.0, 0.5]]))
            layer.bias.fill_(0.25)
        w = layer.weight

        def step(x: jg.Tensor, w: Any = w, layer: Any = layer) -> jg.Tensor:
            layer.zero_grad(set_to_none=False)
            loss = ((layer(x) - 1) ** 2).sum()
            loss.backward()
            if form == "augmented":
                w.data -= 0.1 * w.grad.data
            elif form == "view":
                w.data[0, 1:] *= 0.5
            else:
                for p in layer.parameters():
                    p.data += p.grad * -0.1
            return loss.detach() + w.sum().detach()

        f = jg.jit(step, fallback="error") if compiled else step
        losses = [f(jg.tensor([[0.1, 0.2, float(k)]])).item() for k in range(4)]
        if compiled:
            assert f.stats.hits >= 2  # type: ignore[attr-defined]
        found.append((losses, [p.tolist() for p in layer.parameters()], w._version))
    (losses, state, version), (others, state_then, version_then) = found
    np.testing.assert_allclose(losses, others, rtol=1e-5)
    np.testing.assert_allclose(state[0], state_then[0], rtol=1e-5)
    assert version == version_then


@knob(segments=False)
def test_data_set_to_other_memory_runs_eagerly() -> None:
    w = jg.ones(2, requires_grad=True)

    def step() -> jg.Tensor:
        w.data = w.data * 2
        return w.detach() + 1

    f = jg.jit(step, fallback="silent")
    assert [f().tolist()[0] for _ in range(3)] == [3.0, 5.0, 9.0]
    assert f.stats.fallbacks == 3
