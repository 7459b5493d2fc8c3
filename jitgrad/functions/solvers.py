"""Systems of equations, inverses, determinants and powers of matrices: torch.linalg's.

Matrices are the last two dims, batches broadcast. LinAlgError for singular systems.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import prod as dims_product
from jitgrad.compiler.types import broadcast_shapes
from jitgrad.creation import empty
from jitgrad.dispatch import apply
from jitgrad.functions.complex_numbers import conj
from jitgrad.functions.decompositions import (
    factored,
    identity,
    matrix,
    qr,
    svdvals,
    zero_pivot,
)
from jitgrad.functions.elementwise import where
from jitgrad.functions.linalg import mm
from jitgrad.info import finfo
from jitgrad.promotion import cast, constant
from jitgrad.return_types import prints_as
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


@prints_as("linalg_slogdet")
class Slogdet(NamedTuple):
    """What slogdet returns."""

    sign: Tensor
    logabsdet: Tensor


@prints_as("linalg_inv_ex")
class InvEx(NamedTuple):
    """What inv_ex returns."""

    inverse: Tensor
    info: Tensor


@prints_as("linalg_solve_ex")
class SolveEx(NamedTuple):
    """What solve_ex returns."""

    result: Tensor
    info: Tensor


@prints_as("triangular_solve")
class TriangularSolve(NamedTuple):
    """What triangular_solve returns."""

    solution: Tensor
    cloned_coefficient: Tensor


@prints_as("linalg_lstsq")
class LeastSquares(NamedTuple):
    """What lstsq returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


# -- determinants ----------------------------------------------------------------------------------
def det(A: Tensor) -> Tensor:
    """The determinant, (...)."""
    return apply(OPS["det"], (matrix("linalg.det", A, True),), {})


def slogdet(A: Tensor) -> Slogdet:
    """(sign, log |det|): 0 and -inf for a singular matrix."""
    return Slogdet(*apply(OPS["slogdet"], (matrix("linalg.slogdet", A, True),), {}))


def logdet(input: Tensor) -> Tensor:
    """log det: NaN where the determinant is negative."""
    sign, size = slogdet(matrix("logdet", input, True))
    if input.dtype.is_complex:
        return sign.log() + size
    return where(sign.detach() < 0, float("nan"), size)


# -- systems ---------------------------------------------------------------------------------------
def _spread(x: Tensor, batch: Sequence[Any]) -> Tensor:
    shape = (*batch, *x._type.shape[-2:])
    return x if tuple(x._type.shape) == shape else x.expand(shape)


