"""GPUs: drivers, memory, streams and events. Owns no kernels: those come compiled.

Its modules are loaded at their first use: most programs have no GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = (
    "allocator", "arrays", "blas", "blocks", "capture", "device", "driver", "library", "pinned",
    "simulator",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"jitgrad.runtime.cuda.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
