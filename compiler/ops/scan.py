"""Ops along one axis whose elements depend on earlier ones: cumsum, cumprod, cummax,
cummin, recurrence; and sort.

Owns their records. `axis` is a non-negative axis number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    load,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.convert import cast_array, cast_expr
from jitgrad.compiler.ops.movement import align_batch
from jitgrad.compiler.ops.placing import zeros_of
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    apply_like,
    is_half,
    op,
    zeros_like,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class AlongAxis(Op):
    """Base: infer and batch of an op with an `axis`."""

    complex_too = False
    effort = 8
    """What one element costs NumPy, in additions (see Op.work)."""

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return types[0].numel * self.effort

    def check_axis(self, x: TensorType, k: int) -> None:
        self.expect(0 <= k < x.ndim, f"expected axis in [0, {x.ndim}); got {k} for {x}", IndexError)
        self.expect(
            self.complex_too or not x.dtype.is_complex,
            f"not defined for complex dtypes; got {x}; use its real, imag or abs",
            NotImplementedError,
        )

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        attrs["axis"] += 1
        return self(*operands, **attrs)


class _Cumulative(AlongAxis):
    """cumsum and cumprod: bools and integers give int64 unless `dtype` says otherwise. float16 and
    bfloat16 accumulate in float32 and round each result once."""

    complex_too = True
    combine = ""
    ufunc: Any

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        (x,) = types
        self.check_axis(x, attrs["axis"])
        return x.with_dtype(self.out_dtype(x.dtype, attrs.get("dtype")))

    def out_dtype(self, dtype: DType, wanted: DType | None) -> DType:
        out = wanted or (dtype if dtype.category >= dtypes.Category.FLOAT else dtypes.int64)
        self.expect(out is not dtypes.bool_, "expected a number as dtype; got bool", TypeError)
        return out

    def accumulate(
        self, x: np.ndarray, axis: int, dtype: DType | None, reverse: bool
    ) -> np.ndarray:
        out = self.out_dtype(dtypes.from_numpy(x.dtype), dtype)
        x = cast_array(x, out)
        wide = x.astype(np.float32) if is_half(out) else x
        if reverse:
            wide = np.flip(wide, axis)
        result = np.asarray(self.ufunc.accumulate(wide, axis=axis, dtype=wide.dtype))
        return (np.flip(result, axis) if reverse else result).astype(out.np)

    def scan(self, b: Builder, x: Array, attrs: dict[str, Any], reverse: bool) -> Array:
        out = self.out_dtype(x.dtype, attrs.get("dtype"))
        acc = dtypes.float32 if is_half(out) else out
        here = b.axes(x.ndim)
        value = cast_expr(cast_expr(load(x, here), out), acc)
        total = b.scan(x.shape, attrs["axis"], value, self.combine, reverse)
        if acc is out:
            return total
        return b.pointwise(x.shape, out, cast_expr(load(total, here), out))

    def samples(self) -> Iterable[Sample]:
        x = examples.uniform((2, 3, 4))
        for k in range(3):
            yield Sample((x,), {"axis": k})
        y = examples.uniform((3, 5), dtype=np.float64)
        yield Sample((examples.strided(y),), {"axis": 0}, "strided")
        yield Sample((x[:0],), {"axis": 1}, "empty")
        yield Sample((x[:, :0],), {"axis": 1}, "empty axis")
        yield Sample((y[:, :1],), {"axis": 1}, "one element")
        s = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 1.0], [3.0, 0.0, np.inf]])
        for dt in (np.float32, np.float16, dtypes.bfloat16.np):
            yield Sample((s.astype(dt),), {"axis": 1}, f"special {dt}", grad=False)
        for dt in (*examples.INTS, examples.BOOL):
            z = examples.integers((3, 4), dt)
            yield Sample((z,), {"axis": 1}, str(dt), grad=False)


class Cumsum(_Cumulative):
    """cumsum(x; axis, dtype=None, reverse=False): running sums, from the end when `reverse`."""

    name, combine = "cumsum", "sum"
    ufunc = np.add

    def reference(
        self, x: np.ndarray, axis: int, dtype: DType | None = None, reverse: bool = False
    ) -> np.ndarray:
        return self.accumulate(x, axis, dtype, reverse)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        return self.scan(b, operands[0], attrs, attrs.get("reverse", False))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if x.dtype.category < dtypes.Category.FLOAT:
            return (None,)
        g = self(g, axis=attrs["axis"], reverse=not attrs.get("reverse", False))
        return (g if g.dtype is x.dtype else op.cast(g, dtype=x.dtype),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        return None if tangents[0] is None else self(tangents[0], **attrs)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        x = inputs[0]
        out = self.out_dtype(ctx.type(x).dtype, attrs.get("dtype"))
        if out is not ctx.type(x).dtype:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(out))
        k = ctx.constant(np.asarray(attrs["axis"], np.int64))
        return ctx.node("CumSum", [x, k], reverse=int(attrs.get("reverse", False)))

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample((examples.uniform((3, 4)),), {"axis": 1, "reverse": True}, "reverse")
        yield Sample((examples.uniform((3, 4)),), {"axis": 0, "dtype": dtypes.float64})


class Cumprod(_Cumulative):
    """cumprod(x; axis, dtype=None). The derivative never divides, so zeros need no case.

    With p_i the product before i: d out_j / d x_i = p_i * (x_{i+1} ... x_j). So the cotangent of
    x_i is p_i s_i with s_i = g_i + x_{i+1} s_{i+1}: a recurrence.
    """

    name, combine = "cumprod", "prod"
    saves = (0, "out")
    ufunc = np.multiply

    def reference(self, x: np.ndarray, axis: int, dtype: DType | None = None) -> np.ndarray:
        return self.accumulate(x, axis, dtype, False)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        return self.scan(b, operands[0], attrs, False)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if x.dtype.category < dtypes.Category.FLOAT:
            return (None,)
        k = attrs["axis"]
        if _is_zero(x.shape[k]):
            return (zeros_like(x),)
        y = x if x.dtype is g.dtype else op.cast(x, dtype=g.dtype)
        later, before = _shift(y, k, -1, 0), _shift(out, k, 1, 1)
        if g.dtype.is_complex:
            later, before = op.conj(later), op.conj(before)
        gx = op.mul(before, op.recurrence(later, g, axis=k, reverse=True))
        return (gx if gx.dtype is x.dtype else op.cast(gx, dtype=x.dtype),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,), (x,) = tangents, operands
        k = attrs["axis"]
        if t is None or out.dtype.category < dtypes.Category.FLOAT:
            return None
        if _is_zero(x.shape[k]):
            return zeros_like(out)
        if x.dtype is not out.dtype:
            x, t = op.cast(x, dtype=out.dtype), op.cast(t, dtype=out.dtype)
        return op.recurrence(x, op.mul(t, _shift(out, k, 1, 1)), axis=k)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        t = ctx.type(inputs[0])
        out = t.with_dtype(self.out_dtype(t.dtype, attrs.get("dtype")))
        x = inputs[0]
        if out.dtype is not t.dtype:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(out.dtype))
        return _onnx_running(ctx, x, out, attrs["axis"], "Mul", 1)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        zeros = np.array([[1.0, 0.0, 2.0, 0.0], [0.0, 3.0, 1.5, -2.0]])
        yield Sample((zeros,), {"axis": 1}, "zeros among the elements")


def recurrence(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    """y_i = b_i + a_i y_{i-1} along an axis, in b's dtype."""
    y = np.empty_like(b)
    factors, terms, out = (np.moveaxis(x, axis, 0) for x in (a, b, y))
    before = np.zeros(out.shape[1:], y.dtype)
    for n in range(len(out)):
        before = np.add(np.multiply(before, factors[n, ...]), terms[n, ...], out=out[n, ...])
    return y