def _batched(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the batch that theirs broadcast to."""
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type {a._type} and B "
            f"of type {b._type} instead; convert one with .to(dtype)"
        )
    try:
        batch = broadcast_shapes(a._type.shape[:-2], b._type.shape[:-2])
    except ValueError as error:
        raise RuntimeError(
            f"{name}: expected batch dims that broadcast; got {a._type} and {b._type} ({error})"
        ) from None
    return _spread(a, batch), _spread(b, batch)


def _expect_rows(name: str, a: Tensor, b: Tensor, left: bool) -> None:
    k = -2 if left else -1
    if a._type.shape[-1] != b._type.shape[k]:
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation "
            f"{'AX = B' if left else 'XA = B'} ({a._type} and {b._type})"
        )


def _as_columns(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, bool]:
    """b as a matrix, and whether it was a batch of vectors (PyTorch's rule)."""
    vector = b.ndim == 1 or (
        a.ndim - 1 == b.ndim and tuple(b._type.shape) == tuple(a._type.shape[:-1])
    )
    if b.ndim == 0:
        raise RuntimeError(f"{name}: expected B of at least one dim; got {b._type}")
    return (b.unsqueeze(-1) if vector else b), vector


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A X = B (X A = B unless left), A square. B may be vectors (...,) of A's batch.

    Raises LinAlgError for a singular A.
    """
    name = "linalg.solve"
    a = matrix(name, A, True)
    b, vector = _as_columns(name, a, B)
    if vector and not left:
        raise RuntimeError(
            f"{name}: Vector broadcasting of the left hand side is not supported for left=False. "
            "In this case linalg.solve is equivalent to B / A.squeeze(-1)"
        )
    _expect_rows(name, a, b, left)
    a, b = _batched(name, a, b)
    if left:
        x = apply(OPS["solve"], (a, b), {})
        return x.squeeze(-1) if vector else x
    return apply(OPS["solve"], (a.mT, b.mT), {}).mT


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> SolveEx:
    """(X, info); info is not 0 for a singular A, and X then is not finite."""
    a = matrix("linalg.solve_ex", A, True)
    packed, pivots = apply(OPS["lu"], (a,), {})
    info = zero_pivot(packed)
    if check_errors:
        return SolveEx(solve(A, B, left=left), info)
    b, vector = _as_columns("linalg.solve_ex", a, B)
    x = lu_solve(packed, pivots, b, left=left)
    return SolveEx(x.squeeze(-1) if vector else x, info)


def solve_triangular(
    input: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """X with A X = B (X A = B unless left), of one triangle of A; its diagonal is taken as ones
    when unitriangular. A zero on the diagonal gives infinities."""
    name = "linalg.solve_triangular"
    a, b = matrix(name, input, True), matrix(name, B)
    _expect_rows(name, a, b, left)
    a, b = _batched(name, a, b)
    attrs = {"upper": bool(upper), "transpose": not left, "unit": bool(unitriangular)}
    if left:
        return apply(OPS["solve_triangular"], (a, b), attrs)
    return apply(OPS["solve_triangular"], (a, b.mT), attrs).mT


def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False,
    unitriangular: bool = False,
) -> TriangularSolve:  # fmt: skip
    """(X, a copy of A) with A X = input, or A^T X = input."""
    a, b = _batched("triangular_solve", matrix("triangular_solve", A, True), input)
    _expect_rows("triangular_solve", a, b, True)
    attrs = {"upper": bool(upper), "transpose": bool(transpose), "unit": bool(unitriangular)}
    return TriangularSolve(apply(OPS["solve_triangular"], (a, b), attrs), a.clone())


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """X with A X = B (X A = B unless left; A^H when adjoint), from lu_factor(A)."""
    name = "linalg.lu_solve"
    packed = matrix(name, LU, True)
    if pivots.dtype is not dtypes.int32:
        raise RuntimeError(f"{name}: pivots should be a Tensor of scalar type torch.int32; got "
                           f"{pivots._type}")  # fmt: skip
    if tuple(pivots._type.shape) != tuple(packed._type.shape[:-1]):
        raise RuntimeError(
            f"{name}: Expected LU.shape[:-1] and pivots.shape to be the same; got LU {LU._type} "
            f"and pivots {pivots._type}"
        )
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    b = matrix(name, B)
    _expect_rows(name, packed, b, True)
    packed, b = _batched(name, packed, b)
    attrs = {"size": int(packed._type.shape[-1]), "inverse": bool(adjoint)}
    order = apply(OPS["permutation"], (pivots,), attrs)

    def rows(x: Tensor) -> Tensor:
        return x.gather(-2, order.unsqueeze(-1).expand(x._type.shape))

    solve_with = OPS["solve_triangular"]
    if adjoint:
        across = conj(packed)
        y = apply(solve_with, (across, b), {"upper": True, "transpose": True, "unit": False})
        return rows(
            apply(solve_with, (across, y), {"upper": False, "transpose": True, "unit": True})
        )
    y = apply(solve_with, (packed, rows(b)), {"upper": False, "transpose": False, "unit": True})
    return apply(solve_with, (packed, y), {"upper": True, "transpose": False, "unit": False})


def lu_solve_old(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """linalg.lu_solve, the right hand sides first."""
    return lu_solve(LU_data, LU_pivots, b)


lu_solve_old.__name__ = lu_solve_old.__qualname__ = "lu_solve"


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A X = B, from the Cholesky factor L of A (upper: L^H)."""
    low = matrix("cholesky_solve", L, True)
    low = low.mH if upper else low
    y = solve_triangular(low, matrix("cholesky_solve", B), upper=False)
    return solve_triangular(low.mH, y, upper=True)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """A^-1 from the Cholesky factor L of A (upper: L^H)."""
    a = matrix("cholesky_inverse", L, True)
    return cholesky_solve(identity(a, a._type.shape[-1]), a, upper)


# -- inverses --------------------------------------------------------------------------------------
def inv(A: Tensor) -> Tensor:
    """A^-1. Raises LinAlgError for a singular A."""
    return apply(OPS["inverse"], (matrix("linalg.inv", A, True),), {})


def inv_ex(A: Tensor, *, check_errors: bool = False) -> InvEx:
    """(A^-1, info); info is not 0 for a singular A, and the inverse then is not finite."""
    a = matrix("linalg.inv_ex", A, True)
    return InvEx(*solve_ex(a, identity(a, a._type.shape[-1]), check_errors=check_errors))


def _tolerances(
    a: Tensor, largest: Tensor, atol: Any, rtol: Any
) -> Tensor:  # fmt: skip
    """max(atol, rtol * largest); rtol is max(m, n) * eps where neither is given."""
    eps = finfo(largest.dtype).eps
    default = eps * max(int(d) for d in a._type.shape[-2:])
    if rtol is None:
        if atol is None:
            rtol = default
        elif isinstance(atol, Tensor):
            rtol = where(atol > 0, 0.0, default)
        else:
            rtol = 0.0 if atol > 0 else default
    scaled = cast(largest * rtol, largest.dtype)
    if atol is None:
        return scaled
    if isinstance(atol, float) and atol != atol:
        return scaled.fill_(atol)
    return scaled.maximum(atol) if isinstance(atol, Tensor) else scaled.clamp_min(atol)


def _values(a: Tensor, hermitian: bool) -> Tensor:
    if hermitian:
        return apply(OPS["eigvalsh"], (a,), {"upper": False}).abs()
    return svdvals(a)


def pinv(
    input: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None,
    rtol: Any = None,
) -> Tensor:  # fmt: skip
    """The Moore-Penrose inverse (..., n, m): singular values up to max(atol, rtol * largest)
    count as zero (rtol is max(m, n) * eps where neither is given)."""
    a = matrix("linalg.pinv", input, hermitian)
    if rcond is not None:
        rtol = rcond
    rank = matrix_rank(a, atol=atol, rtol=rtol, hermitian=hermitian)
    return apply(OPS["pseudoinverse"], (a, rank), {"hermitian": bool(hermitian)})


def pinverse(input: Tensor, rcond: Any = 1e-15) -> Tensor:
    """linalg.pinv with an rtol of 1e-15."""
    return pinv(input, rtol=rcond)


def _last(*tolerances: Any) -> tuple[Any, ...]:
    """Tolerances of a batch, to be compared with singular values in a last dim."""
    return tuple(t.unsqueeze(-1) if isinstance(t, Tensor) else t for t in tolerances)


def matrix_rank(
    input: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None
) -> Tensor:
    """How many singular values exceed max(atol, rtol * largest); int64. tol is an atol alone."""
    a = matrix("linalg.matrix_rank", input, hermitian)
    if tol is not None:
        atol, rtol = tol, 0.0
    if 0 in a._type.shape[-2:]:
        return a.new_zeros(a._type.shape[:-2], dtype=dtypes.int64)
    s = _values(a.detach(), hermitian)
    limit = _tolerances(a, s.amax(-1, keepdim=True), *_last(atol, rtol))
    return (s > limit).sum(-1)


# -- least squares ---------------------------------------------------------------------------------
def lstsq(
    input: Tensor, b: Tensor, rcond: Any = None, *, driver: str | None = None
) -> LeastSquares:
    """X that makes the norm of A X - B smallest; of all of these, the one of the smallest norm.

    driver "gelsy" (default; rank by rcond), "gels" (A of full rank), "gelsd" and "gelss" (also give
    the singular values). residuals: squared norms (..., k), where m > n and A is of full rank, else
    empty; none with "gelsy". To know that, "gelsd" and "gelss" read the rank, which ends a trace.
    """
    name = "torch.linalg.lstsq"
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss); got {driver}"
        )
    a = matrix(name, input)
    if b.ndim < 1:
        raise RuntimeError(f"{name}: input `other` must have at least 1 dimension; got {b._type}")
    if not 0 <= a.ndim - b.ndim <= 1:
        raise RuntimeError(
            f"{name}: input.dim() must be greater or equal to other.dim() and (input.dim() - "
            f"other.dim()) <= 1; got {a._type} and {b._type}"
        )
    b, vector = _as_columns(name, a, b)
    if a._type.shape[-2] != b._type.shape[-2]:
        raise RuntimeError(
            f"{name}: input.size(-2) should match other.size(-2); got {a._type} and {b._type}"
        )
    a, b = _batched(name, a, b)
    m, n = a._type.shape[-2:]
    full = driver == "gels"
    eps = finfo(a.dtype).eps
    rcond = eps * max(int(m), int(n)) if rcond is None else rcond
    x = _full_rank(a, b) if full else pinv(a, rtol=rcond) @ b
    rank = empty(0, dtype=dtypes.int64) if full else matrix_rank(a, rtol=rcond)
    none = empty(0, dtype=a.dtype.to_real())
    residuals = none
    if m > n and (full or driver in ("gelsd", "gelss") and bool((rank == n).all())):
        delta = (a @ x - b).abs()
        residuals = (delta * delta).sum(-2)
        if vector:
            residuals = residuals.squeeze(-1)
    values = svdvals(a.detach()) if driver in ("gelsd", "gelss") else none
    return LeastSquares(x.squeeze(-1) if vector else x, residuals, rank, values)


