"""Movement ops: reshape, permute, expand, detach, flip, concatenate.

They change where an element is, never what it is. reshape, permute, expand and detach are views:
their reference returns a NumPy view of the operand, and `put` writes through it. pad is in pad.py,
slices and diagonals in slicing.py, sliding windows in windows.py.

Sizes of -1, negative dims and defaults are resolved by the public layer: attributes here are full
tuples of non-negative numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
    make,
    select,
)
from jitgrad.compiler.ops.examples import integers, uniform
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    direct_reference,
    op,
    reduce_like,
    zeros_like,
)
from jitgrad.compiler.ops.regions import (
    guard_empty,
    is_empty,
    readable,
    zero_filled,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static, prod, same
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Shape = tuple[Dim, ...]


class Reshape(Op):
    """reshape(x; shape): the same elements in row-major order under another shape.

    A view where the operand's strides allow it: the dispatcher asks `can_view` and clones first
    where they do not. `shape` has x's number of elements (no -1).
    """

    name = "reshape"
    noop = True
    view = True
    linear = True

    def infer(self, x: TensorType, *, shape: Shape) -> TensorType:
        a, b = x.numel, prod(shape)
        self.expect(
            same(a, b) or a == b,
            f"shape {shape_text(shape)} is invalid for input of size {a}; got {x}; the product of "
            "the sizes must stay the same",
        )
        return x.with_shape(tuple(shape))

    def can_view(self, x_shape: Sequence[int], x_strides: Sequence[int], shape: Shape) -> bool:
        """Whether an array of this shape and strides (in any unit) can be viewed as `shape`."""
        return view_strides(x_shape, x_strides, tuple(map(int, shape))) is not None

    def reference(self, x: np.ndarray, *, shape: Sequence[int]) -> np.ndarray:
        return x.reshape(shape)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        shape = attrs["shape"]
        if not direct_reference(self, Reshape) or not is_static(shape):
            return None
        return lambda x: x.reshape(shape)

    def vjp(self, g: Any, out: Any, x: Any, *, shape: Shape) -> tuple[Any, ...]:
        return (op.reshape(g, shape=x.shape),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *, shape: Shape) -> Any:
        return op.reshape(tangents[0], shape=shape)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, shape: Shape) -> Any:
        (x,) = operands
        return op.reshape(x, shape=(x.shape[0], *shape))

    def lower(self, b: Builder, x: Array, *, shape: Shape) -> Array:
        if is_empty(shape):
            return zero_filled(b, shape, x.dtype)
        index: list[Expr] = []
        for source, target in _groups(x.shape, shape):
            sizes = [x.shape[k] for k in source]
            if len(source) == 1 and len(target) == 1:
                index.append(axis(target[0]))
            else:
                flat = b.flat_index([axis(k) for k in target], [shape[k] for k in target])
                index.extend(b.unflatten(flat, sizes))
        return b.pointwise(shape, x.dtype, load(x, index))

    def put(self, base: Any, update: Any, *, shape: Shape) -> Any:
        return op.reshape(update, shape=base.shape)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, shape: Shape) -> Any:
        return ctx.node("Reshape", [inputs[0], ctx.shape(shape)], allowzero=1)

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((2, 6)),), {"shape": (3, 4)})
        yield Sample((uniform((2, 3, 4)),), {"shape": (2, 12)})
        yield Sample((uniform((4, 6)).T,), {"shape": (3, 2, 4)}, "strided, a view")
        yield Sample((uniform((4, 6)).T,), {"shape": (24,)}, "strided, needs a copy")
        yield Sample((uniform((1,)),), {"shape": ()}, "0-d")
        yield Sample((uniform(()),), {"shape": (1, 1)}, "from 0-d")
        yield Sample((uniform((0, 3)),), {"shape": (3, 0, 2)}, "empty")
        yield Sample((integers((2, 3), "int64"),), {"shape": (6,)}, "integers")


def view_strides(
    shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides that show an array of `shape` and `strides` as `new_shape`; None if none can.

    Strides may be in elements or bytes. As in PyTorch's `view`: dims of the array are merged where
    stepping over one equals stepping through the next; each new dim must lie within a merged one.
    """
    if 0 in shape or not shape:
        unit = strides[-1] if strides else 1
        sizes = [prod(max(1, d) for d in new_shape[k + 1 :]) for k in range(len(new_shape))]
        return tuple(int(hint(s)) * unit for s in sizes)
    chunks: list[tuple[int, int]] = []  # (elements, stride of the last), outermost first
    for d, s in zip(shape, strides, strict=True):
        if d == 1:
            continue
        if chunks and chunks[-1][1] == d * s:
            chunks[-1] = (chunks[-1][0] * d, s)
        else:
            chunks.append((d, s))
    out: list[int] = []
    left, step = chunks.pop() if chunks else (1, strides[-1])
    for d in reversed(new_shape):
        if d > 1 and left == 1 and chunks:
            left, step = chunks.pop()
        if left % d:
            return None
        out.append(step)
        step *= d
        left //= d
    return tuple(reversed(out))


