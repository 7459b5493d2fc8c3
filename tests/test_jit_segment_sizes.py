"""jit: segments with sizes that change: programs that differ in sizes only share compiled code, and
give what eager code gives. How often is compiled is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import assert_same

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.jit import jit

SIZES = (8, 8, 8, 5, 8, 7, 3, 12, 2, 9, 5)


def make(*shape: int, seed: int = 0) -> Any:
    return jg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def train(jitted: bool, lines: list[str]) -> tuple[Any, Any]:
    """A training loop whose step logs, prints and leaves early; its results, and the step."""
    jg.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.25), nn.BatchNorm1d(16), nn.Linear(16, 4)
    )
    optimizer = jg.optim.AdamW(model.parameters(), lr=0.01)
    log: list[float] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        log.append(float(loss))
        if log[-1] > 100:  # an early exit
            return None
        loss.backward()
        lines.append(f"{loss}")
        optimizer.step()
        return (loss * x.shape[0]).detach()

    f = jit(step, fallback="error") if jitted else step
    out = []
    for k, n in enumerate(SIZES):
        out.append(f(make(n, 6, seed=k), jg.arange(n) % 4))
    state = [*model.state_dict().values()]
    return (log, out, state), f


def test_a_training_loop_with_ragged_batches() -> None:
    lines: tuple[list[str], list[str]] = [], []
    (log, out, state), f = train(True, lines[0])
    wanted = train(False, lines[1])[0]
    assert_same(log, wanted[0]), assert_same(out, wanted[1], atol=2e-6)
    for a, b in zip(state, wanted[2], strict=True):
        assert_same(a, b, atol=2e-6)
    assert len(lines[0]) == len(lines[1])
    programs = f.segmented.segments.programs
    ends = {p.line for p in programs}
    # Two segments, up to the value and after it, each compiled for one size and then for any.
    assert f.stats.traces == 1 and f.stats.compiles <= 2 * len(ends), str(f.explain())
    assert f.stats.fallbacks == 0
    late = [p for p in programs if p.runs and p.native == p.runs]
    assert len(late) >= 2 * (len(set(SIZES)) - 1)  # compiled code served them at once


def squares(x: Any) -> Any:
    n = x.shape[0]
    return x.view(n, -1) @ jg.arange(n, dtype=jg.float32)[:, None].expand(n, 6).t(), x.numel() / n


def halves(x: Any) -> Any:
    n = x.shape[0]
    y = jg.cat([x[: n // 2], x[n // 2 :] * 2, jg.zeros(n, 6)])
    return y.reshape(2 * n, 3, 2).sum((0, 2)) / n, y[-1], y[n - 1 :].flatten()


def written(x: Any) -> Any:
    y = x.clone()
    y[1:] += y[:-1].clone()
    y[:, 0].mul_(x.shape[0])
    return y


def gradient(x: Any) -> Any:
    z = x.detach().requires_grad_()
    (F.softmax(z @ z.t(), -1) @ z).square().mean().backward()
    return z.grad, F.layer_norm(z.detach(), (6,)).std(0)


@pytest.mark.parametrize("function", [squares, halves, written, gradient])
def test_programs(function: Callable[[Any], Any]) -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        seen.append(float(x.sum()))
        return function(x)

    fast = jit(f, fallback="error")
    for k, n in enumerate(SIZES):
        x = make(n, 6, seed=k)
        assert_same(fast(x), function(x), atol=2e-6)
        assert seen[-1] == pytest.approx(float(x.sum()), rel=1e-4, abs=1e-5)
    assert len(seen) == len(SIZES)
    # Two segments, the sum and the rest: each for 8, and for all sizes.
    assert fast.stats.compiles <= 4 + (function is halves), str(fast.explain())


def test_arguments_that_are_written() -> None:
    def f(x: Any, total: Any) -> Any:
        print(end="")
        x.mul_(2)[1:].add_(x.shape[0])
        total += x.sum()
        return x[0]

    fast, totals = jit(f, fallback="error"), (jg.zeros(()), jg.zeros(()))
    for k, n in enumerate(SIZES):
        x, y = make(n, 3, seed=k), make(n, 3, seed=k)
        assert_same(fast(x, totals[0]), f(y, totals[1]), atol=2e-6)
        assert_same(x, y, atol=2e-6)
        assert x._version == y._version
    assert_same(*totals, atol=2e-6)
    assert fast.stats.compiles == 2


def test_two_sizes_that_change() -> None:
    def f(x: Any) -> Any:
        b, t, d = x.shape
        float(x[0, 0, 0])
        return x.reshape(b * t, d).softmax(0).view(b, t, d).transpose(0, 1).reshape(t, b * d)

    fast = jit(f, fallback="error")
    for b, t in ((3, 5), (3, 5), (3, 5), (4, 6), (3, 7), (8, 2), (5, 5), (2, 9)):
        x = make(b, t, 4)
        assert_same(fast(x), f(x), atol=2e-6)
    assert fast.stats.compiles <= 4, str(fast.explain())


def test_a_guess_that_is_wrong_is_not_used() -> None:
    """Two calls in which an end of a slice might have been n - 4 say nothing of the third."""
    seen: list[float] = []

    def f(x: Any, k: int) -> Any:
        seen.append(float(x[0, 0]))
        return x[:k] * 2

    fast = jit(f, fallback="error")
    for n, k in ((12, 8), (12, 8), (12, 8), (14, 10), (20, 8), (20, 16), (21, 11), (40, 9)) * 2:
        x = make(n, 6)
        assert fast(x, k).equal(x[:k] * 2)


def test_dims_are_no_sizes() -> None:
    """An axis that differs beside a size is no size of it."""

    def f(x: Any, dim: int) -> Any:
        float(x.reshape(-1)[0])
        return x.sum(dim)

    fast = jit(f, fallback="error")
    for n, dim in ((4, 1), (4, 1), (4, 1), (3, 0), (5, 2), (5, 0), (6, 1)) * 2:
        x = make(n, n, n)
        assert_same(fast(x, dim), x.sum(dim), atol=2e-6)


def test_fixed_sizes() -> None:
    """dynamic=False: each size has code of its own."""

    def f(x: Any) -> Any:
        float(x.sum())
        return x * 2

    fast = jit(f, fallback="error", dynamic=False)
    for n in (8, 8, 8, 5, 5, 7, 7):
        fast(make(n))
    assert fast.stats.compiles == 6


def test_errors_name_the_sizes_of_the_call() -> None:
    def f(x: Any, i: Any) -> Any:
        float(x.sum())
        return x[i]

    fast = jit(f, fallback="error")
    for n in (8, 8, 8, 5, 6):
        fast(make(n), jg.tensor([0, n - 1]))
    for n in (6, 7):
        with pytest.raises(IndexError, match=f"index {n} is out of bounds for dim.* size {n}"):
            fast(make(n), jg.tensor([0, n]))
