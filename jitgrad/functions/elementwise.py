"""Elementwise functions: one for each public record, and composites with PyTorch's signatures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from jitgrad.compiler import ops as _records  # noqa: F401 (fills OPS)
from jitgrad.compiler.ops.record import OPS, Elementwise
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_one_device, expect_real, older_order
from jitgrad.functions.shape import contiguous, laid_as
from jitgrad.hostscalar import is_lifted
from jitgrad.promotion import (
    cast,
    constant,
    elementwise,
    expect_operands,
    floating,
    result_type,
    stored,
    to_operand,
    wrapping_operand,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called, naming
from jitgrad.tape.pieces import in_pieces
from jitgrad.tensor import Tensor


def _make_unary(op: Any) -> Callable[..., Tensor]:
    def function(input: Tensor) -> Tensor:
        if not isinstance(input, Tensor):
            raise TypeError(
                f"{op.name}(): argument 'input' must be Tensor, not {type(input).__name__}"
            )
        return elementwise(op, input)

    return function


def _make_binary(op: Any) -> Callable[..., Tensor]:
    def function(input: Any, other: Any) -> Tensor:
        if not (isinstance(input, Tensor) or isinstance(other, Tensor)):
            raise TypeError(
                f"{op.name}(): expected a Tensor; got {type(input).__name__} and "
                f"{type(other).__name__}; convert one with jitgrad.tensor(...)"
            )
        return elementwise(op, input, other)

    return function


def _generate(records: Iterable[Any]) -> dict[str, Callable[..., Tensor]]:
    made: dict[str, Callable[..., Tensor]] = {}
    for op in records:
        if isinstance(op, Elementwise) and op.public and op.arity in (1, 2):
            function: Any = (_make_unary if op.arity == 1 else _make_binary)(op)
            if op.arguments[: op.arity] != function.__code__.co_varnames:
                function.__code__ = function.__code__.replace(co_varnames=op.arguments)
                function.__annotations__ = {
                    op.arguments[k] if name != "return" else name: kind
                    for k, (name, kind) in enumerate(function.__annotations__.items())
                }
            function.__name__ = function.__qualname__ = op.name
            function.__module__ = "jitgrad"
            function.__doc__ = (type(op).__doc__ or "").strip() or f"Elementwise {op.name}."
            made[op.name] = function
    return made


generated: dict[str, Callable[..., Tensor]] = _generate(OPS.early())
"""The functions made from records, by name, of every namespace. Records that are made at their
first use (compiler/ops) are none of jitgrad's own namespace; `records_in` adds their functions."""


def records_in(namespace: str) -> list[Elementwise]:
    """The records whose public functions are in a namespace ("" is jitgrad itself)."""
    if namespace:
        for name, function in _generate(OPS.values()).items():
            generated.setdefault(name, function)
    made = [OPS[name] for name in generated]
    return [op for op in made if isinstance(op, Elementwise) and op.namespace == namespace]


_add, _sub, _mul, _div = OPS["add"], OPS["sub"], OPS["mul"], OPS["div"]
_where = OPS["where"]


def _scaled(name: str, input: Any, other: Any, alpha: Any) -> Any:
    """other * alpha, in the dtype of the sum."""
    if isinstance(alpha, Tensor) and alpha.ndim or isinstance(alpha, str) or alpha is None:
        raise TypeError(f"[{name}] expected a number as alpha; got {type(alpha).__name__}")
    if _is_one(alpha) and not isinstance(alpha, bool):
        return other
    expect_operands(name, (input, other, alpha))
    dtype = result_type(input, other)
    kind = alpha.dtype.category if isinstance(alpha, Tensor) else result_type(alpha).category
    if (
        (kind is Category.BOOL or dtype.category < Category.FLOAT)
        and kind > dtype.category
        or (kind is Category.COMPLEX and not dtype.is_complex)
        or (kind is Category.BOOL and dtype is not dtypes.bool_)
    ):
        raise RuntimeError(
            f"[{name}] For operands of {dtype.name}, argument alpha must not be a "
            f"{_KINDS[kind]}; got alpha={alpha}"
        )
    return apply(_mul, (wrapping_operand(other, dtype), stored(alpha, dtype)), {})


