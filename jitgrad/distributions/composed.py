"""Distributions made of others: Independent, TransformedDistribution, LogNormal, relaxed ones,
MixtureSameFamily."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jitgrad.distributions import constraints
from jitgrad.distributions.discrete import Categorical
from jitgrad.distributions.distribution import (
    Distribution,
    broadcast_all,
    clamp_probs,
    logits_to_probs,
    one_of,
    probs_to_logits,
    sum_rightmost,
    uniform,
)
from jitgrad.distributions.location_scale import Normal
from jitgrad.distributions.transforms import (
    ComposeTransform,
    ExpTransform,
    SigmoidTransform,
    Transform,
)
from jitgrad.tensor import Size, Tensor


class Independent(Distribution):
    """base_distribution with its last batch dims as part of the event.

    Raises ValueError for more dims than there are.
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        batch = base_distribution.batch_shape
        count = reinterpreted_batch_ndims
        if count > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {count} vs {len(batch)}"
            )
        shape = (*batch, *base_distribution.event_shape)
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        cut = len(batch) - count
        super().__init__(shape[:cut], shape[cut:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Any:
        base = self.base_dist.support
        count = self.reinterpreted_batch_ndims
        return constraints.independent(base, count) if count else base

    @property
    def mean(self) -> Any:
        return self.base_dist.mean

    @property
    def mode(self) -> Any:
        return self.base_dist.mode

    @property
    def variance(self) -> Any:
        return self.base_dist.variance

    def expand(self, batch_shape: Any, _instance: Any = None) -> Independent:
        inner = self._event_shape[: self.reinterpreted_batch_ndims]
        base = self.base_dist.expand((*batch_shape, *inner))
        return Independent(base, self.reinterpreted_batch_ndims, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """y = t(x), with x of base_distribution and t a transform, or a list of them."""

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise ValueError("transforms must be a Transform or list of Transforms")
        whole = ComposeTransform(self.transforms)
        shape = (*base_distribution.batch_shape, *base_distribution.event_shape)
        rank = whole.domain.event_dim
        if len(shape) < rank:
            raise ValueError(
                f"base_distribution needs to have shape with size at least {rank}, but got "
                f"{tuple(shape)}."
            )
        after = whole.forward_shape(shape)
        before, own = whole.inverse_shape(after), len(base_distribution.event_shape)
        if before != shape:  # parameters of the transforms make it larger
            base_distribution = base_distribution.expand(before[: len(before) - own])
        more = rank - own
        if more > 0:
            base_distribution = Independent(base_distribution, more, validate_args)
        self.base_dist = base_distribution
        cut = len(after) - whole.codomain.event_dim - max(-more, 0)
        super().__init__(after[:cut], after[cut:], validate_args)

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return self.base_dist.has_rsample

    @property
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self._event_shape) - found.event_dim
        return constraints.independent(found, more) if more else found

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return TransformedDistribution(
            self.base_dist.expand(batch_shape), self.transforms, validate_args=False
        )

    def _forward(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._forward(self.base_dist.sample(sample_shape)).detach()

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        total: Any = 0.0
        y, rank = value, len(self._event_shape)
        for transform in reversed(self.transforms):
            x = transform._inv_call(y)
            slope = transform.log_abs_det_jacobian(x, y)
            rank += transform.domain.event_dim - transform.codomain.event_dim
            total = total - sum_rightmost(slope, rank - transform.domain.event_dim)
            y = x
        return total + self.base_dist.log_prob(y)

    def _monotone(self) -> Any:
        return math.prod(t.sign for t in self.transforms)

    def cdf(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        for transform in reversed(self.transforms):
            value = transform._inv_call(value)
        return self._mirror(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._mirror(value)))

    def _mirror(self, p: Tensor) -> Tensor:
        """1 - p where the transforms reverse the order."""
        sign = self._monotone()
        return p if isinstance(sign, int) and sign == 1 else sign * (p - 0.5) + 0.5


class LogNormal(TransformedDistribution):
    """exp of a normal number."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        base = self.base_dist.expand(batch_shape)
        return LogNormal(base.loc, base.scale, validate_args=False)

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithm."""
        return self.base_dist.loc  # type: ignore[attr-defined]

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithm."""
        return self.base_dist.scale  # type: ignore[attr-defined]

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale**2 / 2).exp()

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale**2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale**2
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class _LogitRelaxedBernoulli(Distribution):
    """The logit of a relaxed Bernoulli number (Maddison, Mnih and Teh 2017)."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one_of("LogitRelaxedBernoulli", probs=probs, logits=logits)
        self.temperature = temperature
        (given,) = broadcast_all(logits if probs is None else probs)
        self.logits = given if probs is None else probs_to_logits(given, is_binary=True)
        self.probs = given if probs is not None else logits_to_probs(given, is_binary=True)
        super().__init__(given.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.real

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        logits = self.logits.expand(batch_shape)
        return type(self)(self.temperature, logits=logits, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        p = clamp_probs(self.probs)
        u = clamp_probs(uniform(self._extended_shape(sample_shape), self.probs))
        return (u.log() - (-u).log1p() + p.log() - (-p).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        diff = self.logits - value * self.temperature
        scale = self.temperature.log() if isinstance(self.temperature, Tensor) else math.log(
            self.temperature
        )  # fmt: skip
        return scale + diff - 2 * diff.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """Numbers in (0, 1), close to 0 and 1 at low temperature, differentiable by `probs`."""

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        base = _LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(base, SigmoidTransform(), validate_args)
        self.temperature, self.logits, self.probs = temperature, base.logits, base.probs

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        logits = self.logits.expand(batch_shape)
        return RelaxedBernoulli(self.temperature, logits=logits, validate_args=False)


class RelaxedOneHotCategorical(Distribution):
    """Points of a simplex, close to its corners at low temperature: softmax((logits + Gumbel noise)
    / temperature) (Jang, Gu and Poole 2017; Maddison, Mnih and Teh 2017)."""

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits, validate_args)
        self.temperature = temperature
        self.logits, self.probs = self._categorical.logits, self._categorical.probs
        super().__init__(
            self._categorical.batch_shape, self.logits.shape[-1:], validate_args=validate_args
        )

    @property
    def support(self) -> Any:
        return constraints.simplex

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        logits = self.logits.expand((*batch_shape, *self._event_shape))
        return RelaxedOneHotCategorical(self.temperature, logits=logits, validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = clamp_probs(uniform(self._extended_shape(sample_shape), self.logits))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores.softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        k = self._event_shape[0]
        t = self.temperature
        log_t = t.log() if isinstance(t, Tensor) else math.log(t)
        score = self.logits - value.log() * t
        score = (score - score.logsumexp(-1, keepdim=True)).sum(-1)
        return score + (math.lgamma(k) + log_t * (k - 1)) - value.log().sum(-1)


class MixtureSameFamily(Distribution):
    """A mixture of the distributions along component_distribution's last batch dim, with the
    weights of a Categorical. Raises ValueError where they do not fit."""

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(
                "[MixtureSameFamily] expected a Categorical as the mixture distribution; got "
                f"{type(mixture_distribution).__name__}"
            )
        if not isinstance(component_distribution, Distribution):
            raise ValueError(
                "[MixtureSameFamily] expected a Distribution as the components; got "
                f"{type(component_distribution).__name__}"
            )
        batch = component_distribution.batch_shape[:-1]
        weights = mixture_distribution.param_shape
        if not component_distribution.batch_shape or (
            weights[-1] != component_distribution.batch_shape[-1]
        ):
            raise ValueError(
                f"`mixture_distribution component` ({weights[-1]}) does not equal "
                f"`component_distribution.batch_shape[-1]` ({component_distribution.batch_shape})"
            )
        self._mixture, self._component = mixture_distribution, component_distribution
        self._event_ndims = len(component_distribution.event_shape)
        super().__init__(batch, component_distribution.event_shape, validate_args)

    @property
    def mixture_distribution(self) -> Categorical:
        """The weights."""
        return self._mixture

    @property
    def component_distribution(self) -> Distribution:
        """The components."""
        return self._component

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        return False

    @property
    def support(self) -> Any:
        return self._component.support

    def _weights(self) -> Tensor:
        p = self._mixture.probs
        return p.reshape((*p.shape, *(1,) * self._event_ndims))

    def __repr__(self) -> str:
        return f"MixtureSameFamily(\n  {self._mixture},\n  {self._component})"

    @property
    def _axis(self) -> int:
        return -1 - self._event_ndims

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self._component.mean).sum(self._axis)

    @property
    def variance(self) -> Tensor:
        weights, axis = self._weights(), self._axis
        inside = (weights * self._component.variance).sum(axis)
        gap = self._component.mean - self.mean.unsqueeze(axis)
        return inside + (weights * gap**2).sum(axis)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        count = self._component.batch_shape[-1]
        return MixtureSameFamily(
            self._mixture.expand(batch_shape), self._component.expand((*batch_shape, count)),
            validate_args=False,
        )  # fmt: skip

    def sample(self, sample_shape: Any = ()) -> Tensor:
        mixture = self._mixture
        if mixture.batch_shape != self._batch_shape:
            mixture = mixture.expand(self._batch_shape)
        chosen = mixture.sample(sample_shape)
        drawn = self._component.sample(sample_shape)
        ones = (1,) * (self._event_ndims + 1)
        place = chosen.reshape((*chosen.shape, *ones))
        shape = list(drawn.shape)
        shape[self._axis] = 1
        return drawn.gather(drawn.ndim + self._axis, place.expand(Size(shape))).squeeze(self._axis)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        each = self._component.log_prob(value.unsqueeze(self._axis))
        return (each + self._mixture.logits.log_softmax(-1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        each = self._component.cdf(value.unsqueeze(self._axis))
        return (each * self._mixture.probs).sum(-1)
