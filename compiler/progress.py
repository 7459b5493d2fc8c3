"""Progress of a long compile, to stderr: for whoever waits at a terminal, or asks for it.

Shown once a compile has taken a second, if stderr is a terminal or JITGRAD_LOG has "progress".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from jitgrad.runtime.knobs import knobs

T = TypeVar("T")
LONG = 1.0
"""Seconds after which a compile is long."""


def is_shown() -> bool:
    """Whether anybody wants to see it."""
    return "progress" in knobs.log or sys.stderr.isatty()


class Progress:
    """What a compile is doing, on one line that is written over (on lines, where nobody looks)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted = is_shown()
        self.start = time.perf_counter()
        self.shown = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def at(self, what: str) -> None:
        """The compile has come to this step."""
        if not self.wanted or self.seconds < LONG:
            return
        self.shown = True
        line = f"[compile] {self.name}: {what} ({self.seconds:.0f} s)"
        if sys.stderr.isatty():
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr)

    def each(self, things: Sequence[T], what: str) -> Iterator[T]:
        """The things, one after the other, with progress."""
        for i, x in enumerate(things):
            self.at(f"{what} {i + 1} of {len(things)}")
            yield x

    def done(self, text: str) -> None:
        """The compile is over; `text` says what came of it."""
        if not self.wanted or self.seconds < LONG:
            return
        line = f"[compile] {self.name}: {text}, in {self.seconds:.1f} s"
        print(f"\r{line}\x1b[K" if self.shown and sys.stderr.isatty() else line, file=sys.stderr)
