"""Math functions as polynomials in the loop language: `expand(expr) -> expr`.

Owns every MATH op of loops.py. What it makes is branch-free arithmetic, comparisons, selects and
bitcasts, so it vectorises on every back end; nothing calls a library. float16 and bfloat16 compute
in float32 and round. float32 has functions of its own (`math_float32.py`); where it has none,
it computes in float64 and rounds once. Bounds, over all floats (measured by tests/test_math.py):
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
    rare,
    rewrite,
    select,
)
from jitgrad.compiler.math_float32 import FLOAT32
from jitgrad.compiler.math_parts import (
    LOG2E,
    ROUND_F64,
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
    sqrt,
    whole_of,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

# Constants in parts; all but the last part of each have trailing zeros, so that products with
# exponents are exact.
_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
_INF, _NAN = math.inf, math.nan


def expand(root: Expr) -> Expr:
    """root with every MATH node replaced by arithmetic, and divisions of int64 by quicker ones."""
    if not any(e.op in MATH or _is_long_division(e) for e in postorder([root])):
        return root
    return rewrite(root, _leaf)


def _leaf(e: Expr) -> Expr | None:
    if e.op in MATH:
        return _expand(e.op, e.dtype, e.args)
    return _long_division(e) if _is_long_division(e) else None


def _is_long_division(e: Expr) -> bool:
    return e.dtype is dtypes.int64 and e.op in ("div", "floordiv", "mod")


def _long_division(e: Expr) -> Expr:
    """e by float64, in which quotient and remainder of integers below 2^51 are exact."""
    a, d = e.args
    half = const(1 << 51, dtypes.int64)
    sizes = ((a + half) | (d + half)).bitcast(dtypes.uint64)
    x, y = ((v + 0x4338000000000000).bitcast(dtypes.float64) - ROUND_F64 for v in (a, d))
    q = make("trunc", x / y)
    r = x - q * y
    apart = r.ne(0.0) & ((r < 0.0).ne(y < 0.0))
    if e.op == "mod":
        q = select(apart, r + y, r)
    elif e.op == "floordiv":
        q = select(apart, q - 1.0, q)
    return rare(sizes >= (1 << 52), e, whole_of(q + ROUND_F64))


def _expand(op: str, dtype: DType, args: Sequence[Expr]) -> Expr:
    if dtype is dtypes.float64:
        return _F64[op](*args)
    if dtype is dtypes.float32:
        if op in FLOAT32:
            return FLOAT32[op](*args)
        return _F64[op](*(a.cast(dtypes.float64) for a in args)).cast(dtype)
    wide = [a.cast(dtypes.float32) for a in args]
    return _expand(op, dtypes.float32, wide).cast(dtype)


# -- float64: exponentials -------------------------------------------------------------------------
def _reduce_exp(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """(r, what r lacks, n, n as integer): x = r + lack + n ln 2."""
    n, n_int = rounded(x, LOG2E)
    high = fma(n, -_LN2_HIGH, x)
    low = n * _LN2_LOW
    r = high - low
    return r, (high - r) - low, n, n_int


def _exp_core(x: Expr, lift: int = 0) -> Expr:
    """exp(x) * 2^lift for clipped x."""
    r, lack, n, _ = _reduce_exp(x)
    y = fma(poly(r, fits.EXP_F64), r * r, lack) + r + 1.0
    return scale(y, n + float(lift) if lift else n)


def _exp_f64(x: Expr, lift: int = 0) -> Expr:
    return _exp_core(clip(x, -746.0, 711.0), lift)


def _exp2_f64(x: Expr) -> Expr:
    x = clip(x, -1100.0, 1030.0)
    n, _ = rounded(x, 1.0)
    r = x - n
    return scale(fma(poly(r, fits.EXP2_F64), r, 1.0), n)


def _sigmoid_f64(x: Expr) -> Expr:
    return sigmoid_of(x, _exp_f64(-absolute(x)))


def _expm1_f64(x: Expr) -> Expr:
    clipped = clip(x, -50.0, 710.0)
    r, lack, n, n_int = _reduce_exp(clipped)
    tail = fma(poly(r, fits.EXP_F64), r * r, lack)  # expm1(r + lack) = r + tail
    # 2^n (1 + r + tail) - 1, as 2 (2^(n-1) - 1/2 + 2^(n-1) (r + tail)): 2^1024 does not exist.
    s = power_of_two(n_int - 1)
    base = s - 0.5
    # base + s r with what the sum loses; |base| >= |s r| or n = 0, where base is 0
    sr = s * r
    total = base + sr
    lost = select(n.eq(0.0), 0.0, (base - total) + sr)
    y = (total + (fma(s, tail, lost))) * 2.0
    y = select(x > 709.79, _INF, y)
    # s r would lose bits of numbers below the normal ones
    return select(absolute(x) < 2.0**-54, x, y)


def _tanh_f64(x: Expr) -> Expr:
    a = absolute(x)
    z = x * x
    near = fma(poly(z, fits.TANH_F64) * z, a, a)
    far = 1.0 - 2.0 / (_exp_f64(select(a > 20.0, 40.0, a + a)) + 1.0)
    return signed(select(a < 0.55, near, far), x)


def _sinh_f64(x: Expr) -> Expr:
    a = absolute(x)
    z = x * x
    near = fma(poly(z, fits.SINH_F64) * z, x, x)
    half = _exp_f64(a, -1)
    return select(a < 1.0, near, signed(half - 0.25 / half, x))


def _cosh_f64(x: Expr) -> Expr:
    half = _exp_f64(absolute(x), -1)
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
    k = (e + 0x4338000000000000).bitcast(dtypes.float64) - ROUND_F64
    return k - select(tiny, 54.0, number(0.0, x)), m


def _log_fraction(f: Expr, fit: Sequence[float] = fits.LOG_F64) -> tuple[Expr, Expr]:
    """(h, t): log(1 + f) = f - (h - t), with h = f^2 / 2."""
    s = f / (f + 2.0)
    z = s * s
    h = f * f * 0.5
    return h, s * (h + z * poly(z, fit))


def _log_f64(x: Expr) -> Expr:
    k, m = _log_reduce(x)
    f = m - 1.0
    h, t = _log_fraction(f)
    y = k * _LN2_HIGH - ((h - fma(k, _LN2_LOW, t)) - f)
    return log_ends(x, y)


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
        tail = fma(a, rest, b * unit)
        main = k * high
        total = main + part
        lost = select(absolute(main) > absolute(part), (main - total) + part, (part - total) + main)
        return log_ends(x, total + (fma(k, low, tail) + lost))

    return log


def _log1p_f64(x: Expr) -> Expr:
    u = x + 1.0
    k, m = _log_reduce(u)
    near = k.eq(0.0)
    f = select(near, x, m - 1.0)
    c = select(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    c = select(near, 0.0, c)
    h, t = _log_fraction(f)
    y = k * _LN2_HIGH - ((h - (t + fma(k, _LN2_LOW, c))) - f)
    return select(x.eq(0.0), x, log_ends(u, y))


_HUGE = 2.0**60


def _asinh_f64(x: Expr) -> Expr:
    a = absolute(x)
    huge = a > _HUGE
    b = select(huge, 1.0, a)
    t = b + b * b / (sqrt(b * b + 1.0) + 1.0)
    y = _log1p_f64(select(huge, a, t)) + select(huge, math.log(2), number(0.0, x))
    return signed(select(a < 2.0**-28, a, y), x)


def _acosh_f64(x: Expr) -> Expr:
    huge = x > _HUGE
    t = select(huge, 1.0, x) - 1.0
    u = t + sqrt(t * (t + 2.0))
    y = _log1p_f64(select(huge, x, u)) + select(huge, math.log(2), number(0.0, x))
    return select(x < 1.0, _NAN, y)


def _atanh_f64(x: Expr) -> Expr:
    a = absolute(x)
    y = _log1p_f64((a + a) / (1.0 - a)) * 0.5
    return signed(select(a < 2.0**-28, a, y), x)


# -- float64: inverse trigonometry -----------------------------------------------------------------
_PIO2, _PIO2_LOW = math.pi / 2, 6.123233995736766e-17
_PIO4, _PIO4_LOW = math.pi / 4, 3.061616997868383e-17


def _atan_ratio(p: Expr, q: Expr) -> Expr:
    """atan(p / q) for p, q >= 0, not both 0 or both infinite."""
    steep, middle, t = atan_argument(p, q)
    z = t * t
    high = select(steep, _PIO2, select(middle, _PIO4, number(0.0, p)))
    low = select(steep, _PIO2_LOW, select(middle, _PIO4_LOW, number(0.0, p)))
    return high + (fma(t * z, poly(z, fits.ATAN_F64), low) + t)


def _atan_f64(x: Expr) -> Expr:
    return signed(_atan_ratio(absolute(x), number(1.0, x)), x)


def _atan2_f64(y: Expr, x: Expr) -> Expr:
    p, q = absolute(y), absolute(x)
    # Scale so that products and sums neither overflow nor lose bits.
    large = (p > 2.0**1000) | (q > 2.0**1000)
    small = (p < 2.0**-900) & (q < 2.0**-900)
    s = select(large, 2.0**-100, select(small, 2.0**150, number(1.0, y)))
    p, q = p * s, q * s
    both = (p.eq(_INF) & q.eq(_INF)) | (p.eq(0.0) & q.eq(0.0))
    zero = p.eq(0.0)
    p, q = select(both, select(zero, 0.0, number(1.0, p)), p), select(both, 1.0, q)
    y_size = select(q.eq(_INF) & (p < _INF), p * 0.0, _atan_ratio(p, q))
    negative = make("copysign", number(1.0, x), x) < 0.0
    back = math.pi - (y_size - 1.2246467991473532e-16)
    size = select(negative, back, y_size)
    return select(x.ne(x) | y.ne(y), _NAN, signed(size, y))


def _asin_tail(z: Expr) -> Expr:
    """asin(s)/s - 1 with z = s^2 <= 1/4."""
    return poly(z, fits.ASIN_F64) * z


def _asin_f64(x: Expr) -> Expr:
    a = absolute(x)
    big = a > 0.5
    z = select(big, (1.0 - a) * 0.5, x * x)
    s = select(big, sqrt(z), a)
    t = _asin_tail(z)
    # pi/2 - 2 (s + s t), with s cut so that pi/4 - high is exact
    cut = (s.bitcast(dtypes.int64) & const(-(1 << 32), dtypes.int64)).bitcast(dtypes.float64)
    c = select(s.eq(0.0), 0.0, (z - cut * cut) / (s + cut))
    far = _PIO4 - ((2.0 * (s * t) - (_PIO2_LOW - 2.0 * c)) - (_PIO4 - 2.0 * cut))
    return signed(select(big, far, fma(s, t, s)), x)


def _acos_f64(x: Expr) -> Expr:
    a = absolute(x)
    big = a > 0.5
    z = select(big, (1.0 - a) * 0.5, x * x)
    s = sqrt(z)
    t = _asin_tail(z)
    c = select(s.eq(0.0), 0.0, _fma_residual(z, s) / (s + s))  # sqrt z = s + c
    right = (s + fma(s, t, c)) * 2.0
    left = _PIO2 - (s + (fma(s, t, c) - _PIO2_LOW))
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
    g = poly(t, fits.ERFC_F64) / (a * 2.0 + 1.0)
    # exp(-a^2) with a = h + l, h^2 exact
    h = (a.bitcast(dtypes.int64) & const(-(1 << 27), dtypes.int64)).bitcast(dtypes.float64)
    low = (h - a) * (h + a)
    y = _exp_f64(-(h * h))
    return fma(y * g, poly(low, (1.0, 0.5, 1 / 6, 1 / 24, 1 / 120)) * low, y * g)


def _erf_f64(x: Expr) -> Expr:
    a = absolute(x)
    near = fma(x, poly(x * x, fits.ERF_F64), x)
    far = 1.0 - _erfc_far(select(a < 0.5, 0.5, a))
    return select(a < 0.85, near, signed(far, x))


def _erfc_f64(x: Expr) -> Expr:
    a = absolute(x)
    e = poly(x * x, fits.ERF_F64)
    near = select(x < 0.25, 1.0 - fma(x, e, x), 0.5 - (fma(x, e, x - 0.5)))
    tail = _erfc_far(select(a < 0.5, 0.5, a))
    far = select(x < 0.0, 2.0 - tail, tail)
    return select(a < 0.85, near, far)


def _erfcx_f64(x: Expr) -> Expr:
    """exp(x^2) erfc(x)."""
    a = absolute(x)
    small = a < 0.85
    # far to the right: the asymptotic series
    inverse = 1.0 / select(a > 25.0, a, 25.0)
    series = poly(
        inverse * inverse * 0.5, (1.0, -1.0, 3.0, -15.0, 105.0, -945.0, 10395.0, -135135.0)
    )
    tail = series * inverse * 0.5641895835477563
    middle = select(small, 1.0, select(a > 25.0, 25.0, a))
    t = (middle - 3.75) / (middle + 3.75)
    right = select(a > 25.0, tail, poly(t, fits.ERFC_F64) / (middle * 2.0 + 1.0))
    # exp(x^2), x = h + l with h^2 exact
    b = select(a > 28.0, 28.0, a)
    h = (b.bitcast(dtypes.int64) & const(-(1 << 27), dtypes.int64)).bitcast(dtypes.float64)
    low = (b - h) * (b + h)
    y = _exp_f64(h * h)
    square = fma(y, poly(low, (1.0, 0.5, 1 / 6, 1 / 24, 1 / 120)) * low, y)
    square = select(y.eq(_INF), y, square)
    left = square * 2.0 - right
    near = square * _erfc_f64(select(small, x, 0.0))
    return select(small, near, select(x < 0.0, left, right))


# -- powers ----------------------------------------------------------------------------------------
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


def _pow_ends(x: Expr, y: Expr, size: Expr) -> Expr:
    """x^y from |x|^y: signs and the special cases of C99 annex F."""
    whole = make("trunc", y).eq(y)
    half = y * 0.5
    odd = whole & make("trunc", half).ne(half) & (absolute(y) < 2.0**53)
    negative = make("copysign", number(1.0, x), x) < 0.0
    size = select(absolute(x).eq(1.0), select(y.ne(y), y, number(1.0, x)), size)
    value = select(negative & odd, -size, size)
    value = select((x < 0.0) & (x > -math.inf) & make("not", whole), math.nan, value)
    value = select(x.ne(x) | y.ne(y), math.nan, value)
    return select(x.eq(1.0) | y.eq(0.0), 1.0, value)


def _pow_f64(x: Expr, y: Expr) -> Expr:
    """2 ulp: log |x| as a double-length number, times y, then exp of both parts."""
    a = absolute(x)
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
    q, q_low = _two_product(z, number(third, z))
    q_low = q_low + fma(z_low, third, z * third_low) + z * z * poly(z, fits.LOG_TAIL)
    q, q_low = _fast_sum(q, q_low)
    u, u_low = _two_product(s, q)
    u_low = u_low + fma(s, q_low, s_low * q)
    h, h_low = _fast_sum(s * 2.0, u)
    h_low = h_low + u_low + 2.0 * s_low
    h, h_low = _fast_sum(h, h_low)
    main = k * _LN2_HIGH
    t = main + h
    t_low = select(k.eq(0.0), 0.0, h - (t - main)) + fma(k, _LN2_LOW, h_low)
    t, t_low = _fast_sum(t, t_low)
    # times y, clipped so that nothing overflows
    y_in = clip(y, -(2.0**200), 2.0**200)
    e, e_low = _two_product(t, y_in)
    e_low = fma(t_low, y_in, e_low)
    e2 = clip(e, -800.0, 800.0)
    lost = select(e2.eq(e), e_low, 0.0)
    r, lack, n, _ = _reduce_exp(e2)
    r, lack = _fast_sum(r, lack + lost)
    w = fma(poly(r, fits.EXP_F64), r * r, fma(lack, r, lack)) + r + 1.0
    size = scale(w, n)
    rising = (a > 1.0) & (y > 0.0) | (a < 1.0) & (y < 0.0)
    outside = select(rising, _INF, number(0.0, x))
    size = select(inside & (absolute(y) < _INF), size, outside)
    return _pow_ends(x, y, size)


_log2_f64 = _log_base_with(fits.LOG_F64, LOG2E, 2.0355273740931033e-17, 1.0, 0.0)
_log10_f64 = _log_base_with(
    fits.LOG_F64, 0.4342944819032518, 1.098319650216765e-17,
    float.fromhex("0x1.34413508p-2"), float.fromhex("0x1.f79fef311f12bp-34"),
)  # fmt: skip

_F64: dict[str, Callable[..., Expr]] = {
    "exp": _exp_f64, "exp2": _exp2_f64, "expm1": _expm1_f64,
    "log": _log_f64, "log2": _log2_f64, "log10": _log10_f64, "log1p": _log1p_f64,
    "sin": trigonometry.sin, "cos": trigonometry.cos, "tan": trigonometry.tan,
    "asin": _asin_f64, "acos": _acos_f64, "atan": _atan_f64, "atan2": _atan2_f64,
    "sinh": _sinh_f64, "cosh": _cosh_f64, "tanh": _tanh_f64,
    "asinh": _asinh_f64, "acosh": _acosh_f64, "atanh": _atanh_f64,
    "sigmoid": _sigmoid_f64, "erf": _erf_f64, "erfc": _erfc_f64, "erfcx": _erfcx_f64,
    "pow": _pow_f64, "rsqrt": rsqrt,
}  # fmt: skip
