"""NumPy's advanced indexing with int64 tensors: the records index and index_put.

Masks, slices and broadcasting of index tensors are resolved by the public layer. Embedding is
`index` along dim 0. Both are checked: a position outside its dim raises IndexError in eager mode,
and flags a fault in compiled code; negative positions count from the end.

Results do not depend on scheduling: writes happen in row-major order of the index, so the last of
several writes to one place wins, also in the derivative; sums add in that order (float16 and
bfloat16 in float32, rounded once).
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
    select,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.placing import (
    UNROLL,
    add_at,
    check_sum,
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
    apply_like,
    op,
    same_shape,
    zeros_like,
)
from jitgrad.compiler.ops.regions import accumulator, all_of, rounded
from jitgrad.compiler.symbolic import Dim, Sym, hint, prod
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


# Operands past the first that an indexing op may have (NumPy's limit on dims).
_MAX_DIMS = 64


class AdvancedIndexing(Op):
    """What index and index_put share. `dims`: the dims indexed, ascending, one for each tensor."""

    checked = True

    def check(self, x: TensorType, index: Sequence[TensorType], dims: Ints) -> Shape:
        """The shape that x[...] has."""
        self.same_device((x, *index))
        self.expect(
            len(index) == len(dims) > 0
            and list(dims) == sorted(set(dims))
            and all(0 <= d < x.ndim for d in dims),
            f"too many indices for tensor of dimension {x.ndim}, or dims not ascending: got dims "
            f"{dims} with {len(index)} index tensors for {x}",
            IndexError,
        )
        for t in index:
            self.expect(
                t.dtype is dtypes.int64 and same_shape(t.shape, index[0].shape),
                f"expected int64 index tensors broadcast to one shape; got "
                f"{', '.join(map(str, index))}",
                IndexError,
            )
        empty = any(hint(d) == 0 for d in index[0].shape)
        for d in dims:
            self.expect(
                empty or hint(x.shape[d]) > 0,
                f"index is out of bounds for dimension {d} with size 0; got {x}",
                IndexError,
            )
        return _indexed_shape(x.shape, index[0].shape, dims)

    def checks(self, types: Sequence[TensorType], attrs: dict[str, Any]) -> Sequence[Check]:
        dims, shape = attrs["dims"], types[0].shape
        first = len(types) - len(dims)
        return [_in_dim(shape, d, first + k) for k, d in enumerate(dims)]

    def failed(self, check: Check, value: Any, attrs: dict[str, Any]) -> Exception:
        return out_of_bounds(self, check, value, IndexError)


class Index(AdvancedIndexing):
    """index(x, *index; dims): x[:, i, :, j] with int64 tensors i, j at dims; NumPy's semantics.

    The index tensors have one shape S. In the result, S stands where the indexed dims were if they
    are adjacent, else in front.
    """

    name = "index"
    saves = tuple(range(1, _MAX_DIMS))

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 4 * outs[0].numel

    def infer(self, x: TensorType, *index: TensorType, dims: Ints) -> TensorType:
        return x.with_shape(self.check(x, index, dims))

    def reference(self, x: np.ndarray, *index: np.ndarray, dims: Ints) -> np.ndarray:
        return np.asarray(x[_key(self, x.shape, index, dims)])

    def vjp(self, g: Any, out: Any, x: Any, *index: Any, dims: Ints) -> tuple[Any, ...]:
        gx = op.index_put(zeros_of(g, x), g, *index, dims=dims, accumulate=True)
        return gx, *(None for _ in index)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *index: Any, dims: Ints) -> Any:
        return None if tangents[0] is None else op.index(tangents[0], *index, dims=dims)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, dims: Ints) -> Any:
        x, *index = operands
        first = _first(dims)
        shifted = tuple(d + 1 for d in dims)
        if not any(batched[1:]):
            out = op.index(x, *index, dims=shifted)
            return out if _adjacent(dims) else _move_block(out, index[0].ndim, 1, 0)
        index = align_batch(operands[1:], batched[1:])
        if not batched[0]:  # the batch leads the index tensors' dims, wherever those stand
            return _move_block(op.index(x, *index, dims=dims), first, 1, 0)
        out = op.index(x, _batch_numbers(index[0]), *index, dims=(0, *shifted))
        return _move_block(out, 1, index[0].ndim - 1, 1 + first)  # they stood in front

    def lower(self, b: Builder, x: Array, *index: Array, dims: Ints) -> Array:
        shape = _indexed_shape(x.shape, index[0].shape, dims)
        at = _read_index(b, b.axes(len(shape)), x.shape, index, dims)
        return b.pointwise(shape, x.dtype, load(x, at))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, dims: Ints) -> Any:
        x, s = ctx.type(inputs[0]), ctx.type(inputs[1])
        if len(dims) == 1:
            return ctx.node("Gather", inputs, axis=dims[0])
        rest = [k for k in range(x.ndim) if k not in dims]
        data = ctx.node("Transpose", [inputs[0]], perm=[*dims, *rest])
        out = ctx.node("GatherND", [data, _onnx_places(ctx, inputs[1:], s)])
        first, rank = _first(dims), s.ndim
        order = [*range(rank, rank + first), *range(rank), *range(rank + first, rank + len(rest))]
        return out if first == 0 else ctx.node("Transpose", [out], perm=order)

    def samples(self) -> Iterable[Sample]:
        for x, index, dims, note in _index_cases():
            yield Sample((x, *index), {"dims": dims}, note)


class IndexPut(AdvancedIndexing):
    """index_put(base, values, *index; dims, accumulate): base[:, i, :, j] = values (or +=).

    values has the shape that index(base, *index; dims) has.
    """

    name = "index_put"
    saves = tuple(range(2, _MAX_DIMS))

    def infer(
        self,
        base: TensorType,
        values: TensorType,
        *index: TensorType,
        dims: Ints,
        accumulate: bool,
    ) -> TensorType:
        if accumulate:
            check_sum(self, base)
        shape = self.check(base, index, dims)
        self.expect(
            base.dtype is values.dtype,
            f"index put requires the source and destination dtypes match; got {base} and {values}; "
            "convert the values with .to(dtype)",
        )
        self.expect(
            same_shape(values.shape, shape),
            f"shape mismatch: expected values of shape ({', '.join(map(str, shape))}); got "
            f"{values} for {base}; broadcast them first",
        )
        return base

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 16 * types[1].numel if attrs["accumulate"] else 0

    def reference(
        self,
        base: np.ndarray,
        values: np.ndarray,
        *index: np.ndarray,
        dims: Ints,
        accumulate: bool,
    ) -> np.ndarray:
        key = _key(self, base.shape, index, dims)
        if accumulate:
            return add_at(base, key, values)
        out = np.array(base)
        out[key] = values
        return out

    def vjp(
        self,
        g: Any,
        out: Any,
        base: Any,
        values: Any,
        *index: Any,
        dims: Ints,
        accumulate: bool,
    ) -> tuple[Any, ...]:
        none = tuple(None for _ in index)
        part = op.index(g, *index, dims=dims)
        if accumulate:
            return g, part, *none
        empty = zeros_like(part)
        g_base = op.index_put(g, empty, *index, dims=dims, accumulate=False)
        # only the write that lasted gets a gradient: the one whose number is found at its place
        number = numbers(part)
        places = op.index_put(
            full(g, base.shape, -1, dtypes.int64), number, *index, dims=dims, accumulate=False
        )
        won = op.eq(op.index(places, *index, dims=dims), number)
        return g_base, op.where(won, part, empty), *none

    def jvp(
        self,
        tangents: tuple[Any, ...],
        out: Any,
        base: Any,
        values: Any,
        *index: Any,
        dims: Ints,
        accumulate: bool,
    ) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_values = zeros_like(values) if tangents[1] is None else tangents[1]
        return op.index_put(t_base, t_values, *index, dims=dims, accumulate=accumulate)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, dims: Ints, accumulate: bool
    ) -> Any:
        base, values, *index = align_batch(operands, batched)
        first, rank = _first(dims), index[0].ndim - 1
        # with dim 0 indexed as well, values are (B, *S) in front, then the other dims
        values = values if first == 0 else _move_block(values, 1 + first, rank, 1)
        full = (0, *(d + 1 for d in dims))
        return op.index_put(
            base, values, _batch_numbers(index[0]), *index, dims=full, accumulate=accumulate
        )

    def lower(
        self,
        b: Builder,
        base: Array,
        values: Array,
        *index: Array,
        dims: Ints,
        accumulate: bool,
    ) -> Array:
        acc = accumulator(base.dtype) if accumulate else base.dtype
        old = load(base, b.axes(base.ndim)).cast(acc)
        count = prod(index[0].shape)
        if not isinstance(count, Sym) and count <= UNROLL:
            value = _unrolled_put(b, base, values, index, dims, accumulate, old)
            return b.pointwise(base.shape, base.dtype, value.cast(base.dtype))
        inner = b.axes(values.ndim, start=base.ndim)
        place = _read_index(b, inner, base.shape, index, dims)
        combine = "sum" if accumulate else "set"
        new = load(values, inner).cast(acc)
        out = b.scatter(base.shape, old, values.shape, place, new, combine)
        return rounded(b, out, base.dtype)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, dims: Ints, accumulate: bool) -> Any:
        base, s = ctx.type(inputs[0]), ctx.type(inputs[2])
        rest = [k for k in range(base.ndim) if k not in dims]
        order = [*dims, *rest]
        first, rank = _first(dims), s.ndim
        data = ctx.node("Transpose", [inputs[0]], perm=order)
        back = [*range(first, first + rank), *range(first), *range(first + rank, rank + len(rest))]
        values = ctx.node("Transpose", [inputs[1]], perm=back)
        more: dict[str, Any] = {"reduction": "add"} if accumulate else {}
        out = ctx.node("ScatterND", [data, _onnx_places(ctx, inputs[2:], s), values], **more)
        return ctx.node("Transpose", [out], perm=[order.index(k) for k in range(base.ndim)])

    def samples(self) -> Iterable[Sample]:
        for x, index, dims, note in _index_cases():
            shape = tuple(map(hint, _indexed_shape(x.shape, index[0].shape, dims)))
            values = uniform(shape, seed=3).astype(x.dtype)
            for accumulate in (False, True):
                attrs = {"dims": dims, "accumulate": accumulate}
                yield Sample((x, values, *index), attrs, note)


def _in_dim(shape: Sequence[Dim], d: int, operand: int = 0) -> Check:
    return Check(operand, -shape[d], shape[d] - 1, dim=d)


def _adjacent(dims: Ints) -> bool:
    return dims[-1] - dims[0] == len(dims) - 1


def _first(dims: Ints) -> int:
    """Where the index tensors' dims stand in the result."""
    return dims[0] if _adjacent(dims) else 0


