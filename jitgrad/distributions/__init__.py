"""Probability distributions, as torch.distributions: plain Python composed of ops.

Samples, densities and divergences are differentiable where the mathematics is, compile, and map
over batches; parameters and events are checked, compiled too.
"""

from jitgrad.distributions import constraints as constraints
from jitgrad.distributions import transforms as transforms
from jitgrad.distributions.composed import (
    Independent,
    LogNormal,
    MixtureSameFamily,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    TransformedDistribution,
)
from jitgrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from jitgrad.distributions.distribution import Distribution
from jitgrad.distributions.kl import kl_divergence, register_kl
from jitgrad.distributions.location_scale import (
    Cauchy,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    Normal,
    Uniform,
)
from jitgrad.distributions.multivariate import MultivariateNormal
from jitgrad.distributions.positive import Beta, Chi2, Dirichlet, Exponential, Gamma, StudentT
from jitgrad.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from jitgrad.missing import missing

__getattr__ = missing(__name__)

__all__ = [
    "AffineTransform", "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2",
    "ComposeTransform", "Dirichlet", "Distribution", "ExpTransform", "Exponential", "Gamma",
    "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "Laplace", "LogNormal",
    "MixtureSameFamily", "Multinomial", "MultivariateNormal", "Normal", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Poisson", "PowerTransform", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "SigmoidTransform", "SoftplusTransform", "StudentT",
    "TanhTransform", "Transform", "TransformedDistribution", "Uniform", "constraints",
    "identity_transform", "kl_divergence", "register_kl", "transforms",
]  # fmt: skip
