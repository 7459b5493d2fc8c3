"""Sizes that may differ from call to call: what code sees of them while a function is recorded.

Owns `SymInt`, the integer that `x.shape[0]` gives where a dim is symbolic, and the way between
types and attributes with SymInts (tensors, while they are recorded), with plain Syms (graphs) and
with ints (data). Which sizes are symbolic is dims.py; what a comparison guards is
compiler/symbolic.py.

A SymInt is an int to code that asks (`isinstance`), as a lifted float is a float (hostscalar.py):
arithmetic with ints stays symbolic, comparisons add guards, arithmetic with floats gives a number
that each call computes afresh. Whatever needs the very value (`range(n)`, a list's index, len(),
text, hashing) fixes it: later calls with another are recorded anew. When the recording is over it
is the int that it was.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.symbolic import Sym, evaluate, hint, is_static
from jitgrad.compiler.symbolic import plain as plain_dim
from jitgrad.compiler.types import TensorType
from jitgrad.hostscalar import HostScalar
from jitgrad.state import state
from jitgrad.tensor import intern_type

_MAX_POWER = 8  # n ** 3 is a product; larger powers fix the size


class SymInt(Sym):
    """A size (or an int argument) of the function that is being recorded, and sums, products and
    quotients of such."""

    __slots__ = ()
    chooses = True

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    @property
    def live(self) -> bool:
        """Whether its function is being recorded."""
        return self.env.live and state.recorder is not None

    # Looking at the value.
    def __index__(self) -> int:
        return super().__index__() if self.live else self.hint

    __int__ = __index__
    __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __complex__(self) -> complex:
        return complex(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __str__(self) -> str:
        return str(self.__index__())

    __repr__ = __str__

    def label(self) -> str:
        """What types print, in errors: the size now, which does not fix it."""
        return str(self.hint)

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        digits = None if digits is None else operator.index(digits)
        return self if digits is None or digits >= 0 else round(self.__index__(), digits)

    def __pos__(self) -> Any:
        return self

    def __floor__(self) -> Any:
        return self

    __ceil__ = __floor__

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __invert__(self) -> Any:
        return -self - 1

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return self._number("__truediv__", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._number("__rtruediv__", other)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            return pow(*[int(x) if isinstance(x, Sym) else x for x in (self, other, modulus)])
        if not _is_int(other):
            return self._number("__pow__", other)
        if isinstance(other, Sym):
            other = other.__index__()
        if not 0 <= other <= _MAX_POWER:
            return self.__index__() ** other if other >= 0 else self._number("__pow__", other)
        out: Any = 1
        for _ in range(other):
            out = out * self
        return out

    def __rpow__(self, other: Any) -> Any:
        return other ** self.__index__() if _is_int(other) else self._number("__rpow__", other)

    def _number(self, name: str, other: Any) -> Any:
        """The operation on the size as a number that is computed at each call."""
        if isinstance(other, complex) and not isinstance(other, np.generic):
            return getattr(complex(self.__index__()), name)(other)
        if not isinstance(other, (int, float)) or isinstance(other, np.generic):
            return NotImplemented
        if not self.live:
            return getattr(float(self.hint), name)(other)
        return getattr(HostScalar.of_size(self), name)(other)

    def __getattr__(self, name: str) -> Any:
        """bit_length, real, ...: those of the int."""
        if not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    # With NumPy: the int.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.__index__(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(as_int, inputs), **kwargs)

    def __deepcopy__(self, memo: Any) -> int:
        return self.__index__()

    def __copy__(self) -> SymInt:
        return self

    def __reduce__(self) -> Any:
        return (int, (self.__index__(),))


def _is_int(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, np.generic)


def _arithmetic(name: str) -> Any:
    """A method of SymInt: Sym's with ints, a number's with floats, int's after the recording."""
    of_sym = getattr(Sym, name)

    def method(self: SymInt, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            return NotImplemented
        if isinstance(other, np.generic):
            return getattr(self.__index__(), name)(other)
        if isinstance(other, complex):
            of_complex = getattr(complex(self.__index__()), name, None)
            return NotImplemented if of_complex is None else of_complex(other)
        if not self.live:
            other = as_int(other)
            if type(other) is float:
                return getattr(float(self.hint), name)(other)
            return getattr(self.hint, name)(other)
        if isinstance(other, (int, Sym)):
            return of_sym(self, int(other) if type(other) is bool else other)
        if isinstance(other, float):
            return self._number(name, other)
        return NotImplemented

    method.__name__ = name
    return method


def _by_value(name: str) -> Any:
    """A method of SymInt that only the very value answers."""

    def method(self: SymInt, other: Any) -> Any:
        return getattr(self.__index__(), name)(as_int(other))

    method.__name__ = name
    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod",
              "eq", "lt", "le", "gt", "ge"):  # fmt: skip
    setattr(SymInt, f"__{_name}__", _arithmetic(f"__{_name}__"))
