"""LKJCholesky, Wishart, transforms that make matrices and how transforms are put together,
biject_to and transform_to, in both libraries."""

import numpy as np
import pytest
from parity.compare import LIBS, check, raises_alike, same, tensors
from parity.test_distributions import distributions, positives, reals, spd, tril

import jitgrad
from jitgrad import distributions as D


def correlation_factor(n, *batch):
    a = tril(n, *batch)
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


CASES = {
    "LKJ 3": (lambda d, a: d.LKJCholesky(3, a), (positives(2),), correlation_factor(3, 4, 2)),
    "LKJ 2": (lambda d, a: d.LKJCholesky(2, a), (positives(),), correlation_factor(2)),
    "Wishart": (
        lambda d, n, v: d.Wishart(n + 3, covariance_matrix=v), (positives(2), spd(3)), spd(3, 5, 2)
    ),
    "Wishart precision": (
        lambda d, n, v: d.Wishart(n + 2, precision_matrix=v), (positives(), spd(2)), spd(2, 3)
    ),
    "Wishart factor": (
        lambda d, n, v: d.Wishart(n + 3, scale_tril=v), (positives(), tril(3, 2)), spd(3, 2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_density_and_figures(name):
    make, parameters, events = CASES[name]
    check(
        lambda lib, e, *ps: make(distributions(lib), *ps).log_prob(e), events, *parameters,
        scale=1e4,  # PyTorch's digamma
    )  # fmt: skip
    ours, theirs = (make(distributions(lib), *tensors(lib, parameters, False)) for lib in LIBS)
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    assert ours.sample((5,)).shape == tuple(theirs.sample((5,)).shape)
    assert ours.has_rsample == theirs.has_rsample
    if name.startswith("Wishart"):
        for what in ("mean", "mode", "variance", "scale_tril", "precision_matrix"):
            same(getattr(ours, what), getattr(theirs, what), what, 1e3)
        same(ours.entropy(), theirs.entropy(), "entropy", 1e4)
    wider = (6, *ours.batch_shape)
    expanded = [dist.expand(wider) for dist in (ours, theirs)]
    assert tuple(expanded[0].batch_shape) == wider
    one = events.reshape(-1, *ours.event_shape)[0]
    values = [
        d.log_prob(*tensors(lib, [one], False)) for d, lib in zip(expanded, LIBS, strict=True)
    ]
    same(*values, "expanded", 1e4)


@pytest.mark.parametrize("name", ["LKJ 3", "Wishart"])
def test_samples(name):
    jitgrad.manual_seed(0)
    make, parameters, _ = CASES[name]
    dist = make(D, *tensors(LIBS[0], parameters, False))
    x = dist.sample((4000,))
    if name == "Wishart":
        error = (x.mean(0) - dist.mean).abs() / dist.variance.sqrt()
        assert error.max() < 5 / 4000**0.5
    else:  # the correlation of two is 2 Beta(a, a) - 1, a = concentration + (n - 2) / 2
        correlation = (x @ x.mT)[..., 1, 0]
        a = dist.concentration + 0.5
        assert (correlation.mean(0).abs() < 0.06).all()
        np.testing.assert_allclose(correlation.var(0), 1 / (2 * a + 1), rtol=0.1)
    assert dist.support.check(x).all()


def test_the_path_of_a_wishart_sample():
    v = jitgrad.from_numpy(spd(2)).requires_grad_()
    jitgrad.manual_seed(0)
    D.Wishart(5.0, v).rsample().trace().backward()
    assert v.grad.abs().sum() > 0


TRANSFORMS = {
    "corr": (lambda d: d.transforms.CorrCholeskyTransform(), reals(4, 6)),
    "corr of one": (lambda d: d.transforms.CorrCholeskyTransform(), reals(1)),
    "independent": (lambda d: d.IndependentTransform(d.ExpTransform(), 1), reals(2, 3)),
    "independent twice": (
        lambda d: d.IndependentTransform(d.SigmoidTransform(), 2), reals(4, 2, 3)
    ),
    "sticks after affine": (
        lambda d: d.ComposeTransform([d.AffineTransform(0.5, 2.0), d.StickBreakingTransform()]),
        reals(2, 3),
    ),
    "corr after exp": (
        lambda d: d.ComposeTransform(
            [d.ExpTransform(), d.transforms.CorrCholeskyTransform()]), reals(2, 3) / 4
    ),
    "affine of vectors": (lambda d: d.AffineTransform(1.0, -3.0, event_dim=1), reals(2, 3)),
    "inverse": (lambda d: d.StickBreakingTransform().inv.inv, reals(2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    make, x = TRANSFORMS[name]
    shapes = []

    def code(lib, x):
        t = make(distributions(lib))
        y = t(x)
        shapes.append((tuple(t.forward_shape(x.shape)), tuple(t.inverse_shape(y.shape)),
                       t.domain.event_dim, t.codomain.event_dim, tuple(y.shape)))  # fmt: skip
        return y, t.log_abs_det_jacobian(x, y), t.inv(y)

    check(code, x, scale=1e4)
    assert shapes[0] == shapes[1]
    assert shapes[0][0] == shapes[0][4] and shapes[0][1] == x.shape


def test_the_jacobian_of_corr_is_that_of_its_function():
    t = D.CorrCholeskyTransform()
    x = jitgrad.from_numpy(reals(6))
    rows, columns = np.tril_indices(4, -1)
    below = jitgrad.func.jacrev(lambda x: t(x)[rows, columns])(x)
    found = jitgrad.linalg.slogdet(below).logabsdet
    np.testing.assert_allclose(t.log_abs_det_jacobian(x, t(x)), found, rtol=1e-10)


def test_matrices_without_a_jacobian():
    def code(lib, x):
        d = distributions(lib).transforms
        factor, definite = d.LowerCholeskyTransform(), d.PositiveDefiniteTransform()
        return factor(x), factor.inv(factor(x)), definite(x), definite.inv(definite(x))

    check(code, reals(2, 3, 3), scale=1e4)


def test_wishart_wants_one_matrix():
    for matrices in ((), (jitgrad.eye(2), jitgrad.eye(2))):  # in PyTorch an assert
        with pytest.raises(ValueError, match="Exactly one"):
            D.Wishart(3.0, *matrices)


CONSTRAINED = ["real", "positive", "nonnegative", "unit_interval", "simplex", "lower_cholesky",
               "positive_definite", "corr_cholesky", "real_vector"]  # fmt: skip
BOUNDED = {
    "greater": lambda c: c.greater_than(2.0), "at least": lambda c: c.greater_than_eq(-1),
    "less": lambda c: c.less_than(3.0), "between": lambda c: c.interval(-1.0, 4.0),
    "half open": lambda c: c.half_open_interval(0.0, 1.0),
    "vectors": lambda c: c.independent(c.positive, 1), "unit": lambda c: c.interval(0, 1),
    **{name: lambda c, name=name: getattr(c, name) for name in CONSTRAINED},
}  # fmt: skip


@pytest.mark.parametrize("registry", ["biject_to", "transform_to"])
@pytest.mark.parametrize("name", BOUNDED)
def test_to_a_constraint(registry, name):
    x = reals(2, 3, 3)
    if registry == "biject_to" and name in ("lower_cholesky", "positive_definite"):
        raises_alike(
            lambda lib: distributions(lib).biject_to(getattr(distributions(lib).constraints, name))
        )
        return

    def code(lib, x):
        d = distributions(lib)
        constraint = BOUNDED[name](d.constraints)
        t = getattr(d, registry)(constraint)
        y = t(x)
        assert bool(constraint.check(y).all())
        return y, t.inv(y)

    check(code, x, scale=1e4)
    compiled = jitgrad.jit(lambda x: code(LIBS[0], x)[0], fallback="silent")
    same(compiled(LIBS[0].t.from_numpy(x)), code(LIBS[0], LIBS[0].t.from_numpy(x))[0])


def test_registering_a_constraint():
    for lib in LIBS:
        d = distributions(lib)

        class Mine(d.constraints.Constraint):
            pass

        with pytest.raises(NotImplementedError):
            d.biject_to(Mine())

        @d.biject_to.register(Mine)
        def made(constraint, d=d):
            return d.TanhTransform()

        assert type(d.biject_to(Mine())).__name__ == "TanhTransform"
        with pytest.raises(NotImplementedError):
            d.transform_to(Mine())


ERRORS = [
    lambda d, t: d.LKJCholesky(1),
    lambda d, t: d.LKJCholesky(3, -1.0),
    lambda d, t: d.LKJCholesky(2).log_prob(t.ones(2, 2)),
    lambda d, t: d.Wishart(0.5, t.eye(2)),
    lambda d, t: d.Wishart(3.0, -t.eye(2)),
    lambda d, t: d.Wishart(3.0, t.ones(2)),
    lambda d, t: d.biject_to.register(3, 4),
    lambda d, t: d.biject_to(d.constraints.boolean),
    lambda d, t: d.transforms.CorrCholeskyTransform().forward_shape((4,)),
    lambda d, t: d.TransformedDistribution(d.Normal(0.0, 1.0), d.StickBreakingTransform()),
]


@pytest.mark.parametrize("call", ERRORS)
def test_errors(call):
    # PyTorch's own compiler, which other tests run, switches the checks off for good.
    for lib in LIBS:
        distributions(lib).Distribution.set_default_validate_args(True)
    raises_alike(lambda lib: call(distributions(lib), lib.t))


TRANSFORMED = {
    "parameters larger than the base": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(0.0 * a[0], 1.0), d.AffineTransform(a, b)),
        (reals(3), positives(3)), reals(2, 3),
    ),
    "exponent larger than the base": (
        lambda d, a, b: d.TransformedDistribution(d.Gamma(b[0], 1.0), d.PowerTransform(b)),
        (reals(3), positives(3)), positives(2, 3),
    ),
    "to correlations": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(a, b), [d.AffineTransform(0.1, 0.5), d.transforms.CorrCholeskyTransform()]),
        (reals(2, 3), positives(2, 3)), correlation_factor(3, 4, 2),
    ),
    "sticks in a composition": (
        lambda d, a, b: d.TransformedDistribution(
            d.Normal(a, b), d.ComposeTransform(
                [d.AffineTransform(0.1, 0.5), d.StickBreakingTransform()])),
        (reals(2, 3), positives(2, 3)), np.full((5, 2, 4), 0.25),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_distribution(name):
    make, parameters, events = TRANSFORMED[name]
    check(
        lambda lib, e, *ps: make(distributions(lib), *ps).log_prob(e), events, *parameters,
        scale=1e5,
    )  # fmt: skip
    ours, theirs = (make(distributions(lib), *tensors(lib, parameters, False)) for lib in LIBS)
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    assert ours.sample((7,)).shape == tuple(theirs.sample((7,)).shape)


AT_ZERO = {
    "Bernoulli": lambda d, x: d.Bernoulli(logits=x).log_prob(x * 0),
    "Bernoulli entropy": lambda d, x: d.Bernoulli(logits=x).entropy(),
    "Binomial": lambda d, x: d.Binomial(3, logits=x).log_prob(x * 0 + 1),
    "NegativeBinomial": lambda d, x: d.NegativeBinomial(3, logits=x).log_prob(x * 0 + 1),
    "ContinuousBernoulli": lambda d, x: d.ContinuousBernoulli(logits=x).log_prob(x * 0 + 0.3),
    "divergence": lambda d, x: d.kl_divergence(d.Bernoulli(logits=x), d.Bernoulli(logits=x * 2)),
    "softplus": lambda d, x: d.transforms.SoftplusTransform()(x),
    "sigmoid": lambda d, x: d.SigmoidTransform().log_abs_det_jacobian(x, x),
    "tanh": lambda d, x: d.TanhTransform().log_abs_det_jacobian(x, x),
    "sticks": lambda d, x: d.TransformedDistribution(
        d.Normal(x, 1.0), d.StickBreakingTransform()
    ).log_prob((x[:1].expand(4) + 1) / 4),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_gradients_at_zero(name):
    """Where people begin: logits that are zeros."""
    check(lambda lib, x: AT_ZERO[name](distributions(lib), x), np.zeros(3), scale=100)
