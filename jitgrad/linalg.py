"""jitgrad.linalg: functions of torch.linalg (docs/limits.md names those that are not there)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.functions import decompositions, matrix_norms, solvers
from jitgrad.functions.args import numpy_names
from jitgrad.functions.linalg import matmul
from jitgrad.functions.reduce import vector_norm
from jitgrad.missing import missing
from jitgrad.public import with_out
from jitgrad.runtime.arguments import located
from jitgrad.runtime.errors import LinAlgError

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    decompositions.cholesky, decompositions.cholesky_ex, decompositions.eig,
    decompositions.eigh, decompositions.eigvals, decompositions.eigvalsh,
    decompositions.householder_product, decompositions.lu, decompositions.lu_factor,
    decompositions.lu_factor_ex, decompositions.matrix_exp, decompositions.qr,
    decompositions.svd, decompositions.svdvals, matmul, matrix_norms.cond, matrix_norms.cross,
    matrix_norms.matrix_norm, matrix_norms.norm, matrix_norms.vecdot, solvers.det, solvers.inv,
    solvers.inv_ex, solvers.lstsq, solvers.lu_solve, solvers.matrix_power, solvers.matrix_rank,
    solvers.multi_dot, solvers.pinv, solvers.slogdet, solvers.solve, solvers.solve_ex,
    solvers.solve_triangular, solvers.tensorinv, solvers.tensorsolve, vector_norm,
)  # fmt: skip

_ALL: dict[str, Any] = {
    **{function.__name__: with_out(numpy_names(function)) for function in _FUNCTIONS},
    "diagonal": located(matrix_norms.diagonal),
    "vander": located(matrix_norms.vander),
    "LinAlgError": LinAlgError,
}
globals().update(_ALL)
__all__ = sorted(_ALL)


__getattr__ = missing(__name__)
