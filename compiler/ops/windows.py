"""Sliding windows along one dim: the view unfold, and fold, which adds windows up again.

Each is the transpose, and so the derivative, of the other.
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
from jitgrad.compiler.ops.examples import strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op
from jitgrad.compiler.ops.regions import accumulator, all_of, readable
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.compiler.types import TensorType

Shape = tuple[Dim, ...]


class Unfold(Op):
    """unfold(x; axis, size, step): sliding windows along axis, a new last dim within one; a view.

    Dim `axis` becomes (n - size) // step + 1 windows.
    """

    name = "unfold"
    view = True

    def infer(self, x: TensorType, *, axis: int, size: int, step: int) -> TensorType:
        self.expect(0 <= axis < x.ndim, f"expected an axis of {x}; got {axis}", IndexError)
        self.expect(
            size >= 0 and step >= 1,
            f"expected a size of at least 0 and a step above 0; got {size} and {step}",
        )
        self.expect(
            size <= x.shape[axis],
            f"maximum size for tensor at dimension {axis} is {x.shape[axis]} but size is {size}; "
            f"got {x}",
        )
        return x.with_shape(_windows(x.shape, axis, size, step))

    def reference(self, x: np.ndarray, *, axis: int, size: int, step: int) -> np.ndarray:
        view = np.lib.stride_tricks.sliding_window_view(
            x, size, axis=axis, writeable=x.flags.writeable
        )
        return view[(*(slice(None) for _ in range(axis)), slice(None, None, step))]

    def vjp(self, g: Any, out: Any, x: Any, *, axis: int, size: int, step: int) -> tuple[Any, ...]:
        return (op.fold(g, axis=axis, n=x.shape[axis], size=size, step=step),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return op.unfold(tangents[0], **attrs)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int, size: int, step: int
    ) -> Any:
        return op.unfold(operands[0], axis=axis + 1, size=size, step=step)

    def lower(self, b: Builder, x: Array, *, axis: int, size: int, step: int) -> Array:
        at = b.axes(x.ndim + 1)
        index = [i * step + at[-1] if k == axis else i for k, i in enumerate(at[:-1])]
        return b.pointwise(_windows(x.shape, axis, size, step), x.dtype, load(x, index))

    def put(self, base: Any, update: Any, *, axis: int, size: int, step: int) -> Any:
        if size > step and update.shape[axis] != 1:
            raise RuntimeError(
                "[unfold] unsupported operation: more than one element of the written-to tensor "
                "refers to a single memory location; clone() the tensor before writing to it"
            )
        windows = update.shape[axis]
        for k in range(size):
            low, high, one = [0] * update.ndim, list(update.shape), (1,) * update.ndim
            low[-1], high[-1] = k, k + 1
            part = op.slice(update, starts=tuple(low), stops=tuple(high), steps=one)
            part = op.reshape(part, shape=update.shape[:-1])
            starts, stops, steps = [0] * base.ndim, list(base.shape), [1] * base.ndim
            starts[axis], stops[axis], steps[axis] = k, (windows - 1) * step + k + 1, step
            base = op.slice_update(
                base, part, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)
            )
        return base

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int, size: int, step: int
    ) -> Any:
        t = ctx.type(inputs[0])
        n = t.shape[axis]
        if isinstance(n, Sym):
            raise RuntimeError(
                f"[unfold] no ONNX form for a symbolic size; got {t}; export with fixed sizes"
            )
        first = np.arange((n - size) // step + 1) * step
        places = first[:, None] + np.arange(size)
        x = ctx.node("Gather", [inputs[0], ctx.constant(places.astype(np.int64))], axis=axis)
        rest = [k for k in range(t.ndim + 1) if k != axis + 1]
        return ctx.node("Transpose", [x], perm=[*rest, axis + 1])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _window_cases():
            yield Sample((x,), attrs, note)


class Fold(Op):
    """fold(y; axis, n, size, step): windows, the last dim, added up in a dim of size n.

    The transpose of unfold. float16 and bfloat16 accumulate in float32.
    """

    name = "fold"

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 2 * types[0].numel

    def infer(self, y: TensorType, *, axis: int, n: Dim, size: int, step: int) -> TensorType:
        self.expect(
            0 <= axis < y.ndim - 1
            and y.shape[-1] == size
            and n >= size
            and (n - size) // step + 1 == y.shape[axis],
            f"expected the windows of size {size} that unfold gives of a dim of size {n} with "
            f"step {step}; got {y}, axis {axis}",
        )
        return y.with_shape((*y.shape[:axis], n, *y.shape[axis + 1 : -1]))

    def reference(self, y: np.ndarray, *, axis: int, n: int, size: int, step: int) -> np.ndarray:
        windows = y.shape[axis]
        shape = (*y.shape[:axis], n, *y.shape[axis + 1 : -1])
        wide = np.float32 if y.dtype.itemsize == 2 and y.dtype.kind not in "iu" else y.dtype
        out = np.zeros(shape, wide)
        lead = (slice(None),) * axis
        for k in range(size):
            out[(*lead, slice(k, (windows - 1) * step + k + 1, step))] += y[..., k]
        return out.astype(y.dtype, copy=False)

    def vjp(
        self, g: Any, out: Any, y: Any, *, axis: int, n: Dim, size: int, step: int
    ) -> tuple[Any, ...]:
        return (op.unfold(g, axis=axis, size=size, step=step),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, y: Any, **attrs: Any) -> Any:
        return op.fold(tangents[0], **attrs)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        axis: int,
        n: Dim,
        size: int,
        step: int,
    ) -> Any:
        return op.fold(operands[0], axis=axis + 1, n=n, size=size, step=step)

    def lower(self, b: Builder, y: Array, *, axis: int, n: Dim, size: int, step: int) -> Array:
        # Gathers: position p lies in window p // step - j, for j below size / step rounded up.
        shape = (*y.shape[:axis], n, *y.shape[axis + 1 : -1])
        windows = y.shape[axis]
        at = list(b.axes(len(shape) + 1))
        j = at.pop()
        latest = at[axis] // step
        window = latest - j
        offset = at[axis] - window * step
        tests = [window >= 0, window < dim(windows), offset < size]
        window = readable(make("max", window, const(0, INDEX)), windows)
        offset = make("min", offset, const(size - 1, INDEX))
        wide = accumulator(y.dtype)
        value = load(y, (*at[:axis], window, *at[axis + 1 :], offset)).cast(wide)
        inside = all_of(tests)
        assert inside is not None
        body = select(inside, value, 0)
        total = b.reduction(shape, (-(-size // step),), body, "sum", "columns")
        return (
            total
            if wide is y.dtype
            else b.pointwise(shape, y.dtype, load(total, b.axes(len(shape))).cast(y.dtype))
        )

    def onnx(
        self,
        ctx: OnnxContext,
        inputs: Sequence[str],
        *,
        axis: int,
        n: Dim,
        size: int,
        step: int,
    ) -> Any:
        t = ctx.type(inputs[0])
        if isinstance(n, Sym):
            raise RuntimeError(
                f"[fold] no ONNX form for a symbolic size; got {t}; export with fixed sizes"
            )
        last = t.ndim - 1
        rest = [k for k in range(last) if k != axis]
        updates = ctx.node("Transpose", [inputs[0]], perm=[axis, last, *rest])
        first = np.arange((n - size) // step + 1) * step
        places = (first[:, None] + np.arange(size))[..., None]
        zero = ctx.constant(np.zeros((1,) * last, t.dtype.np))
        base = ctx.node("Expand", [zero, ctx.shape((n, *(t.shape[k] for k in rest)))])
        indices = ctx.constant(places.astype(np.int64))
        out = ctx.node("ScatterND", [base, indices, updates], reduction="add")
        return ctx.node("Transpose", [out], perm=[*range(1, axis + 1), 0, *range(axis + 1, last)])

    def samples(self) -> Iterable[Sample]:
        for x, attrs, note in _window_cases():
            axis, size, step = attrs["axis"], attrs["size"], attrs["step"]
            shape = _windows(x.shape, axis, size, step)
            y = uniform(tuple(map(hint, shape)), seed=1)
            yield Sample((y,), {**attrs, "n": x.shape[axis]}, note)


def _windows(shape: Shape, axis: int, size: int, step: int) -> Shape:
    count = (shape[axis] - size) // step + 1
    return (*shape[:axis], count, *shape[axis + 1 :], size)


def _window_cases() -> Iterable[tuple[np.ndarray, dict[str, Any], str]]:
    yield uniform((2, 7)), {"axis": 1, "size": 3, "step": 1}, ""
    yield uniform((7, 2)), {"axis": 0, "size": 3, "step": 2}, "overlapping"
    yield uniform((2, 9, 2)), {"axis": 1, "size": 2, "step": 3}, "with gaps"
    yield uniform((2, 5)), {"axis": 1, "size": 0, "step": 2}, "windows of nothing"
    yield uniform((5,)), {"axis": 0, "size": 5, "step": 1}, "one window"
    yield strided(uniform((6, 4))), {"axis": 0, "size": 2, "step": 2}, "strided"


unfold = Unfold()
fold = Fold()
