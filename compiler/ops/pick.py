"""The record `pick`: a gather along one axis by a table whose inverse is known.

What resampling, padding with the input's own elements and adaptive pooling read with. Their tables
are constants made from shapes, so the inverse is made with them, and the derivative is a gather
and a sum instead of a scatter: it runs in parallel, and its additions have one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import INDEX, Array, Builder, const, dim, load, make, select
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op
from jitgrad.compiler.ops.regions import is_empty
from jitgrad.compiler.symbolic import Dim
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes


class Pick(Op):
    """pick(x, index, inverse; axis): dim `axis` of x, of size n, becomes (m, k).

    index, int64 (m, k), and inverse, int64 (n, r), name each other's elements by row-major number:
    element e of index holds f = j * r + s to read row j of x, and element f of inverse holds e.
    -1 stands for nothing in both: it reads 0. So index alone says what is read: row index // r.
    """

    name = "pick"
    saves = (1, 2)

    def infer(
        self, x: TensorType, index: TensorType, inverse: TensorType, *, axis: int
    ) -> TensorType:
        self.same_device((x, index, inverse))
        self.expect(0 <= axis < x.ndim, f"expected an axis of {x}; got {axis}", IndexError)
        self.expect(
            index.ndim == inverse.ndim == 2
            and index.dtype is inverse.dtype is dtypes.int64
            and x.shape[axis] == inverse.shape[0],
            f"expected int64 tables (m, k) and (n, r) for n rows along axis {axis}; got {x}, "
            f"{index} and {inverse}",
        )
        return x.with_shape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))

    def reference(
        self, x: np.ndarray, index: np.ndarray, inverse: np.ndarray, *, axis: int
    ) -> np.ndarray:
        out = np.take(x, np.maximum(index, 0) // inverse.shape[1], axis) if x.shape[axis] else (
            np.zeros((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
        )  # fmt: skip
        nothing = index < 0
        if nothing.any():
            key: tuple[Any, ...] = (*(slice(None) for _ in range(axis)), nothing)
            out[key] = 0
        return np.ascontiguousarray(out)

    def vjp(
        self, g: Any, out: Any, x: Any, index: Any, inverse: Any, *, axis: int
    ) -> tuple[Any, ...]:
        m, k = index.shape
        flat = op.reshape(g, shape=(*g.shape[:axis], m * k, *g.shape[axis + 2 :]))
        rows = op.reshape(index, shape=(m * k, 1))
        parts = op.pick(flat, inverse, rows, axis=axis)
        return op.sum(parts, axes=(axis + 1,), keepdim=False), None, None

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, x: Any, index: Any, inverse: Any, *, axis: int
    ) -> Any:
        return None if tangents[0] is None else op.pick(tangents[0], index, inverse, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        x, index, inverse = operands
        if batched[0] and not any(batched[1:]):
            return op.pick(x, index, inverse, axis=axis + 1)
        size = next(t.shape[0] for t, is_b in zip(operands, batched, strict=True) if is_b)
        parts = [
            op.pick(*(_row(t, i) if b else t for t, b in zip(operands, batched, strict=True)),
                    axis=axis)
            for i in range(int(size))
        ]  # fmt: skip
        return op.concatenate(*(op.reshape(p, shape=(1, *p.shape)) for p in parts), axis=0)

    def lower(self, b: Builder, x: Array, index: Array, inverse: Array, *, axis: int) -> Array:
        shape: tuple[Dim, ...] = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        if is_empty(x.shape):
            return b.pointwise(shape, x.dtype, const(0, x.dtype))
        at = b.axes(len(shape))
        place = load(index, at[axis : axis + 2]).cast(INDEX)
        row = make("max", place, const(0, INDEX)) // dim(inverse.shape[1])
        row = make("min", row, dim(x.shape[axis] - 1))
        value = load(x, (*at[:axis], row, *at[axis + 2 :]))
        return b.pointwise(shape, x.dtype, select(place >= 0, value, 0))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        x, index, inverse = (ctx.type(name) for name in inputs)
        zero = ctx.constant(np.array(0, np.int64))
        width = ctx.shape(inverse.shape[1:])
        row = ctx.node("Div", [ctx.node("Max", [inputs[1], zero]), width])
        out = ctx.node("Gather", [inputs[0], row], axis=axis)
        real = ctx.node("GreaterOrEqual", [inputs[1], zero])
        rest = [1] * (x.ndim - axis - 1)
        real = ctx.node("Reshape", [real, ctx.shape((*index.shape, *rest))], allowzero=1)
        return ctx.node("Where", [real, out, ctx.constant(np.zeros((), x.dtype.np))])

    def samples(self) -> Iterable[Sample]:
        # by hand: rows 0 1 2 | 0 - 2 | 2 2 - of 4 rows
        index = np.array([[0, 4, 8], [1, -1, 9], [10, 11, -1]])
        inverse = np.array([[0, 3, -1, -1], [1, -1, -1, -1], [2, 5, 6, 7], [-1, -1, -1, -1]])
        x = uniform((2, 4, 3))
        yield Sample((x, index, inverse), {"axis": 1})
        yield Sample((uniform((4,)), index, inverse), {"axis": 0}, "one dim")
        yield Sample((strided(uniform((3, 4))), index, inverse), {"axis": 1}, "strided")
        yield Sample((x[:0], index, inverse), {"axis": 1}, "empty")
        nan = np.full((4, 2), np.nan, np.float32)
        yield Sample((nan, index, inverse), {"axis": 0}, "NaN", grad=False)
        yield Sample((integers((4, 2), "int32"), index, inverse), {"axis": 0}, "integers")
        one = np.array([[0], [1]]), np.array([[0, 1]])
        yield Sample((uniform((1, 3)), *one), {"axis": 0}, "one row, read twice")
        yield Sample((x, np.zeros((0, 2), np.int64), inverse * 0 - 1), {"axis": 1}, "no reads")


def _row(x: Any, i: int) -> Any:
    """x[i]."""
    starts, stops = (i, *([0] * (x.ndim - 1))), (i + 1, *x.shape[1:])
    part = op.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
    return op.reshape(part, shape=x.shape[1:])


pick = Pick()