_KINDS = {
    Category.BOOL: "bool", Category.INT: "integer", Category.FLOAT: "floating point number",
    Category.COMPLEX: "complex number",
}  # fmt: skip


def _no_bools(input: Any, other: Any) -> None:
    for x in (input, other):
        if isinstance(x, Tensor) and x._type.dtype is dtypes.bool_ or x is True or x is False:
            raise RuntimeError(
                "[sub] expected numbers; got bools; use logical_xor (^), ~ for a mask, or convert "
                "with .to(dtype)"
            )


def add(input: Any, other: Any, *older: Any, alpha: Any = 1) -> Tensor:
    """input + alpha * other; shapes broadcast, dtypes promote."""
    if older:
        (input, other), (alpha,) = older_order("add", (input, other, *older), 2, (alpha,))
    if type(alpha) is not int or alpha != 1:
        other = _scaled("add", input, other, alpha)
    return elementwise(_add, input, other)


def sub(input: Any, other: Any, *older: Any, alpha: Any = 1) -> Tensor:
    """input - alpha * other; shapes broadcast, dtypes promote. Raises RuntimeError for bools."""
    if older:
        (input, other), (alpha,) = older_order("sub", (input, other, *older), 2, (alpha,))
    _no_bools(input, other)
    if type(alpha) is not int or alpha != 1:
        other = _scaled("sub", input, other, alpha)
    return elementwise(_sub, input, other)


def rsub(input: Any, other: Any, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return called(sub(other, input, alpha=alpha), "RsubBackward1")


def mul(input: Any, other: Any) -> Tensor:
    """input * other; shapes broadcast, dtypes promote."""
    return elementwise(_mul, input, other)


def true_divide(input: Any, other: Any) -> Tensor:
    """input / other in floating point."""
    return elementwise(_div, input, other)


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other in floating point; rounding_mode "floor" or "trunc" keeps integers integer."""
    if rounding_mode is None:
        return elementwise(_div, input, other)
    if rounding_mode == "floor":
        return generated["floor_divide"](input, other)
    if rounding_mode != "trunc":
        raise RuntimeError(
            "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
            f"'{rounding_mode}'"
        )
    expect_operands("div", (input, other))
    dtype = result_type(input, other)
    if dtype.category >= Category.FLOAT:
        return generated["trunc"](elementwise(_div, input, other))
    a, b = wrapping_operand(input, dtype), wrapping_operand(other, dtype)
    # For integers: the exact multiple below or above, divided.
    return generated["floor_divide"](a - generated["fmod"](a, b), b)


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent. The exponents 0.5, 1, 2, 3, -0.5, -1, -2 as plain numbers are computed by
    square root, products and reciprocals, as PyTorch does.

    Raises RuntimeError for integers to a negative integer power.
    """
    plain = isinstance(exponent, (int, float)) and not is_lifted(exponent)
    if isinstance(input, Tensor) and plain:
        dtype = result_type(input, exponent)
        if dtype.category is Category.INT and exponent < 0:
            raise RuntimeError(
                f"[pow] Integers to negative integer powers are not allowed; got {input._type} to "
                f"the power {exponent}; convert to floating point first"
            )
        if not isinstance(exponent, bool) and dtype.category >= Category.INT:
            special = _POWERS.get(float(exponent))
            if special is not None and (dtype.category >= Category.FLOAT or exponent in (1, 2, 3)):
                return called(special(cast(input, dtype)), "PowBackward0")
        if dtype.category is Category.INT:
            exponent = to_operand(exponent, dtype)
    kind = 0 if plain else 1 if isinstance(input, Tensor) else 2
    return called(elementwise(OPS["pow"], input, exponent), f"PowBackward{kind}")


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    1.0: lambda x: in_pieces(apply(OPS["clone"], (x,), {}), x, "pow"),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    0.5: lambda x: apply(OPS["sqrt"], (x,), {}),
    -0.5: lambda x: apply(OPS["rsqrt"], (x,), {}),
    -1.0: lambda x: apply(OPS["reciprocal"], (x,), {}),
    -2.0: lambda x: apply(OPS["reciprocal"], (x * x,), {}),
}


