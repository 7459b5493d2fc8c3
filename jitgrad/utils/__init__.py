"""Utilities, by torch.utils' names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitgrad.utils import data as data

if TYPE_CHECKING:
    from jitgrad.utils import checkpoint as checkpoint


def __getattr__(name: str) -> Any:
    """Imports what not every program needs at its first use."""
    if name == "checkpoint":
        return importlib.import_module("jitgrad.utils.checkpoint")
    raise AttributeError(f"module 'jitgrad.utils' has no attribute {name!r}")


__all__ = ["data"]
