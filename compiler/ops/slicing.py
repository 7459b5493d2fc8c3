"""Views that show a part of a tensor, slice and diagonal, and the updates behind them.

slice_update and diagonal_update give a base with such a part replaced: they are what writing
through a view records. Sliding windows are in windows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    axis,
    const,
    dim,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    direct_reference,
    op,
    same_shape,
    zeros_like,
)
from jitgrad.compiler.ops.regions import (
    all_of,
    guard_empty,
    guarded,
    is_empty,
    readable,
    span,
    strided_read,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, smax, smin, surely_le
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


class Slice(Op):
    """slice(x; starts, stops, steps): x[start:stop:step] in every dim; a view.

    Normalised: 0 <= start <= stop <= size, step >= 1, one of each for every dim.
    """

    name = "slice"
    noop = True
    view = True

    def infer(self, x: TensorType, *, starts: Shape, stops: Shape, steps: Ints) -> TensorType:
        return x.with_shape(slice_shape(self, x, starts, stops, steps))

    def reference(
        self, x: np.ndarray, *, starts: Sequence[int], stops: Sequence[int], steps: Ints
    ) -> np.ndarray:
        return x[_slices(starts, stops, steps)]

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        if not direct_reference(self, Slice) or not types[0].shape:
            return None
        key = _slices(**attrs)
        return lambda x: x[key]

    def vjp(
        self, g: Any, out: Any, x: Any, *, starts: Shape, stops: Shape, steps: Ints
    ) -> tuple[Any, ...]:
        high = tuple(
            n - lo - span(k, s) for n, lo, k, s in zip(x.shape, starts, g.shape, steps, strict=True)
        )
        return (op.pad(g, low=starts, high=high, interior=tuple(s - 1 for s in steps), value=0),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return op.slice(tangents[0], **attrs)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        starts: Shape,
        stops: Shape,
        steps: Ints,
    ) -> Any:
        (x,) = operands
        return op.slice(x, starts=(0, *starts), stops=(x.shape[0], *stops), steps=(1, *steps))

    def lower(self, b: Builder, x: Array, *, starts: Shape, stops: Shape, steps: Ints) -> Array:
        shape = _sizes(starts, stops, steps)
        index = [dim(lo) + axis(k) * s for k, (lo, s) in enumerate(zip(starts, steps, strict=True))]
        return b.pointwise(shape, x.dtype, load(x, index))

    def put(self, base: Any, update: Any, *, starts: Shape, stops: Shape, steps: Ints) -> Any:
        return op.slice_update(base, update, starts=starts, stops=stops, steps=steps)

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        starts: Shape,
        stops: Shape,
        steps: Ints,
    ) -> Any:
        if not steps:
            return ctx.node("Identity", inputs)
        axes = tuple(range(len(steps)))
        return ctx.node("Slice", [inputs[0], *(ctx.shape(v) for v in (starts, stops, axes, steps))])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _slice_cases():
            yield Sample((x,), attrs, note)


class SliceUpdate(Op):
    """slice_update(base, update; starts, stops, steps): base with that slice replaced."""

    name = "slice_update"

    def infer(
        self, base: TensorType, update: TensorType, *, starts: Shape, stops: Shape, steps: Ints
    ) -> TensorType:
        self.same_device((base, update))
        shape = slice_shape(self, base, starts, stops, steps)
        _check_update(self, base, update, shape)
        guard_empty(update.shape)
        return base

    def reference(
        self,
        base: np.ndarray,
        update: np.ndarray,
        *,
        starts: Sequence[int],
        stops: Sequence[int],
        steps: Ints,
    ) -> np.ndarray:
        out = np.array(base)
        out[_slices(starts, stops, steps)] = update
        return out

    def vjp(self, g: Any, out: Any, base: Any, update: Any, **attrs: Any) -> tuple[Any, ...]:
        part = op.slice(g, **attrs)
        return op.slice_update(g, zeros_like(part), **attrs), part

    def jvp(self, tangents: tuple[Any, ...], out: Any, base: Any, update: Any, **attrs: Any) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_update = zeros_like(update) if tangents[1] is None else tangents[1]
        return op.slice_update(t_base, t_update, **attrs)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        starts: Shape,
        stops: Shape,
        steps: Ints,
    ) -> Any:
        base, update = align_batch(operands, batched)
        full = {
            "starts": (0, *starts), "stops": (base.shape[0], *stops), "steps": (1, *steps)
        }  # fmt: skip
        return op.slice_update(base, update, **full)

    def lower(
        self, b: Builder, base: Array, update: Array, *, starts: Shape, stops: Shape, steps: Ints
    ) -> Array:
        at = b.axes(base.ndim)
        old = load(base, at)
        if is_empty(update.shape):
            return b.pointwise(base.shape, base.dtype, old)
        reads = [
            strided_read(i, n, k, lo, s)
            for i, n, k, lo, s in zip(at, base.shape, update.shape, starts, steps, strict=True)
        ]
        new = load(update, [r.index for r in reads])
        return b.pointwise(
            base.shape, base.dtype, guarded(all_of([r.inside for r in reads]), new, old)
        )

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        starts: Shape,
        stops: Shape,
        steps: Ints,
    ) -> Any:
        base = ctx.type(inputs[0])
        if not base.ndim:
            return ctx.node("Identity", inputs[1:])
        if any(isinstance(d, Sym) for d in (*base.shape, *starts, *stops)):
            if any(s != 1 for s in steps) or base.dtype is dtypes.bool_:
                raise RuntimeError(
                    f"[slice_update] no ONNX form for symbolic sizes with steps, or of bools; got "
                    f"{base} and steps {steps}; export with fixed sizes"
                )
            after = [d - stop for d, stop in zip(base.shape, stops, strict=True)]
            around = ctx.shape((*starts, *after))
            size = [stop - start for start, stop in zip(starts, stops, strict=True)]
            ones = ctx.node("Expand", [ctx.constant(np.array(1, np.int32)), ctx.shape(size)])
            inside = ctx.node("Pad", [ones, around, ctx.constant(np.array(0, np.int32))])
            inside = ctx.node("Cast", [inside], to=ctx.onnx_dtype(dtypes.bool_))
            zero = ctx.constant(np.array(0, base.dtype.np))
            update = ctx.node("Pad", [inputs[1], around, zero])
            return ctx.node("Where", [inside, update, inputs[0]])
        ranges = [
            np.arange(hint(lo), hint(hi), s) for lo, hi, s in zip(starts, stops, steps, strict=True)
        ]
        places = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1)
        indices = ctx.constant(places.astype(np.int64))
        return ctx.node("ScatterND", [inputs[0], indices, inputs[1]])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _slice_cases():
            part = x[_slices(**attrs)]
            yield Sample((x, np.array(part[...] * 2)), attrs, note)


def slice_shape(record: Op, x: TensorType, starts: Shape, stops: Shape, steps: Ints) -> Shape:
    """Checks a slice of x and gives its shape; raises the user's error for `record`."""
    record.expect(
        len(starts) == len(stops) == len(steps) == x.ndim,
        f"expected a start, stop and step for each dim of {x}; got {starts}, {stops}, {steps}",
    )
    record.expect(
        all(s > 0 for s in steps), f"expected steps greater than zero; got {steps}", ValueError
    )
    for n, lo, hi in zip(x.shape, starts, stops, strict=True):
        ok = (surely_le(0, lo) or lo >= 0) and (surely_le(lo, hi) or lo <= hi)
        record.expect(
            ok and (surely_le(hi, n) or hi <= n),
            f"expected 0 <= start <= stop <= size in every dim; got {starts} to {stops} for {x}",
            IndexError,
        )
    return _sizes(starts, stops, steps)


