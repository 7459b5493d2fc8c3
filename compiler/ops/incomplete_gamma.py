"""The regularised incomplete gamma functions: igamma (P), igammac (Q), and how a gamma-distributed
number moves with its shape.

Owns their records: ops without a loop form (`Op.host`), because the number of terms depends on the
arguments. They compute in long double for float64, else in float64: a power series below a + 1, the
continued fraction above it, Temme's uniform expansion where a is large.

Sources: NIST Digital Library of Mathematical Functions, 8.7.1, 8.9.2, 8.12; Figurnov, Mohamed and
Mnih, "Implicit reparameterization gradients" (2018).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.elementwise import compute
from jitgrad.compiler.ops.gamma import PI, in_long, lgamma, polygamma
from jitgrad.compiler.ops.record import Sample, op
from jitgrad.compiler.ops.transcendental import elementwise_float

_LARGE = 1e5
# Temme's coefficients c0, c1, c2 (8.12.9), in powers of eta
_C0 = (
    -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
    0.0003527336860670194, -0.00017875514403292183, 3.9192631785220406e-05,
    -2.185448510677257e-06, -1.854062210325284e-06, 8.296711338673792e-07,
    -1.7665954814489443e-07, 6.707864317854462e-09, 1.0262422813538242e-08,
    -4.382326081815593e-09, 9.053641859315186e-10, -2.137096630929829e-11,
)  # fmt: skip
_C1 = (
    -0.001851851851851852, -0.003472222222222222, 0.002645502645502688, -0.0009902263374485594,
    0.00020576131686000817, -4.018775720824386e-07, -1.809854900884436e-05,
    7.64916092121186e-06, -1.6121540740311897e-06, 4.6469504443699905e-09,
    1.3928830908098795e-07, -5.7523365796390825e-08,
)  # fmt: skip
_C2 = (
    0.004133597883570184, -0.002681327160437138, 0.0007716049604184034, 2.009368963611645e-06,
    -0.00010736929795922634, 5.292514952188131e-05, -1.2650220016491243e-05,
    -2.245448667984762e-08,
)  # fmt: skip
_TERMS = 20_000
_erfc = elementwise_float(math.erfc)


def _log_gap(mu: np.ndarray) -> np.ndarray:
    """mu - log(1 + mu), precise near 0."""
    near = np.abs(mu) < 0.01
    small = np.where(near, mu, 0)
    series = np.zeros_like(mu)
    for k in range(14, 1, -1):
        series = series * small + (-1) ** k / mu.dtype.type(k)
    wide = np.where(near, 1, mu)
    return np.where(near, series * small * small, wide - np.log1p(wide))


def _factor(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x^a exp(-x) / gamma(a + 1)."""
    one = a.dtype.type
    large = a > 30
    b = np.where(large, a, one(40))
    mu = np.where(large, (x - b) / b, one(0))
    stirling = 1 / (12 * b) - 1 / (360 * b**3) + 1 / (1260 * b**5) - 1 / (1680 * b**7)
    far = np.exp(-b * _log_gap(mu) - stirling) / np.sqrt(2 * one(PI) * b)
    small = np.where(large, one(1), a)
    log_gamma = lgamma.reference(small + 1)
    near = np.exp(small * np.log(x) - x - log_gamma)
    return np.where(large, far, near)


