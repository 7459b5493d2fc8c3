"""Random draws whose algorithms need loops over values: standard_gamma, poisson, binomial.

Owns their records: ops without a loop form (`Op.host`) that call NumPy's samplers, seeded by (seed,
draw), so the same seed gives the same numbers, eager and compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator, Philox

from jitgrad.compiler.ops.record import Op, Sample, op
from jitgrad.compiler.types import TensorType


class Sampled(Op):
    """Operands: seed and draw, 0-d int64, then parameters of one shape and floating dtype, which
    are the result's. Raises where a parameter is not as the distribution asks."""

    random = True
    host = True
    checked = True
    differentiable = False
    count = 1

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        parameters = types[2:]
        first = parameters[0]
        self.expect(
            len(parameters) == self.count and all(t == first for t in parameters),
            f"expected {self.count} parameters of one shape and dtype; got "
            + ", ".join(map(str, parameters)),
        )
        self.expect(
            first.dtype.is_floating_point, f"expected a floating tensor; got {first}; use .float()"
        )
        return first

    def draw(self, source: Generator, *parameters: np.ndarray) -> Any:
        """The numbers, from float64 parameters."""
        raise NotImplementedError(self.name)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        seed, number = (int(x) for x in arrays[:2])
        key = Philox(key=seed % 2**64, counter=[0, 0, 0, number])
        wide = [x.astype(np.float64) for x in arrays[2:]]
        values = self.draw(Generator(key), *wide)
        return np.asarray(values, np.float64).astype(arrays[2].dtype)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        raise RuntimeError(
            f"[{self.name}] expected to be called outside of vmap: its draws are not numbered by "
            "example; draw before vmap and pass the numbers in"
        )

    def sample(self, *parameters: Any) -> Sample:
        arrays = (np.asarray(p) for p in parameters)
        return Sample((np.asarray(5), np.asarray(3), *arrays), grad=False)


class StandardGamma(Sampled):
    """Gamma-distributed numbers of rate 1. The derivative moves each along with its quantile."""

    name = "standard_gamma"
    differentiable = True
    saves = (2, "out")

    def draw(self, source: Generator, *parameters: np.ndarray) -> Any:
        (shapes,) = parameters
        self.expect(bool((shapes > 0).all()), "expected concentrations above 0")
        return source.standard_gamma(shapes)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return None, None, op.mul(g, op.standard_gamma_slope(operands[2], out))

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        t = tangents[2]
        return None if t is None else op.mul(t, op.standard_gamma_slope(operands[2], out))

    def samples(self) -> Iterable[Sample]:
        yield self.sample(np.linspace(0.1, 9.0, 12).reshape(3, 4))
        yield self.sample(np.ones((0, 2), np.float32))


class Poisson(Sampled):
    """Poisson-distributed numbers."""

    name = "poisson"

    def draw(self, source: Generator, *parameters: np.ndarray) -> Any:
        (rates,) = parameters
        if not (rates >= 0).all():
            bad = rates[~(rates >= 0)][0]
            raise RuntimeError(
                f"[poisson] invalid Poisson rate, expected rate to be non-negative; got {bad}"
            )
        return source.poisson(rates)

    def samples(self) -> Iterable[Sample]:
        yield self.sample(np.linspace(0, 9.0, 12, dtype=np.float32).reshape(3, 4))
        yield self.sample(np.ones((0, 2)))


class Binomial(Sampled):
    """Numbers of successes in so many trials of a probability."""

    name, count = "binomial", 2

    def draw(self, source: Generator, *parameters: np.ndarray) -> Any:
        trials, chance = parameters
        self.expect(
            bool(((chance >= 0) & (chance <= 1)).all() and (trials >= 0).all()),
            "expected counts of at least 0 and probabilities in [0, 1]",
        )
        return source.binomial(trials.astype(np.int64), chance)

    def samples(self) -> Iterable[Sample]:
        yield self.sample(np.full((3, 4), 10.0), np.linspace(0, 1, 12).reshape(3, 4))


class VonMises(Sampled):
    """Angles around 0, from -pi to pi, of von Mises's distribution with these concentrations."""

    name = "von_mises"

    def draw(self, source: Generator, *parameters: np.ndarray) -> Any:
        (concentrations,) = parameters
        self.expect(bool((concentrations >= 0).all()), "expected concentrations of at least 0")
        return source.vonmises(0.0, concentrations)

    def samples(self) -> Iterable[Sample]:
        yield self.sample(np.linspace(0, 9.0, 12, dtype=np.float32).reshape(3, 4))


standard_gamma, poisson, binomial = StandardGamma(), Poisson(), Binomial()
von_mises = VonMises()
