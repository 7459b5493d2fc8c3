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
from jitgrad.compiler.ops.linalg import adjoint, conj, sum_terms, transpose
from jitgrad.compiler.ops.record import Op, Sample, apply_like, op, scalar_like, zeros_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import LinAlgError

MATRICES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


class Factorization(Op):
    """Base: what all ops on matrices without a loop form share."""

    host = True

    def expect_matrix(self, x: TensorType, square: bool = False) -> None:
        """Raises RuntimeError unless x is (..., m, n), or (..., n, n), of a dtype of MATRICES."""
        self.expect(
            x.ndim >= 2, f"The input tensor must have at least 2 dimensions; got {x} of {x.ndim}"
        )
        self.expect(
            x.dtype in MATRICES,
            f"expected float32, float64, complex64 or complex128; got {x}; convert it with "
            ".to(dtype)",
        )
        if square:
            self.expect(
                x.shape[-1] == x.shape[-2],
                f"A must be batches of square matrices, but they are {x.shape[-2]} by "
                f"{x.shape[-1]} matrices; got {x}",
            )

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        size = next(x.shape[0] for x, b in zip(operands, batched, strict=True) if b)
        parts = [
            x if b else op.expand(op.reshape(x, shape=(1, *x.shape)), shape=(size, *x.shape))
            for x, b in zip(operands, batched, strict=True)
        ]
        return self(*parts, **attrs)


def triangle(x: Any, upper: bool, unit: bool = False) -> Any:
    """The triangle of matrices, the diagonal included (zeros there when unit); zeros elsewhere."""
    rows, columns = places(x)
    compare = (op.gt if unit else op.ge) if not upper else (op.lt if unit else op.le)
    return op.where(compare(rows, columns), x, scalar_like(x, 0))


def places(x: Any) -> tuple[Any, Any]:
    """The row numbers (m, 1) and column numbers (1, n) of matrices (..., m, n)."""
    made = []
    for k, n in enumerate(x.shape[-2:]):
        index = apply_like(
            op.iota, x, shape=(n,), dtype=dtypes.int64, start=0, step=1, device=str(x.device)
        )
        made.append(op.reshape(index, shape=(n, 1) if k == 0 else (1, n)))
    return made[0], made[1]


def half_diagonal(x: Any) -> Any:
    """The lower triangle, its diagonal halved (Murray's Phi)."""
    strict = triangle(x, upper=False, unit=True)
    whole = triangle(x, upper=False)
    return op.mul(op.add(strict, whole), scalar_like(x, 0.5))


def hermitian(x: Any) -> Any:
    """(x + x^H) / 2."""
    return op.mul(op.add(x, adjoint(x)), scalar_like(x, 0.5))


def solve_adjoint(a: Any, b: Any, *, upper: bool, unit: bool = False) -> Any:
    """X with A^H X = B, of a triangle of A."""
    return op.solve_triangular(conj(a), b, upper=upper, transpose=True, unit=unit)


def solve_right(a: Any, b: Any, *, upper: bool, unit: bool = False) -> Any:
    """X with X A = B, of a triangle of A."""
    x = op.solve_triangular(a, transpose(b), upper=upper, transpose=True, unit=unit)
    return transpose(x)


def solve_right_adjoint(a: Any, b: Any, *, upper: bool, unit: bool = False) -> Any:
    """X with X A^H = B, of a triangle of A."""
    x = op.solve_triangular(a, adjoint(b), upper=upper, transpose=False, unit=unit)
    return adjoint(x)


class Cholesky(Factorization):
    """The lower triangular L with A = L L^H, of Hermitian positive definite A (..., n, n), of which
    the lower triangle is read. Raises LinAlgError for a matrix that is not positive definite."""

    name = "cholesky"
    checked = True
    saves = ("out",)

    def infer(self, a: TensorType) -> Any:
        self.expect_matrix(a, square=True)
        return a

    def reference(self, a: np.ndarray) -> Any:
        try:
            return np.asarray(np.linalg.cholesky(a), a.dtype)
        except np.linalg.LinAlgError:
            raise LinAlgError(
                f"[cholesky] The factorization could not be completed because the input "
                f"{a.dtype}{list(a.shape)} is not positive-definite; add a multiple of the identity"
            ) from None

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        middle = half_diagonal(op.matmul(adjoint(out), g))
        left = solve_adjoint(out, middle, upper=False)
        return (hermitian(solve_right(out, left, upper=False)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        left = op.solve_triangular(
            out, hermitian(tangents[0]), upper=False, transpose=False, unit=False
        )
        return op.matmul(out, half_diagonal(solve_right_adjoint(out, left, upper=False)))

    def samples(self) -> Iterable[Sample]:
        for shape, note in (((3, 3), ""), ((2, 4, 4), "batched"), ((1, 1), "1 by 1"),
                            ((0, 0), "empty"), ((2, 0, 0), "empty batch")):  # fmt: skip
            x = uniform(shape)
            spd = x @ x.swapaxes(-1, -2) + 2 * np.eye(shape[-1], dtype=x.dtype)
            # Derivatives are of symmetric matrices: checked in tests/test_linalg.py.
            yield Sample((spd,), note=note, grad=False)


class CholeskyEx(Cholesky):
    """(L, info): info (int32) is the order of the first leading minor that is not positive, and 0
    where there is none; L is then the factor up to there. Raises nothing."""

    name = "cholesky_ex"
    checked = False
    nout = 2
    saves = ("out0",)

    def infer(self, a: TensorType) -> Any:
        self.expect_matrix(a, square=True)
        return a, TensorType(a.shape[:-2], dtypes.int32, a.device)

    def reference(self, a: np.ndarray) -> Any:
        info = np.zeros(a.shape[:-2], np.int32)
        try:
            return np.asarray(np.linalg.cholesky(a), a.dtype), info
        except np.linalg.LinAlgError:
            pass
        out = np.tril(a)
        for place in np.ndindex(a.shape[:-2]):
            info[place] = _cholesky_rows(out[place])
        return out, info

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        return super().vjp(g[0], out[0], a)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        return super().jvp(tangents, out[0], a), None


def _cholesky_rows(m: np.ndarray) -> int:
    """Factors the lower triangle of one matrix in place, column by column; where that stops."""
    for j in range(m.shape[0]):
        row = m[j, :j]
        pivot = (m[j, j] - row @ row.conj()).real
        if not pivot > 0:
            return j + 1
        m[j, j] = np.sqrt(pivot)
        m[j + 1 :, j] = (m[j + 1 :, j] - m[j + 1 :, :j] @ row.conj()) / m[j, j]
    return 0


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
        gb = op.solve_triangular(conj(a), g, upper=upper, transpose=not transpose, unit=unit)
        return self._of_matrix(gb, out, upper, transpose, unit), gb

    def _of_matrix(self, gb: Any, x: Any, upper: bool, transposed: bool, unit: bool) -> Any:
        outer = op.matmul(conj(x), _transposed(gb)) if transposed else op.matmul(gb, adjoint(x))
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


cholesky, cholesky_ex, solve_triangular = Cholesky(), CholeskyEx(), SolveTriangular()
