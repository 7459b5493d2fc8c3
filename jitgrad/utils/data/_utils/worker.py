"""What a worker process of a DataLoader runs: tasks in, batches out, until its loader is gone."""

from __future__ import annotations

import pickle
import random
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad.random import manual_seed
from jitgrad.runtime.threads import set_num_threads
from jitgrad.state import state
from jitgrad.utils.data._utils.channel import Channel, Closed, Message


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker this process is.

    Attributes:
        id: 0 to num_workers - 1.
        num_workers: how many there are.
        seed: what `random` and jitgrad's generator were seeded with: the loader's base seed + id.
        dataset: this process's copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str | None = "multiprocessing"


_info: list[WorkerInfo | None] = [None]


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a DataLoader, who it is (WorkerInfo); None in any other process."""
    return _info[0]


class _KeyErrorText(str):
    """A message that KeyError shows with its line breaks."""

    def __repr__(self) -> str:
        return str(self)


class Failure:
    """An exception of a worker on its way to the loader: its type and its traceback."""

    def __init__(self, where: str) -> None:
        """Of the exception that is being handled. A type that cannot be pickled (of a class made
        in a function) becomes RuntimeError."""
        kind, error, trace = sys.exc_info()
        assert kind is not None
        self.type: Any = kind
        try:
            pickle.dumps(kind)
        except Exception:
            self.type = RuntimeError
        text = "".join(traceback.format_exception(kind, error, trace))
        self.text = f"Caught {kind.__name__} {where}.\nOriginal {text}"

    def reraise(self) -> None:
        """Raises the exception's type with the traceback for its message; RuntimeError where the
        type takes other arguments."""
        text = _KeyErrorText(self.text) if self.type is KeyError else self.text
        try:
            error = self.type(text)
        except Exception:
            raise RuntimeError(text) from None
        raise error


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know. Pickled where processes are spawned."""

    dataset: Any
    fetcher: Callable[..., Any]
    options: tuple[Any, ...]  # of the fetcher, after the dataset
    base_seed: int
    init_fn: Callable[[int], Any] | None
    id: int
    num_workers: int


# Kinds of messages. To a worker: (RESUME, epoch, None, None), (TASK, epoch, number, index).
# From it: (kind, epoch, number, batch or Failure or None).
RESUME, TASK, BATCH, FAILED, ENDED = range(5)


def seed_everything(base_seed: int, worker: int) -> None:
    """Seeds jitgrad's generator and `random` with base_seed + worker, NumPy's from both."""
    random.seed(base_seed + worker)
    manual_seed(base_seed + worker)
    np.random.seed(np.random.SeedSequence([base_seed, worker]).generate_state(4))


def run(setup: Setup, end: socket.socket) -> None:
    """The life of a worker."""
    channel = Channel(end)
    state.recorder, state.levels, state.abstract, state.draws = None, (), False, None
    set_num_threads(1)
    seed_everything(setup.base_seed, setup.id)
    seed = setup.base_seed + setup.id
    _info[0] = WorkerInfo(setup.id, setup.num_workers, seed, setup.dataset)
    try:
        _serve(setup, channel)
    except (KeyboardInterrupt, Closed):
        pass
    finally:
        channel.socket.close()


def _serve(setup: Setup, channel: Channel) -> None:
    where = f"in DataLoader worker process {setup.id}"
    fetcher: Any = None
    failure: Failure | None = None
    try:
        if setup.init_fn is not None:
            setup.init_fn(setup.id)
    except Exception:
        failure = Failure(where)
    while True:
        kind, epoch, number, index = channel.receive()
        result: Any = None
        try:
            if kind == RESUME:
                fetcher = None
                continue
            if failure is not None:
                kind, result = FAILED, failure
            else:
                if fetcher is None:
                    fetcher = setup.fetcher(setup.dataset, *setup.options)
                kind, result = _fetch(fetcher, index, where)
            message = Message((kind, epoch, number, result))
        except Exception:
            message = Message((FAILED, epoch, number, Failure(where)))
        del result
        channel.send(message)


def _fetch(fetcher: Any, index: Any, where: str) -> tuple[int, Any]:
    try:
        return BATCH, fetcher.fetch(index)
    except StopIteration:
        if hasattr(fetcher, "stream"):
            return ENDED, None
        return FAILED, Failure(where)
    except Exception:
        return FAILED, Failure(where)
