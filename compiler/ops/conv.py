"""Convolution in any number of spatial dims, and its two gradients.

Owns the records `conv`, `conv_input_grad` and `conv_weight_grad`. Each is linear in both operands,
and the derivatives of any of the three are the other two, so all orders are covered:

    conv(x, w)[n, o, p] = sum over c, k of
        x[n, group(o) * C / groups + c, p * stride - padding + k * dilation] * w[o, c, k]
    conv_input_grad(y, w)  the x that conv(., w) sends y back to (also: transposed convolution)
    conv_weight_grad(x, y) the w that conv(x, .) sends y back to

x is (N, C, *spatial), w is (O, C / groups, *kernel), y is (N, O, *output). Attributes: `stride`,
`padding` (both sides alike), `dilation`: one int for each spatial dim; `groups`. A bias is an
addition in the public layer. float16 and bfloat16 accumulate in float32.

The references build columns (im2col; Chellapilla et al. 2006) as a strided view and multiply. The
lowered forms are contractions of plain reads, over the padded operand where there is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    dim,
    load,
)
from jitgrad.compiler.ops.conv_depthwise import by_taps, is_depthwise
from jitgrad.compiler.ops.conv_geometry import (
    ConvBase,
    Grouped,
    columns,
    conv_cases,
    conv_sizes,
    fold_batch,
    geometry,
    onnx_attributes,
    padded_input,
    unfold_batch,
)
from jitgrad.compiler.ops.conv_phases import by_phase, has_phases
from jitgrad.compiler.ops.conv_tiles import has_tiles, tiled_input
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.linalg import check_multiply, compute_dtype
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.record import OnnxContext, Sample, op
from jitgrad.compiler.ops.regions import accumulator, in_last_dims, padded, rounded, span
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Ints = tuple[int, ...]
Shape = tuple[Dim, ...]


def _along(at: Sequence[Expr], stride: Ints, tap: Sequence[int], dilation: Ints) -> list[Expr]:
    """Where the kernel's element `tap` reads for outputs `at`."""
    places = zip(at, stride, tap, dilation, strict=True)
    return [i * s + dim(k * d) for i, s, k, d in places]


class ConvByWeight(ConvBase):
    """conv and its input gradient: images by a weight. They map over a new axis alike: it goes to
    the images, or, where the weight has it, to the channels as groups."""

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        x, w = operands
        if not batched[1]:
            return unfold_batch(self(fold_batch(x, 0), w, **attrs), 0, x.shape[0])
        x, w = align_batch(operands, batched)
        attrs["groups"] *= w.shape[0]
        return unfold_batch(self(fold_batch(x, 1), fold_batch(w, 0), **attrs), 1, w.shape[0])


