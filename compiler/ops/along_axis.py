"""Reads and writes along one axis at positions held in an int64 tensor.

Owns gather, scatter and scatter_add, with torch.gather's semantics: one position per element. All
are checked: a position outside its dim (negative ones too, as in PyTorch) raises RuntimeError in
eager mode, and flags a fault in compiled code.

Results do not depend on scheduling: writes happen in row-major order of the index, so the last of
several writes to one place wins, also in the derivative; sums add in that order (float16 and
bfloat16 in float32, rounded once).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    const,
    dim,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.placing import (
    UNROLL,
    add_at,
    check_sum,
    expect_positions,
    full,
    numbers,
    out_of_bounds,
    verify,
    zeros_of,
)
from jitgrad.compiler.ops.record import (
    Check,
    OnnxContext,
    Op,
    Sample,
    op,
    same_shape,
    zeros_like,
)
from jitgrad.compiler.ops.regions import accumulator, all_of, readable, rounded
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


class Along(Op):
    """What gather, scatter and scatter_add share."""

    checked = True

    def check(self, x: TensorType, index: TensorType, at: int, what: str) -> None:
        self.same_device((x, index))
        expect_positions(self, index)
        self.expect(
            index.ndim == x.ndim and 0 <= at < max(1, x.ndim) and x.ndim > 0,
            f"expected an index of as many dims as {what} and an axis of it; got {x}, index "
            f"{index}, axis {at}",
        )
        for k in range(x.ndim):
            self.expect(
                k == at or _le(index.shape[k], x.shape[k]),
                f"size does not match at dimension {k}: expected index {index} to be no larger "
                f"than {what} {x} apart from dimension {at}",
            )
        self.expect(
            hint(x.shape[at]) > 0 or any(hint(d) == 0 for d in index.shape),
            f"index is out of bounds for dimension {at} with size 0; got {x} and index {index}",
            IndexError,
        )

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        return [in_dim(types[0].shape, attrs["axis"])]

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        return out_of_bounds(self, check, value, RuntimeError)


class Gather(Along):
    """gather(x, index; axis): out[i] = x[i with i[axis] replaced by index[i]] (torch.gather).

    index is int64, of x's rank, no larger than x in the other dims; the result has its shape.
    """

    name = "gather"
    saves = (1,)

    def infer(self, x: TensorType, index: TensorType, *, axis: int) -> TensorType:
        self.check(x, index, axis, "input")
        return x.with_shape(index.shape)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 8 * types[1].numel

    def reference(self, x: np.ndarray, index: np.ndarray, *, axis: int) -> np.ndarray:
        verify(self, in_dim(x.shape, axis), index)
        return np.asarray(x[along(index, axis)])

    def vjp(self, g: Any, out: Any, x: Any, index: Any, *, axis: int) -> tuple[Any, ...]:
        return op.scatter_add(zeros_of(g, x), index, g, axis=axis), None

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, index: Any, *, axis: int) -> Any:
        return None if tangents[0] is None else op.gather(tangents[0], index, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        return op.gather(*align_batch(operands, batched), axis=axis + 1)

    def lower(self, b: Builder, x: Array, index: Array, *, axis: int) -> Array:
        at = list(b.axes(x.ndim))
        at[axis] = b.check(load(index, at).cast(INDEX), x.shape[axis])
        return b.pointwise(index.shape, x.dtype, load(x, at))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        x, index = (ctx.type(name) for name in inputs)
        data = inputs[0]
        for k in range(x.ndim):  # ONNX wants equal sizes in the other dims
            if k != axis and x.shape[k] != index.shape[k]:
                parts = [ctx.shape((0,)), ctx.shape((index.shape[k],)), ctx.shape((k,))]
                data = ctx.node("Slice", [data, *parts])
        return ctx.node("GatherElements", [data, inputs[1]], axis=axis)

    def samples(self) -> Iterable[Sample]:
        for x, index, k, note in along_cases():
            yield Sample((x, index), {"axis": k}, note)


class Scatter(Along):
    """scatter(base, index, src; axis): base with src[i] written where gather would read i."""

    name = "scatter"
    saves: tuple[int | str, ...] = (1,)
    combine = "set"

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 8 * types[1].numel

    def infer(
        self, base: TensorType, index: TensorType, src: TensorType, *, axis: int
    ) -> TensorType:
        self.check(base, index, axis, "self")
        self.same_device((base, src))
        self.expect(
            base.dtype is src.dtype,
            f"expected self and src of one dtype; got {base} and {src}; convert src with .to()",
        )
        self.expect(
            src.ndim == index.ndim
            and all(_le(i, s) for i, s in zip(index.shape, src.shape, strict=True)),
            f"expected index {index} to be no larger than src {src} in any dim",
        )
        return base

    def reference(
        self, base: np.ndarray, index: np.ndarray, src: np.ndarray, *, axis: int
    ) -> np.ndarray:
        verify(self, in_dim(base.shape, axis), index)
        out = np.array(base)
        out[along(index, axis)] = src[tuple(slice(n) for n in index.shape)]
        return out

    def vjp(
        self, g: Any, out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> tuple[Any, ...]:
        empty = zeros_of(g, index, g.dtype)
        g_base = op.scatter(g, index, empty, axis=axis)
        # only the write that lasted gets a gradient: the one whose number is found at its place
        number = numbers(index)
        places = full(g, base.shape, -1, dtypes.int64)
        winner = op.gather(op.scatter(places, index, number, axis=axis), index, axis=axis)
        g_src = op.where(op.eq(winner, number), op.gather(g, index, axis=axis), empty)
        return g_base, None, grow(g_src, src)

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_src = zeros_like(src) if tangents[2] is None else tangents[2]
        return self(t_base, index, t_src, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        return self(*align_batch(operands, batched), axis=axis + 1)

    def wide(self, dtype: DType) -> DType:
        """The dtype that writes are combined in."""
        return accumulator(dtype) if self.combine in ("sum", "prod") else dtype

    def join(self, old: Expr, new: Expr) -> Expr:
        """What is at a place after a write."""
        if self.combine == "set":
            return new
        return make({"sum": "add", "prod": "mul"}.get(self.combine, self.combine), old, new)

    def lower(self, b: Builder, base: Array, index: Array, src: Array, *, axis: int) -> Array:
        count = index.shape[axis]
        if not isinstance(count, Sym) and count <= UNROLL:
            return self.unrolled(b, base, index, src, axis, count)
        acc = self.wide(base.dtype)
        rank = base.ndim
        inner = b.axes(rank, start=rank)
        place = list(inner)
        place[axis] = b.check(load(index, inner).cast(INDEX), base.shape[axis])
        old, value = load(base, b.axes(rank)).cast(acc), load(src, inner).cast(acc)
        out = b.scatter(base.shape, old, index.shape, place, value, self.combine)
        return rounded(b, out, base.dtype)

    def unrolled(
        self, b: Builder, base: Array, index: Array, src: Array, along: int, count: int
    ) -> Array:
        """Each element tests the few indices that may write to it, in their order."""
        acc = self.wide(base.dtype)
        at = b.axes(base.ndim)
        value = load(base, at).cast(acc)
        if any(hint(d) == 0 for d in index.shape):
            return b.pointwise(base.shape, base.dtype, value.cast(base.dtype))
        read, tests = [], []
        for k, i in enumerate(at):
            small = k != along and index.shape[k] != base.shape[k]
            read.append(readable(i, index.shape[k]) if small else i)
            tests.append(i < dim(index.shape[k]) if small else None)
        inside = all_of(tests)
        for j in range(count):
            read[along] = const(j, INDEX)
            place = b.check(load(index, read).cast(INDEX), base.shape[along])
            hit = at[along].eq(place)
            hit = hit if inside is None else inside & hit
            new = load(src, read).cast(acc)
            value = select(hit, self.join(value, new), value)
        return b.pointwise(base.shape, base.dtype, value.cast(base.dtype))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        index, src = ctx.type(inputs[1]), ctx.type(inputs[2])
        updates = inputs[2]
        if not same_shape(index.shape, src.shape):
            axes = tuple(range(src.ndim))
            parts = [ctx.shape((0,) * src.ndim), ctx.shape(index.shape), ctx.shape(axes)]
            updates = ctx.node("Slice", [updates, *parts])
        kind = {"sum": "add", "prod": "mul"}.get(self.combine, self.combine)
        more: dict[str, Any] = {} if kind == "set" else {"reduction": kind}
        return ctx.node("ScatterElements", [inputs[0], inputs[1], updates], axis=axis, **more)

    def samples(self) -> Iterable[Sample]:
        for x, index, k, note in along_cases():
            src = uniform(index.shape, seed=2).astype(x.dtype)
            yield Sample((x, index, src), {"axis": k}, note)
        x, index = uniform((3, 4)), integers((2, 3), "int64", 0, 3)
        yield Sample((x, index, uniform((3, 5), seed=2)), {"axis": 0}, "src larger than index")
        wide = integers((2, 11), "int64", 0, 4)
        yield Sample((uniform((2, 4)), wide, uniform((2, 11), seed=2)), {"axis": 1}, "many writes")


class ScatterAdd(Scatter):
    """scatter_add(base, index, src; axis): base with src[i] added where gather would read i."""

    name = "scatter_add"
    combine = "sum"

    def infer(
        self, base: TensorType, index: TensorType, src: TensorType, *, axis: int
    ) -> TensorType:
        check_sum(self, base)
        return super().infer(base, index, src, axis=axis)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 16 * types[2].numel

    def reference(
        self, base: np.ndarray, index: np.ndarray, src: np.ndarray, *, axis: int
    ) -> np.ndarray:
        verify(self, in_dim(base.shape, axis), index)
        part = src[tuple(slice(n) for n in index.shape)]
        return add_at(base, along(index, axis), part)

    def vjp(
        self, g: Any, out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> tuple[Any, ...]:
        return g, None, grow(op.gather(g, index, axis=axis), src)


def in_dim(shape: Sequence[Dim], d: int) -> Check:
    size = shape[d]
    return _in_size(size, d) if isinstance(size, int) else Check(1, 0, size - 1, dim=d)


@lru_cache(256)
def _in_size(size: int, d: int) -> Check:
    return Check(1, 0, size - 1, dim=d)


def _le(a: Dim, b: Dim) -> bool:
    return a is b or bool(a <= b)


def along(index: np.ndarray, at: int) -> tuple[np.ndarray, ...]:
    """The NumPy key of the places that `index` names along dim `at`."""
    grids = _grids(index.shape)
    return (*grids[:at], index, *grids[at + 1 :])


def position_grids(index: np.ndarray, at: int) -> tuple[np.ndarray, ...]:
    """The NumPy key of one element of each row: dim `at`, which index lacks, put between its
    dims."""
    before, after = grids_around(index.shape, at)
    return (*before, index, *after)


def grids_around(
    shape: Sequence[Any], at: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """What stands before and after such an index of this shape in the key."""
    grids = _grids(tuple(shape))
    return grids[:at], grids[at:]


@lru_cache(256)
def _grids(shape: Ints) -> tuple[np.ndarray, ...]:
    """The numbers along each dim, shaped to broadcast to `shape`."""
    return tuple(np.ogrid[tuple(slice(n) for n in shape)])


def grow(g: Any, src: Any) -> Any:
    """The gradient of the part of src that was read, padded to src's shape."""
    if same_shape(g.shape, src.shape):
        return g
    none = (0,) * src.ndim
    high = tuple(n - k for n, k in zip(src.shape, g.shape, strict=True))
    return op.pad(g, low=none, high=high, interior=none, value=0)


def along_cases() -> Iterable[tuple[np.ndarray, np.ndarray, int, str]]:
    yield uniform((3, 4)), integers((3, 2), "int64", 0, 4), 1, ""
    yield uniform((3, 4)), integers((5, 4), "int64", 0, 3), 0, "index longer than the dim"
    yield uniform((3, 4, 2)), integers((2, 4, 1), "int64", 0, 4), 1, "index smaller"
    yield strided(uniform((3, 4))), strided(integers((3, 4), "int64", 0, 4)), 1, "strided"
    yield uniform((3, 4)), integers((3, 0), "int64", 0, 4), 1, "empty index"
    yield uniform((0, 4)), integers((0, 2), "int64", 0, 4), 1, "empty"
    yield uniform((3, 4)), np.full((3, 3), 2), 1, "one place many times"
    yield integers((3, 4), "int32"), integers((3, 2), "int64", 0, 4), 1, "integers"


gather = Gather()
scatter = Scatter()
scatter_add = ScatterAdd()
