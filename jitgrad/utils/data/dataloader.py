"""DataLoader: batches of a dataset, made in this process or by workers.

Owns the options and the order of batches. Collation, fetching and the worker processes are in
_utils/.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

from jitgrad import pytree
from jitgrad.creation import randint
from jitgrad.random import Generator
from jitgrad.runtime import cuda
from jitgrad.runtime.userline import warn
from jitgrad.utils.data._utils import worker
from jitgrad.utils.data._utils.collate import default_collate, default_convert
from jitgrad.utils.data._utils.fetch import IterableFetcher, MapFetcher
from jitgrad.utils.data._utils.pool import Workers
from jitgrad.utils.data._utils.worker import Setup
from jitgrad.utils.data._utils.worker import get_worker_info as get_worker_info
from jitgrad.utils.data.dataset import IterableDataset
from jitgrad.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

T = TypeVar("T", covariant=True)

_FIXED = frozenset(
    {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}
)


class _Endless(Sampler):
    """What an IterableDataset is asked for: None, again and again."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class DataLoader(Generic[T]):
    """Iterates over batches of a dataset, as torch.utils.data.DataLoader.

    Args:
        dataset: map-style (`__getitem__`, `__len__`) or an IterableDataset. One with
            `__getitems__(indices)` is asked for a whole batch at once.
        batch_size: samples in a batch; None gives samples one by one, arrays as tensors.
        shuffle: a new random order at each epoch, from `generator` (default: the global one).
        sampler, batch_sampler: own orders instead.
        num_workers: processes that make batches; 0 makes them in this one.
        collate_fn: makes a batch of a list of samples.
        pin_memory: batches are in pinned memory, from which a GPU copies while the host goes on
            (Tensor.pin_memory; of other objects, their own method of this name). Without a GPU
            nothing (a warning says so).
        drop_last: leaves out an incomplete last batch.
        timeout: seconds to wait for a batch of the workers; 0 waits as long as they live.
        worker_init_fn: called with the worker's number in each worker, after it was seeded.
        multiprocessing_context: a start method ("fork", "spawn", "forkserver") or a context.
        generator: orders and the workers' seeds come from it.
        prefetch_factor: batches that each worker makes ahead (default 2).
        persistent_workers: the workers live on after an epoch.
        in_order: False gives batches as they are ready.

    Each worker seeds jitgrad's generator and `random` with base_seed + its number, and NumPy's
    generator from both, where base_seed is drawn at the start of an epoch: so seeds differ, and
    `manual_seed` fixes them. Its compiled code runs on one thread. Large arrays of its batches are
    in shared memory; a tensor that shows a part of its storage comes as a copy of that part.

    Raises ValueError for options that exclude each other. While iterating: an exception of a
    worker, with its type and the traceback in its message; RuntimeError when a worker was killed,
    for the timeout, and where shared memory or descriptors run out.
    """

    _initialized = False

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False,
        drop_last: bool = False, timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None, multiprocessing_context: Any = None,
        generator: Generator | None = None, *, prefetch_factor: int | None = None,
        persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True,
    ) -> None:  # fmt: skip
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        if num_workers > 0 and prefetch_factor is None:
            prefetch_factor = 2
        self.dataset, self.num_workers, self.prefetch_factor = dataset, num_workers, prefetch_factor
        self.pin_memory, self.pin_memory_device, self.timeout = (
            pin_memory, pin_memory_device, timeout,
        )  # fmt: skip
        self.worker_init_fn, self.in_order = worker_init_fn, in_order
        self.multiprocessing_context = multiprocessing_context
        self._iterable = isinstance(dataset, IterableDataset)
        if self._iterable:
            _check_stream(shuffle, sampler, batch_sampler)
        _check_orders(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if sampler is None:
            if self._iterable:
                sampler = _Endless()
            elif shuffle:
                sampler = RandomSampler(dataset, generator=generator)
            else:
                sampler = SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last, self.generator = batch_size, drop_last, generator
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.collate_fn = collate_fn or (
            default_collate if self._auto_collation else default_convert
        )
        self.persistent_workers = persistent_workers
        self._iterator: Any = None
        self._said_length: int | None = None  # of an IterableDataset, once len() was asked
        self._initialized = True
        self.check_worker_number_rationality()

    def __setattr__(self, attr: str, val: Any) -> None:
        if self._initialized and attr in _FIXED:
            raise ValueError(
                f"{attr} attribute should not be set after {type(self).__name__} is initialized"
            )
        super().__setattr__(attr, val)

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """The context that workers are made with; None for the default one."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        if context is not None:
            if self.num_workers == 0:
                raise ValueError(
                    "multiprocessing_context can only be used with multi-process loading "
                    f"(num_workers > 0), but got num_workers={self.num_workers}"
                )
            if isinstance(context, str):
                known = multiprocessing.get_all_start_methods()
                if context not in known:
                    raise ValueError(
                        "multiprocessing_context option should specify a valid start method in "
                        f"{known!r}, but got multiprocessing_context={context!r}"
                    )
                context = multiprocessing.get_context(context)
            if not isinstance(context, BaseContext):
                raise TypeError(
                    "multiprocessing_context option should be a valid context object or a string "
                    "specifying the start method, but got "
                    f"multiprocessing_context={context}"
                )
        self._context: BaseContext | None = context

    def check_worker_number_rationality(self) -> None:
        """Warns when there are more workers than processors that this process may use."""
        affinity = getattr(os, "sched_getaffinity", None)
        processors = len(affinity(0)) if affinity else os.cpu_count()
        if self.num_workers and (processors is None or self.num_workers > processors):
            warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our "
                f"suggested max number of worker in current system is {processors}, which is "
                "smaller than what this DataLoader is going to create; more workers may be slower"
            )

    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._auto_collation else self.sampler

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return (
            _MultiProcessingDataLoaderIter(self)
            if self.num_workers
            else _SingleProcessDataLoaderIter(self)
        )

    def __iter__(self) -> _BaseDataLoaderIter:
        if not (self.persistent_workers and self.num_workers):
            return self._get_iterator()
        if self._iterator is None or not self._iterator.alive:
            self._iterator = self._get_iterator()
        else:
            self._iterator.restart(self)
        iterator: _BaseDataLoaderIter = self._iterator
        return iterator

    def __len__(self) -> int:
        if not self._iterable:
            return len(self._index_sampler)
        n = len(self.dataset)
        self._said_length = n
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}


def _check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> None:
    if num_workers < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable "
            f"multiprocessing; got {num_workers}"
        )
    if timeout < 0:
        raise ValueError(f"timeout option should be non-negative; got {timeout}")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing: let num_workers > "
            f"0, or leave prefetch_factor out; got prefetch_factor={prefetch_factor}"
        )
    if prefetch_factor is not None and prefetch_factor < 0:
        raise ValueError(f"prefetch_factor option should be non-negative; got {prefetch_factor}")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_stream(shuffle: Any, sampler: Any, batch_sampler: Any) -> None:
    given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"DataLoader with IterableDataset: expected unspecified {name} option, but got "
                f"{name}={value}; an IterableDataset has its own order"
            )


def _check_orders(
    batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, "
                "and drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )


class _BaseDataLoaderIter:
    """One pass over a loader."""

    alive = True

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._pin = bool(loader.pin_memory and cuda.device.count())
        if loader.pin_memory and not self._pin:
            warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device "
                "pinned memory won't be used."
            )
        self._loader_sampler = loader._index_sampler
        self._dataset = loader.dataset
        self._said_length = loader._said_length
        self._yielded = 0
        self._indices = iter(self._loader_sampler)
        # Drawn with workers or without, so that both leave the generator alike.
        self._base_seed = int(randint(0, 2**63 - 1, (), generator=loader.generator))

    def __iter__(self) -> _BaseDataLoaderIter:
        return self

    def __len__(self) -> int:
        return len(self._loader_sampler)

    def __next__(self) -> Any:
        batch = self._next()
        self._yielded += 1
        if self._said_length is not None and self._yielded > self._said_length:
            warn(
                f"Length of IterableDataset {self._dataset} was reported to be "
                f"{self._said_length} (when accessing len(dataloader)), but {self._yielded} "
                "samples have been fetched; with workers, let each give its own part "
                "(get_worker_info)"
            )
        return pytree.tree_map(_pinned, batch) if self._pin else batch

    def _next(self) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")


def _pinned(x: Any) -> Any:
    return x.pin_memory() if hasattr(x, "pin_memory") else x


def _fetcher(loader: DataLoader[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    kind: Any = IterableFetcher if loader._iterable else MapFetcher
    return kind, (loader._auto_collation, loader.collate_fn, loader.drop_last)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Batches made in this process."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        if loader.timeout:
            raise AssertionError(
                f"[DataLoader] timeout is for workers: expected 0 with num_workers=0; got "
                f"{loader.timeout}"
            )
        kind, options = _fetcher(loader)
        self._fetch = kind(loader.dataset, *options).fetch

    def _next(self) -> Any:
        return self._fetch(next(self._indices))


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Batches made by workers.

    Tasks are numbered in the sampler's order and given to workers in turn, `ahead` at most that are
    not yet returned. A stream that ended in one worker gives its turns to the others.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        assert loader.prefetch_factor is not None
        if loader.prefetch_factor == 0:
            raise AssertionError(
                "[DataLoader] prefetch_factor must be greater than 0 with workers; got 0"
            )
        self._persistent = loader.persistent_workers
        self._timeout, self._in_order = loader.timeout, loader.in_order
        self._ahead = loader.prefetch_factor * loader.num_workers
        kind, options = _fetcher(loader)
        setups = [
            Setup(loader.dataset, kind, options, self._base_seed, loader.worker_init_fn, i,
                  loader.num_workers)
            for i in range(loader.num_workers)
        ]  # fmt: skip
        self._workers = Workers(setups, loader.multiprocessing_context)
        self._epoch = 0
        self._begin(len(setups))

    @property
    def alive(self) -> bool:  # type: ignore[override]
        return bool(self._workers.shut_down.alive)

    def _shutdown_workers(self) -> None:
        """Ends the workers, by PyTorch's name."""
        self._workers.shut_down()

    def restart(self, loader: DataLoader[Any]) -> None:
        """The next epoch of workers that persist."""
        self._indices = iter(self._loader_sampler)
        self._yielded = 0
        self._said_length = loader._said_length
        self._epoch += 1
        self._workers.drop_waiting()
        for number in range(len(self._active)):
            self._workers.send(number, (worker.RESUME, self._epoch, None, None))
        self._begin(len(self._active))

    def _begin(self, workers: int) -> None:
        self._sent = self._next_number = 0
        self._owner: dict[int, int] = {}  # task -> its worker, until it is returned
        self._done: dict[int, Any] = {}  # task -> (kind, batch), in order of arrival
        self._active = [True] * workers
        self._tasks = [0] * workers
        self._turn = 0
        self._finished = False
        for _ in range(self._ahead):
            self._assign()

    def _assign(self) -> None:
        """Gives the next indices to the worker whose turn it is."""
        number = self._choose()
        if number is None:
            return
        try:
            index = next(self._indices)
        except StopIteration:
            return
        task, self._sent = self._sent, self._sent + 1
        self._owner[task] = number
        self._tasks[number] += 1
        self._turn = number + 1
        self._workers.send(number, (worker.TASK, self._epoch, task, index))

    def _choose(self) -> int | None:
        count = len(self._active)
        turns = [(self._turn + k) % count for k in range(count)]
        turns = [n for n in turns if self._active[n]]
        if self._in_order or not turns:
            return turns[0] if turns else None
        most = -(-self._ahead // len(turns))
        return next((n for n in turns if self._tasks[n] < most), None)

    def _next(self) -> Any:
        while not self._finished:
            task = self._ready()
            if task is not None:
                return self._give(task)
            if not self._owner:
                break
            for number, (kind, epoch, task, batch) in self._workers.receive(self._timeout):
                if epoch != self._epoch:
                    continue  # of an epoch that was left early
                if kind == worker.ENDED:
                    self._active[number] = False
                    self._release(task)
                    self._assign()
                else:
                    self._done[task] = (kind, batch)
        self._finished = True
        if not self._persistent:
            self._workers.shut_down()
        raise StopIteration

    def _ready(self) -> int | None:
        """The task that can be returned now."""
        if not self._in_order:
            return next(iter(self._done), None)
        while self._next_number < self._sent and self._next_number not in self._owner:
            self._next_number += 1
        return self._next_number if self._next_number in self._done else None

    def _release(self, task: int) -> None:
        self._tasks[self._owner.pop(task)] -= 1

    def _give(self, task: int) -> Any:
        kind, batch = self._done.pop(task)
        self._release(task)
        self._assign()
        if kind == worker.FAILED:
            batch.reraise()
        return batch
