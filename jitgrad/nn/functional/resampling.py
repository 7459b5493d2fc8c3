"""Interpolation along a dim whose size, or whose result's size, differs from call to call: what the
tables of interpolation.py hold, computed by ops from the sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.compiler.symbolic import same, smax
from jitgrad.creation import arange, zeros
from jitgrad.functions.elementwise import where
from jitgrad.functions.shape import stack
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor

_Taps = tuple[Tensor, Tensor]


def keys_parts(x: Any, a: float) -> tuple[Any, Any]:
    """What the kernel of cubic convolution is at distances up to 1, and from 1 to 2."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return near, far


def _number(x: Any, dtype: Any) -> Tensor:
    """A number or a size as a 0-d tensor."""
    return zeros((), dtype=dtype) + x


def _double(x: Any) -> Tensor:
    return _number(x, dtypes.float64)


def _step(n: Any, m: Any, scale: float | None, align: bool) -> Any:
    """The distance, in elements of the input, of neighbours in the output."""
    if align:
        return _double(n - 1) / _double(m - 1).clamp(min=1.0) * (_double(m) > 1)
    return _double(n) / m if scale is None else 1.0 / scale


def _keys(away: Tensor, a: float) -> Tensor:
    near, far = keys_parts(away, a)
    return where(away <= 1, near, where(away < 2, far, 0.0))


_FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "bilinear": (lambda x: (1 - x).clamp(min=0.0), 1),
    "bicubic": (lambda x: _keys(x, -0.5), 2),
    "lanczos": (lambda x: where(x < 3, x.sinc() * (x / 3).sinc(), 0.0), 3),
}


def _interpolating(n: Any, m: Any, scale: float | None, align: bool, cubic: bool) -> _Taps:
    """Which elements each of m reads, and with what weights, (k, m) each."""
    places, step = arange(m, dtype=dtypes.float64), _step(n, m, scale, align)
    source = places * step if align else (places + 0.5) * step - 0.5
    last = _double(n - 1)
    if cubic:
        taps = source.floor() + arange(-1, 3, dtype=dtypes.float64)[:, None]
        weights = _keys((source - taps).abs(), -0.75)
    else:
        source = source.clamp(min=0.0)
        low = source.floor().minimum(last)
        part = where(low < last, source - low, 0.0)
        taps, weights = stack((low, low + 1)), stack((1 - part, part))
    return taps.clamp(min=0.0).minimum(last).long(), weights


def _filtering(mode: str, n: Any, m: Any, scale: float | None, align: bool) -> _Taps:
    """The same of a filter that is as much wider as the result is smaller."""
    kernel, half = _FILTERS[mode]
    step = _double(1) * _step(n, m, scale, align)
    widen = step.clamp(min=1.0)
    centre = (arange(m, dtype=dtypes.float64) + 0.5) * step
    first = (centre - half * widen + 0.5).trunc().clamp(min=0.0)
    last = (centre + half * widen + 0.5).trunc().minimum(_double(n)).maximum(first + 1)
    if scale is not None and not align:
        count: Any = int(2 * half * max(1.0 / scale, 1.0)) + 1
    else:
        above, below = (n - 1, smax(m - 1, 1)) if align else (n, m)
        count = 2 * half * smax(above, below) // below + 1
    taps = first + arange(count, dtype=dtypes.float64)[:, None]
    weights = kernel((taps - centre + 0.5).abs() / widen)
    weights = where((taps < last) & (taps < _double(n)), weights, 0.0)
    return taps.minimum(_double(n - 1)).long(), weights / weights.sum(0)


def _read(x: Tensor, dim: int, rows: Tensor) -> Tensor:
    """The elements along a dim of x, which becomes two, (k, m)."""
    return x.index_select(dim, rows.flatten()).unflatten(dim, tuple(rows.shape))


def _weighted(x: Tensor, dim: int, rows: Tensor, weights: Tensor) -> Tensor:
    tail = (1,) * (x.dim() - dim - 1)
    return _read(x, dim, rows) * weights.to(x.dtype).reshape((*weights.shape, *tail))


def _rounded(x: Tensor, dim: int, rows: Tensor, weights: Tensor) -> Tensor:
    """In fixed point, as interpolation.py's: whole weights, with as many bits for their fraction
    as keep the largest below 2^15, 22 at most."""
    bits = arange(1, 23, dtype=dtypes.float64)
    fits = (0.5 + weights.max() * bits.exp2()).floor() < 1 << 15
    fraction = fits.sum()
    scaled = weights * fraction.double().exp2()
    whole = (scaled + where(weights < 0, -0.5, 0.5)).trunc()
    total = _weighted(x, dim, rows, whole).sum(dim, dtype=x.dtype)
    one = zeros((), dtype=x.dtype) + 1
    return ((total + (one << (fraction - 1).to(x.dtype))) >> fraction.to(x.dtype)).clamp(0, 255)


def resampled_anew(
    x: Tensor, dim: int, m: Any, scale: float | None, align: bool, mode: str, antialias: bool
) -> Tensor:
    """x with a dim resampled to size m by linear, cubic or anti-aliased interpolation; int32, which
    holds bytes, in fixed point."""
    n, whole = x.shape[dim], x.dtype is dtypes.int32
    keeps = antialias or mode != "bicubic" or whole  # a dim that keeps its size, whatever the scale
    if keeps and same(n, m):
        return x
    if antialias:
        rows, weights = _filtering(mode, n, m, scale, align)
    else:
        rows, weights = _interpolating(n, m, scale, align, mode == "bicubic")
    if whole:
        out = _rounded(x, dim, rows, weights)
    else:
        out = _weighted(x, dim, rows, weights).sum(dim)
    if not keeps:
        return out
    same_places = arange(m).minimum(_number(n - 1, dtypes.int64))
    return where(_number(n, dtypes.int64) == m, x.index_select(dim, same_places), out)


def nearest_anew(x: Tensor, dim: int, m: Any, scale: float | None, exact: bool) -> Tensor:
    """x with the nearest elements along a dim."""
    step: Any = 1.0 / scale if scale else _number(x.shape[dim], dtypes.float32) / m
    places = (arange(m, dtype=dtypes.float32) + (0.5 if exact else 0.0)) * step
    rows = places.floor().long().minimum(_number(x.shape[dim] - 1, dtypes.int64))
    return x.index_select(dim, rows)
