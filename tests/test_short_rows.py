"""Kernels over short rows: the bits of one row at a time, whatever is done at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernels import Run

import jitgrad as jg
from jitgrad.compiler.codegen import nest
from jitgrad.compiler.codegen.target import Target, host, named
from jitgrad.compiler.kernels import LoopKernel, Reduce, Stage, Store
from jitgrad.compiler.loops import Array, axis, load, make
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

LENGTHS = [4, 5, 8, 10, 16, 17, 31, 32, 40, 64]
POINTS = 21  # two blocks of eight, and some more


def _rows(combine: str, n: int, dtype: DType) -> tuple[LoopKernel, Array, Array]:
    """out[i, j] = the reduction of rows of x[j, i, :]."""
    x = Array("x", (3, POINTS // 3, n), dtype)
    result = Array("r", (), dtypes.int64 if combine.startswith("arg") else dtype)
    out = Array("out", (POINTS // 3, 3), result.dtype)
    i, j = axis(0), axis(1)
    reduce = Reduce(result, load(x, (j, i, axis(2))), combine, "lanes")
    ends = Stage((), (Store(out, (i, j), load(result, ())),))
    return LoopKernel(out.shape, [Stage((n,), reduces=(reduce,)), ends], [result]), x, out


def _log_softmax(n: int, dtype: DType) -> tuple[LoopKernel, Array, Array]:
    """Over x in place, with a row buffer, and a logarithm of each row's sum."""
    x, y = Array("x", (POINTS, n), dtype), Array("y", (POINTS, n), dtype)
    most, total = Array("m", (), dtype), Array("t", (), dtype)
    row = Array("row", (n,), dtype)
    i, j = axis(0), axis(1)
    moved = load(x, (i, j)) - load(most, ())
    stages = [
        Stage((n,), reduces=(Reduce(most, load(x, (i, j)), "max"),)),
        Stage((n,), (Store(row, (j,), moved),), (Reduce(total, make("exp", moved), "sum"),)),
        Stage((n,), (Store(y, (i, j), load(row, (j,)) - make("log", load(total, ()))),)),
    ]
    return LoopKernel((POINTS,), stages, [most, total, row]), x, y


def _both(monkeypatch: pytest.MonkeyPatch, kernel: LoopKernel, target: Target) -> list[Run]:
    """The kernel by several rows at once, and by one after the other."""
    asked: list[int] = []

    def counted(nest_: nest.Nest, f: Callable[[nest.Nest], int] = nest.rows_at_once) -> int:
        asked.append(f(nest_))
        return asked[-1]

    with monkeypatch.context() as m:
        m.setattr(nest, "rows_at_once", counted)
        at_once = Run(kernel, target)
    with monkeypatch.context() as m:
        m.setattr(nest, "rows_at_once", lambda nest_: 0)
        singly = Run(kernel, target)
    if target.has_small_masks:
        assert asked[-1] > 0
    return [at_once, singly]


