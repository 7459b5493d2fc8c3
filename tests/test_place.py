"""What is only copied to another shape is stored there by the kernel that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.passes.place import _copies
from jitgrad.runtime.knobs import knob


def heads(x: Any, w: Any) -> Any:
    """Of each head a product, then all heads side by side, then a product of these."""
    n, t, c = x.shape
    h = x.reshape(n, t, 4, c // 4).transpose(1, 2)
    return (h @ w[: c // 4, : c // 4]).transpose(1, 2).reshape(n, t, c) @ w


def groups(x: Any, w: Any) -> Any:
    n, t, c = x.shape
    y = x.reshape(n, 2, t // 2, c)
    y = y - y.mean((2, 3), keepdim=True)
    return y.reshape(n, t, c) @ w


def transposed(x: Any, w: Any) -> Any:
    """Neighbours become strangers: the copy stays."""
    return (x @ w).mT.reshape(x.shape[0], -1) @ jg.ones(x.shape[1] * x.shape[2], 1)


def twice(x: Any, w: Any) -> Any:
    """The product is read in both shapes."""
    n, t, c = x.shape
    h = x.reshape(n, t, 4, c // 4).transpose(1, 2) @ w[: c // 4, : c // 4]
    return h.transpose(1, 2).reshape(n, t, c) @ w, h.softmax(-1)


def narrow(x: Any, w: Any) -> Any:
    """Runs of 2 neighbours are too short."""
    n, t, c = x.shape
    h = x.reshape(n, t, c // 2, 2).transpose(1, 2).cumsum(-1)
    return (h.exp() - h.exp().mean(-1, keepdim=True)).transpose(1, 2).reshape(n, t, c) @ w


def written(x: Any, w: Any) -> Any:
    """What is copied goes into an argument, which is read elsewhere too."""
    n, t, c = x.shape
    h = x.reshape(n, t, 4, c // 4).transpose(1, 2) @ w[: c // 4, : c // 4]
    x.copy_(h.transpose(1, 2).reshape(n, t, c))
    return x.sum()


def repeated(x: Any, w: Any) -> Any:
    """The first half of the rows of a product twice: as many elements, but not the same."""
    half = x.shape[1] // 2 * x.shape[2]
    h = (x.reshape(-1, x.shape[2]) @ w).reshape(x.shape[0], -1)[:, :half]
    return h.repeat(1, 2).reshape(x.shape) @ w


CASES: list[tuple[Callable[..., Any], int | None]] = [
    (heads, 2), (groups, None), (repeated, None), (transposed, None), (twice, None),
    (narrow, None), (written, None),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kernels"), CASES)
@pytest.mark.parametrize("shape", [(2, 6, 64), (3, 10, 128), (1, 4, 68)])
def test_results_are_those_of_eager_code(
    function: Callable[..., Any], kernels: int | None, shape: tuple[int, ...]
) -> None:
    jg.manual_seed(0)
    x, w = jg.randn(*shape), jg.randn(shape[2], shape[2])
    f = jg.jit(function, fallback="error")
    with knob(cache=False):
        for _ in range(3):
            mine, other = x.clone(), x.clone()
            with jg.disable_jit():
                wanted = function(mine, w)
            found = f(other, w)
            pairs = (
                zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
            )
            for a, b in (*pairs, (mine, other)):
                np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-4, atol=1e-3)
    if kernels is not None and shape != (1, 4, 68):
        assert f.specialisations[0].compiled.report.kernels == kernels


def test_the_heads_of_attention_are_joined_by_its_last_product() -> None:
    """Forward and backward, no kernel copies from (N, heads, T, E) to (N, T, heads * E)."""
    jg.manual_seed(0)
    n, t, c = 8, 64, 128
    w = jg.randn(c, c) / 12

    def attend(q: Any, k: Any, v: Any) -> Any:
        split = [x.reshape(n, t, 2, c // 2).transpose(1, 2) for x in (q, k, v)]
        y = jg.nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        return (y.transpose(1, 2).reshape(n, t, c) @ w).square().mean()

    def step(q: Any, k: Any, v: Any) -> Any:
        return jg.autograd.grad(attend(q, k, v), (q, k, v))

    parts = [jg.randn(n, t, c, requires_grad=True) for _ in range(3)]
    f = jg.jit(step, fallback="error")
    with knob(cache=False):
        for _ in range(3):
            found = f(*parts)
    with jg.disable_jit():
        for a, b in zip(step(*parts), found, strict=True):
            np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-3, atol=1e-7)
    kernels = f.specialisations[0].compiled.stages.kernels
    assert not [c for k in kernels for c in _copies(k)]