def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent in float64, or complex128."""
    is_complex = result_type(input, exponent).is_complex
    dtype, plain = (dtypes.complex128, complex) if is_complex else (dtypes.float64, float)
    a = cast(input, dtype) if isinstance(input, Tensor) else plain(input)
    b = cast(exponent, dtype) if isinstance(exponent, Tensor) else plain(exponent)
    return pow(a, b)


def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """input where condition holds, else other. With a condition only: nonzero(as_tuple=True)."""
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if not isinstance(condition, Tensor):
        raise TypeError(
            f"[where] expected a bool Tensor as condition; got {type(condition).__name__}"
        )
    if condition.dtype is not dtypes.bool_:
        if condition.dtype is not dtypes.uint8:
            raise RuntimeError(
                "where expected condition to be a boolean tensor, but got a tensor with dtype "
                f"{condition.dtype}"
            )
        condition = cast(condition, dtypes.bool_)
    expect_operands("where", (input, other))
    dtype = result_type(input, other)
    a, b = (
        cast(x, dtype) if isinstance(x, Tensor) else stored(x, dtype, halves=False)
        for x in (input, other)
    )
    return apply(_where, (condition, a, b), {})


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """input with `value` where the bool mask holds. Keeps input's dtype."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.ndim} dimension(s)."
            )
        if value.dtype.is_complex and not input.dtype.is_complex:
            raise RuntimeError(
                f"[masked_fill] value cannot be converted to type {input.dtype.name} without "
                f"overflow; got a tensor of {value.dtype}; make input complex first"
            )
        value = cast(value, input.dtype)
    else:
        value = stored(value, input.dtype)
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    out = contiguous(apply(_where, (mask, value, input), {}))
    return called(out, "MaskedFillBackward0")


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """input, but at least `min` and at most `max` (numbers or tensors); max wins. NaN stays."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    expect_real("clamp", input)
    bounds = [b for b in (min, max) if b is not None]
    if any(isinstance(b, complex) for b in bounds):
        raise NotImplementedError(f"[clamp] expected real bounds; got {bounds}")
    dtype = result_type(input, *bounds)
    out = cast(input, dtype)
    low, high = (b if b is None or isinstance(b, Tensor) else stored(b, dtype) for b in (min, max))
    if low is not None:
        out = _bound(out, cast(low, dtype), "ge")
    if high is not None:
        out = _bound(out, cast(high, dtype), "le")
    by_tensors = isinstance(min, Tensor) or isinstance(max, Tensor)
    return called(out, "ClampBackward0" if by_tensors else "ClampBackward1")


def _bound(x: Tensor, bound: Tensor, keep: str) -> Tensor:
    # Selects, not maximum/minimum: at the bound itself all of the gradient goes to x, as in
    # PyTorch. NaN in either is the result, and none of the gradient is x's.
    outer = bound
    if bound.dtype.is_floating_point:
        outside = apply(OPS["lt" if keep == "ge" else "gt"], (x, bound), {})
        outer = apply(_where, (outside, bound, constant(math.nan, bound.dtype)), {})
    out: Tensor = apply(_where, (apply(OPS[keep], (x, bound), {}), x, outer), {})
    return out


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """input, but at least `min`."""
    return called(clamp(input, min=min), "ClampMinBackward0")


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """input, but at most `max`."""
    return called(clamp(input, max=max), "ClampMaxBackward0")


def square(input: Tensor) -> Tensor:
    """input * input."""
    return called(pow(input, 2), "PowBackward0")


def frac(input: Tensor) -> Tensor:
    """The fractional part: input - trunc(input)."""
    if input.dtype.category < Category.FLOAT:
        raise NotImplementedError(f"[frac] expected floating numbers; got {input._type}")
    return called(sub(input, generated["trunc"](input)), "FracBackward0")


def signbit(input: Tensor) -> Tensor:
    """Whether the sign bit is set (-0.0 counts)."""
    if input.dtype.category < Category.FLOAT:
        return input < 0
    return generated["copysign"](constant(1.0, input.dtype), input) < 0


@lasting
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """To the nearest integer, ties to even; or to so many decimals."""
    if decimals == 0:
        return generated["round"](input)
    if input.dtype.category < Category.FLOAT:
        raise NotImplementedError(f"[round] expected floating numbers; got {input._type}")
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return generated["round"](input * scale) / scale
    return generated["round"](input / scale) * scale


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)); with eps, x clamped to [eps, 1 - eps] first."""
    expect_real("logit", input)
    x = cast(input, floating(input.dtype))
    if eps is not None:
        x = clamp(x, eps, 1 - eps)
    inside = (x >= 0) & (x <= 1)
    value = generated["log"](x) - generated["log1p"](-x)  # at 0 and 1 its slope is infinite
    nothing = generated["sqrt"](where(inside, 1.0, x * (1 - x)))  # NaN, and so is its slope
    return called(where(inside, value, nothing), "LogitBackward0")


