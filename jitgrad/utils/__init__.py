"""Utilities, by torch.utils' names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitgrad.missing import no_such
from jitgrad.utils import data as data

if TYPE_CHECKING:
    from jitgrad.utils import checkpoint as checkpoint


_LATE = (
    "_pytree", "benchmark", "checkpoint", "collect_env", "dlpack", "hooks", "model_zoo",
    "tensorboard",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports what not every program needs at its first use."""
    if name in _LATE:
        return importlib.import_module(f"jitgrad.utils.{name}")
    raise no_such(__name__, name)


__all__ = ["data"]
