"""spawn: several processes that run one function and are joined; the first error ends them all."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from jitgrad.runtime.userline import warn


class ProcessException(Exception):
    """A process of `spawn` failed: `error_index` says which, `error_pid` its process id."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """It raised; the message has its traceback."""


class ProcessExitedException(ProcessException):
    """It ended with `exit_code`, or by the signal `signal_name`."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int,
        signal_name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)
        return type(self), fields


def _run(fn: Callable[..., Any], index: int, args: tuple[Any, ...], error_file: str) -> None:
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass  # the parent was interrupted, too
    except Exception:
        with open(error_file, "wb") as file:
            pickle.dump(traceback.format_exc(), file)
        sys.exit(1)


class ProcessContext:
    """The processes of one `spawn`."""

    def __init__(self, processes: list[Any], error_files: list[str], folder: Any = None) -> None:
        """folder: the temporary folder of the error files, which goes with this object."""
        self.processes, self.error_files, self._folder = processes, error_files, folder
        self.sentinels = {p.sentinel: index for index, p in enumerate(processes)}

    def pids(self) -> list[int]:
        return [int(p.pid) for p in self.processes]

    def _join_all(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits until all ended well (True), one did, or `timeout` seconds passed (False).

        When one fails, the others are ended (after grace_period seconds, if given) and its error
        is raised: ProcessRaisedException or ProcessExitedException.
        """
        if not self.sentinels:
            return True
        failed = None
        for sentinel in multiprocessing.connection.wait(list(self.sentinels), timeout):
            index = self.sentinels.pop(sentinel)
            self.processes[index].join()
            if self.processes[index].exitcode:
                failed = index
                break
        if failed is None:
            return not self.sentinels
        if grace_period is not None:
            self._join_all(grace_period)
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        self._join_all(30 if grace_period is None else grace_period)
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        raise self._error(failed)

    def _error(self, index: int) -> ProcessException:
        process, path = self.processes[index], self.error_files[index]
        if os.path.exists(path):
            with open(path, "rb") as file:
                trace = pickle.load(file)
            msg = f"\n\n-- Process {index} terminated with the following error:\n{trace}"
            return ProcessRaisedException(msg, index, process.pid)
        code = process.exitcode
        if code >= 0:
            msg = f"process {index} terminated with exit code {code}"
            return ProcessExitedException(msg, index, process.pid, code)
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"<Unknown signal {-code}>"
        msg = f"process {index} terminated with signal {name}"
        return ProcessExitedException(msg, index, process.pid, code, name)


def start_processes(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
    daemon: bool = False, start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """As `spawn`, with another start method ("fork", "forkserver")."""
    context: Any = multiprocessing.get_context(start_method)
    processes, error_files = [], []
    folder = tempfile.TemporaryDirectory(prefix="jitgrad-errors-")
    for index in range(nprocs):
        path = os.path.join(folder.name, f"{index}.pickle")
        process = context.Process(target=_run, args=(fn, index, args, path), daemon=daemon)
        process.start()
        processes.append(process)
        error_files.append(path)
    started = ProcessContext(processes, error_files, folder)
    if not join:
        return started
    while not started.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
    daemon: bool = False, start_method: str = "spawn",
) -> ProcessContext | None:  # fmt: skip
    """Runs fn(i, *args) in `nprocs` processes, i = 0, 1, ...

    join: wait for all, raise the first failure (ProcessRaisedException with its traceback,
    ProcessExitedException) and end the others; else a ProcessContext is returned.
    """
    if start_method != "spawn":
        warn(
            f"[spawn] expected start_method='spawn'; got {start_method!r}, which is not used; call "
            "start_processes instead",
            FutureWarning,
        )
    return start_processes(fn, args, nprocs, join, daemon, "spawn")
