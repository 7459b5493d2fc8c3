"""Modules under @jit: a Module with the same state whose calls are compiled.

Owns the wrapper, and that copies of it (copy, deepcopy, pickle) run compiled code of their own, for
their own state. The compiled function itself is jit_function.py's JitFunction, which is handed in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

_REPORTS = ("stats", "explain", "guards", "memory_plan", "explain_last_miss", "clear", "lower")


def jitted_module(module: Any, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A Module that shares `module`'s state (one __dict__), whose calls are compiled.

    make: what compiles a function, with `options` as keywords.
    """
    while hasattr(type(module), "_orig_mod"):  # jit of what is jitted: these options hold
        module = type(module)._orig_mod
    out = _unbound(type(module), make, options)
    _bind(out, module)
    return out


def _unbound(kind: type, make: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A wrapper of a Module of class `kind` that is still to come (see `_bind`)."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        cls = type(self)
        if self.__dict__ is not cls._orig_mod.__dict__:  # made of the class, around `jit`
            return kind.__call__(self, *args, **kwargs)
        return cls.jitted(*args, **kwargs)

    def deep_copy(self: Any, memo: dict[int, Any]) -> Any:
        out = memo[id(self)] = _unbound(kind, make, options)
        _bind(out, copy.deepcopy(type(self)._orig_mod, memo))
        return out

    body: dict[str, Any] = {
        "__call__": call,
        "__copy__": lambda self: jitted_module(copy.copy(type(self)._orig_mod), make, options),
        "__deepcopy__": deep_copy,
        "__reduce_ex__": lambda self, protocol: (
            _unbound, (kind, make, options), type(self)._orig_mod, None, None, _bind
        ),
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "_make_jitted": staticmethod(lambda call: make(call, **options)),
    }  # fmt: skip
    for key in _REPORTS:
        if not hasattr(kind, key):
            body[key] = property(_forwarded(key))
    return object.__new__(type(kind.__name__, (kind,), body))


def _bind(wrapper: Any, module: Any) -> None:
    """From here on the wrapper has the state of `module`, and code compiled for it."""
    cls: Any = type(wrapper)
    cls._orig_mod = module
    cls.jitted = cls._make_jitted(module.__call__)
    object.__setattr__(wrapper, "__dict__", module.__dict__)


def _forwarded(key: str) -> Callable[[Any], Any]:
    return lambda self: getattr(type(self).jitted, key)
