"""Airy's function Ai: airy_ai.

Owns its record. In kernels it computes in float64 and rounds once, by polynomials that interpolate
at Chebyshev's points: of x on [-5, 2], and of 1 / zeta beyond it, with zeta = 2/3 |x|^(3/2), where
Ai is exp(-zeta) / (2 sqrt(pi) x^(1/4)) times one of them, and below it, where it is a wave. The
reference solves y'' = x y by Taylor's series from 0 to the left, and is Macdonald's function K of
order 1/3 to the right, in long double.

Source: NIST Digital Library of Mathematical Functions, 9.2, 9.6.1, 9.7.5, 9.7.9.
"""

from __future__ import annotations

import functools
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
from jitgrad.compiler.ops.bessel_k import macdonald
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.gamma import PI, f64, horner, in_float64, in_long
from jitgrad.compiler.ops.record import Accuracy, Sample

_LOW, _HIGH = -5.0, 2.0
# Ai, in powers of (2 x + 3) / 7
_AIRY = (
    0.4642565777488694, 1.0821543852084365, -4.265357308067737, 0.0034023237962924387,
    10.397775816796367, -9.146985614158044, -6.36377520002892, 14.616202352506741,
    -4.915047123329932, -7.519716387889936, 7.966485186160648, -0.6596168799436931,
    -3.5514545865128895, 2.2672020039883094, 0.2031698034780041, -0.9234688236321502,
    0.3894710051564971, 0.09441047427670732, -0.15277862020449182, 0.04375368662941979,
    0.018039906444340864, -0.01751026200718224, 0.0033429296395388348, 0.0021642443590770477,
    -0.001471253711333453, 0.0001728887644222426, 0.00018423510715992515,
    -9.468833158321184e-05, 5.441751022622829e-06, 1.211083451027739e-05,
    -4.868217815327882e-06, -1.243113542647361e-07, 6.612218498593114e-07,
    -1.432837673945756e-07, -3.3386029650286005e-08, 1.3893375408457528e-08,
    -3.2145392778540464e-10,
)  # fmt: skip
# Ai(x) 2 sqrt(pi) x^(1/4) exp(zeta), in powers of 2 zeta(2) / zeta - 1
_AIRY_FAR = (
    0.983679282828043, -0.014613458724023254, 0.0014132014717017304, -0.00022785221368735136,
    4.846334059232947e-05, -1.2354390800873639e-05, 3.5878318769130335e-06,
    -1.151024485578014e-06, 3.9971932998186475e-07, -1.4813367594851264e-07,
    5.7960437564430385e-08, -2.3756416970943658e-08, 1.0200717228660297e-08,
    -4.542667677344983e-09, 1.9043697886227834e-09, -8.270176502782791e-10,
    7.358611841049239e-10, -4.631133497575703e-10, -2.2891220445247759e-10,
    2.1771221444121345e-10, 3.130998589122445e-10, -2.3014680304617188e-10,
    -1.3027746132837299e-10, 9.477847324872615e-11, 3.574679392411892e-11,
    -2.3868556681356103e-11,
)  # fmt: skip
# sqrt(pi) x^(1/4) Ai(-x) is P sin(w) - Q cos(w) / zeta with w = zeta + pi / 4: P and Q in powers of
# 2 (zeta(5) / zeta)^2 - 1
_AIRY_P = (
    0.9996702731603566, -0.00032543198726407404, 4.1286661583901275e-06,
    -1.5421120184032505e-07, 1.0673425105948112e-08, -1.1119466229514267e-09,
    1.552317869334385e-10, -2.700959565211606e-11, 5.576713486094844e-12,
    -1.3210184471748584e-12, 3.583783056807959e-13, -1.0661501982704937e-13,
    2.4807183601005062e-14, -7.003113073299375e-15, 7.977314468990244e-15,
    -3.415735944160232e-15,
)  # fmt: skip
_AIRY_Q = (
    0.06911133919898425, -0.0003247868744479707, 7.854002446826036e-06, -4.215741963300471e-07,
    3.7225332370846745e-08, -4.636455901462674e-09, 7.433297108253922e-10,
    -1.445847358438312e-10, 3.272877827652237e-11, -8.379906510740823e-12,
    2.4534608074407053e-12, -7.791454007942917e-13, 1.746226068459655e-13,
    -4.8598113545860894e-14, 7.036258411636833e-14, -3.147397232889125e-14,
)  # fmt: skip
_THIRDS_REST = 3.700743415417188e-17  # 2/3 less its nearest number
_ZETA_HIGH, _ZETA_LOW = 2 / 3 * _HIGH**1.5, 2 / 3 * (-_LOW) ** 1.5


def _zeta(a: Expr, root: Expr) -> tuple[Expr, Expr]:
    """2/3 a^(3/2) as a sum of two numbers: what rounding would lose shifts the wave."""
    root_rest = make("fma", -root, root, a) / (root * 2.0)
    product = a * root
    rest = make("fma", a, root, -product) + a * root_rest
    zeta = product * (2 / 3)
    rest = make("fma", product, f64(2 / 3), -zeta) + product * _THIRDS_REST + rest * (2 / 3)
    return zeta, rest


