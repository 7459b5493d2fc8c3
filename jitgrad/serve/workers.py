"""Worker processes: each holds the model and runs one call at a time.

Owns starting, calling and ending them. A process of its own keeps a crash away from the server: a
call whose worker dies raises `WorkerDied`, and the next call starts another. Messages are of this
program alone, over a pipe that no one else has.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from jitgrad.serve.models import load_model, warm_up
from jitgrad.serve.protocol import Port

Array = np.ndarray[Any, Any]
_GRACE_S = 5.0  # a worker that was told to end has so long


class WorkerDied(RuntimeError):
    """The process ended, or took longer than its limit, in the middle of a call."""


class ModelError(RuntimeError):
    """The model raised: the text of its error. `client`: the values that came are at fault."""

    def __init__(self, text: str, client: bool) -> None:
        super().__init__(text)
        self.client = client


def _work(connection: Connection, path: str, threads: int | None) -> None:
    """The process: loads, says what the model is, answers calls until the pipe closes."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group: the server ends us
    try:
        model = load_model(path, threads)
        warm_up(model)
    except Exception as error:
        connection.send(("error", f"{type(error).__name__}: {error}", False))
        return
    connection.send(("ready", model.inputs, model.outputs, model.rows))
    while True:
        try:
            inputs = connection.recv()
        except (EOFError, OSError):
            return
        if inputs is None:
            return
        try:
            answer: tuple[Any, ...] = ("results", model.run(inputs))
        except Exception as error:
            client = isinstance(error, (ValueError, IndexError, RuntimeError, TypeError))
            answer = ("error", str(error) or type(error).__name__, client)
        connection.send(answer)


class Worker:
    """One process, or its successors. `inputs`, `outputs`, `rows` are the model's (models.py).

    limit_s: how long a call may take; None: as long as it likes. Raises ModelError when the model
    cannot be loaded.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int | None, limit_s: float | None):
        self.path, self.threads, self.limit_s = os.fspath(path), threads, limit_s
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        self.rows = 0
        self.starts = 0
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(theirs, self.path, self.threads), daemon=True
        )
        self._process.start()
        theirs.close()
        self.starts += 1
        kind, *about = self._receive(None)
        if kind != "ready":
            raise ModelError(about[0], False)
        self.inputs, self.outputs, self.rows = about

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def call(self, inputs: Sequence[Array]) -> list[Array]:
        """Runs the model. Raises ModelError or WorkerDied; after the latter the next call starts a
        new process."""
        with self._lock:
            if not self._process.is_alive():
                self._start()
            try:
                self._connection.send(list(inputs))
            except (OSError, ValueError):
                raise self._died("before it took the call") from None
            kind, *rest = self._receive(self.limit_s)
        if kind == "error":
            raise ModelError(*rest)
        results: list[Array] = rest[0]
        return results

    def _receive(self, limit_s: float | None) -> Any:
        try:
            if limit_s is not None and not self._connection.poll(limit_s):
                raise self._died(f"as it took more than {limit_s:g} s")
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._died("in the middle of a call") from None

    def _died(self, when: str) -> WorkerDied:
        self._connection.close()
        self._process.kill()
        self._process.join(_GRACE_S)
        return WorkerDied(f"the worker ended {when} (exit code {self._process.exitcode})")

    def close(self) -> None:
        """Ends the process, after the call that it runs."""
        with self._lock:
            if self._process.is_alive():
                with contextlib.suppress(OSError, ValueError):
                    self._connection.send(None)
                self._process.join(_GRACE_S)
            self._process.kill()
            self._process.join(_GRACE_S)
            self._connection.close()
