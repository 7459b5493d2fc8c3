"""Interpolation to another size: interpolate and the deprecated upsample functions.

Every mode but "area" is separable: a table of rows and weights along each dim, computed here from
the sizes (tables.py reads by them); of symbolic sizes it is computed by ops. float16 and bfloat16
are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.symbolic import Sym
from jitgrad.functions.shape import separate
from jitgrad.nn.functional.adaptive import adaptive_avg_pool
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.resampling import keys_parts, nearest_anew, resampled_anew
from jitgrad.nn.functional.tables import (
    Array,
    Table,
    fixed_point,
    merged,
    resampled,
    table,
    weighted,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor

_RANKS = {
    "nearest": (3, 4, 5), "nearest-exact": (3, 4, 5), "area": (3, 4, 5), "linear": (3,),
    "bilinear": (4,), "trilinear": (5,), "bicubic": (4,), "lanczos": (4,),
}  # fmt: skip
_FILTERED = ("bilinear", "bicubic", "lanczos")


# -- tables ----------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=256)
def _nearest(n: int, m: int, scale: float | None, exact: bool) -> Table:
    """Element floor(i * n / m), or floor((i + 0.5) * n / m); in float32, as PyTorch computes it."""
    step = np.float32(1.0 / scale) if scale else np.float32(n) / np.float32(m)
    places = np.floor((np.arange(m) + (0.5 if exact else 0.0)).astype(np.float32) * step)
    return table(n, np.minimum(places.astype(np.int64), n - 1)[:, None])


def _step(n: int, m: int, scale: float | None, align: bool) -> float:
    """The distance, in elements of the input, of neighbours in the output."""
    if align:
        return (n - 1) / (m - 1) if m > 1 else 0.0
    return 1.0 / scale if scale else n / m


def _sources(n: int, m: int, scale: float | None, align: bool) -> Array:
    """Where each output element lies, in elements of the input."""
    step, places = _step(n, m, scale, align), np.arange(m)
    return places * step if align else (places + 0.5) * step - 0.5


@functools.lru_cache(maxsize=256)
def _linear(n: int, m: int, scale: float | None, align: bool) -> Table:
    source = np.maximum(_sources(n, m, scale, align), 0.0)
    low = np.minimum(np.floor(source).astype(np.int64), n - 1)
    part = np.clip(source - low, 0.0, 1.0)
    places = np.stack([low, np.minimum(low + 1, n - 1)], 1)
    return _trimmed(n, places, np.stack([1 - part, part], 1))


def _trimmed(n: int, places: Array, weights: Array) -> Table:
    """Each element once in a row; without weights where each row is one element."""
    places, weights = merged(places, weights)
    whole = weights == 1
    if (whole.sum(1) == 1).all() and (whole | (weights == 0)).all():
        return table(n, places[whole][:, None])
    return table(n, places, weights)


@functools.lru_cache(maxsize=256)
def _cubic(n: int, m: int, scale: float | None, align: bool) -> Table:
    """Cubic convolution (Keys 1981) with a = -0.75, elements past the edges as those at them."""
    source = _sources(n, m, scale, align)
    base = np.floor(source).astype(np.int64)
    taps = base[:, None] + np.arange(-1, 3)
    weights = keys(np.abs(source[:, None] - taps), -0.75)
    return _trimmed(n, np.clip(taps, 0, n - 1), weights)


def keys(x: Any, a: float) -> Any:
    """The kernel of cubic convolution at distances x >= 0, of arrays."""
    near, far = keys_parts(x, a)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _triangle(x: Array) -> Array:
    return np.maximum(1 - x, 0.0)


def _keys_half(x: Array) -> Array:
    out: Array = keys(x, -0.5)
    return out


def _lanczos3(x: Array) -> Array:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


# mode -> (filter of the distance, half its width)
_FILTERS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "bilinear": (_triangle, 1.0), "bicubic": (_keys_half, 2.0), "lanczos": (_lanczos3, 3.0),
}  # fmt: skip


@functools.lru_cache(maxsize=256)
def _filtered(mode: str, n: int, m: int, scale: float | None, align: bool) -> Table:
    """Anti-aliased: where the output is smaller, the filter is as much wider; weights add up to 1.

    The sizes of windows are Pillow's (resize with reducing_gap=None).
    """
    kernel, half = _FILTERS[mode]
    step = _step(n, m, scale, align)
    widen = max(step, 1.0)
    centre = (np.arange(m) + 0.5) * step
    first = np.maximum((centre - half * widen + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + half * widen + 0.5).astype(np.int64), n)
    last = np.maximum(last, first + 1)
    taps = first[:, None] + np.arange((last - first).max())
    inside = (taps < last[:, None]) & (taps < n)
    weights = kernel(np.abs(taps - centre[:, None] + 0.5) / widen) * inside
    return table(n, np.where(inside, taps, -1), weights / weights.sum(1, keepdims=True))


# -- arguments -------------------------------------------------------------------------------------
def _pair(op: str, name: str, value: Any, n: int, shape: Sequence[int]) -> list[Any]:
    if not isinstance(value, (tuple, list)):
        return [value] * n
    if len(value) != n:
        raise ValueError(
            f"[{op}] expected {name} to be a number or one for each of the {n} spatial dims; got "
            f"{name}={tuple(value)} for input {tuple(shape)}"
        )
    return list(value)


def _sizes(
    op: str, input: Tensor, size: Any, scale_factor: Any, recompute: bool
) -> tuple[list[Any], list[float | None]]:
    """The output's spatial sizes, and the scales to compute positions with (None: by sizes)."""
    spatial = input.shape[2:]
    n = len(spatial)
    if (size is None) == (scale_factor is None):
        raise ValueError(
            f"[{op}] expected either size or scale_factor; got size={size}, "
            f"scale_factor={scale_factor}"
        )
    if size is not None:
        if recompute:
            raise ValueError(
                f"[{op}] recompute_scale_factor is for scale_factor only; got size={size}"
            )
        wanted = _pair(op, "size", size, n, input.shape)
        try:
            return [d if isinstance(d, Sym) else operator.index(d) for d in wanted], [None] * n
        except TypeError:
            raise TypeError(f"[{op}] expected size to be ints; got {size!r}") from None
    scales = [float(s) for s in _pair(op, "scale_factor", scale_factor, n, input.shape)]
    sizes = [
        _scaled(d, s) if isinstance(d, Sym) else int(math.floor(d * s))
        for d, s in zip(spatial, scales, strict=True)
    ]
    return sizes, [None] * n if recompute else list(scales)


