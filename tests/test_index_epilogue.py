"""Epilogues that compute with indices, as causal masks do: values by vectors of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.runtime.knobs import knob


def masked(x: Any, y: Any) -> Any:
    """Below a diagonal, plus what depends on the column, on the row, and on both."""
    z = x @ y
    rows, columns = jg.arange(z.shape[-2])[:, None], jg.arange(z.shape[-1])
    z = jg.where(columns <= rows + 3, z, -float("inf"))
    return z + columns * 3 - rows + columns * rows


def wanted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    z = x @ y
    rows, columns = np.arange(z.shape[-2])[:, None], np.arange(z.shape[-1])
    z = np.where(columns <= rows + 3, z, np.float32(-np.inf))
    return (z + columns * 3 - rows + columns * rows).astype(x.dtype)


@pytest.mark.parametrize("dtype", [jg.float32, jg.float64])
@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [((), 64, 32, 64), ((), 37, 20, 53), ((3, 2), 33, 16, 48), ((2,), 5, 7, 17), ((4,), 70, 9, 3)],
)
def test_a_product_with_index_arithmetic(
    batch: tuple[int, ...], m: int, k: int, n: int, dtype: Any
) -> None:
    jg.manual_seed(m)
    x, y = jg.randn(*batch, m, k, dtype=dtype), jg.randn(*batch, k, n, dtype=dtype)
    f = jg.jit(masked, fallback="error")
    with knob(cache=False):
        for _ in range(2):
            found = f(x, y)
    assert f.stats.compiles == 1
    assert f.specialisations[-1].compiled.report.kernels == 1
    tolerance = 1e-4 if dtype is jg.float32 else 1e-12
    np.testing.assert_allclose(found.numpy(), wanted(x.numpy(), y.numpy()), tolerance, tolerance)


def test_columns_of_two_axes() -> None:
    """An einsum whose columns are a pair of axes: the index of the inner one goes by lane."""

    def f(x: Any, y: Any) -> Any:
        z = jg.einsum("mk,kab->mab", x, y)
        inner, outer = jg.arange(z.shape[2]), jg.arange(z.shape[1])[:, None]
        return jg.where(inner > outer * 2, z, z * 0.5) + inner * outer

    for a, b in ((3, 32), (4, 24), (5, 7)):
        x, y = jg.randn(40, 24), jg.randn(24, a, b)
        g = jg.jit(f, fallback="error")
        with knob(cache=False):
            for _ in range(2):
                found = g(x, y)
        z = np.einsum("mk,kab->mab", x.numpy(), y.numpy())
        inner, outer = np.arange(b), np.arange(a)[:, None]
        want = np.where(inner > outer * 2, z, z * 0.5) + inner * outer
        np.testing.assert_allclose(found.numpy(), want, 1e-4, 1e-4)


def test_symbolic_sizes() -> None:
    f = jg.jit(masked, fallback="error")
    with knob(cache=False):
        for n in (8, 40, 57, 33, 16, 3):
            x, y = jg.randn(n, 24), jg.randn(24, n)
            for _ in range(2):
                found = f(x, y)
            np.testing.assert_allclose(found.numpy(), wanted(x.numpy(), y.numpy()), 1e-4, 1e-4)
    assert f.stats.compiles == 2