for _name in ("and", "or", "xor", "lshift", "rshift"):
    setattr(SymInt, f"__{_name}__", _by_value(f"__{_name}__"))
    setattr(SymInt, f"__r{_name}__", _by_value(f"__r{_name}__"))


def as_int(x: Any) -> Any:
    """x, or the int that a SymInt is fixed to."""
    return x.__index__() if type(x) is SymInt else x


def is_size(x: Any) -> bool:
    """Whether x is a symbolic size (of which `isinstance(x, int)` is true, too)."""
    return type(x) is SymInt


# -- types and attributes --------------------------------------------------------------------------
def has_sizes(x: Any) -> bool:
    """Whether a value, or one inside of a tuple, list or graph, is a Sym of whatever class."""
    if isinstance(x, (tuple, list)):
        return any(map(has_sizes, x))
    return isinstance(x, Sym) or _env(x) is not None


def has_users_size(x: Any) -> bool:
    """Whether a value, or one inside of a tuple or list, is a SymInt, or a graph that was recorded
    where users see SymInts."""
    if isinstance(x, (tuple, list)):
        return any(map(has_users_size, x))
    if isinstance(x, Sym):
        return type(x) is SymInt
    env = _env(x)
    return env is not None and env.live


def _env(x: Any) -> Any:
    """The env of the sizes in a graph that an attribute holds (compiler/body.py); else None."""
    return getattr(x, "env", None)


def _map(x: Any, function: Any) -> Any:
    if isinstance(x, Sym):
        return function(x)
    if isinstance(x, (tuple, list)) and has_sizes(x):
        return tuple([_map(y, function) for y in x])
    return x


def to_plain(x: Any) -> Any:
    """A value of an attribute as graphs have it: plain Syms."""
    return _map(x, plain_dim)


def to_hints(x: Any) -> Any:
    """A value of an attribute as data has it: ints, without a guard."""
    if not isinstance(x, Sym) and _env(x) is not None:
        return x.at(_env(x).hints)
    return _map(x, hint)


def hinted(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes as references take them."""
    return {name: to_hints(value) for name, value in attrs.items()}


def type_at(t: TensorType, values: Mapping[str, int]) -> TensorType:
    """The type with these values of the symbolic sizes."""
    return intern_type(t.with_shape(tuple([evaluate(d, values) for d in t.shape])))


def type_of_data(t: TensorType) -> TensorType:
    """The type with the sizes that the data has."""
    return TensorType(tuple(map(hint, t.shape)), t.dtype, t.device)


def plain_shape(shape: Iterable[Any]) -> tuple[Any, ...]:
    """A shape as graphs have it."""
    return tuple([to_plain(d) for d in shape])


def users_shape(shape: Sequence[Any]) -> tuple[Any, ...]:
    """A shape as users see it: SymInts. Sizes that are 0 or 1 in this call are fixed; the others
    are at least 2 in all calls, of what is exported at least 1 (where a record asks for more, to
    broadcast, that is a guard)."""
    out = []
    for d in shape:
        if isinstance(d, Sym):
            fixed = 0 if d.env.least and d.hint > 1 else 1
            d = d.__index__() if d <= fixed else SymInt(d.terms, d.env)
        out.append(d)
    return tuple(out)


def infer(op: Any, /, *types: TensorType, **attrs: Any) -> Any:
    """What a record's infer says, with symbolic dims in plain Syms, as graphs have them (so that
    its words for errors fix no size), then as users see them."""
    if is_static(d for t in types for d in t.shape) and not has_sizes(tuple(attrs.values())):
        return op.infer(*types, **attrs)
    plain = [t.with_shape(plain_shape(t.shape)) for t in types]
    of_users = any(is_size(d) for t in types for d in t.shape) or any(
        map(has_users_size, attrs.values())
    )
    try:
        found = op.infer(*plain, **{k: to_plain(v) for k, v in attrs.items()})
    except Exception:
        if of_users:  # in words of the sizes that the call has
            op.infer(*map(type_of_data, types), **hinted(attrs))
        raise
    if not of_users:
        return found  # abstract, on plain Syms

    def users(t: TensorType) -> TensorType:
        return t.with_shape(users_shape(t.shape))

    return tuple(map(users, found)) if isinstance(found, tuple) else users(found)