class Recurrence(AlongAxis):
    """recurrence(a, b; axis, reverse=False): y_i = b_i + a_i y_{i-1}, with 0 before the first (from
    the end when `reverse`). float16 and bfloat16 accumulate in float32 and round each result once.

    With s_i = g_i + a_{i+1} s_{i+1} the cotangent of b_i is s_i, that of a_i is s_i y_{i-1}.
    """

    name = "recurrence"
    complex_too = True
    public = False
    saves = (0, "out")
    effort = 16

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        a, b = types
        self.check_axis(b, attrs["axis"])
        self.expect(
            a.dtype is b.dtype and a.shape == b.shape and b.dtype.category >= dtypes.Category.FLOAT,
            f"expected floats of one dtype and shape; got {a} and {b}",
        )
        return b

    def reference(
        self, a: np.ndarray, b: np.ndarray, axis: int, reverse: bool = False
    ) -> np.ndarray:
        half = is_half(dtypes.from_numpy(b.dtype))
        factor, term = (x.astype(np.float32) if half else x for x in (a, b))
        if reverse:
            factor, term = np.flip(factor, axis), np.flip(term, axis)
        y = recurrence(factor, term, axis)
        return np.ascontiguousarray(np.flip(y, axis) if reverse else y).astype(b.dtype, copy=False)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        dtype, here = operands[1].dtype, b.axes(operands[1].ndim)
        acc = dtypes.float32 if is_half(dtype) else dtype
        factor, term = (cast_expr(load(x, here), acc) for x in operands)
        reverse = attrs.get("reverse", False)
        y = b.scan(operands[1].shape, attrs["axis"], term, "sum", reverse, factor)
        return y if acc is dtype else b.pointwise(y.shape, dtype, cast_expr(load(y, here), dtype))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        a, k, reverse = operands[0], attrs["axis"], attrs.get("reverse", False)
        if _is_zero(a.shape[k]):
            return zeros_like(a), zeros_like(a)
        by = -1 if reverse else 1
        after, before = _shift(a, k, -by, 0), _shift(out, k, by, 0)
        if g.dtype.is_complex:
            after, before = op.conj(after), op.conj(before)
        gb = self(after, g, axis=k, reverse=not reverse)
        return op.mul(gb, before), gb

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (ta, tb), a, k = tangents, operands[0], attrs["axis"]
        if _is_zero(a.shape[k]) or (ta is None and tb is None):
            return zeros_like(out)
        if ta is not None:
            by = -1 if attrs.get("reverse", False) else 1
            moved = op.mul(ta, _shift(out, k, by, 0))
            tb = moved if tb is None else op.add(tb, moved)
        return self(a, tb, **attrs)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        attrs["axis"] += 1
        return self(*align_batch(operands, batched), **attrs)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        a, b = inputs
        n, t, k = ctx.type(b).shape[attrs["axis"]], ctx.type(b), attrs["axis"]
        if isinstance(n, Sym):
            raise RuntimeError(
                f"no ONNX form along a symbolic dim; got {t}; export with fixed sizes"
            )
        far, by = 1, -1 if attrs.get("reverse", False) else 1
        while far < n:  # P. M. Kogge, H. S. Stone, IEEE Trans. Computers C-22 (1973)
            b = ctx.node("Add", [b, ctx.node("Mul", [a, _onnx_shift(ctx, b, t, k, by * far, 0)])])
            a = ctx.node("Mul", [a, _onnx_shift(ctx, a, t, k, by * far, 0)])
            far *= 2
        return b if far > 1 else str(ctx.node("Identity", [b]))

    def samples(self) -> Iterable[Sample]:
        for dtype in (np.float64, np.float32, np.float16, dtypes.bfloat16.np):
            a, b = (examples.uniform((2, 3, 4), dtype=dtype) for _ in range(2))
            for k in range(3):
                yield Sample((a, b), {"axis": k}, str(dtype), grad=dtype is np.float64)
                yield Sample((a, b), {"axis": k, "reverse": True}, grad=dtype is np.float64)
        a, b = (
            examples.uniform((7, 9), dtype=np.float64),
            examples.uniform((7, 9), dtype=np.float64),
        )
        yield Sample((examples.strided(a), examples.strided(b)), {"axis": 1}, "strided")
        yield Sample((a[0], b[0]), {"axis": 0, "reverse": True}, "one dim")
        yield Sample((a[:0], b[:0]), {"axis": 1}, "empty")
        yield Sample((a[:, :0], b[:, :0]), {"axis": 1}, "empty axis")
        yield Sample((a[:, :1], b[:, :1]), {"axis": 1, "reverse": True}, "one element")
        s = np.array([[1.0, np.nan, 2.0], [0.0, -np.inf, 1.0], [0.5, 0.0, np.inf]])
        yield Sample((s, s[::-1].copy()), {"axis": 1}, "special", grad=False)
        yield Sample((a + 1j * b, b - 2j * a), {"axis": 0, "reverse": True}, "complex")


