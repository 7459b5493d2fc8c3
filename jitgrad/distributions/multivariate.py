"""MultivariateNormal, by the Cholesky factor of its covariance."""

from __future__ import annotations

from typing import Any

from jitgrad import linalg
from jitgrad.creation import eye
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import LOG_2PI, Distribution, derived, standard_normal
from jitgrad.functions.shape import broadcast_shapes_of
from jitgrad.tensor import Tensor


def inverse_factor(precision: Tensor) -> Tensor:
    """The lower Cholesky factor of the inverse of a matrix."""
    factor = linalg.cholesky(precision.flip((-2, -1)))
    upper = factor.flip((-2, -1)).mT
    n = precision.shape[-1]
    one = eye(n, dtype=precision.dtype).expand(precision.shape)
    return linalg.solve_triangular(upper, one, upper=False)


def one_matrix(
    covariance_matrix: Tensor | None, precision_matrix: Tensor | None, scale_tril: Tensor | None
) -> tuple[str, Tensor]:
    """The name and the matrix of the one that is given. Raises ValueError for none or several, and
    for what is no matrix."""
    matrices = {
        "covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix,
        "scale_tril": scale_tril,
    }  # fmt: skip
    given = [(name, m) for name, m in matrices.items() if m is not None]
    if len(given) != 1:
        raise ValueError(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    name, matrix = given[0]
    if matrix.ndim < 2:
        raise ValueError(f"{name} must be at least two-dimensional; got {matrix._type}")
    return name, matrix


def factor_of(name: str, matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of the covariance, from what one_matrix gives."""
    if name == "scale_tril":
        return matrix
    return linalg.cholesky(matrix) if name == "covariance_matrix" else inverse_factor(matrix)


def mahalanobis(factor: Tensor, x: Tensor) -> Tensor:
    """x^T (L L^T)^-1 x, of vectors (..., n), with L (..., n, n)."""
    lead = broadcast_shapes_of(factor.shape[:-1], x.shape)
    n = lead[-1]
    solved = linalg.solve_triangular(
        factor.expand((*lead, n)), x.expand(lead).unsqueeze(-1), upper=False
    )
    return (solved.squeeze(-1) ** 2).sum(-1)


def half_log_det(factor: Tensor) -> Tensor:
    """log det(L), with L L^T the matrix: half of its log det."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class NormalVectors(Distribution):
    """What normal vectors of any kind of covariance share: (..., n), around `loc`."""

    loc: Tensor

    @staticmethod
    def _expect_vectors(loc: Tensor) -> None:
        if loc.ndim < 1:
            raise ValueError("loc must be at least one-dimensional.")

    def _spread_loc(self, loc: Tensor, *batches: Any) -> Any:
        """Keeps loc, in the batch that all broadcast to, which is returned."""
        batch = broadcast_shapes_of(loc.shape[:-1], *batches)
        self.loc = loc.expand((*batch, loc.shape[-1]))
        return batch

    @property
    def support(self) -> Any:
        return constraints.real_vector

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    def _density(self, distance: Tensor, half_log: Tensor) -> Tensor:
        """The log density at a squared distance, of half the covariance's log determinant."""
        return -0.5 * (self._event_shape[0] * LOG_2PI + distance) - half_log

    def _entropy(self, half_log: Tensor) -> Tensor:
        found = 0.5 * self._event_shape[0] * (1.0 + LOG_2PI) + half_log
        return found.expand(self._batch_shape)


class MultivariateNormal(NormalVectors):
    """Normal vectors (..., n) of mean `loc`, and one of covariance_matrix, precision_matrix and
    scale_tril (the lower Cholesky factor of the covariance), each (..., n, n).

    Raises ValueError unless one of the three is given.
    """

    arg_constraints = {
        "loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._expect_vectors(loc)
        name, matrix = one_matrix(covariance_matrix, precision_matrix, scale_tril)
        batch = self._spread_loc(loc, matrix.shape[:-2])
        vars(self)[name] = matrix.expand((*batch, *matrix.shape[-2:]))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._factor = factor_of(name, matrix)

    @derived
    def scale_tril(self) -> Any:
        """The lower Cholesky factor of the covariance."""
        n = self._event_shape[0]
        return self._factor.expand((*self._batch_shape, n, n))

    @derived
    def covariance_matrix(self) -> Any:
        """The covariance."""
        n = self._event_shape[0]
        return (self._factor @ self._factor.mT).expand((*self._batch_shape, n, n))

    @derived
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    @property
    def variance(self) -> Tensor:
        return (self._factor**2).sum(-1).expand((*self._batch_shape, *self._event_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        noise = standard_normal(self._extended_shape(sample_shape), self.loc)
        return self.loc + (self._factor @ noise.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        distance = mahalanobis(self._factor, value - self.loc)
        return self._density(distance, half_log_det(self._factor))

    def entropy(self) -> Tensor:
        return self._entropy(half_log_det(self._factor))
