"""Reached: which lines of the user's code ran while a call was recorded.

Code that a branch has left out reads nothing, so what only such lines name needs no guard: that
the branch was left out follows from what is guarded. Where a debugger or a coverage tool traces,
nothing is known, and all that code names is guarded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from jitgrad.effects import owner_of_frame
from jitgrad.reads import reads_of
from jitgrad.state import state


class Reached:
    """The lines that ran. complete: whether all were seen."""

    def __init__(self) -> None:
        self.complete = False
        self._lines: dict[CodeType, set[int]] = {}
        self._users: dict[int, Any] = {}  # by id of code: the code, and whether it is the user's

    @contextmanager
    def following(self) -> Iterator[None]:
        """Lines that run inside are noted."""
        if sys.gettrace() is not None:
            yield
            return
        tracer = self._tracer()
        before, state.tracer = state.tracer, tracer
        sys.settrace(tracer)
        try:
            yield
        finally:
            self.complete = sys.gettrace() is tracer
            state.tracer = before
            if self.complete:
                sys.settrace(None)

    def _tracer(self) -> Callable[..., Any]:
        users, lines = self._users, self._lines

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                lines[frame.f_code].add(frame.f_lineno)
            return line

        def call(frame: FrameType, event: str, arg: Any) -> Any:
            code = frame.f_code
            known = users.get(id(code))
            if known is None:
                known = users[id(code)] = (code, owner_of_frame(frame) == "user")
                if known[1]:
                    lines[code] = set()
            return line if known[1] else None

        return call

    def left_out(self, codes: Iterable[CodeType], others: Iterable[str]) -> set[str]:
        """The names that code has which ran, but in no line that ran. others: names that are read
        in any case."""
        if not self.complete:
            return set()
        named: set[str] = set()
        read = set(others)
        for code in codes:
            ran = self._lines.get(code)
            for name, lines in reads_of(code).lines.items():
                named.add(name)
                if ran is None or None in lines or not ran.isdisjoint(lines):
                    read.add(name)
        return named - read
