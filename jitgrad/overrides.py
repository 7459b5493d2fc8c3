"""torch.overrides: questions about objects whose class overrides functions by `__torch_function__`.

The protocol itself: runtime/overriding.py, and overriding_class.py for subclasses of Tensor.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jitgrad import fft, linalg, special
from jitgrad.missing import missing
from jitgrad.nn import functional
from jitgrad.runtime.overriding import call_override, overriders, overrides
from jitgrad.tensor import Tensor

_PLACES = (functional, linalg, fft, special)


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether the class of one of the arguments overrides functions."""
    return bool(overriders(relevant_args))


def has_torch_function_unary(obj: Any) -> bool:
    """has_torch_function((obj,))."""
    return bool(overriders((obj,)))


def has_torch_function_variadic(*args: Any) -> bool:
    """has_torch_function(args)."""
    return bool(overriders(args))


def is_tensor_like(inp: Any) -> bool:
    """Whether inp is a Tensor, or its class overrides functions."""
    return isinstance(inp, Tensor) or overrides(type(inp))


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the overriding classes among the relevant arguments make of public_api(*args, **kwargs).

    Raises TypeError where none of them takes it.
    """
    return call_override(public_api, overriders(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of functions that arguments may override: those that dispatcher(*args, **kwargs)
    gives."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            found = overriders(dispatcher(*args, **kwargs))
            if found:
                return call_override(wrapped, found, args, kwargs)
            return function(*args, **kwargs)

        return wrapped

    return wrap


@functools.cache
def get_overridable_functions() -> dict[Any, list[Any]]:
    """The functions that can be overridden, by the module or class that has them."""
    found: dict[Any, list[Any]] = {}
    for module in (sys.modules["jitgrad"], *_PLACES):
        names = [n for n in dir(module) if not n.startswith("_") and n != "is_tensor"]
        functions = [getattr(module, n) for n in names]
        found[module] = [f for f in functions if getattr(f, "locates", False)]
    methods = [v for n, v in vars(Tensor).items() if not n.startswith("_") and callable(v)]
    found[Tensor] = [v for v in methods if not isinstance(v, (staticmethod, classmethod, type))]
    return found


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether func is a method of Tensor, or reads a property."""
    return func in get_overridable_functions()[Tensor] or getattr(func, "__name__", "") == "__get__"


def resolve_name(f: Callable[..., Any]) -> str | None:
    """The name of a function as public code writes it, such as "jitgrad.add"."""
    for place, functions in get_overridable_functions().items():
        if any(f is function for function in functions):
            owner = place.__name__ if isinstance(place, types.ModuleType) else "jitgrad.Tensor"
            return f"{owner}.{f.__name__}"
    return inspect.unwrap(f).__name__ if callable(f) and hasattr(f, "__name__") else None


class TorchFunctionMode:
    """A mode that would see all functions: entering one raises RuntimeError."""

    inner: Any = None

    def __enter__(self) -> NoReturn:
        raise RuntimeError(
            f"[{type(self).__name__}] modes that see every function (__torch_function__) are not "
            "there yet (docs/limits.md)"
        )

    def __exit__(self, *error: object) -> None: ...


__getattr__ = missing(__name__, "TorchFunctionMode and its kin are not there (docs/limits.md)")
