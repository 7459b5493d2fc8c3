"""Nodes that hold bodies, for functions that need one where a size differs from call to call: what
makes them is loaded at the first such."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "recording":
        return importlib.import_module(f"jitgrad.loop_nodes.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
