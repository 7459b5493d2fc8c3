"""sin, cos and tan of float64 in the loop language, for every argument.

Owns the reduction of arguments modulo pi/2 and the three functions; `math.py` does the rest. Below
2^20 the multiple of pi/2 is subtracted in parts (Cody and Waite); above, the fraction of x * 2/pi
is computed in integers from the bits of 2/pi that matter (Payne and Hanek), as selects, without
tables in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitgrad.compiler import math_coefficients as fits
from jitgrad.compiler.loops import (
    Expr,
    const,
    make,
    rare,
    select,
)
from jitgrad.runtime import dtypes

_ROUND = 1.5 * 2.0**52
_ROUND_BITS = 0x4338000000000000
_LIMIT = 2.0**20
_MASK = 0xFFFFFFFF

# pi/2 in parts of 33 bits, so that products with n < 2^20 are exact.
_PIO2 = (
    float.fromhex("0x1.921fb544p+0"),
    float.fromhex("0x1.0b4611a6p-34"),
    float.fromhex("0x1.3198a2ep-69"),
    float.fromhex("0x1.b839a252049c1p-104"),
)
_PIO2_SHORT = (float.fromhex("0x1.921fb54p+0"), float.fromhex("0x1.10b4611a62633p-30"))
_HALF_PI, _HALF_PI_LOW = math.pi / 2, 6.123233995736766e-17

# The first 1184 bits of 2/pi after the point.
_TWO_OVER_PI = (
    0xA2F9836E,
    0x4E441529,
    0xFC2757D1,
    0xF534DDC0,
    0xDB629599,
    0x3C439041,
    0xFE5163AB,
    0xDEBBC561,
    0xB7246E3A,
    0x424DD2E0,
    0x06492EEA,
    0x09D1921C,
    0xFE1DEB1C,
    0xB129A73E,
    0xE88235F5,
    0x2EBB4484,
    0xE99C7026,
    0xB45F7E41,
    0x3991D639,
    0x835339F4,
    0x9C845F8B,
    0xBDF9283B,
    0x1FF897FF,
    0xDE05980F,
    0xEF2F118B,
    0x5A0A6D1F,
    0x6D367ECF,
    0x27CB09B7,
    0x4F463F66,
    0x9E5FEA2D,
    0x7527BAC7,
    0xEBE5F17B,
    0x3D0739F7,
    0x8A5292EA,
    0x6BFB5FB1,
    0x1F8D5D08,
    0x56033046,
)


def sin(x: Expr) -> Expr:
    """Sine of a float64."""
    r, low, q = _reduce(x)
    return select(x.eq(0.0), x, _turned(x, q, _sin_poly(r, low), _cos_poly(r, low)))


def cos(x: Expr) -> Expr:
    """Cosine of a float64."""
    r, low, q = _reduce(x)
    return _turned(x, q + 1, _sin_poly(r, low), _cos_poly(r, low))


def tan(x: Expr) -> Expr:
    """Tangent of a float64."""
    r, low, q = _reduce(x)
    s, c = _sin_poly(r, low), _cos_poly(r, low)
    odd = (q & 1).ne(0)
    y = select(odd, -c, s) / select(odd, s, c)
    y = select(x.eq(0.0), x, y)
    return select(make("abs", x) < math.inf, y, math.nan)


def sin_short(x: Expr) -> Expr:
    """Sine, for a result that is rounded to float32; x holds a float32."""
    r, q = _reduce_short(x)
    z = r * r
    s = _poly(z, fits.SIN_SHORT) * z * r + r
    return select(x.eq(0.0), x, _turned(x, q, s, _cos_short(z)))


def cos_short(x: Expr) -> Expr:
    """Cosine, for a result that is rounded to float32; x holds a float32."""
    r, q = _reduce_short(x)
    z = r * r
    s = _poly(z, fits.SIN_SHORT) * z * r + r
    return _turned(x, q + 1, s, _cos_short(z))


def tan_short(x: Expr) -> Expr:
    """Tangent, for a result that is rounded to float32; x holds a float32."""
    r, q = _reduce_short(x)
    z = r * r
    s = _poly(z, fits.SIN_SHORT) * z * r + r
    c = _cos_short(z)
    odd = (q & 1).ne(0)
    y = select(x.eq(0.0), x, select(odd, -c, s) / select(odd, s, c))
    return select(make("abs", x) < math.inf, y, math.nan)


def _cos_short(z: Expr) -> Expr:
    return (_poly(z, fits.COS_SHORT) * z - 0.5) * z + 1.0


def _turned(x: Expr, q: Expr, s: Expr, c: Expr) -> Expr:
    """sin(r + q pi/2) from sin r and cos r; NaN where x is infinite or NaN."""
    y = select((q & 1).ne(0), c, s)
    y = select((q & 2).ne(0), -y, y)
    return select(make("abs", x) < math.inf, y, math.nan)


def _poly(x: Expr, coefficients: Sequence[float]) -> Expr:
    total = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = make("fma", total, x, const(c, x.dtype))
    return total


def _sin_poly(r: Expr, low: Expr) -> Expr:
    """sin(r + low), |r| <= pi/4."""
    z = r * r
    t = _poly(z, fits.SIN_F64) * z * r
    return r + (t + low * (1.0 - z * 0.5))


def _cos_poly(r: Expr, low: Expr) -> Expr:
    """cos(r + low): 1 - z/2 with what the subtraction loses."""
    z = r * r
    half = z * 0.5
    w = 1.0 - half
    t = _poly(z, fits.COS_F64) * z * z - r * low
    return w + (((1.0 - w) - half) + t)


# -- reduction -------------------------------------------------------------------------------------
def _quadrant(x: Expr) -> tuple[Expr, Expr]:
    """(n, n as int64): x * 2/pi rounded, for |x| < 2^20."""
    shifted = make("fma", x, const(2 / math.pi, x.dtype), const(_ROUND, x.dtype))
    return shifted - _ROUND, shifted.bitcast(dtypes.int64) - _ROUND_BITS


def _reduce(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(r, low, q): x = r + low + q pi/2 modulo 2 pi."""
    huge = make("abs", x) >= _LIMIT
    near = select(huge, 0.0, x)
    n, q = _quadrant(near)
    a = near - n * _PIO2[0]
    w = n * _PIO2[1]
    t = a - w
    u = ((a - t) - w) - n * _PIO2[2] - n * _PIO2[3]
    r = t + u
    low = (t - r) + u
    far, far_low, far_q = _payne_hanek(x)
    return rare(huge, far, r), rare(huge, far_low, low), rare(huge, far_q, q)


