"""Calls of public functions: errors with the user's line, arguments of a wrong Python type, and
which results are views.

Owns `located`, which wraps a function, and `complete`, what every wrapper of a public function
calls where it catches an error: it looks at the function's annotations then, so that calls that
work pay nothing. What is annotated `Any` is not looked at. Bools are looked at before the call.
`apart` is what every wrapper does with a result.
"""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

from jitgrad.runtime.dtypes import of_python
from jitgrad.runtime.formats import expect_strided
from jitgrad.runtime.overriding import is_wrapper, recover
from jitgrad.runtime.userline import LOCATED, add_line

CAUGHT = (*LOCATED, AttributeError)
"""The kinds of error that may come of an argument of a wrong type."""


def located(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose errors name the user's line. Functions that have a wrapper for another
    reason (out=, autocast, NumPy's names) catch there instead, which costs nothing; they say so by
    an attribute, `locates`, and are given back as they are."""
    if getattr(function, "locates", False):
        return function

    @functools.wraps(function)
    def locating(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs or len(args) > 2:
                expect_flags(function, args, kwargs)
            made = function(*args, **kwargs)
            return made if getattr(made, "_view", made) is None else apart(made, args, kwargs)
        except CAUGHT as error:
            if (found := recover(error, locating, args, kwargs)) is not None:
                return found[0]
            complete(error, function, args, kwargs)
            raise

    return locates(locating)


def apart(made: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A public function's result `made`, whose tensors are views of the arguments' memory alone.

    A function composed of ops may end with a view of what it computed. Nobody else has that
    memory, so what is given of it is no view, as it is none where the function is one op.
    """
    if isinstance(made, (tuple, list)):
        for x in made:
            if getattr(x, "_view", None) is not None:
                apart(x, args, kwargs)
        return made
    view = getattr(made, "_view", None)
    if view is not None and view.base is not None and not _has_memory(made._storage, args):
        if not _has_memory(made._storage, kwargs.values()):
            view.refresh(made)
            made._view = None
    return made


def _has_memory(storage: Any, values: Any) -> bool:
    """Whether a tensor among values, or in a container among them, is on a storage."""
    for x in values:
        if getattr(x, "_storage", None) is storage:
            return True
        if isinstance(x, (tuple, list)) and _has_memory(storage, x):
            return True
        if isinstance(x, dict) and _has_memory(storage, x.values()):
            return True
    return False


_flags: dict[Any, tuple[tuple[int, ...], frozenset[str]]] = {}


def expect_flags(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError for an argument that is annotated as a bool and is no bool or number. (What
    else is of a wrong type fails where it is used; a string is as good as True.)
    A `dtype` in kwargs that is a type of Python's numbers becomes what it stands for; a `layout`
    must be the one that tensors have."""
    if type(kwargs.get("dtype")) is type:
        kwargs["dtype"] = of_python(kwargs["dtype"])
    if "layout" in kwargs:
        expect_strided(function.__name__, kwargs["layout"])
    found = _flags.get(function)
    if found is None:
        found = _flags[function] = _flags_of(function)
    places, names = found
    for k in places:
        if k < len(args) and type(args[k]) is not bool:
            break
    else:
        for name in kwargs:
            if name in names and type(kwargs[name]) is not bool:
                break
        else:
            return
    wrong = wrong_argument(function, args, kwargs)
    if wrong is not None:
        raise TypeError(wrong)


def _flags_of(function: Any) -> tuple[tuple[int, ...], frozenset[str]]:
    """Where and how a function's arguments are named that are annotated as bools."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return (), frozenset()
    names = [n for n, wanted in inner.__annotations__.items() if wanted == "bool"]
    positional = code.co_varnames[: code.co_argcount]
    return tuple(k for k, n in enumerate(positional) if n in names), frozenset(names)


def locates(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that ends the text of its errors itself, and lets arguments override it."""
    function.locates = True  # type: ignore[attr-defined]
    is_wrapper(function)
    return function


def complete(
    error: Exception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Ends an error's text with the user's line (userline.add_line). Raises TypeError in its place
    when an argument is not of the Python type that the function's annotations say."""
    if isinstance(error, TypeError) and any(mark in str(error) for mark in _OURS):
        add_line(error)
        return
    found = wrong_argument(function, args, kwargs)
    if found is not None:
        mistake = TypeError(found)
        mistake.__traceback__ = error.__traceback__
        add_line(mistake)
        raise mistake from error
    if not isinstance(error, AttributeError):
        add_line(error)


def wrong_argument(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The text about the first argument that is of a wrong Python type; None if there is none."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return None
    count = code.co_argcount
    given = [*zip(code.co_varnames[:count], args, strict=False), *kwargs.items()]
    if code.co_flags & inspect.CO_VARARGS:
        name = code.co_varnames[count + code.co_kwonlyargcount]
        rest = args[count:]
        if len(rest) == 1 and isinstance(rest[0], (tuple, list)):
            rest = tuple(rest[0])
        given += [(name, value) for value in rest]
    for name, value in given:
        annotation = inner.__annotations__.get(name)
        if isinstance(annotation, str):
            wanted = annotation.removesuffix(" | None")
            fits = _FITS.get(wanted)
            if fits is None or (value is None and wanted != annotation) or fits(value):
                continue
            if value is None and name in _optional(inner):
                continue
            return (
                f"[{function.__name__}] expected {_NAMES[wanted]} as {name}; got "
                f"{type(value).__name__}{_advice(wanted, value)}"
            )
    return None


def _optional(function: Any) -> tuple[str, ...]:
    """The arguments whose default is None."""
    signature = inspect.signature(function)
    return tuple(n for n, p in signature.parameters.items() if p.default is None)


def _is_tensor(x: Any) -> bool:
    return any(c.__name__ == "Tensor" and hasattr(c, "backward") for c in type(x).__mro__)


def _is_int(x: Any) -> bool:
    """An integer of whatever kind: a size, a NumPy integer, a tensor of one integer."""
    if _is_tensor(x):
        return bool(x.numel() == 1 and not x.is_floating_point() and not x.is_complex())
    return hasattr(type(x), "__index__")


def _is_number(x: Any) -> bool:
    if _is_tensor(x):
        return bool(x.numel() == 1)
    return isinstance(x, numbers.Number) or hasattr(type(x), "__float__")


_FITS: dict[str, Callable[[Any], bool]] = {
    "Tensor": _is_tensor,
    "int": _is_int,
    "float": _is_number,
    "bool": lambda x: isinstance(x, (bool, numbers.Number)) or hasattr(type(x), "dtype"),
    "str": lambda x: isinstance(x, str),
    "Sequence[Tensor]": lambda x: isinstance(x, (tuple, list)) and all(map(_is_tensor, x)),
    "DType": lambda x: type(x).__name__ == "DType",
}
_OURS = ("[", "()", "expected ", " must be ")
"""What tells our texts from Python's own, such as 'str' object cannot be interpreted as an integer.
"""
_NAMES = {
    "Tensor": "a Tensor", "int": "an int", "float": "a number", "bool": "a bool", "str": "a str",
    "DType": "a dtype", "Sequence[Tensor]": "a tuple of Tensors",
}  # fmt: skip


def _advice(wanted: str, value: Any) -> str:
    if wanted == "Sequence[Tensor]" and isinstance(value, (tuple, list)):
        index, first = next((i, x) for i, x in enumerate(value) if not _is_tensor(x))
        return f" with {type(first).__name__} as element {index}"
    if wanted == "Tensor" and not isinstance(value, str) and value is not None:
        return "; convert it with jitgrad.tensor(...)"
    return ""
