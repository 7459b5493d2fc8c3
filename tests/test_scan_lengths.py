"""scan and while_loop under jit with lengths that change: one recording serves all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.jit import jit


def _grads(y: Any, xs: Any) -> Any:
    return jg.autograd.grad(y, xs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_length_of_a_scan_may_change(dim: int, reverse: bool) -> None:
    """One recording with a symbolic number of steps, and one backward, serve all lengths."""
    rng = np.random.default_rng(0)
    w = jg.tensor(rng.standard_normal((3, 3)).astype(np.float32)).requires_grad_()

    def f(h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jg.tanh(h @ w + x)
            return h, (h.mean(-1), h * 2)

        last, (means, ys) = jg.scan(step, h, xs, dim=dim, reverse=reverse)
        return last.sum() + (means * xs.shape[dim]).sum(), ys

    fast = jit(f, fallback="error")
    for n in (5, 7, 3, 12, 2, 9, 7):
        shape = [4, 3]
        shape.insert(dim, n)
        xs = jg.tensor(rng.standard_normal(shape).astype(np.float32)).requires_grad_()
        h = jg.ones(4, 3)
        (a, ys), (b, wanted) = fast(h, xs), f(h, xs)
        assert ys.shape == wanted.shape
        for found, want in zip((ys, a, *_grads(a, (xs, w))), (wanted, b, *_grads(b, (xs, w))),
                               strict=True):  # fmt: skip
            np.testing.assert_allclose(
                found.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5
            )
    # Each with its backward, and the part of the second's that these gradients ask for.
    assert fast.stats.traces == 2 and fast.stats.compiles == 5
    static = jit(f, fallback="error", dynamic=False)
    static(h, xs), static(h, xs)
    assert static(h, xs)[1].equal(ys)  # the bits are those of code for this length


def test_the_limit_of_a_loop_may_change() -> None:
    def f(x: Any) -> Any:
        z = x.sum().detach().requires_grad_()
        (y,) = jg.while_loop(lambda y: y < 50, lambda y: (y * 1.5,), (z,), max_steps=x.shape[0])
        y.backward()
        return y.detach(), z.grad

    fast = jit(f, fallback="error")
    for n in (3, 4, 9, 2, 30, 6):
        x = jg.full((n,), 2.0 / n)
        for found, want in zip(fast(x), f(x), strict=True):
            np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5)
    assert fast.stats.traces == 2, fast.explain_last_miss()


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_on_sequences_of_any_length(kind: str) -> None:
    jg.manual_seed(0)
    layer = getattr(jg.nn, kind)(3, 4, batch_first=True, bidirectional=True)
    fast = jit(lambda x: layer(x)[0], fallback="error")
    for n in (5, 8, 3, 12, 2):
        x = jg.randn(2, n, 3)
        np.testing.assert_allclose(
            fast(x).detach().numpy(), layer(x)[0].detach().numpy(), rtol=1e-5, atol=1e-6
        )
    assert fast.stats.traces == 2
