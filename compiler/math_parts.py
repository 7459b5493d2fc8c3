"""Small parts that the math functions of `math.py` and `math_float32.py` are made of.

Owns constants and steps that both use: Horner's rule, rounding, powers of two, the ends of log and
the tails of sigmoid and of pow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitgrad.compiler.loops import (
    Expr,
    const,
    make,
    select,
)
from jitgrad.runtime import dtypes

LOG2E = 1.4426950408889634
ROUND_F32, ROUND_F64 = 1.5 * 2.0**23, 1.5 * 2.0**52  # adding one of these rounds to an integer


def number(value: float, like: Expr) -> Expr:
    return const(value, like.dtype)


def fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    b = b if isinstance(b, Expr) else number(b, a)
    return make("fma", a, b, c if isinstance(c, Expr) else number(c, a))


def poly(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule."""
    total = number(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        total = fma(total, x, c)
    return total


def absolute(x: Expr) -> Expr:
    return make("abs", x)


def signed(size: Expr, like: Expr) -> Expr:
    return make("copysign", size, like)


def sqrt(x: Expr) -> Expr:
    return make("sqrt", x)


def atan_argument(p: Expr, q: Expr) -> tuple[Expr, Expr, Expr]:
    """(steep, middle, t) for p, q >= 0, not both 0 or both infinite: atan(p / q) is atan(t), with
    t in about [-0.41, 0.41], and beside it pi / 2 where steep, pi / 4 where else middle."""
    steep = p > q * 2.414213562373095
    middle = p > q * 0.41421356237309503
    top = select(steep, -q, select(middle, p - q, p))
    bottom = select(steep, p, select(middle, p + q, q))
    return steep, middle, top / bottom


def rounded(x: Expr, factor: float) -> tuple[Expr, Expr]:
    """(n, n as an integer) with n = x * factor rounded to an integer; |n| below 2^21."""
    big = ROUND_F32 if x.dtype is dtypes.float32 else ROUND_F64
    shifted = fma(x, factor, big)
    return shifted - big, whole_of(shifted)


def whole_of(shifted: Expr) -> Expr:
    """The integer n of a float n + _ROUND."""
    if shifted.dtype is dtypes.float32:
        return shifted.bitcast(dtypes.int32) - 0x4B400000
    return shifted.bitcast(dtypes.int64) - 0x4338000000000000


def power_of_two(n: Expr) -> Expr:
    """2^n as a float, n an integer within the exponents of normal numbers."""
    if n.dtype is dtypes.int32:
        return ((n + 127) << 23).bitcast(dtypes.float32)
    return ((n + 1023) << 52).bitcast(dtypes.float64)


def scale(y: Expr, n: Expr) -> Expr:
    """y * 2^n, for |y| up to 2 and whole n up to twice the exponents of normal numbers.

    What is 0 anyhow is chosen, not computed: a product that underflows takes some Intel processors
    a hundred cycles, and exp(-inf) is as common as masks are."""
    none = n < (-150.5 if y.dtype is dtypes.float32 else -1075.5)
    return select(none, 0.0, make("ldexp", y, select(none, 0.0, n)))


def clip(x: Expr, low: float, high: float) -> Expr:
    """x within [low, high]; NaN stays."""
    x = select(x > high, high, x)
    return select(x < low, low, x)


def log_ends(x: Expr, y: Expr) -> Expr:
    """y = log x, but at 0, infinity, NaN and below 0."""
    end = select(x.eq(0.0), -math.inf, select(x > 0.0, x, math.nan))
    return select((x > 0.0) & (x < math.inf), y, end)


def sigmoid_of(x: Expr, e: Expr) -> Expr:
    """The sigmoid of x, from e = exp(-|x|): e or 1, over 1 + e."""
    whole = e + 1.0
    lost = e - (whole - 1.0)
    y = select(x < 0.0, e, 1.0) / whole
    # What rounding 1 + e loses is up to an ulp of y; 1 / whole need not be good to correct it.
    # The product with y is the fma's: by itself it would be below the normal numbers for small e.
    return fma(y, lost * fma(whole, 0.5, -1.457), y)


def rsqrt(x: Expr) -> Expr:
    return 1.0 / sqrt(x)
