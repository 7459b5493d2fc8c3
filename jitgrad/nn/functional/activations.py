"""Activation functions: elementwise composites of ops, and softmax.

Inputs are of any shape and floating dtype; the result has the input's. float16 and bfloat16 are
computed in float32 and rounded once. `inplace` writes the result into the input, which is returned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jitgrad.functions as ops
from jitgrad import fused
from jitgrad.autograd.modes import is_grad_enabled
from jitgrad.composites import composite
from jitgrad.functions.shape import row_major
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.tape.names import called, naming
from jitgrad.tape.pieces import in_pieces
from jitgrad.tensor import Tensor


def activation(formula: Callable[..., Tensor], integers: bool = False) -> Callable[..., Tensor]:
    """The formula on tensors only (of integers, too, or not), with 16-bit dtypes computed in
    float32."""
    name = formula.__name__
    written, formula = formula, composite(formula)

    @functools.wraps(written)
    def function(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        expect_tensors(name, input=input)
        if not integers and input.dtype.category <= Category.INT:
            raise NotImplementedError(
                f"[{name.lstrip('_')}] expected floating-point numbers; got {input._type}; use "
                "input.float()"
            )
        if not input.dtype.is_floating_point or input.dtype.itemsize > 2:
            return formula(input, *args, **kwargs)
        return formula(input.to(dtypes.float32), *args, **kwargs).to(input.dtype)

    return function


def applied(formula: Callable[..., Tensor], input: Tensor, inplace: bool, *args: Any) -> Tensor:
    """formula(input, *args); with `inplace`, written into the input, which is returned."""
    if not inplace:
        return formula(input, *args)
    expect_tensors(formula.__name__.lstrip("_"), input=input)
    # What the derivative needs is a copy: the write would invalidate the input itself.
    taped = state.levels or (input.requires_grad and is_grad_enabled())
    kept = input.clone() if taped else input
    return input.copy_(formula(kept, *args))


# -- piecewise linear ------------------------------------------------------------------------------
def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0); the derivative at 0 is 0."""
    if isinstance(input, Tensor) and not inplace:
        return ops.relu(input)
    expect_tensors("relu", input=input)
    return applied(ops.relu, input, inplace)


@activation
def _leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    return in_pieces(ops.where(x > 0, x, x * negative_slope), x, "leaky_relu")


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope * x."""
    return applied(_leaky_relu, input, inplace, negative_slope)


def _or_nan(x: Tensor, value: Any) -> Any:
    """value, but NaN where x is NaN, without a derivative there."""
    return ops.where(ops.isnan(x), math.nan, value) if x.dtype.is_floating_point else value


def _between(x: Tensor, low: Any, high: Any, inside: Tensor) -> Tensor:
    """inside, but low's value where x <= low's bound and high's where x >= high's.

    Selects, so that the derivative at a bound is the outer one, and 0 at NaN, as PyTorch's.
    """
    (low_bound, low_value), (high_bound, high_value) = low, high
    outside = ops.where(x <= low_bound, low_value, _or_nan(x, high_value))
    return ops.where(ops.logical_and(x > low_bound, x < high_bound), inside, outside)


@composite
def _hardtanh(x: Tensor, low: float, high: float) -> Tensor:
    return in_pieces(_between(x, (low, low), (high, high), x).to(x.dtype), x, "hardtanh")


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x clamped to [min_val, max_val]; the derivative at the bounds is 0.

    Raises ValueError when min_val > max_val.
    """
    expect_tensors("hardtanh", input=input)
    if input.dtype is dtypes.bool_:
        raise RuntimeError(f"[hardtanh] expected numbers; got {input._type}; use .float()")
    if min_val > max_val:
        raise ValueError(
            f"[hardtanh] expected min_val <= max_val; got min_val={min_val}, max_val={max_val}; "
            "exchange them"
        )
    if min_val < 0 and input.dtype.is_integer and not input.dtype.signed:
        raise RuntimeError(
            f"cannot do hardtanh on an unsigned type with negative limits; got {input._type}"
        )
    return applied(_hardtanh, input, inplace, min_val, max_val)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6); the derivative at 0 and 6 is 0."""
    return hardtanh(input, 0, 6, inplace)


@activation
def _hardsigmoid(x: Tensor) -> Tensor:
    return in_pieces(_between(x, (-3, 0.0), (3, 1.0), (x + 3) / 6), x, "hardsigmoid")


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return applied(_hardsigmoid, input, inplace)


@activation
def _hardswish(x: Tensor) -> Tensor:
    # Infinities take no part in the product, whose derivative they would make NaN.
    outside = ops.where(x <= -3, ops.where(x == -math.inf, math.nan, 0.0), x)
    beyond = ops.logical_or(x <= -3, x >= 3)
    within = ops.where(beyond, 0.0, x)
    return ops.where(beyond, outside, within * (within + 3) / 6)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * hardsigmoid(x) (Howard et al. 2019)."""
    return called(applied(_hardswish, input, inplace), "HardswishBackward0")


