"""Reductions over axes: sum, prod, amax, amin, argmax, argmin, any, all.

Owns their records. Attributes: `axes`, a sorted tuple of non-negative axis numbers without
repetition (the public layer normalises; () reduces nothing), and `keepdim`. logsumexp and the
softmaxes are in softmax.py. Accumulators and orders of addition: docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    axis,
    load,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.convert import cast_array, cast_expr
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    apply_like,
    direct_reference,
    is_half,
    op,
)
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.compiler.symbolic import prod as size_of
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Axes = tuple[int, ...]


def reduced_shape(shape: Sequence[Dim], axes: Axes, keepdim: bool) -> tuple[Dim, ...]:
    """The shape after reducing `axes`."""
    if keepdim:
        return tuple(1 if k in axes else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def keep_dims(x: Any, shape: Sequence[Dim], axes: Axes, keepdim: bool) -> Any:
    """A reduced tensor with its reduced axes as dims of size 1 (as if keepdim had been True)."""
    return x if keepdim else op.reshape(x, shape=reduced_shape(shape, axes, True))


def reduced_read(x: Array, axes: Axes, keepdim: bool) -> tuple[Expr, tuple[Dim, ...], str]:
    """x's element as a reduction body, the reduced extents, and the order of accumulation.

    The result's axes come first (0..), then the reduced ones in order.
    """
    rank = x.ndim if keepdim else x.ndim - len(axes)
    index, outer, inner = [], 0, rank
    for k in range(x.ndim):
        if k in axes:
            index.append(axis(inner))
            inner += 1
            outer += keepdim
        else:
            index.append(axis(outer))
            outer += 1
    order = "lanes" if x.ndim - 1 in axes else "columns"
    return load(x, tuple(index)), tuple(x.shape[k] for k in axes), order


class Reduce(Op):
    """Base: subclasses give `numpy`, `combine`, the result's dtype, and derivatives."""

    combine = ""
    onnx_op = ""
    complex_too = False
    needs_elements = False  # an empty reduced axis is an error: there is no identity

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return types[0].numel

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        (x,) = types
        axes: Axes = attrs["axes"]
        self.expect(
            list(axes) == sorted(set(axes)) and all(0 <= k < x.ndim for k in axes),
            f"expected axes sorted, without repetition, in [0, {x.ndim}); got {axes} for {x}",
            IndexError,
        )
        self.expect(
            self.complex_too or not x.dtype.is_complex,
            f"not defined for complex dtypes; got {x}; use its real, imag or abs",
            NotImplementedError,
        )
        if self.needs_elements:
            empty = [k for k in axes if not isinstance(x.shape[k], Sym) and x.shape[k] == 0]
            self.expect(
                not empty,
                f"expected reduced dims of at least one element; got {x} over dim {empty[:1]}, "
                "and this op has no identity; check numel() first",
                IndexError,
            )
        shape = reduced_shape(x.shape, axes, attrs.get("keepdim", False))
        return TensorType(shape, self.out_dtype(x.dtype, attrs.get("dtype")), x.device)

    def out_dtype(self, dtype: DType, wanted: DType | None) -> DType:
        return dtype

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        attrs["axes"] = tuple(k + 1 for k in attrs["axes"])
        return self(*operands, **attrs)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        x = inputs[0]
        if not self.onnx_op:
            return super().onnx(ctx, inputs, **attrs)
        source = ctx.type(x).dtype
        wanted = self.out_dtype(source, attrs.get("dtype"))
        if wanted is not source:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(wanted))
        axes = ctx.constant(np.asarray(attrs["axes"], np.int64))
        keep = int(attrs.get("keepdim", False))
        narrow = wanted if wanted.name in ("bool", "int16") else None  # ONNX does not reduce these
        if narrow is not None:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(dtypes.int32))
        out = ctx.node(self.onnx_op, [x, axes], keepdims=keep, noop_with_empty_axes=1)
        return out if narrow is None else ctx.node("Cast", [out], to=ctx.onnx_dtype(narrow))

    def samples(self) -> Iterable[Sample]:
        return reduce_samples(ints=True, empty=not self.needs_elements)


