"""Continuous distributions with closed forms: Pareto, GeneralizedPareto, Weibull, Kumaraswamy,
InverseGamma, FisherSnedecor, VonMises, ContinuousBernoulli."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.autograd.modes import no_grad
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import (
    EULER,
    LOG_2PI,
    Distribution,
    ExponentialFamily,
    broadcast_all,
    clamp_probs,
    logits_to_probs,
    one_of,
    probs_to_logits,
    softplus,
    uniform,
)
from jitgrad.distributions.positive import Gamma, UnitInterval
from jitgrad.draws import standard_gamma, von_mises
from jitgrad.functions.elementwise import generated
from jitgrad.info import finfo
from jitgrad.methods import FUNCTIONS
from jitgrad.tensor import Tensor

where, xlogy = FUNCTIONS["where"], FUNCTIONS["xlogy"]


class Pareto(Distribution):
    """alpha scale**alpha / x**(alpha + 1) for x >= scale."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}
    has_rsample = True

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = uniform(self._extended_shape(sample_shape), self.scale)
        return self.scale * (-u.log() / self.alpha).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a = self.alpha
        return a.log() + a * self.scale.log() - (a + 1) * value.log()

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return 1 - (self.scale / value) ** self.alpha

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (1 - value) ** (-1 / self.alpha)

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())