def _full_rank(a: Tensor, b: Tensor) -> Tensor:
    if a._type.shape[-2] >= a._type.shape[-1]:
        q, r = qr(a)
        return solve_triangular(r, q.mH @ b, upper=True)
    q, r = qr(a.mH)
    return q @ solve_triangular(r.mH, b, upper=False)


# -- powers and products ---------------------------------------------------------------------------
def matrix_power(input: Tensor, n: int) -> Tensor:
    """A^n by repeated squaring; the inverse's powers for n < 0."""
    if (
        not isinstance(input, Tensor)
        or input.ndim < 2
        or input._type.shape[-1] != input._type.shape[-2]
    ):
        shape = getattr(input, "_type", type(input).__name__)
        raise RuntimeError(
            f"linalg.matrix_power: A must be batches of square matrices; got {shape}"
        )
    if n < 0:
        return matrix_power(inv(input), -n)
    if n == 0:
        none = constant(False, dtypes.bool_)  # so that it is on the tape, with zeros for A
        return where(none, input, identity(input, input._type.shape[-1]))
    out, square = None, input
    while n:
        if n & 1:
            out = square if out is None else out @ square
        n >>= 1
        square = square @ square if n else square
    return out.clone() if out is input else out  # type: ignore[return-value]


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of matrices, in the order of fewest multiplications; the first and the last may
    be vectors (a row and a column)."""
    count = len(tensors)
    if count < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {count}")
    parts = list(tensors)
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    if row:
        parts[0] = parts[0].unsqueeze(0)
    if column:
        parts[-1] = parts[-1].unsqueeze(-1)
    for k, x in enumerate(parts):
        if x.ndim != 2:
            raise RuntimeError(
                f"multi_dot(): tensor {k} must be 2D (the first and last may be 1D) but got "
                f"{tensors[k]._type}"
            )
        if x.dtype is not parts[0].dtype:
            raise RuntimeError(
                "multi_dot(): all tensors must have be the same dtype but got "
                f"{[str(t._type) for t in tensors]}"
            )
    for x, y in itertools.pairwise(parts):
        if x._type.shape[1] != y._type.shape[0]:
            raise RuntimeError(f"multi_dot(): cannot multiply {x._type} and {y._type}; the last "
                               "dim of each must be the first of the next")  # fmt: skip
    out = _chain(parts, _order([int(parts[0]._type.shape[0])] +
                               [int(x._type.shape[1]) for x in parts]), 0, count - 1)  # fmt: skip
    if row:
        out = out.squeeze(0)
    return out.squeeze(-1) if column else out


def _order(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Where to split each product i..j of matrices sizes[i] by sizes[i + 1].

    Source: Cormen, Leiserson, Rivest, Stein, "Introduction to Algorithms", 15.2.
    """
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            best = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
            cost[i, j], split[i, j] = best
    return split


