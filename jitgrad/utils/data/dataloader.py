"""DataLoader: batches of a dataset, in this process. Owns collation and iteration.

Worker processes are not built yet: num_workers > 0 raises (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jitgrad.creation import as_tensor, tensor
from jitgrad.functions import stack
from jitgrad.random import Generator
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor
from jitgrad.utils.data.dataset import IterableDataset
from jitgrad.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler


def default_collate(batch: list[Any]) -> Any:
    """Stacks samples: tensors and arrays along a new first dim, numbers into a tensor; tuples,
    lists and dicts element by element; strings stay a list."""
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch, 0)
    if isinstance(first, np.ndarray):
        return stack([as_tensor(x) for x in batch], 0)
    if isinstance(first, (bool, int, np.bool_, np.integer)):
        return tensor([x.item() if isinstance(x, np.generic) else x for x in batch])
    if isinstance(first, (float, np.floating)):
        return tensor([float(x) for x in batch], dtype=dtypes.float64)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {k: default_collate([x[k] for x in batch]) for k in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(list(x)) for x in zip(*batch, strict=True)))
    if isinstance(first, (tuple, list)):
        if any(len(x) != len(first) for x in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        return [default_collate(list(x)) for x in zip(*batch, strict=True)]
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first)}"
    )


class DataLoader:
    """Iterates over batches of a dataset, as torch.utils.data.DataLoader with num_workers=0.

    Args:
        dataset: map-style (`__getitem__`, `__len__`) or an IterableDataset.
        batch_size: samples in a batch; None gives samples one by one, not collated.
        shuffle: a new random order at each epoch, from `generator` (default: the global one).
        sampler, batch_sampler: own orders instead.
        collate_fn: makes a batch of a list of samples.
        drop_last: leaves out an incomplete last batch.
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
        self.dataset, self.generator, self.drop_last = dataset, generator, drop_last
        self.num_workers, self.pin_memory, self.timeout = num_workers, pin_memory, timeout
        self.worker_init_fn = worker_init_fn
        self.collate_fn = collate_fn or default_collate
        self._collate = collate_fn is not None or batch_size is not None
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
                sample = self.dataset[i]
                yield self.collate_fn(sample) if self._collate else sample
        else:
            for indices in self.batch_sampler:
                yield self.collate_fn([self.dataset[i] for i in indices])

    def _stream(self) -> Iterator[Any]:
        if self.batch_size is None:
            yield from self.dataset
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
