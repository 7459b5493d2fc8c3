"""Distributions of a location and a scale: Normal, Laplace, Cauchy, Gumbel, Uniform, and halves."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.creation import full_like
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import (
    EULER,
    LOG_2PI,
    Distribution,
    ExponentialFamily,
    broadcast_all,
    standard_normal,
    uniform,
)
from jitgrad.functions.args import expect_range
from jitgrad.methods import FUNCTIONS
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor

where = FUNCTIONS["where"]


class _LocationScale(Distribution):
    """x = loc + scale * z, with z of a distribution without parameters."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.real

    @property
    def mode(self) -> Tensor:
        return self.loc

    def _noise(self, shape: Any) -> Tensor:
        raise self._absent("samples")

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + self._noise(self._extended_shape(sample_shape)) * self.scale

    def _standard(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return (value - self.loc) / self.scale


class Normal(_LocationScale, ExponentialFamily):
    """exp(-((x - loc) / scale)**2 / 2) / (scale * sqrt(2 pi))."""

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        return self.scale**2

    def _noise(self, shape: Any) -> Tensor:
        return standard_normal(shape, self.loc)

    def log_prob(self, value: Tensor) -> Tensor:
        return -0.5 * self._standard(value) ** 2 - self.scale.log() - 0.5 * LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + (self._standard(value) / math.sqrt(2)).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + 0.5 * LOG_2PI + self.scale.log()


class Laplace(_LocationScale):
    """exp(-|x - loc| / scale) / (2 scale)."""

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale**2

    @property
    def stddev(self) -> Tensor:
        return math.sqrt(2) * self.scale

    def _noise(self, shape: Any) -> Tensor:
        u = 2 * uniform(shape, self.loc) - 1
        return -u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - self._standard(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        z = self._standard(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Cauchy(_LocationScale):
    """1 / (pi scale (1 + ((x - loc) / scale)**2)). Mean and variance are not defined: NaN."""

    @property
    def mean(self) -> Tensor:
        return full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return full_like(self.loc, math.inf)

    def _noise(self, shape: Any) -> Tensor:
        return (math.pi * (uniform(shape, self.loc) - 0.5)).tan()

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - (self._standard(value) ** 2).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return self._standard(value).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(_LocationScale):
    """The distribution of maxima: cdf exp(-exp(-(x - loc) / scale))."""

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def stddev(self) -> Tensor:
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev**2

    def _noise(self, shape: Any) -> Tensor:
        return -(-uniform(shape, self.loc).log()).log()

    def log_prob(self, value: Tensor) -> Tensor:
        y = -self._standard(value)
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return (-(-self._standard(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


class Uniform(Distribution):
    """1 / (high - low) in [low, high). Raises ValueError unless low < high."""

    arg_constraints = {"low": constraints.real, "high": constraints.real}
    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args:
            good = (self.low < self.high).to(dtypes.int64)
            expect_range(good, 1, 1, ValueError, "Uniform is not defined when low>= high")

    @property
    def support(self) -> Any:
        return constraints.interval(self.low.detach(), self.high.detach())

    @property
    def mean(self) -> Tensor:
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        return math.nan * self.high

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    @property
    def stddev(self) -> Tensor:
        return (self.high - self.low) / 12**0.5

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = uniform(self._extended_shape(sample_shape), self.low)
        return self.low + u * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class _Half(Distribution):
    """|x|, with x of a distribution around 0 that has the attribute `scale`."""

    arg_constraints = {"scale": constraints.positive}
    has_rsample = True
    whole: type[_LocationScale]

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = broadcast_all(scale)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def base_dist(self) -> _LocationScale:
        """The distribution on both sides of 0."""
        return self.whole(0.0, self.scale, validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.nonnegative

    @property
    def mode(self) -> Tensor:
        return full_like(self.scale, 0.0)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape).abs()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        found = self.base_dist.log_prob(value) + math.log(2)
        return where(value >= 0, found, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """|x| of a normal x around 0."""

    whole = Normal

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """|x| of a Cauchy-distributed x around 0."""

    whole = Cauchy

    @property
    def mean(self) -> Tensor:
        return full_like(self.scale, math.inf)

    @property
    def variance(self) -> Tensor:
        return full_like(self.scale, math.inf)