def _chain(parts: list[Tensor], split: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return parts[i]
    k = split[i, j]
    return mm(_chain(parts, split, i, k), _chain(parts, split, k + 1, j))


# -- tensors as matrices ---------------------------------------------------------------------------
def tensorinv(input: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A taken as a matrix of its first `ind` dims by the others."""
    if ind <= 0:
        raise RuntimeError(f"Expected a strictly positive integer for 'ind', got {ind}")
    factored("linalg.tensorinv", input)
    if ind > input.ndim:
        raise RuntimeError(f"[linalg.tensorinv] expected at least {ind} dims; got {input._type}")
    shape = input._type.shape
    rows, columns = dims_product(shape[:ind]), dims_product(shape[ind:])
    if rows != columns:
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[ind:]) == "
            f"prod(self.shape[:ind]), but got {columns} != {rows}; of {input._type}"
        )
    return inv(input.reshape(rows, columns)).reshape((*shape[ind:], *shape[:ind]))


def tensorsolve(input: Tensor, other: Tensor, dims: Any = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; the dims named are moved to A's end first."""
    factored("linalg.tensorsolve", input)
    if dims is not None:
        input = input.movedim(list(dims), list(range(input.ndim - len(dims), input.ndim)))
    shape = input._type.shape[other.ndim :]
    size = dims_product(shape)
    if dims_product(input._type.shape[: other.ndim]) != size:
        raise RuntimeError(
            "Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == "
            f"prod(self.shape[:other.ndim]); got A {input._type} and B {other._type}"
        )
    return solve(input.reshape(size, size), other.reshape(-1)).reshape(tuple(shape))
