"""utils.checkpoint: memory, random numbers, in-place changes, and under @jit."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.autograd import graph_report
from jitgrad.utils.checkpoint import checkpoint

X = jg.from_numpy(np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32))


def deep(x: Any) -> Any:
    for _ in range(6):
        x = (x.sin() * 1.5).tanh()
    return x


def noisy(x: Any) -> Any:
    return F.dropout(deep(x), 0.5) * jg.rand(8, 16) + F.dropout(x, 0.25)


def saved_bytes(loss: Any) -> int:
    gc.collect()
    return sum(row.bytes for row in graph_report() if "test_checkpoint" in row.line)


def test_intermediate_values_are_not_kept() -> None:
    x = X.clone().requires_grad_()
    plain = deep(x).sum()
    kept = saved_bytes(plain)
    del plain
    loss = checkpoint(deep, x, use_reentrant=False).sum()
    assert kept >= 6 * X.nbytes and saved_bytes(loss) <= X.nbytes
    loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_second_run_draws_the_same(reentrant: bool) -> None:
    grads = []
    for use in (False, True):
        jg.manual_seed(3)
        x = X.clone().requires_grad_()
        y = checkpoint(noisy, x, use_reentrant=reentrant) if use else noisy(x)
        after = jg.rand(2)
        y.sum().backward()
        assert jg.rand(2).tolist() != after.tolist()
        grads.append((x.grad.numpy(), y.detach().numpy(), after.numpy()))
    for a, b in zip(*grads, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_preserving_it_draws_anew() -> None:
    jg.manual_seed(3)
    x = X.clone().requires_grad_()
    y = checkpoint(noisy, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    jg.manual_seed(3)
    w = X.clone().requires_grad_()
    noisy(w).sum().backward()
    assert not x.grad.equal(w.grad)


def test_arguments_changed_in_place_are_refused() -> None:
    x = X.clone().requires_grad_()
    y = x * 2
    z = checkpoint(deep, y, use_reentrant=False)
    with jg.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="not changed in place"):
        z.sum().backward()


def test_under_jit() -> None:
    """Forward and backward inside, and a result that is differentiated outside; draws included."""
    weight = jg.nn.Parameter(jg.randn(16, 16) / 4)

    def block(x: Any) -> Any:
        return noisy(x @ weight)

    def inside(x: Any) -> Any:
        loss = checkpoint(block, x, use_reentrant=False).pow(2).sum()
        return jg.autograd.grad(loss, weight)[0], loss.detach()

    def outside(x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=False).pow(2).sum()

    compiled = jg.jit(inside, fallback="error")
    through = jg.jit(outside, fallback="error")
    for step in range(3):
        jg.manual_seed(step)
        g, loss = inside(X)
        jg.manual_seed(step)
        found, its = compiled(X)
        np.testing.assert_allclose(found.numpy(), g.numpy(), rtol=2e-5, atol=1e-5)
        np.testing.assert_allclose(its.item(), loss.item(), rtol=1e-5)
        jg.manual_seed(step)
        weight.grad = None
        through(X).backward()
        np.testing.assert_allclose(weight.grad.numpy(), g.numpy(), rtol=2e-5, atol=1e-5)
    assert compiled.stats.hits == 2 and through.stats.hits >= 1


@pytest.mark.parametrize(
    "name", ["exp", "tanh", "sigmoid", "relu", "sqrt", "softmax", "cumprod", "amax", "sort"]
)
def test_under_jit_ops_that_save_their_own_result(name: str) -> None:
    """The last op of the block saves what it makes: the second run's, recorded in backward."""
    layer = jg.nn.Linear(16, 4)
    along = ("softmax", "cumprod", "amax", "sort")
    args = (1,) if name in along else ()

    def block(x: Any) -> Any:
        y = getattr(layer(x).abs() + 0.25, name)(*args)
        y = y[0] if name == "sort" else y
        return y

    def step(x: Any) -> Any:
        layer.zero_grad()
        y = checkpoint(block, x, use_reentrant=False)
        (y * y).sum().backward()
        return y.detach()

    compiled = jg.jit(step, fallback="error")
    for _ in range(2):
        want = step(X)
        assert layer.weight.grad is not None
        gradient = layer.weight.grad.clone()
        np.testing.assert_allclose(compiled(X), want, rtol=2e-6)
        np.testing.assert_allclose(layer.weight.grad, gradient, rtol=2e-5, atol=1e-6)
    assert compiled.stats.hits >= 1


def test_a_jitted_block_runs_as_written() -> None:
    block = jg.jit(deep, fallback="error")
    want = X.clone().requires_grad_()
    deep(want).sum().backward()
    for _ in range(3):
        x = X.clone().requires_grad_()
        checkpoint(block, x, use_reentrant=False).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), want.grad.numpy(), rtol=1e-6)


def test_autocast_holds_in_the_second_run() -> None:
    weight = jg.nn.Parameter(jg.randn(16, 16) / 4)

    def block(x: Any) -> Any:
        return (x @ weight).tanh() @ weight

    grads = []
    for use in (False, True):
        weight.grad = None
        with jg.autocast("cpu", dtype=jg.bfloat16):
            y = checkpoint(block, X, use_reentrant=False) if use else block(X)
        assert y.dtype is jg.bfloat16
        y.float().sum().backward()
        assert weight.grad is not None
        grads.append(weight.grad.numpy().copy())
    np.testing.assert_array_equal(*grads)
