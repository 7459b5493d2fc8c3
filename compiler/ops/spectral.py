"""Decompositions of matrices: QR, singular values, eigenvalues; and the matrix exponential.

Ops without a loop form (`Op.host`); matrices are the last two dims, all leading dims are a batch.
Derivatives are composed of ops, and follow, for complex matrices, the convention that the cotangent
g of y gives dL = Re(conj(g) dy). Where factors are unique up to a phase only, they are the
derivatives of functions that do not depend on it.

Sources: Townsend, "Differentiating the singular value decomposition" (2016); Wan and Zhang,
"Automatic differentiation for complex valued SVD" (2019); Walter and Lehmann, "On evaluating
higher-order derivatives of the QR decomposition" (2010); Boeddeker et al., "On the computation of
complex-valued gradients" (2017), eigenvectors; Higham, "The scaling and squaring method for the
matrix exponential revisited" (2005); Al-Mohy and Higham (2009), its derivative by a block matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.factor import (
    Factorization,
    hermitian,
    places,
    solve_right,
    solve_right_adjoint,
    triangle,
)
from jitgrad.compiler.ops.linalg import adjoint, conj
from jitgrad.compiler.ops.record import Sample, op, scalar_like, zeros_like
from jitgrad.compiler.ops.solving import block
from jitgrad.compiler.symbolic import Dim
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import LinAlgError


def smaller(a: TensorType) -> int:
    """min(m, n) of matrices (..., m, n)."""
    return min(int(a.shape[-2]), int(a.shape[-1]))


def row(x: Any) -> Any:
    """(..., n) as (..., 1, n)."""
    return op.reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def column(x: Any) -> Any:
    """(..., n) as (..., n, 1)."""
    return op.reshape(x, shape=(*x.shape, 1))


def _as(x: Any, like: Any) -> Any:
    """x in the dtype of `like` (real numbers beside complex ones)."""
    return x if x.dtype is like.dtype else op.cast(x, dtype=like.dtype)


def on_diagonal(x: Any, values: Any) -> Any:
    """x with its diagonal replaced by what broadcasts to it."""
    return op.where(op.eq(*places(x)), _as(values, x), x)


def diagonal_of(x: Any) -> Any:
    """The diagonal of square matrices, (..., n)."""
    kept = op.where(op.eq(*places(x)), x, scalar_like(x, 0))
    return op.sum(kept, axes=(x.ndim - 1,), keepdim=False)


def _real(x: Any) -> Any:
    return op.real(x) if x.dtype.is_complex else x


def _imaginary(x: Any) -> Any:
    """i times a real x."""
    return op.complex(zeros_like(x), x)


def _gaps(values: Any, like: Any) -> Any:
    """values_j - values_i, 1 where that is zero: so that 0 / gap is 0, not NaN."""
    gap = _as(op.sub(row(values), column(values)), like)
    return op.where(op.eq(gap, scalar_like(gap, 0)), scalar_like(gap, 1), gap)


def _skew(x: Any) -> Any:
    return op.sub(x, adjoint(x))


_RECTANGLES: tuple[tuple[tuple[int, ...], str], ...] = (
    ((3, 3), ""), ((4, 2), "tall"), ((2, 4), "wide"), ((2, 3, 2), "batched"), ((1, 1), "1 by 1"),
    ((0, 0), "empty"), ((0, 3), "no rows"), ((3, 0), "no columns"),
)  # fmt: skip


# -- QR ------------------------------------------------------------------------------------------
class QR(Factorization):
    """(Q, R) of A (..., m, n): Q (..., m, k) of orthonormal columns, R (..., k, n) upper
    triangular, k = min(m, n); complete: k = m."""

    name = "qr"
    nout = 2
    saves = (0, "out")

    def infer(self, a: TensorType, *, complete: bool) -> tuple[TensorType, ...]:
        self.expect_matrix(a)
        *lead, m, n = a.shape
        k: Dim = m if complete else smaller(a)
        return a.with_shape((*lead, m, k)), a.with_shape((*lead, k, n))

    def reference(self, a: np.ndarray, *, complete: bool) -> tuple[np.ndarray, ...]:
        q, r = np.linalg.qr(a, "complete" if complete else "reduced")
        return np.asarray(q, a.dtype), np.asarray(r, a.dtype)

    def _expect_derivative(self, a: Any, complete: bool) -> None:
        self.expect(
            not complete or a.shape[-2] <= a.shape[-1],
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols; "
            'use mode="reduced"',
        )

    def vjp(self, g: Any, out: Any, a: Any, *, complete: bool) -> tuple[Any, ...]:
        self._expect_derivative(a, complete)
        q, r = out
        gq, gr = g
        m, n = (int(d) for d in a.shape[-2:])
        if m >= n:
            return (self._square(gq, gr, q, r),)
        left, right = block(gr, 0, m, 0, m), block(gr, 0, m, m, n)
        gq = op.add(gq, op.matmul(block(a, 0, m, m, n), adjoint(right)))
        first = self._square(gq, left, q, block(r, 0, m, 0, m))
        return (op.concatenate(first, op.matmul(q, right), axis=a.ndim - 1),)

    def _square(self, gq: Any, gr: Any, q: Any, r: Any) -> Any:
        m = op.sub(op.matmul(gr, adjoint(r)), op.matmul(adjoint(q), gq))
        m = triangle(m, upper=True)
        both = op.add(m, adjoint(m))
        both = on_diagonal(both, op.mul(both, scalar_like(both, 0.5)))
        return solve_right_adjoint(r, op.add(gq, op.matmul(q, both)), upper=True)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, *, complete: bool) -> Any:
        self._expect_derivative(a, complete)
        q, r = out
        (t,) = tangents
        m, n = (int(d) for d in a.shape[-2:])
        k = min(m, n)
        head = block(r, 0, k, 0, k)
        moved = solve_right(head, block(t, 0, m, 0, k), upper=True)
        x = op.matmul(adjoint(q), moved)
        turn = _skew(triangle(x, upper=False, unit=True))
        if a.dtype.is_complex:
            turn = on_diagonal(turn, column(_imaginary(op.imag(diagonal_of(x)))))
        up = op.sub(x, turn)
        dq, dr = op.sub(moved, op.matmul(q, up)), op.matmul(up, head)
        if m < n:
            rest = block(a, 0, m, m, n), block(t, 0, m, m, n)
            tail = op.add(op.matmul(adjoint(dq), rest[0]), op.matmul(adjoint(q), rest[1]))
            dr = op.concatenate(dr, tail, axis=dr.ndim - 1)
        return dq, dr

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            yield Sample((uniform(shape),), {"complete": False}, note)
        yield Sample((uniform((2, 3)),), {"complete": True}, "complete")
        yield Sample((uniform((2, 4, 2)),), {"complete": True}, "complete, tall", grad=False)


class QRFactor(Factorization):
    """R of the QR decomposition alone; its derivative would need Q."""

    name = "qr_r"

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a)
        return a.with_shape((*a.shape[:-2], smaller(a), a.shape[-1]))

    def reference(self, a: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.qr(a, "r"), a.dtype)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        raise RuntimeError(
            "[linalg.qr] The derivative of linalg.qr depends on Q, which is not computed when "
            "mode='r'. Please use linalg.qr(A, mode='reduced') if you are going to require "
            "gradients"
        )

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            yield Sample((uniform(shape),), note=note, grad=False)


class Geqrf(Factorization):
    """(a, tau): Householder reflectors below R, as LAPACK's geqrf packs them. No derivative."""

    name = "geqrf"
    nout = 2

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        self.expect_matrix(a)
        return a, a.with_shape((*a.shape[:-2], smaller(a)))

    def reference(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        h, tau = np.linalg.qr(a, "raw")
        return np.asarray(h.swapaxes(-1, -2), a.dtype), np.asarray(tau, a.dtype)

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            yield Sample((uniform(shape),), note=note, grad=False)


# -- singular values -----------------------------------------------------------------------------
class SVD(Factorization):
    """(U, S, V^H) of A (..., m, n): singular values (real, falling) in S (..., k), k = min(m, n); U
    (..., m, k) and V^H (..., k, n); full: (..., m, m) and (..., n, n), whose further columns get no
    derivative."""

    name = "svd"
    nout = 3
    saves = ("out",)

    def infer(self, a: TensorType, *, full: bool) -> tuple[TensorType, ...]:
        self.expect_matrix(a)
        *lead, m, n = a.shape
        k = smaller(a)
        return (
            a.with_shape((*lead, m, m if full else k)),
            a.with_shape((*lead, k)).with_dtype(a.dtype.to_real()),
            a.with_shape((*lead, n if full else k, n)),
        )

    def reference(self, a: np.ndarray, *, full: bool) -> tuple[np.ndarray, ...]:
        u, s, vh = np.linalg.svd(a, full_matrices=full)
        return np.asarray(u, a.dtype), np.asarray(s, a.real.dtype), np.asarray(vh, a.dtype)

    def vjp(self, g: Any, out: Any, a: Any, *, full: bool) -> tuple[Any, ...]:
        u, s, vh = out
        gu, gs, gvh = g
        m, n = (int(d) for d in a.shape[-2:])
        k = min(m, n)
        u, gu, vh, gvh = (
            block(u, 0, m, 0, k), block(gu, 0, m, 0, k), block(vh, 0, k, 0, n),
            block(gvh, 0, k, 0, n),
        )  # fmt: skip
        left, right = op.matmul(adjoint(u), gu), op.matmul(vh, adjoint(gvh))
        gap = _gaps(op.mul(s, s), left)
        mid = op.add(
            op.mul(op.div(_skew(left), gap), _as(row(s), left)),
            op.mul(op.div(_skew(right), gap), _as(column(s), left)),
        )
        mid = on_diagonal(mid, self._diagonal(left, right, s, gs))
        ga = op.matmul(op.matmul(u, mid), vh)
        if m > k:
            rest = op.sub(gu, op.matmul(u, left))
            ga = op.add(ga, op.matmul(op.div(rest, _as(row(s), rest)), vh))
        if n > k:
            rest = op.sub(gvh, op.matmul(adjoint(right), vh))
            ga = op.add(ga, op.matmul(u, op.div(rest, _as(column(s), rest))))
        return (ga,)

    def _diagonal(self, left: Any, right: Any, s: Any, gs: Any) -> Any:
        if not left.dtype.is_complex:
            return row(gs)
        twist = op.sub(op.imag(diagonal_of(left)), op.imag(diagonal_of(right)))
        zero = op.eq(twist, scalar_like(twist, 0))
        safe = op.where(zero, scalar_like(s, 1), op.mul(s, 2.0))
        return row(op.complex(gs, op.div(twist, safe)))

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, *, full: bool) -> Any:
        (t,) = tangents
        u, s, vh = out
        m, n = (int(d) for d in a.shape[-2:])
        self.expect(
            not full or m == n,
            "svd_jvp: expected full_matrices=False; the further columns have no derivative",
        )
        p = op.matmul(op.matmul(adjoint(u), t), adjoint(vh))
        gap, wide, tall = _gaps(op.mul(s, s), p), _as(row(s), p), _as(column(s), p)
        ph = adjoint(p)
        du = op.div(op.add(op.mul(p, wide), op.mul(tall, ph)), gap)
        dv = op.div(op.add(op.mul(tall, p), op.mul(ph, wide)), gap)
        main = diagonal_of(p)
        ds, half = _real(main), scalar_like(p, 0)
        if p.dtype.is_complex:
            half = row(_imaginary(op.div(op.imag(main), op.mul(s, 2.0))))
        du = op.matmul(u, on_diagonal(du, half))
        dvh = op.matmul(adjoint(on_diagonal(dv, op.neg(half))), vh)
        if m > n:
            moved = op.matmul(t, adjoint(vh))
            rest = op.sub(moved, op.matmul(u, op.matmul(adjoint(u), moved)))
            du = op.add(du, op.div(rest, wide))
        if n > m:
            moved = op.matmul(adjoint(u), t)
            rest = op.sub(moved, op.matmul(op.matmul(moved, adjoint(vh)), vh))
            dvh = op.add(dvh, op.div(rest, tall))
        return du, ds, dvh

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            yield Sample((uniform(shape, seed=3),), {"full": False}, note)
        yield Sample((uniform((3, 3), seed=3),), {"full": True}, "full, square")
        for shape in ((2, 3, 2), (2, 4)):
            yield Sample((uniform(shape),), {"full": True}, "full", grad=False)


