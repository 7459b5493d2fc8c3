"""Turns NumPy's floating-point warnings off while references run.

Division by zero, overflow and invalid operations give inf and NaN, as IEEE says, without a warning.
NumPy's setting belongs to the user's program, so it is set for the run of one reference and put
back. `np.errstate` costs more than a small op does; setting the context variable behind it does
not, so that is used where NumPy has it (2.x), and `np.errstate` elsewhere.

    token = hush()
    try:
        out = op.reference(...)
    finally:
        unhush(token)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np


def _errstate_hush() -> Any:
    state = np.errstate(all="ignore")
    state.__enter__()
    return state


def _errstate_unhush(state: Any) -> None:
    state.__exit__(None, None, None)


def _find() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    umath = getattr(getattr(np, "_core", None), "umath", None)
    variable = getattr(umath, "_extobj_contextvar", None)
    make = getattr(umath, "_make_extobj", None)
    if variable is None or make is None:
        return _errstate_hush, _errstate_unhush
    ignore = make(all="ignore")
    return partial(variable.set, ignore), variable.reset


hush, unhush = _find()


class Quiet:
    """`with Quiet():` for code where speed does not matter."""

    def __enter__(self) -> None:
        self.token = hush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unhush(self.token)
