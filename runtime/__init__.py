"""Runs compiled code: buffers, launch, threads, cache, exported libraries.

NumPy and the standard library only. Public here: `load(path)`, for libraries made by export, and
`empty_cache()`, which frees the memory kept for later calls; both are imported at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "load":
        return importlib.import_module("jitgrad.runtime.artifact").load
    if name == "empty_cache":
        return importlib.import_module("jitgrad.runtime.buffers").empty_cache
    raise AttributeError(f"module 'jitgrad.runtime' has no attribute {name!r}")