@naming("LerpBackward0")
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """input + weight * (end - input), from the nearer end (exact at both)."""
    for name, x in (("end", end), ("weight", weight)):
        if isinstance(x, Tensor) and x._type.dtype is not input._type.dtype:
            if name == "end" or x.ndim:
                raise RuntimeError(
                    f"[lerp] expected {name} of input's dtype; got {x._type} for {input._type}; "
                    "convert one with .to(dtype)"
                )
    if input._type.dtype.category < Category.FLOAT:
        raise NotImplementedError(f"[lerp] expected floating numbers; got {input._type}")
    if isinstance(weight, Tensor) or is_lifted(weight):
        low = generated["abs"](weight) < 0.5 if isinstance(weight, Tensor) else weight.lift() < 0.5
        found = where(low, input + weight * (end - input), end - (end - input) * (1 - weight))
    else:
        found = _between(input, end, weight)
    return laid_as(found, input, end)


@lasting
def _between(input: Tensor, end: Tensor, weight: float) -> Tensor:
    if weight < 0.5:
        return input + weight * (end - input)
    return end - (end - input) * (1 - weight)


def _expect_value(name: str, value: Any, dtype: DType) -> None:
    if isinstance(value, complex) and not dtype.is_complex:
        raise RuntimeError(
            f"[{name}] value cannot be converted to type {dtype.name} without overflow; got {value}"
        )


@naming("AddcmulBackward0")
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    if older:
        given = (input, tensor1, tensor2, *older)
        (input, tensor1, tensor2), (value,) = older_order("addcmul", given, 3, (value,))
    dtype = result_type(input, tensor1, tensor2)
    _expect_value("addcmul", value, dtype)
    product = to_operand(tensor1, dtype) * to_operand(tensor2, dtype)
    return laid_as(
        input + (product if _is_one(value) else value * product), input, tensor1, tensor2
    )


@naming("AddcdivBackward0")
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *older: Any, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    if older:
        given = (input, tensor1, tensor2, *older)
        (input, tensor1, tensor2), (value,) = older_order("addcdiv", given, 3, (value,))
    if result_type(tensor1, tensor2).category < Category.FLOAT:
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported; convert the operands to "
            "floating point first"
        )
    dtype = result_type(input, tensor1, tensor2)
    _expect_value("addcdiv", value, dtype)
    tensor1, tensor2 = to_operand(tensor1, dtype), to_operand(tensor2, dtype)
    quotient = tensor1 / tensor2 if _is_one(value) else value * tensor1 / tensor2
    return laid_as(input + quotient, input, tensor1, tensor2)