class GeneralizedPareto(Distribution):
    """(1 + c y)**(-1 - 1 / c) / scale with y = (x - loc) / scale and c the concentration; exp(-y) /
    scale for c = 0."""

    arg_constraints = {
        "loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real
    }  # fmt: skip
    has_rsample = True

    def __init__(
        self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        c = self.concentration
        end = self.loc - self.scale / where(c < 0, c, -1.0)
        return constraints.interval(self.loc, where(c < 0, end, math.inf))

    def _flat(self) -> tuple[Tensor, Tensor]:
        """Where the concentration is 0, and one to divide by there."""
        flat = self.concentration.abs() < 1e-10
        return flat, where(flat, 1.0, self.concentration)

    @property
    def mean(self) -> Tensor:
        c = self.concentration
        return where(c < 1, self.loc + self.scale / (1 - where(c < 1, c, 0.0)), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        c = where(self.concentration < 0.5, self.concentration, 0.0)
        found = self.scale**2 / ((1 - c) ** 2 * (1 - 2 * c))
        return where(self.concentration < 0.5, found, math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.loc))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        flat, c = self._flat()
        y = (value - self.loc) / self.scale
        heavy = -(1 + 1 / c) * (c * y).log1p()
        return where(flat, -y, heavy) - self.scale.log()

    def _log_survival(self, value: Tensor) -> Tensor:
        flat, c = self._flat()
        y = (value - self.loc) / self.scale
        return where(flat, -y, -(c * y).log1p() / c)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -self._log_survival(value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        flat, c = self._flat()
        log = (-value).log1p()
        return self.loc + self.scale * where(flat, -log, (-c * log).expm1() / c)

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1


class Weibull(Distribution):
    """k / scale (x / scale)**(k - 1) exp(-(x / scale)**k), with k the concentration."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    has_rsample = True

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.positive

    def _moment(self, n: int) -> Tensor:
        """The n-th moment over scale**n."""
        return (1 + n / self.concentration).lgamma().exp()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1) / k) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        return self.scale**2 * (self._moment(2) - self._moment(1) ** 2)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = uniform(self._extended_shape(sample_shape), self.scale)
        return self.scale * (-(-u).log1p()) ** self.concentration.reciprocal()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        k, y = self.concentration, value / self.scale
        return k.log() - self.scale.log() + xlogy(k - 1, y) - y**k

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -(-((value / self.scale) ** self.concentration)).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-(-value).log1p()) ** self.concentration.reciprocal()

    def entropy(self) -> Tensor:
        inverse = self.concentration.reciprocal()
        return EULER * (1 - inverse) + (self.scale * inverse).log() + 1


class Kumaraswamy(UnitInterval):
    """a b x**(a - 1) (1 - x**a)**(b - 1) on (0, 1): a is concentration1, b concentration0."""

    def _moment(self, n: int) -> Tensor:
        b, place = self.concentration0, 1 + n / self.concentration1
        return (b.log() + place.lgamma() + b.lgamma() - (place + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        log = a.reciprocal() * (-b).log1p() - a.reciprocal() * (-a * b).log1p()
        return where((a < 1) | (b < 1), math.nan, log.exp())

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1) ** 2

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.concentration1))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a, b = self.concentration1, self.concentration0
        return a.log() + b.log() + xlogy(a - 1, value) + (b - 1) * (-(value**a)).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return -(self.concentration0 * (-(value**self.concentration1)).log1p()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        inner = -((-value).log1p() / self.concentration0).expm1()
        return inner ** self.concentration1.reciprocal()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()


class InverseGamma(Distribution):
    """1 / x with x of Gamma(concentration, rate)."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.positive

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return where(a > 1, self.rate / (where(a > 1, a, 2.0) - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = where(self.concentration > 2, self.concentration, 3.0)
        found = self.rate**2 / ((a - 1) ** 2 * (a - 2))
        return where(self.concentration > 2, found, math.inf)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return Gamma(self.concentration, self.rate, False).rsample(sample_shape).reciprocal()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a = self.concentration
        return a * self.rate.log() - (a + 1) * value.log() - self.rate / value - a.lgamma()

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class FisherSnedecor(Distribution):
    """The ratio of two chi-squared numbers, each over its degrees of freedom."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.positive

    @property
    def mean(self) -> Tensor:
        df = where(self.df2 > 2, self.df2, math.nan)
        return df / (df - 2)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return where(self.df1 > 2, found, math.nan)

    @property
    def variance(self) -> Tensor:
        df = where(self.df2 > 4, self.df2, math.nan)
        return 2 * df**2 * (self.df1 + df - 2) / (self.df1 * (df - 2) ** 2 * (df - 4))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        above = standard_gamma((self.df1 / 2).expand(shape)) / self.df1
        below = standard_gamma((self.df2 / 2).expand(shape)) / self.df2
        tiny = finfo(above.dtype).tiny
        return (above / below.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        a, b = self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        beta = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return beta + a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p()


class VonMises(Distribution):
    """exp(concentration cos(x - loc)) / (2 pi I0(concentration)), angles from -pi to pi."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.real

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The circular one: 1 - I1(concentration) / I0(concentration)."""
        k = self.concentration
        return 1 - generated["i1e"](k) / generated["i0e"](k)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            turned = von_mises(self.concentration.expand(shape)) + self.loc + math.pi
            return turned - (turned / (2 * math.pi)).floor() * (2 * math.pi) - math.pi

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        k = self.concentration
        return k * ((value - self.loc).cos() - 1) - LOG_2PI - generated["i0e"](k).log()


class ContinuousBernoulli(ExponentialFamily):
    """C p**x (1 - p)**(1 - x) on [0, 1] (Loaiza-Ganem and Cunningham 2019). Within `lims` of 1/2,
    series are taken."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    has_rsample = True

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one_of("ContinuousBernoulli", probs=probs, logits=logits)
        (given,) = broadcast_all(logits if probs is None else probs)
        self.probs = clamp_probs(given) if probs is not None else logits_to_probs(given, True)
        self.logits = given if probs is None else probs_to_logits(given, True)
        self._lims = lims
        super().__init__(given.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        logits = self.logits.expand(batch_shape)
        return ContinuousBernoulli(logits=logits, lims=self._lims, validate_args=False)

    @property
    def support(self) -> Any:
        return constraints.unit_interval

    def _cut(self) -> tuple[Tensor, Tensor]:
        """Where p is away from 1/2, and p with what is near moved out."""
        away = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        return away, where(away, self.probs, self._lims[0])

    def _log_norm(self) -> Tensor:
        away, p = self._cut()
        ratio = (p.mul(-1).log1p() - p.log()).abs() / where(p <= 0.5, 1 - 2 * p, 2 * p - 1)
        x = (self.probs - 0.5) ** 2
        near = math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x
        return where(away, ratio.log(), near)

    @property
    def mean(self) -> Tensor:
        away, p = self._cut()
        far = p / (2 * p - 1) + 1 / ((-p).log1p() - p.log())
        x = self.probs - 0.5
        return where(away, far, 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x**2) * x)

    @property
    def variance(self) -> Tensor:
        away, p = self._cut()
        far = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / ((-p).log1p() - p.log()) ** 2
        x = (self.probs - 0.5) ** 2
        return where(away, far, 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.probs))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits = self.logits
        return value * logits - softplus(logits) + self._log_norm()

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        away, p = self._cut()
        far = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        return where(value <= 0, 0.0, where(value >= 1, 1.0, where(away, far, value)))

    def icdf(self, value: Tensor) -> Tensor:
        away, p = self._cut()
        far = ((-p + value * (2 * p - 1)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p())
        return where(away, far, value)

    def entropy(self) -> Tensor:
        low, high = (-self.probs).log1p(), self.probs.log()
        return self.mean * (low - high) - self._log_norm() - low
