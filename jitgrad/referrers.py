"""Referrers: puts another object in the place of one, wherever something holds it."""

from __future__ import annotations

import gc
from collections import deque
from types import CellType, FrameType
from typing import Any

from jitgrad.pytree import is_named_tuple


def replace_everywhere(old: Any, new: Any) -> None:
    """Whatever holds `old` (lists, dicts, tuples, sets, deques, attributes, cells) holds `new`."""
    seen: set[int] = set()
    work = [(old, new)]
    while work:
        old, new = work.pop()
        for holder in gc.get_referrers(old):
            if holder is work or id(holder) in seen or isinstance(holder, FrameType):
                continue
            if isinstance(holder, (list, deque)):
                for i, x in enumerate(holder):
                    if x is old:
                        holder[i] = new
            elif isinstance(holder, dict):
                for key in [k for k, x in holder.items() if x is old]:
                    holder[key] = new
            elif isinstance(holder, set) and any(x is old for x in holder):
                holder.discard(old)
                holder.add(new)
            elif isinstance(holder, tuple):
                items = [new if x is old else x for x in holder]
                cls: Any = type(holder)
                made = cls._make(items) if is_named_tuple(holder) else cls(items)
                seen.add(id(holder))
                work.append((holder, made))
            elif isinstance(holder, CellType):
                holder.cell_contents = new
            elif hasattr(holder, "__dict__"):
                for key in [k for k, x in vars(holder).items() if x is old]:
                    vars(holder)[key] = new
