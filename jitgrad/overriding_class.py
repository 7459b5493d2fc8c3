"""Subclasses of Tensor that define `__torch_function__`.

Owns what makes them call it: methods, operators and properties are Tensor's behind a question,
and `_type`, which functions ask for first, raises Overridden inside of a function
(runtime/overriding.py says how the function then makes the call). Tensor's own methods that no
wrapper is around (`Tensor.cos(x)`) ask from the first such class on. Other tensors pay nothing in
programs without one.

`Swapped` is how a function comes to ask: its code is exchanged, so it stays the object that it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from jitgrad.runtime.overriding import (
    Disabled,
    Overridden,
    call_override,
    enabled,
    inside_function,
    overriders,
    told,
)
from jitgrad.runtime.userline import is_inside, user_line
from jitgrad.state import state

# What Python or copying asks of the object itself.
OWN = frozenset(
    {
        "__new__", "__init__", "__init_subclass__", "__class__", "__dict__", "__weakref__",
        "__slots__", "__getattribute__", "__setattr__", "__delattr__", "__hash__", "__reduce__",
        "__reduce_ex__", "__copy__", "__deepcopy__", "__dir__", "__sizeof__", "__doc__",
        "__module__", "__torch_function__", "__subclasshook__", "__array_priority__",
        "__setstate__", "__iter__", "as_subclass",
    }
)  # fmt: skip
# Operators that are another function's: the name of the method that PyTorch calls instead.
CALLED = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add_", "__sub__": "sub", "__isub__": "sub_",
    "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul_", "__truediv__": "div",
    "__itruediv__": "div_", "__mod__": "remainder", "__imod__": "remainder_", "__pow__": "pow",
    "__ipow__": "pow_", "__matmul__": "matmul", "__rmatmul__": "matmul", "__neg__": "neg",
    "__pos__": "positive", "__abs__": "abs", "__ne__": "ne", "__lt__": "lt", "__le__": "le",
    "__gt__": "gt", "__ge__": "ge",
}  # fmt: skip
_FORWARD = {"__radd__": "add", "__rsub__": "sub", "__rmul__": "mul", "__rmatmul__": "matmul"}


MODES, CLASSES = 0, 1
"""Who a function may ask, in this order."""


class Swapped:
    """A function of ours, its own code, and the one that asks.

    Attributes:
        own: a function of its own code.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self.own = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__,
            function.__closure__,
        )  # fmt: skip
        self.own.__kwdefaults__ = function.__kwdefaults__
        if not hasattr(function, "__wrapped__"):  # what is shown of it stays
            vars(function).setdefault("__signature__", inspect.signature(function))
        self._calls: list[Callable[..., Any] | None] = [None, None]

    def ask(self, call: Callable[..., Any] | None, who: int) -> None:
        """From here on, the function is call(args, kwargs); with None, it does not ask `who`."""
        self._calls[who] = call
        asked = self._calls[MODES] or self._calls[CLASSES]
        own = self.own
        self._function.__kwdefaults__ = {"_asked": asked} if asked else own.__kwdefaults__
        code = own.__code__
        self._function.__code__ = _asking_code(code.co_freevars) if asked else code


@functools.cache
def swapped(function: types.FunctionType) -> Swapped:
    """The one Swapped of a function."""
    return Swapped(function)


@functools.cache
def _asking_code(free: tuple[str, ...]) -> types.CodeType:
    """The code of a function that gives all its arguments to the keyword `_asked`: of one that has
    these free variables."""
    inner = "def asking(*args, _asked, **kwargs):\n  return _asked(args, kwargs)\n"
    inner += "".join(f"  {name}\n" for name in free)
    text = f"def outer({', '.join(free)}):\n " + inner.replace("\n", "\n ") + "\n return asking"
    names: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), names)
    code: types.CodeType = names["outer"](*free).__code__
    return code


def is_method(name: str) -> bool:
    """Whether Tensor's attribute of this name is one that can be overridden."""
    return name not in OWN and (not name.startswith("_") or name.endswith("__"))


