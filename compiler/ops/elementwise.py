"""Ops of one operand that act on each element, without transcendental functions: neg, floor, isnan.

Owns their records and the base of all unary ones. A unary op's derivative at a point is one factor,
so vjp and jvp are the same linear map, `chain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    const,
    make,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.record import (
    Elementwise,
    OnnxContext,
    Sample,
    direct_reference,
    op,
    scalar_like,
    zeros_like,
)
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


def compute(f: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """f of arrays of one dtype; 2-byte floats compute in float32 and round once."""
    dtype = arrays[0].dtype
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        wide = np.asarray(f(*(a.astype(np.float32) for a in arrays)))
        return wide.astype(dtype) if wide.dtype == np.float32 else wide
    out = f(*arrays)
    return out if type(out) is np.ndarray else np.asarray(out)


def direct(record: Any, family: type[Any], dtype: DType) -> Callable[..., Any] | None:
    """What the reference of a record computes with, where that is its family's `compute` of it and
    the dtype computes in itself."""
    if dtype.itemsize == 2 or not direct_reference(record, family):
        return None
    return type(record).numpy


class Unary(Elementwise):
    """One operand. A record gives `numpy`, `node` (or `scalar`), and `derivative` (or `chain`)."""

    promotes = "float"
    numpy: ClassVar[Callable[..., Any]]
    node: str = ""
    onnx_op: str = ""
    domain: tuple[float, float] = (-2.0, 2.0)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return compute(type(self).numpy, x)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        return None if attrs else direct(self, Unary, types[0].dtype)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.node, *x)

    def derivative(self, out: Any, x: Any) -> Any:
        """d out / d x, elementwise."""
        raise NotImplementedError(self.name)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        """The derivative applied to a tangent, and (being diagonal) to a cotangent."""
        return op.mul(t, self.derivative(out, x))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        if g.dtype.is_complex:
            return (op.conj(self.chain(op.conj(g), out, *operands)),)
        return (self.chain(g, out, *operands),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        return None if t is None else self.chain(t, out, *operands)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not self.onnx_op:
            return super().onnx(ctx, inputs, **attrs)
        return ctx.node(self.onnx_op, inputs)

    def samples(self) -> Iterable[Sample]:
        return examples.unary(*self.domain, ints=self.promotes != "float")

    def like(self, ctx: OnnxContext, name: str, value: float) -> str:
        """An ONNX constant of the dtype of `name`."""
        return ctx.constant(np.asarray(value, ctx.type(name).dtype.np))


class _NoBool(Unary):
    """Bool operands are a mistake."""

    mistake: type[Exception] = RuntimeError

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_,
            "expected a number; got a bool tensor; use logical_not (~) or convert with .to(dtype)",
            self.mistake,
        )


class Neg(_NoBool):
    name, promotes, node, onnx_op = "neg", "same", "neg", "Neg"
    complex_too = True
    exact = True
    numpy = np.negative

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.neg(t)


class Abs(_NoBool):
    """The size; of complex numbers a real one."""

    mistake = NotImplementedError
    name, promotes, onnx_op = "abs", "same", "Abs"
    complex_too = True
    exact = True
    saves = (0,)
    numpy = np.absolute
    domain = (0.25, 2.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make("abs", *x) if x[0].dtype.signed else x[0]

    def out_dtype(self, dtype: DType) -> DType:
        return dtype.to_real()

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sign(x)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        if not x.dtype.is_complex:
            return (self.chain(g, out, x),)
        return (op.mul(op.cast(g, dtype=x.dtype), direction(x)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,), (x,) = tangents, operands
        if t is None or not x.dtype.is_complex:
            return None if t is None else self.chain(t, out, x)
        return op.real(op.mul(t, op.conj(direction(x))))


def direction(x: Any) -> Any:
    """x / |x| of complex numbers; 0 at 0."""
    size = op.abs(x)
    safe = op.where(op.eq(size, scalar_like(size, 0)), scalar_like(size, 1), size)
    return op.div(x, op.cast(safe, dtype=x.dtype))


class Stepwise(Unary):
    """Constant between jumps: the derivative is zero."""

    promotes = "same"

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return zeros_like(t)


def _sign(x: np.ndarray) -> np.ndarray:
    return np.subtract(x > 0, x < 0, dtype=np.int8).astype(x.dtype)


class Sign(Stepwise):
    """-1, 0 or 1; 0 for NaN and for either zero (torch.sign)."""

    name = "sign"
    numpy = _sign
    domain = (0.25, 2.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        (v,) = x
        zero, one = const(0, v.dtype), const(1, v.dtype)
        if v.dtype is dtypes.bool_:
            return v
        negative = select(v < 0, const(-1, v.dtype), zero) if v.dtype.signed else zero
        return select(v > 0, one, negative)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Sign", inputs)
        nan = ctx.node("IsNaN", inputs)
        return ctx.node("Where", [nan, self.like(ctx, inputs[0], 0), ctx.node("Sign", inputs)])


class Rounding(Stepwise, _NoBool):
    """To an integral value, in the operand's dtype; integers stay as they are."""

    mistake = NotImplementedError
    domain = (0.1, 0.4)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.copy() if x.dtype.kind in "iub" else super().reference(x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.node, *x) if x[0].dtype.is_floating_point else x[0]

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        floating = ctx.type(inputs[0]).dtype.is_floating_point
        return ctx.node(self.onnx_op if floating else "Identity", inputs)


