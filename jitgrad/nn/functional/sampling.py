"""Sampling at any positions: grid_sample, and affine_grid, which makes grids for it.

The positions that a sample reads, 1, 2^d or 16 of them, are read by one gather, so the derivative
by the input is one scatter; that by the grid comes from the weights. float16 and bfloat16 are
computed in float32 and rounded once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jitgrad.functions as ops
from jitgrad.casting import wide
from jitgrad.compiler.symbolic import Sym
from jitgrad.composites import composite
from jitgrad.creation import linspace, ones, tensor, zeros
from jitgrad.functions.shape import meshgrid
from jitgrad.nn.functional.args import expect_dtype, expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING_MODES = ("zeros", "border", "reflection")


@wide
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """input (N, C, H, W) at the positions grid (N, OH, OW, 2), (x, y): (N, C, OH, OW); or input
    (N, C, D, H, W) at grid (N, OD, OH, OW, 3), (x, y, z).

    -1 and 1 are the input's edges, or the centres of its corner elements with align_corners. mode
    'bilinear' (in 5 dims trilinear), 'nearest' (ties to even) or 'bicubic' (4 dims; Keys 1981,
    a = -0.75). Outside there is 0 ('zeros'), the nearest element ('border'), or the input mirrored
    at its edges ('reflection'). Source: Jaderberg et al. 2015. Raises ValueError for unknown modes,
    RuntimeError for shapes and dtypes that do not fit.
    """
    op = "grid_sample"
    expect_tensors(op, input=input, grid=grid)
    if mode not in _MODES:
        raise ValueError(f"[{op}] expected mode to be one of {_MODES}; got {mode!r}")
    if padding_mode not in _PADDING_MODES:
        raise ValueError(
            f"[{op}] expected padding_mode to be one of {_PADDING_MODES}; got {padding_mode!r}"
        )
    if align_corners is None:
        warn(f"[{op}] align_corners is not given and taken to be False")
    n = input.dim() - 2
    if n not in (2, 3) or tuple(grid.shape[:1] + grid.shape[-1:]) != (input.shape[0], n) or (
        grid.dim() != n + 2
    ):  # fmt: skip
        raise RuntimeError(
            f"[{op}] expected input (N, C, H, W) with grid (N, OH, OW, 2), or (N, C, D, H, W) with "
            f"(N, OD, OH, OW, 3); got {tuple(input.shape)} and {tuple(grid.shape)}"
        )
    expect_dtype(op, input.dtype, grid=grid)
    if any(d == 0 for d in input.shape[2:]):
        raise RuntimeError(
            f"[{op}] expected input with no empty spatial dim; got {tuple(input.shape)}"
        )
    if mode == "bicubic" and n != 2:
        raise RuntimeError(f"[{op}] mode 'bicubic' is for 4 dims; got {tuple(input.shape)}")
    return called(
        _sampled(input, grid, mode, padding_mode, align_corners), "GridSampler2DBackward0"
    )


@composite
def _sampled(
    input: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: bool | None
) -> Tensor:
    n = input.dim() - 2
    spatial = input.shape[2:]
    x, at = input, grid.flatten(1, -2)
    if input.dtype.itemsize == 2:
        x, at = x.to(dtypes.float32), at.to(dtypes.float32)
    # the grid's last dim counts from the last spatial dim
    places = [_unnormalised(at[:, :, n - 1 - k], d, align_corners) for k, d in enumerate(spatial)]
    taps = {"bilinear": _linear, "nearest": _nearest, "bicubic": _cubic}[mode]
    dims = [taps(p, d, padding_mode, align_corners) for p, d in zip(places, spatial, strict=True)]
    out = _weighted(x, dims, spatial)
    if mode == "nearest":  # the grid's gradient is zero, not missing
        out = out + sum(_nothing_of(p) for p in places).unsqueeze(1)  # type: ignore[union-attr]
    return out.reshape((*input.shape[:2], *grid.shape[1:-1])).to(input.dtype)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """grid_sample with numbers of modes: 0 bilinear, 1 nearest, 2 bicubic; 0 zeros, 1 border,
    2 reflection."""
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise ValueError(
            f"[grid_sampler] expected interpolation_mode and padding_mode from 0 to 2; got "
            f"{interpolation_mode} and {padding_mode}"
        )
    mode, padding = _MODES[interpolation_mode], _PADDING_MODES[padding_mode]
    return grid_sample(input, grid, mode, padding, align_corners)


def _nothing_of(x: Tensor) -> Tensor:
    """Zeros, on the tape of x."""
    return ops.where(tensor(False), x, 0.0)


# -- positions -------------------------------------------------------------------------------------
def _unnormalised(at: Tensor, n: int, align: bool | None) -> Tensor:
    """Positions in elements, from ones in [-1, 1]."""
    return (at + 1) * (0.5 * (n - 1)) if align else ((at + 1) * n - 1) * 0.5


def _clipped(at: Tensor, n: int) -> Tensor:
    """Into [0, n - 1]; NaN becomes 0. The derivative at the bounds is 0, as PyTorch's."""
    at = ops.where(at > 0, at, 0.0)
    return ops.where(at < n - 1, at, 1.0 * (n - 1))


def _reflected(at: Tensor, n: int, align: bool | None) -> Tensor:
    """Mirrored at the centres of the corner elements, or at the edges, as often as it takes."""
    if align and n == 1:
        return _nothing_of(at)
    low, extent = (0.0, 1.0 * (n - 1)) if align else (-0.5, 1.0 * n)
    away = at - low
    away = ops.where(away < 0, -away, away)
    rest, turns = away.fmod(extent), (away / extent).floor()
    return ops.where(turns.remainder(2) == 0, rest, extent - rest) + low