class Singular(Factorization):
    """The singular values (..., min(m, n)) of A (..., m, n), real and falling."""

    name = "svdvals"
    saves = (0,)

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a)
        return a.with_shape((*a.shape[:-2], smaller(a))).with_dtype(a.dtype.to_real())

    def reference(self, a: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.svd(a, compute_uv=False), a.real.dtype)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        u, _, vh = op.svd(a, full=False)
        return (op.matmul(op.mul(u, _as(row(g), u)), vh),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        u, _, vh = op.svd(a, full=False)
        turned = op.matmul(tangents[0], adjoint(vh))
        both = op.sum(op.mul(conj(u), turned), axes=(u.ndim - 2,), keepdim=False)
        return _real(both)

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            yield Sample((uniform(shape, seed=3),), note=note)


class Pseudoinverse(Factorization):
    """The Moore-Penrose inverse (..., n, m) of A (..., m, n), by its `rank` (int64, (...)) largest
    singular values; hermitian: by eigenvalues, of the lower triangle.

    The derivative takes the rank as constant (Golub and Pereyra, 1973)."""

    name = "pseudoinverse"
    saves = (0, "out")

    def infer(self, a: TensorType, rank: TensorType, *, hermitian: bool) -> TensorType:
        self.expect_matrix(a, square=hermitian)
        self.expect(
            rank.shape == a.shape[:-2] and rank.dtype is dtypes.int64,
            f"expected an int64 rank for each matrix; got A {a} and rank {rank}",
        )
        return a.with_shape((*a.shape[:-2], a.shape[-1], a.shape[-2]))

    def reference(self, a: np.ndarray, rank: np.ndarray, *, hermitian: bool) -> np.ndarray:
        if hermitian:
            values, u = np.linalg.eigh(a, "L")
            order = np.argsort(-np.abs(values), axis=-1, kind="stable")
            values = np.take_along_axis(values, order, -1)
            u = np.take_along_axis(u, order[..., None, :], -1)
            vh = u.conj().swapaxes(-1, -2)
        else:
            u, values, vh = np.linalg.svd(a, full_matrices=False)
        kept = np.arange(values.shape[-1]) < rank[..., None]
        inverse = np.where(kept, 1 / np.where(kept, values, 1), 0).astype(values.dtype)
        v = vh.conj().swapaxes(-1, -2)
        return np.asarray((v * inverse[..., None, :]) @ u.conj().swapaxes(-1, -2), a.dtype)

    def vjp(self, g: Any, out: Any, a: Any, rank: Any, *, hermitian: bool) -> tuple[Any, ...]:
        ph, gh = adjoint(out), adjoint(g)
        left, right = op.matmul(gh, out), op.matmul(out, gh)
        inner = op.neg(op.matmul(op.matmul(ph, g), ph))
        above = op.matmul(op.sub(left, op.matmul(a, op.matmul(out, left))), ph)
        beside = op.matmul(ph, op.sub(right, op.matmul(op.matmul(right, out), a)))
        return op.add(inner, op.add(above, beside)), None

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, a: Any, rank: Any, *, hermitian: bool
    ) -> Any:
        t = tangents[0]
        if t is None:
            return None
        ph, th = adjoint(out), adjoint(t)
        left, right = op.matmul(ph, th), op.matmul(th, ph)
        inner = op.neg(op.matmul(op.matmul(out, t), out))
        above = op.matmul(out, op.sub(left, op.matmul(op.matmul(left, a), out)))
        beside = op.matmul(op.sub(right, op.matmul(out, op.matmul(a, right))), out)
        return op.add(inner, op.add(above, beside))

    def samples(self) -> Iterable[Sample]:
        for shape, note in _RECTANGLES:
            rank = np.full(shape[:-2], min(shape[-2:]), np.int64)
            yield Sample((uniform(shape, seed=3), rank), {"hermitian": False}, note)
        rank = np.asarray([1, 2], np.int64)
        yield Sample((uniform((2, 3, 2)), rank), {"hermitian": False}, "ranks", grad=False)
        # Derivatives are of Hermitian matrices: checked in tests/test_linalg.py.
        both = _symmetric((2, 3, 3)), np.asarray([3, 2], np.int64)
        yield Sample(both, {"hermitian": True}, "hermitian", grad=False)