class _RunningExtreme(AlongAxis):
    """cummax and cummin: the values only, NaN from the first NaN on. The public functions find the
    indices, and take values (and derivatives) at them."""

    differentiable = False
    combine = ""
    ufunc: Any

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        (x,) = types
        self.check_axis(x, attrs["axis"])
        self.expect(
            x.dtype is not dtypes.bool_,
            f"expected a number; got {x}; use .to(dtype)",
            NotImplementedError,
        )
        return x

    def reference(self, x: np.ndarray, axis: int) -> np.ndarray:
        half = is_half(dtypes.from_numpy(x.dtype))
        wide = x.astype(np.float32) if half else x
        return np.asarray(self.ufunc.accumulate(wide, axis=axis)).astype(x.dtype, copy=False)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        half = is_half(x.dtype)
        here = b.axes(x.ndim)
        value = cast_expr(load(x, here), dtypes.float32) if half else load(x, here)
        out = b.scan(x.shape, attrs["axis"], value, self.combine)
        return b.pointwise(x.shape, x.dtype, cast_expr(load(out, here), x.dtype)) if half else out

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        t = ctx.type(inputs[0])
        low, high = (-np.inf, np.inf)
        if not t.dtype.is_floating_point:
            info = np.iinfo(t.dtype.np)
            low, high = info.min, info.max
        greatest = self.combine == "max"
        return _onnx_running(
            ctx, inputs[0], t, attrs["axis"], "Max" if greatest else "Min",
            low if greatest else high,
        )  # fmt: skip

    def samples(self) -> Iterable[Sample]:
        x = examples.uniform((2, 3, 4))
        for k in range(3):
            yield Sample((x,), {"axis": k})
        y = examples.uniform((3, 5), dtype=np.float64)
        yield Sample((examples.strided(y),), {"axis": 0}, "strided")
        yield Sample((x[:0],), {"axis": 1}, "empty")
        yield Sample((x[:, :0],), {"axis": 1}, "empty axis")
        s = np.array([[1.0, np.nan, 2.0], [np.inf, -np.inf, 1.0], [-3.0, 0.0, np.inf]])
        for dt in (np.float32, np.float16, dtypes.bfloat16.np):
            yield Sample((s.astype(dt),), {"axis": 1}, f"special {dt}")
        for dt in examples.INTS:
            yield Sample((examples.integers((3, 4), dt),), {"axis": 1}, str(dt))