def _reduce_short(x: Expr) -> tuple[Expr, Expr]:
    huge = make("abs", x) >= _LIMIT
    near = select(huge, 0.0, x)
    n, q = _quadrant(near)
    r = (near - n * _PIO2_SHORT[0]) - n * _PIO2_SHORT[1]
    far, _, far_q = _payne_hanek(x)
    return rare(huge, far, r), rare(huge, far_q, q)


def _payne_hanek(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(r, low, q) for |x| >= 2^20.

    |x| = M 2^E with M of 53 bits. Of 2/pi only the 192 bits from place E - 1 on matter: those
    before give multiples of 4. Their product with M modulo 2^192 is x * 2/pi modulo 4.
    """
    bits = make("abs", x).bitcast(dtypes.uint64)
    mantissa = (bits & ((1 << 52) - 1)) | (1 << 52)
    # Place of the first bit, with 64 zeros put before the point: E - 2 + 64, E = exponent - 1075.
    place = (bits >> 52) - (1075 + 2 - 64)
    words = [const(w, dtypes.uint64) for w in (0, 0, *_TWO_OVER_PI)]
    words = _from(words, place >> 5, 7)
    shift = place & 31
    limbs = [
        (((high << 32) | low) << shift) >> 32 for high, low in zip(words, words[1:], strict=False)
    ]
    low_half, high_half = mantissa & _MASK, mantissa >> 32
    zero = const(0, dtypes.uint64)
    below, carry = zero, zero
    product: list[Expr] = []
    for k in range(5, -1, -1):  # least significant limb first
        p = limbs[k] * low_half
        total = (p & _MASK) + (below >> 32) + carry
        if k < 5:
            total = total + limbs[k + 1] * high_half
        product.append(total & _MASK)
        below, carry = p, total >> 32
    r5, r4, r3, r2, r1, r0 = product
    high = (r0 << 32) | r1
    q = ((high + (1 << 61)) >> 62).bitcast(dtypes.int64)
    # The fraction of a quadrant, in [-1/2, 1/2), as three integers of 32, 32 and 64 bits.
    top = ((high << 2) | (r2 >> 30)).bitcast(dtypes.int64)
    a = (top >> 32).cast(dtypes.float64) * 2.0**-32
    b = (top & _MASK).cast(dtypes.float64) * 2.0**-64
    rest = ((r2 << 34) | (r3 << 2) | (r4 >> 30)) >> 1
    c = rest.bitcast(dtypes.int64).cast(dtypes.float64) * 2.0**-127
    v = a + b
    v_low = (b - (v - a)) + c
    w = v + v_low
    v_low = v_low - (w - v)
    r, r_low = _two_product(w, _HALF_PI)
    r_low = r_low + w * _HALF_PI_LOW + v_low * _HALF_PI
    far = r + r_low
    far_low = r_low - (far - r)
    negative = x < 0.0
    return (
        select(negative, -far, far),
        select(negative, -far_low, far_low),
        select(negative, -q, q),
    )


def _from(words: list[Expr], start: Expr, count: int) -> list[Expr]:
    """words[start : start + count], by halving choices."""
    for bit in (32, 16, 8, 4, 2, 1):
        take = (start & bit).ne(0)
        need = count + bit - 1
        words = [
            select(take, words[min(i + bit, len(words) - 1)], words[i])
            for i in range(min(need, len(words)))
        ]
    return words


def _two_product(a: Expr, b: float) -> tuple[Expr, Expr]:
    """a * b as a sum of two floats (Dekker)."""
    p = a * b
    mask = const(-(1 << 27), dtypes.int64)
    ah = (a.bitcast(dtypes.int64) & mask).bitcast(dtypes.float64)
    al = a - ah
    bh = math.floor(b * 2**24) / 2**24
    bl = b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl
