"""Dims made of stretches of the operand's own: take_stretches, and its adjoint add_stretches.

What padding by reflection, replication and in a circle reads with. Where each element comes from is
known by form, so code can treat a stretch as a loop of its own, and the derivative is a sum of
reads, not a scatter.
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
    load,
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, is_half, op
from jitgrad.compiler.ops.regions import accumulator, rounded
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Shape = tuple[Dim, ...]
Stretch = tuple[int, int, int]
"""(start, step, count): the elements start, start + step, ...; step is 1, -1 or 0."""
Stretches = tuple[tuple[Stretch, ...], ...]
"""For each dim the stretches that it is made of, one after another; none: it stays as it is."""


class _Stretches(Op):
    linear = True

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 4 * outs[0].numel

    def check(self, x: TensorType, stretches: Stretches, sizes: Sequence[Dim]) -> None:
        self.expect(
            len(stretches) == x.ndim, f"expected stretches for each dim of {x}; got {stretches}"
        )
        for n, dim in zip(sizes, stretches, strict=True):
            ends = [(start, start + step * (count - 1), step, count) for start, step, count in dim]
            self.expect(
                all(
                    min(a, b) >= 0 and max(a, b) < n and abs(step) <= 1 and count >= 1
                    for a, b, step, count in ends
                ),
                f"expected stretches (start, step, count) of elements in [0, {n}); got {dim}",
            )


class TakeStretches(_Stretches):
    """take_stretches(x; stretches): dims of x made anew of stretches of their elements."""

    name = "take_stretches"

    def infer(self, x: TensorType, *, stretches: Stretches) -> TensorType:
        self.check(x, stretches, x.shape)
        shape = [
            sum(s[2] for s in dim) if dim else n for n, dim in zip(x.shape, stretches, strict=True)
        ]
        return x.with_shape(tuple(shape))

    def reference(self, x: np.ndarray, *, stretches: Stretches) -> np.ndarray:
        for k, dim in enumerate(stretches):
            if dim:
                x = np.take(x, _places(dim), k)
        return np.array(x)

    def vjp(self, g: Any, out: Any, x: Any, *, stretches: Stretches) -> tuple[Any, ...]:
        sizes = tuple(n if dim else 0 for n, dim in zip(x.shape, stretches, strict=True))
        return (op.add_stretches(g, stretches=stretches, sizes=sizes),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *, stretches: Stretches) -> Any:
        return op.take_stretches(tangents[0], stretches=stretches)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, stretches: Stretches
    ) -> Any:
        return op.take_stretches(operands[0], stretches=((), *stretches))

    def lower(self, b: Builder, x: Array, *, stretches: Stretches) -> Array:
        shape = [
            sum(s[2] for s in dim) if dim else n for n, dim in zip(x.shape, stretches, strict=True)
        ]
        index = [_place(axis(k), dim) if dim else axis(k) for k, dim in enumerate(stretches)]
        return b.pointwise(shape, x.dtype, load(x, index))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, stretches: Stretches) -> Any:
        x = inputs[0]
        for k, dim in enumerate(stretches):
            if dim:
                x = ctx.node("Gather", [x, ctx.constant(_places(dim))], axis=k)
        return x if any(stretches) else ctx.node("Identity", inputs)

    def samples(self) -> Iterable[Sample]:
        mirror = ((2, -1, 2), (0, 1, 4), (2, -1, 3))
        edges = ((0, 0, 3), (0, 1, 3), (2, 0, 2))
        circle = ((2, 1, 1), (0, 1, 3), (0, 1, 2))
        yield Sample((uniform((2, 4)),), {"stretches": ((), mirror)})
        yield Sample((uniform((4, 2, 3)),), {"stretches": (mirror, (), edges)})
        yield Sample((strided(uniform((3, 3))),), {"stretches": (edges, circle)}, "strided")
        yield Sample((uniform((3, 2)),), {"stretches": (((1, 1, 1),), ())}, "crops")
        yield Sample((uniform((2,)),), {"stretches": ((),)}, "as it is")
        yield Sample((uniform((0, 3)),), {"stretches": ((), circle)}, "empty")
        yield Sample((integers((3, 3), "int16"),), {"stretches": (circle, circle)}, "integers")
        nan = np.array([[np.nan, 1, np.inf]], np.float32)
        yield Sample((nan,), {"stretches": ((), edges)}, "NaN", grad=False)


class AddStretches(_Stretches):
    """add_stretches(g; stretches, sizes): what take_stretches takes from dims of these sizes, put
    back and added up; 0 where it took nothing. sizes counts for dims with stretches only.

    float16 and bfloat16 are added up in float32, dim after dim, and rounded once for each.
    """

    name = "add_stretches"

    def infer(self, g: TensorType, *, stretches: Stretches, sizes: Shape) -> TensorType:
        self.check(g, stretches, sizes)
        self.expect(
            all(
                not dim or n == sum(s[2] for s in dim)
                for n, dim in zip(g.shape, stretches, strict=True)
            ),
            f"expected a gradient as long as the stretches {stretches}; got {g}",
        )
        self.expect(g.dtype is not dtypes.bool_, f"expected numbers; got {g}", NotImplementedError)
        shape = [size if dim else n for n, dim, size in zip(g.shape, stretches, sizes, strict=True)]
        return g.with_shape(tuple(shape))

    def reference(self, g: np.ndarray, *, stretches: Stretches, sizes: Shape) -> np.ndarray:
        dtype = dtypes.from_numpy(g.dtype)
        for k, (dim, size) in enumerate(zip(stretches, sizes, strict=True)):
            if not dim:
                continue
            wide = np.moveaxis(g.astype(np.float32) if is_half(dtype) else g, k, 0)
            out, at = np.zeros((hint(size), *wide.shape[1:]), wide.dtype), 0
            for start, step, count in dim:
                part = wide[at : at + count]
                if step == 0:
                    out[start] += part.sum(0, dtype=part.dtype)
                elif step == 1:
                    out[start : start + count] += part
                else:
                    out[start - count + 1 : start + 1] += part[::-1]
                at += count
            g = np.ascontiguousarray(np.moveaxis(out, 0, k)).astype(dtype.np)
        return np.array(g)

    def vjp(
        self, g: Any, out: Any, x: Any, *, stretches: Stretches, sizes: Shape
    ) -> tuple[Any, ...]:
        return (op.take_stretches(g, stretches=stretches),)

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, x: Any, *, stretches: Stretches,
        sizes: Shape,
    ) -> Any:  # fmt: skip
        return op.add_stretches(tangents[0], stretches=stretches, sizes=sizes)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, stretches: Stretches,
        sizes: Shape,
    ) -> Any:  # fmt: skip
        return op.add_stretches(operands[0], stretches=((), *stretches), sizes=(0, *sizes))

    def lower(self, b: Builder, g: Array, *, stretches: Stretches, sizes: Shape) -> Array:
        for k, (dim, size) in enumerate(zip(stretches, sizes, strict=True)):
            if dim:
                g = _added(b, g, k, dim, size)
        return g

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, stretches: Stretches,
        sizes: Shape,
    ) -> Any:  # fmt: skip
        g, t = inputs[0], ctx.type(inputs[0])
        zero = ctx.constant(np.zeros((), t.dtype.np))

        def along(*values: int) -> str:
            return ctx.constant(np.array(values, np.int64))

        for k, (dim, size) in enumerate(zip(stretches, sizes, strict=True)):
            total, at = "", 0
            for start, step, count in dim:
                bounds = (
                    (at + count - 1, at - 1 - (at == 0) * 2**40) if step < 0 else (at, at + count)
                )
                part = ctx.node(
                    "Slice",
                    [g, along(bounds[0]), along(bounds[1]), along(k), along(-1 if step < 0 else 1)],
                )
                first, last = start, start + 1
                if step == 0:
                    part = ctx.node("ReduceSum", [part, along(k)], keepdims=1)
                elif step > 0:
                    last = start + count
                else:
                    first = start - count + 1
                pads: list[Dim] = [0] * (2 * t.ndim)
                pads[k], pads[t.ndim + k] = first, size - last
                part = ctx.node("Pad", [part, ctx.shape(pads), zero])
                total = ctx.node("Add", [total, part]) if total else part
                at += count
            g = total or g
        return g if any(stretches) else ctx.node("Identity", inputs)

    def samples(self) -> Iterable[Sample]:
        for s in take_stretches.samples():
            (x,), stretches = s.args, s.attrs["stretches"]
            g = take_stretches.reference(x, **s.attrs)
            sizes = tuple(n if dim else 0 for n, dim in zip(x.shape, stretches, strict=True))
            yield Sample((g,), {"stretches": stretches, "sizes": sizes}, s.note, grad=s.grad)
        for dtype in (np.float16, dtypes.bfloat16.np):
            attrs = {"stretches": (((1, -1, 2), (0, 1, 3), (2, 0, 40)),), "sizes": (4,)}
            yield Sample((uniform((45,)).astype(dtype),), attrs, f"{dtype}", grad=False)


def _places(dim: Sequence[Stretch]) -> np.ndarray:
    return np.concatenate([start + step * np.arange(count) for start, step, count in dim])


def _place(at: Expr, dim: Sequence[Stretch]) -> Expr:
    """The element that is at place `at` of a dim of these stretches."""
    ends = np.cumsum([count for _, _, count in dim])
    found: Expr | None = None
    for (start, step, count), end in zip(reversed(dim), reversed(ends), strict=True):
        here = (at - int(end - count)) * step + start
        found = here if found is None else select(at < int(end), here, found)
    assert found is not None
    return found


def _added(b: Builder, g: Array, k: int, dim: Sequence[Stretch], size: Dim) -> Array:
    """The stretches of dim k put back and added up."""
    acc = accumulator(g.dtype)
    shape = [size if j == k else n for j, n in enumerate(g.shape)]
    here = b.axes(len(shape))
    total: Expr | None = None
    first = 0
    for start, step, count in dim:
        if step == 0:
            part = _sum(b, g, k, first, count, acc)
            at, inside = const(0, INDEX), here[k].eq(start)
        else:
            part, place = g, (here[k] - start) * step
            inside = (place >= 0) & (place < count)
            at = make("min", make("max", place, const(0, INDEX)), const(count - 1, INDEX)) + first
        value = load(part, (*here[:k], at, *here[k + 1 :])).cast(acc)
        value = select(inside, value, 0)
        total = value if total is None else total + value
        first += count
    assert total is not None
    return rounded(b, b.pointwise(shape, acc, total), g.dtype)


def _sum(b: Builder, g: Array, k: int, first: int, count: int, acc: dtypes.DType) -> Array:
    """The sum of the elements [first, first + count) of dim k, which is 1 long in it."""
    shape = [1 if j == k else n for j, n in enumerate(g.shape)]
    index = [axis(g.ndim) + first if j == k else axis(j) for j in range(g.ndim)]
    order = "lanes" if k == g.ndim - 1 else "columns"
    return b.reduction(shape, (count,), load(g, index).cast(acc), "sum", order)


take_stretches = TakeStretches()
add_stretches = AddStretches()
