"""Average pooling: avg_pool and its transpose, avg_pool_grad.

float16 and bfloat16 accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    dim,
    load,
    make,
)
from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.pooling import (
    Pool,
    cases,
    covering,
    in_range,
    onnx_images,
    pool_sizes,
    window_elements,
)
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op
from jitgrad.compiler.ops.regions import (
    accumulator,
    all_of,
    guarded,
    in_last_dims,
    rounded,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, prod, surely_le
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


class AvgPool(Pool):
    """avg_pool(x; kernel, stride, padding, ceil_mode, count_include_pad, divisor_override).

    The sum over each window over its divisor: divisor_override where given (not None), else the
    number of elements that the window covers, padding included or not (what ceil_mode lets hang
    over the padding never counts).
    """

    name = "avg_pool"

    def infer(
        self,
        x: TensorType,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> TensorType:
        check_average(self, x, divisor_override)
        return x.with_shape(self.check(x, kernel, stride, padding, (1,) * len(kernel), ceil_mode))

    def reference(self, x: np.ndarray, **attrs: Any) -> np.ndarray:
        kernel = attrs["kernel"]
        rank = len(kernel)
        spatial = x.shape[x.ndim - rank :]
        sizes = _average_sizes(spatial, attrs)
        one = (1,) * rank
        acc = accumulator(dtypes.from_numpy(x.dtype)).np
        total = np.zeros((*x.shape[: x.ndim - rank], *(hint(n) for n in sizes)), acc)
        geometry = (spatial, sizes, kernel, attrs["stride"], attrs["padding"], one)
        for element in window_elements(x.astype(acc, copy=False), 0, *geometry):
            total += element
        return (total / _divisors(spatial, sizes, acc, **attrs)).astype(x.dtype, copy=False)

    def vjp(self, g: Any, out: Any, x: Any, **attrs: Any) -> tuple[Any, ...]:
        spatial = tuple(x.shape[x.ndim - len(attrs["kernel"]) :])
        return (op.avg_pool_grad(g, spatial=spatial, **attrs),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return op.avg_pool(tangents[0], **attrs)

    def lower(self, b: Builder, x: Array, **attrs: Any) -> Array:
        kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
        rank, lead = len(kernel), x.ndim - len(kernel)
        spatial = x.shape[lead:]
        sizes = _average_sizes(spatial, attrs)
        shape = (*x.shape[:lead], *sizes)
        at = b.axes(x.ndim)
        tests, index = [], []
        for i in range(rank):
            place = at[lead + i] * stride[i] - padding[i] + axis(x.ndim + i)
            past = surely_le((sizes[i] - 1) * stride[i] - padding[i] + kernel[i], spatial[i])
            inside, safe = in_range(place, spatial[i], padding[i] > 0, not past)
            tests.append(inside)
            index.append(safe)
        acc = accumulator(x.dtype)
        value = load(x, (*at[:lead], *index)).cast(acc)
        body = guarded(all_of(tests), value, const(0, acc))
        # Windows apart lie beside each other in memory; those that overlap are read by neighbours.
        order = "lanes" if stride[-1] >= kernel[-1] >= 4 else "columns"
        total = b.reduction(shape, kernel, body, "sum", order)
        mean = load(total, at) / _divisor(at[lead:], spatial, sizes, acc, **attrs)
        return b.pointwise(shape, x.dtype, mean.cast(x.dtype))

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Any:
        x = ctx.type(inputs[0])
        lead = x.ndim - len(kernel)
        data = onnx_images(ctx, inputs[0], x, len(kernel))
        if divisor_override is not None and ceil_mode:
            raise RuntimeError(
                "[avg_pool] no ONNX form for divisor_override with ceil_mode; leave one out"
            )
        include = count_include_pad or divisor_override is not None
        out = ctx.node(
            "AveragePool", [data], kernel_shape=list(kernel), strides=list(stride),
            pads=[*padding, *padding], ceil_mode=int(ceil_mode), count_include_pad=int(include),
        )  # fmt: skip
        if divisor_override is not None:
            factor = np.array(np.prod(kernel) / divisor_override, x.dtype.np)
            out = ctx.node("Mul", [out, ctx.constant(factor)])
        sizes = pool_sizes(x.shape[lead:], kernel, stride, padding, (1,) * len(kernel), ceil_mode)
        return ctx.node("Reshape", [out, ctx.shape((*x.shape[:lead], *sizes))], allowzero=1)

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _average_cases():
            yield Sample((x,), attrs, note)
        x, attrs, _ = next(iter(_average_cases()))
        yield Sample((x.astype(np.float16),), attrs, "float16", grad=False)


class AvgPoolGrad(Pool):
    """avg_pool_grad(g; spatial, ...avg_pool's): the transpose of avg_pool, (*lead, *spatial)."""

    name = "avg_pool_grad"

    def infer(
        self,
        g: TensorType,
        *,
        spatial: Shape,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> TensorType:
        check_average(self, g, divisor_override)
        self.expect(
            len(spatial) == len(kernel) <= g.ndim,
            f"expected a spatial size for each dim of kernel {kernel}; got {spatial} for {g}",
        )
        x = g.with_shape((*g.shape[: g.ndim - len(kernel)], *spatial))
        one = (1,) * len(kernel)
        self.check_grad(g, self.check(x, kernel, stride, padding, one, ceil_mode))
        return x

    def reference(self, g: np.ndarray, *, spatial: Ints, **attrs: Any) -> np.ndarray:
        kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
        rank = len(kernel)
        lead, sizes = g.shape[: g.ndim - rank], g.shape[g.ndim - rank :]
        acc = accumulator(dtypes.from_numpy(g.dtype)).np
        share = g.astype(acc, copy=False) / _divisors(spatial, sizes, acc, **attrs)
        reach = [
            max(n + 2 * p, (q - 1) * s + k)
            for n, p, q, s, k in zip(spatial, padding, sizes, stride, kernel, strict=True)
        ]
        out = np.zeros((*lead, *reach), acc)
        for k in np.ndindex(*kernel):
            where = (
                slice(j, j + (q - 1) * s + 1, s) for j, q, s in zip(k, sizes, stride, strict=True)
            )
            out[in_last_dims(where)] += share
        crop = (slice(p, p + n) for p, n in zip(padding, spatial, strict=True))
        return np.array(out[in_last_dims(crop)]).astype(g.dtype, copy=False)

    def vjp(self, g: Any, out: Any, y: Any, *, spatial: Shape, **attrs: Any) -> tuple[Any, ...]:
        return (op.avg_pool(g, **attrs),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, y: Any, **attrs: Any) -> Any:
        return op.avg_pool_grad(tangents[0], **attrs)

    def lower(self, b: Builder, g: Array, *, spatial: Shape, **attrs: Any) -> Array:
        kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
        rank, lead = len(kernel), g.ndim - len(kernel)
        sizes = g.shape[lead:]
        at = b.axes(g.ndim)
        cover = [
            covering(at[lead + i], axis(g.ndim + i), sizes[i], kernel[i], stride[i],
                      padding[i], 1)
            for i in range(rank)
        ]  # fmt: skip
        window = [c.window for c in cover]
        acc = accumulator(g.dtype)
        share = load(g, (*at[:lead], *window)).cast(acc)
        share = share / _divisor(window, spatial, sizes, acc, **attrs)
        body = guarded(
            all_of([t for c in cover for t in (c.inside, c.covers)]), share, const(0, acc)
        )
        shape = (*g.shape[:lead], *spatial)
        out = b.reduction(shape, [c.count for c in cover], body, "sum", "columns")
        return rounded(b, out, g.dtype)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, spatial: Shape, **attrs: Any) -> Any:
        # each window's share spread by a transposed convolution with ones, then cut to size
        g = ctx.type(inputs[0])
        kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
        rank, lead = len(kernel), g.shape[: g.ndim - len(kernel)]
        sizes = g.shape[g.ndim - rank :]
        if any(isinstance(d, Sym) for d in spatial):
            raise RuntimeError(
                f"[avg_pool_grad] no ONNX form for symbolic spatial sizes; got {g} and spatial "
                f"{spatial}; export with fixed sizes"
            )
        divisors = ctx.constant(_divisors(spatial, sizes, g.dtype.np, **attrs))
        share = ctx.node("Div", [inputs[0], divisors])
        share = ctx.node("Reshape", [share, ctx.shape((prod(lead), 1, *sizes))], allowzero=1)
        ones = ctx.constant(np.ones((1, 1, *kernel), g.dtype.np))
        out = ctx.node("ConvTranspose", [share, ones], strides=list(stride))
        high = [
            n + p - (q - 1) * s - k
            for n, p, q, s, k in zip(spatial, padding, sizes, stride, kernel, strict=True)
        ]
        low = [-p for p in padding]
        out = ctx.node("Pad", [out, ctx.shape((0, 0, *low, 0, 0, *high))])
        return ctx.node("Reshape", [out, ctx.shape((*lead, *spatial))], allowzero=1)

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _average_cases():
            y = avg_pool.reference(x, **attrs)
            spatial = x.shape[x.ndim - len(attrs["kernel"]) :]
            yield Sample((uniform(y.shape, seed=2),), {**attrs, "spatial": spatial}, note)


def check_average(record: Op, x: TensorType, divisor_override: int | None) -> None:
    record.expect(
        x.dtype.is_floating_point,
        f"expected a floating dtype; got {x}; convert it with .to(dtype)",
        NotImplementedError,
    )
    record.expect(divisor_override != 0, "divisor must be not zero; got divisor_override=0")


def _average_sizes(spatial: Shape, attrs: dict[str, Any]) -> Shape:
    kernel = attrs["kernel"]
    return pool_sizes(
        spatial, kernel, attrs["stride"], attrs["padding"], (1,) * len(kernel), attrs["ceil_mode"]
    )


def _divisors(
    spatial: Sequence[Dim],
    sizes: Sequence[Dim],
    acc: np.dtype[Any],
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
    divisor_override: int | None,
    ceil_mode: bool,
) -> np.ndarray:
    """The divisor of every window."""
    if divisor_override is not None:
        return np.array(divisor_override, acc)
    total: np.ndarray = np.ones((), np.int64)
    for n, q, k, s, p in zip(spatial, sizes, kernel, stride, padding, strict=True):
        start = np.arange(hint(q)) * s - p
        end = np.minimum(start + k, hint(n) + p)
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, hint(n))
        total = total[..., None] * (end - start)
    return total.astype(acc)


