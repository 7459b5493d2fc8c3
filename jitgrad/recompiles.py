"""Recordings that should not be: refusing them (`no_recompile`), and warning of many.

Owns the words: the cause as the guards tell it, and the way out for each kind of cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knob, knobs
from jitgrad.runtime.userline import warn

STORM = 8
"""So many specialisations of one function are a storm, and worth a warning."""


class RecompileError(CompileError):
    """A function under @jit would have been recorded where no_recompile() forbids it.

    >>> import jitgrad
    >>> f = jitgrad.jit(lambda x: x * 2)
    >>> y = f(jitgrad.ones(3))
    >>> with jitgrad.no_recompile():
    ...     y = f(jitgrad.ones(3))  # compiled code
    >>> try:
    ...     with jitgrad.no_recompile():
    ...         f(jitgrad.ones(4))
    ... except RuntimeError as error:
    ...     print("type of x: float32[3] -> float32[4]" in str(error))
    True
    """


@contextmanager
def no_recompile() -> Iterator[None]:
    """Inside, a call that compiled code does not serve raises RecompileError naming the cause.

    For this thread; JITGRAD_RECOMPILE=error for a process. What runs eagerly for a stated reason
    goes on to.
    """
    with knob(recompile="error"):
        yield


def refuse_recording(name: str, misses: Sequence[str]) -> None:
    """Raises RecompileError if no function may be recorded now."""
    if knobs.recompile != "error":
        return
    if not misses:
        cause = "it has not been recorded yet; call it once before"
    else:
        cause = f"{'; '.join(misses)}. {way_out(misses[0])}"
    raise RecompileError(f"[jit] {name} would be recorded where no_recompile() forbids it: {cause}")


def warn_of_storm(name: str, misses: Sequence[str]) -> None:
    """Warns of a function that has been recorded again and again."""
    warn(
        f"[jit] {name} is recorded for the {len(misses) + 1}th time; the last cause: "
        f"{misses[0].partition(': ')[2]}. {way_out(misses[0])} (f.explain_last_miss(), "
        "JITGRAD_LOG=recompiles and docs/jit.md say more)",
        FallbackWarning,
    )


def way_out(miss: str) -> str:
    """What to do about a cause, as explain_last_miss() words it."""
    cause = miss.partition(": ")[2]
    for start, advice in _ADVICE:
        if cause.startswith(start):
            return advice
    _, arrow, after = cause.rpartition(" -> ")
    if (arrow and _is_number(after)) or (" == " in cause and not arrow):
        return (
            "Python looks at the value of a number or a size: use it in arithmetic only, pass a "
            "0-d tensor or a float, or let it be the same"
        )
    if arrow:
        return "Let what changes be an argument, or a tensor, or let it be the same at each call"
    return "Let the state that changes be a tensor, or an argument"


_ADVICE: list[tuple[str | tuple[str, ...], str]] = [
    (
        "type of",
        "Sizes and dtypes are guarded: pad to few sizes, drop the last batch, or declare the dim "
        "with jitgrad.Dim",
    ),
    (
        ("length of", "keys of", "elements of"),
        "Code reads a container that changes: read it outside of the function, pass what is needed "
        "of it as an argument, or let code do nothing but append to it",
    ),
    ("structure of", "Pass the same arguments in the same containers at each call"),
    ("strides of", "Pass tensors of one memory layout (.contiguous())"),
    ("requires_grad of", "Call it under one grad mode, or with inputs that all require grad"),
    ("grad_enabled", "Call it under one grad mode; two recordings serve training and evaluation"),
]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
