"""The loader's side of its workers: starts them, gives them tasks, takes what they send, ends them.

Owns the processes and their sockets. In which order batches come out is dataloader.py's.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from typing import Any

from jitgrad.runtime import memory_file
from jitgrad.runtime.userline import warn
from jitgrad.utils.data._utils import worker
from jitgrad.utils.data._utils.channel import Channel, Closed, Message
from jitgrad.utils.data._utils.worker import Setup

CREDIT = 8  # tasks under way to a worker, so that sending one never waits
CHECK = 1.0  # seconds between looks whether the workers live
GRACE = 5.0  # seconds that workers get to end by themselves


class Workers:
    """The worker processes of one iterator. They end with it, with its process, or by shut_down."""

    def __init__(self, setups: list[Setup], context: BaseContext | None) -> None:
        """Starts one process for each setup. Raises what starting a process raises."""
        if sys.platform == "win32":
            raise RuntimeError(
                f"[DataLoader] expected num_workers=0 on Windows; got {len(setups)}: workers need "
                "a POSIX system (docs/limits.md)"
            )
        make: Any = multiprocessing.get_context() if context is None else context
        self._processes: list[Any] = []
        self._channels: list[Channel] = []
        self._waiting: list[collections.deque[Any]] = [collections.deque() for _ in setups]
        self._under_way = [0] * len(setups)
        self._poll = select.poll()
        self._by_fd: dict[int, int] = {}
        self.shut_down = weakref.finalize(
            self, _shut_down, os.getpid(), self._processes, self._channels
        )
        try:
            for number, setup in enumerate(setups):
                self._start(number, setup, make)
        except BaseException:
            self.shut_down()
            raise

    def _start(self, number: int, setup: Setup, make: Any) -> None:
        channel, end = Channel.pair()
        self._channels.append(channel)
        process = make.Process(target=worker.run, args=(setup, end), daemon=True)
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warn(
                "[DataLoader] expected what the worker processes get (dataset, collate_fn, "
                "worker_init_fn) to be picklable, which this start method needs; define them at "
                "the top level of a module, or use multiprocessing_context='fork'"
            )
            raise
        except OSError as error:
            raise memory_file.explained(error, 0) from error
        finally:
            end.close()
        self._processes.append(process)
        for watched in (channel.fileno(), process.sentinel):
            self._poll.register(watched, select.POLLIN)
            self._by_fd[watched] = number

    def send(self, number: int, task: tuple[Any, ...]) -> None:
        """Gives worker `number` a task, now or when it has fewer under way."""
        self._waiting[number].append(task)
        self._push(number)

    def drop_waiting(self) -> None:
        """Forgets the tasks that were not sent yet."""
        for waiting in self._waiting:
            waiting.clear()

    def _push(self, number: int) -> None:
        waiting = self._waiting[number]
        while waiting and self._under_way[number] < CREDIT:
            task = waiting.popleft()
            try:
                self._channels[number].send(Message(task))
            except Closed:
                raise self._dead([number]) from None
            if task[0] == worker.TASK:
                self._under_way[number] += 1

    def receive(self, timeout: float) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """What workers sent, as (worker, message): waits for at least one, then takes all there is.

        Raises RuntimeError after `timeout` seconds (if positive) and for a worker that is dead.
        """
        end = time.monotonic() + timeout if timeout > 0 else None
        while True:
            wait = CHECK if end is None else min(CHECK, max(0.0, end - time.monotonic()))
            ready = {self._by_fd[fd] for fd, _ in self._poll.poll(wait * 1000)}
            found = False
            for number in sorted(ready):
                channel = self._channels[number]
                while channel.ready():
                    try:
                        message = channel.receive()
                    except Closed:
                        raise self._dead([number]) from None
                    self._under_way[number] -= 1
                    self._push(number)
                    found = True
                    yield number, message
            if found:
                return
            dead = [n for n, p in enumerate(self._processes) if not p.is_alive()]
            if dead and not any(self._channels[n].ready() for n in dead):
                raise self._dead(dead)
            if end is not None and time.monotonic() >= end:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds: no worker sent a batch; raise "
                    "timeout, or look for what blocks in the dataset"
                )

    def _dead(self, numbers: list[int]) -> RuntimeError:
        """The error for workers that are gone; ends the others."""
        causes = []
        for number in numbers:
            process = self._processes[number]
            process.join(GRACE)
            causes.append(_cause(process.exitcode))
        pids = ", ".join(str(self._processes[n].pid) for n in numbers)
        self.shut_down()
        return RuntimeError(
            f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {', '.join(causes)}"
        )


def _cause(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (perhaps by the system, for lack of memory)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _shut_down(owner: int, processes: list[Any], channels: list[Channel]) -> None:
    if os.getpid() != owner:
        return  # a forked copy: the workers are the parent's
    for channel in channels:
        channel.shut()
    end = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    for stop in ("terminate", "kill"):
        alive = [p for p in processes if p.is_alive()]
        for process in alive:
            getattr(process, stop)()
        for process in alive:
            process.join(GRACE)
