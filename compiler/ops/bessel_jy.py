"""Bessel functions of the first and second kind, of order 0 and 1: bessel_j0, j1, y0, y1.

Owns their records. In kernels they compute in float64 and round once: up to 5 polynomials in x^2
(of J beside its zeros there, of Y beside J log x), beyond it the modulus and phase of Hankel's
form, whose two slowly varying parts are polynomials in 25 / x^2. The polynomials interpolate the
functions at Chebyshev's points; their variable is scaled to [-1, 1]. The references are Miller's
backward recurrence with Neumann's series, and Hankel's expansion, in long double.

Source: NIST Digital Library of Mathematical Functions, 10.8, 10.12, 10.17(i), 10.74(iv);
Abramowitz and Stegun, 9.1.88 and 9.1.89 (Neumann's series).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    make,
    select,
)
from jitgrad.compiler.ops.bessel import over
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.gamma import PI, f64, horner, in_float64, in_long
from jitgrad.compiler.ops.record import Accuracy, Sample, op

_EDGE = 5.0
# J(x) over the factors of its zeros below 5 (and over x for order 1); Y(x) less (2 / pi) J(x) log x
# (and less -2 / (pi x), over x, for order 1): in powers of x^2 / 12.5 - 1.
_J0 = (
    0.0031873556303932387, -0.0019210870437164043, 0.0004876827177655839,
    -7.121705240575852e-05, 6.854954847201717e-06, -4.706291664571183e-07,
    2.4286220370252607e-08, -9.781438944762927e-10, 3.163725918080498e-11,
    -8.404187991772377e-13, 1.867152710741504e-14, -3.5218732280077126e-16,
    5.715212521281862e-18, -8.055083321714981e-20,
)  # fmt: skip
_J1 = (
    -0.01587595431164548, 0.013090777521810029, -0.004240225993395717, 0.0007552540432951285,
    -8.592956232073762e-05, 6.814683895178348e-06, -3.991381169521328e-07,
    1.7995159919477946e-08, -6.44313098846173e-10, 1.8773820373349467e-11,
    -4.540044272545434e-13, 9.260767006653998e-15, -1.6162359403482695e-16,
    2.4377326964710054e-18,
)  # fmt: skip
_Y0 = (
    0.4837248578102995, -0.4326558222855125, -0.4705763655297288, 0.38851639956570944,
    -0.11151682184328618, 0.01763534538933875, -0.0018028096665526022, 0.00012994629092087043,
    -6.9855043677424995e-06, 2.9142206877725446e-07, -9.720964498735147e-09,
    2.6539990842050477e-10, -6.0431800819704165e-12, 1.1655643914306794e-13,
    -1.9305329340667354e-15, 2.7721643840258097e-17,
)  # fmt: skip
_Y1 = (
    0.13974939033568806, 0.09108650838448444, -0.16312020358118715, 0.06634695354779108,
    -0.013433433740818153, 0.0016688031328635938, -0.0001414183579449178, 8.73309830485033e-06,
    -4.1137780773696086e-07, 1.5288901821935692e-08, -4.6013042449452644e-10,
    1.1448948814492108e-11, -2.395476597843511e-13, 4.274589973163905e-15,
    -6.587839501919679e-17, 8.847008223306256e-19,
)  # fmt: skip
# With w = x - (order / 2 + 1 / 4) pi, J and Y are sqrt(2 / (pi x)) times P cos w - 5 Q sin(w) / x
# and P sin w + 5 Q cos(w) / x: P and Q in powers of 50 / x^2 - 1.
_P0 = (
    0.9986347659091991, -0.0013274931272003391, 3.491730581233334e-05, -2.459963325068262e-06,
    2.9759006141438246e-07, -5.0864261714696806e-08, 1.1058706065716153e-08,
    -2.8710191838353755e-09, 8.542245149761174e-10, -2.8319250349814857e-10,
    1.0280536236104728e-10, -4.0250099897056186e-11, 1.5783912592752308e-11,
    -6.3912043542180595e-12, 5.0575827390743435e-12, -3.3022474671295454e-12,
    -1.7279660366578038e-12, 1.8945554647024017e-12, 2.5048859192107975e-12,
    -2.0708491233547597e-12, -1.1704042727464847e-12, 9.518291398386725e-13,
    3.311757501640446e-13, -2.452371132806113e-13,
)  # fmt: skip
_Q0 = (
    -0.02472299270522373, 0.00026284279458204686, -1.26774308850932e-05, 1.2478226341684705e-06,
    -1.8819750353617696e-07, 3.774058943142381e-08, -9.279607088079224e-09,
    2.6593886717281014e-09, -8.587612687726887e-10, 3.05163220836342e-10,
    -1.178828478162734e-10, 4.881997632138588e-11, -1.9369456361367175e-11,
    7.793498901447952e-12, -8.066388187909544e-12, 5.802855559366117e-12, 3.90862642172442e-12,
    -4.1224311392637705e-12, -4.9308910350753264e-12, 4.198442456194171e-12,
    2.356248773182818e-12, -1.9548816227834043e-12, -6.477553677737881e-13,
    4.918206674675006e-13,
)  # fmt: skip
_P1 = (
    1.0022906462560661, 0.0022414632139171266, -4.578280653104406e-05, 2.978621108928937e-06,
    -3.4667187217439655e-07, 5.791661360060048e-08, -1.2403129698285394e-08,
    3.1854601036324085e-09, -9.400934219772036e-10, 3.0967484242738935e-10,
    -1.1182870691622713e-10, 4.358899558528362e-11, -1.7058529548860927e-11,
    6.899828793547808e-12, -5.3860331823412155e-12, 3.497071747935555e-12,
    1.7995932840329669e-12, -1.9797573065255286e-12, -2.633035933319832e-12,
    2.173537066243158e-12, 1.228568047030594e-12, -9.9821877680869e-13, -3.481638894853625e-13,
    2.5750333924504047e-13,
)  # fmt: skip
_Q1 = (
    0.07460948663481604, -0.00037296992436825974, 1.5796188355964956e-05,
    -1.4739855898100158e-06, 2.159770757026685e-07, -4.253347533450304e-08,
    1.0328333529819094e-08, -2.932923506269539e-09, 9.404366036524181e-10,
    -3.3231653276126986e-10, 1.2776321445508503e-10, -5.2696006525083064e-11,
    2.0890766456112383e-11, -8.409782746523898e-12, 8.55717855734584e-12, -6.12413412195151e-12,
    -4.0780269079662465e-12, 4.3078831234034285e-12, 5.175421858366359e-12,
    -4.4007426666956935e-12, -2.4705785232015915e-12, 2.0478998902203225e-12,
    6.800830735108198e-13, -5.157730720297148e-13,
)  # fmt: skip
_SMALL = {("j", 0): _J0, ("j", 1): _J1, ("y", 0): _Y0, ("y", 1): _Y1}
_LARGE = ((_P0, _Q0), (_P1, _Q1))
# The zeros of J below 5, each as a sum of two numbers.
_ZEROS: tuple[tuple[tuple[float, float], ...], ...] = (
    ((2.404825557695773, -1.176691651530894e-16), (5.520078110286311, 8.088597146146722e-17)),
    ((3.8317059702075125, -1.5269184090088067e-16),),
)


def _j_small(a: Expr, order: int) -> Expr:
    """J of 0 <= a <= 5."""
    square = a * a
    value = horner(square * 0.08 - 1.0, _SMALL["j", order])
    for zero, rest in _ZEROS[order]:
        value = value * (((a - zero) - rest) * (a + zero))
    return value * a if order else value


def _hankel(a: Expr, order: int, kind: str) -> Expr:
    """J or Y of a >= 5."""
    inverse = _EDGE / a
    u = (inverse * inverse) * 2.0 - 1.0
    p, q = (horner(u, c) for c in _LARGE[order])
    q = q * inverse
    sine, cosine = make("sin", a), make("cos", a)
    total, difference = cosine + sine, sine - cosine  # sqrt(2) cos(w) and sin(w) of order 0
    c, s = (difference, -total) if order else (total, difference)
    turned = p * c - q * s if kind == "j" else p * s + q * c
    return turned / (make("sqrt", a) * math.sqrt(math.pi))  # a * pi may overflow


def _j(x: Expr, order: int) -> Expr:
    a = make("abs", x)
    small = a < _EDGE
    near = _j_small(select(small, a, 0.0), order)
    value = select(small, near, _hankel(select(small, f64(_EDGE), a), order, "j"))
    return select(x < 0.0, -value, value) if order else value


def _y(x: Expr, order: int) -> Expr:
    small = x < _EDGE
    a = select(small & (x > 0.0), x, 1.0)
    near = horner(a * a * 0.08 - 1.0, _SMALL["y", order])
    log = make("log", a) * _j_small(a, order)
    if order:
        near = near * a + (log - 1.0 / a) * (2 / math.pi)
    else:
        near = near + log * (2 / math.pi)
    value = select(small, near, _hankel(select(small, f64(_EDGE), x), order, "y"))
    return select(x > 0.0, value, select(x.eq(0.0), -math.inf, f64(math.nan)))


_NEAR = 25.0  # where the references change
_START = 90  # where their backward recurrence begins


def _recurrence(a: np.ndarray) -> list[np.ndarray]:
    """J of orders 0, 1, ... of 0 < a <= 25."""
    values = [np.zeros_like(a)] * _START
    upper, here = np.zeros_like(a), np.full_like(a, 1e-300)
    for k in range(_START - 1, -1, -1):
        values[k] = here
        upper, here = here, 2 * k / a * here - upper
        huge = np.abs(here) > 1e300
        if huge.any():
            scale = np.where(huge, a.dtype.type(1e-300), a.dtype.type(1))
            upper, here = upper * scale, here * scale
            values[k:] = [v * scale for v in values[k:]]
    total = values[0] + 2 * sum(values[2::2])
    return [v / total for v in values]


def _expansion(a: np.ndarray, order: int, kind: str) -> np.ndarray:
    one = a.dtype.type
    parts = [np.zeros_like(a), np.zeros_like(a)]
    term = np.ones_like(a)
    for k in range(40):
        parts[k % 2] = parts[k % 2] + (-1) ** (k // 2) * term
        term = term * (4 * order * order - (2 * k + 1) ** 2) / (8 * (k + 1) * a)
    p, q = parts
    w = (order * 2 + 1) * one(PI) / 4
    sine, cosine = np.sin(a), np.cos(a)
    c = cosine * np.cos(w) + sine * np.sin(w)
    s = sine * np.cos(w) - cosine * np.sin(w)
    turned = p * c - q * s if kind == "j" else p * s + q * c
    return np.sqrt(2 / (one(PI) * a)) * turned


_GAMMA = np.longdouble("0.577215664901532860606512090082402431")


def _reference(order: int, kind: str) -> Any:
    def apply(x: np.ndarray) -> np.ndarray:
        one = x.dtype.type
        a = np.abs(x) if kind == "j" else x
        inside = (a < _NEAR) & (a > 0)
        tiny = a < 1e-8  # leading terms, where the recurrence would overflow
        near = np.where(inside & ~tiny, a, one(1))
        j = _recurrence(near)
        far = _expansion(np.where(inside | (a <= 0), one(_NEAR), a), order, kind)
        if kind == "j":
            start = a / 2 if order else np.ones_like(a)
            value = np.where(tiny, start, np.where(inside, j[order], far))
            return np.where(x < 0, -value, value) if order else value
        log = np.log(near / 2) + one(_GAMMA)
        small = np.where(tiny & inside, a, one(1))
        if order:
            series = sum((-1) ** k / one(k) * (j[2 * k - 1] - j[2 * k + 1]) for k in range(1, 40))
            value = 2 / one(PI) * (log * j[1] - j[0] / near + series)  # -Y0'
            start = -2 / (one(PI) * small)
        else:
            series = sum((-1) ** k / one(k) * j[2 * k] for k in range(1, 40))
            value = 2 / one(PI) * log * j[0] - 4 / one(PI) * series
            start = 2 / one(PI) * (np.log(small / 2) + one(_GAMMA))
        value = np.where(tiny, start, np.where(inside, value, far))
        return np.where(x > 0, value, np.where(x == 0, -one(np.inf), one(np.nan)))

    return in_long(apply)


class _Oscillating(Unary):
    namespace = "special"
    saves: tuple[int | str, ...] = (0, "out")
    order, kind = 0, "j"

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        body = _j if self.kind == "j" else _y
        return in_float64(lambda v: body(v, self.order), *x)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        x = np.array([1e-9, 1e-3, 1.0, 2.5, 4.99, 5.01, 5.6, 24.9, 25.1, 700.0, 1e9])
        yield Sample((np.concatenate([x, -x]),), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(5)
        x = np.concatenate([rng.uniform(0, 30, 1500), np.exp(rng.uniform(-30, 30, 500))])
        yield Accuracy((x,), 4, relative=False)


class BesselJ0(_Oscillating):
    """The Bessel function of the first kind of order 0."""

    name = "bessel_j0"
    saves = (0,)
    numpy = _reference(0, "j")

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.bessel_j1(x))


class BesselJ1(_Oscillating):
    """The Bessel function of the first kind of order 1."""

    name, order = "bessel_j1", 1
    numpy = _reference(1, "j")

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.bessel_j0(x), over(out, x))


class BesselY0(_Oscillating):
    """The Bessel function of the second kind of order 0: -inf at 0, NaN below."""

    name, kind = "bessel_y0", "y"
    saves = (0,)
    numpy = _reference(0, "y")
    domain = (0.5, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.bessel_y1(x))


class BesselY1(_Oscillating):
    """The Bessel function of the second kind of order 1: -inf at 0, NaN below."""

    name, kind, order = "bessel_y1", "y", 1
    numpy = _reference(1, "y")
    domain = (0.5, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.bessel_y0(x), op.div(out, x))


bessel_j0, bessel_j1 = BesselJ0(), BesselJ1()
bessel_y0, bessel_y1 = BesselY0(), BesselY1()
