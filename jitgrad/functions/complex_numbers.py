"""Parts and forms of complex numbers. The records are in compiler/ops/complex_parts.py."""

from __future__ import annotations

import math

from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_tensor
from jitgrad.functions.elementwise import generated, where
from jitgrad.functions.shape import matrix_transpose
from jitgrad.promotion import cast, constant, floating
from jitgrad.tensor import Tensor


def conj(input: Tensor) -> Tensor:
    """The complex conjugate, a copy (PyTorch's is a lazy view); input itself where it is real."""
    x = expect_tensor("conj", input)
    return apply(OPS["conj"], (x,), {}) if x.dtype.is_complex else x


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate, a copy; of a real tensor, itself."""
    return conj(input) if input.dtype.is_complex else input


def adjoint(input: Tensor) -> Tensor:
    """The last two dims exchanged, conjugated (`x.mH`)."""
    return conj(matrix_transpose(input))


def resolve_conj(input: Tensor) -> Tensor:
    """input: conjugates are never lazy."""
    return _asked(input)


def resolve_neg(input: Tensor) -> Tensor:
    """input: negations are never lazy."""
    return _asked(input)


def _asked(input: Tensor) -> Tensor:
    """input, whose class was asked (runtime/overriding.py) as by all functions that look at it."""
    assert input._type is not None
    return input


def real(input: Tensor) -> Tensor:
    """The real part, a view; input itself where it is real."""
    x = expect_tensor("real", input)
    return apply(OPS["real"], (x,), {}) if x.dtype.is_complex else x


def imag(input: Tensor) -> Tensor:
    """The imaginary part, a view. Raises RuntimeError for a real tensor."""
    if not expect_tensor("imag", input).dtype.is_complex:
        raise RuntimeError(
            f"imag is not implemented for tensors with non-complex dtypes; got {input._type}"
        )
    return apply(OPS["imag"], (input,), {})


def view_as_real(input: Tensor) -> Tensor:
    """Complex (...) as (..., 2), real and imaginary parts; a view."""
    return apply(OPS["view_as_real"], (input,), {})


def view_as_complex(input: Tensor) -> Tensor:
    """(..., 2), a last dim without gaps, as complex (...); a view."""
    return apply(OPS["view_as_complex"], (input,), {})


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """real + i imag, of float32 or float64 tensors of one dtype; shapes broadcast."""
    if real.dtype is not imag.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {real.dtype} but got scalar type {imag.dtype} for "
            "second argument"
        )
    return apply(OPS["complex"], (real, imag), {})


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs * exp(i angle). Raises RuntimeError unless both are of one floating dtype."""
    if not abs.is_floating_point() or abs.dtype is not angle.dtype:
        raise RuntimeError(
            f"[polar] expected both tensors of one floating dtype; got {abs._type} and "
            f"{angle._type}; convert with .to(dtype)"
        )
    return complex(abs * generated["cos"](angle), abs * generated["sin"](angle))


def angle(input: Tensor) -> Tensor:
    """The argument, in [-pi, pi]; of real numbers pi where negative, else 0 (NaN stays)."""
    if input.dtype.is_complex:
        a, b = real(input), imag(input)
        zero = (a == 0) & (b == 0)  # where the slope counts as 0
        at_zero = generated["atan2"](b.detach(), a.detach())
        return where(zero, at_zero, generated["atan2"](b, where(zero, 1.0, a)))
    x = cast(input, floating(input.dtype))
    turned = where(x < 0, constant(math.pi, x.dtype), 0.0)
    return where(generated["isnan"](x), generated["floor"](x), turned)  # of derivative 0


def sgn(input: Tensor) -> Tensor:
    """The sign: -1, 0 or 1; of complex numbers x / |x|, 0 at 0."""
    if not input.dtype.is_complex:
        return generated["sign"](input)
    size = generated["abs"](input)
    zero = size == 0
    return where(zero, 0.0, where(zero, 1.0, input) / where(zero, 1.0, size))


def isreal(input: Tensor) -> Tensor:
    """Where the imaginary part is 0."""
    if input.dtype.is_complex:
        return imag(input) == 0
    return (input == input) | True


def squared_size(x: Tensor) -> Tensor:
    """|x|^2, real; differentiable at 0."""
    if not x.dtype.is_complex:
        return x * x
    a, b = real(x), imag(x)
    return a * a + b * b
