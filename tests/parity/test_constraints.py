"""Constraints of matrices and of parts, and what users derive from distributions' classes."""

import pytest
from parity.compare import LIBS, flat, same

CHECKS = """
c.square.check(x)
c.square.check(x[:1])
c.symmetric.check(x)
c.symmetric.check(x.triu())
c.symmetric.check(x[:1])
c.positive_semidefinite.check(x)
c.positive_semidefinite.check(-x)
c.positive_definite.check(x[:1])
c.multinomial(3).check(x)
c.multinomial(2).check(-x)
c.cat([c.positive, c.greater_than(1.5)], 0).check(x)
c.cat([c.positive, c.real], 1, [1, 1]).check(-x)
c.stack([c.positive, c.greater_than(1.5)], -1).check(x)
c.MixtureSameFamilyConstraint(c.positive).check(-x)
c.MixtureSameFamilyConstraint(c.simplex).check(x / 3)
Square(t.tensor(2.0)).sample().shape
Own(x[0]).entropy()
D.Normal(x, 1.0).log_prob(x) if isinstance(D.Normal(x, 1.0), D.ExponentialFamily) else None
D.LowRankMultivariateNormal(x[0], x, x[1]).entropy()
D.LowRankMultivariateNormal(x[0], x, x[1]).log_prob(x)
D.LowRankMultivariateNormal(x[0], x, x[1]).mode
D.Kumaraswamy(x, 2.0).mean
D.Beta(x, 2.0).entropy()
""".strip().splitlines()


def users(lib):
    """Classes that a user writes: a support that depends on parameters, a family's entropy."""
    d = lib.t.distributions

    class Square(d.Uniform):
        @d.constraints.dependent_property(is_discrete=False, event_dim=0)
        def support(self):
            return d.constraints.interval(0.0, self.high)

        def __init__(self, high):
            super().__init__(high * 0, high)

    class Own(d.ExponentialFamily):
        arg_constraints = {}
        _mean_carrier_measure = 0

        def __init__(self, rate):
            self.rate = rate
            super().__init__(rate.shape)

        @property
        def _natural_params(self):
            return (-self.rate,)

        def _log_normalizer(self, x):
            return -lib.t.log(-x)

    return {"Square": Square, "Own": Own}


@pytest.mark.parametrize("code", CHECKS)
def test_constraint(code):
    found = []
    for lib in LIBS:
        d = lib.t.distributions
        scope = {
            "t": lib.t,
            "D": d,
            "c": d.constraints,
            "x": lib.t.tensor([[2.0, 1.0], [1.0, 2.0]]),
        }
        found.append(flat(eval(code, {**scope, **users(lib)})))
    for ours, theirs in zip(*found, strict=True):
        if hasattr(theirs, "detach"):
            same(ours, theirs, code, 4)
        else:
            assert ours == theirs


def test_what_depends():
    for lib in LIBS:
        c = lib.t.distributions.constraints
        square = users(lib)["Square"]
        assert c.is_dependent(square.support) and square.support.event_dim == 0
        assert not c.is_dependent(square(lib.t.tensor(2.0)).support)
        with pytest.raises(AssertionError):
            c.MixtureSameFamilyConstraint(1)
        with pytest.raises(AssertionError):
            c.cat([c.real], 0, [1, 2])
        with pytest.raises(NotImplementedError):
            lib.t.distributions.Poisson(lib.t.tensor(1.0)).entropy()
