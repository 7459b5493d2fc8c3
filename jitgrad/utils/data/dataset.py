"""Datasets: map-style and iterable, and ways to combine and split them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from jitgrad.creation import randperm
from jitgrad.random import Generator
from jitgrad.tensor import Tensor

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """A map from index to sample: define `__getitem__`, and `__len__` for samplers."""

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError("[Dataset] expected the subclass to define __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """A stream of samples: define `__iter__`."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("[IterableDataset] expected the subclass to define __iter__")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Samples are tensors indexed along their first dimension."""

    def __init__(self, *tensors: Tensor) -> None:
        if any(len(t) != len(tensors[0]) for t in tensors):
            raise AssertionError(
                "[TensorDataset] Size mismatch between tensors: expected one first dim; got "
                f"{[tuple(t.shape) for t in tensors]}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[Any]):
    """The samples of a dataset at the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """Datasets one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if index < -len(self) or index >= len(self):
            raise IndexError(f"[ConcatDataset] index {index} is out of range for {len(self)}")
        index %= len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Splits into subsets of the given lengths, or of fractions that sum to 1, at random.

    What fractions leave over goes one by one to the first subsets. Raises ValueError for lengths
    that do not add up to the dataset's.
    """
    if any(x < 0 for x in lengths):
        raise ValueError(f"[random_split] expected lengths of at least 0; got {list(lengths)}")
    sizes: list[int]
    if abs(sum(lengths) - 1) < 1e-9 and all(0 <= x <= 1 for x in lengths):
        sizes = [int(len(dataset) * x) for x in lengths]
        for i in range(len(dataset) - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(x) for x in lengths]
    if sum(sizes) != len(dataset):
        raise ValueError(
            "[random_split] Sum of input lengths does not equal the length of the input dataset! "
            f"got {list(lengths)} for {len(dataset)} samples"
        )
    order = randperm(len(dataset), generator=generator).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[e - n : e]) for e, n in zip(ends, sizes, strict=True)]
