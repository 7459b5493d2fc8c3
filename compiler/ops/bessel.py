"""Modified Bessel functions of order 0 and 1, plain and scaled by exp(-|x|): i0, i0e, i1, i1e.

Owns their records. In kernels they compute in float64 and round once: the power series up to 20,
beyond it the asymptotic one. The references do the same with more terms, in long double.

Source: NIST Digital Library of Mathematical Functions, 10.25.2 and 10.40.1.
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
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.gamma import PI, f64, horner, in_float64, in_long
from jitgrad.compiler.ops.record import Accuracy, op, scalar_like

_EDGE = 20.0


def power_series(order: int, count: int) -> list[float]:
    """Of I(x) over (x / 2)^order, in powers of x^2 / 4."""
    return [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(count)]


def _asymptotic(order: int, count: int) -> list[float]:
    """Of I(x) sqrt(2 pi x) exp(-x), in powers of 1 / x."""
    out, term = [], 1.0
    for k in range(count):
        out.append(term)
        term = -term * (4 * order * order - (2 * k + 1) ** 2) / (8 * (k + 1))
    return out


def _bessel(x: Expr, order: int, scaled: bool) -> Expr:
    a = make("abs", x)
    small = a < _EDGE
    near = select(small, a, 0.0)
    low = horner(near * near * 0.25, power_series(order, 42))
    if order:
        low = low * (near * 0.5)
    if scaled:
        low = low * make("exp", -near)
    far = select(small, f64(_EDGE), a)
    high = horner(1.0 / far, _asymptotic(order, 30)) / (make("sqrt", far) * math.sqrt(2 * math.pi))
    if not scaled:
        half = make("exp", far * 0.5)  # in two factors: exp overflows before the product does
        high = (half * high) * half
    high = select(a.eq(math.inf), 0.0 if scaled else math.inf, high)
    value = select(small, low, high)
    if order:
        value = select(x < 0.0, -value, value)
    return select(x.ne(x), x, value)


def _reference(order: int, scaled: bool) -> Any:
    def apply(x: np.ndarray) -> np.ndarray:
        one = x.dtype.type
        a = np.abs(x)
        near, far = np.where(a < 30, a, one(0)), np.where(a < 30, one(30), a)
        term = (near / 2) ** order
        low = term
        for k in range(1, 90):
            term = term * (near * near / 4) / (k * (k + order))
            low = low + term
        term = high = np.ones_like(far)
        for k in range(1, 40):
            term = -term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * far)
            high = high + term
        high = high / np.sqrt(2 * one(PI) * far)
        if scaled:
            low = low * np.exp(-near)
        else:
            high = high * np.exp(far)
        high = np.where(a == np.inf, one(0 if scaled else np.inf), high)
        value = np.where(a < 30, low, high)
        value = np.where(x < 0, -value, value) if order else value
        return np.where(np.isnan(x), x, value)

    return in_long(apply)


def over(out: Any, x: Any) -> Any:
    """out / x; 1/2 at x = 0, where out is I1(x) of either kind."""
    zero = op.eq(x, scalar_like(x, 0))
    ratio = op.div(out, op.where(zero, scalar_like(x, 1), x))
    return op.where(zero, scalar_like(x, 0.5), ratio)


class _Bessel(Unary):
    saves: tuple[int | str, ...] = (0, "out")
    order = 0
    scaled = False

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(lambda v: _bessel(v, self.order, self.scaled), *x)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(11)
        x = np.concatenate([rng.uniform(-300, 300, 1500), rng.uniform(-10, 10, 1500), [0.0, -0.0]])
        if self.scaled:
            yield Accuracy((x,), 10)
        else:
            yield Accuracy((x[abs(x) < 20],), 10, where="\\|x\\| < 20")
            yield Accuracy((x,), 300, where="exp of large arguments")


class I0(_Bessel):
    """The modified Bessel function of order 0."""

    name = "i0"
    saves = (0,)
    numpy = _reference(0, False)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.i1(x)


class I0e(_Bessel):
    """exp(-|x|) i0(x)."""

    name, namespace, scaled = "i0e", "special", True
    numpy = _reference(0, True)
    domain = (0.2, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.i1e(x), op.mul(op.sign(x), out))


class I1(_Bessel):
    """The modified Bessel function of order 1."""

    name, namespace, order = "i1", "special", 1
    numpy = _reference(1, False)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.i0(x), over(out, x))


class I1e(_Bessel):
    """exp(-|x|) i1(x)."""

    name, namespace, order, scaled = "i1e", "special", 1, True
    numpy = _reference(1, True)
    domain = (0.2, 3.0)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.sub(op.sub(op.i0e(x), op.mul(op.sign(x), out)), over(out, x))


i0, i0e, i1, i1e = I0(), I0e(), I1(), I1e()
