"""Distributions of matrices: Wishart, and LKJCholesky of correlation matrices' Cholesky factors."""

from __future__ import annotations

import math
from typing import Any

from jitgrad import linalg
from jitgrad.creation import arange
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast_all,
    derived,
    standard_normal,
)
from jitgrad.distributions.multivariate import factor_of, half_log_det, one_matrix
from jitgrad.distributions.positive import Beta, Chi2
from jitgrad.functions.shape import broadcast_shapes_of
from jitgrad.functions.special import mvlgamma
from jitgrad.info import finfo
from jitgrad.methods import FUNCTIONS
from jitgrad.tensor import Tensor

digamma = FUNCTIONS["digamma"]


class LKJCholesky(Distribution):
    """Lower Cholesky factors (..., dim, dim) of correlation matrices M, whose density is
    proportional to det(M)^(concentration - 1): uniform for 1.

    Raises ValueError for a dim below 2.

    Source: Lewandowski, Kurowicka and Joe, Generating random correlation matrices based on vines
    and extended onion method (2009), section 3.
    """

    arg_constraints = {"concentration": constraints.positive}
    support: Any = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if dim < 2:
            raise ValueError(
                f"Expected dim to be an integer greater than or equal to 2. Found {dim}"
            )
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args=validate_args)
        # The squared length of what a row has below the diagonal.
        row = arange(dim, dtype=self.concentration.dtype)
        place = (row - 1).clamp(min=0)
        rest = (self.concentration + 0.5 * (dim - 2)).unsqueeze(-1)
        self._length = Beta(place + 0.5, rest - 0.5 * place, validate_args=False)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "dim": self.dim}

    def sample(self, sample_shape: Any = ()) -> Tensor:
        length = self._length.sample(sample_shape).unsqueeze(-1)
        noise = standard_normal(self._extended_shape(sample_shape), self.concentration).tril(-1)
        size = (noise * noise).sum(-1, keepdim=True).sqrt()
        direction = noise / size.clamp(min=finfo(noise.dtype).tiny)  # of the first row: zeros
        below = length.sqrt() * direction
        left = (1 - (below * below).sum(-1)).clamp(min=finfo(below.dtype).tiny)
        return (below + left.sqrt().diag_embed()).detach()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        diagonal = value.diagonal(dim1=-2, dim2=-1)[..., 1:]
        row = arange(2, self.dim + 1, dtype=value.dtype)
        power = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - row
        below = self.dim - 1
        alpha = self.concentration + 0.5 * below
        norm = (
            0.5 * below * math.log(math.pi) + mvlgamma(alpha - 0.5, below) - alpha.lgamma() * below
        )
        return (power * diagonal.log()).sum(-1) - norm


class Wishart(ExponentialFamily):
    """The sum of df outer products of normal vectors with covariance V, (..., p, p), for any real
    df > p - 1. One of covariance_matrix, precision_matrix and scale_tril says V.

    Raises ValueError unless one of the three is given, and for a df of at most p - 1.

    Source: Anderson, An Introduction to Multivariate Statistical Analysis, chapter 7 (samples by
    Bartlett's decomposition).
    """

    arg_constraints = {
        "df": constraints.positive, "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }  # fmt: skip
    support: Any = constraints.positive_definite
    has_rsample = True

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = one_matrix(covariance_matrix, precision_matrix, scale_tril)
        df = df if isinstance(df, Tensor) else matrix.new_full((), df)
        batch, n = broadcast_shapes_of(matrix.shape[:-2], df.shape), matrix.shape[-1]
        self.df = df.expand(batch)
        self.arg_constraints = {**self.arg_constraints, "df": constraints.greater_than(n - 1)}  # type: ignore[misc]
        vars(self)[name] = matrix.expand((*batch, n, n))
        super().__init__(batch, (n, n), validate_args=validate_args)
        self._factor = factor_of(name, matrix)
        row = arange(n, dtype=matrix.dtype)
        self._squares = Chi2(self.df.unsqueeze(-1) - row, validate_args=False)

    @derived
    def scale_tril(self) -> Any:
        """The lower Cholesky factor of the covariance."""
        return self._factor.expand((*self._batch_shape, *self._event_shape))

    @derived
    def covariance_matrix(self) -> Any:
        """The covariance of the vectors."""
        return (self._factor @ self._factor.mT).expand((*self._batch_shape, *self._event_shape))

    @derived
    def precision_matrix(self) -> Any:
        """The inverse of the covariance."""
        return linalg.inv(self.covariance_matrix)

    @property
    def mean(self) -> Tensor:
        return self.df[..., None, None] * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        """NaN for a df below p + 1."""
        factor = self.df - self._event_shape[-1] - 1
        factor = FUNCTIONS["where"](factor > 0, factor, float("nan"))
        return factor[..., None, None] * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        v = self.covariance_matrix
        diagonal = v.diagonal(dim1=-2, dim2=-1)
        squares = v * v + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df[..., None, None] * squares

    def rsample(self, sample_shape: Any = (), max_try_correction: int | None = None) -> Tensor:
        """Matrices of full rank: there is nothing to correct, however often."""
        diagonal = self._squares.rsample(sample_shape).sqrt()
        below = standard_normal(self._extended_shape(sample_shape), self._factor).tril(-1)
        factor = self._factor @ (below + diagonal.diag_embed())
        return factor @ factor.mT

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        n, df = self._event_shape[-1], self.df
        solved = linalg.solve(self.covariance_matrix, value)
        return (
            -df * (0.5 * n * math.log(2.0) + half_log_det(self._factor))
            - mvlgamma(0.5 * df, n)
            + 0.5 * (df - n - 1) * linalg.slogdet(value).logabsdet
            - 0.5 * solved.diagonal(dim1=-2, dim2=-1).sum(-1)
        )

    def entropy(self) -> Tensor:
        n, df = self._event_shape[-1], self.df
        row = arange(n, dtype=self._factor.dtype)
        expected = digamma(0.5 * (df.unsqueeze(-1) - row)).sum(-1)
        return (
            (n + 1) * (0.5 * n * math.log(2.0) + half_log_det(self._factor))
            + mvlgamma(0.5 * df, n)
            - 0.5 * (df - n - 1) * expected
            + 0.5 * n * df
        )