def _indexed_shape(shape: Shape, s: Shape, dims: Ints) -> Shape:
    rest = [d for k, d in enumerate(shape) if k not in dims]
    first = _first(dims)
    return (*rest[:first], *s, *rest[first:])


def _key(
    record: Op, shape: Sequence[int], index: Sequence[np.ndarray], dims: Ints
) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * len(shape)
    for d, i in zip(dims, index, strict=True):
        verify(record, _in_dim(shape, d), i)
        key[d] = i
    return tuple(key)


def _batch_numbers(index: Any) -> Any:
    """For an index tensor (B, *S): the number of the batch at each element."""
    n = index.shape[0]
    flat = apply_like(
        op.iota, index, shape=(n,), dtype=dtypes.int64, device=str(index.device), start=0, step=1
    )
    column = op.reshape(flat, shape=(n, *([1] * (index.ndim - 1))))
    return op.expand(column, shape=tuple(index.shape))


def _move_block(x: Any, source: int, count: int, target: int) -> Any:
    """x with `count` dims that start at `source` moved to start at `target`."""
    block = list(range(source, source + count))
    rest = [k for k in range(x.ndim) if k not in block]
    order = (*rest[:target], *block, *rest[target:])
    return x if order == tuple(range(x.ndim)) else op.permute(x, axes=order)


