"""Calls that an argument's class overrides: the protocol of `__torch_function__`.

Owns who overrides (`overriders`), how such a call is made (`call_override`), and how functions find
out: not before they run, which would cost every call, but where they fail. Objects that are no
tensors fail of themselves; tensors of overriding classes raise `Overridden` when a function asks
for their type (jitgrad/overriding_class.py). Wrappers of public functions (arguments.py says which)
catch errors anyway and hand them to `recover`; the outermost one makes the call.

A mode (TorchFunctionMode) is asked before all classes; where it is: jitgrad/function_modes.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from jitgrad.runtime.userline import is_inside


class Overridden(TypeError):
    """A tensor whose class overrides functions was used inside a function of ours."""


class Recalled(TypeError):
    """A public function is to be called in another way: as `call(wrapper, args, kwargs)` says, by
    the wrapper whose frame this is."""

    def __init__(self, frame: FrameType, call: Callable[..., Any]) -> None:
        super().__init__("expected to be called anew")
        self.frame: FrameType | None = frame
        self.call = call


class _Mode(threading.local):
    """What holds in this thread.

    Attributes:
        off: how many `Disabled` it is in.
        stack: the modes that are asked, the innermost last.
        skips: the next question whether arguments override is answered with no.
    """

    off = 0
    stack: tuple[Any, ...] = ()
    skips = False


_mode = _Mode()
_wrappers: set[CodeType] = set()
PLAIN: set[Any] = set()
"""The functions `__torch_function__` that override nothing: Tensor's own, and the disabled one."""
told: list[Callable[[str], None]] = []
"""Who is told, with the name of the class, that an override is about to be called."""


Call = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
anew: list[Callable[[tuple[Any, ...], dict[str, Any]], Call | None]] = []
"""Who is asked, with the arguments, after a function of ours failed: how it is to be called
instead, or None. They find its wrapper's frame at depth 2."""


class Disabled:
    """A context in which no class overrides anything. Modes are asked."""

    def __enter__(self) -> None:
        _mode.off += 1

    def __exit__(self, *error: object) -> None:
        _mode.off -= 1


class AllDisabled(Disabled):
    """A context in which no class overrides anything, and no mode is asked."""

    def __enter__(self) -> None:
        super().__enter__()
        self._outer = modes()
        set_modes(())

    def __exit__(self, *error: object) -> None:
        set_modes(self._outer)
        super().__exit__(*error)


def enabled() -> bool:
    """Whether classes may override functions here."""
    return not _mode.off


def modes() -> tuple[Any, ...]:
    """The modes that are asked in this thread, the innermost last."""
    return _mode.stack


def set_modes(stack: tuple[Any, ...]) -> None:
    """Sets the modes that are asked in this thread."""
    _mode.stack = stack


def skip_one(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs), a user's function that asks whether it is overridden: the first
    time, it is not."""
    _mode.skips = True
    try:
        return function(*args, **kwargs)
    finally:
        _mode.skips = False


def overridden(values: Iterable[Any]) -> bool:
    """Whether a mode, or the class of one of these arguments, overrides a call."""
    if _mode.skips:
        _mode.skips = False
        return False
    return bool(_mode.stack) or bool(overriders(values))


def is_wrapper(function: Callable[..., Any]) -> None:
    """Notes the code of a wrapper that hands errors to `recover`."""
    _wrappers.add(function.__code__)


def overrides(cls: type) -> bool:
    """Whether a class defines `__torch_function__`."""
    found = getattr(cls, "__torch_function__", None)
    return found is not None and getattr(found, "__func__", found) not in PLAIN


def overriders(values: Iterable[Any]) -> list[Any]:
    """Of arguments (and what lists and tuples among them hold), one object of each class that
    overrides: subclasses before their bases, else in their order."""
    if not enabled():
        return []
    found: list[Any] = []
    flat: list[Any] = []
    for value in values:
        flat += value if isinstance(value, (tuple, list)) else (value,)
    for x in flat:
        cls = type(x)
        if not overrides(cls) or any(type(y) is cls for y in found):
            continue
        place = (k for k, y in enumerate(found) if issubclass(cls, type(y)))
        found.insert(next(place, len(found)), x)
    return found


def call_override(
    function: Any, found: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What the innermost mode, or else the first of the overriding objects, makes of a call that is
    not NotImplemented. While a mode is asked, those outside of it are the ones that are on.

    Raises TypeError when all of them give NotImplemented.
    """
    types = tuple(map(type, found))
    stack = _mode.stack
    for x in (*stack[-1:], *found):
        for tell in told:
            tell(type(x).__name__)
        is_mode = bool(stack) and x is stack[-1]
        if is_mode:
            _mode.stack = stack[:-1]
        try:
            result = x.__torch_function__(function, types, args, kwargs)
        finally:
            if is_mode:
                _mode.stack = stack
        if result is not NotImplemented:
            return result
    name = getattr(function, "__module__", "") or ""
    asked = f"by the mode {type(stack[-1]).__name__} or " if stack else ""
    raise TypeError(
        f"no implementation found for '{name}.{getattr(function, '__name__', function)}' {asked}on "
        f"types that implement __torch_function__: {[cls.__name__ for cls in types]}"
    )


def inside_function(depth: int = 2) -> bool:
    """Whether one of our public functions is running, between here and the user's code."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and is_inside(frame.f_code.co_filename):
        if frame.f_code in _wrappers:
            return True
        frame = frame.f_back
    return False


def outermost(depth: int, passes: Callable[[str], bool]) -> FrameType | None:
    """The frame of the wrapper of the outermost public function that is running, between here and
    the user's code; None where there is none. passes: whether a function of this name counts as
    the user's code."""
    found = None
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and is_inside(frame.f_code.co_filename):
        if frame.f_code in _wrappers:
            if passes(frame.f_locals["function"].__name__):
                break
            found = frame
        frame = frame.f_back
    return found


def recover(
    error: Exception, wrapper: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any] | None:
    """After a wrapper caught an error: (the result,) where an argument overrides the call or the
    function is to be called in another way, and None where nothing does. Inside of another
    function, the error is raised on, for that to recover."""
    if isinstance(error, Recalled):
        if error.frame is not sys._getframe(1):
            raise error
        error.frame = None
        return (error.call(wrapper, args, kwargs),)
    found = overriders((*args, *kwargs.values()))
    if not found:
        if isinstance(error, Overridden):
            raise error
        for ask in anew:
            if (call := ask(args, kwargs)) is not None:
                return (call(wrapper, args, kwargs),)
        return None
    if inside_function(3):
        raise error
    return (call_override(wrapper, found, args, kwargs),)
