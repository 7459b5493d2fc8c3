"""Exact floating remainder in the loop language: fmod(x, y), without loops or fma.

Owns the expansion only. x = mx 2^ex and y = my 2^ey with mx, my in [1, 2). Long division takes a
fixed number of quotient bits per step from mx 2^(ex-ey), by a float64 quotient q (an integer)
whose product with my is exact: for float32 because q and my have few bits, for float64 by Dekker's
product (T. J. Dekker, "A floating-point technique for extending the available precision", 1971).
The number of steps covers the largest exponent difference of the dtype. Zero quotients change
nothing. Where the whole quotient is that small, as it nearly always is, one step does it.
"""

from __future__ import annotations

import math

from jitgrad.compiler.loops import (
    Expr,
    const,
    make,
    rare,
    select,
)
from jitgrad.runtime import dtypes

_F32_STEP, _F32_SPAN = 28, 277  # bits per step; log2(largest / smallest positive float32)
_F64_STEP, _F64_SPAN = 50, 2098
_SPLIT = 2.0**27 + 1


def fmod(x: Expr, y: Expr) -> Expr:
    """x - trunc(x / y) * y, exact, with the sign of x. NaN where x is infinite or y is 0."""
    dtype = x.dtype
    if dtype is dtypes.float64:
        size = _fmod64(x, y)
    else:
        size = _fmod32(x.cast(dtypes.float64), y.cast(dtypes.float64)).cast(dtype)
    return make("copysign", size, x)


def _fmod32(x: Expr, y: Expr) -> Expr:
    """fmod of |x|, |y|: float64 values that are float32 numbers."""
    a, m = make("abs", x), make("abs", y)
    infinite = m.eq(math.inf)
    near = (a < m * 2.0**_F32_STEP) & (m < math.inf)
    usual = a - make("trunc", a / m) * m
    r = a
    steps = -(-_F32_SPAN // _F32_STEP)
    for k in range(steps - 1, -1, -1):
        scaled = m * 2.0 ** (k * _F32_STEP)
        # 24 bits of the remainder over 24 of the divisor, quotient below 2^28: the distance of an
        # inexact ratio to the next integer exceeds half an ulp of float64, so trunc is right.
        r = r - make("trunc", r / scaled) * scaled
    return rare(~near, select(infinite, select(a < math.inf, a, r), r), usual)


def _fmod64(x: Expr, y: Expr) -> Expr:
    """fmod of |x|, |y| in float64."""
    ax, ay = make("abs", x), make("abs", y)
    mx, ex = _frexp(ax)
    my, ey = _frexp(ay)
    r = mx
    left = make("max", ex - ey, const(0, dtypes.int64))
    for _ in range(-(-_F64_SPAN // _F64_STEP) + 1):
        bits = make("min", left, const(_F64_STEP, dtypes.int64))
        left = left - bits
        r = _step64(r * _power_of_two(bits), my)
    half = ey >> const(1, dtypes.int64)  # 2^ey may be subnormal: scale in two exact steps
    scaled = (r * _power_of_two(half)) * _power_of_two(ey - half)
    result = select(ax < ay, ax, scaled)
    bad = make("or", make("not", ax < math.inf), ay.eq(0.0))
    nan = const(math.nan, dtypes.float64)
    far = select(make("or", bad, ay.ne(ay)), nan, result)
    near = (ax < ay * 2.0**_F64_STEP) & (ay > 2.0**-900) & (ay < 2.0**900)
    return rare(~near, far, _step64(ax, ay))


def _step64(r: Expr, m: Expr) -> Expr:
    """r - trunc(r / m) m for a quotient of at most 51 bits."""
    high = _split(m)
    low = m - high
    q = make("trunc", r / m)
    q_high = _split(q)
    q_low = q - q_high
    p = q * m
    error = ((q_high * high - p) + q_high * low + q_low * high) + q_low * low
    r = (r - p) - error  # exact: the true value has at most 53 bits
    r = select(r < 0.0, r + m, r)  # q was rounded up to the next integer
    return select(r < m, r, r - m)


def _frexp(a: Expr) -> tuple[Expr, Expr]:
    """a >= 0 as (m in [1, 2), exponent); what comes out of 0, inf and NaN is unused."""
    tiny = a < 2.0**-1022
    bits = select(tiny, a * 2.0**54, a).bitcast(dtypes.int64)
    exponent = (bits >> const(52, dtypes.int64)) - 1023
    mantissa = (bits & (2**52 - 1)) | (1023 << 52)
    return mantissa.bitcast(dtypes.float64), select(tiny, exponent - 54, exponent)


def _power_of_two(e: Expr) -> Expr:
    """2^e for an int64 exponent of a normal float64."""
    return ((e + 1023) << const(52, dtypes.int64)).bitcast(dtypes.float64)


def _split(a: Expr) -> Expr:
    """The high 26 bits of a (Veltkamp); a is far below the largest number here."""
    c = a * _SPLIT
    return c - (c - a)