def _padded(at: Tensor, n: int, padding_mode: str, align: bool | None) -> Tensor:
    if padding_mode == "zeros":
        return at
    if padding_mode == "reflection":
        at = _reflected(at, n, align)
    return _clipped(at, n)


# -- what is read along one dim, with what weights -------------------------------------------------
# A tap is (element numbers as int64, whether there is such an element, weights); None: always, 1.
Tap = tuple[Tensor, Tensor | None, Tensor | None]


def _tap(at: Tensor, n: int, weight: Tensor | None, inside: bool) -> Tap:
    """The element at a whole position; `inside`: whether it surely is one."""
    at = at.detach()
    if inside:
        return at.to(dtypes.int64), None, weight
    real = (at >= 0) & (at <= n - 1)
    return ops.where(real, at, 0.0).to(dtypes.int64), real, weight


def _nearest(at: Tensor, n: int, padding_mode: str, align: bool | None) -> list[Tap]:
    at = _padded(at.detach(), n, padding_mode, align)
    return [_tap(at.round(), n, None, padding_mode != "zeros")]


def _linear(at: Tensor, n: int, padding_mode: str, align: bool | None) -> list[Tap]:
    at = _padded(at, n, padding_mode, align)
    low = at.detach().floor()
    part = at - low
    inside = padding_mode != "zeros"
    return [_tap(low, n, 1 - part, inside), _tap(low + 1, n, part, False)]


def _cubic(at: Tensor, n: int, padding_mode: str, align: bool | None) -> list[Tap]:
    low = at.detach().floor()
    t = at - low
    a = -0.75

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    weights = (far(t + 1), near(t), near(1 - t), far(2 - t))
    return [
        _tap(_padded(low + (k - 1), n, padding_mode, align), n, w, padding_mode != "zeros")
        for k, w in enumerate(weights)
    ]


def _weighted(x: Tensor, dims: Sequence[Sequence[Tap]], spatial: Sequence[int]) -> Tensor:
    """x (N, C, *spatial) at each sample: the sum of products of taps, (N, C, P)."""
    numbers, reals, weights = [], [], []
    for taps in itertools.product(*dims):
        number: Tensor | None = None
        real: Tensor | None = None
        weight: Tensor | None = None
        for (i, inside, w), n in zip(taps, spatial, strict=True):
            number = i if number is None else number * n + i
            if inside is not None:
                real = inside if real is None else real & inside
            if w is not None:
                weight = w if weight is None else weight * w
        numbers.append(number)
        reals.append(real)
        weights.append(weight)
    flat = x.flatten(2)
    count, points = len(numbers), numbers[0].shape[1]  # type: ignore[union-attr]
    index = ops.stack(numbers, 1).reshape((x.shape[0], 1, count * points))  # type: ignore[arg-type]
    index = index.expand((x.shape[0], x.shape[1], count * points))
    values = flat.gather(2, index).unflatten(2, (count, points))
    if any(r is not None for r in reals):
        always = tensor(True).expand(tuple(numbers[0].shape))  # type: ignore[union-attr]
        mask = ops.stack([always if r is None else r for r in reals], 1)
        values = ops.where(mask.unsqueeze(1), values, 0.0)
    if weights[0] is None:
        return values.squeeze(2)
    return (values * ops.stack(weights, 1).unsqueeze(1)).sum(2)  # type: ignore[arg-type]


# -- grids -----------------------------------------------------------------------------------------
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Grids for grid_sample from affine maps: theta (N, 2, 3) for a size (N, C, H, W) gives
    (N, H, W, 2), theta (N, 3, 4) for (N, C, D, H, W) gives (N, D, H, W, 3).

    Each is theta @ (x, y, 1), with x and y over [-1, 1] (centres of elements, or of the corner
    elements at -1 and 1 with align_corners). Raises ValueError for a theta that does not fit or an
    empty size, NotImplementedError for sizes of other lengths.
    """
    op = "affine_grid"
    expect_tensors(op, theta=theta)
    if align_corners is None:
        warn(f"[{op}] align_corners is not given and taken to be False")
    if not theta.is_floating_point():
        raise ValueError(
            f"[{op}] expected theta of a floating dtype; got {theta.dtype} {tuple(theta.shape)}"
        )
    wanted = tuple(d if isinstance(d, Sym) else int(d) for d in size)
    n = len(wanted) - 2
    if n not in (2, 3):
        raise NotImplementedError(
            f"[{op}] expected a size (N, C, H, W) or (N, C, D, H, W); got {wanted}"
        )
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (n, n + 1):
        raise ValueError(
            f"[{op}] expected theta (N, {n}, {n + 1}) for size {wanted}; got {tuple(theta.shape)}"
        )
    if any(d <= 0 for d in wanted):
        raise ValueError(f"[{op}] expected a size with no empty dim; got {wanted}")
    if theta.shape[0] != wanted[0]:
        raise RuntimeError(
            f"[{op}] expected {wanted[0]} maps for size {wanted}; got {tuple(theta.shape)}"
        )
    spatial = wanted[2:]
    lines = [_line(d, bool(align_corners)) for d in spatial]
    columns = [c.expand(spatial) for c in meshgrid(*lines, indexing="ij")]
    one = ones(spatial, dtype=dtypes.float64)
    base = ops.stack([*columns[::-1], one], -1).reshape((-1, n + 1))
    grid = ops.matmul(base.to(theta.dtype), theta.mT)
    return grid.reshape((wanted[0], *spatial, n))


def _line(n: int, align: bool) -> Tensor:
    if n == 1:
        return zeros(1, dtype=dtypes.float64)
    line = linspace(-1.0, 1.0, n, dtype=dtypes.float64)
    return line if align else line * ((n - 1) / n)
