"""Versions, as text that compares by its numbers; and of what PyTorch is built with.

`jitgrad` here is jitgrad's own, `torch` the one of PyTorch whose API it follows. `__version__`,
which code written for PyTorch asks, is both: "2.13.0+jitgrad0.1.0", PyTorch's with a local part, as
its builds have one ("+cpu").
"""

from __future__ import annotations

import re
from typing import Any

_RELEASE = r"\s*v?(\d+(?:\.\d+)*)"


def _numbers(x: Any) -> tuple[int, ...] | None:
    """The release of "2.1.0+cpu" or of (2, 1): its numbers, without zeros at the end."""
    if isinstance(x, tuple):
        parts = [p for p in x if isinstance(p, int)]
        if len(parts) < len(x):
            return None
    else:
        found = re.match(_RELEASE, x) if isinstance(x, str) else None
        if found is None:
            return None
        parts = [int(p) for p in found[1].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


class Version(str):
    """A version. Compares with text and tuples by the numbers of the release: "0.10" > "0.9"."""

    def __lt__(self, other: Any) -> bool:
        theirs = _numbers(other)
        return NotImplemented if theirs is None else (_numbers(self) or ()) < theirs

    def __gt__(self, other: Any) -> bool:
        theirs = _numbers(other)
        return NotImplemented if theirs is None else (_numbers(self) or ()) > theirs

    def __le__(self, other: Any) -> bool:
        theirs = _numbers(other)
        return NotImplemented if theirs is None else (_numbers(self) or ()) <= theirs

    def __ge__(self, other: Any) -> bool:
        theirs = _numbers(other)
        return NotImplemented if theirs is None else (_numbers(self) or ()) >= theirs

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, tuple):
            return _numbers(self) == _numbers(other)
        return str.__eq__(self, other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)


jitgrad = Version("0.1.0")
torch = Version("2.13.0")
__version__ = Version(f"{torch}+jitgrad{jitgrad}")
debug = False
git_version = "Unknown"
cuda: str | None = None
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
