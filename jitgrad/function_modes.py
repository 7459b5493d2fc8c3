"""Where a mode (TorchFunctionMode) is asked: at what is called of our public names.

Owns the stack's ends, `push_mode` and `pop_mode`, and what asks. While no thread is in a mode,
nothing does: functions have their own code. The first mode gives the code of each of them to
another function, and them a code that asks the mode, if the user's code or a module calls, or else
calls that function. So a function stays the object that it is, however the user's code came by it.
They have their own code again some calls after the last mode was left: to exchange all of them
takes as long as these calls (`_IDLE`), and a mode is often entered again at once.

What a mode is given, and in which order: runtime/overriding.py.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from jitgrad import autograd, fft, linalg, making, special
from jitgrad.jit_function import JitFunction
from jitgrad.namespace import _LAZY
from jitgrad.nn import functional, init, parameter
from jitgrad.overriding_class import CALLED, MODES, is_method, swapped
from jitgrad.runtime.overriding import call_override, modes, overriders, set_modes
from jitgrad.runtime.userline import FOLDERS, is_inside, resolved, user_line
from jitgrad.state import state
from jitgrad.tensor import Tensor

PLACES = (functional, linalg, fft, special)
"""The modules, beside the top one, whose functions can be overridden."""
_OTHERS: tuple[tuple[Any, str], ...] = (
    (init, "constant_ kaiming_uniform_ normal_ uniform_"),
    (autograd, "backward grad"),
)
_PLAIN = """can_cast frombuffer is_complex is_floating_point norm numel promote_types result_type
    scalar_tensor tensordot"""
"""Those of the top module that no wrapper is around."""
_LATER = ("nn.functional", "functions.", "old_linalg", "draws")
"""The modules of those that the top module imports when they are first used."""

# Python in PyTorch, too, so that a mode sees what it calls.
_SEEN = tuple(f"{FOLDERS[0]}/{name}" for name in ("nn/", "distributions/", "overrides.py"))
_UNSEEN = (functional.__file__.removesuffix("__init__.py"), init.__file__, parameter.__file__)


@functools.cache
def _asks(filename: str) -> bool:
    """Whether calls in this file are those that a mode is asked about."""
    path = resolved(filename)
    return not is_inside(filename) or (path.startswith(_SEEN) and not path.startswith(_UNSEEN))


def _functions() -> Iterator[tuple[FunctionType, Any]]:
    """Every function that asks, with what a mode is told that it is."""
    top = sys.modules["jitgrad"]
    later = [name for name, (module, _) in _LAZY.items() if module.startswith(_LATER)]
    for module in (top, *PLACES):
        for name in (*dir(module), *later) if module is top else dir(module):
            f = None if name.startswith("_") else getattr(module, name)
            if not isinstance(f, FunctionType) or name == "is_tensor":
                continue
            marked = getattr(f, "locates", False) or getattr(f, "makes", False)
            if marked or (module is top and name in _PLAIN.split()):
                yield f, f
    for name, f in vars(making).items():  # as modules call them
        if getattr(f, "makes", False):
            yield f, getattr(top, name)
    for module, names in _OTHERS:
        for name in names.split():
            yield getattr(module, name), getattr(module, name)
    for name, value in vars(Tensor).items():
        if not is_method(name):
            continue
        if isinstance(value, FunctionType):
            yield value, getattr(Tensor, CALLED.get(name, name))
        elif isinstance(value, property):
            for accessor, told in ((value.fget, value.__get__), (value.fset, value.__set__)):
                if isinstance(accessor, FunctionType):
                    yield accessor, told


def is_public(function: Any) -> bool:
    """Whether it is one of the functions that modes are asked about."""
    return function in _known()


@functools.cache
def _known() -> dict[Any, Any]:
    return {told: f for f, told in _functions()}


class _Asking:
    """A function of ours that asks modes.

    Attributes:
        told: what a mode is told that it is. own: a function of its own code.
    """

    def __init__(self, function: FunctionType, told: Any) -> None:
        self.told = told
        self._swapped = swapped(function)
        self.own = self._swapped.own
        self._operator = function.__name__ in CALLED

    def begin(self) -> None:
        """From here on, the function asks."""
        self._swapped.ask(self.call, MODES)

    def end(self) -> None:
        """From here on, it does not."""
        self._swapped.ask(None, MODES)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's call, if no mode is on, and else what the mode makes of it."""
        found: list[Any] = []
        asks = _asks(sys._getframe(2).f_code.co_filename)
        if asks:
            found = overriders((*args, *kwargs.values()))
        if not (found or (asks and modes())):
            if not _counts.on:
                _idle()
            return self.own(*args, **kwargs)
        try:
            return call_override(self.told, found, args, kwargs)
        except TypeError:
            if self._operator and len(args) == 2:
                return NotImplemented
            raise


class _Jitted(_Asking):
    """The call of a jitted function, which runs eagerly in a mode."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0].__wrapped__(*args[1:], **kwargs) if modes() else self.own(*args, **kwargs)


@functools.cache
def _asking() -> list[_Asking]:
    found: dict[int, _Asking] = {}
    for f, told in _functions():
        found.setdefault(id(f), _Asking(f, told))
    call: Callable[..., Any] = JitFunction.__call__
    assert isinstance(call, FunctionType)
    return [*found.values(), _Jitted(call, call)]


class _Counts:
    """How many modes are on, in all threads; how many calls were made since the last one was;
    whether functions ask."""

    on = 0
    idle = 0
    asking = False


_counts = _Counts()
_lock = threading.Lock()
_IDLE = 4096


def _idle() -> None:
    """A function asked for nothing: the last of _IDLE such calls ends all asking."""
    _counts.idle += 1
    if _counts.idle < _IDLE:
        return
    with _lock:
        if _counts.asking and not _counts.on:
            for each in _asking():
                each.end()
            _counts.asking = False


def push_mode(mode: Any) -> None:
    """Turns a mode on in this thread, inside of those that are."""
    if state.recorder is not None and state.recorder is not state.lazy:
        state.recorder.give_up(f"enters the mode {type(mode).__name__}", user_line())
    with _lock:
        if not _counts.asking:
            for each in _asking():
                each.begin()
            _counts.asking = True
        _counts.on += 1
    set_modes((*modes(), mode))


def pop_mode() -> Any:
    """Turns the innermost mode of this thread off, and gives it. Raises RuntimeError where there is
    none."""
    stack = modes()
    if not stack:
        raise RuntimeError("[_pop_mode] expected a mode that is on in this thread; there is none")
    set_modes(stack[:-1])
    with _lock:
        _counts.on -= 1
        _counts.idle = 0
    return stack[-1]


def get_mode(index: int) -> Any:
    """A mode of this thread, by its place: 0 is the outermost."""
    return modes()[index]