def _airy(x: Expr) -> Expr:
    middle = (x >= _LOW) & (x <= _HIGH)
    inside = horner(select(middle, x, 0.0) * (2 / 7) + 3 / 7, _AIRY)
    right = x > _HIGH
    a = make("abs", select(middle, f64(-_LOW), x))
    root = make("sqrt", a)
    zeta, rest = _zeta(a, root)
    size = make("sqrt", root) * math.sqrt(math.pi)
    far = select(right, zeta, _ZETA_HIGH)
    decay = horner((2 * _ZETA_HIGH) / far - 1.0, _AIRY_FAR) * make("exp", -far) * 0.5
    wave = select(right, f64(_ZETA_LOW), zeta)
    inverse = _ZETA_LOW / wave
    u = (inverse * inverse) * 2.0 - 1.0
    p, q = horner(u, _AIRY_P), horner(u, _AIRY_Q) / wave
    sine, cosine = make("sin", wave), make("cos", wave)
    sine, cosine = sine + rest * cosine, cosine - rest * sine
    turned = (p * (sine + cosine) - q * (cosine - sine)) * math.sqrt(0.5)
    value = select(middle, inside, select(right, decay, turned) / size)
    return select(make("abs", x).eq(math.inf), f64(math.nan), value)


_STEP = 0.5
_GRID = 40  # steps to the left


def _taylor(y: Any, slope: Any, x: Any, h: Any) -> tuple[Any, Any]:
    """Ai and its derivative at x + h from those at x."""
    before, this, following = y * 0, y, slope
    value, rise, power = y + slope * h, slope, h
    for n in range(40):
        new = (x * this + before) / ((n + 1) * (n + 2))
        before, this, following = this, following, new
        rise = rise + (n + 2) * new * power
        power = power * h
        value = value + new * power
    return value, rise


@functools.cache
def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Ai and its derivative at 0, -1/2, -1, ... in long double."""
    y = np.longdouble("0.355028053887817239260063186004183177")
    slope = np.longdouble("-0.258819403792806798405183560189203963")
    values, slopes = [y], [slope]
    for k in range(_GRID):
        y, slope = _taylor(y, slope, np.longdouble(-_STEP * k), np.longdouble(-_STEP))
        values.append(y)
        slopes.append(slope)
    return np.array(values), np.array(slopes)


def _reference(x: np.ndarray) -> np.ndarray:
    one = x.dtype.type
    values, slopes = _grid()
    finite = np.where(np.isfinite(x), x, one(0))
    near = np.clip(finite, -_STEP * _GRID, one(1))
    place = np.rint(np.maximum(-near, 0) / _STEP).astype(np.int64)
    start = -_STEP * place.astype(x.dtype)
    taylor = _taylor(
        values[place].astype(x.dtype), slopes[place].astype(x.dtype), start, near - start
    )
    right = np.where(finite > 1, finite, one(1))
    zeta = 2 * right * np.sqrt(right) / 3
    decay = np.sqrt(right / 3) / one(PI) * macdonald(zeta, one(1) / 3) * np.exp(-zeta)
    left = np.where(finite < -_STEP * _GRID, -finite, one(_STEP * _GRID))
    zeta = 2 * left * np.sqrt(left) / 3
    term, parts = np.ones_like(left), [np.zeros_like(left), np.zeros_like(left)]
    for k in range(40):
        parts[k % 2] = parts[k % 2] + (-1) ** (k // 2) * term
        term = term * (6 * k + 1) * (6 * k + 3) * (6 * k + 5) / (216 * (k + 1) * (2 * k + 1) * zeta)
    sine, cosine = np.sin(zeta), np.cos(zeta)
    wave = parts[0] * (sine + cosine) - parts[1] * (cosine - sine)
    wave = wave * np.sqrt(one(0.5)) / np.sqrt(one(PI) * np.sqrt(left))
    value = np.where(finite > 1, decay, np.where(finite < -_STEP * _GRID, wave, taylor[0]))
    return np.where(np.isfinite(x), value, one(np.nan))


class AiryAi(Unary):
    """Airy's function Ai: the solution of y'' = x y that vanishes to the right. No derivative."""

    name, namespace, arguments = "airy_ai", "special", ("x",)
    numpy = in_long(_reference)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(_airy, *x)

    def derivative(self, out: Any, x: Any) -> Any:
        raise RuntimeError("[airy_ai] has no derivative; take it of a form of your own")

    def samples(self) -> Iterable[Sample]:
        for s in super().samples():  # far to the left, one number is many waves
            x = np.where(s.args[0] < -300, s.args[0].dtype.type(-300), s.args[0])
            yield Sample((x,), s.attrs, s.note, grad=False)
        x = np.array([-300.0, -20.1, -19.9, -5.01, -4.99, -0.3, 0.9, 1.1, 1.99, 2.01, 30.0, 103.0])
        yield Sample((x,), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        rng = np.random.default_rng(7)
        yield Accuracy((rng.uniform(-30, 2, 1500),), 30, relative=False, where="x < 2")
        yield Accuracy((rng.uniform(2, 20, 1500),), 150, where="2 < x < 20")


airy_ai = AiryAi()
