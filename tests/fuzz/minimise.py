"""Makes a failing program small: drops statements, results and calls while it still fails."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from fuzz.program import Program


def minimise(program: Program, fails: Callable[[Program], bool], tries: int = 400) -> Program:
    """The smallest program found that still fails (greedy, in several rounds)."""
    best = deepcopy(program)
    while tries > 0:
        before = _size(best)
        for part in ("results", "body", "between", "setup"):
            chunk = max(1, len(getattr(best, part)) // 2)
            while chunk and tries > 0:
                i = len(getattr(best, part)) - chunk
                while i > -chunk and tries > 0:
                    candidate = deepcopy(best)
                    lines = getattr(candidate, part)
                    del lines[max(i, 0) : i + chunk]
                    tries -= 1
                    if _names_hold(candidate) and fails(candidate):
                        best = candidate
                    i -= chunk
                chunk //= 2
        for name in list(best.arguments):
            candidate = deepcopy(best)
            del candidate.arguments[name]
            tries -= 1
            if fails(candidate):
                best = candidate
        for name in list(best.cells):
            candidate = deepcopy(best)
            candidate.cells.remove(name)
            tries -= 1
            if fails(candidate):
                best = candidate
        if _size(best) >= before:
            break
    return best


def _names_hold(program: Program) -> bool:
    try:
        compile(program.text(), "<candidate>", "exec")
    except SyntaxError:
        return False
    return True


def _size(program: Program) -> int:
    return len(program.text())
