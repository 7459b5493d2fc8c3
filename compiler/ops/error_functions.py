"""Relatives of the error function: erfinv, erfcx (scaled erfc), ndtri (the normal quantile).

Owns their records; erf and erfc are in transcendental.py. In kernels they compute in float64 and
round once. The references are other algorithms, in long double.

Sources: M. Giles, Approximating the erfinv function (2010), for the form of erfinv; S. Winitzki, A
handy approximation for the error function and its inverse (2008), as a first guess; continued
fraction of erfc, NIST Digital Library of Mathematical Functions 7.9.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler import math_coefficients as fits
from jitgrad.compiler.loops import (
    Builder,
    Expr,
    make,
    rare,
    select,
)
from jitgrad.compiler.math_float32 import log2_wide
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.gamma import PI, f64, horner, in_float64, in_long
from jitgrad.compiler.ops.record import Accuracy, Sample, op
from jitgrad.compiler.ops.transcendental import elementwise_float
from jitgrad.runtime import dtypes

_INF, _NAN = math.inf, math.nan
_SLOPE = 2 / math.sqrt(math.pi)
_A = 0.147  # Winitzki's constant


def erfcx_reference(x: np.ndarray) -> np.ndarray:
    """exp(x^2) erfc(x) of long doubles: Taylor series near 0, else the continued fraction."""
    one = x.dtype.type
    a = np.abs(x)
    near = np.where(a < 2, x, one(0))
    term = total = near
    for k in range(1, 80):  # erf(x) = 2 / sqrt(pi) exp(-x^2) * sum of 2^k x^(2k+1) / (2k+1)!!
        term = term * (2 * near * near / (2 * k + 1))
        total = total + term
    root_pi = np.sqrt(one(PI))
    inside = np.exp(near * near) - 2 / root_pi * total
    big = np.where(a < 2, one(2), a)
    fraction = big
    for k in range(300, 0, -1):
        fraction = big + one(k) / 2 / fraction
    outside = 1 / (root_pi * fraction)
    mirrored = 2 * np.exp(big * big) - outside
    return np.where(a < 2, inside, np.where(x < 0, mirrored, outside))


class Erfcx(Unary):
    """exp(x^2) erfc(x)."""

    name, node, namespace = "erfcx", "erfcx", "special"
    effort = 16
    saves = (0, "out")
    numpy = in_long(erfcx_reference)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.mul(op.mul(x, 2.0), out), _SLOPE)


# -- erfinv ----------------------------------------------------------------------------------------
def _guess(square: Expr) -> Expr:
    """erfinv from log(1 - x^2), within 0.2 percent."""
    t = square * 0.5 + 2 / (math.pi * _A)
    low = square * (-1 / _A)
    return make("sqrt", low / (make("sqrt", t * t + low) + t))


def _erfinv(x: Expr, short: bool = False) -> Expr:
    """x P(w) with w = -log(1 - x^2), by other polynomials P in sqrt(w) where x is near 1."""
    a = make("abs", x)
    inside = a < 1.0
    a = select(inside, a, 0.0)
    square = (1.0 - a) * (1.0 + a)
    if short:
        w = log2_wide(square) * -math.log(2.0)
        far = horner(make("sqrt", w) - 3.1, fits.ERFINV_FAR_SHORT)
        p = rare(w >= 5.0, far, horner(w - 2.5, fits.ERFINV_SHORT))
    else:
        w = -make("log", square)
        far, last = w >= 6.25, w >= 16.0
        s = make("sqrt", w)
        end = select(last, horner(s - 5.0, fits.ERFINV_LAST), horner(s - 3.25, fits.ERFINV_FAR))
        p = rare(far, end, horner(w - 3.125, fits.ERFINV))
    ends = select(make("abs", x).eq(1.0), _INF, f64(_NAN))
    return make("copysign", select(inside, a * p, ends), x)


_erf, _erfc = elementwise_float(math.erf), elementwise_float(math.erfc)


def _guess_array(log: np.ndarray) -> np.ndarray:
    t = log * 0.5 + 2 / (math.pi * _A)
    low = log * (-1 / _A)
    return np.sqrt(low / (np.sqrt(t * t + low) + t))


def _erfinv_reference(x: np.ndarray) -> np.ndarray:
    """Newton from the same guess, with the C library's erf and erfc."""
    v = x.astype(np.float64)
    a = np.abs(v)
    inside = a < 1
    a = np.where(inside, a, 0.0)
    rest, middle = 1 - a, a < 0.5
    y = _guess_array(np.where(middle, np.log1p(-a * a), np.log(rest) + np.log1p(a)))
    for _ in range(5 if x.dtype == np.float64 else 3):
        lack = np.where(middle, a - _erf(np.where(middle, y, 0)), _erfc(y) - rest)
        y = y + lack / (_SLOPE * np.exp(-y * y))
    ends = np.where(np.abs(v) == 1, _INF, _NAN)
    return np.copysign(np.where(inside, y, ends), v).astype(x.dtype)


