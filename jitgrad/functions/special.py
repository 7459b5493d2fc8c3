"""Special functions of torch.special, as functions of tensors.

Owns those that are no record of their own; records: compiler/ops/gamma.py, error_functions.py,
bessel.py. jitgrad/special.py is the namespace.
"""

from __future__ import annotations

import math
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.functions.elementwise import generated, where
from jitgrad.functions.shape import row_major
from jitgrad.promotion import cast, elementwise, expect_operands, floating, result_type, to_operand
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor


def _float(input: Tensor) -> Tensor:
    return cast(input, floating(input.dtype))


def digamma(input: Tensor) -> Tensor:
    """The derivative of lgamma. -inf at 0 (inf at -0.), NaN at the negative integers."""
    return called(elementwise(OPS["polygamma"], input, n=0), "DigammaBackward0")


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma, n >= 0."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n; got {n}")
    return elementwise(OPS["polygamma"], input, n=int(n))


@row_major
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """log of the multivariate gamma function of dimension p:
    p (p - 1) / 4 log(pi) + the sum of lgamma(x - j / 2), j = 0 ... p - 1."""
    if p < 1:
        raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1; got {p}")
    if input.dtype is dtypes.bool_:
        raise RuntimeError("[mvlgamma] expected numbers; got bools; use .float()")
    x = _float(input)
    total = generated["lgamma"](x)
    for j in range(1, p):
        total = total + generated["lgamma"](x - j / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


def ndtr(input: Tensor) -> Tensor:
    """The standard normal distribution function."""
    return generated["erfc"](_float(input) * -math.sqrt(0.5)) * 0.5


def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(x)), precise in both tails."""
    x = _float(input)
    low = x < -1.0
    tail = where(low, x, -1.0)
    left = generated["log"](generated["erfcx"](tail * -math.sqrt(0.5)) * 0.5) - tail * tail * 0.5
    inner = where(low, -1.0, x)
    right = generated["log1p"](generated["erfc"](inner * math.sqrt(0.5)) * -0.5)
    return where(low, left, right)


def entr(input: Tensor) -> Tensor:
    """-x log(x): 0 at 0, where the derivative is infinite; -inf below, where it is NaN."""
    x = _float(input)
    log = generated["log"]
    negative, zero = x < 0, x == 0
    below = log(0.0 / where(negative, x, -1.0))  # -inf, of a slope that is NaN
    at_zero = generated["sqrt"](where(zero, x, 1.0))  # 0, of an infinite slope
    inside = where(negative | zero, 1.0, x)
    return where(negative, below, where(zero, at_zero, -inside * log(inside)))


def xlog1py(input: Any, other: Any) -> Tensor:
    """input * log1p(other); 0 where input is 0 (NaN where other is NaN)."""
    expect_operands("xlog1py", (input, other))
    dtype = floating(result_type(input, other))
    a, b = to_operand(input, dtype), to_operand(other, dtype)
    # Where 0 * log1p(b) is 0 anyway, the derivative by a is log1p(b). Adding 0 makes -0 a 0.
    zero = (a == 0) & ((b <= -1) | (b == math.inf))
    return where(zero, 0.0, a * generated["log1p"](where(zero, 0.0, b)) + 0.0)