@functools.cache
def _ask_in_methods(base: type) -> None:
    """Base's methods without a wrapper ask the classes of their arguments, where the user's code
    calls them."""
    for name, value in vars(base).items():
        if is_method(name) and isinstance(value, types.FunctionType):
            if not getattr(value, "locates", False):
                told = getattr(base, CALLED.get(name, name))
                swapped(value).ask(_asking_classes(swapped(value).own, told), CLASSES)


def _asking_classes(own: Callable[..., Any], told: Callable[..., Any]) -> Callable[..., Any]:
    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for x in args:
            if getattr(x, "_overriding", False) and enabled():
                if not is_inside(sys._getframe(2).f_code.co_filename):
                    return _call(told, args, kwargs)
        return own(*args, **kwargs)

    return call


def install(cls: type, base: type) -> None:
    """Puts what asks `__torch_function__` over what a class has of base (Tensor)."""
    _ask_in_methods(base)
    cls._overriding = True  # type: ignore[attr-defined]
    between = cls.__mro__[: cls.__mro__.index(base)]
    own = {name for c in between for name in vars(c)}
    for name, value in vars(base).items():
        if name in own or not is_method(name):
            continue
        if isinstance(value, property):
            setattr(cls, name, _property(value))
        elif isinstance(value, (types.GetSetDescriptorType, staticmethod, classmethod)):
            continue
        elif callable(value):
            setattr(cls, name, _method(name, value, base))
    slot = vars(base)["_type"]
    cls._type = property(_asking(slot.__get__), slot.__set__)  # type: ignore[attr-defined]


def _leave_trace(name: str) -> None:
    """What a class makes of a call is Python's to say, at each call."""
    if state.recorder is not None and state.recorder is not state.lazy:
        state.recorder.give_up(f"calls __torch_function__ of {name}", user_line())


told.append(_leave_trace)


def _asking(get: Callable[..., Any]) -> Callable[..., Any]:
    def type_of(self: Any) -> Any:
        if enabled() and inside_function():
            raise Overridden(f"{type(self).__name__} overrides the functions of its tensors")
        return get(self)

    return type_of


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return call_override(function, overriders((*args, *kwargs.values())), args, kwargs)


def _method(name: str, own: Any, base: type) -> Callable[..., Any]:
    """A method or operator that asks first."""
    function = getattr(base, CALLED.get(name, name), own)
    reflected = getattr(base, _FORWARD.get(name, name))

    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not enabled():
            return own(self, *args, **kwargs)
        if inside_function():
            raise Overridden(f"{type(self).__name__} overrides the functions of its tensors")
        if name in _FORWARD and isinstance(args[0], base):  # an operand in front of this one
            return _call(reflected, (args[0], self), kwargs)
        return _call(function, (self, *args), kwargs)

    return method


def _property(own: property) -> property:
    """A property whose reading asks first."""

    def read(self: Any) -> Any:
        if not enabled():
            return own.__get__(self)
        if inside_function():
            raise Overridden(f"{type(self).__name__} overrides the functions of its tensors")
        return _call(own.__get__, (self,), {})

    def write(self: Any, value: Any) -> None:
        with Disabled():
            own.__set__(self, value)

    return property(read, write if own.fset is not None else None, doc=own.__doc__)


def default(
    cls: Any, base: Any, func: Callable[..., Any], kinds: Any, args: Any, kwargs: Any
) -> Any:
    """Tensor's own `__torch_function__`: the function, with nothing overridden, and its tensors as
    instances of cls. NotImplemented where another class has a part that is no base of cls."""
    if not all(issubclass(cls, kind) for kind in kinds):
        return NotImplemented
    with Disabled():
        result = func(*args, **(kwargs or {}))
        if func == base.grad.__get__:
            return result
        return _converted(result, cls, base)


def _converted(x: Any, cls: Any, base: Any) -> Any:
    if isinstance(x, base):
        return x if isinstance(x, cls) else x.as_subclass(cls)
    if isinstance(x, (tuple, list)) and any(isinstance(y, (base, tuple, list)) for y in x):
        items = [_converted(y, cls, base) for y in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x