def _groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """Splits two shapes of equal size into runs of dims with equal products, outermost first."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        s = [i] if i < len(source) else []
        t = [j] if j < len(target) else []
        i, j = i + len(s), j + len(t)
        while True:
            a, b = prod(source[k] for k in s), prod(target[k] for k in t)
            if same(a, b):
                break
            if hint(a) < hint(b) and i < len(source):
                s.append(i)
                i += 1
            elif hint(b) < hint(a) and j < len(target):
                t.append(j)
                j += 1
            else:  # equal in every call, by a guard, but not by form: the rest is one run
                s, t = [*s, *range(i, len(source))], [*t, *range(j, len(target))]
                i, j = len(source), len(target)
                break
        groups.append((s, t))
    return groups


class Permute(Op):
    """permute(x; axes): dim k of the result is dim axes[k] of x."""

    name = "permute"
    view = True
    linear = True

    def infer(self, x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        self.expect(
            sorted(axes) == list(range(x.ndim)),
            f"expected axes to be a permutation of {tuple(range(x.ndim))}; got {axes} for {x}",
        )
        return x.with_shape(tuple(x.shape[k] for k in axes))

    def reference(self, x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        return x.transpose(axes)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        axes = attrs["axes"]
        return (lambda x: x.transpose(axes)) if direct_reference(self, Permute) else None

    def vjp(self, g: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> tuple[Any, ...]:
        return (op.permute(g, axes=inverse_axes(axes)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return op.permute(tangents[0], axes=axes)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axes: tuple[int, ...]
    ) -> Any:
        return op.permute(operands[0], axes=(0, *(k + 1 for k in axes)))

    def lower(self, b: Builder, x: Array, *, axes: tuple[int, ...]) -> Array:
        index = [axis(k) for k in inverse_axes(axes)]
        return b.pointwise([x.shape[k] for k in axes], x.dtype, load(x, index))

    def put(self, base: Any, update: Any, *, axes: tuple[int, ...]) -> Any:
        return op.permute(update, axes=inverse_axes(axes))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axes: tuple[int, ...]) -> Any:
        if not axes:
            return ctx.node("Identity", inputs)
        return ctx.node("Transpose", inputs, perm=list(axes))

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((2, 3, 4)),), {"axes": (2, 0, 1)})
        yield Sample((uniform((3, 5))[:, ::2],), {"axes": (1, 0)}, "strided")
        yield Sample((uniform(()),), {"axes": ()}, "0-d")
        yield Sample((uniform((0, 3)),), {"axes": (1, 0)}, "empty")


def inverse_axes(axes: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes this one."""
    inverse = [0] * len(axes)
    for k, a in enumerate(axes):
        inverse[a] = k
    return tuple(inverse)


class Expand(Op):
    """expand(x; shape): dims of size 1 repeated, new dims in front; a view of stride 0."""

    name = "expand"
    noop = True
    view = True

    def infer(self, x: TensorType, *, shape: Shape) -> TensorType:
        lead = len(shape) - x.ndim
        ok = lead >= 0 and all(
            (not isinstance(d, Sym) and d == 1) or d == shape[lead + k]
            for k, d in enumerate(x.shape)
        )
        self.expect(
            ok,
            f"expected sizes that match {x}, or 1, aligned at the last dim; got shape "
            f"{shape_text(shape)}; only dims of size 1 can be expanded",
        )
        return x.with_shape(tuple(shape))

    def reference(self, x: np.ndarray, *, shape: Sequence[int]) -> np.ndarray:
        if math.prod(shape) == x.size > 0:  # nothing repeats: the view may be written
            return x.reshape(shape)
        return np.broadcast_to(x, shape)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        (type_,), shape = types, attrs["shape"]
        if not direct_reference(self, Expand) or not is_static(shape) or type_.numel != 1:
            return None
        if math.prod(shape) < 2 or type_.dtype is dtypes.bfloat16:
            return None
        strides = (0,) * len(shape)

        def run(x: np.ndarray) -> np.ndarray:  # np.broadcast_to costs ten times as much
            out: np.ndarray = np.ndarray(shape, x.dtype, x, 0, strides)
            out.flags.writeable = False
            return out

        return run

    def vjp(self, g: Any, out: Any, x: Any, *, shape: Shape) -> tuple[Any, ...]:
        return (reduce_like(g, x),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *, shape: Shape) -> Any:
        return op.expand(tangents[0], shape=shape)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, shape: Shape) -> Any:
        (x,) = operands
        fill = (1,) * (len(shape) - (x.ndim - 1))
        x = op.reshape(x, shape=(x.shape[0], *fill, *x.shape[1:]))
        return op.expand(x, shape=(x.shape[0], *shape))

    def lower(self, b: Builder, x: Array, *, shape: Shape) -> Array:
        return b.pointwise(shape, x.dtype, b.broadcast_read(x, len(shape)))

    def put(self, base: Any, update: Any, *, shape: Shape) -> Any:
        lead = len(shape) - base.ndim
        if tuple(shape) == (1,) * lead + tuple(base.shape):  # nothing repeats
            return op.reshape(update, shape=base.shape)
        raise RuntimeError(
            "[expand] unsupported operation: more than one element of the written-to tensor refers "
            "to a single memory location; clone() the tensor before writing to it"
        )

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, shape: Shape) -> Any:
        return ctx.node("Expand", [inputs[0], ctx.shape(shape)])

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((3, 1)),), {"shape": (2, 3, 4)})
        yield Sample((uniform(()),), {"shape": (2, 2)}, "0-d")
        yield Sample((uniform((4,)),), {"shape": (4,)}, "nothing to do")
        yield Sample((uniform((1, 3)),), {"shape": (0, 3)}, "to an empty tensor")


