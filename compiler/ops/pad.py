"""The record `pad`: constants before, after and between the elements of each dim, or cropping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import Array, Builder
from jitgrad.compiler.ops.examples import integers, uniform
from jitgrad.compiler.ops.movement import shape_text
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op
from jitgrad.compiler.ops.regions import guard_empty, padded, span
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.buffers import empty_array

Shape = tuple[Dim, ...]


class Pad(Op):
    """pad(x; low, high, interior, value): constants around and between the elements of each dim.

    Dim k becomes low[k] + n + (n - 1) * interior[k] + high[k] long. low and high may be negative,
    which crops; interior may not. As XLA's Pad.
    """

    name = "pad"

    def infer(
        self,
        x: TensorType,
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> TensorType:
        self.expect(
            len(low) == len(high) == len(interior) == x.ndim,
            f"expected low, high and interior for each dim of {x}; got {low}, {high}, {interior}",
        )
        self.expect(
            all(k >= 0 for k in interior), f"expected interior of at least 0; got {interior}"
        )
        shape = tuple(
            lo + span(n, k + 1) + hi
            for n, lo, hi, k in zip(x.shape, low, high, interior, strict=True)
        )
        self.expect(
            all(d >= 0 for d in shape if not isinstance(d, Sym)),
            f"padding {shape_text(low)} and {shape_text(high)} crops more than there is of {x}; "
            f"the result would have shape {shape_text(shape)}",
        )
        guard_empty((*x.shape, *shape))
        return x.with_shape(shape)

    def reference(
        self,
        x: np.ndarray,
        *,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int],
        value: float = 0,
    ) -> np.ndarray:
        shape, target, source = [], [], []
        for n, lo, hi, k in zip(x.shape, low, high, interior, strict=True):
            step = k + 1
            size = lo + int(hint(span(n, step))) + hi
            first = -(lo // step) if lo < 0 else 0  # ceil(-lo / step)
            last = min(n, (size - 1 - lo) // step + 1)
            begin = lo + first * step
            shape.append(size)
            source.append(slice(first, max(first, last)))
            target.append(slice(begin, begin + max(0, last - first) * step, step))
        out = empty_array(tuple(shape), x.dtype)  # memory that is used again
        out[...] = value
        out[tuple(target)] = x[tuple(source)]
        return out

    def vjp(
        self,
        g: Any,
        out: Any,
        x: Any,
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> tuple[Any, ...]:
        starts = list(low)
        if any(isinstance(p, Sym) or p < 0 for p in (*low, *high)):
            back, zero = tuple(-p for p in low), (0,) * x.ndim
            g = op.pad(g, low=back, high=tuple(-p for p in high), interior=zero, value=0)
            starts = [0] * x.ndim
        stops = tuple(s + span(n, k + 1) for s, n, k in zip(starts, x.shape, interior, strict=True))
        steps = tuple(k + 1 for k in interior)
        return (op.slice(g, starts=tuple(starts), stops=stops, steps=steps),)

    def jvp(
        self,
        tangents: tuple[Any, ...],
        out: Any,
        x: Any,
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> Any:
        return op.pad(tangents[0], low=low, high=high, interior=interior, value=0)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> Any:
        return op.pad(
            operands[0], low=(0, *low), high=(0, *high), interior=(0, *interior), value=value
        )

    def lower(
        self,
        b: Builder,
        x: Array,
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> Array:
        return padded(b, x, low, high, [k + 1 for k in interior], value)

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        low: Shape,
        high: Shape,
        interior: tuple[int, ...],
        value: float = 0,
    ) -> Any:
        x, t = inputs[0], ctx.type(inputs[0])
        if t.ndim == 0:
            return ctx.node("Identity", inputs)
        fill = ctx.constant(np.array(value, t.dtype.np))
        for k, gap in enumerate(interior):  # (.., n, ..) -> (.., n, 1 + gap, ..) -> (.., span, ..)
            if gap:
                x = _onnx_dilate(ctx, x, fill, t, k, gap, interior)
        return ctx.node("Pad", [x, ctx.shape((*low, *high)), fill])

    def samples(self) -> Iterable[Sample]:
        plain = {"low": (1, 0), "high": (2, 3), "interior": (0, 0), "value": 0}
        yield Sample((uniform((2, 3)),), plain)
        yield Sample((uniform((2, 3)),), {**plain, "value": 1.5})
        yield Sample((uniform((4, 5)),), {**plain, "low": (-1, 2), "high": (1, -2)}, "crops")
        yield Sample((uniform((3, 4)),), {**plain, "interior": (2, 1)}, "dilates")
        mixed = {"low": (-1, -2), "high": (-2, 1), "interior": (2, 1), "value": 0}
        yield Sample((uniform((3, 4)),), mixed, "dilates and crops")
        yield Sample((uniform((0, 3)),), plain, "empty")
        yield Sample((uniform(()),), {"low": (), "high": (), "interior": (), "value": 0}, "0-d")
        yield Sample((integers((2, 3), "int32"),), {**plain, "value": 7}, "integers")


def _onnx_dilate(
    ctx: OnnxContext,
    x: str,
    fill: str,
    t: TensorType,
    k: int,
    gap: int,
    interior: Sequence[int],
) -> str:
    """Dim k of x dilated: its elements gap + 1 apart (earlier dims are dilated already)."""
    before = [span(n, i + 1) for n, i in zip(t.shape[:k], interior, strict=False)]
    n, after = t.shape[k], list(t.shape[k + 1 :])
    x = ctx.node("Reshape", [x, ctx.shape((*before, n, 1, *after))], allowzero=1)
    rank = t.ndim + 1
    high = [0] * rank
    high[k + 1] = gap
    x = ctx.node("Pad", [x, ctx.shape((*([0] * rank), *high)), fill])
    x = ctx.node("Reshape", [x, ctx.shape((*before, n * (gap + 1), *after))], allowzero=1)
    parts = [ctx.shape((0,)), ctx.shape((span(n, gap + 1),)), ctx.shape((k,))]
    return ctx.node("Slice", [x, *parts])


pad = Pad()