def _divisor(
    window: Sequence[Expr],
    spatial: Shape,
    sizes: Shape,
    acc: DType,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    count_include_pad: bool,
    divisor_override: int | None,
    ceil_mode: bool,
) -> Expr:
    """The divisor of a window, a constant where it can be."""
    if divisor_override is not None:
        return const(divisor_override, acc)
    total = const(1, INDEX)
    for o, n, q, k, s, p in zip(window, spatial, sizes, kernel, stride, padding, strict=True):
        start = o * s - p
        last = (q - 1) * s - p + k  # the end of the last window
        limit = n + p if count_include_pad else n
        end = start + k
        if not surely_le(last, limit):
            end = make("min", end, dim(limit))
        if not count_include_pad and p > 0:
            start = make("max", start, const(0, INDEX))
        full = not (not count_include_pad and p > 0) and surely_le(last, limit)
        total = total * (const(k, INDEX) if full else end - start)
    return total.cast(acc) if total.op != "const" else const(total.attr, acc)


def _average_cases() -> Iterable[tuple[np.ndarray, dict[str, Any], str]]:
    for x, attrs, note in cases(dilated=False):
        yield x, {**attrs, "count_include_pad": True, "divisor_override": None}, note
        if any(attrs["padding"]) or attrs["ceil_mode"]:
            more = {"count_include_pad": False, "divisor_override": None}
            yield x, {**attrs, **more}, f"{note}, padding does not count"
    x, attrs, _ = next(iter(cases(dilated=False)))
    yield x, {**attrs, "count_include_pad": True, "divisor_override": 3}, "divisor_override"


avg_pool = AvgPool()
avg_pool_grad = AvgPoolGrad()