def reduce_samples(ints: bool = True, empty: bool = True, low: float = -2.0) -> Iterable[Sample]:
    """Samples of a reduction: every kind of axes, layouts, dtypes, NaN and infinity."""
    x = examples.uniform((2, 3, 4), low, 2.0)
    for axes in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
        for keepdim in (False, True):
            yield Sample((x,), {"axes": axes, "keepdim": keepdim})
    y = examples.uniform((3, 5), low, 2.0, np.float64)
    yield Sample((examples.strided(y),), {"axes": (0,), "keepdim": False}, "strided")
    yield Sample((y,), {"axes": (), "keepdim": False}, "no axes")
    yield Sample((np.asarray(y[0, 0]),), {"axes": (), "keepdim": False}, "0-d")
    yield Sample((x[:0],), {"axes": (1,), "keepdim": False}, "empty result")
    if empty:
        yield Sample((x[:, :0],), {"axes": (1,), "keepdim": False}, "empty reduced axis")
        yield Sample((x[:, :0],), {"axes": (0, 1, 2), "keepdim": True}, "empty reduced axis")
    floats: list[Any] = [*examples.FLOATS, np.float16, dtypes.bfloat16.np]
    for dt in floats:
        s = np.array([[np.nan, 1, -np.inf], [2, np.inf, 3], [-0.0, 0.0, -1], [5, 5, 4]]).astype(dt)
        for axes in ((0,), (1,)):
            note = f"special {np.dtype(dt)}"
            yield Sample((s,), {"axes": axes, "keepdim": False}, note, grad=False)
    for dt in (*examples.INTS, examples.BOOL) if ints else ():
        z = examples.integers((3, 4), dt)
        yield Sample((z,), {"axes": (1,), "keepdim": False}, str(dt), grad=False)
        yield Sample((z,), {"axes": (0, 1), "keepdim": True}, str(dt), grad=False)


class _Accumulated(Reduce):
    """sum and prod. Bools and integers give int64 unless `dtype` says otherwise; the operand is
    converted to the result's dtype first. float16 and bfloat16 accumulate in float32."""

    complex_too = True
    ufunc: Any

    def out_dtype(self, dtype: DType, wanted: DType | None) -> DType:
        if wanted is not None:
            return wanted
        return dtype if dtype.category >= dtypes.Category.FLOAT else dtypes.int64

    def accumulator(self, dtype: DType) -> DType:
        return dtypes.float32 if is_half(dtype) else dtype

    def reference(self, x: np.ndarray, axes: Axes, keepdim: bool = False,
                  dtype: DType | None = None) -> np.ndarray:  # fmt: skip
        out = self.out_dtype(dtypes.from_numpy(x.dtype), dtype)
        if x.dtype != out.np:
            x = cast_array(x, out)
        acc = self.accumulator(out)
        if out is dtypes.bool_:
            joined: Any = np.logical_or if self.combine == "sum" else np.logical_and
            return np.asarray(joined.reduce(x, axis=axes, keepdims=keepdim))
        wide = x if acc is out else x.astype(np.float32)
        result = np.asarray(self.ufunc.reduce(wide, axis=axes, keepdims=keepdim, dtype=acc.np))
        return result if acc is out else result.astype(out.np)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        dtype = types[0].dtype
        out = self.out_dtype(dtype, attrs.get("dtype"))
        if not direct_reference(self, _Accumulated) or is_half(out) or out is dtypes.bool_:
            return None
        reduce, axes, keep = self.ufunc.reduce, attrs["axes"], attrs.get("keepdim", False)
        if dtype.category < dtypes.Category.FLOAT and dtype is not out:
            return lambda x: reduce(x.astype(out.np), axes, out.np, None, keep)
        if dtype is not out:
            return None
        return lambda x: reduce(x, axes, out.np, None, keep)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        out = self.out_dtype(x.dtype, attrs.get("dtype"))
        shape = reduced_shape(x.shape, axes, keepdim)
        value, extents, order = reduced_read(x, axes, keepdim)
        value = cast_expr(value, out)
        if not axes:
            return b.pointwise(shape, out, value)
        if out is dtypes.bool_:
            return b.reduction(shape, extents, value, "any" if self.combine == "sum" else "all")
        acc = self.accumulator(out)
        total = b.reduction(shape, extents, cast_expr(value, acc), self.combine, order)
        if acc is out:
            return total
        return b.pointwise(shape, out, cast_expr(load(total, b.axes(len(shape))), out))