def _targets() -> list[Target]:
    triple = host().triple
    return [host(), named(triple, "x86-64-v3")] if triple.startswith("x86_64") else [host()]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize(
    ("combine", "dtype"),
    [("sum", dtypes.float32), ("sum", dtypes.float64), ("max", dtypes.float32),
     ("prod", dtypes.float16), ("min", dtypes.int8), ("sum", dtypes.int64),
     ("argmax", dtypes.float32), ("argmin", dtypes.int32), ("any", dtypes.bool_)],
    ids=str,
)  # fmt: skip
def test_reductions(combine: str, dtype: DType, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype.itemsize == 8 and n > 32:
        pytest.skip("longer than there are lanes")
    kernel, x, out = _rows(combine, n, dtype)
    rng = np.random.default_rng(n)
    a = (rng.standard_normal(x.shape) * 3).astype(dtype.np)
    if dtype.is_floating_point:
        a[0, 1] = -0.0
        a[1, 2, n // 2] = a[2, 3, 0] = a[2, 3, n - 1] = np.nan
        a[0, 4, n - 1], a[1, 5] = np.inf, -np.inf
    for target in _targets():
        got = []
        for run in _both(monkeypatch, kernel, target):
            for grain in (None, 3):
                got.append(np.zeros(out.shape, out.dtype.np))
                run({x: a, out: got[-1]}, grain=grain)
        assert all(g.tobytes() == got[0].tobytes() for g in got)
        if combine.startswith("arg") or dtype in (dtypes.int8, dtypes.bool_):
            assert np.array_equal(got[0], getattr(np, combine)(a, -1).T)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_log_softmax(dtype: DType, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype.itemsize == 8 and n > 32:
        pytest.skip("longer than there are lanes")
    kernel, x, y = _log_softmax(n, dtype)
    a = (np.random.default_rng(n).standard_normal(x.shape) * 3).astype(dtype.np)
    wide = a.astype(np.float64)
    wide = wide - wide.max(1, keepdims=True)
    want = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    got = []
    for run in _both(monkeypatch, kernel, host()):
        for grain in (None, 3):
            got.append(a.copy())
            run({x: got[-1], y: got[-1]}, grain=grain)
    assert all(g.tobytes() == got[0].tobytes() for g in got)
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [(3, 4), (8, 8), (2, 3, 5), (7, 33)], ids=str)
@pytest.mark.parametrize("combine", ["sum", "argmax"])
def test_windows(combine: str, window: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several short rows for each point, apart in memory."""
    rank = len(window)
    shape = (POINTS, *(2 * n for n in window))
    x = Array("x", shape, dtypes.float32)
    result = Array("r", (), dtypes.int64 if combine == "argmax" else dtypes.float32)
    out = Array("out", (POINTS, 2), result.dtype)
    at = [axis(2 + k) for k in range(rank)]
    at[-1] = axis(1) * window[-1] + at[-1]
    reduce = Reduce(result, load(x, (axis(0), *at)), combine, "lanes")
    ends = Stage((), (Store(out, (axis(0), axis(1)), load(result, ())),))
    kernel = LoopKernel(out.shape, [Stage(window, reduces=(reduce,)), ends], [result])
    a = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    got = []
    for run in _both(monkeypatch, kernel, host()):
        for grain in (None, 3):
            got.append(np.zeros(out.shape, out.dtype.np))
            run({x: a, out: got[-1]}, grain=grain)
    inside = a[(slice(None), *(slice(n) for n in window[:-1]))]
    rows = inside.reshape((*inside.shape[:-1], 2, window[-1]))
    rows = np.moveaxis(rows, -2, 1).reshape((POINTS, 2, -1))
    for g in got:
        assert np.array_equal(g, getattr(np, combine)(rows, -1))


@pytest.mark.parametrize("count", [5, 16, 33])
def test_places_that_a_row_decides(count: int) -> None:
    """What lies where the result of a row points is read for each row."""
    x = jg.tensor(np.random.default_rng(count).standard_normal((count, 8)).astype("f"))
    table = jg.tensor(np.linspace(-1, 1, 8, dtype="f"))

    def function(x: jg.Tensor) -> tuple[jg.Tensor, jg.Tensor]:
        return (table[x.argmax(1)] * 2).exp() + x.sum(1), table[(x > 0).sum(1).clamp(max=7)].tanh()

    fast = jg.jit(function, fallback="error")
    for _ in range(2):
        for found, wanted in zip(fast(x), function(x), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-6, atol=2e-6)
    assert fast.stats.hits == 1


@pytest.mark.parametrize("shape", [(4, 3, 6, 6), (4, 3, 4, 4, 3), (2, 3, 2, 16)])
def test_gradient_of_instance_norm(shape: tuple[int, ...]) -> None:
    """Two sums over windows, the second of what the first and an outer place give."""
    x, weight = jg.randn(*shape, requires_grad=True), jg.randn(*shape)
    f = jg.jit(lambda x: jg.nn.functional.instance_norm(x, eps=1e-3), fallback="error")
    (wanted,) = jg.autograd.grad(f.__wrapped__(x), x, weight)
    for _ in range(2):
        (found,) = jg.autograd.grad(f(x), x, weight)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)
