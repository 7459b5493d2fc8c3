"""Factorizations of matrices and triangular systems: ops without a loop form (`Op.host`).

Matrices are the last two dims; all leading dims are a batch. Derivatives are composed of ops, so
they differentiate again. Sources: Giles, "Collected matrix derivative results for forward and
reverse mode algorithmic differentiation" (2008); Murray, "Differentiation of the Cholesky
decomposition" (2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.linalg import sum_terms, transpose
from jitgrad.compiler.ops.record import Op, Sample, apply_like, op, scalar_like, zeros_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes


class Factorization(Op):
    """Base: what all ops on matrices without a loop form share."""

    host = True

    def expect_matrix(self, x: TensorType, square: bool = False) -> None:
        """Raises RuntimeError unless x is (..., m, n) of float32 or float64, or (..., n, n)."""
        self.expect(
            x.ndim >= 2, f"The input tensor must have at least 2 dimensions; got {x} of {x.ndim}"
        )
        self.expect(
            x.dtype in (dtypes.float32, dtypes.float64),
            f"expected float32 or float64; got {x}; convert it with .to(dtype)",
        )
        if square:
            self.expect(x.shape[-1] == x.shape[-2], f"expected a batch of square matrices; got {x}")

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        parts = [
            x if b else op.expand(op.reshape(x, shape=(1, *x.shape)), shape=(size, *x.shape))
            for x, b in zip(operands, batched, strict=True)
        ]
        return self(*parts, **attrs)


def triangle(x: Any, upper: bool, unit: bool = False) -> Any:
    """The triangle of matrices, the diagonal included (zeros there when unit); zeros elsewhere."""
    places = []
    for k, n in enumerate(x.shape[-2:]):
        index = apply_like(
            op.iota, x, shape=(n,), dtype=dtypes.int64, start=0, step=1, device=str(x.device)
        )
        places.append(op.reshape(index, shape=(n, 1) if k == 0 else (1, n)))
    compare = (op.gt if unit else op.ge) if not upper else (op.lt if unit else op.le)
    return op.where(compare(*places), x, scalar_like(x, 0))


def half_diagonal(x: Any) -> Any:
    """The lower triangle, its diagonal halved (Murray's Phi)."""
    strict = triangle(x, upper=False, unit=True)
    whole = triangle(x, upper=False)
    return op.mul(op.add(strict, whole), scalar_like(x, 0.5))


class Cholesky(Factorization):
    """The lower triangular L with A = L L^T, of symmetric positive definite A (..., n, n), of which
    the lower triangle is read. Raises LinAlgError for a matrix that is not positive definite."""

    name = "cholesky"
    checked = True
    saves = ("out",)

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        return a

    def reference(self, a: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(np.linalg.cholesky(a), a.dtype)
        except np.linalg.LinAlgError:
            raise np.linalg.LinAlgError(
                f"[cholesky] The factorization could not be completed because the input "
                f"{a.dtype}{list(a.shape)} is not positive-definite; add a multiple of the identity"
            ) from None

    def _inside(self, low: Any, middle: Any) -> Any:
        """low^-T middle low^-1."""
        left = op.solve_triangular(low, middle, upper=False, transpose=True, unit=False)
        both = op.solve_triangular(low, transpose(left), upper=False, transpose=True, unit=False)
        return transpose(both)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        s = self._inside(out, half_diagonal(op.matmul(transpose(out), g)))
        return (op.mul(op.add(s, transpose(s)), scalar_like(out, 0.5)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        (t,) = tangents
        t = op.mul(op.add(t, transpose(t)), scalar_like(out, 0.5))
        solve = {"upper": False, "transpose": False, "unit": False}
        x = op.solve_triangular(out, t, **solve)
        x = op.solve_triangular(out, transpose(x), **solve)
        return op.matmul(out, half_diagonal(x))

    def samples(self) -> Iterable[Sample]:
        for shape, note in (((3, 3), ""), ((2, 4, 4), "batched"), ((1, 1), "1 by 1"),
                            ((0, 0), "empty"), ((2, 0, 0), "empty batch")):  # fmt: skip
            x = uniform(shape)
            spd = x @ x.swapaxes(-1, -2) + 2 * np.eye(shape[-1], dtype=x.dtype)
            # Derivatives are of symmetric matrices: checked in tests/test_linalg.py.
            yield Sample((spd,), note=note, grad=False)


class SolveTriangular(Factorization):
    """X with A X = B, or A^T X = B: A (..., n, n), of which one triangle is read (its diagonal
    taken as ones when unit), B (..., n, k). A zero on the diagonal gives infinities."""

    name = "solve_triangular"
    saves = (0, "out")

    def infer(
        self, a: TensorType, b: TensorType, *, upper: bool, transpose: bool, unit: bool
    ) -> TensorType:
        self.expect_matrix(a, square=True)
        self.expect_matrix(b)
        self.expect(
            a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2] and a.dtype is b.dtype,
            f"expected B of as many rows as A, of its batch and dtype; got A {a} and B {b}",
        )
        return b

    def reference(
        self, a: np.ndarray, b: np.ndarray, *, upper: bool, transpose: bool, unit: bool
    ) -> np.ndarray:
        m = a.swapaxes(-1, -2) if transpose else a
        n = m.shape[-1]
        x = np.zeros(b.shape, b.dtype)
        for i in range(n - 1, -1, -1) if upper is not transpose else range(n):
            rest = b[..., i, :] - (m[..., i : i + 1, :] @ x)[..., 0, :]
            x[..., i, :] = rest if unit else rest / m[..., i, i, None]
        return x

    def vjp(
        self, g: Any, out: Any, a: Any, b: Any, *, upper: bool, transpose: bool, unit: bool
    ) -> tuple[Any, ...]:
        gb = op.solve_triangular(a, g, upper=upper, transpose=not transpose, unit=unit)
        return self._of_matrix(gb, out, upper, transpose, unit), gb

    def _of_matrix(self, gb: Any, x: Any, upper: bool, transposed: bool, unit: bool) -> Any:
        outer = op.matmul(x, transpose(gb)) if transposed else op.matmul(gb, transpose(x))
        return op.neg(triangle(outer, upper, unit))

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, a: Any, b: Any, *, upper: bool, transpose: bool,
        unit: bool,
    ) -> Any:  # fmt: skip
        da, db = tangents
        moved = None
        if da is not None:
            part = triangle(da, upper, unit)
            part = _transposed(part) if transpose else part
            moved = op.neg(op.matmul(part, out))
        total = sum_terms(db, moved)
        if total is None:
            return zeros_like(out)
        return op.solve_triangular(a, total, upper=upper, transpose=transpose, unit=unit)

    def samples(self) -> Iterable[Sample]:
        for k, (upper, trans, unit) in enumerate(
            [(False, False, False), (True, False, False), (False, True, False), (True, True, True),
             (False, False, True)]
        ):  # fmt: skip
            shape = (3, 3) if k < 2 else (2, 3, 3)
            a = uniform(shape) + 2 * np.eye(3, dtype=np.float32)
            b = uniform((*shape[:-1], 2), seed=1)
            yield Sample((a, b), {"upper": upper, "transpose": trans, "unit": unit})
        plain = {"upper": False, "transpose": False, "unit": False}
        yield Sample((uniform((0, 0)), uniform((0, 2))), plain, "empty")
        yield Sample((uniform((2, 2)) + 1, uniform((2, 0))), plain, "no columns")


def _transposed(x: Any) -> Any:
    return transpose(x)


cholesky, solve_triangular = Cholesky(), SolveTriangular()