class Sum(_Accumulated):
    """sum(x; axes, keepdim, dtype=None)."""

    name, combine, onnx_op = "sum", "sum", "ReduceSum"
    ufunc = np.add

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if x.dtype.category < dtypes.Category.FLOAT:
            return (None,)
        g = keep_dims(g, x.shape, attrs["axes"], attrs.get("keepdim", False))
        g = op.expand(g, shape=x.shape)
        return (g if g.dtype is x.dtype else op.cast(g, dtype=x.dtype),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        return None if t is None else self(t, **attrs)

    def total(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        """One sum, over the new axis as well."""
        if attrs.get("keepdim"):
            kept = self(*operands, **{**attrs, "axes": tuple(k + 1 for k in attrs["axes"])})
            return self(kept, axes=(0,), keepdim=False)
        axes = (0, *(k + 1 for k in attrs["axes"]))
        return self(*operands, **{**attrs, "axes": axes})


class Prod(_Accumulated):
    """prod(x; axes, keepdim, dtype=None). The derivative is right where elements are zero."""

    name, combine, onnx_op = "prod", "prod", "ReduceProd"
    saves = (0,)
    ufunc = np.multiply

    def others(self, x: Any, axes: Axes) -> Any:
        """For each element, the product of the others of its group.

        Along each axis: exclusive products from the left times those from the right, so that zeros
        need no case; over several axes, the products of the later ones enter first.
        """
        result = None
        inner = x  # x reduced over the axes already done, kept as size 1
        for k in reversed(axes):
            factor = _exclusive(inner, k)
            result = factor if result is None else op.mul(result, factor)
            inner = self(inner, axes=(k,), keepdim=True)
        return result

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if x.dtype.category < dtypes.Category.FLOAT:
            return (None,)
        axes = attrs["axes"]
        g = keep_dims(g, x.shape, axes, attrs.get("keepdim", False))
        if not axes:
            return (g if g.dtype is x.dtype else op.cast(g, dtype=x.dtype),)
        y = x if x.dtype is g.dtype else op.cast(x, dtype=g.dtype)
        others = self.others(y, axes)
        gx = op.mul(g, op.conj(others) if others.dtype.is_complex else others)
        return (gx if gx.dtype is x.dtype else op.cast(gx, dtype=x.dtype),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        if t is None or out.dtype.category < dtypes.Category.FLOAT:
            return None
        (x,) = operands
        if x.dtype is not out.dtype:
            x, t = op.cast(x, dtype=out.dtype), op.cast(t, dtype=out.dtype)
        axes = attrs["axes"]
        if not axes:
            return t
        each = op.mul(t, self.others(x, axes))
        return op.sum(each, axes=axes, keepdim=attrs.get("keepdim", False))

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        zeros = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [1.5, 2.5, -1.0]])
        for axes in ((0,), (1,), (0, 1)):
            yield Sample((zeros,), {"axes": axes, "keepdim": False}, "zeros among the elements")


def _exclusive(x: Any, k: int) -> Any:
    """Along axis k, the product of all elements but the one at each place."""
    n = x.shape[k]
    ones = apply_like(
        op.full, x, shape=tuple(1 if i == k else d for i, d in enumerate(x.shape)), value=1,
        dtype=x.dtype, device=str(x.device),
    )  # fmt: skip
    if not isinstance(n, Sym) and n <= 1:
        return op.expand(ones, shape=x.shape)
    left = op.cumprod(op.concatenate(ones, _narrow(x, k, 0, n - 1), axis=k), axis=k)
    tail = op.flip(_narrow(x, k, 1, n), axes=(k,))
    right = op.flip(op.cumprod(op.concatenate(ones, tail, axis=k), axis=k), axes=(k,))
    return op.mul(left, right)


def _narrow(x: Any, k: int, start: Dim, stop: Dim) -> Any:
    starts = tuple(start if i == k else 0 for i in range(x.ndim))
    stops = tuple(stop if i == k else d for i, d in enumerate(x.shape))
    return op.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)