def _scaled(size: Any, scale: float) -> Any:
    """floor(size * scale): a formula of the size where the product is exact."""
    if not math.isfinite(scale):
        return int(math.floor(size * scale))
    above, below = scale.as_integer_ratio()
    exact = above < 1 << 20 and below < 1 << 20
    return size * above // below if exact else int(math.floor(size * scale))


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, L), (N, C, H, W) or (N, C, D, H, W) resampled to `size`, or to floor(scale_factor *
    its size).

    mode: 'nearest' (element floor(i / scale)), 'nearest-exact' (the one whose centre is nearest),
    'linear', 'bilinear', 'trilinear', 'bicubic' (Keys 1981, a = -0.75), 'area' (means, as
    adaptive_avg_pool), 'lanczos' (with antialias). align_corners puts the corners' centres on each
    other; else edges meet. Positions are computed with scale_factor where it is given, unless
    recompute_scale_factor; in the linear modes a dim that keeps its size stays as it is. antialias
    widens the filter where the result is smaller (4 dims; bilinear, bicubic, lanczos). uint8 in 4
    dims is computed in fixed point. Raises ValueError for arguments that exclude each other,
    NotImplementedError for a mode that does not fit the dims or dtype.
    """
    op = "interpolate"
    expect_tensors(op, input=input)
    plain = mode in ("nearest", "area", "nearest-exact")
    if plain and align_corners is not None:
        raise ValueError(
            f"[{op}] align_corners is for linear, bilinear, bicubic and trilinear; got mode "
            f"{mode!r}; leave it out"
        )
    recompute = bool(recompute_scale_factor) or (mode == "area" and size is None)
    sizes, scales = _sizes(op, input, size, scale_factor, recompute)
    if antialias and not (mode in _FILTERED and input.dim() == 4):
        raise ValueError(
            f"[{op}] antialias is for bilinear, bicubic and lanczos on 4 dims; got mode {mode!r} "
            f"for input {tuple(input.shape)}"
        )
    if input.dim() not in _RANKS.get(mode, ()):
        raise NotImplementedError(
            f"[{op}] expected a mode and its numbers of dims, of {_RANKS}; got mode {mode!r} for "
            f"input {tuple(input.shape)}"
        )
    if mode == "lanczos" and (align_corners or not antialias):
        raise ValueError(f"[{op}] expected antialias=True and no align_corners with mode 'lanczos'")
    if any(d <= 0 for d in (*input.shape[2:], *sizes)):
        raise RuntimeError(
            f"[{op}] expected sizes greater than 0; got input {tuple(input.shape)}, output size "
            f"{tuple(sizes)}"
        )
    if mode == "area":
        return adaptive_avg_pool(len(sizes), input, sizes)
    if input.shape[1] == 0:
        raise RuntimeError(f"[{op}] expected an input with channels; got {tuple(input.shape)}")
    return _resized(input, sizes, scales, mode, bool(align_corners), antialias)


@lasting
def _resized(
    input: Tensor, sizes: Sequence[int], scales: Sequence[float | None], mode: str, align: bool,
    antialias: bool,
) -> Tensor:  # fmt: skip
    if mode in ("nearest", "nearest-exact"):
        out = _by_nearest(input, sizes, scales, mode == "nearest-exact")
        return called(out, f"{_KINDS[mode]}{len(sizes)}DBackward0")
    whole = input.dtype is dtypes.uint8 and input.dim() == 4
    if not (input.is_floating_point() or whole):
        raise NotImplementedError(
            f"[interpolate] mode {mode!r} is not implemented for {input.dtype}; got "
            f"{tuple(input.shape)}; convert it with .float()"
        )
    x = input.to(dtypes.int32 if whole else dtypes.float32) if input.dtype.itemsize <= 2 else input
    for k in range(len(sizes) - 1, -1, -1):
        n, m, scale = input.shape[2 + k], sizes[k], scales[k]
        if isinstance(n, Sym) or isinstance(m, Sym):
            x = resampled_anew(x, 2 + k, m, scale, align, mode, antialias)
            continue
        if n == m and (antialias or mode != "bicubic" or whole):
            continue  # as PyTorch's: a dim that keeps its size stays as it is, whatever the scale
        if antialias:
            made = _filtered(mode, n, m, scale, align)
        else:
            made = (_cubic if mode == "bicubic" else _linear)(n, m, scale, align)
        x = _rounded(x, 2 + k, made) if whole else resampled(x, 2 + k, made)
    out = x.to(input.dtype) if x is not input else input.clone()
    antialiased = "Aa" if antialias else ""
    return called(out, f"{_KINDS[mode]}{len(sizes)}D{antialiased}Backward0")


_KINDS = {
    "nearest": "UpsampleNearest", "nearest-exact": "UpsampleNearestExact",
    "linear": "UpsampleLinear", "bilinear": "UpsampleBilinear", "bicubic": "UpsampleBicubic",
    "trilinear": "UpsampleTrilinear", "lanczos": "UpsampleLanczos",
}  # fmt: skip
"""What nodes of the tape are called, by mode."""


def _rounded(x: Tensor, dim: int, t: Table) -> Tensor:
    """A dim of bytes, held as int32, resampled and rounded to bytes: the fixed-point arithmetic of
    Pillow's and PyTorch's kernels, to the bit."""
    whole, bits = fixed_point(t)
    total = weighted(x, dim, whole).sum(dim, dtype=x.dtype)
    return ((total + (1 << (bits - 1))) >> bits).clamp(0, 255)


_EXACT = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Scales by which a position is divided without rounding, so that no table is needed."""


