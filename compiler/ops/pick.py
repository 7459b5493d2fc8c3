"""The records `pick` and `resample`: reads along one axis by a table whose inverse is known.

What interpolation and adaptive pooling read with. Their tables are constants made from shapes, so
the inverse is made with them, and the derivative is a gather and a sum instead of a scatter: it
runs in parallel, and its additions have one order.
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
    load,
    make,
    select,
)
from jitgrad.compiler.loops import (
    axis as number,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op, same_shape
from jitgrad.compiler.ops.regions import accumulator, is_empty, readable, rounded
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

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 4 * outs[0].numel

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
        return _batched(op.pick, operands, batched, axis)

    def lower(
        self, b: Builder, x: Array, rows: Array, inverse: Array, index: Array, *, axis: int
    ) -> Array:
        shape: tuple[Dim, ...] = (*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :])
        if is_empty(x.shape):
            return b.pointwise(shape, x.dtype, const(0, x.dtype))
        at = b.axes(len(shape))
        row = load(rows, at[axis : axis + 2]).cast(INDEX)
        safe = readable(make("max", row, const(0, INDEX)), x.shape[axis])
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


class Resample(Op):
    """resample(x, rows, weights, back, back_weights; axis): weighted sums along a dim of x.

    rows and weights (k, m): element i of the result is the sum of weights[j, i] * x[rows[j, i]],
    in the order of j; rows is int64, -1 stands for nothing, and the weights are constants of x's
    dtype. back and back_weights (r, n) say the same of the derivative: which elements of the
    result read element i of x, and with what weights.
    """

    name = "resample"
    saves = (1, 2, 3, 4)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 6 * types[1].shape[0] * outs[0].numel

    def infer(
        self, x: TensorType, rows: TensorType, weights: TensorType, back: TensorType,
        back_weights: TensorType, *, axis: int,
    ) -> TensorType:  # fmt: skip
        self.same_device((x, rows, weights, back, back_weights))
        self.expect(0 <= axis < x.ndim, f"expected an axis of {x}; got {axis}", IndexError)
        self.expect(
            all(t.ndim == 2 for t in (rows, back))
            and rows.dtype is back.dtype is dtypes.int64
            and weights.dtype is back_weights.dtype is x.dtype
            and same_shape(rows.shape, weights.shape)
            and same_shape(back.shape, back_weights.shape)
            and back.shape[1] == x.shape[axis],
            f"expected int64 tables (k, m) and (r, n) for n elements along axis {axis}, and as "
            f"many weights; got {x}, {rows}, {weights}, {back} and {back_weights}",
        )
        return x.with_shape((*x.shape[:axis], rows.shape[1], *x.shape[axis + 1 :]))

    def reference(
        self, x: np.ndarray, rows: np.ndarray, weights: np.ndarray, back: np.ndarray,
        back_weights: np.ndarray, *, axis: int,
    ) -> np.ndarray:  # fmt: skip
        out = np.zeros((*x.shape[:axis], rows.shape[1], *x.shape[axis + 1 :]), x.dtype)
        if not x.shape[axis]:
            return out
        tail = (1,) * (x.ndim - axis - 1)
        for row, weight in zip(rows, weights, strict=True):
            part = np.take(x, np.maximum(row, 0), axis) * weight.reshape(-1, *tail)
            out += np.where((row >= 0).reshape(-1, *tail), part, np.zeros((), x.dtype))
        return out

    def vjp(self, g: Any, out: Any, x: Any, *tables: Any, axis: int) -> tuple[Any, ...]:
        rows, weights, back, back_weights = tables
        gx = op.resample(g, back, back_weights, rows, weights, axis=axis)
        return gx, None, None, None, None

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *tables: Any, axis: int) -> Any:
        return None if tangents[0] is None else op.resample(tangents[0], *tables, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        return _batched(op.resample, operands, batched, axis)

    def lower(
        self, b: Builder, x: Array, rows: Array, weights: Array, back: Array, back_weights: Array,
        *, axis: int,
    ) -> Array:  # fmt: skip
        shape = (*x.shape[:axis], rows.shape[1], *x.shape[axis + 1 :])
        if is_empty(x.shape) or is_empty(rows.shape):
            return b.pointwise(shape, x.dtype, const(0, x.dtype))
        at = b.axes(len(shape))
        tap = (number(len(shape)), at[axis])
        row = load(rows, tap).cast(INDEX)
        safe = readable(make("max", row, const(0, INDEX)), x.shape[axis])
        acc = accumulator(x.dtype)
        part = (load(x, (*at[:axis], safe, *at[axis + 1 :])) * load(weights, tap)).cast(acc)
        body = select(row >= 0, part, 0)
        total = b.reduction(shape, (rows.shape[0],), body, "sum", "columns")
        return rounded(b, total, x.dtype)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        x, rows = ctx.type(inputs[0]), ctx.type(inputs[1])
        zero = ctx.constant(np.array(0, np.int64))
        parts = ctx.node("Gather", [inputs[0], ctx.node("Max", [inputs[1], zero])], axis=axis)
        rest = ctx.shape((*rows.shape, *([1] * (x.ndim - axis - 1))))
        real = ctx.node("GreaterOrEqual", [inputs[1], zero])
        real = ctx.node("Reshape", [real, rest], allowzero=1)
        parts = ctx.node("Mul", [parts, ctx.node("Reshape", [inputs[2], rest], allowzero=1)])
        parts = ctx.node("Where", [real, parts, ctx.constant(np.zeros((), x.dtype.np))])
        return ctx.node("ReduceSum", [parts, ctx.constant(np.array([axis], np.int64))], keepdims=0)

    def samples(self) -> Iterable[Sample]:
        rows = np.array([[0, 0, 2], [1, -1, 3]])
        back = np.array([[0, 0, 2, 2], [1, -1, -1, -1]])
        weights = np.array([[0.25, 1.0, 0.5], [0.75, 0.0, -0.5]])
        back_weights = np.array([[0.25, 0.75, 0.5, -0.5], [1.0, 0.0, 0.0, 0.0]])

        def tables(dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
            return rows, weights.astype(dtype), back, back_weights.astype(dtype)

        # the derivative by x alone (tests/test_spatial.py checks it): the weights are constants
        x = uniform((2, 4, 3))
        yield Sample((x, *tables()), {"axis": 1}, grad=False)
        yield Sample((x[..., 0], *tables()), {"axis": 1}, "last dim", grad=False)
        yield Sample((strided(uniform((3, 4))), *tables()), {"axis": 1}, "strided", grad=False)
        yield Sample((x[:0], *tables()), {"axis": 1}, "empty", grad=False)
        for dtype in (np.float64, np.float16, dtypes.bfloat16.np):
            x = uniform((4, 2)).astype(dtype)
            yield Sample((x, *tables(dtype)), {"axis": 0}, f"{np.dtype(dtype)}", grad=False)
        special = np.array([[np.nan, 1], [np.inf, 2], [1, -np.inf], [0, 1]], np.float32)
        yield Sample((special, *tables()), {"axis": 0}, "NaN and infinity", grad=False)


def _batched(record: Any, operands: Sequence[Any], batched: Sequence[bool], axis: int) -> Any:
    """A record of x and tables, mapped over a leading axis: where tables have it, one by one."""
    x, *tables = operands
    if batched[0] and not any(batched[1:]):
        return record(x, *tables, axis=axis + 1)
    size = next(t.shape[0] for t, is_b in zip(operands, batched, strict=True) if is_b)
    parts = []
    for i in range(int(size)):
        given = (_row(t, i) if b else t for t, b in zip(operands, batched, strict=True))
        part = record(*given, axis=axis)
        parts.append(op.reshape(part, shape=(1, *part.shape)))
    return op.concatenate(*parts, axis=0)


def _row(x: Any, i: int) -> Any:
    """x[i]."""
    starts, stops = (i, *([0] * (x.ndim - 1))), (i + 1, *x.shape[1:])
    part = op.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
    return op.reshape(part, shape=x.shape[1:])


pick = Pick()
resample = Resample()
