"""Modified Bessel functions of the second kind, of order 0 and 1, plain and scaled by exp(x).

Owns their records. In kernels they compute in float64 and round once: up to 2 a polynomial in x^2
beside I(x) log(x / 2), beyond it exp(-x) / sqrt(x) times a polynomial in 1 / x (both interpolate at
Chebyshev's points). The references sum the series up to 2, and the integral of exp(-x cosh t)
cosh(n t) beyond it, by the trapezoid rule, in long double.

Source: NIST Digital Library of Mathematical Functions, 10.31, 10.32.9, 10.74(iii).
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
from jitgrad.compiler.ops.bessel import power_series
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.gamma import f64, horner, in_float64, in_long
from jitgrad.compiler.ops.record import Accuracy, Sample, op

_EDGE = 2.0
# K0 + log(x / 2) I0 and x (K1 - log(x / 2) I1), in powers of x^2 / 2 - 1
_K0 = (
    -0.30362077291575545, 0.3404973210133806, 0.07177701034240512, 0.005053392643196092,
    0.00018280555827901256, 4.054506619949891e-06, 6.093361934166155e-08, 6.623013272794453e-10,
    5.452107588016936e-12, 3.518631515854722e-14, 1.8282990225962873e-16,
)  # fmt: skip
_K1 = (
    0.8850882877295894, -0.3322409552403131, -0.24383852886774365, -0.02785423521977184,
    -0.0013831688466153064, -3.891869064371633e-05, -7.081133770184678e-07,
    -9.032127501740678e-09, -8.53273511404978e-11, -6.214271617329577e-13,
    -3.5962181014457795e-15,
)  # fmt: skip
# exp(x) sqrt(x) K(x), in powers of 4 / x - 1
_K0_FAR = (
    1.2185953385133905, -0.03107146182488956, 0.003032891810273808, -0.0004797690567618524,
    9.956054749234679e-05, -2.4735204696055854e-05, 7.002244301741148e-06,
    -2.1911758694029733e-06, 7.427930740072171e-07, -2.6892194085213875e-07,
    1.0288069533430352e-07, -4.126364784481491e-08, 1.7312829395555548e-08,
    -7.530044700439472e-09, 3.17915102335739e-09, -1.4029919108619594e-09,
    1.043157773497984e-09, -5.958403714573509e-10, -2.2697694706944874e-10,
    2.053506470073603e-10, 3.774271681240615e-10, -2.5494772492185173e-10,
    -1.5317277557127707e-10, 1.0372171218363528e-10, 4.3708041049654673e-11,
    -2.7590875636192312e-11,
)  # fmt: skip
_K1_FAR = (
    1.363151890371342, 0.10334973775386527, -0.005566729880072948, 0.0007357241549034312,
    -0.0001395902196408357, 3.2843865703229565e-05, -8.96120593087571e-06,
    2.7300393677522795e-06, -9.067227997444132e-07, 3.229976761691495e-07,
    -1.2195208053273947e-07, 4.838063830957335e-08, -2.0105031515126535e-08,
    8.671417186843407e-09, -3.650220642973017e-09, 1.6082729647924423e-09,
    -1.1618147984343018e-09, 6.525728880366813e-10, 2.359520718031916e-10,
    -2.1140304839006272e-10, -4.0792336529943615e-10, 2.714091205031619e-10,
    1.6485362736894296e-10, -1.1020478759431257e-10, -4.7320068688162337e-11,
    2.959359243104908e-11,
)  # fmt: skip
_NEAR, _FAR = (_K0, _K1), (_K0_FAR, _K1_FAR)


def _k(x: Expr, order: int, scaled: bool) -> Expr:
    small = x <= _EDGE
    a = select(small & (x > 0.0), x, 1.0)
    square = a * a
    i = horner(square * 0.25, power_series(order, 14))
    log = (make("log", a) - math.log(2.0)) * (i * (a * 0.5) if order else i)
    near = horner(square * 0.5 - 1.0, _NEAR[order])
    near = near / a + log if order else near - log
    far = select(small, f64(_EDGE), x)
    beyond = horner(4.0 / far - 1.0, _FAR[order]) / make("sqrt", far)
    if scaled:
        near = near * make("exp", a)
    else:
        beyond = beyond * make("exp", -far)
    value = select(small, near, beyond)
    return select(x > 0.0, value, select(x.eq(0.0), math.inf, f64(math.nan)))


def macdonald(x: np.ndarray, nu: float) -> np.ndarray:
    """exp(x) times the modified Bessel function of the second kind of order nu, of x >= 1/2."""
    step = 1 / (4 * np.sqrt(np.maximum(x, 1)))
    total = np.full_like(x, 0.5)
    for k in range(1, 60):
        t = k * step
        total = total + np.exp(-2 * x * np.sinh(t / 2) ** 2) * np.cosh(nu * t)
    return total * step


_GAMMA = np.longdouble("0.577215664901532860606512090082402431")


def _reference(order: int, scaled: bool) -> Any:
    def apply(x: np.ndarray) -> np.ndarray:
        one = x.dtype.type
        small = x <= _EDGE
        a = np.where(small & (x > 0), x, one(1))
        t = a * a / 4
        log = np.log(a) - np.log(one(2)) + one(_GAMMA)
        term, harmonic = (a / 2 if order else np.ones_like(a)), one(0)
        near = np.zeros_like(a)
        for k in range(30):
            if order:  # A&S 9.6.11
                near = near + term * (log - (harmonic + one(1) / (2 * (k + 1))))
            else:
                near = near + term * (harmonic - log)
            harmonic = harmonic + one(1) / (k + 1)
            term = term * t / ((k + 1) * (k + 1 + order))
        near = near + 1 / a if order else near
        far = np.where(small, one(_EDGE), x)
        beyond = macdonald(far, order)
        if scaled:
            near = near * np.exp(a)
        else:
            beyond = beyond * np.exp(-far)
        value = np.where(small, near, beyond)
        value = np.where(x == np.inf, one(0), value)
        return np.where(x > 0, value, np.where(x == 0, one(np.inf), one(np.nan)))

    return in_long(apply)


class _Decaying(Unary):
    namespace = "special"
    saves: tuple[int | str, ...] = (0, "out")
    order, scaled = 0, False
    domain = (0.3, 4.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(lambda v: _k(v, self.order, self.scaled), *x)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        x = np.array([1e-300, 1e-9, 0.3, 1.99, 2.01, 9.0, 300.0, 700.0, 1e300, -1.0])
        yield Sample((x,), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(6)
        x = np.concatenate([rng.uniform(0, 20, 1500), np.exp(rng.uniform(-60, 6, 500))])
        yield Accuracy((x,), 16)


class ModifiedBesselK0(_Decaying):
    """The modified Bessel function of the second kind of order 0: inf at 0, NaN below."""

    name = "modified_bessel_k0"
    saves = (0,)
    numpy = _reference(0, False)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.modified_bessel_k1(x))


class ModifiedBesselK1(_Decaying):
    """The modified Bessel function of the second kind of order 1: inf at 0, NaN below."""

    name, order = "modified_bessel_k1", 1
    numpy = _reference(1, False)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.neg(op.add(op.modified_bessel_k0(x), op.div(out, x)))


class ScaledModifiedBesselK0(_Decaying):
    """exp(x) modified_bessel_k0(x)."""

    name, scaled, arguments = "scaled_modified_bessel_k0", True, ("x",)
    numpy = _reference(0, True)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(out, op.scaled_modified_bessel_k1(x))


class ScaledModifiedBesselK1(_Decaying):
    """exp(x) modified_bessel_k1(x)."""

    name, order, scaled = "scaled_modified_bessel_k1", 1, True
    arguments = ("x",)
    numpy = _reference(1, True)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.sub(out, op.scaled_modified_bessel_k0(x)), op.div(out, x))


modified_bessel_k0, modified_bessel_k1 = ModifiedBesselK0(), ModifiedBesselK1()
scaled_modified_bessel_k0 = ScaledModifiedBesselK0()
scaled_modified_bessel_k1 = ScaledModifiedBesselK1()
