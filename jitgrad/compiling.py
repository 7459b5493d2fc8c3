"""What torch.compiler offers: keeping functions out of compiled code, asking whether code is being
recorded.

`jitgrad.compiler` finds its public names here (compiler/__init__.py), `jitgrad._dynamo` too.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from jitgrad.jit import JitFunction, disable_jit
from jitgrad.lazy_recorder import paused
from jitgrad.missing import missing
from jitgrad.runtime.userline import user_line
from jitgrad.state import state

F = TypeVar("F")


def _recorder() -> Any:
    """The recorder of the jitted function that is being recorded, or None."""
    found = state.recorder
    while found is not None and not hasattr(found, "give_up"):
        found = found.outer  # vmap's, forward mode's: they pass on what they are told
    return found


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """A decorator: fn is never compiled. A jitted function that calls it runs eagerly.

    recursive=False: jitted functions that fn calls are still compiled.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    if isinstance(fn, JitFunction):
        fn = fn.__wrapped__
    why = f" ({reason})" if reason else ""
    name = getattr(fn, "__qualname__", type(fn).__name__)

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder()
        if recorder is not None:
            recorder.give_up(f"calls {name}, which compiler.disable leaves out{why}", user_line())
        with paused(f"calls {name}, which compiler.disable leaves out{why}"):
            if not recursive:
                return fn(*args, **kwargs)
            with disable_jit():
                return fn(*args, **kwargs)

    return wrapper


def is_compiling() -> bool:
    """Whether this call is being recorded by @jit. Calls of compiled code run no Python."""
    return _recorder() is not None


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """Whether this call is being recorded for export: not told apart from other recordings."""
    return False


def allow_in_graph(fn: F) -> F:
    """fn: functions called while another is recorded are recorded with it."""
    return fn


def assume_constant_result(fn: F) -> F:
    """fn: what it reads is guarded, so nothing need be assumed."""
    return fn


def cudagraph_mark_step_begin() -> None:
    """Nothing: there are no CUDA graphs."""


def reset() -> None:
    """Forgets what was compiled, for every function under @jit."""
    for function in list(JitFunction.instances):
        function.clear()


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """What compile() may be given as its backend."""
    return ["inductor"]


__getattr__ = missing("jitgrad.compiler")
