"""Fits the polynomials of compiler/math*.py and prints compiler/math_coefficients.py.

Method: interpolation at the Chebyshev nodes of the interval, in 60-digit arithmetic (mpmath), which
is within a small factor of the minimax polynomial (L. N. Trefethen, Approximation Theory and
Approximation Practice, ch. 16); the degree has bits to spare. Functions are split so that the
leading terms are exact and the polynomial is only a correction.

    python benchmarks/fit_math.py > compiler/math_coefficients.py
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60


def fit(f: Callable[[mp.mpf], mp.mpf], low: float, high: float, degree: int) -> list[float]:
    """Coefficients, lowest first, of the interpolant of f at the Chebyshev nodes of [low, high]."""
    n = degree + 1
    a, b = mp.mpf(low), mp.mpf(high)
    nodes = [(a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * n)) for k in range(n)]
    matrix = mp.matrix(n, n)
    values = mp.matrix(n, 1)
    for i, x in enumerate(nodes):
        values[i] = f(x)
        for j in range(n):
            matrix[i, j] = x**j
    return [float(c) for c in mp.lu_solve(matrix, values)]


def log_ratio(z: mp.mpf) -> mp.mpf:
    """(log((1+s)/(1-s))/s - 2) / z with z = s^2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z


def log_tail(z: mp.mpf) -> mp.mpf:
    """(log((1+s)/(1-s))/s - 2 - 2z/3) / z^2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2 - 2 * z / 3) / z**2


def over_x(f: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    """(f(x)/x - 1) / z with z = x^2, for odd f with slope 1."""
    return lambda z: (f(mp.sqrt(z)) / mp.sqrt(z) - 1) / z


def cos_tail(z: mp.mpf) -> mp.mpf:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def erfc_scaled(t: mp.mpf) -> mp.mpf:
    """exp(x^2) erfc(x) (1 + 2x) with t = (x - 3.75) / (x + 3.75)."""
    x = mp.mpf("3.75") * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)


def exp_tail(r: mp.mpf) -> mp.mpf:
    return (mp.expm1(r) - r) / r**2


def erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x with w = -log(1 - x^2)."""
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


FITS: list[tuple[str, Callable[[mp.mpf], mp.mpf], float, float, int]] = [
    ("EXP_F32", exp_tail, -0.3472, 0.347, 4),
    ("EXP_F64", exp_tail, -0.3472, 0.347, 10),
    ("EXP2_F64", lambda r: (mp.mpf(2) ** r - 1) / r, -0.5001, 0.5, 12),
    ("EXP2_F32", lambda r: (mp.mpf(2) ** r - 1) / r, -0.5001, 0.5, 5),
    ("EXP2_SHORT", lambda r: (mp.mpf(2) ** r - 1) / r, -0.5001, 0.5, 6),
    ("LOG_F32", lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, -0.2929, 0.4143, 8),
    ("LOG_F64", log_ratio, 1e-30, 0.02945, 7),
    ("LOG_SHORT", log_ratio, 1e-30, 0.02945, 3),
    ("LOG_TAIL", log_tail, 1e-30, 0.02945, 7),
    ("TANH_F32", over_x(mp.tanh), 1e-30, 0.391, 4),
    ("TANH_F64", over_x(mp.tanh), 1e-30, 0.3026, 10),
    ("SINH_F64", over_x(mp.sinh), 1e-30, 1.0, 8),
    ("SINH_F32", over_x(mp.sinh), 1e-30, 1.0, 3),
    ("SIN_F64", over_x(mp.sin), 1e-30, 0.618, 6),
    ("COS_F64", cos_tail, 1e-30, 0.618, 6),
    ("SIN_SHORT", over_x(mp.sin), 1e-30, 0.618, 3),
    ("COS_SHORT", cos_tail, 1e-30, 0.618, 3),
    ("ATAN_F64", over_x(mp.atan), 1e-30, 0.1717, 11),
    ("ATAN_SHORT", over_x(mp.atan), 1e-30, 0.1717, 5),
    ("ASIN_F64", over_x(mp.asin), 1e-30, 0.25, 13),
    ("ERF_F32", lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 1e-30, 0.85, 6),
    ("ERF_LOG_F32", lambda x: -mp.log(mp.erfc(x)), 0.92, 4.0, 8),
    ("ERF_F64", lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 1e-30, 0.7226, 13),
    ("ERFC_F64", erfc_scaled, -0.64, 0.77, 24),
    ("ERFC_NEAR", lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, 1e-30, 0.7226, 7),
    ("ERFC_SHORT", erfc_scaled, -0.64, 0.4742, 12),
    ("ERFINV", lambda t: erfinv_ratio(t + mp.mpf("3.125")), -3.125 + 1e-30, 3.13, 23),
    ("ERFINV_FAR", lambda t: erfinv_ratio((t + mp.mpf("3.25")) ** 2), -0.7501, 0.7501, 18),
    ("ERFINV_LAST", lambda t: erfinv_ratio((t + 5) ** 2), -1.0001, 1.1, 17),
    ("ERFINV_SHORT", lambda t: erfinv_ratio(t + mp.mpf("2.5")), -2.5 + 1e-30, 2.51, 11),
    ("ERFINV_FAR_SHORT", lambda t: erfinv_ratio((t + mp.mpf("3.1")) ** 2), -0.865, 0.95, 10),
]


def main() -> None:
    print('"""Polynomial coefficients for compiler/math*.py, lowest power first.')
    print()
    print("Made by benchmarks/fit_math.py, which says what each one approximates and where.")
    print('"""')
    print()
    print("# fmt: off")
    for name, f, low, high, degree in FITS:
        print(f"{name} = (")
        for c in fit(f, low, high, degree):
            print(f"    {c!r},")
        print(")")


if __name__ == "__main__":
    main()
