"""Ops of one operand that act on each element: exp, tanh, floor, isnan, ...

Owns their records. Rounding, bits and errors in ulp are stated in docs/numerics.md. A unary op's
derivative at a point is one factor, so vjp and jvp are the same linear map, `chain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitgrad.compiler.loops import Builder, Expr, const, make, select
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.record import (
    Elementwise,
    OnnxContext,
    Sample,
    op,
    scalar_like,
    zeros_like,
)
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


class Unary(Elementwise):
    """One operand. A record gives `numpy`, `node` (or `scalar`), and `derivative` (or `chain`)."""

    promotes = "float"
    numpy: ClassVar[Callable[..., Any]]
    node: str = ""
    onnx_op: str = ""
    domain: tuple[float, float] = (-2.0, 2.0)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return compute(type(self).numpy, x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.node, *x)

    def derivative(self, out: Any, x: Any) -> Any:
        """d out / d x, elementwise."""
        raise NotImplementedError(self.name)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        """The derivative applied to a tangent, and (being diagonal) to a cotangent."""
        return op.mul(t, self.derivative(out, x))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
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

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_,
            "expected a number; got a bool tensor; use logical_not (~) or convert with .to(dtype)",
        )


class Neg(_NoBool):
    name, promotes, node, onnx_op = "neg", "same", "neg", "Neg"
    numpy = np.negative

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.neg(t)


class Abs(Unary):
    name, promotes, onnx_op = "abs", "same", "Abs"
    saves = (0,)
    numpy = np.absolute
    domain = (0.25, 2.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make("abs", *x) if x[0].dtype.signed else x[0]

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sign(x)


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


class Rounding(Stepwise):
    """To an integral value, in the operand's dtype; integers stay as they are."""

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
    numpy = np.floor


class Ceil(Rounding):
    name, node, onnx_op = "ceil", "ceil", "Ceil"
    numpy = np.ceil


class Round(Rounding):
    """To nearest, ties to even."""

    name, node, onnx_op = "round", "rint", "Round"
    numpy = np.rint


class Trunc(Rounding):
    name, node = "trunc", "trunc"
    numpy = np.trunc

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if not ctx.type(inputs[0]).dtype.is_floating_point:
            return ctx.node("Identity", inputs)
        low = ctx.node("Floor", [ctx.node("Abs", inputs)])
        return ctx.node("Mul", [ctx.node("Sign", inputs), low])


class Exp(Unary):
    name, node, onnx_op = "exp", "exp", "Exp"
    saves = ("out",)
    numpy = np.exp

    def derivative(self, out: Any, x: Any) -> Any:
        return out


class Exp2(Unary):
    name, node = "exp2", "exp2"
    saves = ("out",)
    numpy = np.exp2

    def derivative(self, out: Any, x: Any) -> Any:
        return out * math.log(2.0)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Pow", [self.like(ctx, inputs[0], 2), inputs[0]])


class Expm1(Unary):
    """exp(x) - 1, precise near 0. Its ONNX form is 2 exp(x/2) sinh(x/2), which is so too."""

    name, node = "expm1", "expm1"
    saves = ("out",)
    numpy = np.expm1

    def derivative(self, out: Any, x: Any) -> Any:
        return out + 1.0

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        half = ctx.node("Mul", [inputs[0], self.like(ctx, inputs[0], 0.5)])
        product = ctx.node("Mul", [ctx.node("Exp", [half]), ctx.node("Sinh", [half])])
        return ctx.node("Mul", [product, self.like(ctx, inputs[0], 2.0)])


class Log(Unary):
    name, node, onnx_op = "log", "log", "Log"
    saves = (0,)
    numpy = np.log
    domain = (0.3, 3.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, x)


class _LogBase(Unary):
    saves = (0,)
    domain = (0.3, 3.0)
    ln_base = 1.0

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, x * self.ln_base)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        scale = self.like(ctx, inputs[0], 1 / self.ln_base)
        return ctx.node("Mul", [ctx.node("Log", inputs), scale])


class Log2(_LogBase):
    name, node, ln_base = "log2", "log2", math.log(2.0)
    numpy = np.log2


class Log10(_LogBase):
    name, node, ln_base = "log10", "log10", math.log(10.0)
    numpy = np.log10


class Log1p(Unary):
    """log(1 + x), precise near 0. Its ONNX form is 2 atanh(x / (x + 2)), which is so too."""

    name, node = "log1p", "log1p"
    saves = (0,)
    numpy = np.log1p
    domain = (-0.7, 2.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, x + 1.0)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        two = self.like(ctx, inputs[0], 2.0)
        ratio = ctx.node("Div", [inputs[0], ctx.node("Add", [inputs[0], two])])
        return ctx.node("Mul", [ctx.node("Atanh", [ratio]), two])


class Sqrt(Unary):
    name, node, onnx_op = "sqrt", "sqrt", "Sqrt"
    saves = ("out",)
    numpy = np.sqrt
    domain = (0.3, 3.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, out * 2.0)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


class Rsqrt(Unary):
    name, node = "rsqrt", "rsqrt"
    saves = ("out",)
    numpy = _rsqrt
    domain = (0.3, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.mul(out, out), out) * -0.5

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Reciprocal", [ctx.node("Sqrt", inputs)])


class Reciprocal(Unary):
    name, onnx_op = "reciprocal", "Reciprocal"
    saves = ("out",)
    numpy = np.reciprocal
    domain = (0.3, 3.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return 1.0 / x[0]

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.mul(out, out))


