"""LowRankMultivariateNormal, whose covariance is a diagonal and a product of thin factors, and
LogisticNormal, a normal vector taken to the simplex."""

from __future__ import annotations

from typing import Any

from jitgrad import linalg
from jitgrad.creation import eye
from jitgrad.distributions import constraints
from jitgrad.distributions.composed import TransformedDistribution
from jitgrad.distributions.distribution import standard_normal
from jitgrad.distributions.location_scale import Normal
from jitgrad.distributions.multivariate import NormalVectors, half_log_det, mahalanobis
from jitgrad.distributions.transforms import StickBreakingTransform
from jitgrad.tensor import Tensor


class LowRankMultivariateNormal(NormalVectors):
    """Normal vectors (..., n) of mean `loc` and covariance W W^T + diag(d): W = cov_factor (..., n,
    r) and d = cov_diag (..., n). Woodbury's identity and the lemma of determinants keep the work in
    r.

    Raises ValueError for shapes that do not fit.
    """

    arg_constraints = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    has_rsample = True

    def __init__(
        self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None
    ) -> None:
        self._expect_vectors(loc)
        n = loc.shape[-1]
        if cov_factor.ndim < 2:
            raise ValueError(
                "cov_factor must be at least two-dimensional, with optional leading batch "
                "dimensions"
            )
        if cov_factor.shape[-2] != n:
            raise ValueError(
                f"cov_factor must be a batch of matrices with shape {n} x m; got "
                f"{tuple(cov_factor.shape)}"
            )
        if cov_diag.shape[-1:] != (n,):
            raise ValueError(
                f"cov_diag must be a batch of vectors with shape ({n},); got "
                f"{tuple(cov_diag.shape)}"
            )
        batch = self._spread_loc(loc, cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.cov_factor = cov_factor.expand((*batch, *cov_factor.shape[-2:]))
        self.cov_diag = cov_diag.expand((*batch, n))
        super().__init__(batch, (n,), validate_args=validate_args)

    @property
    def variance(self) -> Tensor:
        return self.cov_factor.square().sum(-1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance, (..., n, n)."""
        return self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed()

    @property
    def scale_tril(self) -> Tensor:
        """The lower Cholesky factor of the covariance."""
        return linalg.cholesky(self.covariance_matrix)

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    def _capacitance(self) -> Tensor:
        """The lower Cholesky factor of 1 + W^T diag(1 / d) W, (..., r, r)."""
        weighted = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        rank = self.cov_factor.shape[-1]
        return linalg.cholesky(weighted @ self.cov_factor + eye(rank, dtype=self.loc.dtype))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        thin = standard_normal((*shape[:-1], self.cov_factor.shape[-1]), self.loc)
        wide = standard_normal(shape, self.loc)
        spread = (self.cov_factor @ thin.unsqueeze(-1)).squeeze(-1)
        return self.loc + spread + self.cov_diag.sqrt() * wide

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        gap, factor = value - self.loc, self._capacitance()
        inner = ((self.cov_factor.mT / self.cov_diag.unsqueeze(-2)) @ gap.unsqueeze(-1)).squeeze(-1)
        distance = (gap**2 / self.cov_diag).sum(-1) - mahalanobis(factor, inner)
        return self._density(distance, self._half_log_det(factor))

    def _half_log_det(self, factor: Tensor) -> Tensor:
        return half_log_det(factor) + 0.5 * self.cov_diag.log().sum(-1)

    def entropy(self) -> Tensor:
        return self._entropy(self._half_log_det(self._capacitance()))


class LogisticNormal(TransformedDistribution):
    """Points of a simplex: StickBreakingTransform of a normal vector with one element less."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand((1,))
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogisticNormal:
        normal = self._normal
        normal = normal.expand((*batch_shape, normal.batch_shape[-1]))
        return LogisticNormal(normal.loc, normal.scale, validate_args=False)

    @property
    def _normal(self) -> Any:
        return self.base_dist.base_dist  # type: ignore[attr-defined]

    @property
    def loc(self) -> Tensor:
        """The mean of the normal vector."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """Its standard deviation."""
        return self._normal.scale
