"""Reachability in the order of groups and kernels: what must run after what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def must_follow(starts: Iterable[T], target: T, before: Callable[[T], Iterable[T]]) -> bool:
    """Whether one of `starts` is `target` or must run after it; before(x): what x waits for."""
    seen: set[T] = set()
    stack = list(starts)
    while stack:
        x = stack.pop()
        if x is target:
            return True
        if x not in seen:
            seen.add(x)
            stack.extend(before(x))
    return False