def _sizes(starts: Shape, stops: Shape, steps: Ints) -> Shape:
    return tuple((hi - lo + s - 1) // s for lo, hi, s in zip(starts, stops, steps, strict=True))


def _slices(
    starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
) -> tuple[slice | Any, ...]:
    return (*(slice(*t) for t in zip(starts, stops, steps, strict=True)), ...)


def _check_update(record: Op, base: TensorType, update: TensorType, shape: Shape) -> None:
    record.expect(
        update.dtype is base.dtype,
        f"expected an update of the base's dtype; got {base} and {update}",
        TypeError,
    )
    record.expect(
        same_shape(update.shape, shape),
        f"expected an update of shape ({', '.join(map(str, shape))}); got {update} for {base}",
    )


def _slice_cases() -> Iterable[tuple[np.ndarray, dict[str, Any], str]]:
    def attrs(starts: Ints, stops: Ints, steps: Ints) -> dict[str, Any]:
        return {"starts": starts, "stops": stops, "steps": steps}

    x = uniform((4, 7))
    yield x, attrs((1, 0), (3, 7), (1, 1)), ""
    yield x, attrs((0, 1), (4, 7), (3, 2)), "steps"
    yield x, attrs((2, 3), (3, 4), (1, 1)), "one element"
    yield x, attrs((2, 3), (2, 7), (1, 2)), "empty result"
    yield strided(x), attrs((1, 2), (4, 7), (2, 1)), "strided"
    yield uniform((0, 3)), attrs((0, 0), (0, 2), (1, 1)), "empty"
    yield uniform(()), attrs((), (), ()), "0-d"
    yield integers((3, 4), "int64"), attrs((0, 1), (3, 3), (2, 1)), "integers"


class Diagonal(Op):
    """diagonal(x; offset, axis1, axis2): x[.., i, .., i + offset, ..], the diagonal last; a view.

    axis1 indexes the rows, axis2 the columns; both dims are gone from the result.
    """

    name = "diagonal"
    view = True

    def infer(self, x: TensorType, *, offset: int, axis1: int, axis2: int) -> TensorType:
        return x.with_shape(_diagonal_shape(self, x, offset, axis1, axis2))

    def reference(self, x: np.ndarray, *, offset: int, axis1: int, axis2: int) -> np.ndarray:
        return _diagonal(x, offset, axis1, axis2)

    def vjp(self, g: Any, out: Any, x: Any, **attrs: Any) -> tuple[Any, ...]:
        return (op.diagonal_update(_zeros(g, x), g, **attrs),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return op.diagonal(tangents[0], **attrs)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        offset: int,
        axis1: int,
        axis2: int,
    ) -> Any:
        return op.diagonal(operands[0], offset=offset, axis1=axis1 + 1, axis2=axis2 + 1)

    def lower(self, b: Builder, x: Array, *, offset: int, axis1: int, axis2: int) -> Array:
        shape = _diagonal_shape(self, TensorType(x.shape, x.dtype), offset, axis1, axis2)
        at = list(b.axes(len(shape)))
        d = at.pop()
        pair = {axis1: d + max(0, -offset), axis2: d + max(0, offset)}
        rest = iter(at)
        index = [pair[k] if k in pair else next(rest) for k in range(x.ndim)]
        return b.pointwise(shape, x.dtype, load(x, index))

    def put(self, base: Any, update: Any, **attrs: Any) -> Any:
        return op.diagonal_update(base, update, **attrs)

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, offset: int, axis1: int, axis2: int
    ) -> Any:
        t = ctx.type(inputs[0])
        rows, columns = t.shape[axis1], t.shape[axis2]
        if isinstance(rows, Sym) or isinstance(columns, Sym):
            raise RuntimeError(
                f"[diagonal] no ONNX form for symbolic sizes; got {t}; export with fixed sizes"
            )
        rest = [k for k in range(t.ndim) if k not in (axis1, axis2)]
        x = ctx.node("Transpose", [inputs[0]], perm=[axis1, axis2, *rest])
        x = ctx.node(
            "Reshape",
            [x, ctx.shape((rows * columns, *(t.shape[k] for k in rest)))],
            allowzero=1,
        )
        i = np.arange(hint(_length(rows, columns, offset)))
        places = (i + max(0, -offset)) * columns + i + max(0, offset)
        x = ctx.node("Gather", [x, ctx.constant(places.astype(np.int64))], axis=0)
        return ctx.node("Transpose", [x], perm=[*range(1, len(rest) + 1), 0])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _diagonal_cases():
            yield Sample((x,), attrs, note)


