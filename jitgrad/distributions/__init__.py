"""Probability distributions, as torch.distributions: plain Python composed of ops.

Samples, densities and divergences are differentiable where the mathematics is, compile, and map
over batches; parameters and events are checked, compiled too.
"""

from typing import Any

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
from jitgrad.distributions.constraint_registry import biject_to, transform_to
from jitgrad.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)
from jitgrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    broadcast_all,
    clamp_probs,
    logits_to_probs,
    probs_to_logits,
)
from jitgrad.distributions.joined_transforms import (
    CatTransform,
    CumulativeDistributionTransform,
    ReshapeTransform,
    StackTransform,
)
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
from jitgrad.distributions.low_rank import LogisticNormal, LowRankMultivariateNormal
from jitgrad.distributions.matrices import LKJCholesky, Wishart
from jitgrad.distributions.matrix_transforms import (
    CorrCholeskyTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
)
from jitgrad.distributions.more_continuous import (
    ContinuousBernoulli,
    FisherSnedecor,
    GeneralizedPareto,
    InverseGamma,
    Kumaraswamy,
    Pareto,
    VonMises,
    Weibull,
)
from jitgrad.distributions.multivariate import MultivariateNormal
from jitgrad.distributions.positive import Beta, Chi2, Dirichlet, Exponential, Gamma, StudentT
from jitgrad.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from jitgrad.missing import missing, names_module

for _later in (
    CatTransform, CorrCholeskyTransform, CumulativeDistributionTransform, LowerCholeskyTransform,
    PositiveDefiniteTransform, ReshapeTransform, StackTransform,
):  # fmt: skip
    setattr(transforms, _later.__name__, _later)  # their modules import that one

# The paths by which public code imports them, as in jitgrad.distributions.normal.
_PATHS: dict[str, list[Any]] = {
    "bernoulli": [Bernoulli], "beta": [Beta], "binomial": [Binomial],
    "categorical": [Categorical], "cauchy": [Cauchy], "chi2": [Chi2], "dirichlet": [Dirichlet],
    "exp_family": [ExponentialFamily], "exponential": [Exponential], "gamma": [Gamma],
    "geometric": [Geometric], "gumbel": [Gumbel],
    "half_cauchy": [HalfCauchy], "half_normal": [HalfNormal], "independent": [Independent],
    "laplace": [Laplace], "log_normal": [LogNormal],
    "mixture_same_family": [MixtureSameFamily], "multinomial": [Multinomial],
    "multivariate_normal": [MultivariateNormal], "normal": [Normal],
    "one_hot_categorical": [OneHotCategorical, OneHotCategoricalStraightThrough],
    "continuous_bernoulli": [ContinuousBernoulli], "fishersnedecor": [FisherSnedecor],
    "generalized_pareto": [GeneralizedPareto], "inverse_gamma": [InverseGamma],
    "kumaraswamy": [Kumaraswamy], "logistic_normal": [LogisticNormal],
    "lowrank_multivariate_normal": [LowRankMultivariateNormal],
    "negative_binomial": [NegativeBinomial], "pareto": [Pareto], "von_mises": [VonMises],
    "weibull": [Weibull], "lkj_cholesky": [LKJCholesky], "wishart": [Wishart],
    "poisson": [Poisson], "relaxed_bernoulli": [RelaxedBernoulli],
    "relaxed_categorical": [RelaxedOneHotCategorical], "studentT": [StudentT],
    "transformed_distribution": [TransformedDistribution], "uniform": [Uniform],
    "utils": [broadcast_all, clamp_probs, logits_to_probs, probs_to_logits],
}  # fmt: skip
for _path, _names in _PATHS.items():
    globals()[_path] = names_module(
        f"{__name__}.{_path}", {x.__name__: x for x in _names},
        f"Names of torch.distributions.{_path}.",
    )  # fmt: skip

__getattr__ = missing(__name__)

__all__ = [
    "AbsTransform", "AffineTransform", "Bernoulli", "Beta", "Binomial", "CatTransform",
    "Categorical", "Cauchy", "Chi2", "ComposeTransform", "ContinuousBernoulli",
    "CorrCholeskyTransform", "CumulativeDistributionTransform", "Dirichlet",
    "Distribution", "ExpTransform", "Exponential", "ExponentialFamily", "FisherSnedecor", "Gamma",
    "GeneralizedPareto", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent",
    "IndependentTransform", "InverseGamma", "Kumaraswamy", "LKJCholesky", "Laplace",
    "LogNormal", "LogisticNormal", "LowRankMultivariateNormal", "LowerCholeskyTransform",
    "MixtureSameFamily", "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal",
    "OneHotCategorical", "OneHotCategoricalStraightThrough", "Pareto", "Poisson",
    "PositiveDefiniteTransform", "PowerTransform", "RelaxedBernoulli",
    "RelaxedOneHotCategorical", "ReshapeTransform", "SigmoidTransform", "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform", "StickBreakingTransform", "StudentT", "TanhTransform", "Transform",
    "TransformedDistribution", "Uniform", "VonMises", "Weibull", "Wishart", "biject_to",
    "constraints", "identity_transform", "kl_divergence", "register_kl", "transform_to",
    "transforms",
]  # fmt: skip
