"""Systems of equations, determinants and LU: ops without a loop form (`Op.host`).

Matrices are the last two dims, all leading dims are a batch. Derivatives are composed of ops. For
complex matrices they follow the convention that the cotangent g of y gives dL = Re(conj(g) dy).
Sources: Giles (2008), as in factor.py; Golub and Van Loan, "Matrix Computations", 3.2 and 3.4 (LU).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.factor import (
    Factorization,
    solve_adjoint,
    solve_right,
    solve_right_adjoint,
    triangle,
)
from jitgrad.compiler.ops.linalg import adjoint, conj, sum_terms, transpose
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, op, zeros_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import LinAlgError


def regular(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Example matrices far from singular."""
    return uniform(shape, seed=seed) + 3 * np.eye(shape[-2], shape[-1], dtype=np.float32)


_SHAPES: tuple[tuple[tuple[int, ...], str], ...] = (
    ((3, 3), ""), ((2, 3, 3), "batched"), ((1, 1), "1 by 1"), ((0, 0), "empty"),
    ((0, 2, 2), "empty batch"),
)  # fmt: skip


def _singular(name: str, what: str) -> LinAlgError:
    return LinAlgError(
        f"[{name}] {what} because the input matrix is singular; add a multiple of the identity, or "
        "use pinv or lstsq"
    )


class Solve(Factorization):
    """X with A X = B: A (..., n, n), B (..., n, k) of the same batch. Raises LinAlgError for a
    singular A."""

    name = "solve"
    checked = True
    saves = (0, "out")

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        self.expect_matrix(b)
        self.expect(
            a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2] and a.dtype is b.dtype,
            f"expected B of as many rows as A, of its batch and dtype; got A {a} and B {b}",
        )
        return b

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(np.linalg.solve(a, b), b.dtype)
        except np.linalg.LinAlgError:
            raise _singular("linalg.solve", "The solver failed") from None

    def vjp(self, g: Any, out: Any, a: Any, b: Any) -> tuple[Any, ...]:
        gb = op.solve(adjoint(a), g)
        return op.neg(op.matmul(gb, adjoint(out))), gb

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, b: Any) -> Any:
        da, db = tangents
        moved = None if da is None else op.neg(op.matmul(da, out))
        total = sum_terms(db, moved)
        return zeros_like(out) if total is None else op.solve(a, total)

    def samples(self) -> Iterable[Sample]:
        for shape, note in _SHAPES:
            yield Sample((regular(shape), uniform((*shape[:-1], 2), seed=1)), note=note)


