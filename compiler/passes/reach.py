"""Reachability in the order of groups and kernels: what must run after what.

Owns `Precedence`: the relation "waits for", which grows while it is asked. Each thing has a level
above those of all that it waits for, so a search goes no further than the levels between its ends;
and it goes from both ends by turns, so it costs no more than twice the smaller side.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")


class Precedence(Generic[T]):
    """Which things must run before which; without cycles.

    before, after: the direct neighbours of each thing, in order of arrival. visits: how many
    things were looked at, by all questions and additions, for tests of what they cost.
    """

    def __init__(self) -> None:
        self.before: dict[T, dict[T, None]] = {}
        self.after: dict[T, dict[T, None]] = {}
        self.level: dict[T, int] = {}
        self.visits = 0

    def add(self, x: T, waits_for: Iterable[T] = ()) -> None:
        """x is there, and waits for these too. None of them may have to run after x."""
        before = self.before.setdefault(x, {})
        self.after.setdefault(x, {})
        level = self.level.setdefault(x, 0)
        for p in waits_for:
            if p not in before:
                if p not in self.level:
                    self.add(p)
                before[p] = None
                self.after[p][x] = None
                level = max(level, self.level[p] + 1)
        self._raise(x, level)

    def _raise(self, x: T, level: int) -> None:
        stack = [(x, level)]
        while stack:
            x, level = stack.pop()
            self.visits += 1
            if level > self.level[x]:
                self.level[x] = level
                stack += [(y, level + 1) for y in self.after[x] if self.level[y] <= level]

    def must_follow(self, starts: Iterable[T], target: T) -> bool:
        """Whether one of `starts` is `target` or must run after it."""
        low = self.level[target]
        down: list[tuple[int, int, T]] = []  # what starts wait for, the lowest level first
        up: list[tuple[int, int, T]] = []  # what waits for target, the highest level first
        above: set[T] = set()
        below: set[T] = {target}
        high = low
        for x in starts:
            if x is target:
                return True
            if self.level[x] > low and x not in above:
                above.add(x)
                high = max(high, self.level[x])
                heappush(down, (self.level[x], len(above), x))
        heappush(up, (-low, 0, target))
        while down and up:
            self.visits += 2
            for p in self.before[heappop(down)[2]]:
                if p in below:
                    return True
                if self.level[p] > low and p not in above:
                    above.add(p)
                    heappush(down, (self.level[p], len(above), p))
            for n in self.after[heappop(up)[2]]:
                if n in above:
                    return True
                if self.level[n] <= high and n not in below:
                    below.add(n)
                    heappush(up, (-self.level[n], len(below), n))
        return False
