"""Workers: LLVM makes objects in threads, while the caller generates the code of further kernels.

Owns who emits what, when. LLVM's passes run in the caller, since they are many short calls that
would wait for Python's lock; making an object is one long call that holds no lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import (
    checked,
    emit_object,
    has_object,
    keep_object,
    optimised,
)
from jitgrad.compiler.codegen.spent import in_this_context
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime.knobs import knobs

_Made = tuple[Generated, Callable[[], bytes]]
"""A kernel, and what waits for its object."""


class Workers:
    """Compiles what it is given to `start`, and is done after `finish`. A context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._seen: set[str] = set()
        self._first: tuple[Generated, Any] | None = None  # alone, it is not worth a thread
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[_Made] = []

    def start(self, code: Generated) -> None:
        """Begins to compile a kernel and its routines, unless there are objects of them."""
        for part in code.with_routines():
            if part.key in self._seen:
                continue
            self._seen.add(part.key)
            if has_object(part, self.target):
                continue
            module = optimised(part.module_text, self.target, not part.may_call, part.driver)
            if self._first is None and not self._waiting:
                self._first = part, module
                continue
            if self._first is not None:
                first, self._first = self._first, None
                self._submit(*first)
            self._submit(part, module)

    def finish(self, each: Callable[[Sequence[_Made]], Iterable[_Made]] = iter) -> None:
        """Waits until all objects are made. Raises CompileError as `compile_object` does.

        each: passes on what is waited for, one after the other.
        """
        if self._first is not None:
            part, module = self._first
            self._waiting.append((part, lambda: emit_object(module, self.target, part.driver)))
            self._first = None
        for part, made in each(self._waiting):
            data = checked(made(), self.target, part.may_call)
            keep_object(part, self.target, data)
        self._waiting = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, part: Generated, module: Any) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_count(), thread_name_prefix="jitgrad-llvm")
        call = in_this_context(emit_object)
        self._waiting.append(
            (part, self._pool.submit(call, module, self.target, part.driver).result)
        )


def _count() -> int:
    """How many threads LLVM gets: one for each processor that this process may use."""
    if knobs.compile_threads:
        return int(knobs.compile_threads)
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
