"""Math functions of float32 arguments in the loop language: `FLOAT32`, by name.

Owns those that are float32 throughout (up to 2 ulp), and those that compute in float64 with
polynomials that are just long enough (0.5 ulp). Functions that have neither compute as float64 does
(`math.py`) and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from jitgrad.compiler import math_coefficients as fits
from jitgrad.compiler import trigonometry
from jitgrad.compiler.loops import (
    Expr,
    make,
    select,
)
from jitgrad.compiler.math_parts import (
    LOG2E,
    absolute,
    atan_argument,
    clip,
    fma,
    log_ends,
    number,
    poly,
    power_of_two,
    rounded,
    rsqrt,
    scale,
    sigmoid_of,
    signed,
)
from jitgrad.runtime import dtypes

# ln 2 in parts: products of the first with exponents are exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440054690583e-4
_LOG10_2_HIGH, _LOG10_2_LOW = 0.30078125, 2.4874566398119521e-4
_LOG10E_HIGH, _LOG10E_LOW = 0.43359375, 7.00731903251827651e-4


# -- float32 throughout: exponentials --------------------------------------------------------------
def _exp_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(y, n, n as integer): exp(x) = y 2^n."""
    n, n_int = rounded(x, LOG2E)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return fma(poly(r, fits.EXP_F32), r * r, r) + 1.0, n, n_int


def _exp(x: Expr) -> Expr:
    y, n, _ = _exp_parts(clip(x, -106.0, 89.0))
    return scale(y, n)


def _sigmoid(x: Expr) -> Expr:
    small = -absolute(x)
    y, n, _ = _exp_parts(select(small < -106.0, -106.0, small))
    return sigmoid_of(x, scale(y, n))


def _exp2(x: Expr) -> Expr:
    x = clip(x, -160.0, 130.0)
    n, _ = rounded(x, 1.0)
    r = x - n
    return scale(fma(poly(r, fits.EXP2_F32), r, 1.0), n)


def _sinh(x: Expr) -> Expr:
    a = absolute(x)
    z = x * x
    near = fma(poly(z, fits.SINH_F32) * z, x, x)
    half = _half_exp(a)
    return select(a < 1.0, near, signed(half - 0.25 / half, x))


def _cosh(x: Expr) -> Expr:
    half = _half_exp(absolute(x))
    return half + 0.25 / half


def _half_exp(a: Expr) -> Expr:
    """exp(a) / 2 for a >= 0."""
    y, n, _ = _exp_parts(select(a > 91.0, 91.0, a))
    return scale(y, n - 1.0)


def _tanh(x: Expr) -> Expr:
    a = absolute(x)
    z = x * x
    near = fma(poly(z, fits.TANH_F32) * z, a, a)
    y, n, n_int = _exp_parts(select(a > 10.0, 20.0, a + a))
    far = 1.0 - 2.0 / (y * power_of_two(n_int) + 1.0)
    return signed(select(a < 0.625, near, far), x)


def _erf(x: Expr) -> Expr:
    a = absolute(x)
    z = x * x
    near = fma(x, poly(z, fits.ERF_F32), x)
    far_a = select(a > 4.0, 4.0, a)
    y, n, n_int = _exp_parts(-poly(far_a, fits.ERF_LOG_F32))
    far = 1.0 - y * power_of_two(n_int)
    return select(a < 0.92, near, signed(far, x))


# -- float32 throughout: logarithms ----------------------------------------------------------------
def _log_reduce(x: Expr) -> tuple[Expr, Expr]:
    """(k, f): x = (1 + f) 2^k with 1 + f in [sqrt(1/2), sqrt(2)); x positive and finite."""
    tiny = x < 1.1754943508222875e-38
    bits = select(tiny, x * 2.0**23, x).bitcast(dtypes.int32)
    e = (bits - 0x3F3504F3) >> 23
    f = (bits - (e << 23)).bitcast(dtypes.float32) - 1.0
    return e.cast(dtypes.float32) - select(tiny, 23.0, number(0.0, x)), f


def _log_tail(f: Expr, g: Expr | None = None) -> tuple[Expr, Expr]:
    """(z, y): log(1 + f) = f - z / 2 + y. g: f, or 0 for f that are too small for z to matter."""
    z = f * (f if g is None else g)
    return z, poly(f, fits.LOG_F32) * f * z


def _log(x: Expr) -> Expr:
    k, f = _log_reduce(x)
    z, y = _log_tail(f)
    y = fma(k, _LN2_LOW, y)
    y = fma(z, -0.5, y)
    return log_ends(x, fma(k, _LN2_HIGH, f + y))


def _log1p(x: Expr) -> Expr:
    u = x + 1.0
    k, f = _log_reduce(u)
    near = k.eq(0.0)
    f = select(near, x, f)
    c = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u  # what u lacks
    # Products of very small f would be below the normal numbers: slow on some processors.
    z, y = _log_tail(f, select(absolute(x) < 2.0**-30, 0.0, f))
    y = fma(k, _LN2_LOW, y + select(near, 0.0, c))
    y = fma(z, -0.5, y)
    y = log_ends(u, fma(k, _LN2_HIGH, f + y))
    return select(x.eq(0.0), x, y)


