"""torch.distributions in both libraries: densities, moments, entropies, divergences, their
gradients, shapes, checks; samples against the distribution functions; eager and compiled."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from parity.compare import LIBS, OURS, check, flat, raises_alike, same, tensors, torch
from scipy import stats

import jitgrad
from jitgrad import distributions as D

RNG = np.random.default_rng(0)


def reals(*shape):
    return RNG.standard_normal(shape)


def positives(*shape):
    return RNG.uniform(0.3, 3.0, shape)


def units(*shape):
    return RNG.uniform(0.1, 0.9, shape)


def simplex(*shape):
    return (x := positives(*shape)) / x.sum(-1, keepdims=True)


def spd(n, *batch):
    a = RNG.standard_normal((*batch, n, n))
    return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)


def tril(n, *batch):
    return np.linalg.cholesky(spd(n, *batch))


# name -> (distribution of d = lib's distributions and the parameters, parameters, events)
CASES = {
    "Normal": (lambda d, a, b: d.Normal(a, b), (reals(3, 1), positives(4)), reals(2, 3, 4)),
    "Normal 0-d": (lambda d, a, b: d.Normal(a, b), (reals(), positives()), reals()),
    "Normal empty": (lambda d, a, b: d.Normal(a, b), (reals(0), positives(1)), reals(2, 0)),
    "Laplace": (lambda d, a, b: d.Laplace(a, b), (reals(3), positives(3)), reals(2, 3)),
    "Cauchy": (lambda d, a, b: d.Cauchy(a, b), (reals(3), positives(3)), reals(2, 3)),
    "Gumbel": (lambda d, a, b: d.Gumbel(a, b), (reals(3), positives(3)), reals(2, 3)),
    "Uniform": (lambda d, a, b: d.Uniform(a, a + b), (reals(3), positives(3) * 9), None),
    "HalfNormal": (lambda d, a: d.HalfNormal(a), (positives(3),), positives(2, 3)),
    "HalfCauchy": (lambda d, a: d.HalfCauchy(a), (positives(3),), positives(2, 3)),
    "LogNormal": (lambda d, a, b: d.LogNormal(a, b), (reals(3), positives(3)), positives(2, 3)),
    "Exponential": (lambda d, a: d.Exponential(a), (positives(3),), positives(2, 3)),
    "Gamma": (lambda d, a, b: d.Gamma(a, b), (positives(3), positives(3)), positives(2, 3)),
    "Chi2": (lambda d, a: d.Chi2(a), (positives(3),), positives(2, 3)),
    "Beta": (lambda d, a, b: d.Beta(a, b), (positives(3) + 1, positives(3) + 1), units(2, 3)),
    "Dirichlet": (lambda d, a: d.Dirichlet(a), (positives(2, 3) + 1,), simplex(4, 2, 3)),
    "StudentT": (
        lambda d, a, b, c: d.StudentT(a, b, c), (positives(3) + 2.5, reals(3), positives(3)),
        reals(2, 3),
    ),
    "Bernoulli": (lambda d, a: d.Bernoulli(a), (units(3),), np.array([[0.0, 1, 1], [1, 0, 1]])),
    "Bernoulli logits": (
        lambda d, a: d.Bernoulli(logits=a), (reals(3) * 9,), np.array([[0.0, 1, 1], [1, 0, 1]])
    ),
    "Geometric": (lambda d, a: d.Geometric(a), (units(3),), np.array([[0.0, 1, 5], [7, 2, 1]])),
    "Geometric logits": (
        lambda d, a: d.Geometric(logits=a), (reals(3),), np.array([[0.0, 1, 5], [7, 2, 1]])
    ),
    "Binomial": (lambda d, a: d.Binomial(5, a), (units(3),), np.array([[0.0, 1, 5], [3, 2, 1]])),
    "Binomial logits": (
        lambda d, a: d.Binomial(5, logits=a), (reals(3),), np.array([[0.0, 1, 5], [3, 2, 1]])
    ),
    "Poisson": (lambda d, a: d.Poisson(a), (positives(3),), np.array([[0.0, 1, 5], [7, 2, 1]])),
    "Categorical": (lambda d, a: d.Categorical(a), (positives(2, 3),), np.array([[0, 2], [1, 1]])),
    "Categorical logits": (
        lambda d, a: d.Categorical(logits=a), (reals(2, 3),), np.array([[0, 2], [1, 1]])
    ),
    "OneHotCategorical": (
        lambda d, a: d.OneHotCategorical(a), (positives(2, 3),), np.eye(3)[[[0, 2], [1, 1]]]
    ),
    "Multinomial": (
        lambda d, a: d.Multinomial(4, a), (positives(2, 3),), np.array([[1.0, 3, 0], [2, 1, 1]])
    ),
    "MultivariateNormal": (
        lambda d, a, b: d.MultivariateNormal(a, b @ b.mT), (reals(2, 3), tril(3)), reals(4, 2, 3)
    ),
    "MultivariateNormal tril": (
        lambda d, a, b: d.MultivariateNormal(a, scale_tril=b.tril()), (reals(3), tril(3, 2)),
        reals(4, 2, 3),
    ),
    "MultivariateNormal precision": (
        lambda d, a, b: d.MultivariateNormal(a, precision_matrix=b @ b.mT), (reals(3), tril(3)),
        reals(4, 3),
    ),
    "Independent": (
        lambda d, a, b: d.Independent(d.Normal(a, b), 1), (reals(2, 3), positives(3)),
        reals(4, 2, 3),
    ),
    "Independent 2": (
        lambda d, a: d.Independent(d.Bernoulli(logits=a), 2), (reals(2, 3),),
        np.round(units(4, 2, 3)),
    ),
    "Tanh": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(a, b), [d.transforms.TanhTransform()]
        ), (reals(3), positives(3)), units(2, 3) * 1.8 - 0.9,
    ),
    "Affine, Sigmoid": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(0.0 * a, b), [d.AffineTransform(a, -2.0), d.SigmoidTransform()]
        ), (reals(3), positives(3)), units(2, 3),
    ),
    "Compose": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(a, b), d.ComposeTransform(
                [d.ExpTransform(), d.PowerTransform(2.0), d.AffineTransform(0.0, b)])
        ), (reals(3), positives(3)), positives(2, 3),
    ),
    "Softplus": (
        lambda d, a, b: d.TransformedDistribution(d.Laplace(a, b), [d.SoftplusTransform()]),
        (reals(3), positives(3)), positives(2, 3),
    ),
    "RelaxedBernoulli": (
        lambda d, a, t: d.RelaxedBernoulli(t, logits=a), (reals(3), np.array(0.7)), units(2, 3)
    ),
    "RelaxedOneHotCategorical": (
        lambda d, a, t: d.RelaxedOneHotCategorical(t, logits=a), (reals(2, 3), np.array(0.7)),
        simplex(4, 2, 3),
    ),
    "Pareto": (lambda d, a, b: d.Pareto(a, b), (positives(3), positives(3) + 2.5),
               positives(2, 3) + 4),
    "Weibull": (lambda d, a, b: d.Weibull(a, b), (positives(3), positives(3) + 1), positives(2, 3)),
    "Kumaraswamy": (
        lambda d, a, b: d.Kumaraswamy(a, b), (positives(3) + 1, positives(3) + 1), units(2, 3)
    ),
    "InverseGamma": (
        lambda d, a, b: d.InverseGamma(a, b), (positives(3) + 2.2, positives(3)), positives(2, 3)
    ),
    "FisherSnedecor": (
        lambda d, a, b: d.FisherSnedecor(a, b), (positives(3) + 2, positives(3) + 4.5),
        positives(2, 3),
    ),
    "VonMises": (lambda d, a, b: d.VonMises(a, b), (reals(3), positives(3) * 3), reals(2, 3)),
    "ContinuousBernoulli": (
        lambda d, a: d.ContinuousBernoulli(a), (np.array([0.2, 0.5002, 0.8]),), units(2, 3)
    ),
    "ContinuousBernoulli logits": (
        lambda d, a: d.ContinuousBernoulli(logits=a), (reals(3),), units(2, 3)
    ),
    "NegativeBinomial": (
        lambda d, n, a: d.NegativeBinomial(n, a), (positives(3) * 3, units(3)),
        np.array([[0.0, 1, 5], [7, 2, 1]]),
    ),
    "NegativeBinomial logits": (
        lambda d, n, a: d.NegativeBinomial(n, logits=a), (positives(3) * 3, reals(3)),
        np.array([[0.0, 1, 5], [7, 2, 1]]),
    ),
    "LowRankMultivariateNormal": (
        lambda d, a, w, c: d.LowRankMultivariateNormal(a, w, c),
        (reals(2, 4), reals(4, 2), positives(4)), reals(3, 2, 4),
    ),
    "LogisticNormal": (
        lambda d, a, b: d.LogisticNormal(a, b), (reals(2, 3), positives(3)), simplex(5, 2, 4)
    ),
    "Mixture": (
        lambda d, w, a, b: d.MixtureSameFamily(d.Categorical(w), d.Normal(a, b)),
        (positives(2, 4), reals(2, 4), positives(4)), reals(3, 2),
    ),
    "Mixture of vectors": (
        lambda d, w, a: d.MixtureSameFamily(
            d.Categorical(logits=w), d.Independent(d.Normal(a, 1.0), 1)
        ), (reals(4), reals(4, 3)), reals(5, 3),
    ),
}  # fmt: skip
UNIFORM = CASES["Uniform"]
LOW, SPAN = UNIFORM[1]
CASES["Uniform"] = (UNIFORM[0], UNIFORM[1], LOW + SPAN * units(2, 3))
FIGURES = ("entropy", "mean", "variance", "stddev", "mode")
DIGAMMA = ("Gamma", "Chi2", "Beta", "Dirichlet", "StudentT", "Kumaraswamy", "InverseGamma")
ROUGH = {
    "Multinomial": 1e6,
    **dict.fromkeys(DIGAMMA, 1e6),
    "VonMises": 1e7,
}  # PyTorch's digamma and Bessel functions


def distributions(lib):
    return lib.t.distributions


def figure(dist, name):
    """The figure, or None where there is none."""
    try:
        found = getattr(dist, name)
        return found() if inspect.ismethod(found) else found
    except NotImplementedError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_log_prob(name) -> None:
    make, parameters, events = CASES[name]

    def code(lib, events, *parameters):
        return make(distributions(lib), *parameters).log_prob(events)

    check(code, events, *parameters, scale=1e7 if name == "VonMises" else 30)


@pytest.mark.parametrize("name", CASES)
def test_figures_and_shapes(name) -> None:
    make, parameters, _ = CASES[name]
    for what in FIGURES:
        found = [figure(make(distributions(lib), *tensors(lib, parameters, True)), what)
                 for lib in LIBS]  # fmt: skip
        ours, theirs = found
        assert (ours is None) == (theirs is None), what
        if theirs is None:
            continue
        same(ours, theirs, what, ROUGH.get(name, 30))
        if theirs.requires_grad and torch.isfinite(theirs).all():
            check(
                lambda lib, *ps, what=what: figure(make(distributions(lib), *ps), what),
                *parameters, scale=ROUGH.get(name, 100),
            )  # fmt: skip
    ours, theirs = (make(distributions(lib), *tensors(lib, parameters, False)) for lib in LIBS)
    assert tuple(ours.batch_shape) == tuple(theirs.batch_shape)
    assert tuple(ours.event_shape) == tuple(theirs.event_shape)
    assert tuple(ours.sample((5, 2)).shape) == tuple(theirs.sample((5, 2)).shape)
    assert ours.sample().dtype is ours.sample((1,)).dtype
    assert str(ours.sample().dtype).split(".")[1] == str(theirs.sample().dtype).split(".")[1]
    assert ours.has_rsample == theirs.has_rsample
    wider = (6, *ours.batch_shape)
    expanded = [dist.expand(wider) for dist in (ours, theirs)]
    assert tuple(expanded[0].batch_shape) == tuple(expanded[1].batch_shape) == wider
    event = ours.sample()
    same(
        expanded[0].log_prob(event),
        expanded[1].log_prob(torch.from_numpy(event.numpy().copy())), "expanded",
        1e7 if name == "VonMises" else 30,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["Normal", "Laplace", "Cauchy", "Gumbel", "Uniform", "HalfNormal", "HalfCauchy", "LogNormal",
     "Exponential", "Tanh", "Affine, Sigmoid", "Pareto", "Weibull",
     "Kumaraswamy", "ContinuousBernoulli"],
)  # fmt: skip
def test_cdf_and_icdf(name) -> None:
    make, parameters, events = CASES[name]

    def code(lib, events, p, *parameters):
        dist = make(distributions(lib), *parameters)
        return dist.cdf(events), dist.icdf(p)

    check(code, events, units(2, *events.shape[1:]), *parameters, scale=100)


@pytest.mark.parametrize("c", [0.3, 0.0, -0.4])
def test_generalized_pareto(c) -> None:
    """Against SciPy: PyTorch's mixes float32 into float64."""
    ours = D.GeneralizedPareto(jitgrad.tensor(1.0).double(), 2.0, c)
    theirs = stats.genpareto(c, 1, 2)
    x = jitgrad.linspace(1.1, 5.5, 9, dtype=jitgrad.float64)
    p = jitgrad.linspace(0.01, 0.99, 9, dtype=jitgrad.float64)
    np.testing.assert_allclose(ours.log_prob(x), theirs.logpdf(x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(ours.cdf(x), theirs.cdf(x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(ours.icdf(p), theirs.ppf(p.numpy()), rtol=1e-12)
    for name in ("mean", "variance", "entropy"):
        expected = getattr(theirs, {"variance": "var"}.get(name, name))()
        np.testing.assert_allclose(figure(ours, name), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="value argument"):
        ours.log_prob(jitgrad.tensor(0.5))


# -- compiled --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in CASES if n != "Normal empty"])
def test_compiled_densities(name) -> None:
    make, parameters, events = CASES[name]

    def code(events, *parameters):
        dist = make(D, *parameters)
        found = [dist.log_prob(events), *(figure(dist, w) for w in ("entropy", "mean"))]
        return [x for x in found if x is not None]

    compiled = jitgrad.jit(code, fallback="error")
    for _ in range(2):
        results = []
        for run in (compiled, code):
            inputs = tensors(OURS, (events, *parameters), True)
            found = flat(run(*inputs))
            sum(x.sum() for x in found if x.requires_grad).backward()
            results.append(found + [x.grad for x in inputs if x.grad is not None])
        assert len(results[0]) == len(results[1])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a.detach(), b.detach(), rtol=1e-11, atol=1e-12)
    assert compiled.stats.hits >= 1


REPARAMETRISED = [n for n, (make, ps, _) in CASES.items() if n != "Normal empty"
                  and make(D, *tensors(OURS, ps, False)).has_rsample]  # fmt: skip


@pytest.mark.parametrize("name", REPARAMETRISED)
def test_compiled_samples_are_eager_s(name) -> None:
    make, parameters, _ = CASES[name]

    def code(*parameters):
        return make(D, *parameters).rsample((3,))

    compiled = jitgrad.jit(code, fallback="error")
    for _ in range(2):
        results = []
        for run in (compiled, code):
            jitgrad.manual_seed(4)
            inputs = tensors(OURS, parameters, True)
            drawn = run(*inputs)
            (drawn * drawn).sum().backward()
            results.append([drawn.detach(), *(x.grad for x in inputs)])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    assert compiled.stats.hits == 1


@pytest.mark.parametrize("shape", [0.05, 0.7, 3.0, 40.0, 900.0, 2e4])
def test_gradient_of_gamma_samples(shape) -> None:
    """The sample at a quantile of its distribution: dx/da by differences of SciPy's quantiles."""
    jitgrad.manual_seed(2)
    a = jitgrad.full((50,), shape, dtype=jitgrad.float64, requires_grad=True)
    drawn = D.Gamma(a, 1.0).rsample()
    drawn.sum().backward()
    x = drawn.detach().numpy()
    step = 1e-5 * shape
    p, far = stats.gamma.cdf(x, shape), stats.gamma.sf(x, shape)
    low = np.where(p < 0.5, stats.gamma.ppf(p, shape - step), stats.gamma.isf(far, shape - step))
    high = np.where(p < 0.5, stats.gamma.ppf(p, shape + step), stats.gamma.isf(far, shape + step))
    good = x > 1e-100
    np.testing.assert_allclose(a.grad.numpy()[good], ((high - low) / (2 * step))[good], rtol=2e-5)


@pytest.mark.parametrize("name", ["Beta", "Dirichlet", "StudentT", "Chi2"])
def test_gradients_of_means_of_samples(name) -> None:
    """The mean of the gradients of x^2 is the gradient of its mean."""
    make = {
        "Beta": lambda a: D.Beta(a, 2 * a),
        "Dirichlet": lambda a: D.Dirichlet(a * jitgrad.arange(1, 4)),
        "StudentT": lambda a: D.StudentT(5 * a, 1.0, 2.0), "Chi2": lambda a: D.Chi2(a),
    }[name]  # fmt: skip
    a = jitgrad.tensor(2.0, dtype=jitgrad.float64, requires_grad=True)
    jitgrad.manual_seed(3)
    (make(a).rsample((40_000,)) ** 2).mean(0).sum().backward()
    found, a.grad = a.grad.item(), None
    dist = make(a)
    (dist.variance + dist.mean**2).sum().backward()
    assert abs(found - a.grad.item()) < 0.05 * abs(a.grad.item()) + 0.01


# -- samples ---------------------------------------------------------------------------------------
CONTINUOUS = {
    "Normal": (D.Normal(1.0, 2.0), stats.norm(1, 2)),
    "Laplace": (D.Laplace(1.0, 2.0), stats.laplace(1, 2)),
    "Cauchy": (D.Cauchy(1.0, 2.0), stats.cauchy(1, 2)),
    "Gumbel": (D.Gumbel(1.0, 2.0), stats.gumbel_r(1, 2)),
    "Uniform": (D.Uniform(1.0, 3.0), stats.uniform(1, 2)),
    "HalfNormal": (D.HalfNormal(2.0), stats.halfnorm(0, 2)),
    "HalfCauchy": (D.HalfCauchy(2.0), stats.halfcauchy(0, 2)),
    "LogNormal": (D.LogNormal(1.0, 0.5), stats.lognorm(0.5, 0, np.e)),
    "Exponential": (D.Exponential(2.0), stats.expon(0, 0.5)),
    "Gamma": (D.Gamma(0.7, 2.0), stats.gamma(0.7, 0, 0.5)),
    "Chi2": (D.Chi2(3.0), stats.chi2(3)),
    "Beta": (D.Beta(0.7, 2.0), stats.beta(0.7, 2)),
    "StudentT": (D.StudentT(3.0, 1.0, 2.0), stats.t(3, 1, 2)),
    "Pareto": (D.Pareto(2.0, 3.0), stats.pareto(3, 0, 2)),
    "GeneralizedPareto": (D.GeneralizedPareto(1.0, 2.0, 0.3), stats.genpareto(0.3, 1, 2)),
    "Weibull": (D.Weibull(2.0, 1.5), stats.weibull_min(1.5, 0, 2)),
    "InverseGamma": (D.InverseGamma(3.0, 2.0), stats.invgamma(3, 0, 2)),
    "FisherSnedecor": (D.FisherSnedecor(5.0, 7.0), stats.f(5, 7)),
    "VonMises": (D.VonMises(0.5, 2.0), stats.vonmises(2, 0.5)),
}
DISCRETE = {
    "Bernoulli": (D.Bernoulli(0.3), stats.bernoulli(0.3)),
    "Geometric": (D.Geometric(0.3), stats.geom(0.3, -1)),
    "Binomial": (D.Binomial(6, jitgrad.tensor(0.3)), stats.binom(6, 0.3)),
    "Poisson": (D.Poisson(2.5), stats.poisson(2.5)),
    "NegativeBinomial": (D.NegativeBinomial(3.0, 0.4), stats.nbinom(3, 0.6)),
    "Categorical": (
        D.Categorical(jitgrad.tensor([1.0, 2.0, 3.0])),
        stats.rv_discrete(values=([0, 1, 2], [1 / 6, 1 / 3, 1 / 2])),
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples(name) -> None:
    ours, scipy = CONTINUOUS[name]
    jitgrad.manual_seed(1)
    drawn = ours.sample((20000,)).numpy().astype(np.float64)
    assert stats.kstest(drawn, scipy.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_samples(name) -> None:
    ours, scipy = DISCRETE[name]
    jitgrad.manual_seed(1)
    drawn = ours.sample((20000,)).numpy()
    for k in range(int(drawn.max()) + 1):
        p = scipy.pmf(k)
        assert abs((drawn == k).mean() - p) < 5 * np.sqrt(p * (1 - p) / 20000) + 1e-4


def test_samples_of_several_dims() -> None:
    jitgrad.manual_seed(0)
    cov = np.array([[2.0, 0.5], [0.5, 1.0]])
    drawn = D.MultivariateNormal(jitgrad.zeros(2), jitgrad.tensor(cov).float()).sample((50000,))
    np.testing.assert_allclose(np.cov(drawn.numpy().T), cov, atol=0.05)
    weights = np.array([0.2, 0.3, 0.5])
    counts = D.Multinomial(7, jitgrad.tensor(weights)).sample((20000,)).numpy()
    assert (counts.sum(-1) == 7).all()
    np.testing.assert_allclose(counts.mean(0), 7 * weights, atol=0.05)
    points = D.Dirichlet(jitgrad.tensor([1.0, 2.0, 3.0])).sample((20000,)).numpy()
    np.testing.assert_allclose(points.mean(0), [1 / 6, 1 / 3, 1 / 2], atol=0.01)
    mix = D.MixtureSameFamily(
        D.Categorical(jitgrad.tensor([0.25, 0.75])),
        D.Normal(jitgrad.tensor([-10.0, 10.0]), jitgrad.ones(2)),
    )
    assert abs((mix.sample((20000,)).numpy() < 0).mean() - 0.25) < 0.02


# -- divergences -----------------------------------------------------------------------------------
PAIRS = ["Normal", "Laplace", "Cauchy", "Gumbel", "HalfNormal", "LogNormal", "Exponential", "Gamma",
         "Beta", "Dirichlet", "Bernoulli", "Bernoulli logits", "Geometric", "Binomial", "Poisson",
         "Categorical", "Categorical logits", "OneHotCategorical", "MultivariateNormal",
         "MultivariateNormal tril", "Independent", "Independent 2"]  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_kl_divergence(name) -> None:
    make, parameters, _ = CASES[name]
    shifted = [p * 0.9 + 0.05 for p in parameters]
    count = len(parameters)

    def code(lib, *ps):
        d = distributions(lib)
        return d.kl_divergence(make(d, *ps[:count]), make(d, *ps[count:]))

    check(code, *parameters, *shifted, scale=ROUGH.get(name, 300))
    compiled = jitgrad.jit(lambda *ps: code(OURS, *ps), fallback="error")
    inputs = tensors(OURS, (*parameters, *shifted), False)
    for _ in range(2):
        np.testing.assert_allclose(compiled(*inputs), code(OURS, *inputs), rtol=1e-9, atol=1e-12)


def test_kl_of_uniforms_and_of_unknown_pairs() -> None:
    low, span = np.array([0.0, 1.0]), np.array([2.0, 1.0])

    def code(lib, low, span):
        d = distributions(lib)
        return d.kl_divergence(d.Uniform(low, low + span), d.Uniform(low * 0.0, 2.5 + low * 0.0))

    check(code, low, span, grad=False)
    raises_alike(
        lambda lib: distributions(lib).kl_divergence(
            distributions(lib).Normal(0.0, 1.0), distributions(lib).Categorical(lib.t.ones(3))
        )
    )

    class Mine(D.Normal):
        pass

    assert D.kl_divergence(Mine(0.0, 1.0), D.Normal(0.0, 1.0)).item() == 0.0

    @D.register_kl(Mine, Mine)
    def rule(p, q):
        return p.loc - q.loc

    assert D.kl_divergence(Mine(3.0, 1.0), Mine(1.0, 1.0)).item() == 2.0


# -- checks of arguments ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "code",
    [
        lambda d, t: d.Normal(t.zeros(2), t.tensor([1.0, -1.0])),
        lambda d, t: d.Normal(t.tensor(float("nan")), 1.0),
        lambda d, t: d.Normal("a", 1.0),
        lambda d, t: d.Bernoulli(t.tensor([0.5, 1.5])),
        lambda d, t: d.Bernoulli(),
        lambda d, t: d.Bernoulli(probs=t.ones(1), logits=t.ones(1)),
        lambda d, t: d.Bernoulli(t.tensor(0.5)).log_prob(t.tensor(0.5)),
        lambda d, t: d.Categorical(t.tensor([-1.0, 3.0])),
        lambda d, t: d.Categorical(t.tensor(1.0)),
        lambda d, t: d.Categorical(t.ones(3)).log_prob(t.tensor(3)),
        lambda d, t: d.Categorical(t.ones(3)).log_prob(t.tensor(0.5)),
        lambda d, t: d.Uniform(t.ones(2), t.zeros(2)),
        lambda d, t: d.Uniform(0.0, 1.0).log_prob(t.tensor(2.0)),
        lambda d, t: d.Exponential(1.0).log_prob(t.tensor(-1.0)),
        lambda d, t: d.Normal(t.zeros(3), 1.0).log_prob(t.zeros(2)),
        lambda d, t: d.Normal(0.0, 1.0).log_prob(1.0),
        lambda d, t: d.Dirichlet(t.tensor(1.0)),
        lambda d, t: d.Dirichlet(t.ones(3)).log_prob(t.ones(3)),
        lambda d, t: d.Independent(d.Normal(0.0, 1.0), 1),
        lambda d, t: d.MultivariateNormal(t.zeros(2), t.eye(2), t.eye(2)),
        lambda d, t: d.MultivariateNormal(t.zeros(2), -t.eye(2)),
        lambda d, t: d.MultivariateNormal(t.zeros(2), scale_tril=t.ones(2, 2)),
        lambda d, t: d.OneHotCategorical(t.ones(3)).log_prob(t.ones(3)),
        lambda d, t: d.Poisson(1.0).log_prob(t.tensor(0.5)),
        lambda d, t: d.Categorical(t.ones(3)).rsample(),
        lambda d, t: d.TransformedDistribution(d.Normal(0.0, 1.0), [3]),
        lambda d, t: d.constraints.Constraint().check(t.ones(1)),
        lambda d, t: d.TanhTransform(cache_size=2),
    ],
)
def test_bad_arguments_raise_alike(code) -> None:
    # PyTorch's own compiler, which other tests run, switches the checks off for good.
    for lib in LIBS:
        distributions(lib).Distribution.set_default_validate_args(True)
    raises_alike(lambda lib: code(distributions(lib), lib.t))


def test_unchecked_arguments() -> None:
    dist = D.Normal(0.0, -1.0, validate_args=False)
    assert jitgrad.isnan(dist.log_prob(jitgrad.ones(())))


def test_compiled_checks() -> None:
    @jitgrad.jit(fallback="error")
    def f(scale, x):
        return D.Normal(jitgrad.zeros(2), scale).log_prob(x)

    x = jitgrad.ones(2)
    for _ in range(2):
        f(jitgrad.ones(2), x)
    with pytest.raises(ValueError, match="Expected parameter scale .* of distribution Normal"):
        f(jitgrad.tensor([1.0, 0.0]), x)
    assert f.stats.traces == 1 and f.stats.hits >= 1


def test_enumerate_support() -> None:
    for code in (
        lambda d, t: d.Categorical(t.ones(2, 3)),
        lambda d, t: d.Bernoulli(t.full((2,), 0.5)),
        lambda d, t: d.OneHotCategorical(t.ones(2, 3)),
    ):
        ours, theirs = (code(distributions(lib), lib.t) for lib in LIBS)
        for expand in (True, False):
            same(ours.enumerate_support(expand), theirs.enumerate_support(expand))


def test_straight_through_gradient() -> None:
    def code(lib, logits):
        lib.t.manual_seed(0)
        dist = distributions(lib).OneHotCategoricalStraightThrough(logits=logits)
        weights = lib.t.arange(3, dtype=lib.t.float64)
        (grad,) = lib.t.autograd.grad((dist.rsample() * weights).sum(), logits)
        return grad

    logits = reals(2, 3)
    grads = [code(lib, *tensors(lib, (logits,), True)) for lib in LIBS]
    same(*grads)


# -- programs --------------------------------------------------------------------------------------
def test_reinforce_step_compiles() -> None:
    policy = jitgrad.nn.Linear(4, 3)
    optimizer = jitgrad.optim.SGD(policy.parameters(), lr=0.1)

    @jitgrad.jit(fallback="error")
    def step(states, rewards):
        dist = D.Categorical(logits=policy(states))
        actions = dist.sample()
        loss = -(dist.log_prob(actions) * rewards).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return actions, loss.detach()

    states, rewards = jitgrad.randn(8, 4), jitgrad.randn(8)
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    runs = []
    for run in (step.__wrapped__, step, step):
        policy.load_state_dict(start)
        jitgrad.manual_seed(3)
        runs.append((*run(states, rewards), policy.weight.detach().clone()))
    assert step.stats.hits == 1
    for eager, recorded, compiled in zip(*runs, strict=True):
        assert eager.equal(recorded)
        np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)


def test_vae_loss_compiles() -> None:
    encoder, decoder = jitgrad.nn.Linear(6, 4), jitgrad.nn.Linear(2, 6)

    def loss(x):
        mean, log_scale = encoder(x).chunk(2, -1)
        posterior = D.Independent(D.Normal(mean, log_scale.exp()), 1)
        prior = D.Independent(D.Normal(jitgrad.zeros_like(mean), jitgrad.ones_like(mean)), 1)
        likelihood = D.Independent(D.Bernoulli(logits=decoder(posterior.rsample())), 1)
        return (D.kl_divergence(posterior, prior) - likelihood.log_prob(x)).mean()

    compiled = jitgrad.jit(loss, fallback="error")
    x = (jitgrad.rand(5, 6) > 0.5).float()
    found = []
    for run in (loss, compiled, compiled):
        jitgrad.manual_seed(2)
        encoder.zero_grad()
        value = run(x)
        value.backward()
        found.append((value.item(), encoder.weight.grad.clone()))
    assert compiled.stats.hits == 1
    for value, grad in found[1:]:
        assert abs(value - found[0][0]) < 1e-5
        np.testing.assert_allclose(grad, found[0][1], rtol=1e-4, atol=1e-6)


def test_a_captured_distribution_in_compiled_code() -> None:
    dist = D.Normal(jitgrad.zeros(3), jitgrad.full((3,), 2.0))

    @jitgrad.jit(fallback="error")
    def f(x):
        return dist.log_prob(x).sum()

    x = jitgrad.ones(3)
    first = f(x).item()
    assert abs(f(x).item() - first) < 1e-6 and f.stats.hits == 1
    dist.scale = jitgrad.ones(3)
    assert abs(f(x).item() - f.__wrapped__(x).item()) < 1e-6


def test_cached_tanh_of_saturated_actions() -> None:
    base = D.Normal(jitgrad.full((2,), 20.0), jitgrad.ones(2))
    dist = D.TransformedDistribution(base, [D.TanhTransform(cache_size=1)])
    action = dist.rsample()
    assert action.tolist() == [1.0, 1.0]
    dist = D.TransformedDistribution(base, dist.transforms, validate_args=False)
    assert jitgrad.isfinite(dist.log_prob(action)).all()


def test_distributions_inside_vmap() -> None:
    means, x = jitgrad.randn(4, 3), jitgrad.randn(3)
    mapped = jitgrad.vmap(lambda m: D.Normal(m, 1.0).log_prob(x).sum())(means)
    loop = jitgrad.stack([D.Normal(m, 1.0).log_prob(x).sum() for m in means])
    assert jitgrad.allclose(mapped, loop)


def test_paths_of_distributions() -> None:
    from jitgrad.distributions.categorical import Categorical
    from jitgrad.distributions.kl import kl_divergence
    from jitgrad.distributions.utils import broadcast_all

    assert Categorical is D.Categorical and kl_divergence is D.kl_divergence
    assert jitgrad.distributions.normal.Normal is D.Normal
    pair = broadcast_all(jitgrad.ones(2, 1), jitgrad.ones(3))
    assert [tuple(x.shape) for x in pair] == [(2, 3)] * 2
    with pytest.raises(AttributeError, match="not there yet"):
        jitgrad.distributions.normal.nothing_like_it  # noqa: B018


def test_reprs_of_what_is_composed() -> None:
    def reprs(d, ones):
        mixture = d.MixtureSameFamily(d.Categorical(logits=ones(2)), d.Normal(ones(2), ones(2)))
        composed = d.ComposeTransform([d.ExpTransform(), d.SigmoidTransform().inv])
        return [repr(mixture), repr(composed)]

    found = reprs(D, jitgrad.ones)
    wanted = reprs(torch.distributions, torch.ones)
    assert [x.replace("jitgrad.", "torch.") for x in found] == wanted


TRANSFORMS = {
    "cat": lambda d: d.CatTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)], 0, [1, 2]),
    "cat last": lambda d: d.CatTransform([d.ExpTransform(), d.SigmoidTransform()], -1),
    "cat events": lambda d: d.CatTransform([d.IndependentTransform(d.ExpTransform(), 1)] * 3),
    "stack": lambda d: d.StackTransform([d.ExpTransform(), d.AffineTransform(1.0, -2.0)], 1),
    "reshape": lambda d: d.ReshapeTransform((2,), (1, 2)),
    "cdf": lambda d: d.CumulativeDistributionTransform(d.Normal(0.25, 2.0)),
    "cdf of parts": lambda d: d.StackTransform(
        [d.CumulativeDistributionTransform(d.Laplace(0.0, 1.0)), d.TanhTransform()], -1
    ),
    "composed": lambda d: d.ComposeTransform(
        [
            d.StackTransform([d.ExpTransform(), d.SoftplusTransform()], 1),
            d.ReshapeTransform((2,), (2, 1)),
        ]
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_joined_transforms(name) -> None:
    x = RNG.uniform(-1.5, 1.5, (3, 2))

    def code(lib, x):
        t = TRANSFORMS[name](distributions(lib))
        y = t(x)
        return y, t.inv(y), t.log_abs_det_jacobian(x, y) + 0 * x.sum()

    check(code, x, scale=1e3)
    ours, theirs = (TRANSFORMS[name](distributions(lib)) for lib in LIBS)
    for a in ("domain", "codomain"):
        assert getattr(ours, a).event_dim == getattr(theirs, a).event_dim
    assert ours.bijective == theirs.bijective
    shape = (4, 3, 2)
    assert tuple(ours.forward_shape(shape)) == tuple(theirs.forward_shape(shape))
    cached = ours.with_cache()
    y = cached(value := jitgrad.from_numpy(x))
    assert cached.inv(y) is value and ours.with_cache(0) is ours
    compiled = jitgrad.jit(lambda x: code(OURS, x)[:3], fallback="error")
    for _ in range(2):
        for a, b in zip(compiled(value), code(OURS, value), strict=True):
            same(a, b, scale=1e3)


def test_transforms_refuse() -> None:
    for f in (
        lambda lib, d: d.CatTransform([d.ExpTransform()])(lib.t.ones(2)),
        lambda lib, d: d.StackTransform([d.ExpTransform()])(lib.t.ones(2)),
        lambda lib, d: d.CatTransform([d.ExpTransform()], 3)(lib.t.ones(1)),
        lambda lib, d: d.ReshapeTransform((2,), (3,)),
        lambda lib, d: d.ReshapeTransform((2,), (1, 2))(lib.t.ones(3)),
        lambda lib, d: d.ReshapeTransform((2,), (1, 2)).forward_shape((3,)),
        lambda lib, d: d.ReshapeTransform((2,), (1, 2)).event_dim,
        lambda lib, d: d.StackTransform([3]),
        lambda lib, d: d.Binomial(lib.t.tensor([3.0, 4.0]), lib.t.tensor([0.5, 0.5])).entropy(),
    ):
        raises_alike(lambda lib, f=f: f(lib, distributions(lib)))


def test_entropy_of_counts() -> None:
    """Against the sums themselves; at certain outcomes, too; compiled."""
    p = units(3)

    def code(lib, p):
        d = distributions(lib)
        rows = lib.t.stack([p, 1 - p], -1)
        return (
            d.Binomial(5, p).entropy(),
            d.Binomial(lib.t.tensor(4.0), p).entropy(),
            d.Multinomial(1, rows).entropy(),
        )

    check(code, p, scale=1e6)  # PyTorch computes log n! in float32
    chances = np.array([0.2, 0.5, 0.3])
    assert (
        abs(
            stats.multinomial(4, chances).entropy()
            - D.Multinomial(4, jitgrad.from_numpy(chances)).entropy().item()
        )
        < 1e-12
    )
    assert D.Binomial(3, jitgrad.tensor([0.0, 1.0])).entropy().abs().max() < 1e-5
    compiled = jitgrad.jit(lambda p: D.Binomial(5, p).entropy(), fallback="error")
    for _ in range(2):
        same(compiled(jitgrad.from_numpy(p)), D.Binomial(5, jitgrad.from_numpy(p)).entropy())
