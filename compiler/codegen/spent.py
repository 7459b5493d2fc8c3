"""Where the time of code generation goes: seconds of the thread by phase, for the budget that
`JITGRAD_LOG=compile` prints. `spent` measures, in whatever thread; `collect` sums what is measured
meanwhile in this context and in those that were copied from it."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_sums: contextvars.ContextVar[dict[str, float] | None] = contextvars.ContextVar(
    "jitgrad_spent", default=None
)
_lock = threading.Lock()


@contextmanager
def collect() -> Iterator[dict[str, float]]:
    """{phase: milliseconds of processor time}, which grows as `spent` measures."""
    sums: dict[str, float] = {}
    token = _sums.set(sums)
    try:
        yield sums
    finally:
        _sums.reset(token)


@contextmanager
def spent(phase: str) -> Iterator[None]:
    """Adds the processor time of this thread to a phase, if anybody collects."""
    sums = _sums.get()
    if sums is None:
        yield
        return
    start = time.thread_time()
    try:
        yield
    finally:
        passed = (time.thread_time() - start) * 1e3
        with _lock:
            sums[phase] = sums.get(phase, 0.0) + passed


def in_this_context(f: Callable[..., Any]) -> Callable[..., Any]:
    """f, to be called once in another thread, with what it spends going where it would go here."""
    return partial(contextvars.copy_context().run, f)