class Detach(Op):
    """detach(x): x itself, its derivative zero in both modes; a view of all of it.

    Inside vmap and forward mode, what `Tensor.detach()` is; elsewhere that is an alias, and no op.
    """

    name = "detach"
    noop = True
    view = True
    differentiable = False

    def infer(self, x: TensorType, **_: Any) -> TensorType:
        return x

    def reference(self, x: np.ndarray, **_: Any) -> np.ndarray:
        return x.view()

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **_: Any) -> Any:
        return op.detach(operands[0])

    def lower(self, b: Builder, x: Array, **_: Any) -> Array:
        return b.pointwise(x.shape, x.dtype, load(x, b.axes(len(x.shape))))

    def put(self, base: Any, update: Any, **_: Any) -> Any:
        return update

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **_: Any) -> Any:
        return ctx.node("Identity", inputs)

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((2, 3)),), grad=False)
        yield Sample((uniform(()),), {}, "0-d", grad=False)
        yield Sample((uniform((3, 5))[:, ::2],), {}, "strided", grad=False)


class Flip(Op):
    """flip(x; axes): the order of elements reversed along axes; a copy, as in PyTorch."""

    name = "flip"
    keeps_layout = True

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 2 * types[0].numel if types[0].ndim - 1 in attrs["axes"] else 0

    def infer(self, x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        self.expect(
            all(0 <= k < x.ndim for k in axes) and len(set(axes)) == len(axes),
            f"expected distinct axes of {x}; got {axes}",
            IndexError,
        )
        return x

    def reference(self, x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        return np.array(np.flip(x, axes))

    def vjp(self, g: Any, out: Any, x: Any, *, axes: tuple[int, ...]) -> tuple[Any, ...]:
        return (op.flip(g, axes=axes),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return op.flip(tangents[0], axes=axes)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axes: tuple[int, ...]
    ) -> Any:
        return op.flip(operands[0], axes=tuple(k + 1 for k in axes))

    def lower(self, b: Builder, x: Array, *, axes: tuple[int, ...]) -> Array:
        index = [dim(d - 1) - axis(k) if k in axes else axis(k) for k, d in enumerate(x.shape)]
        return b.pointwise(x.shape, x.dtype, load(x, index))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axes: tuple[int, ...]) -> Any:
        if not axes:
            return ctx.node("Identity", inputs)
        n, end = len(axes), np.iinfo(np.int64).min
        parts = [[-1] * n, [end] * n, list(axes), [-1] * n]
        return ctx.node("Slice", [inputs[0], *(ctx.constant(np.array(p, np.int64)) for p in parts)])

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((2, 3)),), {"axes": (1,)})
        yield Sample((uniform((2, 3, 2)),), {"axes": (0, 2)})
        yield Sample((uniform((6,))[::2],), {"axes": (0,)}, "strided")
        yield Sample((uniform((0, 2)),), {"axes": (0,)}, "empty")
        yield Sample((uniform(()),), {"axes": ()}, "0-d")


