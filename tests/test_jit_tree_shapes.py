"""jit: trees of traces with symbolic sizes: functions that look at tensors' values and get tensors
of sizes that change. How often is recorded and compiled is counted."""

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

SIZES = (4, 6, 3, 9, 5, 12, 2, 7)


def make(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return jg.tensor(numbers * np.float32(scale))


def two_ways(x: Any) -> Any:
    y = (x @ x.t()).exp()
    n = x.shape[0]
    if x.sum() > 0:
        return y.sum(0) * n, x[: n // 2 + 1]
    return y.view(-1)[:n] - n, y.mean().item() * 2


def early_exit(x: Any) -> Any:
    total = jg.zeros(x.shape[0])
    for k in range(4):
        total = total + x.abs().sum(1) * (k + 1)
        if total.max() > 6:
            break
    return total.view(x.shape[0], 1) / x.shape[0]


def checked(x: Any) -> Any:
    assert x.isfinite().all()
    i = int(x[:, 0].argmax() % 2)
    return x[i:].relu().flatten(), i


def gradient(x: Any) -> Any:
    z = x.detach().requires_grad_()
    loss = F.softmax(z @ z.t(), -1).square().sum()
    if loss > x.shape[0] / 2:
        loss = loss * 2
    loss.backward()
    return z.grad, loss.detach()


@pytest.mark.parametrize("function, ways", [(two_ways, 2), (early_exit, 4), (checked, 3),
                                            (gradient, 2)])  # fmt: skip
def test_programs(function: Callable[[Any], Any], ways: int) -> None:
    fast = jit(function, fallback="error")
    for k, n in enumerate(SIZES * 3):
        x = make(n, 4, seed=k, scale=0.2 + k % 3)
        assert_same(fast(x), function(x))
    stats = fast.stats
    # Each way once for all sizes, beside the first call; where one leaves a single row of two,
    # those calls have a tree of their own.
    ways += function is checked
    assert stats.traces <= ways + 1 and stats.hits == 3 * len(SIZES) - stats.traces
    assert stats.segments == stats.fallbacks == 0
    before = stats.compiles
    for k, n in enumerate((11, 8, 13, 20)):
        x = make(n, 4, seed=k, scale=0.2 + k % 3)
        assert_same(fast(x), function(x))
    assert fast.stats.traces <= ways + 1 and fast.stats.compiles <= before + 2 * ways


def test_slices_that_are_clamped_for_some_sizes() -> None:
    """Traces of sizes below and above what a slice asks for are of two trees."""

    def f(x: Any) -> Any:
        if (x > 0)[:3].tolist() == [True, False, True]:
            return x + 1
        return x[:3] * 2 if x.sum() > 0 else x * 3

    fast = jit(f, fallback="error")
    for _ in range(3):
        for n in (2, 4, 3, 6, 2, 5):
            for x in (jg.ones(n), -jg.ones(n)):
                assert_same(fast(x), f(x))
    assert fast.stats.traces == 4 and fast.stats.hits == 32


def train(jitted: bool) -> Any:
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = jg.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x).squeeze(-1), y)
        if loss > 1.0:
            loss = loss.sqrt()
        loss.backward()
        if not model[0].weight.grad.isfinite().all():
            return None
        optimizer.step()
        return loss.detach()

    f = jit(step, fallback="error") if jitted else step
    out = []
    for k, n in enumerate((16, 16, 16, 10) * 6):
        out.append(f(make(n, 5, seed=k), make(n, seed=k, scale=0.3 + k % 2)))
    return out, [p.detach() for p in model.parameters()], f


def test_a_training_loop_with_a_smaller_last_batch() -> None:
    found, wanted = train(True), train(False)
    assert_same(found[:2], wanted[:2])
    # For each way of two at most: the first call (which makes momentum), 16, any size.
    assert found[2].stats.traces <= 5 and found[2].stats.segments == 0


def test_a_gradient_outside() -> None:
    def f(x: Any) -> Any:
        return x.exp().cumsum(0) if x.mean() > 0 else (x * x.shape[0]).square()

    fast = jit(f, fallback="error")
    for k, n in enumerate(SIZES * 2):
        x = make(n, 3, seed=k).requires_grad_()
        weights = make(n, 3, seed=k + 50)
        (a,) = jg.autograd.grad((fast(x) * weights).sum(), x)
        (b,) = jg.autograd.grad((f(x) * weights).sum(), x)
        assert_same(a, b)
    assert fast.stats.traces <= 3


def test_sizes_that_one_way_fixes() -> None:
    """A way that needs the very size has traces for each; the other serves all."""

    def f(x: Any) -> Any:
        if x.sum() > 0:
            return sum(x[k] for k in range(len(x)))
        return x * 2

    fast = jit(f, fallback="error")
    for n in (4, 5, 6, 5, 6, 4):
        for sign in (1, -1):
            x = sign * make(n, 2).abs()
            assert_same(fast(x), f(x))
    assert fast.stats.hits >= 6 and fast.stats.segments == 0
    traces = fast.stats.traces
    assert_same(fast(-make(9, 2).abs()), -2 * make(9, 2).abs())
    assert fast.stats.traces == traces


def test_declared_sizes() -> None:
    def f(x: Any) -> Any:
        return x + x.shape[0] if x[0] > 0 else -x

    fast = jit(f, fallback="error", dynamic_shapes={"x": {0: jg.Dim("n", max=16)}})
    for n in (5, 6, 7):
        for sign in (1, -1):
            x = sign * (make(n).abs() + 1)
            assert_same(fast(x), f(x))
    assert fast.stats.traces == 2 and fast.stats.hits == 4
    text = str(fast.explain())
    assert "tree of 2 leaves" in text and "2 <= x.shape[0] <= 16" in text
