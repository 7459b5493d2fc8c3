"""Discrete distributions: Bernoulli, Geometric, Binomial, Poisson, Categorical and what is made of
it. Poisson and Binomial draw with NumPy's samplers, which end a trace (draws.py)."""

from __future__ import annotations

import math
from typing import Any

from jitgrad import draws
from jitgrad.autograd.modes import no_grad
from jitgrad.creation import arange, bernoulli, eye, full_like, multinomial
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast_all,
    derived,
    logits_to_probs,
    one_of,
    probs_to_logits,
    softplus,
    uniform,
)
from jitgrad.functions.select import one_hot
from jitgrad.functions.shape import broadcast_tensors
from jitgrad.info import finfo
from jitgrad.methods import FUNCTIONS
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor

where, xlogy = FUNCTIONS["where"], FUNCTIONS["xlogy"]


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-t log(p) - (1 - t) log(1 - p) with p = sigmoid(logits), without overflow."""
    return softplus(logits) - logits * targets


class _TwoOutcomes(Distribution):
    """What has a probability of success, given as `probs` or `logits`."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def _take(self, name: str, probs: Any, logits: Any) -> Tensor:
        one_of(name, probs=probs, logits=logits)
        (given,) = broadcast_all(logits if probs is None else probs)
        self._set(given, probs is not None)
        return given

    def _set_counted(self, total_count: Any, given: Any, is_probs: bool) -> None:
        """Sets the parameters of a distribution that counts trials or failures, too."""
        self.total_count, given = broadcast_all(total_count, given)
        self.total_count = self.total_count.to(given.dtype)
        self._set(given, is_probs)

    def _set(self, given: Tensor, is_probs: bool) -> None:
        if is_probs:
            self.probs = given
        else:
            self.logits = given

    @derived
    def logits(self) -> Any:
        """log(p / (1 - p))."""
        return probs_to_logits(self.probs, is_binary=True)

    @derived
    def probs(self) -> Any:
        """The probability of success."""
        return logits_to_probs(self.logits, is_binary=True)

    @property
    def param_shape(self) -> Any:
        """The shape of what was given."""
        return vars(self).get("probs", vars(self).get("logits")).shape  # type: ignore[union-attr]