class Cummax(_RunningExtreme):
    """cummax(x; axis): the greatest element so far."""

    name, combine, ufunc = "cummax", "max", np.maximum


class Cummin(_RunningExtreme):
    """cummin(x; axis): the least element so far."""

    name, combine, ufunc = "cummin", "min", np.minimum


def _onnx_running(
    ctx: OnnxContext, x: str, t: TensorType, axis: int, op_type: str, neutral: float
) -> str:
    """The running combination of x along an axis, by recursive doubling."""
    n = t.shape[axis]
    if isinstance(n, Sym):
        raise RuntimeError(f"no ONNX form along a symbolic dim; got {t}; export with fixed sizes")
    out, far = x, 1
    while far < n:
        out = ctx.node(op_type, [_onnx_shift(ctx, out, t, axis, far, neutral), out])
        far *= 2
    return out if far > 1 else str(ctx.node("Identity", [x]))


def _onnx_shift(ctx: OnnxContext, x: str, t: TensorType, axis: int, by: int, fill: float) -> str:
    """y[i] = x[i - by] along an axis of fixed length, with `fill` where there is none."""
    n, far = t.shape[axis], abs(by)
    bounds = (0, n - far, axis) if by > 0 else (far, n, axis)
    kept = ctx.node("Slice", [x, *(ctx.shape((v,)) for v in bounds)])
    edge, none = [far if k == axis else 0 for k in range(t.ndim)], [0] * t.ndim
    pads = ctx.shape((*edge, *none) if by > 0 else (*none, *edge))
    return str(ctx.node("Pad", [kept, pads, ctx.constant(np.array(fill, t.dtype.np))]))


def _is_zero(d: Dim) -> bool:
    return not isinstance(d, Sym) and d == 0


def _shift(x: Any, k: int, by: int, fill: float) -> Any:
    """y[i] = x[i - by] along axis k, with `fill` where there is no such element; x is not empty."""
    n = x.shape[k]
    far = -by if by < 0 else by
    if not isinstance(n, Sym) and far >= n:
        return apply_like(
            op.full, x, shape=x.shape, value=fill, dtype=x.dtype, device=str(x.device)
        )
    edge = tuple(far if i == k else d for i, d in enumerate(x.shape))
    filled = apply_like(op.full, x, shape=edge, value=fill, dtype=x.dtype, device=str(x.device))
    start, stop = (0, n - far) if by > 0 else (far, n)
    starts = tuple(start if i == k else 0 for i in range(x.ndim))
    stops = tuple(stop if i == k else d for i, d in enumerate(x.shape))
    kept = op.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
    return op.concatenate(*((filled, kept) if by > 0 else (kept, filled)), axis=k)