class _Best(Reduce):
    """amax and amin. NaN wins. Ties share the gradient evenly, as torch.amax does; with `nans`,
    NaNs are ties as well (torch.max), else the gradient is NaN beside them.
    """

    needs_elements = True
    saves = (0, "out")
    logic = ""
    ufunc: Any

    def reference(
        self, x: np.ndarray, axes: Axes, keepdim: bool = False, nans: bool = False
    ) -> np.ndarray:
        if not axes:
            return x.copy()
        if is_half(dtypes.from_numpy(x.dtype)):
            wide = x.astype(np.float32)
            return np.asarray(self.ufunc.reduce(wide, axis=axes, keepdims=keepdim)).astype(x.dtype)
        return np.asarray(self.ufunc.reduce(x, axis=axes, keepdims=keepdim))

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        shape = reduced_shape(x.shape, axes, keepdim)
        value, extents, order = reduced_read(x, axes, keepdim)
        if not axes:
            return b.pointwise(shape, x.dtype, value)
        if x.dtype is dtypes.bool_:
            return b.reduction(shape, extents, value, self.logic, order)
        if not is_half(x.dtype):
            return b.reduction(shape, extents, value, self.combine, order)
        best = b.reduction(shape, extents, value.cast(dtypes.float32), self.combine, order)
        return b.pointwise(shape, x.dtype, load(best, b.axes(len(shape))).cast(x.dtype))

    def shares(self, out: Any, x: Any, axes: Axes, nans: bool) -> Any:
        """For each element its part of the derivative: 1 / (number of ties) for the best."""
        best = op.eq(x, op.expand(out, shape=x.shape))
        if nans and x.dtype.is_floating_point:
            best = op.logical_or(best, op.isnan(x))  # there is one only if it wins
        ties = op.cast(best, dtype=x.dtype)
        return op.div(ties, op.expand(op.sum(ties, axes=axes, keepdim=True), shape=x.shape))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        if not axes:
            return (g,)
        out, g = (keep_dims(t, x.shape, axes, keepdim) for t in (out, g))
        return (
            op.mul(
                op.expand(g, shape=x.shape), self.shares(out, x, axes, attrs.get("nans", False))
            ),
        )

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,), (x,) = tangents, operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        if t is None or not axes:
            return t
        kept = keep_dims(out, x.shape, axes, keepdim)
        return op.sum(
            op.mul(t, self.shares(kept, x, axes, attrs.get("nans", False))),
            axes=axes,
            keepdim=keepdim,
        )


class Amax(_Best):
    name, combine, logic, onnx_op = "amax", "max", "any", "ReduceMax"
    ufunc = np.maximum


class Amin(_Best):
    name, combine, logic, onnx_op = "amin", "min", "all", "ReduceMin"
    ufunc = np.minimum


class _ArgBest(Reduce):
    """int64 index, in the flattened reduced axes, of the first best element; NaN is best."""

    needs_elements = True
    differentiable = False

    def out_dtype(self, dtype: DType, wanted: DType | None) -> DType:
        return dtypes.int64

    def reference(self, x: np.ndarray, axes: Axes, keepdim: bool = False) -> np.ndarray:
        if is_half(dtypes.from_numpy(x.dtype)):
            x = x.astype(np.float32)
        kept = [k for k in range(x.ndim) if k not in axes]
        shape = reduced_shape(x.shape, axes, keepdim)
        groups = int(np.prod([x.shape[k] for k in axes], dtype=np.int64))
        flat = x.transpose(*kept, *axes).reshape(*(x.shape[k] for k in kept), groups)
        return np.asarray(self.find(flat), np.int64).reshape(shape)

    def find(self, flat: np.ndarray) -> np.ndarray:
        """The index of the best along the last axis."""
        raise NotImplementedError(self.name)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        shape = reduced_shape(x.shape, axes, keepdim)
        value, extents, order = reduced_read(x, axes, keepdim)
        if x.dtype is dtypes.bool_:
            value = value.cast(dtypes.uint8)
        elif is_half(x.dtype):
            value = value.cast(dtypes.float32)
        return b.reduction(shape, extents or (1,), value, self.combine, order)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        axes: Axes = attrs["axes"]
        (x,), t = inputs, ctx.type(inputs[0])
        if t.dtype is dtypes.bool_:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(dtypes.uint8))
        keep = bool(attrs.get("keepdim", False))
        if len(axes) == 1:
            return ctx.node(self.onnx_op, [x], axis=axes[0], keepdims=int(keep))
        kept = [k for k in range(t.ndim) if k not in axes]  # the reduced axes as one, the last
        if t.ndim:
            x = ctx.node("Transpose", [x], perm=[*kept, *axes])
        lead, group = [t.shape[k] for k in kept], size_of(t.shape[k] for k in axes)
        x = ctx.node("Reshape", [x, ctx.shape((*lead, group))], allowzero=1)
        out = ctx.node(self.onnx_op, [x], axis=len(kept), keepdims=0)
        if not keep:
            return out
        return ctx.node(
            "Reshape", [out, ctx.shape(reduced_shape(t.shape, axes, True))], allowzero=1
        )