class Inverse(Factorization):
    """A^-1 of A (..., n, n). Raises LinAlgError for a singular A."""

    name = "inverse"
    checked = True
    saves = ("out",)

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        return a

    def reference(self, a: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(np.linalg.inv(a), a.dtype)
        except np.linalg.LinAlgError:
            raise _singular("linalg.inv", "The inversion could not be completed") from None

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        back = adjoint(out)
        return (op.neg(op.matmul(back, op.matmul(g, back))),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        return op.neg(op.matmul(out, op.matmul(tangents[0], out)))

    def samples(self) -> Iterable[Sample]:
        for shape, note in _SHAPES:
            yield Sample((regular(shape),), note=note)


def of_matrices(x: Any) -> Any:
    """A number for each matrix of a batch, as (..., 1, 1)."""
    return op.reshape(x, shape=(*x.shape, 1, 1))


def total(x: Any) -> Any:
    """The sum of the elements of each matrix of a batch."""
    return op.sum(x, axes=(x.ndim - 2, x.ndim - 1), keepdim=False)


class Det(Factorization):
    """The determinant of A (..., n, n): (...). Differentiable at singular matrices too."""

    name = "det"
    saves = (0,)

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        return a.with_shape(a.shape[:-2])

    def reference(self, a: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.det(a), a.dtype)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        return (op.mul(of_matrices(g), conj(op.cofactor(a))),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        return total(op.mul(op.cofactor(a), tangents[0]))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Det", inputs)

    def samples(self) -> Iterable[Sample]:
        for shape, note in _SHAPES:
            yield Sample((regular(shape),), note=note)
        yield Sample((np.array([[1.0, 2.0], [2.0, 4.0]]),), note="singular", grad=False)


class Cofactor(Factorization):
    """The matrix of cofactors of A (..., n, n): d det(A) = sum(cofactor(A) dA), for every A.

    From A = U S V^H: the cofactors are those of S, turned back. Its own derivative asks for a
    regular A."""

    name = "cofactor"
    saves = (0, "out")

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        return a

    def reference(self, a: np.ndarray) -> np.ndarray:
        n = a.shape[-1]
        u, s, vh = np.linalg.svd(a)
        others = np.broadcast_to(s[..., None, :], (*s.shape, n)).copy()
        others[..., np.arange(n), np.arange(n)] = 1
        turn = np.linalg.det(u) * np.linalg.det(vh)
        scaled = u.conj() * np.prod(others, axis=-1)[..., None, :]
        return np.asarray(turn[..., None, None] * (scaled @ vh.conj()), a.dtype)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        m = transpose(op.inverse(a))
        weight = of_matrices(total(op.mul(conj(g), out)))
        both = op.matmul(m, op.matmul(adjoint(g), m))
        ga = op.sub(op.mul(weight, m), op.mul(of_matrices(op.det(a)), both))
        return (conj(ga),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        (t,) = tangents
        m = transpose(op.inverse(a))
        both = op.matmul(m, op.matmul(transpose(t), m))
        slope = op.mul(of_matrices(total(op.mul(m, t))), out)
        return op.sub(slope, op.mul(of_matrices(op.det(a)), both))

    def samples(self) -> Iterable[Sample]:
        for shape, note in _SHAPES:
            yield Sample((regular(shape),), note=note)
        yield Sample((np.array([[1.0, 2.0], [2.0, 4.0]]),), note="singular", grad=False)


class Slogdet(Factorization):
    """(sign, log |det A|) of A (..., n, n); sign is det / |det|, the logarithm is real."""

    name = "slogdet"
    nout = 2
    saves = (0, "out0")

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        self.expect_matrix(a, square=True)
        out = a.with_shape(a.shape[:-2])
        return out, out.with_dtype(a.dtype.to_real())

    def reference(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        sign, size = np.linalg.slogdet(a)
        return np.asarray(sign, a.dtype), np.asarray(size, a.real.dtype)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        sign, size = g
        if a.dtype.is_complex:
            turn = op.imag(op.mul(sign, op.conj(out[0])))
            size = op.complex(size, turn)
        return (op.mul(of_matrices(size), adjoint(op.inverse(a))),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        trace = total(op.mul(transpose(op.inverse(a)), tangents[0]))
        if not a.dtype.is_complex:
            return None, trace
        turn = op.imag(trace)
        return op.mul(out[0], op.complex(zeros_like(turn), turn)), op.real(trace)

    def samples(self) -> Iterable[Sample]:
        for shape, note in _SHAPES:
            yield Sample((regular(shape),), note=note)


_BLOCK = 32


def lu_packed(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """LU with partial pivoting of matrices (B, m, n), as LAPACK packs it: L below the diagonal, U
    on and above; pivots (int32, from 1) are the rows exchanged, in order. By blocks of columns."""
    a = np.array(a, order="C")
    count, m, n = a.shape
    k = min(m, n)
    pivots = np.empty((count, k), np.int32)
    every = np.arange(count)
    for first in range(0, k, _BLOCK):
        last = min(first + _BLOCK, k)
        for j in range(first, last):
            column = a[:, j:, j]
            size = np.abs(column.real) + np.abs(column.imag)
            best = np.argmax(size, axis=1) + j if count else np.zeros(0, np.int64)
            pivots[:, j] = best + 1
            a[every, j], a[every, best] = a[every, best], a[every, j]
            pivot = np.where(a[:, j, j] == 0, a.dtype.type(1), a[:, j, j])
            a[:, j + 1 :, j] /= pivot[:, None]
            a[:, j + 1 :, j + 1 : last] -= (
                a[:, j + 1 :, j, None] * a[:, j, None, j + 1 : last]
            )  # fmt: skip
        for j in range(first, last):
            a[:, j + 1 : last, last:] -= a[:, j + 1 : last, j, None] * a[:, j, None, last:]
        a[:, last:, last:] -= a[:, last:, first:last] @ a[:, first:last, last:]
    return a, pivots


class LU(Factorization):
    """(LU, pivots): A[p] = L U with partial pivoting, packed in one matrix (..., m, n), and the
    exchanges of rows (int32, from 1). Singular matrices have a zero on the diagonal of U."""

    name = "lu"
    nout = 2
    saves = ("out0", "out1")

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        self.expect_matrix(a)
        k = min(int(a.shape[-2]), int(a.shape[-1]))
        return a, TensorType((*a.shape[:-2], k), dtypes.int32, a.device)

    def reference(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        packed, pivots = lu_packed(a.reshape(int(np.prod(a.shape[:-2])), *a.shape[-2:]))
        return packed.reshape(a.shape), pivots.reshape(*a.shape[:-2], pivots.shape[-1])

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        packed, pivots = out
        g = g[0]
        m, n = (int(d) for d in a.shape[-2:])
        k = min(m, n)
        square = block(packed, 0, k, 0, k)
        gl, gu = triangle(block(g, 0, k, 0, k), False, True), triangle(block(g, 0, k, 0, k), True)
        rest = None
        if n > k:
            rest = solve_adjoint(square, block(g, 0, k, k, n), upper=False, unit=True)
            over = op.matmul(rest, adjoint(block(packed, 0, k, k, n)))
            gl = op.sub(gl, triangle(over, False, True))
        elif m > k:
            rest = solve_right_adjoint(square, block(g, k, m, 0, k), upper=True)
            over = op.matmul(adjoint(block(packed, k, m, 0, k)), rest)
            gu = op.sub(gu, triangle(over, True))
        low = op.add(
            triangle(gl, False, True), op.matmul(adjoint(triangle(square, False, True)), gl)
        )
        middle = op.add(
            triangle(low, False, True),
            triangle(op.matmul(gu, adjoint(triangle(square, True))), True),
        )
        left = solve_adjoint(square, middle, upper=False, unit=True)
        ga = solve_right_adjoint(square, left, upper=True)
        if rest is not None:
            ga = op.concatenate(ga, rest, axis=ga.ndim - (1 if n > k else 2))
        return (_rows(ga, op.permutation(pivots, size=m, inverse=True)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        packed, pivots = out
        m, n = (int(d) for d in a.shape[-2:])
        k = min(m, n)
        t = _rows(tangents[0], op.permutation(pivots, size=m, inverse=False))
        square = block(packed, 0, k, 0, k)
        inner = op.solve_triangular(
            square, block(t, 0, k, 0, k), upper=False, transpose=False, unit=True
        )
        inner = solve_right(square, inner, upper=True)
        strict = triangle(inner, False, True)
        dl = op.add(strict, op.matmul(triangle(square, False, True), strict))
        du = op.matmul(triangle(inner, True), triangle(square, True))
        done = op.add(dl, du)
        if n > k:
            right = op.sub(block(t, 0, k, k, n), op.matmul(dl, block(packed, 0, k, k, n)))
            right = op.solve_triangular(square, right, upper=False, transpose=False, unit=True)
            done = op.concatenate(done, right, axis=done.ndim - 1)
        elif m > k:
            below = op.sub(block(t, k, m, 0, k), op.matmul(block(packed, k, m, 0, k), du))
            done = op.concatenate(
                done, solve_right(square, below, upper=True), axis=done.ndim - 2
            )  # fmt: skip
        return done, None

    def samples(self) -> Iterable[Sample]:
        for shape, note in (*_SHAPES, ((4, 2), "tall"), ((2, 5), "wide"), ((2, 3, 5), "batch")):
            # pivots far apart, so that they stay the same nearby
            yield Sample((regular(shape)[..., ::-1, :].copy(),), note=note)
        yield Sample((uniform((40, 36)),), note="more than a block", grad=False)
        yield Sample((np.zeros((3, 3)),), note="singular", grad=False)


def block(x: Any, top: int, bottom: int, left: int, right: int) -> Any:
    """x[..., top:bottom, left:right]."""
    lead = tuple(x.shape[:-2])
    return op.slice(
        x,
        starts=(*(0 for _ in lead), top, left),
        stops=(*lead, bottom, right),
        steps=(1,) * x.ndim,
    )


def _rows(x: Any, order: Any) -> Any:
    """The rows of matrices (..., m, n) in the order (..., m)."""
    index = op.expand(op.reshape(order, shape=(*order.shape, 1)), shape=x.shape)
    return op.gather(x, index, axis=x.ndim - 2)


class Permutation(Op):
    """The order of rows (..., size), int64, that exchanges of rows (..., k) give: A[order] is A
    with its rows exchanged. inverse: the order that puts them back."""

    name = "permutation"
    host = True
    differentiable = False

    def infer(self, pivots: TensorType, *, size: int, inverse: bool) -> TensorType:
        return TensorType((*pivots.shape[:-1], size), dtypes.int64, pivots.device)

    def reference(self, pivots: np.ndarray, *, size: int, inverse: bool) -> np.ndarray:
        flat = pivots.reshape(int(np.prod(pivots.shape[:-1])), pivots.shape[-1])
        order = np.tile(np.arange(size, dtype=np.int64), (flat.shape[0], 1))
        every = np.arange(flat.shape[0])
        for j in range(flat.shape[1]):
            other = flat[:, j] - 1
            order[every, j], order[every, other] = order[every, other], order[every, j]
        out = np.argsort(order, axis=-1) if inverse else order
        return np.asarray(out.reshape(*pivots.shape[:-1], size), np.int64)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        return self(*operands, **attrs)

    def samples(self) -> Iterable[Sample]:
        pivots = np.array([[3, 2, 3], [1, 3, 3]], np.int32)
        yield Sample((pivots,), {"size": 4, "inverse": False})
        yield Sample((pivots,), {"size": 4, "inverse": True})
        yield Sample((pivots[0, :2],), {"size": 3, "inverse": True}, "one matrix")
        yield Sample((pivots[:, :0],), {"size": 0, "inverse": False}, "empty")


solve, inverse, det, cofactor = Solve(), Inverse(), Det(), Cofactor()
slogdet, lu, permutation = Slogdet(), LU(), Permutation()
