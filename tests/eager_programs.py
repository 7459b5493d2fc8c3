"""Programs that eager code has compiled: made anew in a test, and the names of those made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jitgrad.dispatch import forget_plans
from jitgrad.runtime.knobs import knob


@contextmanager
def made_anew(*tables: dict[Any, Any]) -> Iterator[None]:
    """Eager code as a user has it, which knows none of the programs in its tables."""
    forget_plans()
    for known in tables:
        known.clear()
    with knob(eager="auto"):
        yield
    forget_plans()


def compiled_by(monkeypatch: pytest.MonkeyPatch, module: Any, function: str) -> list[str]:
    """The names of the ops or graphs that a module's function, which compiles its first argument,
    is called with from here on."""
    made: list[str] = []
    compile = getattr(module, function)

    def counted(what: Any, *args: Any) -> Any:
        made.append(what.name)
        return compile(what, *args)

    monkeypatch.setattr(module, function, counted)
    return made