class Conv(ConvByWeight):
    """conv(x, w; stride, padding, dilation, groups) -> (N, O, *output), a cross-correlation."""

    name = "conv"

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        *,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> TensorType:
        self.check(x, w, stride, padding, dilation, groups)
        return x.with_shape(self.output_shape(x, w, stride, padding, dilation))

    def reference(
        self,
        x: np.ndarray,
        w: np.ndarray,
        *,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> np.ndarray:
        kernel = w.shape[2:]
        sizes = conv_sizes(x.shape[2:], kernel, stride, padding, dilation)
        out = np.zeros((x.shape[0], w.shape[0], *sizes), compute_dtype(x.dtype))
        if out.size and w.size:
            rows = w.astype(out.dtype, copy=False).reshape(groups, w.shape[0] // groups, -1)
            flat = out.reshape(x.shape[0], groups, w.shape[0] // groups, -1)
            for part, cols in columns(x, kernel, stride, padding, dilation, groups):
                np.matmul(rows, cols, out=flat[part])
        return out.astype(x.dtype, copy=False)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return outs[0].numel * (types[1].numel // types[1].shape[0])

    def vjp(self, g: Any, out: Any, x: Any, w: Any, **attrs: Any) -> tuple[Any, ...]:
        return (
            op.conv_input_grad(g, w, shape=x.shape[2:], **attrs),
            op.conv_weight_grad(x, g, kernel=w.shape[2:], **attrs),
        )

    def lower(
        self,
        b: Builder,
        x: Array,
        w: Array,
        *,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> Array:
        kernel = w.shape[2:]
        sizes = conv_sizes(x.shape[2:], kernel, stride, padding, dilation)
        full = (x.shape[0], w.shape[0], *sizes)
        if is_depthwise(w.shape[1], kernel, groups):
            each = dim(w.shape[0] // groups)
            return by_taps(
                b, padded_input(b, x, padding), w, full,
                lambda i, tap: (
                    (i[0], i[1] // each, *_along(i[2:], stride, tap, dilation)),
                    (i[1], dim(0), *map(dim, tap)),
                ),
            )  # fmt: skip
        by_tiles = has_tiles(full, w.shape[1], kernel, stride, dilation, groups, x.dtype)
        if by_tiles:
            xp = tiled_input(b, x, padding, sizes)
        else:
            xp = padded_input(b, x, padding)
        g = Grouped(groups, full, split=1)
        n, o, *p = g.index
        c, *k = b.axes(1 + len(kernel), start=g.rank)
        at = [i * s + j * d for i, s, j, d in zip(p, stride, k, dilation, strict=True)]
        acc = accumulator(x.dtype)
        out = b.contraction(
            g.shape,
            x.dtype,
            batch=g.batch,
            m=(g.place[1],),
            n=(g.place[0], *g.place[2:]),
            k=w.shape[1:],
            a=load(w, (o, c, *k)).cast(acc),
            b=load(xp, (n, g.channel(c, w.shape[1]), *at)).cast(acc),
            acc=acc,
            winograd=by_tiles,
        )
        return g.join(b, out)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        x = ctx.type(inputs[0])
        self.expect(
            x.dtype.is_floating_point, f"no ONNX form for integers; got {x}; convert to a float"
        )
        return ctx.node("Conv", inputs, **onnx_attributes(ctx.type(inputs[1]).shape[2:], attrs))

    def samples(self) -> Iterable[Sample]:
        for x, w, attrs, note in conv_cases():
            yield Sample((x, w), attrs, note)
        x, w, attrs, _ = next(conv_cases())
        yield Sample((strided(x), strided(w)), attrs, "strided")
        half = (x.astype(np.float16), w.astype(np.float16))
        yield Sample(half, attrs, "float16", grad=False)
        brain = tuple(h.astype(dtypes.bfloat16.np) for h in half)
        yield Sample(brain, attrs, "bfloat16", grad=False)
        ints = (integers(x.shape, "int32"), integers(w.shape, "int32", seed=1))
        yield Sample(ints, attrs, "integers", grad=False)


class ConvInputGrad(ConvByWeight):
    """conv_input_grad(y, w; shape, ...) -> (N, C, *shape): conv transposed in its input.

    `shape` holds the spatial sizes of conv's input (several share one output size). As a forward op
    it is the transposed convolution.
    """

    name = "conv_input_grad"

    def infer(
        self,
        y: TensorType,
        w: TensorType,
        *,
        shape: Shape,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> TensorType:
        self.expect(
            y.ndim == w.ndim == len(shape) + 2,
            f"expected an output gradient (N, O, *output) and a weight (O, C / groups, *kernel) "
            f"for spatial shape {shape}; got {y} and {w}",
        )
        x = y.with_shape((y.shape[0], w.shape[1] * groups, *shape))
        self.check(x, w, stride, padding, dilation, groups)
        check_multiply(self, y, w)
        attrs = {"stride": stride, "padding": padding, "dilation": dilation}
        self.check_output(y, self.output_shape(x, w, **attrs), attrs)
        return x

    def reference(
        self,
        y: np.ndarray,
        w: np.ndarray,
        *,
        shape: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> np.ndarray:
        kernel, sizes, count = w.shape[2:], y.shape[2:], y.shape[0]
        acc = compute_dtype(y.dtype)
        channels = w.shape[1] * groups
        spatial = [
            max(n + 2 * p, (q - 1) * s + (k - 1) * d + 1)
            for n, p, q, s, k, d in zip(
                shape, padding, sizes, stride, kernel, dilation, strict=True
            )
        ]
        out = np.zeros((count, channels, *spatial), acc)
        if out.size and w.size and y.size:
            rows = w.astype(acc, copy=False).reshape(groups, w.shape[0] // groups, -1)
            cols = np.matmul(
                rows.transpose(0, 2, 1),
                y.astype(acc, copy=False).reshape(count, groups, w.shape[0] // groups, -1),
            ).reshape(count, channels, *kernel, *sizes)
            for k in np.ndindex(*kernel):
                where = tuple(
                    slice(i * d, i * d + (q - 1) * s + 1, s)
                    for i, d, q, s in zip(k, dilation, sizes, stride, strict=True)
                )
                out[in_last_dims(where)] += cols[(slice(None), slice(None), *k)]
        crop = tuple(slice(p, p + n) for p, n in zip(padding, shape, strict=True))
        return np.ascontiguousarray(out[in_last_dims(crop)]).astype(y.dtype, copy=False)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return types[0].numel * (types[1].numel // types[1].shape[0])

    def vjp(
        self, g: Any, out: Any, y: Any, w: Any, *, shape: Shape, **attrs: Any
    ) -> tuple[Any, ...]:
        return (
            op.conv(g, w, **attrs),
            op.conv_weight_grad(g, y, kernel=w.shape[2:], **attrs),
        )

    def lower(
        self,
        b: Builder,
        y: Array,
        w: Array,
        *,
        shape: Shape,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> Array:
        if has_phases(w.shape[2:], stride, dilation):
            return by_phase(b, y, w, shape, stride, padding, dilation, groups)
        # With y stride-dilated and padded so that position 0 holds what the last kernel element
        # sends to x[0], this is a plain convolution with the kernel reversed.
        kernel = w.shape[2:]
        reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        low = [r - p for r, p in zip(reach, padding, strict=True)]
        high = [
            n + r - lo - span(q, s)
            for n, r, lo, q, s in zip(shape, reach, low, y.shape[2:], stride, strict=True)
        ]
        full = (y.shape[0], w.shape[1] * groups, *shape)
        by_tiles = has_tiles(full, w.shape[0], kernel, stride, dilation, groups, y.dtype)
        if by_tiles:
            yd = tiled_input(b, y, low, shape)
        else:
            yd = padded(b, y, (0, 0, *low), (0, 0, *high), (1, 1, *stride), 0)
        if is_depthwise(w.shape[1], kernel, groups) and w.shape[0] == groups:
            ones = (1,) * len(kernel)
            return by_taps(
                b, yd, w, full,
                lambda i, tap: (
                    (i[0], i[1], *_along(i[2:], ones, tap, dilation)),
                    (i[1], dim(0), *(dim(n - 1 - k) for n, k in zip(kernel, tap, strict=True))),
                ),
            )  # fmt: skip
        g = Grouped(groups, full, split=1)
        n, _, *h = g.index
        o, *k = b.axes(1 + len(kernel), start=g.rank)
        per_group = w.shape[0] // groups
        at = [i + j * d for i, j, d in zip(h, k, dilation, strict=True)]
        reversed_k = [dim(size - 1) - j for size, j in zip(kernel, k, strict=True)]
        acc = accumulator(y.dtype)
        out = b.contraction(
            g.shape,
            y.dtype,
            batch=g.batch,
            m=(g.place[1],),
            n=(g.place[0], *g.place[2:]),
            k=(per_group, *kernel),
            a=load(w, (g.channel(o, per_group), g.within, *reversed_k)).cast(acc),
            b=load(yd, (n, g.channel(o, per_group), *at)).cast(acc),
            acc=acc,
            winograd=by_tiles,
        )
        return g.join(b, out)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, shape: Shape, **attrs: Any) -> Any:
        y, w = (ctx.type(name) for name in inputs)
        given = onnx_attributes(w.shape[2:], attrs)
        extra = [
            n - ((q - 1) * s + span(k, d) - 2 * p)
            for n, q, s, k, d, p in zip(
                shape, y.shape[2:], attrs["stride"], w.shape[2:], attrs["dilation"],
                attrs["padding"], strict=True,
            )
        ]  # fmt: skip
        if any(isinstance(e, Sym) for e in extra):
            raise RuntimeError(
                f"[conv_input_grad] no ONNX form for symbolic spatial sizes; got {y} and shape "
                f"{shape}; export with fixed sizes"
            )
        return ctx.node("ConvTranspose", inputs, output_padding=extra, **given)

    def samples(self) -> Iterable[Sample]:
        for x, w, attrs, note in conv_cases():
            sizes = conv_sizes(x.shape[2:], w.shape[2:], *geometry(attrs))
            y = uniform((x.shape[0], w.shape[0], *(hint(n) for n in sizes)), seed=2)
            yield Sample((y, w), {**attrs, "shape": x.shape[2:]}, note)


class ConvWeightGrad(ConvBase):
    """conv_weight_grad(x, y; kernel, ...) -> (O, C / groups, *kernel): conv transposed in w."""

    name = "conv_weight_grad"

    def infer(
        self,
        x: TensorType,
        y: TensorType,
        *,
        kernel: Shape,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> TensorType:
        self.expect(
            x.ndim == y.ndim == len(kernel) + 2,
            f"expected an input (N, C, *spatial) and an output gradient (N, O, *output) for kernel "
            f"{kernel}; got {x} and {y}",
        )
        self.expect(
            x.shape[1] % groups == 0,
            f"expected channels that divide into {groups} groups; got {x}",
        )
        w = x.with_shape((y.shape[1], x.shape[1] // groups, *kernel))
        self.check(x, w, stride, padding, dilation, groups)
        check_multiply(self, x, y)
        attrs = {"stride": stride, "padding": padding, "dilation": dilation}
        self.check_output(y, self.output_shape(x, w, **attrs), attrs)
        return w

    def reference(
        self,
        x: np.ndarray,
        y: np.ndarray,
        *,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> np.ndarray:
        outputs, inputs = y.shape[1], x.shape[1] // groups
        acc = compute_dtype(x.dtype)
        out = np.zeros((groups, outputs // groups, inputs * int(np.prod(kernel))), acc)
        if out.size and y.size:
            rows = y.astype(acc, copy=False).reshape(y.shape[0], groups, outputs // groups, -1)
            for part, cols in columns(x, kernel, stride, padding, dilation, groups):
                out += np.matmul(rows[part], cols.swapaxes(-1, -2)).sum(axis=0, dtype=acc)
        return out.reshape(outputs, inputs, *kernel).astype(x.dtype, copy=False)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return types[1].numel * (outs[0].numel // outs[0].shape[0])

    def vjp(
        self, g: Any, out: Any, x: Any, y: Any, *, kernel: Shape, **attrs: Any
    ) -> tuple[Any, ...]:
        return (
            op.conv_input_grad(y, g, shape=x.shape[2:], **attrs),
            op.conv(x, g, **attrs),
        )

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        x, y = align_batch(operands, batched)
        attrs["groups"] *= x.shape[0]
        out = op.conv_weight_grad(fold_batch(x, 1), fold_batch(y, 1), **attrs)
        return op.reshape(out, shape=(x.shape[0], out.shape[0] // x.shape[0], *out.shape[1:]))

    def lower(
        self,
        b: Builder,
        x: Array,
        y: Array,
        *,
        kernel: Shape,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int,
    ) -> Array:
        xp = padded_input(b, x, padding)
        inputs = x.shape[1] // groups
        if is_depthwise(inputs, kernel, groups):
            each = dim(y.shape[1] // groups)
            rank = 2 + len(kernel)
            o, _, *k = b.axes(rank)
            n, *p = b.axes(1 + len(kernel), start=rank)
            at = [i * s + j * d for i, s, j, d in zip(p, stride, k, dilation, strict=True)]
            acc = accumulator(x.dtype)
            product = load(y, (n, o, *p)).cast(acc) * load(xp, (n, o // each, *at)).cast(acc)
            over = (y.shape[0], *y.shape[2:])
            full = (y.shape[1], 1, *kernel)
            return rounded(b, b.reduction(full, over, product, "sum"), x.dtype)
        g = Grouped(groups, (y.shape[1], inputs, *kernel), split=0)
        o, c, *k = g.index
        n, *p = b.axes(1 + len(kernel), start=g.rank)
        at = [i * s + j * d for i, s, j, d in zip(p, stride, k, dilation, strict=True)]
        acc = accumulator(x.dtype)
        out = b.contraction(
            g.shape,
            x.dtype,
            batch=g.batch,
            m=(g.place[0],),
            n=g.place[1:],
            k=(y.shape[0], *y.shape[2:]),
            a=load(y, (n, o, *p)).cast(acc),
            b=load(xp, (n, g.channel(c, inputs), *at)).cast(acc),
            acc=acc,
        )
        return g.join(b, out)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, kernel: Shape, **attrs: Any) -> Any:
        # x as a batch of its channels, y as the kernel: (Cg, G * N, *) * (O, N, *) -> (Cg, O, *)
        x, y = (ctx.type(name) for name in inputs)
        groups, rank = attrs["groups"], len(kernel)
        inputs_per_group = x.shape[1] // groups
        split = (x.shape[0], groups, inputs_per_group, *x.shape[2:])
        xs = ctx.node("Reshape", [inputs[0], ctx.shape(split)], allowzero=1)
        spatial = list(range(3, 3 + rank))
        xs = ctx.node("Transpose", [xs], perm=[2, 1, 0, *spatial])
        merged = (inputs_per_group, groups * x.shape[0], *x.shape[2:])
        xs = ctx.node("Reshape", [xs, ctx.shape(merged)], allowzero=1)
        swap = [1, 0, *range(2, 2 + rank)]
        ys = ctx.node("Transpose", [inputs[1]], perm=swap)
        out = ctx.node(
            "Conv", [xs, ys], strides=list(attrs["dilation"]), dilations=list(attrs["stride"]),
            pads=[*attrs["padding"], *attrs["padding"]], group=groups,
        )  # fmt: skip
        parts = [ctx.shape((0,) * rank), ctx.shape(kernel), ctx.shape(tuple(range(2, 2 + rank)))]
        out = ctx.node("Slice", [out, *parts])
        return ctx.node("Transpose", [out], perm=swap)

    def samples(self) -> Iterable[Sample]:
        for x, w, attrs, note in conv_cases():
            sizes = conv_sizes(x.shape[2:], w.shape[2:], *geometry(attrs))
            y = uniform((x.shape[0], w.shape[0], *(hint(n) for n in sizes)), seed=2)
            yield Sample((x, y), {**attrs, "kernel": w.shape[2:]}, note)


conv = Conv()
conv_input_grad = ConvInputGrad()
conv_weight_grad = ConvWeightGrad()