def _is_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and not is_lifted(value) and value == 1


def hypot(input: Tensor, other: Any) -> Tensor:
    """sqrt(input**2 + other**2), without overflow in between."""
    expect_real("hypot", input, other)
    return elementwise(OPS["hypot"], input, other)


def _expect_floats(name: str, input: Any, other: Any) -> DType:
    dtype = result_type(input, other)
    if dtype.category < Category.FLOAT:
        raise NotImplementedError(f"[{name}] expected floating numbers; got {dtype}; use .float()")
    return dtype


@naming("LogaddexpBackward0")
def logaddexp(input: Tensor, other: Any) -> Tensor:
    """log(exp(input) + exp(other)), stable. Raises NotImplementedError for integers."""
    dtype = _expect_floats("logaddexp", input, other)
    a, b = to_operand(input, dtype), to_operand(other, dtype)
    high, less, equal = _ordered(a, b)
    return where(equal, high, high + generated["log1p"](generated["exp"](less)))


def _ordered(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The larger of a and b, how much larger the other is, and where both are one infinity.

    Selects: the derivative of maximum is another where they are equal."""
    first = a >= b
    high, low = where(first, a, b), where(first, b, a)
    return high, low - high, (a == b) & generated["isinf"](high)


@naming("Logaddexp2Backward0")
def logaddexp2(input: Tensor, other: Any) -> Tensor:
    """log2(2**input + 2**other), stable. Raises NotImplementedError for integers."""
    dtype = _expect_floats("logaddexp2", input, other)
    a, b = to_operand(input, dtype), to_operand(other, dtype)
    high, less, equal = _ordered(a, b)
    total = generated["log1p"](generated["exp2"](less)) * (1 / math.log(2))
    return where(equal, high, high + total)


def xlogy(input: Any, other: Any) -> Tensor:
    """input * log(other); 0 where input is 0 (NaN where other is NaN)."""
    dtype = floating(result_type(input, other))
    a, b = to_operand(input, dtype), to_operand(other, dtype)
    # Where 0 * log(b) is 0 anyway, the derivative by a is log(b). Adding 0 makes -0 a 0.
    zero = (a == 0) & ((b <= 0) | (b == math.inf))
    return called(
        where(zero, 0.0, a * generated["log"](where(zero, 1.0, b)) + 0.0), "XlogyBackward0"
    )


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 where input < 0, `values` where it is 0, 1 where it is greater."""
    if input.dtype is not values.dtype or input.dtype.is_complex:
        raise RuntimeError(
            f"[heaviside] expected real tensors of one dtype; got {input._type} and "
            f"{values._type}; convert one with .to(dtype)"
        )
    one, zero = constant(1, input.dtype), constant(0, input.dtype)
    step = apply(_where, (input > 0, one, zero), {})
    return apply(_where, (input == 0, cast(values, input.dtype), step), {})


@naming("NanToNumBackward0")
def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """input with NaN and the infinities replaced (by the largest finite numbers by default)."""
    for name, x in (("nan", nan), ("posinf", posinf), ("neginf", neginf)):
        if isinstance(x, complex):
            raise TypeError(f"nan_to_num(): argument {name!r} must be float, not complex")
    if input.dtype.category < Category.FLOAT:
        return apply(OPS["clone"], (input,), {})
    if input.dtype.is_complex:
        parts = [nan_to_num(x, nan, posinf, neginf) for x in (input.real, input.imag)]
        return apply(OPS["complex"], tuple(parts), {})
    high, low = float_limits(input.dtype)
    values = [0.0 if nan is None else nan, high if posinf is None else posinf,
              low if neginf is None else neginf]  # fmt: skip
    a, b, c = (constant(float(x), input.dtype) for x in values)
    out = where(generated["isnan"](input), a, input)
    out = where(input == math.inf, b, out)
    return where(input == -math.inf, c, out)


def float_limits(dtype: DType) -> tuple[float, float]:
    """The largest and smallest finite numbers of a floating dtype."""
    high = {
        "float16": 65504.0,
        "bfloat16": (2 - 2.0**-7) * 2.0**127,
        "float32": (2 - 2.0**-23) * 2.0**127,
        "float64": (2 - 2.0**-52) * 2.0**1023,
    }[dtype.name]
    return high, -high


def fmax(input: Tensor, other: Any) -> Tensor:
    """maximum, but a NaN gives way to a number."""
    return _number_wins(input, other, "maximum")


def fmin(input: Tensor, other: Any) -> Tensor:
    """minimum, but a NaN gives way to a number."""
    return _number_wins(input, other, "minimum")


def _number_wins(input: Tensor, other: Any, name: str) -> Tensor:
    dtype = result_type(input, other)
    a, b = to_operand(input, dtype), to_operand(other, dtype)
    if dtype.category < Category.FLOAT:
        return generated[name](a, b)
    first = generated["ge" if name == "maximum" else "le"](a, b)  # of equals all of the gradient
    return where(first | generated["isnan"](b), a, b)


@lasting
@naming("Deg2RadBackward0")
def deg2rad(input: Tensor) -> Tensor:
    """Degrees to radians. Raises RuntimeError for complex numbers."""
    _real_only("deg2rad", input)
    return input * (math.pi / 180)


@lasting
@naming("Rad2DegBackward0")
def rad2deg(input: Tensor) -> Tensor:
    """Radians to degrees. Raises RuntimeError for complex numbers."""
    _real_only("rad2deg", input)
    return input * (180 / math.pi)


def _real_only(name: str, input: Tensor) -> None:
    if input.dtype.is_complex:
        raise RuntimeError(f"[{name}] expected real numbers; got {input._type}; use its real part")


def isposinf(input: Tensor) -> Tensor:
    """Whether each element is +infinity. Raises RuntimeError for complex numbers."""
    _real_only("isposinf", input)
    return input == math.inf


def isneginf(input: Tensor) -> Tensor:
    """Whether each element is -infinity. Raises RuntimeError for complex numbers."""
    _real_only("isneginf", input)
    return input == -math.inf


def positive(input: Tensor) -> Tensor:
    """input itself. Raises RuntimeError for bool."""
    if input.dtype is dtypes.bool_:
        raise RuntimeError("The `+` operator, on a bool tensor is not supported.")
    return input


def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Where |input - other| <= atol + rtol * |other| (and equal infinities)."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"{input.dtype} did not match {other.dtype}")
    for what, bound in (("rtol", rtol), ("atol", atol)):
        if not bound >= 0:
            raise RuntimeError(f"{what} must be greater than or equal to zero, but got {bound}")
    close = input == other
    if input.dtype.category >= Category.FLOAT:
        if equal_nan:
            close = close | (generated["isnan"](input) & generated["isnan"](other))
        near = generated["abs"](input - other) <= atol + generated["abs"](other) * rtol
        return close | (near & generated["isfinite"](other) & generated["isfinite"](input))
    if input.dtype is dtypes.bool_:
        return close
    a, b = cast(input, dtypes.float64), cast(other, dtypes.float64)
    return close | (generated["abs"](a - b) <= atol + generated["abs"](b) * rtol)


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether isclose holds everywhere. Ends a trace."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal. Ends a trace."""
    expect_one_device("equal", input, other)
    if tuple(input.shape) != tuple(other.shape):
        return False
    return bool((input == other).all())


ALIASES = {
    "arccos": "acos", "arcsin": "asin", "arctan": "atan", "arccosh": "acosh", "arcsinh": "asinh",
    "arctanh": "atanh", "arctan2": "atan2", "absolute": "abs", "negative": "neg",
    "subtract": "sub", "multiply": "mul", "divide": "div", "clip": "clamp",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "fix": "trunc",
}  # fmt: skip
