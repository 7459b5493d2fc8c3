"""The record `pick`: a gather along one axis by a table whose inverse is known.

What resampling, padding with the input's own elements and adaptive pooling read with. Their tables
are constants made from shapes, so the inverse is made with them, and the derivative is a gather
and a sum instead of a scatter: it runs in parallel, and its additions have one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    const,
    dim,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op, same_shape
from jitgrad.compiler.ops.regions import is_empty
from jitgrad.compiler.symbolic import Dim
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes


class Pick(Op):
    """pick(x, rows, inverse, index; axis): dim `axis` of x, of size n, becomes (k, m).

    Tables are int64, and -1 stands for nothing, which reads 0. rows (k, m) says what is read.
    inverse (r, n) holds in column j the row-major numbers of the elements of rows that hold j.
    index (k, m) holds where in inverse, by row-major number, each element of rows is told of. What
    is summed afterwards, k, comes first: then neighbours in memory are summed beside each other.
    """

    name = "pick"
    saves = (2, 3)

    def infer(
        self, x: TensorType, rows: TensorType, inverse: TensorType, index: TensorType, *, axis: int
    ) -> TensorType:
        self.same_device((x, rows, inverse, index))
        self.expect(0 <= axis < x.ndim, f"expected an axis of {x}; got {axis}", IndexError)
        self.expect(
            all(t.ndim == 2 and t.dtype is dtypes.int64 for t in (rows, inverse, index))
            and x.shape[axis] == inverse.shape[1]
            and same_shape(rows.shape, index.shape),
            f"expected int64 tables (k, m), (r, n) and (k, m) for n rows along axis {axis}; got "
            f"{x}, {rows}, {inverse} and {index}",
        )
        return x.with_shape((*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :]))

    def reference(
        self, x: np.ndarray, rows: np.ndarray, inverse: np.ndarray, index: np.ndarray, *, axis: int
    ) -> np.ndarray:
        if not x.shape[axis]:
            return np.zeros((*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :]), x.dtype)
        out = np.take(x, np.maximum(rows, 0), axis)
        nothing = rows < 0
        if nothing.any():
            key: tuple[Any, ...] = (*(slice(None) for _ in range(axis)), nothing)
            out[key] = 0
        return np.ascontiguousarray(out)

    def vjp(
        self, g: Any, out: Any, x: Any, rows: Any, inverse: Any, index: Any, *, axis: int
    ) -> tuple[Any, ...]:
        count = index.shape[0] * index.shape[1]
        flat = op.reshape(g, shape=(*g.shape[:axis], count, *g.shape[axis + 2 :]))
        parts = op.pick(flat, inverse, op.reshape(index, shape=(1, count)), inverse, axis=axis)
        return op.sum(parts, axes=(axis,), keepdim=False), None, None, None

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *tables: Any, axis: int) -> Any:
        return None if tangents[0] is None else op.pick(tangents[0], *tables, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        x, *tables = operands
        if batched[0] and not any(batched[1:]):
            return op.pick(x, *tables, axis=axis + 1)
        size = next(t.shape[0] for t, is_b in zip(operands, batched, strict=True) if is_b)
        parts = []
        for i in range(int(size)):
            given = (_row(t, i) if b else t for t, b in zip(operands, batched, strict=True))
            part = op.pick(*given, axis=axis)
            parts.append(op.reshape(part, shape=(1, *part.shape)))
        return op.concatenate(*parts, axis=0)

    def lower(
        self, b: Builder, x: Array, rows: Array, inverse: Array, index: Array, *, axis: int
    ) -> Array:
        shape: tuple[Dim, ...] = (*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :])
        if is_empty(x.shape):
            return b.pointwise(shape, x.dtype, const(0, x.dtype))
        at = b.axes(len(shape))
        row = load(rows, at[axis : axis + 2]).cast(INDEX)
        safe = make("min", make("max", row, const(0, INDEX)), dim(x.shape[axis] - 1))
        value = load(x, (*at[:axis], safe, *at[axis + 2 :]))
        return b.pointwise(shape, x.dtype, select(row >= 0, value, 0))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        x, rows = ctx.type(inputs[0]), ctx.type(inputs[1])
        zero = ctx.constant(np.array(0, np.int64))
        out = ctx.node("Gather", [inputs[0], ctx.node("Max", [inputs[1], zero])], axis=axis)
        real = ctx.node("GreaterOrEqual", [inputs[1], zero])
        rest = [1] * (x.ndim - axis - 1)
        real = ctx.node("Reshape", [real, ctx.shape((*rows.shape, *rest))], allowzero=1)
        return ctx.node("Where", [real, out, ctx.constant(np.zeros((), x.dtype.np))])

    def samples(self) -> Iterable[Sample]:
        rows = np.array([[0, 0, 2], [1, -1, 2], [2, 2, -1]])
        inverse = np.array([[0, 3, 6, -1], [1, -1, 7, -1], [-1, -1, 2, -1], [-1, -1, 5, -1]])
        index = np.array([[0, 4, 10], [1, -1, 14], [2, 6, -1]])
        tables = rows, inverse, index
        x = uniform((2, 4, 3))
        yield Sample((x, *tables), {"axis": 1})
        yield Sample((uniform((4,)), *tables), {"axis": 0}, "one dim")
        yield Sample((strided(uniform((3, 4))), *tables), {"axis": 1}, "strided")
        yield Sample((x[:0], *tables), {"axis": 1}, "empty")
        nan = np.full((4, 2), np.nan, np.float32)
        yield Sample((nan, *tables), {"axis": 0}, "NaN", grad=False)
        yield Sample((integers((4, 2), "int32"), *tables), {"axis": 0}, "integers")
        one = np.array([[0, 0]]), np.array([[0], [1]]), np.array([[0, 1]])
        yield Sample((uniform((1, 3)), *one), {"axis": 0}, "one row, read twice")
        none = np.zeros((2, 0), np.int64)
        yield Sample((x, none, inverse * 0 - 1, none), {"axis": 1}, "no reads")


def _row(x: Any, i: int) -> Any:
    """x[i]."""
    starts, stops = (i, *([0] * (x.ndim - 1))), (i + 1, *x.shape[1:])
    part = op.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
    return op.reshape(part, shape=x.shape[1:])


pick = Pick()
