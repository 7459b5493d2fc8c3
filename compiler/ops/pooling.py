"""What the pooling records share: geometry, checks, windows in references and in lowered code.

Owns no record; those are in max_pool.py and avg_pool.py. The spatial dims are the last
len(kernel); whatever leads is batch. Attributes hold one int for each spatial dim.

Gradients gather: each input element asks the windows that may cover it (`covering`), so there is
no scatter and the order of additions is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Expr,
    const,
    dim,
    make,
)
from jitgrad.compiler.ops.examples import strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, op, same_shape
from jitgrad.compiler.ops.regions import all_of, in_last_dims, readable, span
from jitgrad.compiler.symbolic import Dim, hint, prod, smin
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


def pool_sizes(
    spatial: Sequence[Dim],
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> Shape:
    """The output sizes, by PyTorch's rule: with ceil_mode a last window may hang over the end, but
    it must start inside the input or the padding before it."""
    out: list[Dim] = []
    for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (room + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode:
            count = smin(count, (n + p - 1) // s + 1)
        out.append(count)
    return tuple(out)


class Pool(Op):
    """What the records share: checks of attributes, and batching (leading dims are free)."""

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 4 * max(t.numel for t in (*types, *outs))

    def check(
        self,
        x: TensorType,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> Shape:
        """Checks a pool of x; the shape of its result."""
        rank = len(kernel)
        self.expect(
            1 <= rank <= x.ndim and len(stride) == len(padding) == len(dilation) == rank,
            f"expected an input with at least the {rank} dims that are pooled, and as many "
            f"strides, paddings and dilations; got {x}, kernel {kernel}, stride {stride}, padding "
            f"{padding}, dilation {dilation}",
        )
        self.expect(
            x.dtype is not dtypes.bool_ and not x.dtype.is_complex,
            f"expected a real number dtype; got {x}; convert it with .to(dtype)",
            NotImplementedError,
        )
        self.expect(
            all(v > 0 for v in (*kernel, *stride, *dilation)),
            f"expected kernel, stride and dilation above zero; got {kernel}, {stride}, {dilation}",
        )
        for k, p, d in zip(kernel, padding, dilation, strict=True):
            self.expect(
                0 <= p <= ((k - 1) * d + 1) // 2,
                f"pad should be at least 0 and at most half of effective kernel size; got padding "
                f"{padding}, kernel {kernel}, dilation {dilation}",
            )
        spatial = x.shape[x.ndim - rank :]
        for n, k, p, d in zip(spatial, kernel, padding, dilation, strict=True):
            need = span(k, d)
            self.expect(
                n + 2 * p >= need if not ceil_mode else n > 0,
                f"expected an input no smaller than the kernel; got {x} with kernel {kernel}, "
                f"padding {padding} and dilation {dilation}: the output size would be too small",
            )
        sizes = pool_sizes(spatial, kernel, stride, padding, dilation, ceil_mode)
        self.expect(
            all(n > 0 for n in sizes),
            f"output size {sizes} is too small; got {x} with kernel {kernel}, padding {padding}",
        )
        return (*x.shape[: x.ndim - rank], *sizes)

    def check_grad(self, g: TensorType, expected: Shape) -> None:
        self.expect(
            same_shape(g.shape, expected),
            f"expected a gradient of shape ({', '.join(map(str, expected))}); got {g}",
        )

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        size = next(x.shape[0] for x, is_b in zip(operands, batched, strict=True) if is_b)
        full = [
            x if is_b else op.expand(x, shape=(size, *x.shape))
            for x, is_b in zip(operands, batched, strict=True)
        ]
        return self(*full, **attrs)


# -- windows in references -------------------------------------------------------------------------
def window_elements(
    x: np.ndarray,
    fill: Any,
    spatial: Sequence[Dim],
    sizes: Sequence[Dim],
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
) -> Iterator[np.ndarray]:
    """For each element of the kernel, in row-major order: what it meets in every window, as an
    array of the output's shape; `fill` outside of x."""
    rank = len(kernel)
    lead = x.shape[: x.ndim - rank]
    n, count = [hint(d) for d in spatial], [hint(d) for d in sizes]
    reach = [
        max(d + p, (q - 1) * s + (k - 1) * w + 1)
        for d, p, q, s, k, w in zip(n, padding, count, stride, kernel, dilation, strict=True)
    ]
    if reach == n:
        xp = x
    else:
        xp = np.full((*lead, *reach), fill, x.dtype)
        xp[in_last_dims(slice(p, p + d) for p, d in zip(padding, n, strict=True))] = x
    for element in np.ndindex(*kernel):
        where = (
            slice(k * w, k * w + (q - 1) * s + 1, s)
            for k, w, q, s in zip(element, dilation, count, stride, strict=True)
        )
        yield xp[in_last_dims(where)]


