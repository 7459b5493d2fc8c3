"""What the convolution records share: sizes, checks, columns, grouped axes, batching, samples.

Owns no record; those are in conv.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    axis,
    dim,
    load,
)
from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.linalg import Bilinear, check_multiply, compute_dtype
from jitgrad.compiler.ops.record import op
from jitgrad.compiler.ops.regions import in_last_dims, padded, span, zero_filled
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.compiler.types import TensorType

Ints = tuple[int, ...]
Shape = tuple[Dim, ...]


_COLUMN_BYTES = 8 << 20  # columns are built for as many images at a time as stay near a cache


class ConvBase(Bilinear):
    """What the three share: checks of attributes and of sizes, batching, ONNX attributes."""

    slow = True

    def products(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return self.work(types, outs, attrs)

    def check(
        self, x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints, groups: int
    ) -> None:
        """Checks the types that x and w have, or that a gradient of theirs has."""
        rank = x.ndim - 2
        self.expect(
            rank >= 1 and w.ndim == x.ndim,
            f"expected an input (N, C, *spatial) and a weight (O, C / groups, *kernel) of as many "
            f"dims; got {x} and {w}; add a batch dim with unsqueeze(0) if it is missing",
        )
        self.same_device((x, w))
        check_multiply(self, x, w)
        self.expect(
            len(stride) == len(padding) == len(dilation) == rank,
            f"expected stride, padding and dilation for {rank} spatial dims; got {stride}, "
            f"{padding}, {dilation}",
        )
        self.expect(
            all(s > 0 for s in stride) and all(d > 0 for d in dilation) and groups > 0,
            f"expected positive stride, dilation and groups; got {stride}, {dilation}, {groups}",
        )
        self.expect(
            all(p >= 0 for p in padding), f"negative padding is not supported; got {padding}"
        )
        self.expect(
            x.shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0,
            f"given groups={groups} and weight {w}, expected input to have "
            f"{w.shape[1] * groups} channels and the weight a multiple of {groups} outputs; "
            f"got input {x}",
        )

    def output_shape(
        self, x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints
    ) -> Shape:
        """The type's shape of conv(x, w); raises where the kernel is larger than the input."""
        sizes = conv_sizes(x.shape[2:], w.shape[2:], stride, padding, dilation)
        for n, k, p, d in zip(x.shape[2:], w.shape[2:], padding, dilation, strict=True):
            self.expect(
                n + 2 * p >= span(k, d),
                f"kernel size cannot be greater than the padded input size; got input {x} with "
                f"padding {padding} and weight {w} with dilation {dilation}",
            )
        return (x.shape[0], w.shape[0], *sizes)

    def check_output(self, y: TensorType, expected: Shape, attrs: dict[str, Any]) -> None:
        self.expect(
            len(y.shape) == len(expected)
            and all(a == b for a, b in zip(y.shape, expected, strict=True)),
            f"expected an output gradient of shape ({', '.join(map(str, expected))}); got {y} "
            f"with {attrs}",
        )


