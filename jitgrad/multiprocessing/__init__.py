"""Processes, queues and pools that pass tensors by shared memory: torch.multiprocessing's names.

`import jitgrad.multiprocessing as mp` has everything of Python's multiprocessing. Importing it
teaches multiprocessing's pickler to hand on a tensor's memory instead of copying it: both sides see
the same memory afterwards. How is in sharing.py, `spawn` in processes.py.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from jitgrad.missing import no_such
from jitgrad.multiprocessing.processes import (
    ProcessContext,
    ProcessException,
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)
from jitgrad.multiprocessing.sharing import (
    get_all_sharing_strategies,
    get_sharing_strategy,
    register,
    set_sharing_strategy,
)

register()

_STANDARD = tuple(multiprocessing.__all__)


def __getattr__(name: str) -> Any:
    """The names of Python's multiprocessing: Process, Queue, Pool, get_context, ..."""
    if name in _STANDARD:
        return getattr(multiprocessing, name)
    raise no_such(__name__, name)


__all__ = [
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException",
    "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn",
    "start_processes", *_STANDARD,
]  # fmt: skip
