"""Random numbers whose algorithms need loops over values: poisson, binomial.

They are NumPy's samplers, seeded by the generator's (seed, draw), so the same seed gives the same
numbers; they read their arguments, so they end a trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.promotion import cast
from jitgrad.random import Generator, next_draw
from jitgrad.tensor import Tensor, wrap_array


def _sampler(generator: Generator | None) -> np.random.Generator:
    seed, draw = (int(x._array("random draw")) for x in next_draw(generator))
    return np.random.Generator(np.random.Philox(key=seed % 2**64, counter=[0, 0, 0, draw]))


def _floating(name: str, x: Tensor) -> np.ndarray[Any, Any]:
    if not x.is_floating_point():
        raise RuntimeError(f"[{name}] expected a floating tensor; got {x._type}; use .float()")
    return x.detach()._array(name).astype(np.float64)


def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Poisson-distributed numbers with these rates, in input's dtype. Ends a trace.

    Raises RuntimeError for a negative rate.
    """
    rates = _floating("poisson", input)
    if rates.size and not (rates >= 0).all():
        raise RuntimeError(f"invalid Poisson rate, expected rate to be non-negative; got {input}")
    values = _sampler(generator).poisson(rates)
    return cast(wrap_array(np.asarray(values, np.float64)), input.dtype)


def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of successes in `count` trials of probability `prob`, in count's dtype. Ends a
    trace."""
    trials, chance = _floating("binomial", count), _floating("binomial", prob)
    if not ((chance >= 0) & (chance <= 1)).all() or not (trials >= 0).all():
        raise RuntimeError("[binomial] expected counts of at least 0 and probabilities in [0, 1]")
    values = _sampler(generator).binomial(trials.astype(np.int64), chance)
    return cast(wrap_array(np.asarray(values, np.float64)), count.dtype)


def standard_gamma(concentration: Tensor, generator: Generator | None = None) -> Tensor:
    """Gamma-distributed numbers of rate 1, in concentration's dtype, off the tape. Ends a trace.

    Raises RuntimeError for a concentration that is not positive.
    """
    shapes = _floating("standard_gamma", concentration)
    if shapes.size and not (shapes > 0).all():
        raise RuntimeError("[standard_gamma] expected concentrations above 0")
    values = _sampler(generator).standard_gamma(shapes)
    return cast(wrap_array(np.asarray(values, np.float64)), concentration.dtype)
