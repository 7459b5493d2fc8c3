"""DataLoader: batches of a dataset, in this process. Owns collation and iteration.

Worker processes are not built yet: num_workers > 0 raises (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.creation import as_tensor, tensor
from jitgrad.functions import stack
from jitgrad.random import Generator
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor
from jitgrad.utils.data.dataset import IterableDataset
from jitgrad.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler


def default_collate(batch: Sequence[Any]) -> Any:
    """Stacks samples: tensors and arrays of one shape along a new first dim, numbers into a tensor
    (Python's ints int64, floats float64); tuples, lists and dicts element by element; strings stay
    as they are.

    Raises TypeError for other types, RuntimeError for shapes or lengths that differ, KeyError for
    dicts of other keys.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(list(batch), 0)
    if isinstance(first, np.ndarray):
        return stack([as_tensor(x) for x in batch], 0)
    if isinstance(first, np.generic) and not isinstance(first, (str, bytes)):
        return as_tensor(np.array(batch))
    if isinstance(first, (bool, int)):
        return tensor(list(batch))
    if isinstance(first, float):
        return tensor([float(x) for x in batch], dtype=dtypes.float64)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {k: default_collate([_value(x, k, first) for x in batch]) for k in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(x) for x in zip(*batch, strict=True)))
    if isinstance(first, (tuple, list)):
        if any(len(x) != len(first) for x in batch):
            raise RuntimeError(
                "[default_collate] each element in list of batch should be of equal size; got "
                f"lengths {sorted({len(x) for x in batch})}; pass a collate_fn that pads"
            )
        return [default_collate(x) for x in zip(*batch, strict=True)]
    raise TypeError(
        "[default_collate] batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first)}; pass a collate_fn"
    )


def _value(sample: Any, key: Any, first: Mapping[Any, Any]) -> Any:
    if key not in sample:
        raise KeyError(
            f"[default_collate] expected samples with the keys {list(first)}; one has no {key!r}"
        )
    return sample[key]


def default_convert(sample: Any) -> Any:
    """A sample whose NumPy arrays and scalars are tensors, in nested lists, tuples and dicts; the
    rest as it is. What a loader without batches applies."""
    if isinstance(sample, (np.ndarray, np.generic)) and not isinstance(sample, (str, bytes)):
        return sample if np.asarray(sample).dtype.kind in "OSU" else as_tensor(np.asarray(sample))
    if isinstance(sample, Mapping):
        return {k: default_convert(v) for k, v in sample.items()}
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(default_convert(v) for v in sample))
    if isinstance(sample, (tuple, list)):
        return [default_convert(v) for v in sample]
    return sample


class DataLoader:
    """Iterates over batches of a dataset, as torch.utils.data.DataLoader with num_workers=0.

    Args:
        dataset: map-style (`__getitem__`, `__len__`) or an IterableDataset.
        batch_size: samples in a batch; None gives samples one by one, arrays as tensors.
        shuffle: a new random order at each epoch, from `generator` (default: the global one).
        sampler, batch_sampler: own orders instead.
        collate_fn: makes a batch of a list of samples.
        drop_last: leaves out an incomplete last batch.

    A dataset with `__getitems__(indices)` is asked for a whole batch at once. num_workers,
    pin_memory, ... must have their defaults, or are ignored where that changes nothing. Raises
    ValueError for options that exclude each other.
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None, *,
        generator: Generator | None = None, prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:  # fmt: skip
        if num_workers:
            raise ValueError(
                f"[DataLoader] expected num_workers=0; got {num_workers}: worker processes are not "
                "built yet (docs/limits.md)"
            )
        iterable = isinstance(dataset, IterableDataset)
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "[DataLoader] an IterableDataset has its own order: no shuffle, sampler"
            )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
                "and drop_last"
            )
        if batch_sampler is not None:
            batch_size = None
        elif batch_size is None and (shuffle or drop_last):
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "shuffle, and drop_last"
            )
        self.dataset, self.generator, self.drop_last = dataset, generator, drop_last
        self.num_workers, self.pin_memory, self.timeout = num_workers, pin_memory, timeout
        self.worker_init_fn = worker_init_fn
        batches = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if batches else default_convert)
        if sampler is None and not iterable:
            sampler = (
                RandomSampler(dataset, generator=generator)
                if shuffle
                else SequentialSampler(dataset)
            )
        if batch_sampler is None and batch_size is not None and not iterable:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.sampler, self.batch_sampler = sampler, batch_sampler

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            yield from self._stream()
        elif self.batch_sampler is None:
            for i in self.sampler:
                yield self.collate_fn(self.dataset[i])
        else:
            for indices in self.batch_sampler:
                yield self.collate_fn(self._fetch(indices))

    def _fetch(self, indices: Any) -> list[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is None:
            return [self.dataset[i] for i in indices]
        samples: list[Any] = fetch(indices)
        return samples

    def _stream(self) -> Iterator[Any]:
        if self.batch_size is None:
            for sample in self.dataset:
                yield self.collate_fn(sample)
            return
        batch: list[Any] = []
        for sample in self.dataset:
            batch.append(sample)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)

    def __len__(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            n: int = len(self.dataset)  # type: ignore[arg-type]
            if self.batch_size is None:
                return n
            return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
        return len(self.sampler if self.batch_sampler is None else self.batch_sampler)
