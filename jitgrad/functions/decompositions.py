"""Decompositions of matrices and what follows from them: torch.linalg's, and the old names.

Matrices are the last two dims; all leading dims are a batch. float32, float64, complex64 and
complex128; RuntimeError for other dtypes and for fewer than two dims. The records are in
compiler/ops/factor.py, solving.py and spectral.py; what is here is composed of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jitgrad.compiler.ops.record import OPS
from jitgrad.creation import empty, eye
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_one_device, expect_range, positions
from jitgrad.functions.complex_numbers import conj
from jitgrad.functions.shape import separate
from jitgrad.promotion import cast
from jitgrad.return_types import prints_as
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category
from jitgrad.tape.lasting import lasting
from jitgrad.tensor import Tensor


@prints_as("linalg_qr")
class QR(NamedTuple):
    """What qr returns."""

    Q: Tensor
    R: Tensor


@prints_as("linalg_svd")
class SVD(NamedTuple):
    """What linalg.svd returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


@prints_as("svd")
class SVDV(NamedTuple):
    """What torch.svd returns: V, not its adjoint."""

    U: Tensor
    S: Tensor
    V: Tensor


@prints_as("linalg_eigh")
class Eigh(NamedTuple):
    """What eigh returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@prints_as("linalg_eig")
class Eig(NamedTuple):
    """What eig returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


@prints_as("linalg_lu")
class LU(NamedTuple):
    """What linalg.lu returns."""

    P: Tensor
    L: Tensor
    U: Tensor


@prints_as("linalg_lu_factor")
class LUFactor(NamedTuple):
    """What lu_factor returns."""

    LU: Tensor
    pivots: Tensor


@prints_as("linalg_lu_factor_ex")
class LUFactorEx(NamedTuple):
    """What lu_factor_ex returns."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


@prints_as("linalg_cholesky_ex")
class CholeskyEx(NamedTuple):
    """What cholesky_ex returns."""

    L: Tensor
    info: Tensor


@prints_as("geqrf")
class Geqrf(NamedTuple):
    """What geqrf returns."""

    a: Tensor
    tau: Tensor


def matrix(name: str, x: Any, square: bool = False) -> Tensor:
    """x. Raises unless it is a tensor of matrices (square ones) of a dtype that is factored."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(x).__name__}")
    if x.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor A must have at least 2 dimensions; got {x._type}"
        )
    factored(name, x)
    if square and x._type.shape[-1] != x._type.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {x._type.shape[-2]} by "
            f"{x._type.shape[-1]} matrices; got {x._type}"
        )
    return x


def factored(name: str, x: Tensor) -> None:
    """Raises NotImplementedError for a dtype that matrices are not factored in."""
    if x.dtype.category < Category.FLOAT:
        raise NotImplementedError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x._type}; convert "
            "it first, e.g. with .double()"
        )
    if x.dtype.itemsize == 2:
        raise NotImplementedError(
            f"{name}: Low precision dtypes not supported. Got {x._type}; convert it first, e.g. "
            "with .float()"
        )


def identity(x: Tensor, n: Any) -> Tensor:
    """The identity (n, n), of x's dtype, expanded to x's batch."""
    return eye(n, dtype=x.dtype, device=x.device).expand(*x._type.shape[:-2], n, n)


# -- Cholesky --------------------------------------------------------------------------------------
def cholesky(input: Tensor, *, upper: bool = False) -> Tensor:
    """L, lower triangular, with A = L L^H (upper: L^H), A (..., n, n) Hermitian positive definite.

    Reads one triangle of A. Raises LinAlgError where A is not positive definite.
    """
    a = matrix("linalg.cholesky", input, True)
    low = apply(OPS["cholesky"], (a.mH if upper else a,), {})
    return low.mH if upper else low