# -- eigenvalues ---------------------------------------------------------------------------------
def _symmetric(shape: tuple[int, ...]) -> np.ndarray:
    x = uniform(shape)
    return x + x.swapaxes(-1, -2)


class Eigh(Factorization):
    """(L, V): A = V diag(L) V^H of Hermitian A (..., n, n), of which one triangle is read (upper or
    not). L is real and rising. The derivative takes A as Hermitian."""

    name = "eigh"
    nout = 2
    saves = ("out",)

    def infer(self, a: TensorType, *, upper: bool) -> tuple[TensorType, ...]:
        self.expect_matrix(a, square=True)
        return a.with_shape(a.shape[:-1]).with_dtype(a.dtype.to_real()), a

    def reference(self, a: np.ndarray, *, upper: bool) -> tuple[np.ndarray, ...]:
        values, vectors = np.linalg.eigh(a, "U" if upper else "L")
        return np.asarray(values, a.real.dtype), np.asarray(vectors, a.dtype)

    def vjp(self, g: Any, out: Any, a: Any, *, upper: bool) -> tuple[Any, ...]:
        values, v = out
        gl, gv = g
        mid = op.matmul(adjoint(v), gv)
        mid = on_diagonal(op.div(mid, _gaps(values, mid)), row(gl))
        return (hermitian(op.matmul(op.matmul(v, mid), adjoint(v))),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, *, upper: bool) -> Any:
        values, v = out
        p = op.matmul(op.matmul(adjoint(v), hermitian(tangents[0])), v)
        moved = on_diagonal(op.div(p, _gaps(values, p)), scalar_like(p, 0))
        return _real(diagonal_of(p)), op.matmul(v, moved)

    def samples(self) -> Iterable[Sample]:
        for shape, note in (((3, 3), ""), ((2, 3, 3), "batched"), ((1, 1), "1 by 1"),
                            ((0, 0), "empty")):  # fmt: skip
            for upper in (False, True):
                # Derivatives are of symmetric matrices: checked in tests/test_linalg.py.
                yield Sample((_symmetric(shape),), {"upper": upper}, note, grad=False)


