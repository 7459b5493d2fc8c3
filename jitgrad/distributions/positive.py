"""Distributions of the gamma family: Exponential, Gamma, Chi2, Beta, Dirichlet, StudentT.

Samples are functions of gamma-distributed numbers (draws.standard_gamma), which are differentiable.
"""

from __future__ import annotations

import math
from typing import Any

from jitgrad.creation import full_like
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast_all,
    standard_normal,
    uniform,
)
from jitgrad.draws import standard_gamma
from jitgrad.functions.shape import stack
from jitgrad.info import finfo
from jitgrad.methods import FUNCTIONS
from jitgrad.tensor import Tensor

where, xlogy = FUNCTIONS["where"], FUNCTIONS["xlogy"]


class Exponential(ExponentialFamily):
    """rate exp(-rate x)."""

    arg_constraints = {"rate": constraints.positive}
    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return full_like(self.rate, 0.0)

    @property
    def stddev(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.rate ** (-2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return -(-uniform(self._extended_shape(sample_shape), self.rate)).log1p() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1.0 - self.rate.log()


class Gamma(ExponentialFamily):
    """rate**a x**(a - 1) exp(-rate x) / gamma(a), with a the concentration."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.nonnegative

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate**2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        drawn = standard_gamma(self.concentration.expand(shape)) / self.rate
        return drawn.clamp(min=finfo(drawn.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a, rate = self.concentration, self.rate
        return xlogy(a, rate) + xlogy(a - 1, value) - rate * value - a.lgamma()

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()


class Chi2(Gamma):
    """The sum of df squared normal numbers: Gamma(df / 2, 1 / 2)."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (self.df,) = broadcast_all(df)
        super().__init__(0.5 * self.df, 0.5, validate_args=validate_args)


class Dirichlet(ExponentialFamily):
    """Over points of a simplex: proportional to prod(x**(a - 1)), with a the concentration."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    has_rsample = True

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        if concentration.ndim < 1:
            raise ValueError("`concentration` parameter must be at least one-dimensional.")
        self.concentration = concentration
        shape = concentration.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.simplex

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        shifted = (self.concentration - 1).clamp(min=0.0)
        mode = shifted / shifted.sum(-1, True)
        corner = (self.concentration < 1).all(-1, True)
        place = FUNCTIONS["argmax"](mode.nan_to_num(), -1, True)
        one_hot = full_like(mode, 0.0).scatter(-1, place, 1.0)
        return where(corner, one_hot, mode)

    @property
    def variance(self) -> Tensor:
        a, total = self.concentration, self.concentration.sum(-1, True)
        return a * (total - a) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))
        drawn = drawn.clamp(min=finfo(drawn.dtype).tiny)
        return drawn / drawn.sum(-1, True)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a = self.concentration
        return xlogy(a - 1.0, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        return (
            a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma()
            - ((a - 1.0) * a.digamma()).sum(-1)
        )  # fmt: skip


class UnitInterval(Distribution):
    """What Beta and Kumaraswamy share: two positive shapes, and samples in (0, 1)."""

    arg_constraints = {
        "concentration1": constraints.positive, "concentration0": constraints.positive
    }  # fmt: skip
    has_rsample = True

    def __init__(
        self, concentration1: Any, concentration0: Any, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.unit_interval


class Beta(UnitInterval, ExponentialFamily):
    """Proportional to x**(a - 1) (1 - x)**(b - 1): a is concentration1, b concentration0."""

    @property
    def _dirichlet(self) -> Dirichlet:
        both = stack([self.concentration1, self.concentration0], -1)
        return Dirichlet(both, validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet.mode[..., 0]

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total**2 * (total + 1))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._dirichlet.rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return self._dirichlet.log_prob(stack([value, 1.0 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet.entropy()


class StudentT(Distribution):
    """Student's t: a normal number over the root of a chi-squared one by its degrees of freedom."""

    arg_constraints = {
        "df": constraints.positive, "loc": constraints.real, "scale": constraints.positive
    }  # fmt: skip
    has_rsample = True

    def __init__(
        self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.real

    @property
    def mean(self) -> Tensor:
        return where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        df = self.df
        found = self.scale**2 * df / (df - 2)
        return where(df > 2, found, where(df > 1, math.inf, math.nan))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        chi2 = 2 * standard_gamma((0.5 * self.df).expand(shape))
        z = standard_normal(shape, self.df)
        return self.loc + self.scale * z * (chi2 / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        df = self.df
        y = (value - self.loc) / self.scale
        log_z = (
            self.scale.log() + 0.5 * df.log() + 0.5 * math.log(math.pi) + (0.5 * df).lgamma()
            - (0.5 * (df + 1.0)).lgamma()
        )  # fmt: skip
        return -0.5 * (df + 1.0) * (y**2 / df).log1p() - log_z

    def entropy(self) -> Tensor:
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return (
            self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + beta
        )