def _wrapped(b: Builder, index: Expr, size: Dim) -> Expr:
    """A position, negative ones counted from the end, checked."""
    i = index.cast(INDEX)
    return b.check(select(i < 0, i + dim(size), i), size)


def _read_index(
    b: Builder, at: Sequence[Expr], shape: Shape, index: Sequence[Array], dims: Ints
) -> list[Expr]:
    """The place in `shape` that element `at` of the indexed result stands for."""
    first, rank = _first(dims), index[0].ndim
    inner = at[first : first + rank]
    rest = iter([*at[:first], *at[first + rank :]])
    places = {d: _wrapped(b, load(i, inner), shape[d]) for d, i in zip(dims, index, strict=True)}
    return [places[k] if k in places else next(rest) for k in range(len(shape))]


def _unrolled_put(
    b: Builder,
    base: Array,
    values: Array,
    index: Sequence[Array],
    dims: Ints,
    accumulate: bool,
    old: Expr,
) -> Expr:
    """Each element tests the few places that are written to, in their order."""
    first = _first(dims)
    rest = [axis(k) for k in range(base.ndim) if k not in dims]
    value = old
    for point in np.ndindex(*(hint(d) for d in index[0].shape)):
        inner = [const(p, INDEX) for p in point]
        hit = all_of(
            [
                axis(d).eq(_wrapped(b, load(i, inner), base.shape[d]))
                for d, i in zip(dims, index, strict=True)
            ]
        )
        assert hit is not None
        new = load(values, (*rest[:first], *inner, *rest[first:])).cast(old.dtype)
        value = select(hit, value + new if accumulate else new, value)
    return value


