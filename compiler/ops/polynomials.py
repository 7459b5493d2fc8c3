"""Orthogonal polynomials of degree n: Chebyshev's four kinds, plain and shifted to [0, 1],
Hermite's two, Laguerre's and Legendre's.

Owns their records: functions (x, n) of two tensors; ops without a loop form (`Op.host`), because
the degree says how many steps there are. They run the recurrence of three terms, in long double for
float64, else in float64; Chebyshev's of a high degree on [-1, 1] are sines and cosines. n counts as
an integer (its fraction is dropped); the polynomials are 0 for negative n. No derivatives, as in
PyTorch.

Source: NIST Digital Library of Mathematical Functions, 18.5.1-4, 18.9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.elementwise import compute
from jitgrad.compiler.ops.gamma import in_long
from jitgrad.compiler.ops.record import Sample


class _Polynomial(Binary):
    promotes, namespace, arguments = "float", "special", ("x", "n")
    host = True

    def first(self, x: np.ndarray) -> np.ndarray:
        """Of degree 1."""
        raise NotImplementedError(self.name)

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Of degree k + 1, from those of degrees k and k - 1."""
        raise NotImplementedError(self.name)

    def high(self, x: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Where a closed form is taken, and its values."""
        return None

    def evaluate(self, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Values for whole n."""
        one = x.dtype.type
        p, q = np.ones_like(x), self.first(x)
        value = np.where(n < 0, one(0), np.where(n == 0, p, q))
        closed = self.high(x, n)
        open_ = np.where(closed[0], 0, n) if closed else n
        for k in range(1, int(open_.max(initial=0))):
            p, q = q, self.step(k, x, q, p)
            value = np.where(n == k + 1, q, value)
            if np.isnan(q).all():
                value = np.where(open_ > k, one(np.nan), value)
                break
        return np.where(closed[0], closed[1], value) if closed else value

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        def run(x: np.ndarray, n: np.ndarray) -> np.ndarray:
            whole = np.where(np.isfinite(n), np.trunc(n), -1).clip(-1, 2.0**31).astype(np.int64)
            return np.where(np.isnan(x) & (whole > 0), x, self.evaluate(x + 0 * whole, whole + 0))

        x, n = np.broadcast_arrays(a, b)
        return compute(in_long(run), x, n)

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        raise RuntimeError(
            f"[{self.name}] the derivative is not implemented; write the polynomial with tensors"
        )

    def samples(self) -> Iterable[Sample]:
        x = examples.uniform((3, 1), -1.5, 1.5, np.float64)
        yield Sample((x, np.arange(9.0)), note="degrees", grad=False)
        yield Sample((x.astype(np.float32), np.array(5, np.float32)), grad=False)
        ends = np.array([-1.0, 0.0, 1.0, np.nan, 0.3])
        yield Sample((ends[:, None], np.array([-2.0, 0.0, 3.0, 90.0])), note="ends", grad=False)
        yield Sample((np.ones((0, 3)), np.ones(3)), note="empty", grad=False)


class _Chebyshev(_Polynomial):
    shifted = False

    def evaluate(self, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        return super().evaluate(2 * x - 1 if self.shifted else x, n)

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        return 2 * x * q - p

    def high(self, x: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = (np.abs(x) < 1) & (n > 64)
        return at, self.wave(np.arccos(np.where(at, x, 0)), n)

    def wave(self, angle: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Of x = cos(angle)."""
        raise NotImplementedError(self.name)


class ChebyshevT(_Chebyshev):
    """Chebyshev's polynomial of the first kind, of degree n: cos(n acos(x))."""

    name = "chebyshev_polynomial_t"

    def first(self, x: np.ndarray) -> np.ndarray:
        return x

    def wave(self, angle: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.cos(n * angle)


class ChebyshevU(_Chebyshev):
    """Chebyshev's polynomial of the second kind, of degree n: sin((n + 1) acos(x)) /
    sin(acos(x))."""

    name = "chebyshev_polynomial_u"

    def first(self, x: np.ndarray) -> np.ndarray:
        return 2 * x

    def wave(self, angle: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.sin((n + 1) * angle) / np.sin(angle)


class ChebyshevV(_Chebyshev):
    """Chebyshev's polynomial of the third kind, of degree n: with a = acos(x),
    cos((n + 1/2) a) / cos(a / 2)."""

    name = "chebyshev_polynomial_v"

    def first(self, x: np.ndarray) -> np.ndarray:
        return 2 * x - 1

    def wave(self, angle: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.cos((n + 0.5) * angle) / np.cos(angle / 2)


class ChebyshevW(_Chebyshev):
    """Chebyshev's polynomial of the fourth kind, of degree n: with a = acos(x),
    sin((n + 1/2) a) / sin(a / 2)."""

    name = "chebyshev_polynomial_w"

    def first(self, x: np.ndarray) -> np.ndarray:
        return 2 * x + 1

    def wave(self, angle: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.sin((n + 0.5) * angle) / np.sin(angle / 2)


class ShiftedChebyshevT(ChebyshevT):
    """chebyshev_polynomial_t of 2 x - 1."""

    name, shifted = "shifted_chebyshev_polynomial_t", True


class ShiftedChebyshevU(ChebyshevU):
    """chebyshev_polynomial_u of 2 x - 1."""

    name, shifted = "shifted_chebyshev_polynomial_u", True


class ShiftedChebyshevV(ChebyshevV):
    """chebyshev_polynomial_v of 2 x - 1."""

    name, shifted = "shifted_chebyshev_polynomial_v", True


class ShiftedChebyshevW(ChebyshevW):
    """chebyshev_polynomial_w of 2 x - 1."""

    name, shifted = "shifted_chebyshev_polynomial_w", True


class HermiteH(_Polynomial):
    """Hermite's polynomial of degree n, the physicists'."""

    name = "hermite_polynomial_h"

    def first(self, x: np.ndarray) -> np.ndarray:
        return 2 * x

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        return 2 * x * q - 2 * k * p


class HermiteHe(_Polynomial):
    """Hermite's polynomial of degree n, the probabilists'."""

    name = "hermite_polynomial_he"

    def first(self, x: np.ndarray) -> np.ndarray:
        return x

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        return x * q - k * p


class LaguerreL(_Polynomial):
    """Laguerre's polynomial of degree n."""

    name = "laguerre_polynomial_l"

    def first(self, x: np.ndarray) -> np.ndarray:
        return 1 - x

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        return ((2 * k + 1 - x) * q - k * p) / (k + 1)


class LegendreP(_Polynomial):
    """Legendre's polynomial of degree n."""

    name = "legendre_polynomial_p"

    def first(self, x: np.ndarray) -> np.ndarray:
        return x

    def step(self, k: int, x: np.ndarray, q: np.ndarray, p: np.ndarray) -> np.ndarray:
        return ((2 * k + 1) * x * q - k * p) / (k + 1)


chebyshev_t, chebyshev_u, chebyshev_v, chebyshev_w = (
    ChebyshevT(), ChebyshevU(), ChebyshevV(), ChebyshevW(),
)  # fmt: skip
shifted_t, shifted_u, shifted_v, shifted_w = (
    ShiftedChebyshevT(), ShiftedChebyshevU(), ShiftedChebyshevV(), ShiftedChebyshevW(),
)  # fmt: skip
hermite_h, hermite_he, laguerre_l, legendre_p = HermiteH(), HermiteHe(), LaguerreL(), LegendreP()