class Concatenate(Op):
    """concatenate(*xs; axis): the operands one after another along axis."""

    name = "concatenate"

    def infer(self, *xs: TensorType, axis: int) -> TensorType:
        self.expect(len(xs) > 0, "expected a non-empty list of tensors; got none")
        self.same_device(xs)
        first = xs[0]
        self.expect(
            0 <= axis < max(first.ndim, 1) and first.ndim > 0,
            f"expected an axis of {first}; got {axis} (0-d tensors cannot be concatenated)",
            IndexError if first.ndim else RuntimeError,
        )
        for k, x in enumerate(xs):
            self.expect(
                x.dtype is first.dtype,
                f"expected operands of one dtype; got {first} and {x}",
                TypeError,
            )
            self.expect(
                x.ndim == first.ndim
                and all(d == e for i, (d, e) in enumerate(zip(x.shape, first.shape)) if i != axis),
                f"sizes of tensors must match except in dimension {axis}; got {first} and, as "
                f"operand {k}, {x}",
            )
        total: Dim = 0
        for x in xs:
            total = total + x.shape[axis]
        guard_empty([x.shape[axis] for x in xs])
        return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))

    def reference(self, *xs: np.ndarray, axis: int) -> np.ndarray:
        return np.concatenate(xs, axis)

    def vjp(self, g: Any, out: Any, *xs: Any, axis: int) -> tuple[Any, ...]:
        grads, at = [], 0
        for x in xs:
            starts = [0] * x.ndim
            stops = list(x.shape)
            starts[axis], stops[axis] = at, at + x.shape[axis]
            at = stops[axis]
            steps = (1,) * x.ndim
            grads.append(op.slice(g, starts=tuple(starts), stops=tuple(stops), steps=steps))
        return tuple(grads)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *xs: Any, axis: int) -> Any:
        parts = [zeros_like(x) if t is None else t for t, x in zip(tangents, xs, strict=True)]
        return op.concatenate(*parts, axis=axis)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int) -> Any:
        parts = align_batch(operands, batched)
        return op.concatenate(*parts, axis=axis + 1)

    def lower(self, b: Builder, *xs: Array, axis: int) -> Array:
        total: Dim = 0
        parts: list[tuple[Array, Dim]] = []  # (operand, first position)
        for x in xs:
            if hint(x.shape[axis]) != 0:
                parts.append((x, total))
            total = total + x.shape[axis]
        shape = (*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :])
        if not parts:
            return zero_filled(b, shape, xs[0].dtype)
        at = b.axes(len(shape))
        # Along the last axis every condition says all that makes its part's clamps idle, so that
        # lanes are neighbours in memory (codegen/guarded.py).
        whole = axis == len(shape) - 1 and len(parts) > 1
        body: Expr | None = const(0, xs[0].dtype) if whole else None
        for k, (x, start) in reversed(list(enumerate(parts))):
            own = at[axis] - dim(start)
            if k > 0:
                own = make("max", own, const(0, INDEX))
            if k < len(parts) - 1:
                own = readable(own, x.shape[axis])
            value = load(x, (*at[:axis], own, *at[axis + 1 :]))
            stop = dim(start + x.shape[axis])
            inside = at[axis] < stop
            if whole and k > 0:
                inside = (at[axis] >= dim(start)) & inside
            body = value if body is None else select(inside, value, body)
        assert body is not None
        return b.pointwise(shape, body.dtype, body)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, axis: int) -> Any:
        return ctx.node("Concat", inputs, axis=axis)

    def samples(self) -> Iterable[Sample]:
        a, c = uniform((2, 3)), uniform((2, 1), seed=1)
        yield Sample((a, c, uniform((2, 2), seed=2)), {"axis": 1})
        yield Sample((a, uniform((1, 3))), {"axis": 0})
        yield Sample((a,), {"axis": 0}, "one operand")
        yield Sample((a, uniform((2, 0)), c), {"axis": 1}, "one operand is empty")
        yield Sample((uniform((0,)), uniform((0,))), {"axis": 0}, "empty")
        yield Sample((uniform((4, 4))[::2, 1:], c), {"axis": 1}, "strided")


def align_batch(operands: Sequence[Any], batched: Sequence[bool]) -> list[Any]:
    """All operands with the new leading axis: those that lack it are expanded along it."""
    size = next(x.shape[0] for x, is_b in zip(operands, batched, strict=True) if is_b)
    return [
        x if is_b else op.expand(x, shape=(size, *x.shape))
        for x, is_b in zip(operands, batched, strict=True)
    ]


def shape_text(shape: Sequence[Dim]) -> str:
    """A shape for messages."""
    return "(" + ", ".join(str(d) for d in shape) + ")"


reshape = Reshape()
permute = Permute()
expand = Expand()
detach = Detach()
flip = Flip()
concatenate = Concatenate()