class Erfinv(Unary):
    """The inverse of erf on [-1, 1]: infinite at both ends, NaN outside."""

    name = "erfinv"
    effort = 16
    saves = ("out",)
    numpy = _erfinv_reference
    domain = (-0.9, 0.9)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        (v,) = x
        return _erfinv(v.cast(dtypes.float64), v.dtype is dtypes.float32).cast(v.dtype)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.mul(op.exp(op.mul(out, out)), 1 / _SLOPE)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        x = np.array([0.0, 1e-300, 1e-9, 0.3, 0.4999, 0.5001, 0.97, 0.999, 1 - 1e-9, 1 - 2.0**-53])
        yield Sample((np.concatenate([x, -x]),), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(11)
        x = np.concatenate([rng.uniform(-30, 30, 1500), rng.uniform(-1, 1, 1500), [0.0, -0.0]])
        yield Accuracy((np.tanh(x),), 6)


# -- ndtri -----------------------------------------------------------------------------------------
def _ndtri(p: Expr) -> Expr:
    upper = p > 0.5
    q = select(upper, 1.0 - p, p)  # the nearer tail
    inside = (q > 0.0) & (q <= 0.5)
    q = select(inside, q, 0.25)
    middle = q > 0.1
    near = _erfinv(select(middle, 1.0 - q * 2.0, 0.0))
    # in the tail: Newton on log erfc(y) = log(2 q)
    target = make("log", select(middle, f64(0.1), q) * 2.0)
    y = _guess(target + make("log1p", select(middle, f64(-0.1), -q)) + math.log(2))
    for _ in range(4):
        scaled = make("erfcx", y)
        y = y + (make("log", scaled) - y * y - target) * scaled * (1 / _SLOPE)
    y = select(middle, near, y) * math.sqrt(2)
    value = select(upper, y, -y)
    ends = select(p.eq(0.0), -_INF, select(p.eq(1.0), _INF, f64(_NAN)))
    return select(inside, value, ends)


def _ndtri_reference(p: np.ndarray) -> np.ndarray:
    one = p.dtype.type
    upper = p > 0.5
    q = np.where(upper, 1 - p, p)
    inside = (q > 0) & (q <= 0.5)
    q = np.where(inside, q, one(0.25))
    tail = np.log(2 * q)
    y = _guess_array(tail + np.log1p(-q) + math.log(2))
    slope = np.sqrt(one(PI)) / 2
    for _ in range(7):
        scaled = erfcx_reference(y)
        y = y + (np.log(scaled) - y * y - tail) * scaled * slope
    value = np.where(q == 0.5, one(0), np.sqrt(one(2)) * y)
    value = np.where(upper, value, -value)
    ends = np.where(p == 0, -one(_INF), np.where(p == 1, one(_INF), one(_NAN)))
    return np.where(inside, value, ends)


class Ndtri(Unary):
    """The quantile of the standard normal distribution: x with ndtr(x) = p; NaN outside [0, 1]."""

    name, namespace = "ndtri", "special"
    effort = 16
    saves = ("out",)
    numpy = in_long(_ndtri_reference)
    domain = (0.1, 0.9)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(_ndtri, *x)

    def derivative(self, out: Any, x: Any) -> Any:
        half = op.mul(op.mul(out, out), 0.5)
        return op.mul(op.exp(half), math.sqrt(2 * math.pi))

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        p = np.array([1e-300, 1e-30, 1e-9, 0.01, 0.09999, 0.1001, 0.3, 0.5, 0.6, 0.95, 1 - 1e-9])
        yield Sample((p,), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(11)
        tail = np.exp(-20 * rng.uniform(0.01, 12, 1500))
        yield Accuracy((np.concatenate([tail, rng.uniform(0, 1, 1500)]),), 8)


erfcx, erfinv, ndtri = Erfcx(), Erfinv(), Ndtri()