def cholesky_ex(input: Tensor, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx:
    """(L, info); info (int32) is 0, or the order of the first minor that is not positive definite.

    With check_errors, raises LinAlgError as cholesky does.
    """
    a = matrix("linalg.cholesky_ex", input, True)
    if check_errors:
        low = cholesky(a)
        info: Tensor = apply(OPS["cholesky_ex"], (a.detach(),), {})[1]
    else:
        low, info = apply(OPS["cholesky_ex"], (a.mH if upper else a,), {})
    return CholeskyEx(low.mH if upper else low, info)


def cholesky_old(input: Tensor, upper: bool = False) -> Tensor:
    """linalg.cholesky, upper as a positional argument."""
    return cholesky(input, upper=upper)


# -- QR --------------------------------------------------------------------------------------------
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """A = Q R: Q (..., m, k) of orthonormal columns, R (..., k, n) upper triangular, k = min(m, n).

    mode "complete": k = m; "r": Q is empty, and R has no derivative.
    """
    a = matrix("linalg.qr", A)
    if mode == "r":
        return QR(empty(0, dtype=a.dtype, device=a.device), apply(OPS["qr_r"], (a,), {}))
    if mode not in ("reduced", "complete"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', "
            "or 'complete'"
        )
    return QR(*apply(OPS["qr"], (a,), {"complete": mode == "complete"}))


def qr_old(input: Tensor, some: bool = True) -> QR:
    """linalg.qr in mode "reduced" (some) or "complete"."""
    return qr(input, "reduced" if some else "complete")


def geqrf(input: Tensor) -> Geqrf:
    """(a, tau): R on and above the diagonal, below it the reflectors of householder_product."""
    return Geqrf(*apply(OPS["geqrf"], (matrix("geqrf", input),), {}))


def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first n columns of H_1 H_2 ... H_k, H_i = I - tau_i v_i v_i^H, of reflectors (..., m, n).

    v_i has 1 at i, zeros above and input[..., i + 1:, i] below; tau is (..., k), k <= n <= m.
    """
    a = matrix("linalg.householder_product", input)
    m, n = a._type.shape[-2:]
    if m < n:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to "
            f"input.shape[-1]; got {a._type}"
        )
    if tau.ndim != a.ndim - 1 or tau._type.shape[:-1] != a._type.shape[:-2]:
        raise RuntimeError(
            "torch.linalg.householder_product: Expected tau to have one dim less than input, of "
            f"the same batch; got input {a._type} and tau {tau._type}"
        )
    if tau._type.shape[-1] > n:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to "
            f"tau.shape[-1]; got input {a._type} and tau {tau._type}"
        )
    _same_dtype("torch.linalg.householder_product", input=a, tau=tau)
    one = eye(*a.shape[-2:], dtype=a.dtype, device=a.device)
    out = one.expand(*a._type.shape[:-2], m, n)
    return _reflect(a, tau, out, list(range(int(tau._type.shape[-1])))[::-1], False).clone()


def _reflect(a: Tensor, tau: Tensor, x: Tensor, order: list[int], adjoint: bool) -> Tensor:
    """H_i x for i in the order given (H_i^H when adjoint)."""
    v = a.tril(-1) + eye(*a.shape[-2:], dtype=a.dtype, device=a.device)
    for i in order:
        column = v.narrow(-1, i, 1)
        scale = tau.narrow(-1, i, 1).unsqueeze(-1)
        if adjoint:
            scale = conj(scale)
        x = x - scale * (column @ (column.mH @ x))
    return x


def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """Q other, or other Q (left False), Q the product of all reflectors (Q^H when transpose)."""
    a = matrix("ormqr", input)
    if not left:
        return ormqr(input, tau, other.mH, True, not transpose).mH
    if a._type.shape[-2] != other._type.shape[-2]:
        raise RuntimeError(
            f"torch.ormqr: other.shape[-2] must be equal to input.shape[-2]; got {a._type} and "
            f"{other._type}"
        )
    if tau.ndim != a.ndim - 1 or tau._type.shape[:-1] != a._type.shape[:-2]:
        raise RuntimeError(
            "torch.ormqr: Expected tau to have one dimension less than input, of the same batch; "
            f"got input {a._type} and tau {tau._type}"
        )
    if other.ndim != a.ndim or other._type.shape[:-2] != a._type.shape[:-2]:
        raise RuntimeError(
            "torch.ormqr: Expected other to have the same number of dimensions and batch as input; "
            f"got {a._type} and {other._type}"
        )
    if tau._type.shape[-1] != min(a._type.shape[-2:]):
        raise RuntimeError(
            "torch.ormqr: tau.shape[-1] must be equal to min(other.shape[-2], input.shape[-1]); "
            f"got tau {tau._type} and input {a._type}"
        )
    _same_dtype("torch.ormqr", input=a, tau=tau, other=other)
    order = list(range(int(tau._type.shape[-1])))
    made = _reflect(a, tau, other, order if transpose else order[::-1], transpose)
    return separate(made, other)


def _same_dtype(name: str, **operands: Tensor) -> None:
    if len({x.dtype for x in operands.values()}) > 1:
        types = ", ".join(f"{k} {x._type}" for k, x in operands.items())
        raise RuntimeError(f"{name}: expected operands of the same dtype; got {types}")


# -- singular values and eigenvalues ---------------------------------------------------------------
_DRIVERS = "linalg.svd: keyword argument `driver=` is only supported on CUDA inputs"


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A = U diag(S) Vh, S real and falling. full_matrices: U (..., m, m) and Vh (..., n, n), else
    (..., m, k) and (..., k, n), k = min(m, n)."""
    if driver is not None:
        raise RuntimeError(_DRIVERS)
    a = matrix("linalg.svd", A)
    return SVD(*apply(OPS["svd"], (a,), {"full": bool(full_matrices)}))


def svd_old(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVDV:
    """(U, S, V) with A = U diag(S) V^H. Without compute_uv, U and V are zeros."""
    if compute_uv:
        u, s, vh = svd(input, not some)
        return SVDV(u, s, vh.mH)
    a = matrix("svd", input)
    m, n = a._type.shape[-2:]
    zeros = [a.new_zeros((*a._type.shape[:-2], k, k)) for k in (m, n)]
    return SVDV(zeros[0], svdvals(a), zeros[1])


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values, real and falling, (..., min(m, n))."""
    if driver is not None:
        raise RuntimeError(_DRIVERS)
    return apply(OPS["svdvals"], (matrix("linalg.svdvals", A),), {})


def _upper(UPLO: str) -> dict[str, bool]:
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return {"upper": UPLO.upper() == "U"}


def eigh(input: Tensor, UPLO: str = "L") -> Eigh:
    """A = V diag(L) V^H of Hermitian A, of which one triangle is read; L real and rising."""
    a = matrix("linalg.eigh", input, True)
    return Eigh(*apply(OPS["eigh"], (a,), _upper(UPLO)))


def eigvalsh(input: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of Hermitian A, real and rising."""
    a = matrix("linalg.eigvalsh", input, True)
    return apply(OPS["eigvalsh"], (a,), _upper(UPLO))


def eig(input: Tensor) -> Eig:
    """A V = V diag(L): complex eigenvalues, and eigenvectors of length 1 in columns."""
    return Eig(*apply(OPS["eig"], (matrix("linalg.eig", input, True),), {}))


def eigvals(input: Tensor) -> Tensor:
    """The eigenvalues of A, complex."""
    return apply(OPS["eig"], (matrix("linalg.eigvals", input, True),), {})[0]


# -- LU --------------------------------------------------------------------------------------------
def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """(LU, pivots): L (unit diagonal, not stored) and U of A = P L U in one matrix; the rows
    exchanged, from 1. Raises RuntimeError for a zero on the diagonal of U."""
    packed, pivots, info = lu_factor_ex(A, pivot=pivot)
    text = (
        "torch.linalg.lu_factor: U[{value},{value}] is zero, and using it on lu_solve would result "
        "in a division by zero; use linalg.lu or linalg.lu_factor_ex to have the factors"
    )
    expect_range(info, None, 0, RuntimeError, text)
    return LUFactor(packed, pivots)


def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUFactorEx:
    """lu_factor, and info: 0, or the number of the first zero on the diagonal of U."""
    a = matrix("torch.lu_factor_ex", A)
    if not pivot:
        raise RuntimeError(
            "linalg.lu_factor: LU without pivoting is not implemented on the CPU; use pivot=True"
        )
    packed, pivots = apply(OPS["lu"], (a,), {})
    return LUFactorEx(packed, pivots, zero_pivot(packed))


def zero_pivot(packed: Tensor) -> Tensor:
    """The number, from 1, of the first zero on the diagonal of U; 0 where there is none. int32."""
    zero = packed.detach().diagonal(0, -2, -1) == 0
    if not zero._type.shape[-1]:
        return zero.new_zeros(zero._type.shape[:-1], dtype=dtypes.int32)
    first = cast(zero, dtypes.uint8).argmax(-1) + 1
    return cast(first * zero.any(-1), dtypes.int32)


def unpack(packed: Tensor) -> tuple[Tensor, Tensor]:
    """L (unit lower triangular) and U of a packed LU."""
    m, n = packed.shape[-2:]
    k = min(m, n)
    low = packed.narrow(-1, 0, k).tril(-1)
    low = low + eye(m, k, dtype=packed.dtype, device=packed.device)
    return low, packed.narrow(-2, 0, k).triu()


def permutation(pivots: Tensor, size: Any, dtype: Any) -> Tensor:
    """P (..., size, size) with A = P L U."""
    attrs = {"size": int(size), "inverse": True}
    order = apply(OPS["permutation"], (cast(pivots, dtypes.int32),), attrs)
    return cast(order.unsqueeze(-1) == positions(size, order), dtype)


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """A = P L U: P a permutation, L unit lower triangular, U upper triangular."""
    packed, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return LU(permutation(pivots, A._type.shape[-2], A.dtype), *unpack(packed))


def lu_old(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """(LU, pivots) as lu_factor gives them, and info when get_infos."""
    found = lu_factor_ex(A, pivot=pivot)
    return found if get_infos else LUFactor(*found[:2])


@lasting
def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> LU:
    """P, L and U from what lu_factor gives; empty tensors for what is not asked for."""
    if LU_pivots.dtype is not dtypes.int32:
        raise RuntimeError(
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 "
            f"dtype, as linalg.lu_factor gives it; got {LU_pivots._type}"
        )
    expect_one_device("lu_unpack", LU_data, LU_pivots)
    none = empty(0, dtype=LU_data.dtype)
    low, up = unpack(LU_data) if unpack_data else (none, none)
    if not unpack_pivots:
        return LU(none, low, up)
    batch, count = LU_data._type.shape[:-2], LU_pivots._type.shape[-1]
    pivots = LU_pivots.expand((*batch, count)) if LU_pivots.ndim <= len(batch) else LU_pivots
    return LU(permutation(pivots, LU_data._type.shape[-2], LU_data.dtype), low, up)


def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices."""
    if input.dtype in (dtypes.float16, dtypes.bfloat16):
        return cast(matrix_exp(cast(input, dtypes.float32)), input.dtype)
    return apply(OPS["matrix_exp"], (matrix("linalg.matrix_exp", input, True),), {})