class Argmax(_ArgBest):
    name, combine, onnx_op = "argmax", "argmax", "ArgMax"

    def find(self, flat: np.ndarray) -> np.ndarray:
        return np.argmax(flat, axis=-1)


class Argmin(_ArgBest):
    name, combine, onnx_op = "argmin", "argmin", "ArgMin"

    def find(self, flat: np.ndarray) -> np.ndarray:
        return np.argmin(flat, axis=-1)


def last_nan(x: np.ndarray, best: np.ndarray) -> np.ndarray:
    """best, indices along the last axis of x, but the last NaN's where there are NaNs."""
    nan = np.flip(x != x, -1)
    return np.where(nan.any(-1), x.shape[-1] - 1 - np.argmax(nan, -1), best)


class Argpool(_ArgBest):
    """argmax, but of several NaNs the last: what max pooling takes."""

    name, combine, onnx_op = "argpool", "argpool", "ArgMax"

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        x = np.array(
            [[np.nan, 1, np.nan], [2, np.nan, np.nan], [np.nan, np.nan, np.inf], [3, 1, 3]]
        )
        for axes in ((0,), (1,), (0, 1)):
            yield Sample((x,), {"axes": axes, "keepdim": False}, "several NaN", grad=False)

    def find(self, flat: np.ndarray) -> np.ndarray:
        return last_nan(flat, np.argmax(flat, axis=-1))


class _Truth(Reduce):
    """any and all, of elements that are not 0 (NaN is true). Result bool."""

    complex_too = True
    differentiable = False
    ufunc: Any

    def out_dtype(self, dtype: DType, wanted: DType | None) -> DType:
        return dtypes.bool_

    def reference(self, x: np.ndarray, axes: Axes, keepdim: bool = False) -> np.ndarray:
        return np.asarray(self.ufunc.reduce(x != 0, axis=axes, keepdims=keepdim))

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        shape = reduced_shape(x.shape, axes, keepdim)
        value, extents, order = reduced_read(x, axes, keepdim)
        truth = cast_expr(value, dtypes.bool_)
        if not axes:
            return b.pointwise(shape, dtypes.bool_, truth)
        return b.reduction(shape, extents, truth, self.combine, order)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        counted = ctx.node("Cast", inputs, to=ctx.onnx_dtype(dtypes.bool_))
        if self.combine == "all":
            counted = ctx.node("Not", [counted])  # all: no element is false
        number = ctx.node("Cast", [counted], to=ctx.onnx_dtype(dtypes.int64))
        axes = ctx.constant(np.asarray(attrs["axes"], np.int64))
        keep = int(attrs.get("keepdim", False))
        count = ctx.node("ReduceSum", [number, axes], keepdims=keep, noop_with_empty_axes=1)
        zero = ctx.constant(np.asarray(0, np.int64))
        return ctx.node("Equal" if self.combine == "all" else "Greater", [count, zero])


class Any_(_Truth):
    name, combine = "any", "any"
    ufunc = np.logical_or


class All(_Truth):
    name, combine = "all", "all"
    ufunc = np.logical_and


sum_, prod, amax, amin = Sum(), Prod(), Amax(), Amin()
argmax, argmin, argpool, any_, all_ = Argmax(), Argmin(), Argpool(), Any_(), All()