@functools.partial(activation, integers=True)
def _threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    return in_pieces(ops.where(x <= threshold, value, x), x, "threshold")


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where x > threshold, else value."""
    if isinstance(value, complex):
        raise RuntimeError(f"[threshold] expected a real number as value; got {value}")
    return applied(_threshold, input, inplace, threshold, value)


@activation
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """0 where |x| <= lambd, else x."""
    outside = ops.logical_or(input < -lambd, input > lambd)
    return in_pieces(ops.where(outside, input, _or_nan(input, 0.0)), input, "hardshrink")


@activation
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved by lambd towards 0, where it stays once there.

    Raises RuntimeError for a lambd that is negative or not finite.
    """
    if not 0 <= lambd < math.inf:
        raise RuntimeError(f"[softshrink] lambda must be finite and at least 0; got {lambd}")
    outside = ops.where(input < -lambd, input + lambd, _or_nan(input, 0.0))
    return in_pieces(ops.where(input > lambd, input - lambd, outside), input, "softshrink")


# -- exponential -----------------------------------------------------------------------------------
@activation
def _elu(x: Tensor, alpha: float, scale: float) -> Tensor:
    positive = x if scale == 1 else x * scale
    return ops.where(x > 0, positive, ops.expm1(ops.where(x > 0, 0.0, x)) * (alpha * scale))


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1) (Clevert, Unterthiner and Hochreiter 2016)."""
    return called(applied(_elu, input, inplace, alpha, 1), "EluBackward0")


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale * elu(x, alpha) with the constants of Klambauer et al. 2017."""
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return called(applied(_elu, input, inplace, alpha, scale), "EluBackward0")


@activation
def _celu(x: Tensor, alpha: float) -> Tensor:
    return ops.where(x > 0, x, ops.expm1(ops.where(x > 0, 0.0, x) / alpha) * alpha)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha * (exp(x / alpha) - 1) (Barron 2017).

    Raises RuntimeError when alpha is 0.
    """
    if alpha == 0:
        raise RuntimeError("[celu] expected alpha other than 0; got 0; a small alpha makes a relu")
    return called(applied(_celu, input, inplace, alpha), "CeluBackward0")


@activation
@naming("GeluBackward0")
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), Phi the normal distribution's; or its tanh form (Hendrycks and Gimpel 2016).

    Raises RuntimeError unless approximate is 'none' or 'tanh'.
    """
    if approximate == "none":
        made: Tensor = fused.apply(fused.gelu, (input,), {})
        return made
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (input + 0.044715 * input * input * input)
        return input * 0.5 * (1.0 + ops.tanh(inner))
    raise RuntimeError(f"[gelu] expected approximate to be 'none' or 'tanh'; got {approximate!r}")


@activation
def _silu(x: Tensor) -> Tensor:
    return x * ops.sigmoid(x)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x) (Elfwing, Uchibe and Doya 2018)."""
    return called(applied(_silu, input, inplace), "SiluBackward0")


@activation
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""
    scaled = input * beta
    soft = ops.log1p(ops.exp(ops.where(scaled > threshold, threshold, scaled))) / beta
    return called(ops.where(scaled > threshold, input, soft), "SoftplusBackward0")


@row_major
@activation
@naming("LogSigmoidBackward0")
def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))."""
    # Selects, not min and abs: their derivatives at 0 would not add up to 1/2.
    negative = input < 0
    tail = ops.log1p(ops.exp(ops.where(negative, input, -input)))
    return ops.where(negative, input, 0.0) - tail


@activation
def _mish(x: Tensor) -> Tensor:
    return x * ops.tanh(softplus(x))


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)) (Misra 2019)."""
    return called(applied(_mish, input, inplace), "MishBackward0")


@functools.partial(activation, integers=True)
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (1 + input.abs())


@functools.partial(activation, integers=True)
def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - ops.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return ops.tanh(input)


# -- softmax ---------------------------------------------------------------------------------------
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """exp(x) / sum(exp(x)) along dim, of input's shape.

    dim None is PyTorch's old choice, with a warning: 0 for 0-d, 1-d and 3-d inputs, else 1. dtype
    converts first.
    Raises IndexError for a dim out of range.
    """
    return ops.softmax(input, _softmax_dim("softmax", input, dim), dtype=dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """x - logsumexp(x) along dim; see softmax."""
    return ops.log_softmax(input, _softmax_dim("log_softmax", input, dim), dtype=dtype)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """softmax(-x) along dim; see softmax."""
    return ops.softmax(-input, _softmax_dim("softmin", input, dim), dtype=dtype)


def _softmax_dim(op: str, input: Tensor, dim: int | None) -> int:
    expect_tensors(op, input=input)
    if dim is not None:
        return dim
    warn(
        f"Implicit dimension choice for {op} has been deprecated. Change the call to include dim=X "
        "as an argument."
    )
    return 0 if input.dim() in (0, 1, 3) else 1


# -- in place --------------------------------------------------------------------------------------
def in_place(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`f_`: the function with inplace=True."""

    @functools.wraps(function)
    def method(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(input, *args, inplace=True, **kwargs)

    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = f"`{function.__name__}` with the result written into input, which is returned."
    return method


relu_, leaky_relu_, threshold_ = in_place(relu), in_place(leaky_relu), in_place(threshold)
hardtanh_, elu_, selu_, celu_ = in_place(hardtanh), in_place(elu), in_place(selu), in_place(celu)