def _log2(x: Expr) -> Expr:
    k, f = _log_reduce(x)
    z, y = _log_tail(f)
    y = fma(z, -0.5, y)
    rest = LOG2E - 1.0  # f itself is added last
    return log_ends(x, k + (f + (y + fma(f, rest, y * rest))))


def _log10(x: Expr) -> Expr:
    k, f = _log_reduce(x)
    z, y = _log_tail(f)
    y = fma(z, -0.5, y)
    total = fma(k, _LOG10_2_LOW, fma(f + y, _LOG10E_LOW, y * _LOG10E_HIGH))
    return log_ends(x, fma(k, _LOG10_2_HIGH, fma(f, _LOG10E_HIGH, total)))


# -- in float64, for a float32: exponentials and logarithms ---------------------------------------
def _wide(f: Callable[..., Expr]) -> Callable[..., Expr]:
    """f of float64 expressions, for float32 ones; rounds once."""

    def narrow(*x: Expr) -> Expr:
        return f(*(v.cast(dtypes.float64) for v in x)).cast(dtypes.float32)

    return narrow


def _exp2_wide(t: Expr) -> Expr:
    """2^t with 30 bits for t in [-160, 160], or NaN."""
    n, n_int = rounded(t, 1.0)
    return fma(poly(t - n, fits.EXP2_SHORT), t - n, 1.0) * power_of_two(n_int)


def log2_wide(x: Expr) -> Expr:
    """log2 x with 33 bits, also near 1; x a positive normal number."""
    bits = x.bitcast(dtypes.int64)
    shifted = (bits - 0x3FE6A09E667F3BCD).bitcast(dtypes.uint64)
    m = (bits - (shifted & (0xFFF << 52)).bitcast(dtypes.int64)).bitcast(dtypes.float64)
    # The biased exponent of a float whose last place is 1, less the bias
    raised = ((shifted + (1 << 63)) >> 52) | 0x4330000000000000
    k = raised.bitcast(dtypes.float64) - (2.0**52 + 2048)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    return fma(s * fma(poly(z, fits.LOG_SHORT), z, 2.0), LOG2E, k)


@_wide
def _atanh(x: Expr) -> Expr:
    a = absolute(x)
    z = a * a
    near = fma(fma(z, 0.2, 1 / 3) * z, a, a)
    far = log2_wide((1.0 + a) / (1.0 - a)) * (math.log(2.0) / 2)
    ends = select(a.eq(1.0), math.inf, number(math.nan, a))
    return signed(select(a < 2.0**-8, near, select(a < 1.0, far, ends)), x)


@_wide
def _pow(x: Expr, y: Expr) -> Expr:
    """2^(y log2 |x|), and the signs and special cases of C99 annex F."""
    a = absolute(x)
    log = select(a.eq(0.0), -math.inf, select(a < math.inf, log2_wide(a), a))
    size = _exp2_wide(clip(log * clip(y, -(2.0**40), 2.0**40), -160.0, 160.0))
    whole = make("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & make("trunc", half).ne(half)
    value = select(odd & (make("copysign", number(1.0, x), x) < 0.0), -size, size)
    value = select((x < 0.0) & (x > -math.inf) & make("not", whole), math.nan, value)
    return select(x.eq(1.0) | y.eq(0.0), 1.0, value)


# -- in float64, for a float32: other functions ---------------------------------------------------
def _atan_ratio(p: Expr, q: Expr) -> Expr:
    """atan(p / q) for p, q >= 0, not both 0 or both infinite."""
    steep, middle, t = atan_argument(p, q)
    z = t * t
    high = select(steep, math.pi / 2, select(middle, math.pi / 4, number(0.0, p)))
    return high + fma(t * z, poly(z, fits.ATAN_SHORT), t)


@_wide
def _atan(x: Expr) -> Expr:
    return signed(_atan_ratio(absolute(x), number(1.0, x)), x)


@_wide
def _atan2(y: Expr, x: Expr) -> Expr:
    p, q = absolute(y), absolute(x)
    same = p.eq(q)  # both 0, both infinite, or a ratio of 1
    p = select(same, select(p.eq(0.0), p, 1.0), p)
    y_size = _atan_ratio(p, select(same, 1.0, q))
    size = select(make("copysign", number(1.0, x), x) < 0.0, math.pi - y_size, y_size)
    return select(x.ne(x) | y.ne(y), math.nan, signed(size, y))


@_wide
def _erfc(x: Expr) -> Expr:
    a = absolute(x)
    e = poly(x * x, fits.ERFC_NEAR)
    near = 1.0 - fma(x, e, x)
    far_a = clip(a, 0.5, 10.5)
    g = poly((far_a - 3.75) / (far_a + 3.75), fits.ERFC_SHORT) / (far_a * 2.0 + 1.0)
    tail = g * _exp2_wide(far_a * far_a * -LOG2E)
    far = select(x < 0.0, 2.0 - tail, tail)
    return select(a < 0.85, near, select(x.ne(x), x, far))


FLOAT32: dict[str, Callable[..., Expr]] = {
    "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "log10": _log10, "log1p": _log1p,
    "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf, "rsqrt": rsqrt,
    "atanh": _atanh, "pow": _pow, "atan": _atan, "atan2": _atan2, "erfc": _erfc,
    "sin": _wide(trigonometry.sin_short), "cos": _wide(trigonometry.cos_short),
    "tan": _wide(trigonometry.tan_short),
}  # fmt: skip
