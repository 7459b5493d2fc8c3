"""Ops with no operands: full and iota. Dispatch applies them directly, from attributes alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    axis,
    const,
    dim,
)
from jitgrad.compiler.ops.convert import cast_array, cast_expr
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample
from jitgrad.compiler.symbolic import Dim, Sym, is_static
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class Create(Op):
    """No operands. Batching needs no rule: nothing is mapped."""

    public = False

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return ()

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        return None


class Full(Create):
    """A tensor filled with `value`: full(shape, value, dtype, device)."""

    name = "full"

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        dtype: DType = attrs["dtype"]
        value = attrs["value"]
        if isinstance(value, Sym):
            self.expect(dtype.category is not dtypes.Category.BOOL, "a size is no bool", TypeError)
        narrow = isinstance(value, Sym) and dtype.bits < 64
        if dtype.is_integer and (narrow or type(value) is int):
            info = np.iinfo(dtype.np)
            self.expect(
                info.min <= value <= info.max,
                f"expected a value that {dtype} holds, from {info.min} to {info.max}; got {value}; "
                "choose a wider dtype",
            )
        return TensorType(tuple(attrs["shape"]), dtype, attrs.get("device", "cpu"))

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        dtype: DType = attrs["dtype"]
        return np.full(tuple(attrs["shape"]), number(attrs["value"], dtype), dtype.np)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        dtype: DType = attrs["dtype"]
        value: Any = attrs["value"]
        if isinstance(value, Sym):
            value = cast_expr(dim(value).cast(dtypes.int64), dtype)
        else:
            value = const(number(value, dtype).item(), dtype)
        return b.pointwise(tuple(attrs["shape"]), dtype, value)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        value = _onnx_number(ctx, attrs["value"], attrs["dtype"])
        if not attrs["shape"]:
            return value
        return ctx.node("Expand", [value, ctx.shape(attrs["shape"])])

    def samples(self) -> Iterable[Sample]:
        attrs: dict[str, Any]
        shape: tuple[int, ...]
        for shape in ((2, 3), (), (0, 2)):
            attrs = {"shape": shape, "value": 1.5, "dtype": dtypes.float32, "device": "cpu"}
            yield Sample((), attrs)
        for dtype in (dtypes.bool_, dtypes.int64, dtypes.uint8, dtypes.float16, dtypes.bfloat16):
            yield Sample((), {"shape": (3,), "value": 1, "dtype": dtype, "device": "cpu"})
        for value in (float("nan"), float("-inf"), -0.0, 1e300, 0.1):
            attrs = {"shape": (2,), "value": value, "dtype": dtypes.float32, "device": "cpu"}
            yield Sample((), attrs, f"value {value}")


def number(value: complex, dtype: DType) -> np.ndarray:
    """A Python number as a 0-d array of the dtype, converted as `cast` would."""
    with Quiet():
        return cast_array(np.asarray(value), dtype)


class Iota(Create):
    """start + i * step for i < n, along the one dim: iota(shape=(n,), dtype, start, step, device).

    Integer dtypes compute in int64, floating dtypes in float64 (the product rounded, then the sum),
    rounded once to the dtype, as torch.arange does.
    """

    name = "iota"

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        shape: tuple[Dim, ...] = tuple(attrs["shape"])
        self.expect(len(shape) == 1, f"expected a shape of one dim; got {shape}", ValueError)
        return TensorType(shape, attrs["dtype"], attrs.get("device", "cpu"))

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        wide = self.wide(attrs["dtype"]).np
        i = np.arange(int(attrs["shape"][0]), dtype=np.int64).astype(wide)
        start, step = wide.type(attrs.get("start", 0)), wide.type(attrs.get("step", 1))
        return cast_array(start + i * step, attrs["dtype"])

    def wide(self, dtype: DType) -> DType:
        return dtypes.float64 if dtype.is_floating_point else dtypes.int64

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        dtype: DType = attrs["dtype"]
        wide = self.wide(dtype)
        i = axis(0).cast(dtypes.int64).cast(wide)
        start, step = (_number(attrs.get(k, v), wide) for k, v in (("start", 0), ("step", 1)))
        return b.pointwise(tuple(attrs["shape"]), dtype, cast_expr(start + i * step, dtype))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        begin, stride = attrs.get("start", 0), attrs.get("step", 1)
        if is_static((*attrs["shape"], begin, stride)):
            return ctx.constant(self.reference(**attrs))
        dtype: DType = attrs["dtype"]
        wide = self.wide(dtype)
        zero, one = (ctx.constant(np.array(v, np.int64)) for v in (0, 1))
        count = ctx.node("Squeeze", [ctx.shape(attrs["shape"])])
        i = ctx.node("Range", [zero, count, one])
        if wide is not dtypes.int64:
            i = ctx.node("Cast", [i], to=ctx.onnx_dtype(wide))
        if not is_static((stride,)) or stride != 1:
            i = ctx.node("Mul", [i, _onnx_number(ctx, stride, wide)])
        if not is_static((begin,)) or begin != 0:
            i = ctx.node("Add", [i, _onnx_number(ctx, begin, wide)])
        return i if dtype is wide else ctx.node("Cast", [i], to=ctx.onnx_dtype(dtype))

    def samples(self) -> Iterable[Sample]:
        for dtype in (dtypes.int64, dtypes.int32, dtypes.uint8, dtypes.float32, dtypes.float64,
                      dtypes.float16):  # fmt: skip
            attrs = {"shape": (5,), "dtype": dtype, "start": 0, "step": 1, "device": "cpu"}
            yield Sample((), attrs)
        attrs = {
            "shape": (4,),
            "dtype": dtypes.float32,
            "start": 0.1,
            "step": -0.3,
            "device": "cpu",
        }
        yield Sample((), attrs)
        yield Sample((), {**attrs, "shape": (0,)}, "empty")


def _onnx_number(ctx: OnnxContext, value: Any, dtype: DType) -> Any:
    """A number, or a symbolic size, as a value without dims of the dtype."""
    if not isinstance(value, Sym):
        return ctx.constant(number(value, dtype))
    size = ctx.node("Squeeze", [ctx.shape((value,))])
    return size if dtype is dtypes.int64 else ctx.node("Cast", [size], to=ctx.onnx_dtype(dtype))


def _number(value: Any, dtype: DType) -> Expr:
    """A number, or a symbolic size, as an element of the dtype."""
    if isinstance(value, Sym):
        return dim(value).cast(dtypes.int64).cast(dtype)
    return const(value, dtype)


full, iota = Full(), Iota()
