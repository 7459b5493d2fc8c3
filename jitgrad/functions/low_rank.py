"""Some singular values or eigenvalues of a matrix: svd_lowrank, pca_lowrank, lobpcg."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import randn
from jitgrad.functions.args import expect_dtype
from jitgrad.functions.decompositions import cholesky, eigh, qr, svd
from jitgrad.functions.solvers import solve_triangular
from jitgrad.tensor import Tensor


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) with A - M close to U diag(S) V^H, of rank q: A (*, m, n) -> U (*, m, q), S (*, q),
    V (*, n, q). By a random basis of the range, refined niter times.

    Raises ValueError for a negative niter and a q that is not from 0 to min(m, n). Source: Halko,
    Martinsson and Tropp, "Finding structure with randomness" (2011), algorithm 4.4.
    """
    if M is not None:
        expect_dtype("svd_lowrank", A.dtype, M=M)
        A = A - M.broadcast_to(A.shape)
    rows, columns = A.shape[-2:]
    q = 6 if q is None else q
    steps = 2 if niter is None else niter
    if not 0 <= q <= min(rows, columns):
        raise ValueError(
            f"q(={q}) must be non-negative integer and not greater than min(m, n)="
            f"{min(rows, columns)}; got A of shape {tuple(A.shape)}"
        )
    if steps < 0:
        raise ValueError(f"niter(={steps}) must be non-negative integer")
    turned = rows < columns
    A = A.mH if turned else A
    basis = qr(A @ randn(A.shape[-1], q, dtype=A.dtype)).Q
    for _ in range(steps):
        basis = qr(A @ qr(A.mH @ basis).Q).Q
    U, S, Vh = svd(basis.mH @ A, full_matrices=False)
    U, V = basis @ U, Vh.mH
    return (V, S, U) if turned else (U, S, V)


def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """svd_lowrank of A (*, samples, features), less the mean of each feature if `center`; q is at
    most 6 by default. Raises ValueError as svd_lowrank does."""
    q = min(6, *A.shape[-2:]) if q is None else q
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter)


def lobpcg(
    A: Tensor, k: int | None = None, B: Tensor | None = None, X: Tensor | None = None,
    n: int | None = None, iK: Tensor | None = None, niter: int | None = None,
    tol: float | None = None, largest: bool | None = None, method: str | None = None,
    tracker: Any = None, ortho_iparams: Any = None, ortho_fparams: Any = None,
    ortho_bparams: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k largest (or smallest) eigenvalues (*, k), and their vectors (*, m, k), of A x = B x s
    with symmetric A and positive definite B (*, m, m).

    All eigenvalues are computed, and the first k kept: what steers PyTorch's iteration is accepted
    and changes nothing. Raises ValueError where there are fewer than 3 k rows.
    """
    if tracker is not None:
        raise NotImplementedError("[lobpcg] expected no tracker: there is no iteration to follow")
    count = k if k is not None else (1 if X is None else X.shape[-1])
    rows = A.shape[-1]
    if A.shape[-2] != rows:
        raise RuntimeError(f"[lobpcg] expected square matrices; got {tuple(A.shape)}")
    if rows < 3 * count:
        raise ValueError(
            f"LPBPCG algorithm is not applicable when the number of A rows (={rows}) is smaller "
            f"than 3 x the number of requested eigenpairs (={count})"
        )
    if B is None:
        values, vectors = eigh(A)
    else:
        factor = cholesky(B)
        half = solve_triangular(factor, A, upper=False)
        values, vectors = eigh(solve_triangular(factor, half.mH, upper=False))
        vectors = solve_triangular(factor.mH, vectors, upper=True)
    if largest is None or largest:
        values, vectors = values.flip(-1), vectors.flip(-1)
    return values[..., :count], vectors[..., :count]