# -- windows in lowered code -----------------------------------------------------------------------
class Cover:
    """One of the windows that may cover an input position, along one dim.

    `count` windows may; `window` is the number of one of them, clamped; `inside` tests that there
    is such a window, `covers` that it does cover the position (a clamped one need not).
    """

    def __init__(self, count: int, window: Expr, inside: Expr | None, covers: Expr | None) -> None:
        self.count = count
        self.window = window
        self.inside = inside
        self.covers = covers


def covering(
    position: Expr, j: Expr, windows: Dim, kernel: int, stride: int, padding: int, dilation: int
) -> Cover:
    """The j-th window that may cover an input position: window * stride - padding + k * dilation.

    Without dilation these are ceil(kernel / stride) windows, from the last that starts at or before
    the position backwards. With it, j is k, and the rest of the division tells.
    """
    zero, last = const(0, INDEX), dim(windows - 1)
    if dilation == 1:
        number = (position + padding) // stride - j
        offset = position + padding - number * stride
        count = -(-kernel // stride)
        tests = [number >= 0 if count > 1 else None, number <= last]
        covers = offset < kernel if count * stride > kernel else None
    else:
        reach = position + padding - j * dilation
        number = make("max", reach, zero) // stride
        tests = [reach >= 0, (make("max", reach, zero) % stride).eq(0), number <= last]
        count, covers = kernel, None
    window = readable(make("max", number, zero), windows)
    return Cover(count, window, all_of(tests), covers)


def in_range(place: Expr, n: Dim, low: bool, high: bool) -> tuple[Expr | None, Expr]:
    """The test that a place is in [0, n), and it clamped; `low`, `high`: where it may be out."""
    tests, safe = [], place
    if low:
        tests.append(place >= 0)
        safe = make("max", safe, const(0, INDEX))
    if high:
        tests.append(place < dim(n))
        safe = readable(safe, n)
    return all_of(tests), safe


def onnx_images(ctx: OnnxContext, name: str, x: TensorType, rank: int) -> str:
    """x as (N, C, *spatial): ONNX pools nothing else."""
    lead = x.ndim - rank
    if lead == 2:
        return name
    merged = (
        (1, prod(x.shape[:lead])) if lead < 2 else (prod(x.shape[: lead - 1]), x.shape[lead - 1])
    )
    return ctx.node("Reshape", [name, ctx.shape((*merged, *x.shape[lead:]))], allowzero=1)


# -- samples --------------------------------------------------------------------------------------
def cases(dilated: bool) -> Iterable[tuple[np.ndarray, dict[str, Any], str]]:
    def attrs(
        kernel: Ints,
        stride: Ints,
        padding: Ints | None = None,
        dilation: Ints | None = None,
        ceil_mode: bool = False,
    ) -> dict[str, Any]:
        out: dict[str, Any] = {"kernel": kernel, "stride": stride, "ceil_mode": ceil_mode}
        out["padding"] = padding or (0,) * len(kernel)
        if dilated:
            out["dilation"] = dilation or (1,) * len(kernel)
        return out

    x = uniform((2, 3, 6, 7))
    yield x, attrs((2, 2), (2, 2)), ""
    yield x, attrs((3, 2), (1, 2), (1, 1)), "overlapping, padding"
    yield x, attrs((2, 3), (3, 2), (1, 0), ceil_mode=True), "ceil_mode"
    yield uniform((2, 5, 37)), attrs((3, 3), (2, 2), (1, 1)), "overlapping in steps"
    yield uniform((1, 5, 5)), attrs((2, 2), (2, 2), (1, 1), ceil_mode=True), "ceil_mode and padding"
    if dilated:
        yield x, attrs((3, 2), (2, 1), (2, 1), (2, 2)), "dilation"
    yield uniform((4, 9)), attrs((3,), (2,), (1,)), "one dim"
    yield uniform((8,)), attrs((3,), (3,)), "no leading dims"
    yield uniform((1, 2, 4, 3, 5)), attrs((2, 2, 3), (2, 1, 2), (0, 1, 1)), "three dims"
    yield strided(x), attrs((2, 2), (1, 3)), "strided, gaps between windows"
    yield uniform((0, 2, 4, 4)), attrs((2, 2), (2, 2)), "empty batch"