class Floor(Rounding):
    name, node, onnx_op = "floor", "floor", "Floor"
    exact = True
    numpy = np.floor


class Ceil(Rounding):
    name, node, onnx_op = "ceil", "ceil", "Ceil"
    exact = True
    numpy = np.ceil


class Round(Rounding):
    """To nearest, ties to even."""

    name, node, onnx_op = "round", "rint", "Round"
    exact = True
    numpy = np.rint


class Trunc(Rounding):
    name, node = "trunc", "trunc"
    exact = True
    numpy = np.trunc

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Identity", inputs)
        low = ctx.node("Floor", [ctx.node("Abs", inputs)])
        return ctx.node("Mul", [ctx.node("Sign", inputs), low])


def _relu(x: np.ndarray) -> np.ndarray:
    return np.where(x <= 0, np.zeros((), x.dtype), x)


class Relu(_NoBool):
    """max(x, 0); NaN stays NaN, and -0 becomes 0. The derivative at 0 is 0."""

    name, promotes, onnx_op = "relu", "same", "Relu"
    exact = flat = True
    saves = ("out",)
    widens = False
    numpy = _relu
    domain = (0.25, 2.0)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        dtype = types[0].dtype
        if direct(self, Unary, dtype) is None or not types[0].shape:
            return super().kernel(types, attrs)
        zero = np.zeros((), dtype.np)

        def run(x: np.ndarray) -> np.ndarray:
            out = np.maximum(x, zero)
            return np.add(out, zero, out)  # -0 becomes 0

        return run

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return select(x[0] <= 0, const(0, x[0].dtype), x[0])

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        zero = scalar_like(out, 0)
        return op.where(op.le(out, zero), zero, t)


class Predicate(Unary):
    """Result bool; no derivative."""

    in_place = False
    complex_too = True
    promotes = "bool"
    differentiable = False


class Isnan(Predicate):
    name = "isnan"

    def reference(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "iub":
            return np.zeros(x.shape, bool)
        return compute(np.isnan, x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return x[0].ne(x[0]) if x[0].dtype.is_floating_point else const(False, dtypes.bool_)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Not", [ctx.node("Equal", [inputs[0], inputs[0]])])


class Isinf(Predicate):
    name = "isinf"

    def reference(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "iub":
            return np.zeros(x.shape, bool)
        return compute(np.isinf, x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        if not x[0].dtype.is_floating_point:
            return const(False, dtypes.bool_)
        return make("abs", x[0]).eq(math.inf)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Not", [ctx.node("Equal", [inputs[0], inputs[0]])])
        size = ctx.node("Abs", inputs)
        return ctx.node("Equal", [size, self.like(ctx, inputs[0], math.inf)])


class Isfinite(Predicate):
    name = "isfinite"

    def reference(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind in "iub":
            return np.ones(x.shape, bool)
        return compute(np.isfinite, x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        if not x[0].dtype.is_floating_point:
            return const(True, dtypes.bool_)
        return make("abs", x[0]) < math.inf

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Equal", [inputs[0], inputs[0]])
        size = ctx.node("Abs", inputs)
        return ctx.node("Less", [size, self.like(ctx, inputs[0], math.inf)])


class LogicalNot(Predicate):
    """True where the element is zero (NaN is not)."""

    name = "logical_not"
    in_place = True
    exact = True

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x == 0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make("not", *x) if x[0].dtype is dtypes.bool_ else x[0].eq(0)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if ctx.type(inputs[0]).dtype is dtypes.bool_:
            return ctx.node("Not", inputs)
        return ctx.node("Equal", [inputs[0], self.like(ctx, inputs[0], 0)])

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample((np.array([True, False]),), note="bool", grad=False)


class BitwiseNot(Unary):
    """Flips every bit; logical not of bools."""

    name, promotes, node = "bitwise_not", "int", "not"
    differentiable = False
    numpy = np.invert

    def check_dtype(self, dtype: DType) -> None:
        self.expect(  # the operator ~ in Python: another type of error than its kin
            dtype.category <= dtypes.Category.INT,
            f"expected an integer or bool dtype; got {dtype}; convert with .to(dtype)",
            TypeError,
        )

    def samples(self) -> Iterable[Sample]:
        return examples.unary(ints=True, floats=False)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        is_bool = ctx.type(inputs[0]).dtype is dtypes.bool_
        return ctx.node("Not" if is_bool else "BitwiseNot", inputs)


neg, abs_, sign = Neg(), Abs(), Sign()
floor, ceil, round_, trunc = Floor(), Ceil(), Round(), Trunc()
isnan, isinf, isfinite = Isnan(), Isinf(), Isfinite()
logical_not, bitwise_not = LogicalNot(), BitwiseNot()
relu = Relu()
