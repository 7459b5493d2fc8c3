"""Referrers: puts another object in the place of one, wherever something holds it."""

from __future__ import annotations

import gc
from collections import deque
from types import CellType, FrameType
from typing import Any

from jitgrad.pytree import is_named_tuple


def replace_everywhere(old: Any, new: Any) -> None:
    """Whatever holds `old` (lists, dicts and their keys, tuples, sets, deques, attributes,
    cells) holds `new`."""
    done: dict[int, Any] = {}  # tuples that were replaced: kept, so that no id is used again
    work = [(old, new)]
    del old, new
    while work:
        pair = work.pop()
        for holder in gc.get_referrers(pair[0]):
            if holder is pair or holder is done or isinstance(holder, FrameType):
                continue
            if isinstance(holder, tuple):
                if id(holder) in done:
                    continue
                done[id(holder)] = holder
                work.append((holder, _replaced(holder, pair)))
            else:
                _replace_in(holder, pair)


def _replaced(holder: Any, pair: tuple[Any, Any]) -> Any:
    """A tuple with the new object in place of the old."""
    items = [pair[1] if x is pair[0] else x for x in holder]
    cls: Any = type(holder)
    return cls._make(items) if is_named_tuple(holder) else cls(items)


def _replace_in(holder: Any, pair: tuple[Any, Any]) -> None:
    """The same in what can be changed."""
    if isinstance(holder, (list, deque)):
        for i, x in enumerate(holder):
            if x is pair[0]:
                holder[i] = pair[1]
    elif isinstance(holder, set):
        holder.discard(pair[0])
        holder.add(pair[1])
    elif isinstance(holder, CellType):
        holder.cell_contents = pair[1]
    else:
        fields = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        for key, x in list(fields.items()):
            if x is pair[0]:
                fields[key] = pair[1]
        if any(key is pair[0] for key in fields):
            items = [(pair[1] if key is pair[0] else key, x) for key, x in fields.items()]
            fields.clear()
            for key, x in items:
                fields[key] = x