class Eigvalsh(Factorization):
    """The eigenvalues of Hermitian A, as `Eigh` gives them."""

    name = "eigvalsh"
    saves = (0,)

    def infer(self, a: TensorType, *, upper: bool) -> TensorType:
        self.expect_matrix(a, square=True)
        return a.with_shape(a.shape[:-1]).with_dtype(a.dtype.to_real())

    def reference(self, a: np.ndarray, *, upper: bool) -> np.ndarray:
        return np.asarray(np.linalg.eigvalsh(a, "U" if upper else "L"), a.real.dtype)

    def vjp(self, g: Any, out: Any, a: Any, *, upper: bool) -> tuple[Any, ...]:
        _, v = op.eigh(a, upper=upper)
        return (op.matmul(op.mul(v, _as(row(g), v)), adjoint(v)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, *, upper: bool) -> Any:
        _, v = op.eigh(a, upper=upper)
        both = op.mul(conj(v), op.matmul(tangents[0], v))
        return _real(op.sum(both, axes=(v.ndim - 2,), keepdim=False))

    def samples(self) -> Iterable[Sample]:
        for s in eigh.samples():
            yield Sample(s.args, s.attrs, s.note, grad=False)


class Eig(Factorization):
    """(L, V): A V = V diag(L) of A (..., n, n); both complex, eigenvectors of length 1, in no order
    in particular. Raises LinAlgError where the iteration does not converge."""

    name = "eig"
    nout = 2
    checked = True
    saves = ("out",)

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        self.expect_matrix(a, square=True)
        wide = a.with_dtype(a.dtype.to_complex())
        return wide.with_shape(a.shape[:-1]), wide

    def reference(self, a: np.ndarray) -> tuple[np.ndarray, ...]:
        if not np.isfinite(a).all():
            raise LinAlgError(
                "[linalg.eig] The algorithm failed to converge: expected finite elements; got "
                "infinity or NaN in the input"
            )
        values, vectors = np.linalg.eig(a)
        wide = np.result_type(a.dtype, np.complex64)
        return np.asarray(values, wide), np.asarray(vectors, wide)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        values, v = out
        gl, gv = g
        vh = adjoint(v)
        mid = op.matmul(vh, gv)
        length = _as(_real(diagonal_of(mid)), mid)
        mid = op.sub(mid, op.mul(op.matmul(vh, v), row(length)))
        mid = on_diagonal(op.div(mid, conj(_gaps(values, mid))), row(gl))
        ga = op.solve(vh, op.matmul(mid, vh))
        return (_real(ga) if not a.dtype.is_complex else ga,)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        values, v = out
        p = op.solve(v, op.matmul(_as(tangents[0], v), v))
        moved = on_diagonal(op.div(p, _gaps(values, p)), scalar_like(p, 0))
        dv = op.matmul(v, moved)
        length = _real(op.sum(op.mul(conj(v), dv), axes=(v.ndim - 2,), keepdim=False))
        return diagonal_of(p), op.sub(dv, op.mul(v, _as(row(length), v)))

    def samples(self) -> Iterable[Sample]:
        for shape, note in (((3, 3), ""), ((2, 3, 3), "batched"), ((1, 1), "1 by 1"),
                            ((0, 0), "empty")):  # fmt: skip
            # Derivatives are checked in tests/test_linalg.py: the results are complex.
            yield Sample((uniform(shape),), note=note, grad=False)


# -- matrix exponential --------------------------------------------------------------------------
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_REACH = 5.371920351148152


def matrix_exponential(a: np.ndarray) -> np.ndarray:
    """exp of matrices (..., n, n), by Higham's [13/13] Pade approximant, in double precision."""
    wide = a.astype(np.result_type(a.dtype, np.float64))
    n = a.shape[-1]
    norm = np.abs(wide).sum(axis=-2).max(axis=-1, initial=0)
    if not n or not norm.size:
        return a.copy()
    _, power = np.frexp(np.where(np.isfinite(norm), norm, 0) / _REACH)
    power = np.maximum(power, 0)
    x = wide * np.ldexp(1.0, -power)[..., None, None]
    one, b = np.eye(n, dtype=wide.dtype), _PADE
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x2 @ x4
    odd = x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2) + b[7] * x6 + b[5] * x4 + b[3] * x2
    odd = x @ (odd + b[1] * one)
    even = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2) + b[6] * x6 + b[4] * x4 + b[2] * x2
    even = even + b[0] * one
    bad = ~np.isfinite(norm)
    even[bad], odd[bad] = one, np.nan
    out = np.linalg.solve(even - odd, even + odd)
    for k in range(int(power.max())):
        again = power > k
        out[again] = out[again] @ out[again]
    return out.astype(a.dtype)


