"""Transforms made of transforms of parts, of another shape, and of a distribution function."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from jitgrad.creation import zeros
from jitgrad.distributions import constraints
from jitgrad.distributions.distribution import Distribution, sum_rightmost
from jitgrad.distributions.transforms import Transform
from jitgrad.functions.shape import cat, stack
from jitgrad.missing import missing
from jitgrad.tensor import Tensor


class ReshapeTransform(Transform):
    """The last dims, of shape in_shape, as out_shape."""

    def __init__(
        self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0
    ) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if _count(self.in_shape) != _count(self.out_shape):
            raise ValueError(
                f"in_shape, out_shape have different numbers of elements; got {self.in_shape} and "
                f"{self.out_shape}"
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def forward_shape(self, shape: Any) -> Any:
        return _exchanged(tuple(shape), self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Any) -> Any:
        return _exchanged(tuple(shape), self.out_shape, self.in_shape)

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape((*_lead(x, self.in_shape), *self.out_shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape((*_lead(y, self.out_shape), *self.in_shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return zeros(_lead(x, self.in_shape), dtype=x.dtype, device=x.device)


def _lead(x: Tensor, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The dims of x before those of a shape."""
    return tuple(x.shape[: x.dim() - len(shape)])


def _count(shape: tuple[Any, ...]) -> Any:
    return functools.reduce(operator.mul, shape, 1)


def _exchanged(shape: tuple[Any, ...], old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    cut = len(shape) - len(old)
    if cut < 0:
        raise ValueError(f"Too few dimensions on input; got {shape} for a shape {old}")
    if shape[cut:] != old:
        raise ValueError(f"Shape mismatch: expected {shape[cut:]} but got {old}")
    return shape[:cut] + new


class _Parts(Transform):
    """What joins transforms along a dim."""

    transforms: list[Transform]

    def _take(self, name: str, parts: Sequence[Transform], dim: int, cache_size: int) -> None:
        if not all(isinstance(t, Transform) for t in parts):
            kinds = ", ".join(type(t).__name__ for t in parts)
            raise AssertionError(f"[{name}] expected Transforms; got {kinds}")
        if cache_size:
            parts = [t.with_cache(cache_size) for t in parts]
        self.transforms, self.dim = list(parts), dim
        self.bijective = all(t.bijective for t in self.transforms)

    def _pieces(self, x: Tensor) -> list[Tensor]:
        """The part of x that each transform takes."""
        raise NotImplementedError(f"[{type(self).__name__}] defines _pieces")

    def _joined(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError(f"[{type(self).__name__}] defines _joined")

    def _call(self, x: Tensor) -> Tensor:
        both = zip(self.transforms, self._pieces(x), strict=True)
        return self._joined([t(part) for t, part in both])

    def _inverse(self, y: Tensor) -> Tensor:
        both = zip(self.transforms, self._pieces(y), strict=True)
        return self._joined([t._inv_call(part) for t, part in both])


class CatTransform(_Parts):
    """Each transform of the next part of x along a dim, of the sizes `lengths` (1 by default)."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(cache_size)
        self._take("CatTransform", tseq, dim, cache_size)
        self.lengths = list(lengths) if lengths is not None else [1] * len(self.transforms)
        if len(self.lengths) != len(self.transforms):
            raise AssertionError(
                f"[CatTransform] expected a length for each of {len(self.transforms)} transforms; "
                f"got {len(self.lengths)}"
            )
        self.domain = constraints.cat([t.domain for t in self.transforms], dim, self.lengths)
        self.codomain = constraints.cat([t.codomain for t in self.transforms], dim, self.lengths)

    @property
    def event_dim(self) -> int:
        return max(t.event_dim for t in self.transforms)

    @property
    def length(self) -> int:
        """The size of x along the dim."""
        return sum(self.lengths)

    def _pieces(self, x: Tensor) -> list[Tensor]:
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] != self.length:
            raise AssertionError(
                f"[CatTransform] expected a size of {self.length} in dim {self.dim}; got "
                f"{tuple(x.shape)}"
            )
        return list(x.split(self.lengths, self.dim))

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return cat(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = []
        for t, a, b in zip(self.transforms, self._pieces(x), self._pieces(y), strict=True):
            term = t.log_abs_det_jacobian(a, b)
            parts.append(sum_rightmost(term, self.event_dim - t.event_dim))
        dim = self.dim if self.dim < 0 else self.dim - x.dim()
        dim += self.event_dim
        if dim < 0:
            return cat(parts, dim)
        return functools.reduce(operator.add, parts)


class StackTransform(_Parts):
    """Each transform of one place of x along a dim."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self._take("StackTransform", tseq, dim, cache_size)
        self.domain = constraints.stack([t.domain for t in self.transforms], dim)
        self.codomain = constraints.stack([t.codomain for t in self.transforms], dim)

    def _pieces(self, x: Tensor) -> list[Tensor]:
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] != len(self.transforms):
            raise AssertionError(
                f"[StackTransform] expected a size of {len(self.transforms)} in dim {self.dim}; "
                f"got {tuple(x.shape)}"
            )
        return list(x.unbind(self.dim))

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return stack(parts, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        three = zip(self.transforms, self._pieces(x), self._pieces(y), strict=True)
        return stack([t.log_abs_det_jacobian(a, b) for t, a, b in three], self.dim)


class CumulativeDistributionTransform(Transform):
    """The distribution function of a distribution: numbers to [0, 1]."""

    codomain: constraints.Constraint = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:  # type: ignore[override]
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)


__getattr__ = missing(__name__)