class Bernoulli(_TwoOutcomes, ExponentialFamily):
    """1 with the probability `probs`, else 0."""

    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._take("Bernoulli", probs, logits)
        super().__init__(given.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.boolean

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        p = self.probs
        return where(p == 0.5, math.nan, (p >= 0.5).to(p.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_tensors(self.logits, value)
        return -_cross_entropy(logits, value)

    def entropy(self) -> Tensor:
        return _cross_entropy(self.logits, self.probs)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self.probs.dtype).view(-1, *(1,) * len(self._batch_shape))
        return values.expand((2, *self._batch_shape)) if expand else values


class Geometric(_TwoOutcomes):
    """Failures before the first success: p (1 - p)**k."""

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._take("Geometric", probs, logits)
        super().__init__(given.shape, validate_args=validate_args)
        if self._validate_args and probs is not None:
            self._expect(constraints.greater_than(0.0), self.probs, "parameter probs")

    @property
    def support(self) -> Any:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        return full_like(self.probs, 0.0)

    @property
    def variance(self) -> Tensor:
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            u = uniform(self._extended_shape(sample_shape), self.probs)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        value, probs = broadcast_tensors(value, self.probs)
        certain = (probs == 1) & (value == 0)
        failing = where(certain, 0.0, probs)
        return value * (-failing).log1p() + probs.log()

    def entropy(self) -> Tensor:
        return _cross_entropy(self.logits, self.probs) / self.probs


class Binomial(_TwoOutcomes):
    """Successes in total_count trials."""

    has_enumerate_support = True
    arg_constraints = {
        "total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval,
        "logits": constraints.real,
    }  # fmt: skip

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one_of("Binomial", probs=probs, logits=logits)
        given = logits if probs is None else probs
        self._count = total_count if isinstance(total_count, int) else None
        self._set_counted(total_count, given, probs is not None)
        super().__init__(self.total_count.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            return draws.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        n, logits = self.total_count, self.logits
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * logits - n * softplus(logits)

    def _trials(self) -> int:
        """total_count, of which there is one. Reads it, where a tensor was given."""
        if self._count is not None:
            return self._count
        most = int(self.total_count.max())
        if int(self.total_count.min()) != most:
            raise NotImplementedError(
                "Inhomogeneous total count not supported by `entropy` and `enumerate_support`; "
                f"got {self.total_count}"
            )
        return most

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self._trials() + 1
        values = arange(count, dtype=self.probs.dtype).view(-1, *(1,) * len(self._batch_shape))
        return values.expand((count, *self._batch_shape)) if expand else values

    def entropy(self) -> Tensor:
        """- sum of p(k) log p(k), k = 0 ... total_count."""
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)


class Poisson(ExponentialFamily):
    """rate**k exp(-rate) / k!."""

    arg_constraints = {"rate": constraints.nonnegative}

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            return draws.poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        rate, value = broadcast_tensors(self.rate, value)
        return xlogy(value, rate) - rate - (value + 1).lgamma()


class _Classes(Distribution):
    """What has probabilities of classes along the last dim, given as `probs` or `logits`."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def _take(self, name: str, probs: Any, logits: Any) -> Tensor:
        one_of(name, probs=probs, logits=logits)
        given: Tensor = logits if probs is None else probs
        if given.ndim < 1:
            raise ValueError(
                f"`{'probs' if logits is None else 'logits'}` parameter must be at least "
                "one-dimensional."
            )
        if probs is None:
            self.logits = given - given.logsumexp(-1, keepdim=True)
        else:
            self.probs = given / given.sum(-1, keepdim=True)
        return given

    @derived
    def logits(self) -> Any:
        """Logarithms of the probabilities."""
        return probs_to_logits(self.probs)

    @derived
    def probs(self) -> Any:
        """The probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> Any:
        """The shape of what was given."""
        return vars(self).get("probs", vars(self).get("logits")).shape  # type: ignore[union-attr]

    def _draw(self, sample_shape: Any) -> Tensor:
        """Classes, of sample_shape + batch_shape."""
        shape = (*sample_shape, *self._batch_shape)
        count = 1
        for size in sample_shape:
            count *= size
        with no_grad():
            rows = self.probs.reshape(-1, self.param_shape[-1])
            drawn = multinomial(rows, count, True)
            return drawn.t().reshape(shape)

    def _entropy(self) -> Tensor:
        logits = self.logits
        return -(logits.clamp(min=finfo(logits.dtype).min) * self.probs).sum(-1)


def _of_classes(logits: Tensor, value: Tensor) -> Tensor:
    """The logits of these classes."""
    place, rows = broadcast_tensors(value.to(dtypes.int64).unsqueeze(-1), logits)
    return rows.gather(-1, place[..., :1]).squeeze(-1)


class Categorical(_Classes):
    """The classes 0, 1, ..., with the probabilities of the last dim."""

    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._take("Categorical", probs, logits)
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.integer_interval(0, self.param_shape[-1] - 1)

    @property
    def mean(self) -> Tensor:
        return full_like(self.probs[..., 0].detach(), math.nan)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    @property
    def variance(self) -> Tensor:
        return full_like(self.probs[..., 0].detach(), math.nan)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._draw(tuple(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return _of_classes(self.logits, value)

    def entropy(self) -> Tensor:
        return self._entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        count = self.param_shape[-1]
        values = arange(count, dtype=dtypes.int64).view(-1, *(1,) * len(self._batch_shape))
        return values.expand((count, *self._batch_shape)) if expand else values


class OneHotCategorical(_Classes):
    """Categorical, with one-hot vectors as events."""

    has_enumerate_support = True

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = self._take("OneHotCategorical", probs, logits)
        super().__init__(given.shape[:-1], given.shape[-1:], validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.one_hot

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return one_hot(self.probs.argmax(-1), self.param_shape[-1]).to(self.probs.dtype)

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = self._draw(tuple(sample_shape))
        return one_hot(drawn, self.param_shape[-1]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        return _of_classes(self.logits, value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self.param_shape[-1]
        values = eye(n, dtype=self.probs.dtype).view(n, *(1,) * len(self._batch_shape), n)
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical, whose samples have the probabilities' gradient (Bengio et al. 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        samples = self.sample(sample_shape)
        return samples + (self.probs - self.probs.detach())


class Multinomial(_Classes):
    """How often each class came up in total_count draws."""

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        given = self._take("Multinomial", probs, logits)
        super().__init__(given.shape[:-1], given.shape[-1:], validate_args=validate_args)

    def _options(self) -> dict[str, Any]:
        return {"total_count": self.total_count}

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.integer_interval(0, self.total_count), 1)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        drawn = self._draw((self.total_count, *sample_shape))
        return one_hot(drawn, self.param_shape[-1]).sum(0).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        logits, value = broadcast_tensors(self.logits, value)
        impossible = (value == 0) & (logits == -math.inf)
        logits = where(impossible, 0.0, logits)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (logits * value).sum(-1)

    def entropy(self) -> Tensor:
        """n H(one draw) - log n! + the sum over classes of E[log k!], k binomial."""
        n, probs = self.total_count, self.probs
        counts = arange(1, n + 1, dtype=probs.dtype).view(-1, *(1,) * probs.ndim)
        chance = Binomial(n, probs=probs, validate_args=False).log_prob(counts).exp()
        spread = (chance * (counts + 1).lgamma()).sum((0, -1))
        return n * self._entropy() - math.lgamma(n + 1) + spread


class NegativeBinomial(_TwoOutcomes):
    """The number of successes of probability p before `total_count` failures."""

    arg_constraints = {
        "total_count": constraints.nonnegative,
        "probs": constraints.half_open_interval(0.0, 1.0), "logits": constraints.real,
    }  # fmt: skip

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        one_of("NegativeBinomial", probs=probs, logits=logits)
        given = logits if probs is None else probs
        self._set_counted(total_count, given, probs is not None)
        super().__init__(self.total_count.shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            rate = draws.standard_gamma(self.total_count.expand(shape)) * self.logits.exp()
            return draws.poisson(rate)

    def log_prob(self, value: Tensor) -> Tensor:
        self._validate_sample(value)
        n, logits = self.total_count, self.logits
        found = -n * softplus(logits) - value * softplus(-logits)
        ways = (n + value).lgamma() - (1.0 + value).lgamma() - n.lgamma()
        return found + where(n + value == 0.0, 0.0, ways)
