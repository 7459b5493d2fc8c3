"""The gamma function's family: lgamma, polygamma (digamma for n = 0) and the Hurwitz zeta function.

Owns their records. In kernels they compute in float64 and round once; docs/numerics.md has the
errors. The references are other algorithms: products and sums of many terms in long double.

Sources: NIST Digital Library of Mathematical Functions, 5.7.3 (Taylor series), 5.11.1 (Stirling's
series), 5.5.3 and 5.15.6 (reflection), 5.15.9, 25.11.5 (Euler-Maclaurin).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    const,
    make,
    rare,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.elementwise import Unary, compute
from jitgrad.compiler.ops.record import Accuracy, Sample, op
from jitgrad.runtime import dtypes

_INF, _NAN = math.inf, math.nan

# B_2, B_4, ...: Bernoulli's numbers.
BERNOULLI = (
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
)  # fmt: skip

# zeta(k) - 1 for k = 2, 3, ...
_ZETA_M1 = (
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993,
    0.01734306198444914, 0.008349277381922827, 0.00407735619794434, 0.0020083928260822143,
    0.0009945751278180853, 0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915,
    6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06,
    3.81729326499984e-06, 1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07,
    2.38450502727733e-07, 1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08,
    1.4901554828365043e-08, 7.45071178983543e-09, 3.725334024788457e-09,
)  # fmt: skip
_EULER_GAMMA = 0.5772156649015329
# lgamma(2 + d) in powers of d from d^1 on
_AROUND_2 = (
    1 - _EULER_GAMMA,
    *(z * (-1) ** k / k for k, z in enumerate(_ZETA_M1, 2)),
)
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
# Stirling's series over y, in powers of 1 / y^2
_STIRLING = tuple(b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI[:8], 1))


def f64(v: float) -> Expr:
    return const(v, dtypes.float64)


def horner(x: Expr, coefficients: Iterable[float]) -> Expr:
    """The polynomial with these coefficients, lowest power first."""
    *lower, highest = coefficients
    total = f64(highest)
    for c in reversed(lower):
        total = make("fma", total, x, f64(c))
    return total


def in_float64(body: Callable[..., Expr], *x: Expr) -> Expr:
    """body of float64 expressions, its result of x's dtype."""
    return body(*(v.cast(dtypes.float64) for v in x)).cast(x[0].dtype)


def sine_cosine(x: Expr) -> tuple[Expr, Expr]:
    """(sin(pi x), cos(pi x)) up to a common sign, precise for any x; NaN at the infinities."""
    r = (x - make("rint", x)) * math.pi
    return make("sin", r), make("cos", r)


