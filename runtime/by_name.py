"""Inputs that a call gives by name, in the model's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def in_order(
    label: str, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """`given`, and behind them what `named` has for the other names. Raises TypeError for a name
    that is none, or given in order as well, and for names that are missing."""
    rest = names[len(given) :]
    for name in named:
        if name not in names:
            raise TypeError(f"[{label}] no input is called {name!r}; expected {', '.join(names)}")
        if name not in rest:
            raise TypeError(f"[{label}] input {name!r} is given twice: in order, and by name")
    missing = [name for name in rest if name not in named]
    if missing:
        raise TypeError(f"[{label}] missing inputs: {', '.join(missing)}")
    return (*given, *(named[name] for name in rest))
