"""Samplers: in which order a loader asks for samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from jitgrad.creation import as_tensor, multinomial, randint, randperm
from jitgrad.random import Generator
from jitgrad.runtime.dtypes import float64

T = TypeVar("T", covariant=True)


_DRAWN = 1024  # indices drawn at once with replacement


class Sampler(Generic[T]):
    """Base class: define `__iter__` over indices, and `__len__`."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("[Sampler] expected the subclass to define __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """A random permutation, or with `replacement`, independent draws."""

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(replacement, bool):
            raise TypeError(
                f"[RandomSampler] expected replacement to be a bool; got {replacement!r}"
            )
        self.data_source, self.replacement = data_source, replacement
        self._num_samples, self.generator = num_samples, generator
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                "[RandomSampler] num_samples should be a positive integer value; got "
                f"num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, count = len(self.data_source), self.num_samples
        generator = self.generator
        if generator is None:  # one of its own: what else is drawn meanwhile changes nothing
            generator = Generator().manual_seed(int(randint(0, 2**63 - 1, ())))
        if self.replacement:
            for start in range(0, count, _DRAWN):
                size = min(_DRAWN, count - start)
                yield from randint(0, n, (size,), generator=generator).tolist()
            return
        for start in range(0, count, n):
            yield from randperm(n, generator=generator).tolist()[: count - start]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """num_samples indices drawn with probabilities proportional to `weights`.

    Without replacement, at most as many as there are weights. Raises ValueError for num_samples
    that is no positive int, or weights that are no vector.
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(
                "[WeightedRandomSampler] num_samples should be a positive integer; got "
                f"num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(
                "[WeightedRandomSampler] replacement should be a boolean value; got "
                f"replacement={replacement}"
            )
        self.weights = as_tensor(weights, dtype=float64)
        if self.weights.dim() != 1:
            raise ValueError(
                "[WeightedRandomSampler] weights should be a 1d sequence; got "
                f"{tuple(self.weights.shape)}"
            )
        self.num_samples, self.replacement = num_samples, replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        yield from multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        ).tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[Any]]):
    """Lists of batch_size indices of another sampler."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
