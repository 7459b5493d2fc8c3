"""kl_divergence: a table of pairs of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jitgrad import linalg
from jitgrad.distributions.composed import Independent, LogNormal, TransformedDistribution
from jitgrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from jitgrad.distributions.distribution import Distribution, softplus, sum_rightmost
from jitgrad.distributions.location_scale import (
    Cauchy,
    Gumbel,
    HalfNormal,
    Laplace,
    Normal,
    Uniform,
)
from jitgrad.distributions.multivariate import MultivariateNormal, half_log_det, mahalanobis
from jitgrad.distributions.positive import Beta, Dirichlet, Exponential, Gamma
from jitgrad.methods import FUNCTIONS
from jitgrad.tensor import Tensor

where, xlogy = FUNCTIONS["where"], FUNCTIONS["xlogy"]
Rule = Callable[[Any, Any], Tensor]
_RULES: dict[tuple[type, type], Rule] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Rule], Rule]:
    """A decorator: the function computes kl_divergence(p, q) for these classes (and theirs)."""
    for found in (type_p, type_q):
        if not (isinstance(found, type) and issubclass(found, Distribution)):
            raise TypeError(f"[register_kl] expected classes of Distribution; got {found}")

    def register(function: Rule) -> Rule:
        _RULES[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q), of the batch shape. Raises NotImplementedError for a pair without a rule."""
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            rule = _RULES.get((a, b))
            if rule is not None:
                return rule(p, q)
    raise NotImplementedError(
        f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
        f"{type(q).__name__}; add it with register_kl"
    )


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    gap = ((p.loc - q.loc) / q.scale) ** 2
    return 0.5 * (ratio + gap - 1 - ratio.log())


@register_kl(LogNormal, LogNormal)
def _lognormal(p: LogNormal, q: LogNormal) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if [type(t) for t in p.transforms] != [type(t) for t in q.transforms] or any(
        a is not b and vars(a).keys() - {"_last", "_cache_size"} for a, b in
        zip(p.transforms, q.transforms, strict=True)
    ):  # fmt: skip
        raise NotImplementedError("[kl_divergence] expected the same transforms on both sides")
    inner = len(p.event_shape) - len(p.base_dist.event_shape)
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), inner)


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    gap = (p.loc - q.loc).abs()
    ratio = p.scale / q.scale
    return -ratio.log() + gap / q.scale + ratio * (-gap / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    top = (p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2
    return top.log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio = p.scale / q.scale
    a, b = q.loc / q.scale, p.loc / q.scale
    t3 = (a - b + (1 + ratio).lgamma()).exp()
    return -ratio.log() - a + b + ratio * 0.57721566490153286060 + t3 - (1 + 0.5772156649015329)


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    found = ((q.high - q.low) / (p.high - p.low)).log()
    return where((q.low > p.low) | (q.high < p.high), math.inf, found)


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    t1 = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    t2 = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    return t1 + t2


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    """Raises NotImplementedError where p's counts may be below q's."""
    found = p.total_count * (
        p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p()
    )
    return where(
        p.total_count > q.total_count,
        math.inf,
        where(p.total_count < q.total_count, math.nan, found),
    )


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Tensor:
    t = p.probs * (p.logits - q.logits)
    t = where((q.probs == 0).expand(t.shape), math.inf, t)
    t = where((p.probs == 0).expand(t.shape), 0.0, t)
    return t.sum(-1)


register_kl(OneHotCategorical, OneHotCategorical)(_categorical)


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma()
        + (q.rate - p.rate) * (a / p.rate)
    )  # fmt: skip


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    t1 = total.lgamma() - b.sum(-1).lgamma()
    t2 = (a.lgamma() - b.lgamma()).sum(-1)
    t3 = (a - b) * (a.digamma() - total.digamma().unsqueeze(-1))
    return t1 - t2 + t3.sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    if p.event_shape != q.event_shape:
        raise ValueError(
            "KL-divergence between two Multivariate Normals with different event shapes cannot be "
            "computed"
        )
    solved = linalg.solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    spread = (solved**2).sum((-2, -1))
    gap = mahalanobis(q.scale_tril, q.loc - p.loc)
    logs = half_log_det(q.scale_tril) - half_log_det(p.scale_tril)
    return logs + 0.5 * (spread + gap - p.event_shape[0])


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError(
            "[kl_divergence] expected the same reinterpreted_batch_ndims on both sides"
        )
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)
