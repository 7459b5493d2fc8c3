"""Channels and space exchanged: pixel_shuffle and its kin. Windows as columns: unfold and fold."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops import OPS
from jitgrad.compiler.symbolic import Sym, is_static
from jitgrad.functions.shape import pad_constant, row_major, separate, slice_along, stack
from jitgrad.nn.functional.args import IntOrInts, expect_tensors, per_dim
from jitgrad.nn.functional.tables import Table, picked, spread, table
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


# -- channels --------------------------------------------------------------------------------------
@row_major
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C r^2, H, W) to (..., C, H r, W r) (Shi et al. 2016).

    Raises RuntimeError for fewer than 3 dims, r < 1, or channels that r^2 does not divide.
    """
    op, r = "pixel_shuffle", int(upscale_factor)
    _check_shuffle(op, input, r)
    *lead, channels, height, width = input.shape
    if channels % (r * r):
        raise RuntimeError(f"[{op}] expected channels that {r}^2 divides; got {tuple(input.shape)}")
    n = len(lead)
    x = input.reshape((*lead, channels // (r * r), r, r, height, width))
    x = x.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    x = x.reshape((*lead, channels // (r * r), height * r, width * r))
    return called(separate(x, input), "PixelShuffleBackward0")


@row_major
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H r, W r) to (..., C r^2, H, W): pixel_shuffle undone.

    Raises RuntimeError for fewer than 3 dims, r < 1, or heights and widths that r does not divide.
    """
    op, r = "pixel_unshuffle", int(downscale_factor)
    _check_shuffle(op, input, r)
    *lead, channels, height, width = input.shape
    if height % r or width % r:
        raise RuntimeError(
            f"[{op}] expected height and width that {r} divides; got {tuple(input.shape)}"
        )
    n = len(lead)
    x = input.reshape((*lead, channels, height // r, r, width // r, r))
    x = x.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    x = x.reshape((*lead, channels * r * r, height // r, width // r))
    return called(separate(x, input), "PixelUnshuffleBackward0")


def _check_shuffle(op: str, input: Tensor, r: int) -> None:
    expect_tensors(op, input=input)
    if input.dim() < 3 or r < 1:
        raise RuntimeError(
            f"[{op}] expected at least 3 dims and a positive factor; got {tuple(input.shape)} and "
            f"{r}"
        )


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels (N, C, ...), seen as (groups, C / groups), transposed (Zhang et al. 2018).

    Raises RuntimeError for fewer than 3 dims or channels that groups does not divide.
    """
    op = "channel_shuffle"
    expect_tensors(op, input=input)
    if input.dim() < 3 or groups <= 0 or input.shape[1] % groups:
        raise RuntimeError(
            f"[{op}] expected at least 3 dims and channels that groups, above 0, divides; got "
            f"{tuple(input.shape)} and groups={groups}"
        )
    batch, channels, *spatial = input.shape
    x = input.reshape((batch, groups, channels // groups, *spatial))
    return separate(x.transpose(1, 2).reshape(tuple(input.shape)), input)


# -- windows as columns ----------------------------------------------------------------------------
class _Windows:
    """Sliding windows over two dims: their arguments, checked, and their numbers."""

    def __init__(
        self, op: str, kernel_size: IntOrInts, dilation: IntOrInts, padding: IntOrInts,
        stride: IntOrInts,
    ) -> None:  # fmt: skip
        self.kernel = per_dim(kernel_size, 2, op, "kernel_size")
        self.dilation = per_dim(dilation, 2, op, "dilation")
        self.padding = per_dim(padding, 2, op, "padding")
        self.stride = per_dim(stride, 2, op, "stride")
        if min(*self.kernel, *self.dilation, *self.stride) < 1 or min(self.padding) < 0:
            raise RuntimeError(
                f"[{op}] expected kernel_size, dilation and stride above 0 and padding of at least "
                f"0; got {self.kernel}, {self.dilation}, {self.stride}, {self.padding}"
            )

    @property
    def spans(self) -> list[int]:
        """How many neighbours a window lies among, for each dim."""
        return [d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def counts(self, op: str, sizes: Sequence[int], what: str) -> list[int]:
        """The number of windows along each dim."""
        room = [n + 2 * p for n, p in zip(sizes, self.padding, strict=True)]
        if any(n < span for n, span in zip(room, self.spans, strict=True)):
            raise RuntimeError(
                f"[{op}] expected windows no larger than {what}, padded; got {what} {sizes}, "
                f"kernel_size {self.kernel}, dilation {self.dilation}, padding {self.padding}"
            )
        return [
            (n - span) // s + 1 for n, span, s in zip(room, self.spans, self.stride, strict=True)
        ]

    def tables(self, op: str, sizes: tuple[int, int], what: str) -> list[Table]:
        """For each dim, what each of its windows reads, (elements of one, windows)."""
        counts = self.counts(op, sizes, what)
        return [
            _windows(*given)
            for given in zip(
                sizes, counts, self.kernel, self.dilation, self.padding, self.stride, strict=True
            )
        ]


def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """channel_shuffle, by the name of PyTorch's own kernel."""
    return channel_shuffle(input, groups)


@functools.lru_cache(maxsize=256)
def _windows(n: int, count: int, kernel: int, dilation: int, padding: int, stride: int) -> Table:
    places = (np.arange(count) * stride - padding)[:, None] + np.arange(kernel) * dilation
    return table(n, np.where((places >= 0) & (places < n), places, -1))


@lasting
@naming("Im2ColBackward0")
def unfold(
    input: Tensor, kernel_size: IntOrInts, dilation: IntOrInts = 1, padding: IntOrInts = 0,
    stride: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """The windows of (N, C, H, W) or (C, H, W), as columns: (N, C KH KW, L), L windows in row-major
    order (im2col).

    Raises RuntimeError for windows larger than the padded input.
    """
    op = "unfold"
    expect_tensors(op, input=input)
    windows = _Windows(op, kernel_size, dilation, padding, stride)
    if input.dim() not in (3, 4) or 0 in input.shape[-3:]:
        raise RuntimeError(
            f"[{op}] expected input (N, C, H, W) or (C, H, W), empty in the batch at most; got "
            f"{tuple(input.shape)}"
        )
    x = input if input.dim() == 4 else input.unsqueeze(0)
    sizes = x.shape[2], x.shape[3]
    if is_static(sizes):
        rows, columns = windows.tables(op, sizes, "input")
        x = picked(picked(x, 2, rows), 4, columns).transpose(3, 4)
    else:
        x = _unfolded(x, windows, windows.counts(op, sizes, "input"))
    batch, channels, kh, kw, oh, ow = x.shape
    out = x.reshape((batch, channels * kh * kw, oh * ow))
    return out if input.dim() == 4 else out.squeeze(0)


def _unfolded(x: Tensor, windows: _Windows, counts: Sequence[int]) -> Tensor:
    """The windows (N, C, KH, KW, OH, OW) of images of any size: a slice for each place in one."""
    ph, pw = windows.padding
    x = pad_constant(x, (pw, pw, ph, ph))
    for dim, axis in ((2, 0), (4, 1)):  # (N, C, KH, OH, W), then (N, C, KH, OH, KW, OW)
        step, reach = windows.stride[axis], (counts[axis] - 1) * windows.stride[axis] + 1
        starts = [k * windows.dilation[axis] for k in range(windows.kernel[axis])]
        x = stack([slice_along(x, dim, s, s + reach, step) for s in starts], dim)
    return x.transpose(3, 4)


def _output_sizes(op: str, output_size: Any) -> tuple[int, int]:
    """Two sizes, which may be symbolic, or one for both."""
    several = isinstance(output_size, (tuple, list))
    given = tuple(output_size) if several else (output_size, output_size)
    if len(given) == 2 and any(isinstance(n, Sym) for n in given):
        return given
    rows, columns = per_dim(output_size, 2, op, "output_size")
    return rows, columns


def _folded(x: Tensor, windows: _Windows, sizes: Sequence[int]) -> Tensor:
    """Windows (N, C, KH, OH, KW, OW) added up in images of any size: each place in a window at its
    distance from the others of its kind."""
    for dim, axis in ((4, 1), (2, 0)):
        padding, step = windows.padding[axis], windows.stride[axis]
        room = sizes[axis] + 2 * padding
        parts = []
        for k in range(windows.kernel[axis]):
            part = x.select(dim, k)
            first = k * windows.dilation[axis]
            reach = (part.shape[dim] - 1) * step + 1
            low, high, interior = [0] * part.dim(), [0] * part.dim(), [0] * part.dim()
            low[dim], high[dim], interior[dim] = first, room - first - reach, step - 1
            attrs = {"low": tuple(low), "high": tuple(high), "interior": tuple(interior)}
            parts.append(OPS["pad"](part, **attrs, value=0))
        x = slice_along(sum(parts[1:], parts[0]), dim, padding, padding + sizes[axis])
    return x


@naming("Col2ImBackward0")
def fold(
    input: Tensor, output_size: IntOrInts, kernel_size: IntOrInts, dilation: IntOrInts = 1,
    padding: IntOrInts = 0, stride: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """unfold transposed: columns (N, C KH KW, L) or (C KH KW, L), added up where windows of an
    image (N, C, *output_size) overlap (col2im).

    Raises RuntimeError for columns that are not those of the windows.
    """
    op = "fold"
    expect_tensors(op, input=input)
    windows = _Windows(op, kernel_size, dilation, padding, stride)
    sizes = _output_sizes(op, output_size)
    if input.dim() not in (2, 3) or 0 in input.shape[-2:]:
        raise RuntimeError(
            f"[{op}] expected input (N, C KH KW, L) or (C KH KW, L), empty in the batch at most; "
            f"got {tuple(input.shape)}"
        )
    (kh, kw), (oh, ow) = windows.kernel, windows.counts(op, sizes, "output_size")
    x = input if input.dim() == 3 else input.unsqueeze(0)
    if x.shape[1] % (kh * kw) or x.shape[2] != oh * ow:
        raise RuntimeError(
            f"[{op}] expected rows that {kh * kw} divides, and {oh} x {ow} columns; got "
            f"{tuple(input.shape)} for output_size {sizes}, kernel_size {windows.kernel}"
        )
    batch, channels = x.shape[0], x.shape[1] // (kh * kw)
    x = x.reshape((batch, channels, kh, kw, oh, ow)).transpose(3, 4)
    if not is_static(sizes):
        x = _folded(x, windows, sizes)
        return x if input.dim() == 3 else x.squeeze(0)
    rows, columns = windows.tables(op, sizes, "output_size")
    x = spread(x.reshape((batch, channels, kh, oh, kw * ow)), 4, columns)
    x = spread(x.reshape((batch, channels, kh * oh, sizes[1])), 2, rows)
    return x if input.dim() == 3 else x.squeeze(0)
