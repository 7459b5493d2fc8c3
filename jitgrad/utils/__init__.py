"""Utilities, by torch.utils' names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jitgrad.missing import no_such
from jitgrad.runtime.userline import user_line
from jitgrad.state import bump_epoch, state
from jitgrad.tensor import Tensor
from jitgrad.utils import data as data

if TYPE_CHECKING:
    from jitgrad.utils import checkpoint as checkpoint


_LATE = (
    "_pytree", "benchmark", "checkpoint", "collect_env", "dlpack", "flop_counter",
    "hooks", "model_zoo", "tensorboard",
)  # fmt: skip


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Exchanges what two Tensor objects are: memory, place on the tape, class and attributes.

    Swap before a graph is made of them: one that was made reaches its leaves by the objects.
    Raises TypeError for what is no Tensor.
    """
    for name, x in (("t1", t1), ("t2", t2)):
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"swap_tensors(): argument {name!r} must be Tensor, not {kind}")
    if state.recorder is not None and state.recorder is not state.lazy:
        state.recorder.give_up("swaps tensors", user_line())
    t1.__class__, t2.__class__ = type(t2), type(t1)
    t1.__dict__, t2.__dict__ = t2.__dict__, t1.__dict__
    for slot in _SLOTS:
        a, b = getattr(t1, slot), getattr(t2, slot)
        setattr(t1, slot, b)
        setattr(t2, slot, a)
    bump_epoch()


_SLOTS = tuple(name for name in Tensor.__slots__ if not name.startswith("__"))


def __getattr__(name: str) -> Any:
    """Imports what not every program needs at its first use."""
    if name in _LATE:
        return importlib.import_module(f"jitgrad.utils.{name}")
    raise no_such(__name__, name)


__all__ = ["data", "swap_tensors"]
