"""Which convolutions are summed by Winograd's algorithm, and what it reads. Owns no record.

A convolution of 3 x 3 without stride is cut into tiles of 4 x 4 results (the algorithm is
`codegen/winograd.py`'s). It is chosen by shapes alone, so that the bits of a result do not depend
on the machine: where it needs clearly less work, and there are enough channels to pay for the
transforms. With symbolic channels or symbolic spatial sizes, and for other dtypes than float32,
products are summed directly; a symbolic batch counts as one image.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.loops import Array, Builder
from jitgrad.compiler.ops.regions import padded
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_TILE = 4
_CHANNELS = 16  # the least on either side
_LANES = 16  # tiles are counted in vectors of these
# In products of the direct sum, for each pair of channels: what transforming the filter costs, and
# what it costs more where the filters leave the caches.
_FILTER = 320
_LARGE_FILTER, _LARGE = 500, 1 << 17
_GAIN = 1.15


def has_tiles(
    out: Sequence[Dim],
    inputs: Dim,
    kernel: Sequence[Dim],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: DType,
) -> bool:
    """Whether the convolution with results `out` (N, O, *output) of `inputs` channels each is
    summed by tiles."""
    if tuple(kernel) != (3, 3) or dtype is not dtypes.float32 or groups != 1:
        return False
    if any(s != 1 for s in (*stride, *dilation)):
        return False
    images, outputs, height, width = out
    if isinstance(outputs, Sym) or isinstance(inputs, Sym):
        return False
    if isinstance(height, Sym) or isinstance(width, Sym):
        return False
    if outputs < _CHANNELS or inputs < _CHANNELS:
        return False
    images = 1 if isinstance(images, Sym) else images
    tiles = images * -(-height // _TILE) * -(-width // _TILE)
    direct = images * height * width * 9
    transforms = 16 * 20 * tiles // min(outputs, inputs)
    filters = _FILTER + (_LARGE_FILTER if outputs * inputs > _LARGE else 0)
    products = -(-tiles // _LANES) * _LANES * 36
    return bool((products + transforms + filters) * _GAIN < direct)


def tiled_input(b: Builder, x: Array, low: Sequence[Dim], sizes: Sequence[Dim]) -> Array:
    """x padded by `low` in front, and behind as far as the last tile of `sizes` results reads."""
    reads = [-(-n // _TILE) * _TILE + 2 for n in sizes]
    high = [r - p - n for r, p, n in zip(reads, low, x.shape[2:], strict=True)]
    return padded(b, x, (0, 0, *low), (0, 0, *high), (1,) * x.ndim, 0)
