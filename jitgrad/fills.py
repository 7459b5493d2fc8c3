"""In-place random fills: normal_, uniform_, bernoulli_ and their kin.

Every one is a draw of a random record (or a function of one) and an assign, so eager and compiled
code fill with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jitgrad import creation
from jitgrad.dispatch import assign, check_inplace
from jitgrad.functions.args import expect_range
from jitgrad.promotion import cast
from jitgrad.random import Generator
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor


def _fill(self: Tensor, values: Tensor) -> Tensor:
    assign(self, cast(values, self.dtype))
    return self


def _draw_dtype(name: str, self: Tensor) -> DType:
    if not self.dtype.is_floating_point:
        raise NotImplementedError(
            f"[{name}] expected a floating tensor to fill with random numbers; got {self._type}"
        )
    return self.dtype


def _uniform(self: Tensor, generator: Generator | None, dtype: DType) -> Tensor:
    return creation.draw("uniform", tuple(self._type.shape), dtype, generator, self._type.device)


def _nothing_more(name: str, more: dict[str, Any]) -> None:
    if more:
        raise TypeError(f"{name}(): got an unexpected keyword argument {next(iter(more))!r}")


def normal_(
    self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Filled with normal numbers. Raises RuntimeError for a negative std."""
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    if self.is_complex():
        draw = creation.randn(self._type.shape, generator=generator, dtype=self.dtype)
    else:
        dtype = _draw_dtype("normal_", self)
        draw = creation.draw("normal", tuple(self._type.shape), dtype, generator, self._type.device)
    check_inplace(self)
    return _fill(self, draw * std + mean)


def log_normal_(
    self: Tensor, mean: Any = 1.0, std: Any = 2.0, *, generator: Generator | None = None
) -> Tensor:
    """Filled with exp of normal numbers of this mean and std."""
    if not std > 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    dtype = _draw_dtype("log_normal_", self)
    draw = creation.draw("normal", tuple(self._type.shape), dtype, generator, self._type.device)
    return _fill(self, (draw * std + mean).exp())


def uniform_(
    self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Generator | None = None,
    **more: Any,
) -> Tensor:  # fmt: skip
    """Filled with uniform numbers in [from, to)."""
    low, high = more.pop("from", from_), to
    _nothing_more("uniform_", more)
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}"
        )
    if self.is_complex():  # both parts
        draw = creation.rand(self._type.shape, generator=generator, dtype=self.dtype)
        return _fill(self, draw * (high - low) + complex(low, low))
    draw = _uniform(self, generator, _draw_dtype("uniform_", self))
    return _fill(self, draw * (high - low) + low)


def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Filled with ones of probability p (a number, or a tensor of probabilities), zeros else."""
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    if isinstance(p, Tensor):
        text = "[bernoulli_] Expected p_in >= 0 && p_in <= 1; got {value}"
        p = expect_range(p.detach(), 0.0, 1.0, RuntimeError, text)
    draw = _uniform(self, generator, dtypes.float32)
    return _fill(self, draw < p)


def exponential_(self: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Filled with exponentially distributed numbers of rate lambd."""
    if not lambd > 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    draw = _uniform(self, generator, _draw_dtype("exponential_", self))
    return _fill(self, -(-draw).log1p() / lambd)


def geometric_(self: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Filled with numbers of trials until the first success of probability p: 1, 2, ..."""
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    if self.dtype is dtypes.bool_:
        raise RuntimeError(f"[geometric_] expected a number dtype; got {self._type}")
    draw = _uniform(self, generator, dtypes.float64)
    trials = ((-draw).log1p() / math.log1p(-p)).ceil()
    return _fill(self, trials.clamp(min=1))


def cauchy_(
    self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Filled with Cauchy-distributed numbers: median + sigma tan(pi (u - 1/2)), u uniform."""
    if not sigma > 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    _draw_dtype("cauchy_", self)
    draw = _uniform(self, generator, dtypes.float64)
    return _fill(self, ((draw - 0.5) * math.pi).tan() * sigma + median)


def random_(
    self: Tensor, from_: int = 0, to: int | None = None, *, generator: Generator | None = None,
    **more: Any,
) -> Tensor:  # fmt: skip
    """Filled with integers in [from, to): random_(to) starts at 0, random_() goes as far as the
    dtype counts exactly."""
    from_ = more.pop("from", from_)
    _nothing_more("random_", more)
    low, high = (from_, to) if to is not None else (0, from_)
    if to is None and from_ == 0:
        bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
        signed = 1 if self.dtype.signed else 0
        high = 2 ** bits.get(self.dtype.name, self.dtype.bits - signed)
    if low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )
    where = self._type.device
    values = creation.random_integers(tuple(self._type.shape), high - low, generator, where) + low
    return _fill(self, values)


FILLS: tuple[Callable[..., Tensor], ...] = (
    normal_, log_normal_, uniform_, bernoulli_, exponential_, geometric_, cauchy_, random_,
)  # fmt: skip
"""The methods made here."""
