"""Dynamic batching: requests wait a little for each other, and run as one call.

Owns the queue between the server and the workers. A request that was accepted gets an answer: when
a worker dies, its requests run again, each by itself; one that ends a worker twice is refused.
Calls are joined along the first axis where the model's first axis is free (Model.rows) and all
other sizes agree; results are cut apart again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgrad.serve.workers import ModelError, Worker, WorkerDied

Array = np.ndarray[Any, Any]
_MOST_DEATHS = 2


class Overloaded(RuntimeError):
    """The queue is full, or the server is about to stop: the request was not accepted."""


@dataclass(eq=False)
class _Pending:
    inputs: list[Array]
    future: asyncio.Future[list[Array]]
    rows: int
    since: float = field(default_factory=time.monotonic)
    deaths: int = 0
    alone: bool = False

    @property
    def key(self) -> Any:
        return [(a.dtype.str, a.shape[1:]) for a in self.inputs]


@dataclass
class Limits:
    """max_batch: rows of a joined call (1: no joining). max_delay_s: how long the first request of
    a batch waits for others. max_queue: requests that may wait."""

    max_batch: int = 1
    max_delay_s: float = 0.002
    max_queue: int = 1024


class Batcher:
    """Feeds workers from one queue. observe(rows, seconds) is told of each call that ran."""

    def __init__(
        self, workers: Sequence[Worker], limits: Limits, observe: Callable[[int, float], None]
    ) -> None:
        self.workers, self.limits, self.observe = list(workers), limits, observe
        self.max_rows = min(limits.max_batch, workers[0].rows)
        self.joins = self.max_rows > 1
        self.queue: deque[_Pending] = deque()
        self._arrived = asyncio.Condition()
        self._stopping = False
        self._threads = ThreadPoolExecutor(len(self.workers), "jitgrad-serve")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts one task for each worker, in the running event loop."""
        self._tasks = [asyncio.create_task(self._serve(w)) for w in self.workers]

    async def submit(self, inputs: list[Array]) -> list[Array]:
        """The results for these inputs. Raises Overloaded, ModelError, or WorkerDied for inputs
        that ended two workers."""
        if self._stopping or len(self.queue) >= self.limits.max_queue:
            raise Overloaded("stopping" if self._stopping else "the queue is full")
        rows = len(inputs[0]) if self.joins else 1
        future: asyncio.Future[list[Array]] = asyncio.get_running_loop().create_future()
        async with self._arrived:
            self.queue.append(_Pending(inputs, future, rows))
            self._arrived.notify()
        return await future

    async def stop(self) -> None:
        """Answers all that was accepted, then ends the workers."""
        self._stopping = True
        async with self._arrived:
            self._arrived.notify_all()
        await asyncio.gather(*self._tasks)
        self._threads.shutdown()
        for worker in self.workers:
            worker.close()

    async def _serve(self, worker: Worker) -> None:
        while True:
            async with self._arrived:
                await self._arrived.wait_for(lambda: bool(self.queue) or self._stopping)
                if not self.queue:
                    return
                batch = [self.queue.popleft()]
            if self.joins and not batch[0].alone:
                await self._gather(batch)
            await self._run(worker, batch)

    async def _gather(self, batch: list[_Pending]) -> None:
        """Adds what fits to a batch, until it is full or its first request has waited enough."""
        rows, key = batch[0].rows, batch[0].key
        until = batch[0].since + self.limits.max_delay_s
        while rows < self.max_rows:
            async with self._arrived:
                if not self.queue:
                    left = until - time.monotonic()
                    if left <= 0 or self._stopping:
                        return
                    try:
                        async with asyncio.timeout(left):
                            await self._arrived.wait_for(lambda: bool(self.queue) or self._stopping)
                    except TimeoutError:
                        return
                if not self.queue:
                    return
                following = self.queue[0]
                fits = rows + following.rows <= self.max_rows
                if following.alone or not fits or following.key != key:
                    self._arrived.notify()
                    return
                batch.append(self.queue.popleft())
                rows += following.rows

    async def _run(self, worker: Worker, batch: list[_Pending]) -> None:
        batch = [p for p in batch if not p.future.cancelled()]
        if not batch:
            return
        count = sum(p.rows for p in batch)
        joined = batch[0].inputs
        if len(batch) > 1:
            joined = [
                np.concatenate(parts) for parts in zip(*(p.inputs for p in batch), strict=True)
            ]
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._threads, worker.call, joined)
        except (ModelError, WorkerDied) as error:
            self._failed(batch, error)
            return
        self.observe(count, time.monotonic() - began)
        if len(batch) == 1:
            _answer(batch[0], results)
            return
        if any(y.ndim == 0 or len(y) != count for y in results):
            self._again(batch)  # not made of rows after all
            return
        at = 0
        for p in batch:
            _answer(p, [y[at : at + p.rows] for y in results])
            at += p.rows

    def _failed(self, batch: list[_Pending], error: Exception) -> None:
        died = isinstance(error, WorkerDied)
        for p in batch:
            p.deaths += died
        final = not died or batch[0].deaths >= _MOST_DEATHS
        if len(batch) == 1 and final:
            if not batch[0].future.done():
                batch[0].future.set_exception(error)
            return
        self._again(batch)

    def _again(self, batch: list[_Pending]) -> None:
        """Runs the requests of a batch once more, each by itself, before all others."""
        for p in reversed(batch):
            p.alone = True
            self.queue.appendleft(p)


def _answer(pending: _Pending, results: list[Array]) -> None:
    if not pending.future.done():  # a client may have gone
        pending.future.set_result(results)
