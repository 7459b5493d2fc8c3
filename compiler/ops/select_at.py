"""One element of each row, at a position that may be ignored: select_at, and its adjoint place_at.

What losses over classes read their scores with. A gather would do, but its derivative is a
scatter; here each place of the gradient is one comparison, so it fuses with what reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    const,
    load,
    select,
)
from jitgrad.compiler.ops.along_axis import grids_around, in_dim, position_grids
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.placing import expect_positions, out_of_bounds
from jitgrad.compiler.ops.record import (
    Check,
    OnnxContext,
    Op,
    Sample,
    direct_reference,
    is_half,
    op,
)
from jitgrad.compiler.ops.regions import is_empty, zero_filled
from jitgrad.compiler.symbolic import Dim
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes


def _expect_index(record: Op, x: TensorType, index: TensorType, shape: Sequence[Dim]) -> None:
    record.same_device((x, index))
    expect_positions(record, index)
    record.expect(
        index.ndim == len(shape) and all(a == b for a, b in zip(index.shape, shape, strict=True)),
        f"expected an index of shape {tuple(shape)} beside {x}; got {index}",
    )


class SelectAt(Op):
    """select_at(x, index; axis, ignore=None, text="", negate=False): x without `axis`, at index
    along it; negated, 0 - x.

    index is int64 and of the result's shape; where it is `ignore` the result is 0. text: what the
    IndexError of a position out of range says; "{value}" stands for it, "{last}" for the last one.
    """

    name = "select_at"
    saves = (1,)
    checked = True

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 8 * outs[0].numel

    def infer(
        self, x: TensorType, index: TensorType, *, axis: int, ignore: int | None = None,
        text: str = "", negate: bool = False,
    ) -> TensorType:  # fmt: skip
        self.expect(0 <= axis < x.ndim, f"expected an axis of {x}; got {axis}", IndexError)
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        _expect_index(self, x, index, shape)
        return x.with_shape(shape)

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        within = in_dim(types[0].shape, attrs["axis"])
        return [Check(1, 0, within.high, dim=within.dim, allowed=attrs.get("ignore"))]

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        text = attrs.get("text", "")
        if not text:
            return out_of_bounds(self, check, value, IndexError)
        shown = "?" if value is None else str(value)
        return IndexError(text.replace("{value}", shown).replace("{last}", str(check.high)))

    def reference(
        self, x: np.ndarray, index: np.ndarray, *, axis: int, ignore: int | None = None,
        text: str = "", negate: bool = False,
    ) -> np.ndarray:  # fmt: skip
        check = Check(1, 0, x.shape[axis] - 1, dim=axis, allowed=ignore)
        value = check.first(index)
        if value is not None:
            raise self.failed(check, value, {"text": text})
        if not x.shape[axis]:
            return np.zeros(index.shape, x.dtype)
        live = np.ones((), bool) if ignore is None else index != ignore
        found = x[position_grids(np.where(live, index, 0), axis)]
        zero = np.zeros((), x.dtype)
        return np.asarray(np.where(live, np.subtract(zero, found) if negate else found, zero))

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        k, ignore, negate = attrs["axis"], attrs.get("ignore"), attrs.get("negate", False)
        size, zero = types[0].shape[k], np.zeros((), types[0].dtype.np)
        if not direct_reference(self, SelectAt) or not _plain(types, size, ignore):
            return None
        before, after = grids_around(types[1].shape, k)
        largest = np.maximum.reduce

        def run(x: np.ndarray, index: np.ndarray) -> Any:
            if largest(index.view(np.uint64), None) < size:  # all in range, and none is ignored
                found = x[(*before, index, *after)]
                return np.subtract(zero, found) if negate else found
            return self.reference(x, index, **attrs)

        return run

    def vjp(
        self, g: Any, out: Any, x: Any, index: Any, *, axis: int, ignore: int | None = None,
        text: str = "", negate: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        attrs: dict[str, Any] = {"negate": True} if negate else {}
        return op.place_at(g, index, axis=axis, size=x.shape[axis], ignore=ignore, **attrs), None

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, x: Any, index: Any, *, axis: int,
        ignore: int | None = None, text: str = "", negate: bool = False,
    ) -> Any:  # fmt: skip
        t = tangents[0]
        return t if t is None else self(
            t, index, axis=axis, ignore=ignore, text=text, negate=negate
        )  # fmt: skip

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int, **attrs: Any
    ) -> Any:
        return self(*align_batch(operands, batched), axis=axis + 1, **attrs)

    def lower(
        self, b: Builder, x: Array, index: Array, *, axis: int, ignore: int | None = None,
        text: str = "", negate: bool = False,
    ) -> Array:  # fmt: skip
        if is_empty(x.shape):
            return zero_filled(b, index.shape, x.dtype)
        at = list(b.axes(index.ndim))
        i = load(index, at).cast(INDEX)
        live = None if ignore is None else i.ne(ignore)
        safe = b.check(i if live is None else select(live, i, const(0, INDEX)), x.shape[axis])
        value = load(x, (*at[:axis], safe, *at[axis:]))
        if negate:
            value = _minus(value)
        if live is not None:
            value = select(live, value, const(0, x.dtype))
        return b.pointwise(index.shape, x.dtype, value)

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int, ignore: int | None = None,
        text: str = "", negate: bool = False,
    ) -> Any:  # fmt: skip
        x, index = inputs
        where = ctx.constant(np.array([axis], np.int64))
        if ignore is not None:
            dead = ctx.node("Equal", [index, ctx.constant(np.array(ignore, np.int64))])
            index = ctx.node("Where", [dead, ctx.constant(np.array(0, np.int64)), index])
        found = ctx.node("GatherElements", [x, ctx.node("Unsqueeze", [index, where])], axis=axis)
        found = ctx.node("Squeeze", [found, where])
        zero = ctx.constant(np.zeros((), ctx.type(x).dtype.np))
        if negate:
            found = ctx.node("Sub", [zero, found])
        return found if ignore is None else ctx.node("Where", [dead, zero, found])

    def samples(self) -> Iterable[Sample]:
        i = integers((3, 2), np.int64, 0, 4)
        yield Sample((uniform((3, 4, 2)), i), {"axis": 1})
        yield Sample((uniform((3, 2, 4)), strided(i)), {"axis": 2, "ignore": -100}, "strided")
        yield Sample((strided(uniform((4, 3))), i[:, 0]), {"axis": 0, "ignore": 2}, "one ignored")
        yield Sample(
            (uniform((3, 4)), i[:, 0]), {"axis": 1, "ignore": 2, "negate": True}, "negated"
        )
        half = uniform((3, 4), dtype=np.float16)
        yield Sample((half, i[:, 0]), {"axis": 1, "negate": True}, "negated float16", grad=False)
        some = np.array([1, -100, 0])
        yield Sample((uniform((3, 2)), some), {"axis": 1, "ignore": -100}, "ignored, out of range")
        yield Sample((uniform((4,)), np.array(3)), {"axis": 0, "ignore": -1}, "one row")
        yield Sample((uniform((0, 4)), i[:0, 0]), {"axis": 1, "ignore": -1}, "no row")
        nan = np.array([[np.nan, 1], [np.inf, 2], [3, np.nan]], np.float32)
        yield Sample((nan, some), {"axis": 1, "ignore": -100}, "NaN", grad=False)
        yield Sample((integers((3, 2), "int32"), some), {"axis": 1, "ignore": -100}, "integers")


class PlaceAt(Op):
    """place_at(g, index; axis, size, ignore=None, negate=False): zeros with a new axis of `size`, g
    (or 0 - g) at index.

    The adjoint of select_at. A position out of range, or `ignore`, places nothing.
    """

    name = "place_at"
    saves = (1,)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 2 * outs[0].numel

    def infer(
        self, g: TensorType, index: TensorType, *, axis: int, size: Dim,
        ignore: int | None = None, negate: bool = False,
    ) -> TensorType:  # fmt: skip
        self.expect(0 <= axis <= g.ndim, f"expected a new axis of {g}; got {axis}", IndexError)
        _expect_index(self, g, index, g.shape)
        return g.with_shape((*g.shape[:axis], size, *g.shape[axis:]))

    def reference(
        self, g: np.ndarray, index: np.ndarray, *, axis: int, size: int,
        ignore: int | None = None, negate: bool = False,
    ) -> np.ndarray:  # fmt: skip
        if negate:
            g = np.asarray(np.subtract(np.zeros((), g.dtype), g))
        out = np.zeros((*g.shape[:axis], size, *g.shape[axis:]), g.dtype)
        if size:
            live = (index >= 0) & (index < size)
            if ignore is not None:
                live = live & (index != ignore)
            key = position_grids(np.where(live, index, 0), axis)
            out[key] = np.where(live, g, np.zeros((), g.dtype))
        return out

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        g, k, size, ignore = types[0], attrs["axis"], attrs["size"], attrs.get("ignore")
        negate = attrs.get("negate", False)
        if not direct_reference(self, PlaceAt) or not _plain(types, size, ignore):
            return None
        shape, dtype = (*g.shape[:k], size, *g.shape[k:]), g.dtype.np
        zero = np.zeros((), dtype)
        before, after = grids_around(types[1].shape, k)
        largest = np.maximum.reduce

        def run(g: np.ndarray, index: np.ndarray) -> Any:
            if largest(index.view(np.uint64), None) >= size:
                return self.reference(g, index, **attrs)
            out = np.zeros(shape, dtype)
            out[(*before, index, *after)] = np.subtract(zero, g) if negate else g
            return out

        return run

    def vjp(
        self, g: Any, out: Any, x: Any, index: Any, *, axis: int, size: Dim,
        ignore: int | None = None, negate: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        attrs: dict[str, Any] = {"negate": True} if negate else {}
        return op.select_at(g, index, axis=axis, ignore=ignore, **attrs), None

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, index: Any, **attrs: Any) -> Any:
        return None if tangents[0] is None else self(tangents[0], index, **attrs)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int, **attrs: Any
    ) -> Any:
        return self(*align_batch(operands, batched), axis=axis + 1, **attrs)

    def lower(
        self, b: Builder, g: Array, index: Array, *, axis: int, size: Dim,
        ignore: int | None = None, negate: bool = False,
    ) -> Array:  # fmt: skip
        at = list(b.axes(g.ndim + 1))
        row = (*at[:axis], *at[axis + 1 :])
        i = load(index, row)
        here = i.eq(at[axis].cast(dtypes.int64))
        value = load(g, row)
        value = select(here, _minus(value) if negate else value, const(0, g.dtype))
        if ignore is not None:
            value = select(i.ne(ignore), value, const(0, g.dtype))
        return b.pointwise((*g.shape[:axis], size, *g.shape[axis:]), g.dtype, value)

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int, size: Dim,
        ignore: int | None = None, negate: bool = False,
    ) -> Any:  # fmt: skip
        g, index = inputs
        type_ = ctx.type(g)
        if not isinstance(size, int):
            return super().onnx(ctx, inputs)
        where = ctx.constant(np.array([axis], np.int64))
        if ignore is not None:
            dead = ctx.node("Equal", [index, ctx.constant(np.array(ignore, np.int64))])
            index = ctx.node("Where", [dead, ctx.constant(np.array(-1, np.int64)), index])
        numbers = np.arange(size).reshape(-1, *[1] * (type_.ndim - axis))
        here = ctx.node("Equal", [ctx.node("Unsqueeze", [index, where]), ctx.constant(numbers)])
        zero = ctx.constant(np.zeros((), type_.dtype.np))
        g = ctx.node("Sub", [zero, g]) if negate else g
        return ctx.node("Where", [here, ctx.node("Unsqueeze", [g, where]), zero])

    def samples(self) -> Iterable[Sample]:
        i = integers((3, 2), np.int64, 0, 4)
        yield Sample((uniform((3, 2)), i), {"axis": 1, "size": 4})
        yield Sample((uniform((3, 2)), strided(i)), {"axis": 2, "size": 4, "ignore": -1}, "strided")
        yield Sample((uniform((3,)), i[:, 0]), {"axis": 0, "size": 4, "ignore": 2}, "one ignored")
        some = np.array([1, -100, 0])
        yield Sample((uniform((3,)), some), {"axis": 1, "size": 2, "ignore": -100}, "ignored")
        turned = {"axis": 1, "size": 4, "ignore": -1, "negate": True}
        yield Sample((uniform((3,)), i[:, 0]), turned, "negated")
        far = np.array([1, -100, 7])
        yield Sample(
            (uniform((3,)), far), {"axis": 1, "size": 2, "ignore": -1}, "out of range", grad=False
        )
        yield Sample((uniform(()), np.array(3)), {"axis": 0, "size": 4}, "one row")
        yield Sample((uniform((0,)), i[:0, 0]), {"axis": 1, "size": 4}, "no row")
        nan = np.array([np.nan, np.inf, 1], np.float32)
        yield Sample((nan, far), {"axis": 1, "size": 3, "ignore": -100}, "NaN", grad=False)


def _minus(x: Expr) -> Expr:
    """0 - x, rounded to its dtype."""
    if is_half(x.dtype):
        return _minus(x.cast(dtypes.float32)).cast(x.dtype)
    return const(0, x.dtype) - x


def _plain(types: Sequence[TensorType], size: Dim, ignore: int | None) -> bool:
    """Whether one comparison tells that all positions are in range and none is ignored."""
    known = isinstance(size, int) and size > 0 and types[1].numel != 0
    return known and (ignore is None or not 0 <= ignore < size)


select_at, place_at = SelectAt(), PlaceAt()
