"""Handlers of ONNX's elementwise ops: arithmetic, comparison, casts, activations, random draws."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import (
    HANDLERS,
    Call,
    Registered,
    as_tensor,
    axis_of,
    check_size,
    handler,
)
from jitgrad.tensor import Tensor

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": jg.abs, "Acos": jg.acos, "Acosh": jg.acosh, "Asin": jg.asin, "Asinh": jg.asinh,
    "Atan": jg.atan, "Atanh": jg.atanh, "BitwiseNot": jg.bitwise_not, "Ceil": jg.ceil,
    "Cos": jg.cos, "Cosh": jg.cosh, "Erf": jg.erf, "Exp": jg.exp, "Floor": jg.floor,
    "HardSwish": F.hardswish, "IsNaN": jg.isnan, "Log": jg.log,
    "Mish": F.mish, "Neg": jg.neg, "Not": jg.logical_not, "Reciprocal": jg.reciprocal,
    "Relu": jg.relu, "Round": jg.round, "Sigmoid": jg.sigmoid, "Sign": jg.sign, "Sin": jg.sin,
    "Sinh": jg.sinh, "Softplus": lambda x: jg.logaddexp(x, jg.zeros_like(x)),
    "Softsign": F.softsign, "Sqrt": jg.sqrt, "Tan": jg.tan, "Tanh": jg.tanh,
}  # fmt: skip
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": jg.add, "And": jg.logical_and, "BitwiseAnd": jg.bitwise_and, "BitwiseOr": jg.bitwise_or,
    "BitwiseXor": jg.bitwise_xor, "Equal": jg.eq, "Greater": jg.gt, "GreaterOrEqual": jg.ge,
    "Less": jg.lt, "LessOrEqual": jg.le, "Mul": jg.mul, "Or": jg.logical_or, "Sub": jg.sub,
    "Xor": jg.logical_xor,
}  # fmt: skip


def _unary(f: Callable[[Tensor], Tensor], c: Call) -> Tensor:
    return f(c.tensor())


def _binary(f: Callable[[Tensor, Tensor], Tensor], c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    return f(a, _beside(c, a, b))


def _register() -> None:
    for name, unary in _UNARY.items():
        HANDLERS["", name] = Registered(functools.partial(_unary, unary), True)
    for name, binary in _BINARY.items():
        HANDLERS["", name] = Registered(functools.partial(_binary, binary), True)


def _beside(c: Call, a: Tensor, b: Tensor) -> Tensor:
    """The second operand; before opset 7 it may be lined up with an inner axis of the first."""
    c.ignore("axis")
    if c.opset >= 7 or not c.attr("broadcast", 0):
        return b
    axis = axis_of(int(c.attr("axis", a.ndim - b.ndim)), a.ndim)
    return b.reshape(*b.shape, *[1] * (a.ndim - axis - b.ndim))


_register()


@handler("Identity")
def identity(c: Call) -> Any:
    return c.value(0)


@handler("Div")
def div(c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    b = _beside(c, a, b)
    if a.is_floating_point():
        return jg.div(a, b)
    return jg.div(a, b, rounding_mode="trunc")


@handler("Mod")
def mod(c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    return jg.fmod(a, b) if c.attr("fmod", 0) else jg.remainder(a, b)


@handler("Pow")
def power(c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    b = _beside(c, a, b)
    if not a.is_floating_point() and b.is_floating_point():
        return jg.pow(a.to(jg.float64), b.to(jg.float64)).to(a.dtype)
    return jg.pow(a, b).to(a.dtype)


@handler("BitShift")
def bit_shift(c: Call) -> Tensor:
    a, b = c.tensor(0), c.tensor(1)
    left = c.attr("direction") == "LEFT"
    return jg.bitwise_left_shift(a, b) if left else jg.bitwise_right_shift(a, b)


@handler("Max", "Min", "Sum", "Mean")
def variadic(c: Call) -> Tensor:
    xs = c.tensors()
    if not xs:
        raise ValueError("expected at least one operand")
    combine = {"Max": jg.maximum, "Min": jg.minimum}.get(c.node.op_type, jg.add)
    total: Tensor = functools.reduce(combine, xs)
    return total / len(xs) if c.node.op_type == "Mean" else total


@handler("Where")
def where(c: Call) -> Tensor:
    return jg.where(c.tensor(0), c.tensor(1), c.tensor(2))


@handler("Clip")
def clip(c: Call) -> Tensor:
    x = c.tensor()
    if c.opset < 11:
        low, high = c.attr("min", None), c.attr("max", None)
        return x if low is None and high is None else jg.clamp(x, low, high)
    if c.has(1):
        x = jg.maximum(x, c.tensor(1).reshape(()))
    return jg.minimum(x, c.tensor(2).reshape(())) if c.has(2) else x


# -- element types --------------------------------------------------------------------------------
@handler("Cast")
def cast(c: Call) -> Tensor:
    c.ignore("saturate", "round_mode")  # of casts to 8 bit floats
    return _cast(c.tensor(), c.dtype("to"))


@handler("CastLike")
def cast_like(c: Call) -> Tensor:
    c.ignore("saturate", "round_mode")
    return _cast(c.tensor(0), c.tensor(1).dtype)


def _cast(x: Tensor, dtype: Any) -> Tensor:
    return x if x.dtype is dtype else x.to(dtype)


@handler("BitCast")
def bit_cast(c: Call) -> Tensor:
    to = c.dtype("to")
    x = c.tensor()
    if to is jg.bool:
        return x.view(jg.uint8).ne(0)
    return x.contiguous().view(to)


@handler("IsInf")
def is_inf(c: Call) -> Tensor:
    x = c.tensor()
    found = jg.zeros_like(x, dtype=jg.bool)
    if c.attr("detect_negative", 1):
        found = found | jg.isneginf(x)
    return found | jg.isposinf(x) if c.attr("detect_positive", 1) else found


# -- activations ----------------------------------------------------------------------------------
@handler("LeakyRelu")
def leaky_relu(c: Call) -> Tensor:
    return F.leaky_relu(c.tensor(), c.attr("alpha", 0.01))


@handler("Elu")
def elu(c: Call) -> Tensor:
    return F.elu(c.tensor(), c.attr("alpha", 1.0))


@handler("Celu")
def celu(c: Call) -> Tensor:
    return F.celu(c.tensor(), c.attr("alpha", 1.0))


@handler("Selu")
def selu(c: Call) -> Tensor:
    x = c.tensor()
    alpha, gamma = c.attr("alpha", 1.6732632423543772), c.attr("gamma", 1.0507009873554805)
    return gamma * jg.where(x > 0, x, alpha * jg.expm1(jg.clamp(x, max=0)))


@handler("HardSigmoid")
def hard_sigmoid(c: Call) -> Tensor:
    return jg.clamp(c.tensor() * c.attr("alpha", 0.2) + c.attr("beta", 0.5), 0, 1)


@handler("ThresholdedRelu")
def thresholded_relu(c: Call) -> Tensor:
    x = c.tensor()
    return jg.where(x > c.attr("alpha", 1.0), x, jg.zeros_like(x))


@handler("PRelu")
def prelu(c: Call) -> Tensor:
    x, slope = c.tensor(0), c.tensor(1)
    if c.opset < 9 and slope.ndim == 1 and x.ndim > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return jg.where(x < 0, x * slope, x)


@handler("Shrink")
def shrink(c: Call) -> Tensor:
    x, bias, limit = c.tensor(), c.attr("bias", 0.0), c.attr("lambd", 0.5)
    zero = jg.zeros_like(x)
    return jg.where(x < -limit, x + bias, jg.where(x > limit, x - bias, zero)).to(x.dtype)


@handler("Gelu")
def gelu(c: Call) -> Tensor:
    return F.gelu(c.tensor(), approximate=c.attr("approximate", "none"))


@handler("Swish")
def swish(c: Call) -> Tensor:
    x = c.tensor()
    return x * jg.sigmoid(x * c.attr("alpha", 1.0))


# -- random draws and constants -------------------------------------------------------------------
@handler("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", folds=False)
def random(c: Call) -> Tensor:
    c.ignore("seed")  # the numbers are of jitgrad's generator: see jitgrad.manual_seed
    op = c.node.op_type
    if op.endswith("Like"):
        like = c.tensor()
        shape, dtype = tuple(like.shape), like.dtype
        if c.given("dtype"):
            dtype = c.dtype("dtype")
    else:
        shape, dtype = check_size(c.attr("shape")), c.dtype("dtype", 1)
    if "Normal" in op:
        return jg.randn(shape, dtype=dtype) * c.attr("scale", 1.0) + c.attr("mean", 0.0)
    low, high = c.attr("low", 0.0), c.attr("high", 1.0)
    return jg.rand(shape, dtype=dtype) * (high - low) + low


@handler("Bernoulli", folds=False)
def bernoulli(c: Call) -> Tensor:
    c.ignore("seed")
    x = c.tensor()
    dtype = c.dtype("dtype") if c.given("dtype") else x.dtype
    return jg.bernoulli(x).to(dtype)


@handler("Constant")
def constant(c: Call) -> Any:
    for name, kind in (("value_float", np.float32), ("value_int", np.int64),
                       ("value_floats", np.float32), ("value_ints", np.int64)):  # fmt: skip
        if c.given(name):
            return np.array(c.attr(name), kind)
    value = c.attr("value", None)
    if not isinstance(value, np.ndarray):
        c.unsupported("a constant that is no dense tensor of numbers")
    return value


@handler("ConstantOfShape")
def constant_of_shape(c: Call) -> Any:
    value = c.attr("value", np.zeros(1, np.float32))
    return np.full(check_size(c.ints(0), value.itemsize), value.reshape(-1)[0], value.dtype)


@handler("EyeLike")
def eye_like(c: Call) -> Any:
    x = c.value(0)
    dtype = c.dtype("dtype") if c.given("dtype") else as_tensor(x).dtype
    rows, columns = x.shape
    return np.eye(rows, columns, k=c.attr("k", 0)).astype(dtype.np)


@handler("Range")
def arange(c: Call) -> Any:
    start, stop, step = (c.array(i).reshape(()) for i in range(3))
    count = max(0, int(np.ceil((stop - start) / step)))
    check_size((count,), 8)
    return (start + np.arange(count) * step).astype(start.dtype)