def _onnx_places(ctx: OnnxContext, index: Sequence[str], s: TensorType) -> str:
    """The index tensors as one, (*S, count)."""
    last = ctx.shape((s.ndim,))
    columns = [ctx.node("Unsqueeze", [i, last]) for i in index]
    return ctx.node("Concat", columns, axis=s.ndim)


def _index_cases() -> Iterable[tuple[np.ndarray, tuple[np.ndarray, ...], Ints, str]]:
    i, j = integers((2, 3), "int64", 0, 3), integers((2, 3), "int64", -4, 4, seed=1)
    x = uniform((3, 4, 5))
    yield x, (integers((2,), "int64", -3, 3),), (0,), "along dim 0"
    yield x, (j,), (1,), "along dim 1, negative positions"
    yield x, (i, j), (0, 1), "adjacent dims"
    yield x, (j, integers((2, 3), "int64", 0, 5)), (1, 2), "adjacent dims, not in front"
    yield x, (i, integers((2, 3), "int64", 0, 5)), (0, 2), "dims apart: the index stands in front"
    yield uniform((4, 3)), (integers((20,), "int64", 0, 4),), (0,), "many rows, as an embedding"
    yield x, (np.array(1),), (1,), "0-d index"
    yield x, (np.zeros((0,), np.int64),), (0,), "empty index"
    yield uniform((0, 2)), (np.zeros((0,), np.int64),), (0,), "empty"
    yield strided(uniform((3, 4))), (np.array([2, 2, 2, 0]),), (0,), "strided, repeated"
    yield integers((3, 4), "int64"), (np.array([0, 2]),), (1,), "integers"


index = Index()
index_put = IndexPut()