def _by_nearest(
    input: Tensor, sizes: Sequence[int], scales: Sequence[float | None], exact: bool
) -> Tensor:
    """Nearest elements: repeated, where each is to be seen equally often; else by tables."""
    wanted = [int(s) if s in _EXACT else 0 for s in scales]
    if any(isinstance(d, Sym) for d in input.shape[2:]) and all(wanted):
        return _repeated(input, input.shape[2:], wanted, sizes)
    if any(isinstance(d, Sym) for d in (*input.shape[2:], *sizes)):
        x = input
        for k, (m, scale) in enumerate(zip(sizes, scales, strict=True)):
            x = nearest_anew(x, 2 + k, m, scale, exact)
        return x
    spatial = [int(d) for d in input.shape[2:]]
    made = []
    for n, m, scale in zip(spatial, sizes, scales, strict=True):
        same = m == n and len(sizes) == 2 and not exact  # then PyTorch ignores the scale
        made.append(_nearest(n, m, None if same else scale, exact))
    factors = [m // n for n, m in zip(spatial, sizes, strict=True)]
    repeats = all(
        n * f == m and np.array_equal(t.places[:, 0], np.arange(m) // f)
        for n, f, m, t in zip(spatial, factors, sizes, made, strict=True)
    )
    if not repeats:
        x = input
        for k, t in enumerate(made):
            x = resampled(x, 2 + k, t)
        return input.clone() if x is input else x
    return _repeated(input, spatial, factors, sizes)


def _repeated(
    input: Tensor, spatial: Sequence[int], factors: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Each element of the spatial dims, so many times."""
    lead = tuple(input.shape[:2])
    apart = [d for n in spatial for d in (n, 1)]
    full = [d for n, f in zip(spatial, factors, strict=True) for d in (n, f)]
    made = input.reshape((*lead, *apart)).expand((*lead, *full)).reshape((*lead, *sizes))
    return separate(made, input)


def _deprecated(name: str) -> None:
    warn(f"[{name}] is deprecated; use interpolate instead")


def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """interpolate, under its older name. Warns."""
    _deprecated("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode 'nearest'. Warns that it is deprecated."""
    _deprecated("upsample_nearest")
    return interpolate(input, size, scale_factor)


def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode 'bilinear' and align_corners. Warns that it is deprecated."""
    _deprecated("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)