class DiagonalUpdate(Op):
    """diagonal_update(base, update; offset, axis1, axis2): base with that diagonal replaced."""

    name = "diagonal_update"

    def infer(
        self, base: TensorType, update: TensorType, *, offset: int, axis1: int, axis2: int
    ) -> TensorType:
        self.same_device((base, update))
        shape = _diagonal_shape(self, base, offset, axis1, axis2)
        _check_update(self, base, update, shape)
        guard_empty(update.shape)
        return base

    def reference(
        self, base: np.ndarray, update: np.ndarray, *, offset: int, axis1: int, axis2: int
    ) -> np.ndarray:
        out = np.array(base)
        _diagonal(out, offset, axis1, axis2)[...] = update
        return out

    def vjp(self, g: Any, out: Any, base: Any, update: Any, **attrs: Any) -> tuple[Any, ...]:
        part = op.diagonal(g, **attrs)
        return op.diagonal_update(g, zeros_like(part), **attrs), part

    def jvp(self, tangents: tuple[Any, ...], out: Any, base: Any, update: Any, **attrs: Any) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_update = zeros_like(update) if tangents[1] is None else tangents[1]
        return op.diagonal_update(t_base, t_update, **attrs)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        offset: int,
        axis1: int,
        axis2: int,
    ) -> Any:
        base, update = align_batch(operands, batched)
        return op.diagonal_update(base, update, offset=offset, axis1=axis1 + 1, axis2=axis2 + 1)

    def lower(
        self, b: Builder, base: Array, update: Array, *, offset: int, axis1: int, axis2: int
    ) -> Array:
        at = b.axes(base.ndim)
        old = load(base, at)
        if is_empty(update.shape):
            return b.pointwise(base.shape, base.dtype, old)
        row, column = at[axis1], at[axis2]
        place = row - max(0, -offset)
        place = readable(make("max", place, const(0, INDEX)), update.shape[-1])
        rest = [i for k, i in enumerate(at) if k not in (axis1, axis2)]
        new = load(update, (*rest, place))
        return b.pointwise(base.shape, base.dtype, select((column - row).eq(offset), new, old))

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, offset: int, axis1: int, axis2: int
    ) -> Any:
        t = ctx.type(inputs[0])
        if any(isinstance(d, Sym) for d in t.shape):
            raise RuntimeError(
                f"[diagonal_update] no ONNX form for symbolic sizes; got {t}; export with fixed "
                "sizes"
            )
        sizes = [hint(d) for d in t.shape]
        i = np.arange(hint(_length(sizes[axis1], sizes[axis2], offset)))
        rest = [np.arange(d) for k, d in enumerate(sizes) if k not in (axis1, axis2)]
        grids = list(np.meshgrid(*rest, i, indexing="ij"))
        d = grids.pop()
        pair = {axis1: d + max(0, -offset), axis2: d + max(0, offset)}
        places = [pair[k] if k in pair else grids.pop(0) for k in range(len(sizes))]
        indices = ctx.constant(np.stack(places, axis=-1).astype(np.int64))
        return ctx.node("ScatterND", [inputs[0], indices, inputs[1]])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _diagonal_cases():
            yield Sample((x, np.array(_diagonal(x, **attrs) * 2)), attrs, note)


