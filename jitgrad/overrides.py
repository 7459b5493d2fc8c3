"""torch.overrides: questions about objects whose class overrides functions by `__torch_function__`,
and modes, which override all of them.

The protocol itself: runtime/overriding.py, overriding_class.py for subclasses of Tensor, and
function_modes.py for modes.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jitgrad.function_modes import PLACES, get_mode, is_public, pop_mode, push_mode
from jitgrad.missing import missing
from jitgrad.runtime.overriding import (
    AllDisabled,
    call_override,
    modes,
    overridden,
    overriders,
    overrides,
    skip_one,
)
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether a mode, or the class of one of the arguments, overrides functions."""
    return overridden(relevant_args)


def has_torch_function_unary(obj: Any) -> bool:
    """has_torch_function((obj,))."""
    return overridden((obj,))


def has_torch_function_variadic(*args: Any) -> bool:
    """has_torch_function(args)."""
    return overridden(args)


def is_tensor_like(inp: Any) -> bool:
    """Whether inp is a Tensor, or its class overrides functions."""
    return isinstance(inp, Tensor) or overrides(type(inp))


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the innermost mode, or an overriding class among the relevant arguments, makes of
    public_api(*args, **kwargs).

    Raises TypeError where none of them takes it.
    """
    return call_override(public_api, overriders(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of functions that arguments may override: those that dispatcher(*args, **kwargs)
    gives."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            if overridden(relevant):
                return call_override(wrapped, overriders(relevant), args, kwargs)
            return function(*args, **kwargs)

        return wrapped

    return wrap


def redispatch_function(
    func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """func(*args, **kwargs), which is not overridden itself: what a `__torch_function__` calls to
    run a function that asks (has_torch_function), and see what it is made of. What is inside of
    jitgrad's own functions is not seen."""
    if is_public(func):
        with AllDisabled():
            return func(*args, **(kwargs or {}))
    return skip_one(func, tuple(args), kwargs or {})


@functools.cache
def get_ignored_functions() -> set[Callable[..., Any]]:
    """Public functions of these modules that are never overridden."""
    known = get_overridable_functions()
    found: set[Callable[..., Any]] = set()
    for module in (sys.modules["jitgrad"], *PLACES):
        values = [getattr(module, n) for n in dir(module) if not n.startswith("_")]
        found |= {f for f in values if isinstance(f, types.FunctionType) and f not in known[module]}
    return found


@functools.cache
def get_overridable_functions() -> dict[Any, list[Any]]:
    """The functions that can be overridden, by the module or class that has them."""
    found: dict[Any, list[Any]] = {}
    for module in (sys.modules["jitgrad"], *PLACES):
        names = [n for n in dir(module) if not n.startswith("_") and n != "is_tensor"]
        functions = [f for n in names if isinstance(f := getattr(module, n), types.FunctionType)]
        found[module] = [f for f in functions if getattr(f, "locates", False)]
    methods = [v for n, v in vars(Tensor).items() if not n.startswith("_") and callable(v)]
    found[Tensor] = [v for v in methods if not isinstance(v, (staticmethod, classmethod, type))]
    return found


@functools.cache
def get_testing_overrides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """For each function that can be overridden, one of the same signature that gives -1."""
    return {f: _constant(f) for found in get_overridable_functions().values() for f in found}


def _constant(function: Callable[..., Any]) -> Callable[..., int]:
    def constant(*args: Any, **kwargs: Any) -> int:
        return -1

    constant.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return constant


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether func is a method of Tensor, or reads a property."""
    return func in get_overridable_functions()[Tensor] or getattr(func, "__name__", "") == "__get__"


def resolve_name(f: Callable[..., Any]) -> str | None:
    """The name of a function as public code writes it, such as "jitgrad.add", or of a property's
    reading: "jitgrad.Tensor.shape.__get__"."""
    if isinstance(owner := getattr(f, "__self__", None), property):
        name = next((n for n, v in vars(Tensor).items() if v is owner), None)
        return name and f"jitgrad.Tensor.{name}.{f.__name__}"
    for place, functions in get_overridable_functions().items():
        if any(f is function for function in functions):
            owner = place.__name__ if isinstance(place, types.ModuleType) else "jitgrad.Tensor"
            return f"{owner}.{f.__name__}"
    return inspect.unwrap(f).__name__ if callable(f) and hasattr(f, "__name__") else None


class TorchFunctionMode:
    """A mode: inside `with`, what the user's code (and that of modules) calls of the public
    functions, methods, operators, properties and factories is given to
    `self.__torch_function__(func, types, args, kwargs)`, and its result is the call's.

    While it runs, the modes outside of this one are on. types: the classes among the arguments that
    override functions. Jitted functions run eagerly in a mode; a mode that is entered in one has it
    run in segments.
    """

    inner: TorchFunctionMode

    def __init__(self) -> None: ...

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError

    def __enter__(self) -> Any:
        push_mode(self)
        return self

    def __exit__(self, *error: object) -> None:
        pop_mode()

    @classmethod
    def push(cls, *args: Any, **kwargs: Any) -> Any:
        """cls(*args, **kwargs)."""
        warn("`Mode.push()` is no longer necessary and can be replaced with just `with Mode()`")
        return cls(*args, **kwargs)


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


_push_mode, _pop_mode = push_mode, pop_mode


def _get_current_function_mode() -> Any:
    """The innermost mode; None where there is none."""
    return get_mode(-1) if modes() else None


def _get_current_function_mode_stack() -> list[Any]:
    """The modes that are on in this thread, the innermost last."""
    return list(modes())


@contextmanager
def _pop_mode_temporarily() -> Iterator[Any]:
    """A context in which the innermost mode, which it gives, is off."""
    mode = pop_mode()
    try:
        yield mode
    finally:
        push_mode(mode)


@contextmanager
def enable_reentrant_dispatch() -> Iterator[None]:
    """A context in which functions may be called as anywhere else."""
    yield


__getattr__ = missing(__name__)
