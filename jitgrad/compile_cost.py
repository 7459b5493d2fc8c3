"""Whether a long compile paid: eager time beside compiled time, said once after some calls."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from jitgrad.compiler.progress import LONG, is_shown

CALLS = 20
"""Calls of compiled code that are timed before the verdict."""


def metered(
    run: Callable[..., Any], name: str, compile_seconds: float, eager_seconds: float
) -> Callable[..., Any]:
    """`run`; where its compile was long, its first calls are timed, and then the verdict is shown.

    eager_seconds: what the recorded call took (recording makes it slower than a plain one).
    """
    if compile_seconds < LONG:
        return run
    times: list[float] = []

    @functools.wraps(run)
    def timed(*args: Any) -> Any:
        if len(times) >= CALLS:
            return run(*args)
        start = time.perf_counter()
        out = run(*args)
        times.append(time.perf_counter() - start)
        if len(times) == CALLS and is_shown():
            print(f"[compile] {name}: {verdict(compile_seconds, eager_seconds, sorted(times))}",
                  file=sys.stderr)  # fmt: skip
        return out

    return timed


def verdict(compile_seconds: float, eager_seconds: float, times: list[float]) -> str:
    """What the compile cost, what a call gains, and after how many calls that makes up for it."""
    call = times[len(times) // 2]
    gain = eager_seconds - call
    told = (
        f"compiling took {compile_seconds:.1f} s; a call takes {call * 1e3:.2f} ms, the recorded "
        f"one took {eager_seconds * 1e3:.2f} ms: "
    )
    if gain <= 0:
        return (
            told + "it does not pay; call the plain function (f.__wrapped__), and please report it"
        )
    return told + f"it pays after {compile_seconds / gain:.0f} calls"