def _diagonal(x: np.ndarray, offset: int, axis1: int, axis2: int) -> np.ndarray:
    """The view of a diagonal; writable where x is."""
    out = x.diagonal(offset, axis1, axis2)
    if x.flags.writeable:
        out.flags.writeable = True
    return out


def _length(rows: Dim, columns: Dim, offset: int) -> Dim:
    return smax(0, smin(rows - max(0, -offset), columns - max(0, offset)))


def _diagonal_shape(record: Op, x: TensorType, offset: int, axis1: int, axis2: int) -> Shape:
    record.expect(
        x.ndim >= 2 and 0 <= axis1 < x.ndim and 0 <= axis2 < x.ndim and axis1 != axis2,
        f"expected two different dims of {x}; diagonal dimensions cannot be identical; got {axis1} "
        f"and {axis2}",
    )
    rest = [d for k, d in enumerate(x.shape) if k not in (axis1, axis2)]
    return (*rest, _length(x.shape[axis1], x.shape[axis2], offset))


def _zeros(like: Any, x: Any) -> Any:
    """Zeros of x's shape (of which only the type may be known), applied the way `like` is."""
    return like._bind(
        op.full, (), {"shape": x.shape, "value": 0, "dtype": x.dtype, "device": str(x.device)}
    )


def _diagonal_cases() -> Iterable[tuple[np.ndarray, dict[str, Any], str]]:
    def attrs(offset: int, axis1: int = 0, axis2: int = 1) -> dict[str, Any]:
        return {"offset": offset, "axis1": axis1, "axis2": axis2}

    yield uniform((3, 4)), attrs(0), ""
    yield uniform((4, 3)), attrs(1), "above"
    yield uniform((4, 3)), attrs(-2), "below"
    yield uniform((3, 2, 4)), attrs(1, 0, 2), "batched"
    yield uniform((3, 2, 4)), attrs(-1, 2, 1), "axes reversed"
    yield uniform((2, 3)), attrs(5), "empty result"
    yield strided(uniform((3, 4))), attrs(0), "strided"


slice_ = Slice()
slice_update = SliceUpdate()
diagonal = Diagonal()
diagonal_update = DiagonalUpdate()
