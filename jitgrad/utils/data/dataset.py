"""Datasets: map-style and iterable, and ways to combine and split them."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from jitgrad.creation import randperm
from jitgrad.random import Generator, default_generator
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor, wrap_array
from jitgrad.utils.data._utils.collate import are_plain

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """A map from index to sample: define `__getitem__`, and `__len__` for samplers."""

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError("[Dataset] expected the subclass to define __getitem__")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T], Iterable[T]):
    """A stream of samples: define `__iter__`.

    With workers, each has a copy of the dataset and iterates over it: `get_worker_info()` says
    which part to give.
    """

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("[IterableDataset] expected the subclass to define __iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


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

    def __getitems__(self, indices: Sequence[Any]) -> list[tuple[Tensor, ...]]:
        """The samples at indices; of plain tensors copies, by one gather for all."""
        n = len(self)
        if (
            type(self).__getitem__ is not TensorDataset.__getitem__
            or not are_plain(self.tensors)
            or not all(type(i) is int and -n <= i < n for i in indices)
        ):
            return [self[i] for i in indices]
        where = np.array(indices, np.intp)
        gathered = [t._data[where] for t in self.tensors]
        return [tuple(wrap_array(g[k, ...]) for g in gathered) for k in range(len(where))]

    def __len__(self) -> int:
        return len(self.tensors[0])


class StackDataset(Dataset[Any]):
    """Datasets of one length side by side: samples are tuples, or dicts for keyword arguments.

    Raises ValueError for lengths that differ, no dataset, or both forms at once.
    """

    datasets: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args and kwargs:
            raise ValueError(
                "[StackDataset] Supported either tuple- (via args) or dict- (via kwargs) like "
                "input/output, but both types are given"
            )
        if not args and not kwargs:
            raise ValueError("[StackDataset] At least one dataset should be passed")
        parts = list(args or kwargs.values())
        if any(len(d) != len(parts[0]) for d in parts):
            raise ValueError(
                "[StackDataset] Size mismatch between datasets: expected one length; got "
                f"{[len(d) for d in parts]}"
            )
        self.datasets = args or kwargs
        self._length = len(parts[0])

    def _join(self, parts: Iterable[Any]) -> Any:
        """A sample of the datasets' parts of it."""
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def _parts(self) -> Iterable[Any]:
        return self.datasets.values() if isinstance(self.datasets, dict) else self.datasets

    def __getitem__(self, index: Any) -> Any:
        return self._join([d[index] for d in self._parts()])

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        columns = [_items(d, indices) for d in self._parts()]
        for column in columns:
            if len(column) != len(indices):
                raise ValueError(
                    "[StackDataset] Nested dataset's output size mismatch. Expected "
                    f"{len(indices)}, got {len(column)}"
                )
        return [self._join(parts) for parts in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


def _items(dataset: Any, indices: Sequence[Any]) -> Any:
    """The samples at indices: at once where the dataset can."""
    whole = getattr(dataset, "__getitems__", None)
    return whole(indices) if callable(whole) else [dataset[i] for i in indices]


class Subset(Dataset[Any]):
    """The samples of a dataset at the given indices.

    A subclass that defines `__getitem__` must define `__getitems__` too, which loaders call: else
    NotImplementedError.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices
        cls = type(self)
        if cls.__getitem__ is not Subset.__getitem__ and cls.__getitems__ is Subset.__getitems__:
            raise NotImplementedError(
                f"[Subset] {cls.__name__} overrides __getitem__ but not __getitems__, which "
                "loaders call: define `def __getitems__(self, indices): return [self[i] for i in "
                "indices]`"
            )

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, list):
            return self.dataset[[self.indices[i] for i in idx]]
        return self.dataset[self.indices[idx]]

    def __getitems__(self, indices: list[int]) -> Any:
        return _items(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[Any]):
    """Map-style datasets one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise AssertionError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Where each dataset ends."""
        return list(itertools.accumulate(len(d) for d in sequence))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, idx: int) -> Any:
        if idx < -len(self):
            raise ValueError(
                "[ConcatDataset] absolute value of index should not exceed dataset length; got "
                f"{idx} for {len(self)}"
            )
        if idx >= len(self):
            raise IndexError(f"[ConcatDataset] index {idx} is out of range for {len(self)}")
        idx %= len(self)
        which = bisect.bisect_right(self.cumulative_sizes, idx)
        return self.datasets[which][idx - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset[Any]):
    """Streams one after another."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def _streams(self) -> Iterator[Any]:
        for stream in self.datasets:
            if not isinstance(stream, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield stream

    def __iter__(self) -> Iterator[Any]:
        for stream in self._streams():
            yield from stream

    def __len__(self) -> int:
        return sum(len(stream) for stream in self._streams())


def random_split(
    dataset: Any, lengths: Sequence[float], generator: Generator | None = default_generator
) -> list[Subset]:
    """Splits into subsets of the given lengths, or of fractions that sum to 1, at random.

    What fractions leave over goes one by one to the first subsets. Raises ValueError for lengths
    that do not add up to the dataset's.
    """
    sizes: list[int]
    total = sum(lengths)
    if math.isclose(total, 1):
        if any(not 0 <= x <= 1 for x in lengths):
            raise ValueError(
                f"[random_split] Fraction at an index is not between 0 and 1; got {list(lengths)}"
            )
        sizes = [math.floor(len(dataset) * x) for x in lengths]
        for i in range(len(dataset) - sum(sizes)):
            sizes[i % len(sizes)] += 1
        for i, size in enumerate(sizes):
            if size == 0:
                warn(f"Length of split at index {i} is 0. This might result in an empty dataset.")
    else:
        sizes = [int(x) for x in lengths]
        if any(x < 0 for x in lengths):
            raise ValueError(f"[random_split] expected lengths of at least 0; got {list(lengths)}")
    if sum(sizes) != len(dataset):
        raise ValueError(
            "[random_split] Sum of input lengths does not equal the length of the input dataset! "
            f"got {list(lengths)} for {len(dataset)} samples"
        )
    order = randperm(len(dataset), generator=generator).tolist()
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[e - n : e]) for e, n in zip(ends, sizes, strict=True)]