def conv_sizes(
    spatial: Sequence[Dim],
    kernel: Sequence[Dim],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Shape:
    """The output sizes: (n + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True)
    )


def geometry(attrs: dict[str, Any]) -> tuple[Ints, Ints, Ints]:
    return attrs["stride"], attrs["padding"], attrs["dilation"]


def columns(
    x: np.ndarray, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """(images, columns) by parts of the batch; columns are (n, groups, C / groups * K, output)."""
    n, c = x.shape[:2]
    sizes = conv_sizes(x.shape[2:], kernel, stride, padding, dilation)
    acc = compute_dtype(x.dtype)
    if any(padding):
        padded_sizes = [d + 2 * p for d, p in zip(x.shape[2:], padding, strict=True)]
        xp = np.zeros((n, c, *padded_sizes), acc)
        inner = (slice(p, p + d) for d, p in zip(x.shape[2:], padding, strict=True))
        xp[in_last_dims(inner)] = x
    else:
        xp = x.astype(acc, copy=False)
    steps = xp.strides[2:]
    shape = (groups, c // groups, *kernel, *sizes)
    strides = (
        xp.strides[1] * (c // groups),
        xp.strides[1],
        *(s * d for s, d in zip(steps, dilation, strict=True)),
        *(s * d for s, d in zip(steps, stride, strict=True)),
    )
    windows = as_strided(xp, (n, *shape), (xp.strides[0], *strides), writeable=False)
    per_image = int(np.prod(shape)) * acc.itemsize
    count = max(1, _COLUMN_BYTES // max(1, per_image))
    rows = c // groups * int(np.prod(kernel))
    for first in range(0, n, count):
        part = slice(first, min(n, first + count))
        yield part, windows[part].reshape(part.stop - first, groups, rows, -1)


def padded_input(b: Builder, x: Array, padding: Ints) -> Array:
    return padded(b, x, (0, 0, *padding), (0, 0, *padding), (1,) * x.ndim, 0)


class Grouped:
    """The axes of a contraction's output, with the grouped dim split in two when groups > 1.

    The dim `split` of `shape` becomes (groups, per group), the group an outer batch axis there;
    memory is the same either way. `index[k]` is the index along dim k of `shape`, `place[k]` the
    axis that is its (within-group) part, `batch` the group's axis.
    """

    def __init__(self, groups: int, shape: Shape, split: int) -> None:
        self.full = shape
        self.groups = groups
        self.grouped = groups > 1
        if not self.grouped:
            self.shape: Shape = shape
            self.place = tuple(range(len(shape)))
            self.batch: tuple[int, ...] = ()
            self.index: list[Expr] = [axis(k) for k in self.place]
        else:
            per_group = shape[split] // groups
            self.shape = (*shape[:split], groups, per_group, *shape[split + 1 :])
            self.place = tuple(k if k < split else k + 1 for k in range(len(shape)))
            self.batch = (split,)
            self.index = [axis(k) for k in self.place]
            self.index[split] = self.channel(axis(split + 1), per_group)
        self.split = split
        self.rank = len(self.shape)

    def channel(self, within: Expr, per_group: Dim) -> Expr:
        """The channel number of channel `within` of this output's group."""
        return axis(self.batch[0]) * dim(per_group) + within if self.grouped else within

    @property
    def within(self) -> Expr:
        """The number, within its group, of the output's channel."""
        return axis(self.place[self.split])

    def join(self, b: Builder, out: Array) -> Array:
        """`out` under the shape that the op promises."""
        if not self.grouped:
            return out
        s, size = self.split, self.shape[self.split + 1]
        if any(hint(d) == 0 for d in self.full):
            return zero_filled(b, self.full, out.dtype)
        at = list(b.axes(len(self.full)))
        channel = at[s]
        index = [*at[:s], channel // dim(size), channel % dim(size), *at[s + 1 :]]
        return b.pointwise(self.full, out.dtype, load(out, index))


def fold_batch(x: Any, into: int) -> Any:
    """The leading axis of x merged, as the outer part, into dim `into` (counted without it)."""
    order = (*range(1, into + 1), 0, *range(into + 1, x.ndim))
    x = op.permute(x, axes=order) if into else x
    shape = (*x.shape[:into], x.shape[into] * x.shape[into + 1], *x.shape[into + 2 :])
    return op.reshape(x, shape=shape)


def unfold_batch(x: Any, at: int, size: Dim) -> Any:
    """The inverse of `fold_batch`."""
    x = op.reshape(x, shape=(*x.shape[:at], size, x.shape[at] // size, *x.shape[at + 1 :]))
    order = (at, *range(at), *range(at + 1, x.ndim))
    return op.permute(x, axes=order) if at else x


def onnx_attributes(kernel: Shape, attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes that ONNX's Conv and ConvTranspose share."""
    padding = list(attrs["padding"])
    return {
        "kernel_shape": [hint(k) for k in kernel],
        "strides": list(attrs["stride"]),
        "pads": padding + padding,
        "dilations": list(attrs["dilation"]),
        "group": attrs["groups"],
    }


def conv_cases() -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Any], str]]:
    """(x, w, attributes, note): what the samples of the three are made of."""

    def attrs(
        stride: Ints = (1, 1), padding: Ints = (0, 0), dilation: Ints = (1, 1), groups: int = 1
    ) -> dict[str, Any]:
        return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

    x, w = uniform((2, 3, 5, 6)), uniform((4, 3, 3, 2), seed=1)
    yield x, w, attrs(), ""
    yield x, w, attrs(padding=(1, 2)), "padding"
    yield x, w, attrs(stride=(2, 3), padding=(1, 1)), "strides that leave a rest"
    yield x, w, attrs(dilation=(2, 3), padding=(2, 1)), "dilation"
    yield x, uniform((4, 3, 2, 4), seed=1), attrs((2, 2), (1, 2)), "strides that divide the kernel"
    yield (
        uniform((1, 4, 7, 6)),
        uniform((2, 2, 4, 3), seed=1),
        attrs((2, 1), (3, 1), (1, 2), 2),
        "phases along one dim, groups",
    )
    yield uniform((2, 2, 8)), uniform((3, 2, 3), seed=1), attrs((3,), (0,), (1,)), "patches"
    yield (
        uniform((1, 4, 5, 5)),
        uniform((6, 2, 3, 3), seed=1),
        attrs((2, 1), (1, 1), (1, 2), 2),
        "groups",
    )
    yield (
        uniform((2, 3, 4, 4)),
        uniform((3, 1, 3, 3), seed=1),
        attrs(padding=(1, 1), groups=3),
        "depthwise",
    )
    yield x, uniform((2, 3, 1, 1), seed=1), attrs(padding=(2, 1)), "padding beyond the kernel"
    yield uniform((2, 2, 7)), uniform((3, 2, 3), seed=1), attrs((2,), (1,), (1,)), "one dim"
    cube = uniform((1, 2, 3, 4, 3)), uniform((2, 2, 2, 3, 2), seed=1)
    yield *cube, attrs((1, 2, 1), (0, 1, 1), (1, 1, 2)), "three dims"
    yield uniform((0, 3, 4, 4)), uniform((2, 3, 3, 3), seed=1), attrs(), "empty batch"