def in_long(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """f of wider arrays (long double for float64, else float64), its result rounded to the dtype of
    the first argument."""

    def apply(*x: np.ndarray) -> np.ndarray:
        wide = np.longdouble if x[0].dtype.itemsize >= 8 else np.float64
        return np.asarray(f(*(v.astype(wide) for v in x))).astype(x[0].dtype)

    return apply


def positive_numbers() -> np.ndarray:
    """Where functions of positive numbers are measured: near 0, far away, at the ends."""
    rng = np.random.default_rng(11)
    ends = [1.0, 2.0, 0.5, 1.5, 8.5, _INF, _NAN]
    return np.concatenate([rng.uniform(0.01, 12, 1500), np.exp(rng.uniform(-30, 30, 1500)), ends])


# -- lgamma ----------------------------------------------------------------------------------------
def _lgamma(x: Expr) -> Expr:
    positive = _lgamma_positive(select(x > 0.0, x, 1.0))
    sine = make("abs", sine_cosine(x)[0])
    mirrored = make("log", math.pi / sine) - _lgamma_positive(1.0 - x)
    mirrored = select(sine.eq(0.0) | x.eq(-_INF), _INF, mirrored)
    return rare(~(x > 0.0), mirrored, positive)


def _lgamma_positive(x: Expr) -> Expr:
    """For x > 0, with one logarithm: of a product that leads to z in [1.5, 2.5], or of x."""
    low, up, far = x < 0.5, x < 1.5, x >= 8.5
    n = make("floor", x - 1.5)
    n = select(n < 0.0, 0.0, select(n > 6.0, 6.0, n))
    product = f64(1.0)
    for k in range(1, 7):
        product = product * select(n >= float(k), x - float(k), f64(1.0))
    product = select(low, x * (x + 1.0), select(up, x, product))
    log = make("log", select(far, x, product))
    d = select(low, x, select(up, x - 1.0, (x - 2.0) - n))
    d = select(far, 0.0, d)
    near = horner(d, _AROUND_2) * d + select(up, -log, log)
    inverse = 1.0 / select(far, x, 8.5)
    series = horner(inverse * inverse, _STIRLING) * inverse
    large = (x - 0.5) * (log - 1.0) + ((_HALF_LOG_TWO_PI - 0.5) + series)
    return select(x.eq(_INF), _INF, select(far, large, near))


PI = np.longdouble("3.14159265358979323846264338327950288")
_STEPS = 20


def _lgamma_reference(x: np.ndarray) -> np.ndarray:
    one = x.dtype.type
    pi = one(PI)
    negative = x <= 0
    y = np.where(negative, 1 - x, x)
    small = y < _STEPS
    product = np.ones_like(y)
    for k in range(_STEPS):
        product = np.where(small, product * (y + k), product)
    z = np.where(small, y + _STEPS, y)
    value = (z - one(0.5)) * np.log(z) - z + np.log(2 * pi) / 2 - np.log(product)
    for k, c in enumerate(_STIRLING):
        value = value + one(c) * z ** -(2 * k + 1)
    value = np.where((x == 1) | (x == 2), one(0), value)
    value = np.where(y == _INF, one(_INF), value)
    sine = np.abs(np.sin((x - np.rint(x)) * pi))
    mirrored = np.where(sine == 0, one(_INF), np.log(pi / sine) - value)
    return np.where(negative, np.where(x == -_INF, one(_INF), mirrored), value)


class Lgamma(Unary):
    """log |gamma(x)|; infinite at 0, -1, -2, ..."""

    name = "lgamma"
    effort = 16
    saves = (0,)
    numpy = in_long(_lgamma_reference)
    domain = (2.2, 5.0)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(_lgamma, *x)

    def derivative(self, out: Any, x: Any) -> Any:
        return op.polygamma(x, n=0)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        x = np.array([0.1, 0.49, 0.51, 1.0, 1.2, 1.49, 1.51, 2.0, 8.4, 8.6, 30.5, 171.7, 1e-5])
        yield Sample((np.concatenate([x, -x[:-4] - 0.01]),), note="every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        yield Accuracy((positive_numbers(),), 5, relative=False, where="x > 0")
        negative = -np.random.default_rng(11).uniform(0, 20, 1500)
        yield Accuracy((negative,), 12, relative=False, where="x < 0")


# -- polygamma -------------------------------------------------------------------------------------
def _cotangent_derivative(n: int) -> list[int]:
    """P with d^n/dx^n cot(pi x) = pi^n P(cot(pi x)); lowest power first."""
    p = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(p)][1:]
        p = [-c for c in (*slope, 0, 0)]
        for k, c in enumerate(slope):
            p[k + 2] -= c
    return p


def _power(x: Any, n: int) -> Any:
    """x^n for n >= 1, by squaring."""
    total, square = None, x
    while n:
        if n & 1:
            total = square if total is None else total * square
        n >>= 1
        square = square * square if n else square
    return total


def _tail_coefficients(n: int, count: int) -> list[float]:
    """Of the asymptotic series of |polygamma(n)|, n >= 1, over n! y^n: powers of 1 / y^2."""
    return [
        b * math.factorial(2 * k + n - 1) / (math.factorial(2 * k) * math.factorial(n))
        for k, b in enumerate(BERNOULLI[:count], 1)
    ]


def _polygamma_positive(x: Expr, n: int) -> Expr:
    """For x > 0: terms until x is large, then the asymptotic series."""
    steps = 10 + n
    small = x < float(steps)
    y = select(small, x + float(steps), x)
    first = select(small, x, 1.0)
    inverse = 1.0 / y
    square = inverse * inverse
    total = f64(0.0)
    for k in reversed(range(steps)):
        total = total + _power(1.0 / (first + float(k)), n + 1)
    total = select(small, total, 0.0)
    if n == 0:
        series = horner(square, [b / (2 * k) for k, b in enumerate(BERNOULLI[:9], 1)]) * square
        return (make("log", y) - 0.5 * inverse) - series - total
    series = horner(square, _tail_coefficients(n, 9)) * square
    tail = _power(inverse, n) * ((1.0 / n + 0.5 * inverse) + series)
    return (total + tail) * float((-1) ** (n + 1) * math.factorial(n))


def _polygamma(x: Expr, n: int) -> Expr:
    negative = x <= 0.0
    value = _polygamma_positive(select(negative, 1.0 - x, x), n)
    sine, cosine = sine_cosine(x)
    cotangent = cosine / sine
    mirrored = horner(cotangent, map(float, _cotangent_derivative(n))) * -(math.pi ** (n + 1))
    mirrored = value * float((-1) ** n) + mirrored
    if n == 0:
        pole = select(x.eq(0.0), make("copysign", f64(_INF), -x), _NAN)
        value = select(x.eq(_INF), _INF, value)
    else:
        pole = f64((-1) ** (n + 1) * _INF)
        value = select(x.eq(_INF), 0.0, value)
    return select(negative, select(sine.eq(0.0), pole, mirrored), value)


def _polygamma_reference(x: np.ndarray, n: int) -> np.ndarray:
    one = x.dtype.type
    pi = one(PI)
    negative = x <= 0
    y = np.where(negative, 1 - x, x)
    steps = 20 + n
    total = np.zeros_like(y)
    for _ in range(steps):
        total = total + _power(1 / y, n + 1)
        y = y + 1
    if n == 0:
        value = np.log(y) - 1 / (2 * y) - total
        for k, b in enumerate(BERNOULLI[:8], 1):
            value = value - one(b) / (2 * k) * y ** (-2 * k)
    else:
        value = total + y**-n / n + y ** -(n + 1) / 2
        for k, c in enumerate(_tail_coefficients(n, 8), 1):
            value = value + one(c) * y ** (-2 * k - n)
        value = value * ((-1) ** (n + 1) * math.factorial(n))
    turn = (x - np.rint(x)) * pi
    sine, cosine = np.sin(turn), np.cos(turn)
    slope = np.polyval(_cotangent_derivative(n)[::-1], cosine / sine)
    mirrored = (-1) ** n * value - pi ** (n + 1) * slope
    if n == 0:
        pole = np.where(x == 0, np.copysign(one(_INF), -x), one(_NAN))
        value = np.where(x == _INF, one(_INF), value)
    else:
        pole = np.full_like(x, (-1) ** (n + 1) * _INF)
        value = np.where(x == _INF, one(0), value)
    return np.where(negative, np.where(sine == 0, pole, mirrored), value)


class Polygamma(Unary):
    """polygamma(x; n): the n-th derivative of digamma, itself for n = 0. Right for negative x too.

    At 0 digamma is -inf (inf at -0), at the other poles NaN; the others are infinite there.
    """

    name = "polygamma"
    effort = 16
    public = False
    saves = (0,)

    def reference(self, x: np.ndarray, n: int = 0) -> np.ndarray:
        return compute(in_long(lambda v: _polygamma_reference(v, n)), x)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(lambda v: _polygamma(v, attrs["n"]), *x)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return (op.mul(g, op.polygamma(*operands, n=attrs["n"] + 1)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        t = tangents[0]
        return None if t is None else op.mul(t, op.polygamma(*operands, n=attrs["n"] + 1))

    def samples(self) -> Iterable[Sample]:
        for n in range(3):
            for s in examples.unary(2.0, 5.0):
                yield Sample(s.args, {"n": n}, f"n={n} {s.note}", s.grad)
        x = np.array([0.1, 0.9, 1.2, 1.8, 9.9, 10.1, 11.5, 60.0, -0.3, -1.7, -10.4])
        for n in (0, 1, 2, 5):
            yield Sample((x,), {"n": n}, "every branch", grad=False)

    def accuracy(self) -> Iterable[Accuracy]:
        x = positive_numbers()
        yield Accuracy((x,), 5, relative=False, attrs={"n": 0}, where="x > 0")
        for n, bound in ((1, 5), (2, 5), (5, 10)):
            yield Accuracy((x,), bound, attrs={"n": n}, where="x > 0")


# -- zeta ------------------------------------------------------------------------------------------
_SHIFT = 12


def _zeta(s: Expr, q: Expr) -> Expr:
    first = select(q > 0.0, q, 1.0)
    y = first + float(_SHIFT)
    total = f64(0.0)
    for k in reversed(range(_SHIFT)):
        total = total + make("pow", first + float(k), -s)
    power = make("pow", y, 1.0 - s)  # 1 - s is exact; y^-s may underflow where this does not
    inverse = 1.0 / y
    term = s * (inverse * inverse)
    tail = 1.0 / (s - 1.0) + inverse * 0.5
    for k, b in enumerate(BERNOULLI[:10], 1):
        tail = tail + term * (b / math.factorial(2 * k))
        term = term * (s + float(2 * k - 1)) * (s + float(2 * k)) * (inverse * inverse)
    value = total + select(power.eq(0.0), 0.0, power * tail)
    value = select(q > 0.0, value, select(q.eq(make("floor", q)), _INF, f64(_NAN)))
    value = select(s > 1.0, value, select(s.eq(1.0), _INF, f64(_NAN)))
    value = select(q.eq(_INF) & (s > 1.0), 0.0, value)
    value = select(s.eq(_INF) & (q > 0.0), select(q < 1.0, _INF, select(q.eq(1.0), 1.0, f64(0.0))),
                   value)  # fmt: skip
    return select(q.ne(q) | s.ne(s), _NAN, value)


def _zeta_reference(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    one = s.dtype.type
    s, q = np.broadcast_arrays(s, q)
    first = np.where(q > 0, q, one(1))
    total = np.zeros_like(first)
    y = first
    for _ in range(20):
        total = total + y**-s
        y = y + 1
    power = y**-s
    tail = y / (s - 1) + one(0.5)
    term = s / y
    for k, b in enumerate(BERNOULLI[:8], 1):
        tail = tail + term * (one(b) / math.factorial(2 * k))
        term = term * (s + 2 * k - 1) * (s + 2 * k) / (y * y)
    value = total + np.where(power == 0, one(0), power * tail)
    value = np.where(q > 0, value, np.where(q == np.floor(q), one(_INF), one(_NAN)))
    value = np.where(s > 1, value, np.where(s == 1, one(_INF), one(_NAN)))
    value = np.where((q == _INF) & (s > 1), one(0), value)
    ends = np.where(q < 1, one(_INF), np.where(q == 1, one(1), one(0)))
    value = np.where((s == _INF) & (q > 0), ends, value)
    return np.where(np.isnan(q) | np.isnan(s), one(_NAN), value)


class Zeta(Binary):
    """zeta(s, q), Hurwitz: the sum of (q + k)^-s over k = 0, 1, ... for s > 1 and q > 0.

    NaN for s < 1 and for negative q (infinite where q is 0, -1, ...). There is no derivative by s.
    """

    name, promotes, namespace = "zeta", "float", "special"
    effort = 16
    saves = (0, 1)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return compute(in_long(_zeta_reference), a, b)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return in_float64(_zeta, *x)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        if t1 is None:
            return None, None
        return None, op.mul(t1, op.neg(op.mul(a, op.zeta(op.add(a, 1.0), b))))

    def samples(self) -> Iterable[Sample]:
        for s in examples.binary(1.5, 4.0, 0.3, 3.0, ints=False):
            yield Sample(s.args, note=s.note, grad=False)
        yield Sample((np.array([1.1, 2.0, 3.0, 20.5]), np.array([0.2, 1.0, 25.0, 3.0])), grad=False)
        yield Sample(
            (np.array([1.5, 2.5]), np.array([1.7e308, 1e110])), note="far away", grad=False
        )


lgamma, polygamma, zeta = Lgamma(), Polygamma(), Zeta()
