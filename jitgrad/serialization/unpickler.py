"""Python's unpickler, fenced: what a file can make it do is to build plain data from its own bytes.

Owns what no table of names can say (pickled.py has that): a file's program reads no more than the
file has, calls only what the table gave it, with arguments that do not grow (no `list(range(n))`,
no `bytearray(n)`), and sets state (the opcode BUILD) only where that is plain data. It is the
unpickler that is written in Python, whose memo is a dict: that in C makes room for any number that
a file names.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from jitgrad.tensor import Size

_DATA = (list, tuple, dict, set, frozenset, bytes, bytearray, str)
_ITEMS: dict[type, tuple[type, ...]] = {
    **dict.fromkeys((list, tuple, set, frozenset, dict, Size), _DATA),
    **dict.fromkeys((collections.Counter, collections.OrderedDict), _DATA),
    bytearray: (bytes, bytearray, list, tuple, str),
    str: (str, bytes, int, float),
}
"""Classes that make as many items as an argument has or is, and what they are made of."""


_Python: Any = getattr(pickle, "_Unpickler")  # noqa: B009


class _Stream:
    """A file whose reads are within it: a read past the end is an EOFError, before there is memory
    for it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        here = stream.tell()
        self._end = stream.seek(0, 2)
        stream.seek(here)

    def expect(self, count: int) -> None:
        left = self._end - self._stream.tell()
        if count > left:
            raise EOFError(f"expected {count} more bytes; it has {left}")

    def read(self, count: int) -> bytes:
        self.expect(count)
        found: bytes = self._stream.read(count)
        return found

    def readline(self) -> bytes:
        found: bytes = self._stream.readline()
        return found


def refused(what: str) -> pickle.UnpicklingError:
    """The error for a file that asks for what is not done."""
    return pickle.UnpicklingError(f"[load] refused: {what}; nothing was executed")


class Unpickler(_Python):
    """Reads one pickle. A subclass says by `find_class` what names stand for.

    stateful: objects, beside containers and dtypes, that may be given a state: instances of these
    classes. Raises pickle.UnpicklingError for what is refused, EOFError for a torn file.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_Python.dispatch)
    stateful: tuple[type, ...] = ()

    def __init__(self, stream: Any) -> None:
        super().__init__(_Stream(stream), encoding="utf-8", fix_imports=False)

    # -- calls ---------------------------------------------------------------------------------
    def load_reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = _call(self.stack[-1], args)

    dispatch[pickle.REDUCE[0]] = load_reduce

    def load_newobj(self) -> None:
        args = self.stack.pop()
        self.stack.append(_new(self.stack.pop(), args, {}))

    dispatch[pickle.NEWOBJ[0]] = load_newobj

    def load_newobj_ex(self) -> None:
        kwargs, args = self.stack.pop(), self.stack.pop()
        self.stack.append(_new(self.stack.pop(), args, kwargs))

    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex

    def _instantiate(self, kind: Any, args: Any) -> None:
        self.append(_call(kind, tuple(args)))

    def get_extension(self, code: int) -> None:
        raise refused(f"the file asks for the extension {code} of Python's registry")

    # -- state ---------------------------------------------------------------------------------
    def load_build(self) -> None:
        state = self.stack.pop()
        x = self.stack[-1]
        if isinstance(x, np.dtype):
            _expect_plain_dtype(state)
            x.__setstate__(state)  # type: ignore[attr-defined]
        elif isinstance(x, self.stateful):
            _set_state(x, state)
        elif isinstance(x, collections.OrderedDict):  # a state_dict's _metadata
            _expect_attributes(x, state)
            vars(x).update(state)
        else:
            raise refused(f"the file sets a state of {type(x).__name__}, which takes none")

    dispatch[pickle.BUILD[0]] = load_build

    # -- sizes ---------------------------------------------------------------------------------
    def load_bytearray8(self) -> None:
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8


def _call(function: Callable[..., Any], args: Any) -> Any:
    if not callable(function) or not isinstance(args, tuple):
        raise refused(f"the file calls {type(function).__name__} with {type(args).__name__}")
    if isinstance(function, type) and function in _ITEMS:
        for x in args:
            if not isinstance(x, _ITEMS[function]):
                raise refused(f"the file makes a {function.__name__} of a {type(x).__name__}")
    return function(*args)


def _new(kind: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(kind, type):
        raise refused(f"the file makes an object of {type(kind).__name__}, which is no class")
    if kind in _ITEMS and not kwargs:
        return _call(kind, args)
    return kind.__new__(kind, *args, **kwargs)


def _set_state(x: Any, state: Any) -> None:
    """What Python's unpickler does with a state: attributes, of slots too, or __setstate__."""
    own = getattr(x, "__setstate__", None)
    if own is not None:
        own(state)
        return
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        if not isinstance(part, (dict, type(None))):
            raise refused(f"the file gives {type(x).__name__} a state of {type(part).__name__}")
        for name, value in (part or {}).items():
            setattr(x, name, value)


def _expect_attributes(x: Any, state: Any) -> None:
    """Raises UnpicklingError unless a state is a dict of attributes that x's class has not."""
    if not isinstance(state, dict):
        raise refused(
            f"the file gives an OrderedDict a state of {type(state).__name__}, not a dict"
        )
    for name in state:
        if not isinstance(name, str) or hasattr(type(x), name):
            raise refused(f"the file sets the attribute {name!r} of an OrderedDict")


def _expect_plain_dtype(state: Any) -> None:
    """Raises UnpicklingError unless a dtype's state is that of one of numbers: without fields,
    shapes and sizes of its own."""
    plain = isinstance(state, tuple) and len(state) >= 7 and isinstance(state[1], str)
    if not plain or any(x is not None for x in state[2:5]) or state[5:7] != (-1, -1):
        raise refused(f"the file has a NumPy dtype that is none of numbers: {state!r:.80}")
