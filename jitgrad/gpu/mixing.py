"""Operands on different devices: what jitgrad's own code made on the CPU follows the others.

A composite makes ranges, masks and random numbers without asking where its arguments are. Where
such a tensor meets one on a GPU it is copied there; a tensor that the user gave (an argument of the
function that was called, or a parameter or buffer of the module) is not, so the op raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.runtime.userline import FOLDERS
from jitgrad.tensor import Tensor

_PREFIXES = tuple(f"{f}/" for f in FOLDERS)
_DEPTH = 4


def device_among(operands: Iterable[Any]) -> str | None:
    """The GPU that one of the operands is on, where others with dims are on the CPU; else None."""
    found, mixed = None, False
    for x in operands:
        if x._type.device != "cpu":
            found = x._type.device
        elif x._type.shape:
            mixed = True
    return found if mixed else None


def settled(operands: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """The operands on one device; None where they are already, or the user must see to it: then the
    op raises."""
    device = device_among(operands)
    if device is None:
        return None
    away = [x for x in operands if x._type.device == "cpu" and x._type.shape]
    given = {id(t._storage) for t in _given()}
    if any(id(x._storage) in given for x in away):
        return None
    return tuple(
        [OPS["to_device"](x, device=device) if any(x is y for y in away) else x for x in operands]
    )


def _given() -> Iterator[Tensor]:
    """The tensors that the user's code gave to the function of ours that it called."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_PREFIXES):
        frame = frame.f_back
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 4) + bool(code.co_flags & 8)
    for name in code.co_varnames[:count]:
        yield from _tensors(frame.f_locals.get(name), _DEPTH)


def _tensors(x: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif hasattr(x, "_parameters") and hasattr(x, "buffers"):
        yield from x.parameters()
        yield from x.buffers()
    elif depth and isinstance(x, (tuple, list)):
        for y in x:
            yield from _tensors(y, depth - 1)
    elif depth and isinstance(x, dict):
        for y in x.values():
            yield from _tensors(y, depth - 1)