class MatrixExp(Factorization):
    """The exponential of A (..., n, n). Computed in double precision, rounded once."""

    name = "matrix_exp"
    saves = (0,)

    def infer(self, a: TensorType) -> TensorType:
        self.expect_matrix(a, square=True)
        return a

    def reference(self, a: np.ndarray) -> np.ndarray:
        return matrix_exponential(a)

    def vjp(self, g: Any, out: Any, a: Any) -> tuple[Any, ...]:
        return (self._slope(adjoint(a), g),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any) -> Any:
        return self._slope(a, tangents[0])

    def _slope(self, a: Any, t: Any) -> Any:
        """The derivative at a in direction t: the upper right of exp([[a, t], [0, a]])."""
        n = int(a.shape[-1])
        top = op.concatenate(a, t, axis=a.ndim - 1)
        bottom = op.concatenate(zeros_like(a), a, axis=a.ndim - 1)
        whole = op.matrix_exp(op.concatenate(top, bottom, axis=a.ndim - 2))
        return block(whole, 0, n, n, 2 * n)

    def samples(self) -> Iterable[Sample]:
        for shape, note in (((3, 3), ""), ((2, 3, 3), "batched"), ((1, 1), "1 by 1"),
                            ((0, 0), "empty"), ((0, 2, 2), "empty batch")):  # fmt: skip
            yield Sample((uniform(shape),), note=note)
        yield Sample((10 * uniform((4, 4)),), note="large")
        yield Sample((np.zeros((2, 2)),), note="zero")


qr, qr_r, geqrf = QR(), QRFactor(), Geqrf()
svd, svdvals, pseudoinverse = SVD(), Singular(), Pseudoinverse()
eigh, eigvalsh, eig = Eigh(), Eigvalsh(), Eig()
matrix_exp = MatrixExp()
