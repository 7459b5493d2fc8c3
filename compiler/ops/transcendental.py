"""Ops of one operand from analysis: exp, log, powers, trigonometric, hyperbolic, sigmoid, erf.

Owns their records; the reference is NumPy's function. Errors in ulp: docs/numerics.md. ONNX forms
of functions that ONNX lacks are composed so that they stay precise where the function is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    const,
    make,
    select,
)
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.record import Accuracy, OnnxContext, Sample, op, scalar_like


class Exp(Unary):
    name, node, onnx_op = "exp", "exp", "Exp"
    effort = 4
    complex_too = True
    saves = ("out",)
    numpy = np.exp

    def derivative(self, out: Any, x: Any) -> Any:
        return out


class Exp2(Unary):
    name, node = "exp2", "exp2"
    effort = 4
    complex_too = True
    saves = ("out",)
    numpy = np.exp2

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(out, math.log(2.0))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Pow", [self.like(ctx, inputs[0], 2), inputs[0]])


class Expm1(Unary):
    """exp(x) - 1, precise near 0: its ONNX form is 2 exp(x/2) sinh(x/2) there."""

    name, node = "expm1", "expm1"
    effort = 4
    complex_too = True
    saves = (0,)
    numpy = np.expm1

    def derivative(self, out: Any, x: Any) -> Any:
        return op.exp(x)  # out + 1 would lose it far left

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        half = ctx.node("Mul", [inputs[0], self.like(ctx, inputs[0], 0.5)])
        product = ctx.node("Mul", [ctx.node("Exp", [half]), ctx.node("Sinh", [half])])
        near = ctx.node("Mul", [product, self.like(ctx, inputs[0], 2.0)])
        one = self.like(ctx, inputs[0], 1.0)
        far = ctx.node("Sub", [ctx.node("Exp", inputs), one])
        return ctx.node("Where", [ctx.node("Less", [ctx.node("Abs", inputs), one]), near, far])


class Log(Unary):
    name, node, onnx_op = "log", "log", "Log"
    effort = 4
    complex_too = True
    saves = (0,)
    numpy = np.log
    domain = (0.3, 3.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, x)


class _LogBase(Unary):
    complex_too = True
    saves = (0,)
    domain = (0.3, 3.0)
    ln_base = 1.0

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.mul(x, self.ln_base))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        scale = self.like(ctx, inputs[0], 1 / self.ln_base)
        return ctx.node("Mul", [ctx.node("Log", inputs), scale])


class Log2(_LogBase):
    name, node, ln_base = "log2", "log2", math.log(2.0)
    effort = 4
    numpy = np.log2


class Log10(_LogBase):
    name, node, ln_base = "log10", "log10", math.log(10.0)
    effort = 4
    numpy = np.log10


class Log1p(Unary):
    """log(1 + x), precise near 0: its ONNX form is 2 atanh(x / (x + 2)) there."""

    name, node = "log1p", "log1p"
    effort = 4
    complex_too = True
    saves = (0,)
    numpy = np.log1p
    domain = (-0.7, 2.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.add(x, 1.0))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        two = self.like(ctx, inputs[0], 2.0)
        ratio = ctx.node("Div", [inputs[0], ctx.node("Add", [inputs[0], two])])
        near = ctx.node("Mul", [ctx.node("Atanh", [ratio]), two])
        far = ctx.node("Log", [ctx.node("Add", [inputs[0], self.like(ctx, inputs[0], 1.0)])])
        half = self.like(ctx, inputs[0], 0.5)
        return ctx.node("Where", [ctx.node("Less", [ctx.node("Abs", inputs), half]), near, far])


class Sqrt(Unary):
    name, node, onnx_op = "sqrt", "sqrt", "Sqrt"
    complex_too = True
    exact = True
    saves = ("out",)
    numpy = np.sqrt
    domain = (0.3, 3.0)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.mul(out, 2.0))


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(x)


class Rsqrt(Unary):
    name, node = "rsqrt", "rsqrt"
    complex_too = True
    saves = ("out",)
    numpy = _rsqrt
    domain = (0.3, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.mul(op.mul(out, out), out), -0.5)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Reciprocal", [ctx.node("Sqrt", inputs)])


class Reciprocal(Unary):
    name, onnx_op = "reciprocal", "Reciprocal"
    complex_too = True
    exact = True
    saves = ("out",)
    numpy = np.reciprocal
    domain = (0.3, 3.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return 1.0 / x[0]

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.mul(out, out))


class Sin(Unary):
    name, node, onnx_op = "sin", "sin", "Sin"
    effort = 4
    complex_too = True
    saves = (0,)
    numpy = np.sin

    def derivative(self, out: Any, x: Any) -> Any:
        return op.cos(x)


class Cos(Unary):
    name, node, onnx_op = "cos", "cos", "Cos"
    effort = 4
    complex_too = True
    saves = (0,)
    numpy = np.cos

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.sin(x))


class Tan(Unary):
    name, node, onnx_op = "tan", "tan", "Tan"
    effort = 8
    complex_too = True
    saves = ("out",)
    numpy = np.tan
    domain = (-1.2, 1.2)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.add(op.mul(out, out), 1.0)


class Sinc(Unary):
    """sin(pi x) / (pi x); 1 at 0 (torch.sinc).

    The derivative (cos(pi x) - sinc(x)) / x loses all digits near 0: there it is a power series, so
    that derivatives of every order are right at 0 (the second one is -pi^2 / 3).
    """

    name = "sinc"
    effort = 8
    saves = (0,)
    numpy = np.sinc

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        y = x[0] * math.pi
        return select(x[0].eq(0), const(1, y.dtype), make("sin", y) / y)

    def derivative(self, out: Any, x: Any) -> Any:
        small = op.lt(op.abs(x), 0.25)
        near = op.where(small, x, scalar_like(x, 0))
        far = op.where(small, scalar_like(x, 1), x)
        series = op.mul(_slope_near_0(op.mul(near, math.pi)), math.pi)
        slope = op.div(op.sub(op.cos(op.mul(far, math.pi)), op.sinc(far)), far)
        return op.where(small, series, slope)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        zero = ctx.node("Equal", [inputs[0], self.like(ctx, inputs[0], 0)])
        y = ctx.node("Mul", [inputs[0], self.like(ctx, inputs[0], math.pi)])
        ratio = ctx.node("Div", [ctx.node("Sin", [y]), y])
        return ctx.node("Where", [zero, self.like(ctx, inputs[0], 1), ratio])

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample((np.array([0.0, -0.0, 1e-9, 0.2499, 0.2501, -0.25]),), note="around 0")


# The derivative of sin(y) / y over y, in powers of y^2; float64's digits below 0.8.
_SINC_SLOPE = [(-1) ** n * 2 * n / math.factorial(2 * n + 1) for n in range(1, 10)]


def _slope_near_0(y: Any) -> Any:
    """The derivative of sin(y) / y for |y| < 0.8."""
    t = op.mul(y, y)
    series = scalar_like(y, _SINC_SLOPE[-1])
    for c in reversed(_SINC_SLOPE[:-1]):
        series = op.add(op.mul(series, t), c)
    return op.mul(series, y)


def _sine_over(x: np.ndarray) -> np.ndarray:
    value = np.where(x == 0, x.dtype.type(1), np.sin(x) / np.where(x == 0, x.dtype.type(1), x))
    return np.where(np.isinf(x), x.dtype.type(0), value)


class SphericalBesselJ0(Unary):
    """The spherical Bessel function of order 0: sin(x) / x; 1 at 0, 0 at the infinities."""

    name, namespace, arguments = "spherical_bessel_j0", "special", ("x",)
    saves = (0,)
    numpy = _sine_over

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        value = select(x[0].eq(0), const(1, x[0].dtype), make("sin", x[0]) / x[0])
        return select(make("abs", x[0]).eq(math.inf), const(0, x[0].dtype), value)

    def derivative(self, out: Any, x: Any) -> Any:
        small = op.lt(op.abs(x), 0.75)
        near = op.where(small, x, scalar_like(x, 0))
        far = op.where(small, scalar_like(x, 1), x)
        slope = op.div(op.sub(op.cos(far), op.spherical_bessel_j0(far)), far)
        return op.where(small, _slope_near_0(near), slope)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        zero = ctx.node("Equal", [inputs[0], self.like(ctx, inputs[0], 0)])
        size = ctx.node("Abs", inputs)
        end = ctx.node("Equal", [size, self.like(ctx, inputs[0], math.inf)])
        ratio = ctx.node("Div", [ctx.node("Sin", inputs), inputs[0]])
        ratio = ctx.node("Where", [zero, self.like(ctx, inputs[0], 1), ratio])
        return ctx.node("Where", [end, self.like(ctx, inputs[0], 0), ratio])

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        yield Sample((np.array([0.0, -0.0, 1e-9, 0.7499, 0.7501, -0.75, 30.0]),), note="branches")

    def accuracy(self) -> Iterable[Accuracy]:
        yield Accuracy((np.random.default_rng(3).uniform(-50, 50, 2000),), 1, relative=False)


class Asin(Unary):
    name, node, onnx_op = "asin", "asin", "Asin"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arcsin
    domain = (-0.9, 0.9)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.rsqrt(op.sub(1.0, op.mul(x, x)))


class Acos(Unary):
    name, node, onnx_op = "acos", "acos", "Acos"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arccos
    domain = (-0.9, 0.9)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.rsqrt(op.sub(1.0, op.mul(x, x))))


class Atan(Unary):
    name, node, onnx_op = "atan", "atan", "Atan"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arctan

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.add(op.mul(x, x), 1.0))


class Sinh(Unary):
    name, node, onnx_op = "sinh", "sinh", "Sinh"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.sinh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.cosh(x)


class Cosh(Unary):
    name, node, onnx_op = "cosh", "cosh", "Cosh"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.cosh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sinh(x)


class Tanh(Unary):
    name, node, onnx_op = "tanh", "tanh", "Tanh"
    effort = 4
    complex_too = True
    saves = ("out",)
    numpy = np.tanh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(1.0, op.mul(out, out))


class Asinh(Unary):
    name, node, onnx_op = "asinh", "asinh", "Asinh"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arcsinh

    def derivative(self, out: Any, x: Any) -> Any:
        return op.rsqrt(op.add(op.mul(x, x), 1.0))


class Acosh(Unary):
    name, node, onnx_op = "acosh", "acosh", "Acosh"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arccosh
    domain = (1.2, 4.0)

    def derivative(self, out: Any, x: Any) -> Any:
        if x.dtype.is_complex:  # the branch that acosh takes
            return op.mul(op.rsqrt(op.sub(x, 1.0)), op.rsqrt(op.add(x, 1.0)))
        return op.rsqrt(op.sub(op.mul(x, x), 1.0))


class Atanh(Unary):
    name, node, onnx_op = "atanh", "atanh", "Atanh"
    effort = 8
    complex_too = True
    saves = (0,)
    numpy = np.arctanh
    domain = (-0.8, 0.8)

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.div(t, op.sub(1.0, op.mul(x, x)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return 1 / (1 + np.exp(-x))
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


class Sigmoid(Unary):
    """1 / (1 + exp(-x)), without overflow on either side."""

    name, node, onnx_op = "sigmoid", "sigmoid", "Sigmoid"
    effort = 8
    complex_too = True
    saves = ("out",)
    numpy = _sigmoid

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.sub(1.0, out), out)


def elementwise_float(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    """f (of the math module, in float64) for each element, rounded to the dtype."""

    def apply(x: np.ndarray) -> np.ndarray:
        flat = np.fromiter(map(f, x.reshape(-1).tolist()), np.float64, x.size)
        return flat.reshape(x.shape).astype(x.dtype)

    return apply


class Erf(Unary):
    name, node, onnx_op = "erf", "erf", "Erf"
    effort = 128
    saves = (0,)
    numpy = elementwise_float(math.erf)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.exp(op.neg(op.mul(x, x))), 2 / math.sqrt(math.pi))


class Erfc(Unary):
    """1 - erf(x). ONNX has no erfc: exported as that difference, absolute error 1 ulp of 1."""

    name, node = "erfc", "erfc"
    effort = 128
    saves = (0,)
    numpy = elementwise_float(math.erfc)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.exp(op.neg(op.mul(x, x))), -2 / math.sqrt(math.pi))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Sub", [self.like(ctx, inputs[0], 1), ctx.node("Erf", inputs)])


exp, exp2, expm1 = Exp(), Exp2(), Expm1()
log, log2, log10, log1p = Log(), Log2(), Log10(), Log1p()
sqrt, rsqrt, reciprocal = Sqrt(), Rsqrt(), Reciprocal()
sin, cos, tan, sinc = Sin(), Cos(), Tan(), Sinc()
spherical_bessel_j0 = SphericalBesselJ0()
asin, acos, atan = Asin(), Acos(), Atan()
sinh, cosh, tanh, asinh, acosh, atanh = Sinh(), Cosh(), Tanh(), Asinh(), Acosh(), Atanh()
sigmoid, erf, erfc = Sigmoid(), Erf(), Erfc()
