"""Transforms that make matrices: Cholesky factors, positive definite and correlation matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad import linalg
from jitgrad.creation import eye, from_numpy
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import softplus
from jitgrad.distributions.transforms import Transform
from jitgrad.functions.shape import pad_constant
from jitgrad.info import finfo
from jitgrad.tensor import Tensor


class LowerCholeskyTransform(Transform):
    """Square matrices to lower triangular ones with a positive diagonal: exp of the diagonal, what
    is below it as it is. log_abs_det_jacobian is not defined, as what is above is lost."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """Square matrices to positive definite ones: L L^T with L the lower Cholesky transform."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        factor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform()._inverse(linalg.cholesky(y))


class CorrCholeskyTransform(Transform):
    """Vectors (..., n (n - 1) / 2) to lower Cholesky factors (..., n, n) of correlation matrices.

    r = tanh(x) fills a strictly lower triangle, row by row; each r takes its share of what its row
    has left: y_ij = r_ij prod_{k < j} sqrt(1 - r_ik^2), and the diagonal takes the rest.

    Source: Lewandowski, Kurowicka and Joe, Generating random correlation matrices based on vines
    and extended onion method (2009); the Stan reference manual, on correlation matrices.
    """

    domain: constraints.Constraint = constraints.real_vector
    codomain: constraints.Constraint = constraints.corr_cholesky

    def forward_shape(self, shape: Any) -> Any:
        n = _side(shape[-1])
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Any) -> Any:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(
                f"[CorrCholeskyTransform] expected square matrices; got {tuple(shape)}"
            )
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)

    def _call(self, x: Tensor) -> Tensor:
        eps = finfo(x.dtype).eps
        r = _below(x.tanh().clamp(-1 + eps, 1 - eps))
        left = (1 - r * r).sqrt().cumprod(-1)
        one = eye(r.shape[-1], dtype=x.dtype)
        return (r + one) * pad_constant(left[..., :-1], (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        left = pad_constant((1 - (y * y).cumsum(-1))[..., :-1], (1, 0), value=1.0)
        return _vector(y / left.clamp(min=finfo(y.dtype).tiny).sqrt()).atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        # The Jacobian is triangular: dy_ij / dr_ij is the share that is left, dr / dx 1 - r^2.
        log_rest = 2 * (math.log(2.0) - x - softplus(-2 * x))
        before = _below(log_rest).cumsum(-1)
        before = pad_constant(before[..., :-1], (1, 0))
        return 0.5 * _vector(before).sum(-1) + log_rest.sum(-1)


def _side(count: Any) -> int:
    """n of n (n - 1) / 2. Raises ValueError for another number."""
    n = round((1 + (1 + 8 * int(count)) ** 0.5) / 2)
    if n * (n - 1) // 2 != count:
        raise ValueError(
            f"[CorrCholeskyTransform] expected n (n - 1) / 2 elements for a whole n; got {count}"
        )
    return n


def _below(x: Tensor) -> Tensor:
    """Vectors as strictly lower triangles, row by row."""
    n = _side(x.shape[-1])
    places = np.zeros((n, n), np.int64)  # 0: the zero that is put in front
    places[np.tril_indices(n, -1)] = np.arange(1, n * (n - 1) // 2 + 1)
    return pad_constant(x, (1, 0))[..., from_numpy(places)]


def _vector(matrix: Tensor) -> Tensor:
    """The strictly lower triangles, row by row."""
    n = int(matrix.shape[-1])
    rows, columns = np.tril_indices(n, -1)
    return matrix.flatten(-2)[..., from_numpy(rows * n + columns)]
