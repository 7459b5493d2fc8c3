"""Padding, pooling and strided slices: masked, guarded and every-second loads give eager's bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import jitgrad as torch
import jitgrad.nn.functional as F
from jitgrad.compiler.codegen.guarded import unclamped
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    axis,
    const,
    load,
    make,
    select,
)
from jitgrad.runtime import dtypes

WIDTHS = (1, 3, 4, 8, 9, 16, 33)


def check(f: Callable, x: np.ndarray) -> None:
    eager = f(torch.from_numpy(x.copy())).numpy()
    compiled = torch.jit(f, fallback="error")
    for _ in range(2):
        got = compiled(torch.from_numpy(x.copy())).numpy()
        assert (got.dtype, got.shape) == (eager.dtype, eager.shape)
        assert got.tobytes() == eager.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8", "float16", "bool"])
def test_pad(dtype: str) -> None:
    rng = np.random.default_rng(1)
    for width, pad in itertools.product(WIDTHS, ((1, 1), (0, 3), (2, 0), (-1, 2), (5, 5))):
        if width + sum(pad) > 0:
            x = (rng.random((3, 5, width)) * 100).astype(dtype)
            value = True if dtype == "bool" else 3
            check(lambda t, pad=pad: F.pad(t, (*pad, 1, 0)), x)
            check(lambda t, pad=pad, value=value: F.pad(t, (*pad, 1, 0), value=value), x)


@pytest.mark.parametrize("size, stride, pad", [(2, 2, 0), (2, 2, 1), (3, 2, 1), (3, 1, 1)])
def test_max_pool(size: int, stride: int, pad: int) -> None:
    rng = np.random.default_rng(2)
    for width in (4, 5, 8, 16, 17):
        x = rng.standard_normal((2, 3, 6, width)).astype(np.float32)
        check(lambda t: F.max_pool2d(t, size, stride, pad), x)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_second(width: int) -> None:
    x = np.random.default_rng(3).standard_normal((5, width)).astype(np.float32)
    check(lambda t: t[:, ::2] + 1, x)
    check(lambda t: t[:, 1::2] * t[:, ::2][:, : width // 2], x)


def test_a_clamp_stays_unless_the_condition_makes_it_idle() -> None:
    x = Array("x", (8,), dtypes.float32)
    s = Simplifier({0: 10})
    i = axis(0) + const(-1, INDEX)
    zero = const(0.0, dtypes.float32)
    clamped = make("min", make("max", i, const(0, INDEX)), const(7, INDEX))
    low, high = make("le", const(0, INDEX), i), make("lt", i, const(8, INDEX))
    inside = select(low & high, load(x, (clamped,)), zero)
    found = unclamped(inside, s)
    assert found is not None
    assert s.poly(found) == s.poly(s.simplify(i))
    half = unclamped(select(low, load(x, (clamped,)), zero), s)
    assert half is make("min", i, const(7, INDEX))  # nothing said about the upper end
    wide = make("lt", i, const(9, INDEX))
    assert unclamped(select(low & wide, load(x, (clamped,)), zero), s) is half
    assert unclamped(select(wide, load(x, (clamped,)), zero), s) is None