def _series(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The sum of x^n / ((a + 1) ... (a + n)): P over the factor."""
    term = np.ones_like(x)
    total = np.ones_like(x)
    for n in range(1, _TERMS):
        term = term * (x / (a + n))
        total = total + term
        if not (term > total * (np.finfo(x.dtype).eps / 8)).any():
            break
    return total


def _fraction(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q over a times the factor, for x > a + 1: the continued fraction, by Lentz's method."""
    tiny = 1e-300
    b = x + 1 - a
    c = np.full_like(x, 1 / tiny)
    d = 1 / b
    value = d
    for n in range(1, _TERMS):
        step = -n * (n - a)
        b = b + 2
        d = step * d + b
        d = 1 / np.where(np.abs(d) < tiny, tiny, d)
        c = b + step / c
        c = np.where(np.abs(c) < tiny, tiny, c)
        change = d * c
        value = value * change
        if not (np.abs(change - 1) > 2 * np.finfo(x.dtype).eps).any():
            break
    return value


def _complement_near_0(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Q for a < 0.3 and x < 1.5, where 1 - P would lose its digits."""
    one: Any = a.dtype.type
    shift = np.zeros_like(a)
    for k in range(40, 1, -1):  # lgamma(1 + a) + log1p(a)
        shift = (shift + (-1) ** k * _zeta_less_1(k, one) / k) * a
    shift = (shift + (1 - one(_EULER))) * a
    log = a * np.log(x) - (shift - np.log1p(a))
    term = total = np.zeros_like(x)
    power = np.ones_like(x)
    for n in range(1, 40):
        power = power * -x / n
        term = power / (a + n)
        total = total + term
    return -np.expm1(log) - np.exp(log) * a * total


_EULER = np.longdouble("0.577215664901532860606512090082402431")


@functools.cache
def _zeta_less_1(k: int, one: Any) -> Any:
    """zeta(k) - 1."""
    start = 60
    tail = one(start) ** (1 - k) / (k - 1) + one(start) ** -k / 2
    tail += k * one(start) ** (-k - 1) / 12 - k * (k + 1) * (k + 2) * one(start) ** (-k - 3) / 720
    tail += k * (k + 1) * (k + 2) * (k + 3) * (k + 4) * one(start) ** (-k - 5) / 30240
    return sum((one(n) ** -k for n in range(2, start)), one(0)) + tail


def _uniform(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    """Temme's expansion for large a."""
    one = a.dtype.type
    mu = (x - a) / a
    eta = np.sign(mu) * np.sqrt(2 * _log_gap(mu))
    near = np.clip(eta, -0.2, 0.2)  # beyond it, exp(-a eta^2 / 2) is 0
    c0, c1, c2 = (np.polyval(np.array(c[::-1], a.dtype), near) for c in (_C0, _C1, _C2))
    rest = np.exp(-a * eta * eta / 2) / np.sqrt(2 * one(PI) * a) * (c0 + (c1 + c2 / a) / a)
    root = eta * np.sqrt(a / 2)
    return _erfc(root if upper else -root) / 2 + (rest if upper else -rest)


def _incomplete(a: np.ndarray, x: np.ndarray, upper: bool) -> np.ndarray:
    one = a.dtype.type
    a, x = np.broadcast_arrays(a, x)
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    a0, x0 = np.where(inside, a, one(1)), np.where(inside, x, one(1))
    large = a0 > _LARGE
    b, y = np.where(large, one(1), a0), np.where(large, one(1), x0)
    below = y <= b + 1
    factor = _factor(b, y)
    p = factor * _series(b, np.where(below, y, b))
    q = b * factor * _fraction(b, np.where(below, b + 3, y))
    value = np.where(below, 1 - p if upper else p, q if upper else 1 - q)
    if upper:
        tiny = (b < 0.3) & (y < 1.5)
        value = np.where(
            tiny, _complement_near_0(np.where(tiny, b, 0.1), np.where(tiny, y, 1)), value
        )
    far = _uniform(np.where(large, a0, _LARGE), np.where(large, x0, _LARGE), upper)
    value = np.where(large, far, value)
    zero, full = (one(1), one(0)) if upper else (one(0), one(1))  # at x = 0, at x = infinity
    nan = one(np.nan)
    value = np.where(np.isinf(x), full, value)
    value = np.where(np.isinf(a), np.where(np.isinf(x), nan, zero), value)
    value = np.where(x == 0, zero, value)
    value = np.where(a == 0, np.where(x > 0, full, nan), value)
    return np.where((x < 0) | (a < 0) | np.isnan(a) | np.isnan(x), nan, value)


class _Incomplete(Binary):
    promotes = "float"
    host = True
    saves = (0, 1)
    upper = False

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return compute(in_long(lambda s, x: _incomplete(s, x, self.upper)), a, b)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        if t0 is not None:
            raise RuntimeError(
                f"[{self.name}] the derivative with respect to the first argument is not "
                "implemented; detach() it"
            )
        log = op.sub(op.sub(op.mul(op.sub(a, 1.0), op.log(b)), b), op.lgamma(a))
        density = op.exp(log)
        return None, op.mul(t1, op.neg(density) if self.upper else density)

    def samples(self) -> Iterable[Sample]:
        for s in examples.binary(0.3, 4.0, 0.3, 6.0, ints=False):
            yield Sample(s.args, note=s.note, grad=False)
        a = np.array([0.1, 0.2, 3.0, 25.0, 900.0, 2e5, 2e5, 1e-3, 0.0])
        x = np.array([0.01, 1.2, 9.0, 24.0, 930.0, 2.001e5, 1.99e5, 3.0, 1.0])
        yield Sample((a, x), note="every branch", grad=False)


class Igamma(_Incomplete):
    """P(input, other), the lower regularised incomplete gamma function. No derivative by input."""

    name = "igamma"


class Igammac(_Incomplete):
    """Q(input, other) = 1 - P, the upper one. No derivative by input."""

    name, upper = "igammac", True


def _shape_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx / da for a gamma-distributed x of shape a, at its quantile: -(dP / da) / (dP / dx)."""
    one = a.dtype.type
    a, x = np.broadcast_arrays(a, x)
    x = np.maximum(x, np.finfo(x.dtype).tiny)
    large = a > 1e4
    b, y = np.where(large, one(1), a), np.where(large, one(1), x)
    log = np.log(y) - polygamma.reference(b + 1, n=0)
    term, harmonic = np.ones_like(b), np.zeros_like(b)
    total, size = log, np.abs(log)
    for n in range(1, _TERMS):
        term = term * (y / (b + n))
        harmonic = harmonic + 1 / (b + n)
        step = term * (log - harmonic)
        total = total + step
        size = np.maximum(size, np.abs(total))
        if n > 5 and not (np.abs(step) > size * (np.finfo(x.dtype).eps / 8)).any():
            break
    near = -(y / b) * total
    # Wilson and Hilferty: (x / a)^(1/3) is close to normal
    c, z = np.where(large, a, one(1e4)), np.where(large, x, one(1e4))
    root = np.cbrt(z / c)
    normal = (root - 1 + 1 / (9 * c)) * 3 * np.sqrt(c)
    far = z / c + 3 * c * root**2 * (1 / (9 * c * c) - normal / (6 * c**1.5))
    return np.where(large, far, near)


class StandardGammaSlope(Binary):
    """How a gamma-distributed number `other` moves with its shape `input`, at the same quantile."""

    name, promotes, public, host = "standard_gamma_slope", "float", False, True
    saves = ()
    numpy = in_long(_shape_slope)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        raise RuntimeError("[standard_gamma] has first derivatives only")

    def samples(self) -> Iterable[Sample]:
        for note, dtype in (("", np.float32), ("float64", np.float64)):
            a = examples.uniform((3, 4), 0.05, 9.0, dtype, 1)
            yield Sample((a, a * examples.uniform((3, 4), 0.2, 2.0, dtype, 2)), {}, note, False)
        yield Sample((np.array([2e4, 3e4]), np.array([2.01e4, 2.9e4])), {}, "large", False)


igamma, igammac, standard_gamma_slope = Igamma(), Igammac(), StandardGammaSlope()
