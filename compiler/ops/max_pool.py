"""Max pooling: max_pool (values and places) and its gradient, max_pool_grad."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, uniform
from jitgrad.compiler.ops.pooling import (
    Pool,
    cases,
    covering,
    in_range,
    onnx_images,
    pool_sizes,
    window_elements,
)
from jitgrad.compiler.ops.record import OnnxContext, Sample, op
from jitgrad.compiler.ops.regions import accumulator, all_of, guarded, rounded, span
from jitgrad.compiler.symbolic import Dim, hint, prod, surely_le
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


def lowest(dtype: DType) -> float:
    """The number that every other is at least as large as: what padding holds for max."""
    if dtype.is_floating_point:
        return -float("inf")
    return -(2 ** (dtype.bits - 1)) if dtype.signed else 0


class MaxPool(Pool):
    """max_pool(x; kernel, stride, padding, dilation, ceil_mode) -> (values, places).

    places, int64, holds the row-major position of each value in x's spatial dims (as PyTorch's
    return_indices): the first of equal ones. A NaN in the window wins, the last of several. Padding
    never wins.
    """

    name = "max_pool"
    nout = 2
    saves = ("out1",)
    flat = True

    def infer(
        self,
        x: TensorType,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> tuple[TensorType, TensorType]:
        shape = self.check(x, kernel, stride, padding, dilation, ceil_mode)
        return x.with_shape(shape), x.with_shape(shape).with_dtype(dtypes.int64)

    def reference(
        self,
        x: np.ndarray,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        rank = len(kernel)
        lead, spatial = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
        sizes = pool_sizes(spatial, kernel, stride, padding, dilation, ceil_mode)
        geometry = (spatial, sizes, kernel, stride, padding, dilation)
        low = lowest(dtypes.from_numpy(x.dtype))
        shape = (*lead, *(hint(n) for n in sizes))
        values = np.full(shape, low, x.dtype)
        count = int(np.prod(kernel))
        chosen = np.zeros(shape, np.min_scalar_type(count))  # 1 + the kernel's element; 0: none
        for number, element in enumerate(window_elements(x, low, *geometry), 1):
            better = element > values
            if x.dtype.kind not in "iu":
                better |= element != element
            np.maximum(values, element, out=values)
            np.maximum(chosen, better * chosen.dtype.type(number), out=chosen)
        start, first = _window_places(*geometry)
        steps = np.zeros(count + 1, np.int64)
        steps[1:] = _flat(
            [k * d for k, d in zip(np.indices(kernel), dilation, strict=True)], spatial
        ).reshape(-1)
        places = np.where(chosen == 0, first, start + steps[chosen])
        return values, places

    def vjp(
        self,
        g: Any,
        out: Any,
        x: Any,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> tuple[Any, ...]:
        spatial = tuple(x.shape[x.ndim - len(kernel) :])
        attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        return (op.max_pool_grad(g[0], out[1], spatial=spatial, **attrs),)

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, x: Any, *, kernel: Ints, **attrs: Any
    ) -> Any:
        return take_places(tangents[0], out[1], len(kernel)), None

    def lower(
        self,
        b: Builder,
        x: Array,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> tuple[Array, Array]:
        rank, lead = len(kernel), x.ndim - len(kernel)
        spatial = x.shape[lead:]
        sizes = pool_sizes(spatial, kernel, stride, padding, dilation, ceil_mode)
        shape = (*x.shape[:lead], *sizes)
        at, k = b.axes(x.ndim), b.axes(rank, start=x.ndim)
        starts = [axis(lead + i) * stride[i] - padding[i] for i in range(rank)]
        places = [s + j * d for s, j, d in zip(starts, k, dilation, strict=True)]
        tests, index = [], []
        for i, (place, n, size) in enumerate(zip(places, spatial, sizes, strict=True)):
            past = surely_le((size - 1) * stride[i] - padding[i] + span(kernel[i], dilation[i]), n)
            inside, safe = in_range(place, n, padding[i] > 0, not past)
            tests.append(inside)
            index.append(safe)
        acc = accumulator(x.dtype)
        value = load(x, (*at[:lead], *index)).cast(acc)
        body = guarded(all_of(tests), value, const(lowest(x.dtype), acc))
        values = rounded(b, b.reduction(shape, kernel, body, "max", "columns"), x.dtype)
        best = b.reduction(shape, kernel, body, "argpool", "columns")
        # the window's element -> its place in x; padding (then all is the lowest number there is)
        # stands for the first real element
        chosen = b.unflatten(load(best, at).cast(INDEX), kernel)
        found = [s + j * d for s, j, d in zip(starts, chosen, dilation, strict=True)]
        inside = all_of(
            [
                in_range(place, n, padding[i] > 0, True)[0]
                for i, (place, n) in enumerate(zip(found, spatial, strict=True))
            ]
        )
        first = [_first_real(s, d) for s, d in zip(starts, dilation, strict=True)]
        flat = guarded(inside, b.flat_index(found, spatial), b.flat_index(first, spatial))
        return values, b.pointwise(shape, dtypes.int64, flat.cast(dtypes.int64))

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
    ) -> Any:
        x = ctx.type(inputs[0])
        self.expect(
            x.dtype.is_floating_point, f"no ONNX form for integers; got {x}; convert to a float"
        )
        lead = x.ndim - len(kernel)
        data = onnx_images(ctx, inputs[0], x, len(kernel))
        values, places = ctx.node(
            "MaxPool", [data], outputs=2, kernel_shape=list(kernel), strides=list(stride),
            pads=[*padding, *padding], dilations=list(dilation), ceil_mode=int(ceil_mode),
        )  # fmt: skip
        # ONNX counts places through all dims, batch and channel included
        area = ctx.node("ReduceProd", [ctx.shape(x.shape[lead:])], keepdims=0)
        places = ctx.node("Mod", [places, area])
        sizes = pool_sizes(x.shape[lead:], kernel, stride, padding, dilation, ceil_mode)
        shape = ctx.shape((*x.shape[:lead], *sizes))
        return tuple(ctx.node("Reshape", [v, shape], allowzero=1) for v in (values, places))

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in cases(dilated=True):
            yield Sample((x,), attrs, note)
        plain = next(iter(cases(dilated=True)))[1]
        padded = {**plain, "padding": (1, 1), "kernel": (2, 2)}
        nan = uniform((1, 4, 4))
        nan[0, 1, 2], nan[0, 3, 3], nan[0, 0, 0] = np.nan, -np.inf, np.inf
        nan[0, 1, 3] = nan[0, 2, 2] = np.nan
        yield Sample((nan,), padded, "NaN and infinity", grad=False)
        yield Sample((np.full((1, 4, 4), -np.inf, np.float32),), padded, "all -inf", grad=False)
        yield Sample((np.zeros((2, 4, 4), np.float32),), plain, "ties", grad=False)
        low = np.full((3, 4), np.iinfo(np.int32).min, np.int32)
        yield Sample((low,), padded, "the lowest integer", grad=False)
        yield Sample((integers((2, 5, 5), "int64"),), plain, "integers", grad=False)
        yield Sample((uniform((2, 4, 4), dtype=np.float16),), padded, "float16", grad=False)


class MaxPoolGrad(Pool):
    """max_pool_grad(g, places; spatial, kernel, stride, padding, dilation): the transpose of taking
    values at places: (*lead, *spatial), each window's g at its place, added up."""

    name = "max_pool_grad"
    saves = (1,)

    def infer(
        self,
        g: TensorType,
        places: TensorType,
        *,
        spatial: Shape,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
    ) -> TensorType:
        self.same_device((g, places))
        self.expect(
            places.dtype is dtypes.int64 and len(spatial) == len(kernel) <= g.ndim,
            f"expected int64 places and a spatial size for each dim of kernel {kernel}; got {g}, "
            f"{places}, spatial {spatial}",
        )
        self.check_grad(places, g.shape)
        return g.with_shape((*g.shape[: g.ndim - len(kernel)], *spatial))

    def reference(
        self,
        g: np.ndarray,
        places: np.ndarray,
        *,
        spatial: Ints,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
    ) -> np.ndarray:
        rank = len(kernel)
        lead = g.shape[: g.ndim - rank]
        geometry = zip(
            g.shape[len(lead) :], spatial, kernel, stride, padding, dilation, strict=True
        )
        real = [_has_real(*dim) for dim in geometry]
        if not all(r.all() for r in real):  # where windows are all padding, their place is nowhere
            whole = reduce(np.logical_and.outer, real)
            g, places = np.where(whole, g, 0).astype(g.dtype), np.where(whole, places, 0)
        rows = int(np.prod(lead))
        area = int(np.prod(spatial))
        acc = accumulator(dtypes.from_numpy(g.dtype)).np
        out = np.zeros(rows * area, acc)
        if g.size:
            flat = places.reshape(rows, -1) + np.arange(rows)[:, None] * area
            np.add.at(out, flat.reshape(-1), g.reshape(-1).astype(acc, copy=False))
        return out.reshape(*lead, *spatial).astype(g.dtype, copy=False)

    def vjp(
        self, g: Any, out: Any, y: Any, places: Any, *, kernel: Ints, **attrs: Any
    ) -> tuple[Any, ...]:
        return take_places(g, places, len(kernel)), None

    def jvp(self, tangents: tuple[Any, ...], out: Any, y: Any, places: Any, **attrs: Any) -> Any:
        return None if tangents[0] is None else op.max_pool_grad(tangents[0], places, **attrs)

    def lower(
        self,
        b: Builder,
        g: Array,
        places: Array,
        *,
        spatial: Shape,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
    ) -> Array:
        rank, lead = len(kernel), g.ndim - len(kernel)
        # Where windows overlap and step, positions of one phase (h mod stride) follow each other in
        # windows that do; so they are computed phase by phase, and put together after.
        by_phase = any(k > s > 1 for k, s in zip(kernel, stride, strict=True))
        phases = stride if by_phase and set(dilation) == {1} else (1,) * rank
        blocks = [-(-n // p) for n, p in zip(spatial, phases, strict=True)]
        shape = (*g.shape[:lead], *phases, *blocks)
        at = b.axes(len(shape))
        position = [
            axis(lead + rank + i) * p + axis(lead + i) if p > 1 else axis(lead + rank + i)
            for i, p in enumerate(phases)
        ]
        cover = [
            covering(place, axis(len(shape) + i), g.shape[lead + i], kernel[i], stride[i],
                      padding[i], dilation[i])
            for i, place in enumerate(position)
        ]  # fmt: skip
        window = (*at[:lead], *(c.window for c in cover))
        there = all_of([c.inside for c in cover])
        place = guarded(there, load(places, window), const(-1, dtypes.int64))
        hit = place.cast(INDEX).eq(b.flat_index(position, spatial))
        inside = all_of([there, hit])
        assert inside is not None
        acc = accumulator(g.dtype)
        body = select(inside, load(g, window).cast(acc), 0)
        sums = b.reduction(shape, [c.count for c in cover], body, "sum", "columns")
        at = b.axes(lead + rank)
        index = [
            *(h % p for h, p in zip(at[lead:], phases, strict=True)),
            *(h // p for h, p in zip(at[lead:], phases, strict=True)),
        ]
        whole = load(sums, (*at[:lead], *index)).cast(g.dtype)
        return b.pointwise((*g.shape[:lead], *spatial), g.dtype, whole)

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        spatial: Shape,
        kernel: Ints,
        **attrs: Any,
    ) -> Any:
        g = ctx.type(inputs[0])
        lead = g.shape[: g.ndim - len(kernel)]
        rows, area, count = prod(lead), prod(spatial), prod(g.shape[g.ndim - len(kernel) :])
        flat = ctx.shape((rows, count))
        updates = ctx.node("Reshape", [inputs[0], flat], allowzero=1)
        where = ctx.node("Reshape", [inputs[1], flat], allowzero=1)
        zero = ctx.constant(np.zeros((1, 1), g.dtype.np))
        base = ctx.node("Expand", [zero, ctx.shape((rows, area))])
        out = ctx.node("ScatterElements", [base, where, updates], axis=1, reduction="add")
        return ctx.node("Reshape", [out, ctx.shape((*lead, *spatial))], allowzero=1)

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in cases(dilated=True):
            values, places = max_pool.reference(x, **attrs)
            more = {k: v for k, v in attrs.items() if k != "ceil_mode"}
            more["spatial"] = x.shape[x.ndim - len(attrs["kernel"]) :]
            yield Sample((uniform(values.shape, seed=2), places), more, note)


def take_places(x: Any, places: Any, rank: int) -> Any:
    """x (*lead, *spatial) at row-major spatial positions `places` (*lead, *output)."""
    if x is None:
        return None
    lead = x.ndim - rank
    flat = (*x.shape[:lead], prod(x.shape[lead:]))
    where = op.reshape(places, shape=(*places.shape[:lead], prod(places.shape[lead:])))
    out = op.gather(op.reshape(x, shape=flat), where, axis=lead)
    return op.reshape(out, shape=tuple(places.shape))


def _window_places(
    spatial: Sequence[int],
    sizes: Sequence[Dim],
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each window: the place of its first element (may lie outside, in the padding), and of its
    first that is not padding, which is what wins if all are the lowest number."""
    starts, firsts = [], []
    for q, s, p, d in zip(sizes, stride, padding, dilation, strict=True):
        start = np.arange(hint(q)) * s - p
        starts.append(start)
        firsts.append(start + (np.maximum(-start, 0) + d - 1) // d * d)
    return _flat(np.ix_(*starts), spatial), _flat(np.ix_(*firsts), spatial)


def _has_real(q: int, n: int, k: int, s: int, p: int, d: int) -> np.ndarray:
    """Which of q windows have an element that is not padding, along a dim of n."""
    at = np.arange(q)[:, None] * s - p + np.arange(k) * d
    return np.any((at >= 0) & (at < n), axis=1)


def _flat(index: Sequence[np.ndarray], spatial: Sequence[int]) -> np.ndarray:
    """Row-major positions of a multi-index, which may lie outside."""
    flat = np.zeros((), np.int64)
    for i, n in zip(index, spatial, strict=True):
        flat = flat * n + i
    return flat


def _first_real(start: Expr, dilation: int) -> Expr:
    """The first place at or after 0 of a window that starts at `start`, in steps of dilation."""
    before = make("max", const(0, INDEX) - start, const(0, INDEX))
    return start + (before + (dilation - 1)) // dilation * dilation


max_pool = MaxPool()
max_pool_grad = MaxPoolGrad()
