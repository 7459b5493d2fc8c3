"""Random numbers whose algorithms need loops over values: poisson, binomial, standard_gamma,
von_mises.

Records: compiler/ops/sampling.py. The same seed gives the same numbers, eager and compiled.
"""

from __future__ import annotations

from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.promotion import cast
from jitgrad.random import Generator, next_draw
from jitgrad.tensor import Tensor


def _drawn(name: str, generator: Generator | None, *parameters: Tensor) -> Tensor:
    return apply(OPS[name], (*next_draw(generator), *parameters), {})


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson-distributed numbers with these rates, in input's dtype.

    Raises RuntimeError for a negative rate.
    """
    return _drawn("poisson", generator, input)


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` trials of probability `prob`, in count's dtype."""
    return _drawn("binomial", generator, count, cast(prob, count.dtype).expand(count.shape))


def sample_dirichlet(self: Tensor, generator: Generator | None = None) -> Tensor:
    """Dirichlet numbers for concentrations (..., K): rows of positive numbers whose sum is 1."""
    drawn = standard_gamma(self, generator)
    return drawn / drawn.sum(-1, keepdim=True)


def standard_gamma(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Gamma-distributed numbers of rate 1, in concentration's dtype.

    The derivative by the concentration is that of the number at its quantile (implicit
    reparameterization). Raises RuntimeError for a concentration that is not positive.
    """
    return _drawn("standard_gamma", generator, concentration)


def von_mises(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Angles around 0 of von Mises's distribution, in concentration's dtype, off the tape."""
    return _drawn("von_mises", generator, concentration)