class Sin(Unary):
    name, node, onnx_op = "sin", "sin", "Sin"
    saves = (0,)
    numpy = np.sin

    def derivative(self, out: Any, x: Any) -> Any:
        return op.cos(x)


class Cos(Unary):
    name, node, onnx_op = "cos", "cos", "Cos"
    saves = (0,)
    numpy = np.cos

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.sin(x))


class Tan(Unary):
    name, node, onnx_op = "tan", "tan", "Tan"
    saves = ("out",)
    numpy = np.tan
    domain = (-1.2, 1.2)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(out, out) + 1.0


class Asin(Unary):
    name, node, onnx_op = "asin", "asin", "Asin"
    saves = (0,)
    numpy = np.arcsin
    domain = (-0.9, 0.9)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.rsqrt(1.0 - op.mul(x, x))


class Acos(Unary):
    name, node, onnx_op = "acos", "acos", "Acos"
    saves = (0,)
    numpy = np.arccos
    domain = (-0.9, 0.9)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.rsqrt(1.0 - op.mul(x, x)))


class Atan(Unary):
    name, node, onnx_op = "atan", "atan", "Atan"
    saves = (0,)
    numpy = np.arctan

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.mul(x, x) + 1.0)


class Sinh(Unary):
    name, node, onnx_op = "sinh", "sinh", "Sinh"
    saves = (0,)
    numpy = np.sinh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.cosh(x)


class Cosh(Unary):
    name, node, onnx_op = "cosh", "cosh", "Cosh"
    saves = (0,)
    numpy = np.cosh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sinh(x)


class Tanh(Unary):
    name, node, onnx_op = "tanh", "tanh", "Tanh"
    saves = ("out",)
    numpy = np.tanh

    def derivative(self, out: Any, x: Any) -> Any:
        return 1.0 - op.mul(out, out)


class Asinh(Unary):
    name, node, onnx_op = "asinh", "asinh", "Asinh"
    saves = (0,)
    numpy = np.arcsinh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.rsqrt(op.mul(x, x) + 1.0)


class Acosh(Unary):
    name, node, onnx_op = "acosh", "acosh", "Acosh"
    saves = (0,)
    numpy = np.arccosh
    domain = (1.2, 4.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.rsqrt(op.mul(x, x) - 1.0)


class Atanh(Unary):
    name, node, onnx_op = "atanh", "atanh", "Atanh"
    saves = (0,)
    numpy = np.arctanh
    domain = (-0.8, 0.8)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, 1.0 - op.mul(x, x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


class Sigmoid(Unary):
    """1 / (1 + exp(-x)), without overflow on either side."""

    name, node, onnx_op = "sigmoid", "sigmoid", "Sigmoid"
    saves = ("out",)
    numpy = _sigmoid

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(1.0 - out, out)


def _elementwise_float(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """f (of the math module, in float64) for each element, rounded to the dtype."""

    def apply(x: np.ndarray) -> np.ndarray:
        flat = np.fromiter(map(f, x.reshape(-1).tolist()), np.float64, x.size)
        return flat.reshape(x.shape).astype(x.dtype)

    return apply


class Erf(Unary):
    name, node, onnx_op = "erf", "erf", "Erf"
    saves = (0,)
    numpy = _elementwise_float(math.erf)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.exp(op.neg(op.mul(x, x))) * (2 / math.sqrt(math.pi))


class Erfc(Unary):
    """1 - erf(x). ONNX has no erfc: exported as that difference, absolute error 1 ulp of 1."""

    name, node = "erfc", "erfc"
    saves = (0,)
    numpy = _elementwise_float(math.erfc)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.exp(op.neg(op.mul(x, x))) * (-2 / math.sqrt(math.pi))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Sub", [self.like(ctx, inputs[0], 1), ctx.node("Erf", inputs)])


def _relu(x: np.ndarray) -> np.ndarray:
    return np.where(x <= 0, np.zeros((), x.dtype), x)


class Relu(_NoBool):
    """max(x, 0); NaN stays NaN, and -0 becomes 0. The derivative at 0 is 0."""

    name, promotes, onnx_op = "relu", "same", "Relu"
    saves = ("out",)
    widens = False
    numpy = _relu
    domain = (0.25, 2.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return select(x[0] <= 0, const(0, x[0].dtype), x[0])

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        zero = scalar_like(out, 0)
        return op.where(op.le(out, zero), zero, t)


class Predicate(Unary):
    """Result bool; no derivative."""

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

    def samples(self) -> Iterable[Sample]:
        return examples.unary(ints=True, floats=False)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        is_bool = ctx.type(inputs[0]).dtype is dtypes.bool_
        return ctx.node("Not" if is_bool else "BitwiseNot", inputs)


neg, abs_, sign = Neg(), Abs(), Sign()
floor, ceil, round_, trunc = Floor(), Ceil(), Round(), Trunc()
exp, exp2, expm1 = Exp(), Exp2(), Expm1()
log, log2, log10, log1p = Log(), Log2(), Log10(), Log1p()
sqrt, rsqrt, reciprocal = Sqrt(), Rsqrt(), Reciprocal()
sin, cos, tan, asin, acos, atan = Sin(), Cos(), Tan(), Asin(), Acos(), Atan()
sinh, cosh, tanh, asinh, acosh, atanh = Sinh(), Cosh(), Tanh(), Asinh(), Acosh(), Atanh()
sigmoid, erf, erfc, relu = Sigmoid(), Erf(), Erfc(), Relu()
isnan, isinf, isfinite = Isnan(), Isinf(), Isfinite()
logical_not, bitwise_not = LogicalNot(), BitwiseNot()