class Sort(AlongAxis):
    """sort(x; axis, descending, count) -> (values, int64 indices), the first `count` (None: all) of
    a stable sort. NaN counts as the largest."""

    name = "sort"
    nout = 2
    effort = 64
    saves = ("out1",)

    def infer(self, *types: TensorType, **attrs: Any) -> tuple[TensorType, TensorType]:
        (x,) = types
        k, count = attrs["axis"], attrs.get("count")
        self.check_axis(x, k)
        if count is not None:
            self.expect(
                isinstance(count, int) and 0 <= count <= hint(x.shape[k]),
                f"expected count in [0, {x.shape[k]}]; got {count} for {x}",
            )
            x = x.with_shape(tuple(count if i == k else d for i, d in enumerate(x.shape)))
        return x, x.with_dtype(dtypes.int64)

    def reference(
        self, x: np.ndarray, axis: int, descending: bool = False, count: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        keys = x.astype(np.float32) if is_half(dtypes.from_numpy(x.dtype)) else x
        if descending:  # ascending from the back, read backwards: equal elements keep their order
            back = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
            indices = x.shape[axis] - 1 - np.flip(back, axis)
        else:
            indices = np.argsort(keys, axis=axis, kind="stable")
        if count is not None:
            indices = np.moveaxis(np.moveaxis(indices, axis, 0)[:count], 0, axis)
        indices = np.ascontiguousarray(indices, np.int64)
        return np.take_along_axis(x, indices, axis), indices

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if g[0] is None:
            return (None,)
        return (op.scatter_add(zeros_of(g[0], x), out[1], g[0], axis=attrs["axis"]),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        return None if t is None else (op.gather(t, out[1], axis=attrs["axis"]), None)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> tuple[Array, Array]:
        (x,) = operands
        value = load(x, b.axes(x.ndim))
        descending, count = attrs.get("descending", False), attrs.get("count")
        return b.sort(x.shape, attrs["axis"], value, descending, count)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        t = ctx.type(inputs[0])
        wanted = attrs.get("count")
        count = ctx.shape((t.shape[attrs["axis"]] if wanted is None else wanted,))
        x, largest = inputs[0], int(attrs.get("descending", False))
        if t.dtype is dtypes.bool_:
            x = ctx.node("Cast", [x], to=ctx.onnx_dtype(dtypes.uint8))
        values, places = ctx.node(
            "TopK", [x, count], 2, axis=attrs["axis"], largest=largest, sorted=1
        )
        if t.dtype is dtypes.bool_:
            values = ctx.node("Cast", [values], to=ctx.onnx_dtype(dtypes.bool_))
        return values, places

    def samples(self) -> Iterable[Sample]:
        x = examples.uniform((2, 3, 4))
        for k in range(3):
            for descending in (False, True):
                yield Sample((x,), {"axis": k, "descending": descending})
            for count in (0, 1, 2):
                yield Sample((x,), {"axis": k, "descending": False, "count": count}, "first")
        many = examples.uniform((3, 70))
        for descending in (False, True):
            for first in (None, 5, 70):
                attrs = {"axis": 1, "descending": descending, "count": first}
                yield Sample((many,), attrs, "many")
        ties = np.array([[2, 1, 2, 1, 0, 2], [3, 3, 3, 1, 1, 0]])
        special = np.array([[np.nan, 1.0, -np.inf, np.nan, np.inf, -0.0, 0.0, 1.0]])
        ordered: list[Any] = [*examples.INTS, np.float64]
        floats: list[Any] = [*examples.FLOATS, np.float16, dtypes.bfloat16.np]
        for descending in (False, True):
            for dt in ordered:
                attrs = {"axis": 1, "descending": descending}
                yield Sample((ties.astype(dt),), attrs, f"ties {dt}", grad=False)
                yield Sample((np.tile(ties, 9).astype(dt),), attrs, f"many ties {dt}", grad=False)
            for dt in floats:
                yield Sample((special.astype(dt),), attrs, f"special {dt}", grad=False)
                some = {**attrs, "count": 11}
                yield Sample((np.tile(special, 7).astype(dt),), some, f"many {dt}", grad=False)
        yield Sample((ties > 1,), {"axis": 1, "descending": False}, "bool", grad=False)
        yield Sample((x[:, :0],), {"axis": 1, "descending": False}, "empty axis")
        yield Sample((examples.strided(x[0]),), {"axis": 0, "descending": True}, "strided")


cumsum, cumprod, sort = Cumsum(), Cumprod(), Sort()
Recurrence()
cummax, cummin = Cummax(), Cummin()
