"""Math functions as polynomials in the loop language: `expand(expr) -> expr`.

Owns every MATH op of loops.py. What it makes is branch-free arithmetic, comparisons, selects and
bitcasts, so it vectorises on every back end; nothing calls a library. float16 and bfloat16 compute
in float32 and round. float32: exp, tanh, sigmoid, erf, log and rsqrt are float32 throughout; the
others compute in float64 and round once. Bounds, over all floats (measured by tests/test_math.py):
2 ulp for float32, 3 ulp for float64. fma where the target has it, else multiply and add: bounds
hold either way, bits differ.

Sources: argument reduction by a constant in parts, W. J. Cody and W. Waite, Software Manual for the
Elementary Functions (1980); huge arguments of sin and cos, M. Payne and R. Hanek, Radian reduction
for trigonometric functions (1983); double-length products, T. J. Dekker (1971). Polynomials are
ours: benchmarks/fit_math.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jitgrad.compiler import math_coefficients as fits
from jitgrad.compiler import trigonometry
from jitgrad.compiler.loops import (
    MATH,
    Expr,
    const,
    make,
    postorder,
    rewrite,
    select,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

# Constants in parts; all but the last part of each have trailing zeros, so that products with
# exponents are exact.
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_LN2_HIGH_F32, _LN2_LOW_F32 = 0.693359375, -2.12194440054690583e-4
_LOG2E = 1.4426950408889634
_ROUND_F32, _ROUND_F64 = 1.5 * 2.0**23, 1.5 * 2.0**52  # adding one of these rounds to an integer
_INF, _NAN = math.inf, math.nan


def expand(root: Expr) -> Expr:
    """root with every MATH node replaced by arithmetic."""
    if not any(e.op in MATH for e in postorder([root])):
        return root
    return rewrite(root, _leaf)


def _leaf(e: Expr) -> Expr | None:
    return _expand(e.op, e.dtype, e.args) if e.op in MATH else None


def _expand(op: str, dtype: DType, args: Sequence[Expr]) -> Expr:
    if dtype is dtypes.float64:
        return _F64[op](*args)
    if dtype is dtypes.float32:
        if op in _F32:
            return _F32[op](*args)
        wide = [a.cast(dtypes.float64) for a in args]
        return _SHORT.get(op, _F64[op])(*wide).cast(dtype)
    wide = [a.cast(dtypes.float32) for a in args]
    return _expand(op, dtypes.float32, wide).cast(dtype)


# -- small parts -----------------------------------------------------------------------------------
def _c(value: float, like: Expr) -> Expr:
    return const(value, like.dtype)


def _fma(a: Expr, b: Expr | float, c: Expr | float) -> Expr:
    b = b if isinstance(b, Expr) else _c(b, a)
    return make("fma", a, b, c if isinstance(c, Expr) else _c(c, a))


def _poly(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule."""
    total = _c(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        total = _fma(total, x, c)
    return total


def _abs(x: Expr) -> Expr:
    return make("abs", x)


def _signed(size: Expr, like: Expr) -> Expr:
    return make("copysign", size, like)


def _sqrt(x: Expr) -> Expr:
    return make("sqrt", x)


def _rounded(x: Expr, factor: float) -> tuple[Expr, Expr]:
    """(n, n as an integer) with n = x * factor rounded to an integer; |n| below 2^21."""
    big = _ROUND_F32 if x.dtype is dtypes.float32 else _ROUND_F64
    shifted = _fma(x, factor, big)
    return shifted - big, _whole(shifted)


def _whole(shifted: Expr) -> Expr:
    """The integer n of a float n + _ROUND."""
    if shifted.dtype is dtypes.float32:
        return shifted.bitcast(dtypes.int32) - 0x4B400000
    return shifted.bitcast(dtypes.int64) - 0x4338000000000000


def _power_of_two(n: Expr) -> Expr:
    """2^n as a float, n an integer within the exponents of normal numbers."""
    if n.dtype is dtypes.int32:
        return ((n + 127) << 23).bitcast(dtypes.float32)
    return ((n + 1023) << 52).bitcast(dtypes.float64)


def _scale(y: Expr, n: Expr, n_int: Expr) -> Expr:
    """y * 2^n, for n up to twice the exponents of normal numbers, in two steps."""
    if y.dtype is dtypes.float32:
        half = n_int >> 1
    else:
        half = _whole(_fma(n, 0.5, _ROUND_F64))
    return y * _power_of_two(half) * _power_of_two(n_int - half)


def _clip(x: Expr, low: float, high: float) -> Expr:
    """x within [low, high]; NaN stays."""
    x = select(x > high, high, x)
    return select(x < low, low, x)


# -- float32 ---------------------------------------------------------------------------------------
def _exp_parts_f32(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(y, n, n as integer): exp(x) = y 2^n."""
    n, n_int = _rounded(x, _LOG2E)
    r = _fma(n, -_LN2_LOW_F32, _fma(n, -_LN2_HIGH_F32, x))
    return _fma(_poly(r, fits.EXP_F32), r * r, r) + 1.0, n, n_int


def _exp_f32(x: Expr) -> Expr:
    return _scale(*_exp_parts_f32(_clip(x, -104.0, 89.0)))


def _tanh_f32(x: Expr) -> Expr:
    a = _abs(x)
    z = x * x
    near = _fma(_poly(z, fits.TANH_F32) * z, a, a)
    y, n, n_int = _exp_parts_f32(select(a > 10.0, 20.0, a + a))
    far = 1.0 - 2.0 / (y * _power_of_two(n_int) + 1.0)
    return _signed(select(a < 0.625, near, far), x)


def _sigmoid(x: Expr) -> Expr:
    """exp(-|x|) or 1, over 1 + exp(-|x|)."""
    small = -_abs(x)
    if x.dtype is dtypes.float32:
        e = _scale(*_exp_parts_f32(select(small < -104.0, -104.0, small)))
    else:
        e = _exp_f64(small)
    whole = e + 1.0
    lost = e - (whole - 1.0)
    y = select(x < 0.0, e, 1.0) / whole
    # What rounding 1 + e loses is up to an ulp of y; 1 / whole need not be good to correct it.
    return _fma(y * lost, _fma(whole, 0.5, -1.457), y)


def _erf_f32(x: Expr) -> Expr:
    a = _abs(x)
    z = x * x
    near = _fma(x, _poly(z, fits.ERF_F32), x)
    far_a = select(a > 4.0, 4.0, a)
    y, n, n_int = _exp_parts_f32(-_poly(far_a, fits.ERF_LOG_F32))
    far = 1.0 - y * _power_of_two(n_int)
    return select(a < 0.92, near, _signed(far, x))


def _log_f32(x: Expr) -> Expr:
    tiny = x < 1.1754943508222875e-38
    bits = select(tiny, x * 2.0**23, x).bitcast(dtypes.int32)
    e = (bits - 0x3F3504F3) >> 23  # so that the fraction is in [sqrt(1/2), sqrt(2))
    f = (bits - (e << 23)).bitcast(dtypes.float32) - 1.0
    k = e.cast(dtypes.float32) - select(tiny, 23.0, _c(0.0, x))
    z = f * f
    y = _poly(f, fits.LOG_F32) * f * z
    y = _fma(k, _LN2_LOW_F32, y)
    y = _fma(z, -0.5, y)
    return _log_ends(x, _fma(k, _LN2_HIGH_F32, f + y))


def _log_ends(x: Expr, y: Expr) -> Expr:
    """y = log x, but at 0, infinity, NaN and below 0."""
    end = select(x.eq(0.0), -_INF, select(x > 0.0, x, _NAN))
    return select((x > 0.0) & (x < _INF), y, end)


def _rsqrt(x: Expr) -> Expr:
    return 1.0 / _sqrt(x)


# -- float64: exponentials -------------------------------------------------------------------------
def _reduce_exp(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """(r, what r lacks, n, n as integer): x = r + lack + n ln 2."""
    n, n_int = _rounded(x, _LOG2E)
    high = _fma(n, -_LN2_HIGH, x)
    low = n * _LN2_LOW
    r = high - low
    return r, (high - r) - low, n, n_int


def _exp_core(x: Expr, lift: int = 0) -> Expr:
    """exp(x) * 2^lift for clipped x."""
    r, lack, n, n_int = _reduce_exp(x)
    y = _fma(_poly(r, fits.EXP_F64), r * r, lack) + r + 1.0
    if lift:
        return _scale(y, n + float(lift), n_int + lift)
    return _scale(y, n, n_int)


def _exp_f64(x: Expr, lift: int = 0) -> Expr:
    return _exp_core(_clip(x, -746.0, 711.0), lift)


def _exp2_with(coefficients: Sequence[float]) -> Callable[[Expr], Expr]:
    def exp2(x: Expr) -> Expr:
        x = _clip(x, -1100.0, 1030.0)
        n, n_int = _rounded(x, 1.0)
        r = x - n
        return _scale(_fma(_poly(r, coefficients), r, 1.0), n, n_int)

    return exp2


_exp2_f64 = _exp2_with(fits.EXP2_F64)


def _expm1_f64(x: Expr) -> Expr:
    clipped = _clip(x, -50.0, 710.0)
    r, lack, n, n_int = _reduce_exp(clipped)
    tail = _fma(_poly(r, fits.EXP_F64), r * r, lack)  # expm1(r + lack) = r + tail
    # 2^n (1 + r + tail) - 1, as 2 (2^(n-1) - 1/2 + 2^(n-1) (r + tail)): 2^1024 does not exist.
    s = _power_of_two(n_int - 1)
    base = s - 0.5
    # base + s r with what the sum loses; |base| >= |s r| or n = 0, where base is 0
    sr = s * r
    total = base + sr
    lost = select(n.eq(0.0), 0.0, (base - total) + sr)
    y = (total + (_fma(s, tail, lost))) * 2.0
    y = select(x > 709.79, _INF, y)
    return select(_abs(x) < 2.0**-54, x, y)  # s r would lose bits of numbers below the normal ones


def _tanh_f64(x: Expr) -> Expr:
    a = _abs(x)
    z = x * x
    near = _fma(_poly(z, fits.TANH_F64) * z, a, a)
    far = 1.0 - 2.0 / (_exp_f64(select(a > 20.0, 40.0, a + a)) + 1.0)
    return _signed(select(a < 0.55, near, far), x)


def _sinh_f64(x: Expr) -> Expr:
    a = _abs(x)
    z = x * x
    near = _fma(_poly(z, fits.SINH_F64) * z, x, x)
    half = _exp_f64(a, -1)
    return select(a < 1.0, near, _signed(half - 0.25 / half, x))


def _cosh_f64(x: Expr) -> Expr:
    half = _exp_f64(_abs(x), -1)
    return half + 0.25 / half


# -- float64: logarithms ---------------------------------------------------------------------------
def _log_reduce(x: Expr) -> tuple[Expr, Expr]:
    """(k, m): x = m 2^k, m in [sqrt(1/2), sqrt(2)); x positive and finite."""
    tiny = x < 2.2250738585072014e-308
    bits = select(tiny, x * 2.0**54, x).bitcast(dtypes.int64)
    shifted = bits - 0x3FE6A09E667F3BCD
    # An arithmetic shift right by 52, by a logical one: few targets shift 64-bit lanes so.
    e = ((shifted.bitcast(dtypes.uint64) + (1 << 63)) >> 52).bitcast(dtypes.int64) - 2048
    m = (bits - (e << 52)).bitcast(dtypes.float64)
    k = (e + 0x4338000000000000).bitcast(dtypes.float64) - _ROUND_F64
    return k - select(tiny, 54.0, _c(0.0, x)), m


def _log_fraction(f: Expr, fit: Sequence[float] = fits.LOG_F64) -> tuple[Expr, Expr]:
    """(h, t): log(1 + f) = f - (h - t), with h = f^2 / 2."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * (h + z * _poly(z, fit))


def _log_with(fit: Sequence[float]) -> Callable[[Expr], Expr]:
    def log(x: Expr) -> Expr:
        k, m = _log_reduce(x)
        f = m - 1.0
        h, t = _log_fraction(f, fit)
        y = k * _LN2_HIGH - ((h - _fma(k, _LN2_LOW, t)) - f)
        return _log_ends(x, y)

    return log


def _log_base_with(
    fit: Sequence[float], unit: float, unit_low: float, high: float, low: float
) -> Callable[[Expr], Expr]:
    """log(x) * unit, with k * (high + low) for the exponent k."""

    def log(x: Expr) -> Expr:
        k, m = _log_reduce(x)
        f = m - 1.0
        h, t = _log_fraction(f, fit)
        # log m = a + b with a having few bits, so that a * unit_high is exact
        mask = const(-(1 << 32), dtypes.int64)
        whole = f - (h - t)
        a = (whole.bitcast(dtypes.int64) & mask).bitcast(dtypes.float64)
        b = ((f - a) - h) + t
        top = float((int(unit * 2**31)) / 2**31)
        rest = (unit - top) + unit_low
        part = a * top
        tail = _fma(a, rest, b * unit)
        main = k * high
        total = main + part
        lost = select(_abs(main) > _abs(part), (main - total) + part, (part - total) + main)
        return _log_ends(x, total + (_fma(k, low, tail) + lost))

    return log


def _log1p_f64(x: Expr) -> Expr:
    u = x + 1.0
    k, m = _log_reduce(u)
    near = k.eq(0.0)
    f = select(near, x, m - 1.0)
    c = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    c = select(near, 0.0, c)
    h, t = _log_fraction(f)
    y = k * _LN2_HIGH - ((h - (t + _fma(k, _LN2_LOW, c))) - f)
    return select(x.eq(0.0), x, _log_ends(u, y))


_log_f64 = _log_with(fits.LOG_F64)
_HUGE = 2.0**60


def _asinh_f64(x: Expr) -> Expr:
    a = _abs(x)
    huge = a > _HUGE
    b = select(huge, 1.0, a)
    t = b + b * b / (_sqrt(b * b + 1.0) + 1.0)
    y = _log1p_f64(select(huge, a, t)) + select(huge, math.log(2), _c(0.0, x))
    return _signed(select(a < 2.0**-28, a, y), x)


def _acosh_f64(x: Expr) -> Expr:
    huge = x > _HUGE
    t = select(huge, 1.0, x) - 1.0
    u = t + _sqrt(t * (t + 2.0))
    y = _log1p_f64(select(huge, x, u)) + select(huge, math.log(2), _c(0.0, x))
    return select(x < 1.0, _NAN, y)


def _atanh_f64(x: Expr) -> Expr:
    a = _abs(x)
    y = _log1p_f64((a + a) / (1.0 - a)) * 0.5
    return _signed(select(a < 2.0**-28, a, y), x)


# -- float64: inverse trigonometry -----------------------------------------------------------------
_PIO2, _PIO2_LOW = math.pi / 2, 6.123233995736766e-17
_PIO4, _PIO4_LOW = math.pi / 4, 3.061616997868383e-17


def _atan_ratio(p: Expr, q: Expr) -> Expr:
    """atan(p / q) for p, q >= 0, not both 0 or both infinite."""
    steep = p > q * 2.414213562373095
    middle = p > q * 0.41421356237309503
    top = select(steep, -q, select(middle, p - q, p))
    bottom = select(steep, p, select(middle, p + q, q))
    t = top / bottom
    z = t * t
    high = select(steep, _PIO2, select(middle, _PIO4, _c(0.0, p)))
    low = select(steep, _PIO2_LOW, select(middle, _PIO4_LOW, _c(0.0, p)))
    return high + (_fma(t * z, _poly(z, fits.ATAN_F64), low) + t)


def _atan_f64(x: Expr) -> Expr:
    return _signed(_atan_ratio(_abs(x), _c(1.0, x)), x)


def _atan2_f64(y: Expr, x: Expr) -> Expr:
    p, q = _abs(y), _abs(x)
    # Scale so that products and sums neither overflow nor lose bits.
    large = (p > 2.0**1000) | (q > 2.0**1000)
    small = (p < 2.0**-900) & (q < 2.0**-900)
    s = select(large, 2.0**-100, select(small, 2.0**150, _c(1.0, y)))
    p, q = p * s, q * s
    both = (p.eq(_INF) & q.eq(_INF)) | (p.eq(0.0) & q.eq(0.0))
    zero = p.eq(0.0)
    p, q = select(both, select(zero, 0.0, _c(1.0, p)), p), select(both, 1.0, q)
    y_size = select(q.eq(_INF) & (p < _INF), p * 0.0, _atan_ratio(p, q))
    negative = make("copysign", _c(1.0, x), x) < 0.0
    back = math.pi - (y_size - 1.2246467991473532e-16)
    size = select(negative, back, y_size)
    return select(x.ne(x) | y.ne(y), _NAN, _signed(size, y))


def _asin_tail(z: Expr) -> Expr:
    """asin(s)/s - 1 with z = s^2 <= 1/4."""
    return _poly(z, fits.ASIN_F64) * z


def _asin_f64(x: Expr) -> Expr:
    a = _abs(x)
    big = a > 0.5
    z = select(big, (1.0 - a) * 0.5, x * x)
    s = select(big, _sqrt(z), a)
    t = _asin_tail(z)
    # pi/2 - 2 (s + s t), with s cut so that pi/4 - high is exact
    cut = (s.bitcast(dtypes.int64) & const(-(1 << 32), dtypes.int64)).bitcast(dtypes.float64)
    c = select(s.eq(0.0), 0.0, (z - cut * cut) / (s + cut))
    far = _PIO4 - ((2.0 * (s * t) - (_PIO2_LOW - 2.0 * c)) - (_PIO4 - 2.0 * cut))
    return _signed(select(big, far, _fma(s, t, s)), x)


def _acos_f64(x: Expr) -> Expr:
    a = _abs(x)
    big = a > 0.5
    z = select(big, (1.0 - a) * 0.5, x * x)
    s = _sqrt(z)
    t = _asin_tail(z)
    c = select(s.eq(0.0), 0.0, _fma_residual(z, s) / (s + s))  # sqrt z = s + c
    right = (s + _fma(s, t, c)) * 2.0
    left = _PIO2 - (s + (_fma(s, t, c) - _PIO2_LOW))
    middle = _PIO2 - (x - (_PIO2_LOW - x * t))
    return select(big, select(x < 0.0, left * 2.0, right), middle)


def _fma_residual(z: Expr, s: Expr) -> Expr:
    """z - s^2, exact but for one rounding."""
    high = (s.bitcast(dtypes.int64) & const(-(1 << 27), dtypes.int64)).bitcast(dtypes.float64)
    low = s - high
    return ((z - high * high) - 2.0 * high * low) - low * low


# -- float64: error functions ----------------------------------------------------------------------
def _erfc_far(a: Expr) -> Expr:
    """erfc(a) for a >= 0.85."""
    a = select(a > 28.0, 28.0, a)
    t = (a - 3.75) / (a + 3.75)
    g = _poly(t, fits.ERFC_F64) / (a * 2.0 + 1.0)
    # exp(-a^2) with a = h + l, h^2 exact
    h = (a.bitcast(dtypes.int64) & const(-(1 << 27), dtypes.int64)).bitcast(dtypes.float64)
    low = (h - a) * (h + a)
    y = _exp_f64(-(h * h))
    return _fma(y * g, _poly(low, (1.0, 0.5, 1 / 6, 1 / 24, 1 / 120)) * low, y * g)


def _erf_f64(x: Expr) -> Expr:
    a = _abs(x)
    near = _fma(x, _poly(x * x, fits.ERF_F64), x)
    far = 1.0 - _erfc_far(select(a < 0.5, 0.5, a))
    return select(a < 0.85, near, _signed(far, x))


def _erfc_f64(x: Expr) -> Expr:
    a = _abs(x)
    e = _poly(x * x, fits.ERF_F64)
    near = select(x < 0.25, 1.0 - _fma(x, e, x), 0.5 - (_fma(x, e, x - 0.5)))
    tail = _erfc_far(select(a < 0.5, 0.5, a))
    far = select(x < 0.0, 2.0 - tail, tail)
    return select(a < 0.85, near, far)


def _erfcx_f64(x: Expr) -> Expr:
    """exp(x^2) erfc(x)."""
    a = _abs(x)
    small = a < 0.85
    # far to the right: the asymptotic series
    inverse = 1.0 / select(a > 25.0, a, 25.0)
    series = _poly(
        inverse * inverse * 0.5, (1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0, -135135.0)
    )
    tail = series * inverse * 0.5641895835477563
    middle = select(small, 1.0, select(a > 25.0, 25.0, a))
    t = (middle - 3.75) / (middle + 3.75)
    right = select(a > 25.0, tail, _poly(t, fits.ERFC_F64) / (middle * 2.0 + 1.0))
    # exp(x^2), x = h + l with h^2 exact
    b = select(a > 28.0, 28.0, a)
    h = (b.bitcast(dtypes.int64) & const(-(1 << 27), dtypes.int64)).bitcast(dtypes.float64)
    low = (b - h) * (b + h)
    y = _exp_f64(h * h)
    square = _fma(y, _poly(low, (1.0, 0.5, 1 / 6, 1 / 24, 1 / 120)) * low, y)
    square = select(y.eq(_INF), y, square)
    left = square * 2.0 - right
    near = square * _erfc_f64(select(small, x, 0.0))
    return select(small, near, select(x < 0.0, left, right))


# -- powers ----------------------------------------------------------------------------------------
def _pow_ends(x: Expr, y: Expr, size: Expr) -> Expr:
    """x^y from |x|^y: signs and the special cases of C99 annex F."""
    whole = make("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & make("trunc", half).ne(half) & (_abs(y) < 2.0**53)
    negative = make("copysign", _c(1.0, x), x) < 0.0
    size = select(_abs(x).eq(1.0), select(y.ne(y), y, _c(1.0, x)), size)
    value = select(negative & odd, -size, size)
    value = select((x < 0.0) & (x > -_INF) & make("not", whole), _NAN, value)
    value = select(x.ne(x) | y.ne(y), _NAN, value)
    return select(x.eq(1.0) | y.eq(0.0), 1.0, value)


def _two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a * b as a sum of two floats (Dekker), for factors below 2^990."""
    p = a * b
    mask = const(-(1 << 27), dtypes.int64)
    ah = (a.bitcast(dtypes.int64) & mask).bitcast(dtypes.float64)
    bh = (b.bitcast(dtypes.int64) & mask).bitcast(dtypes.float64)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _fast_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b as a sum of two floats, |a| >= |b|."""
    s = a + b
    return s, b - (s - a)


def _pow_f64(x: Expr, y: Expr) -> Expr:
    """2 ulp: log |x| as a double-length number, times y, then exp of both parts."""
    a = _abs(x)
    inside = (a > 0.0) & (a < _INF)
    k, m = _log_reduce(select(inside, a, 1.0))
    f = m - 1.0
    g = f + 2.0
    g_low = f - (g - 2.0)
    s = f / g
    p, p_low = _two_product(s, g)
    s_low = ((f - p) - p_low - s * g_low) / g
    z, z_low = _two_product(s, s)
    z_low = z_low + 2.0 * s * s_low
    # log m = 2 s + s z (2/3 + z T(z))
    third, third_low = 2 / 3, 3.7007434154171886e-17
    q, q_low = _two_product(z, _c(third, z))
    q_low = q_low + _fma(z_low, third, z * third_low) + z * z * _poly(z, fits.LOG_TAIL)
    q, q_low = _fast_sum(q, q_low)
    u, u_low = _two_product(s, q)
    u_low = u_low + _fma(s, q_low, s_low * q)
    h, h_low = _fast_sum(s * 2.0, u)
    h_low = h_low + u_low + 2.0 * s_low
    h, h_low = _fast_sum(h, h_low)
    main = k * _LN2_HIGH
    t = main + h
    t_low = select(k.eq(0.0), 0.0, h - (t - main)) + _fma(k, _LN2_LOW, h_low)
    t, t_low = _fast_sum(t, t_low)
    # times y, clipped so that nothing overflows
    y_in = _clip(y, -(2.0**200), 2.0**200)
    e, e_low = _two_product(t, y_in)
    e_low = _fma(t_low, y_in, e_low)
    e2 = _clip(e, -800.0, 800.0)
    lost = select(e2.eq(e), e_low, 0.0)
    r, lack, n, n_int = _reduce_exp(e2)
    r, lack = _fast_sum(r, lack + lost)
    w = _fma(_poly(r, fits.EXP_F64), r * r, _fma(lack, r, lack)) + r + 1.0
    size = _scale(w, n, n_int)
    rising = (a > 1.0) & (y > 0.0) | (a < 1.0) & (y < 0.0)
    outside = select(rising, _INF, _c(0.0, x))
    size = select(inside & (_abs(y) < _INF), size, outside)
    return _pow_ends(x, y, size)


def _pow_short(x: Expr, y: Expr) -> Expr:
    """For float32 numbers held in float64: exp2(y log2 |x|)."""
    a = _abs(x)
    inside = (a > 0.0) & (a < _INF)
    t = _log2_f64(select(inside, a, 1.0)) * select(_abs(y) < _INF, y, 0.0)
    rising = (a > 1.0) & (y > 0.0) | (a < 1.0) & (y < 0.0)
    outside = select(rising, _INF, _c(0.0, x))
    return _pow_ends(x, y, select(inside & (_abs(y) < _INF), _exp2_f64(t), outside))


_log2_f64 = _log_base_with(fits.LOG_F64, _LOG2E, 2.0355273740931033e-17, 1.0, 0.0)
_log10_f64 = _log_base_with(
    fits.LOG_F64, 0.4342944819032518, 1.098319650216765e-17,
    float.fromhex("0x1.34413508p-2"), float.fromhex("0x1.f79fef311f12bp-34"),
)  # fmt: skip

_F32: dict[str, Callable[..., Expr]] = {
    "exp": _exp_f32, "log": _log_f32, "tanh": _tanh_f32, "sigmoid": _sigmoid, "erf": _erf_f32,
    "rsqrt": _rsqrt,
}  # fmt: skip

# In float64 for float32 arguments and results, with shorter polynomials.
_SHORT: dict[str, Callable[..., Expr]] = {
    "exp2": _exp2_with(fits.EXP2_SHORT), "pow": _pow_short,
    "sin": trigonometry.sin_short, "cos": trigonometry.cos_short,
}  # fmt: skip

_F64: dict[str, Callable[..., Expr]] = {
    "exp": _exp_f64, "exp2": _exp2_f64, "expm1": _expm1_f64,
    "log": _log_f64, "log2": _log2_f64, "log10": _log10_f64, "log1p": _log1p_f64,
    "sin": trigonometry.sin, "cos": trigonometry.cos, "tan": trigonometry.tan,
    "asin": _asin_f64, "acos": _acos_f64, "atan": _atan_f64, "atan2": _atan2_f64,
    "sinh": _sinh_f64, "cosh": _cosh_f64, "tanh": _tanh_f64,
    "asinh": _asinh_f64, "acosh": _acosh_f64, "atanh": _atanh_f64,
    "sigmoid": _sigmoid, "erf": _erf_f64, "erfc": _erfc_f64, "erfcx": _erfcx_f64,
    "pow": _pow_f64, "rsqrt": _rsqrt,
}  # fmt: skip
