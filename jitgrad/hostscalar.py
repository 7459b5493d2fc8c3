"""HostScalar: a Python number that a recorded function computes with, so that it can change.

Owns the proxy and its expression. While a function is recorded, floats that arrive as arguments
or are read from optimizer groups are lifted: arithmetic on them stays an expression, evaluated in
double on the host at each call; meeting a tensor it becomes a 0-d input of the graph. Looking at
the value (comparison, float(), hashing) tells the recorder to specialise on it; bool() on whether
it is zero. x.item() gives one, too, `seen`: comparisons of those and int() are branches (tree.py).

Code that asks whether it has a float gets yes: `isinstance` asks `__class__`, which is float;
`type(x)` cannot be told so, hence code that names `type` gets plain floats (`make_plain`, called
by the recorder before such code runs), as do the standard library and NumPy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from types import FrameType
from typing import Any

import numpy as np

from jitgrad.compiler.symbolic import Sym, bounds
from jitgrad.compiler.symbolic import plain as plain_dim
from jitgrad.state import state

_OPS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "neg": operator.neg,
    "abs": abs,
}  # fmt: skip


class HostScalar:
    """A lifted number: a leaf (`name`: how its owner knows it) or an op on numbers.

    Attributes:
        value: the number now.
        expr: None for a leaf, else (op, operands); operands are HostScalars or numbers.
        name: for a leaf, what recorders identify it by.
        recorder: the recorder it belongs to.
        seen: it is a tensor's value (x.item()), or made of one.
    """

    __slots__ = ("__weakref__", "expr", "name", "recorder", "seen", "value")

    def __init__(
        self,
        value: float,
        name: Any = None,
        recorder: Any = None,
        expr: tuple[str, tuple[Any, ...]] | None = None,
        seen: bool = False,
    ) -> None:
        self.value = value
        self.name = name
        self.recorder = state.recorder if recorder is None else recorder
        self.expr = expr
        self.seen = seen

    @staticmethod
    def of_size(size: Sym) -> HostScalar:
        """A symbolic size as a number."""
        return HostScalar(size.hint, ("size", plain_dim(size)))

    def evaluate(self, leaves: Mapping[Any, float]) -> float:
        """The value for these values of the leaves (by name); iterative, shared parts once."""
        done: dict[int, Any] = {}
        stack: list[HostScalar] = [self]
        while stack:
            node = stack[-1]
            if node.expr is None:
                done[id(node)] = leaves[node.name]
                stack.pop()
                continue
            op, operands = node.expr
            waiting = [x for x in operands if isinstance(x, HostScalar) and id(x) not in done]
            if waiting:
                stack.extend(waiting)
                continue
            values = [done[id(x)] if isinstance(x, HostScalar) else x for x in operands]
            done[id(node)] = _OPS[op](*values)
            stack.pop()
        return done[id(self)]

    def lift(self) -> Any:
        """This number as a 0-d float64 tensor: an input of the graph that is being recorded, or,
        kept from a recorded call, the number that it was."""
        if self.recorder is not None and not self._live():
            return self.recorder.plain_tensor(self.value)
        if state.recorder is None:
            raise RuntimeError(
                "[HostScalar] expected to be used while a function is recorded; got "
                f"{self.value!r}, made of a symbolic size outside; use a tensor"
            )
        return state.recorder.lift(self)

    def specialise(self) -> float:
        """The number, which the recorded function depends on from here on."""
        if self._live():
            self.recorder.specialise(self)
        return self.value

    def _live(self) -> bool:
        """Whether its recorder is recording now (maybe as the outer one of another)."""
        recorder = state.recorder
        while recorder is not None and recorder is not self.recorder:
            recorder = getattr(recorder, "outer", None)
        return recorder is not None

    def _apply(self, op: str, *operands: Any) -> Any:
        values = []
        seen = False
        for x in operands:
            if isinstance(x, HostScalar):
                values.append(x.value)
                seen = seen or x.seen
            elif isinstance(x, Sym):
                return self._apply(op, *[_of_size(y) for y in operands])
            elif isinstance(x, (int, float)) and not isinstance(x, np.generic):
                values.append(x)
            else:
                return NotImplemented
        value = _OPS[op](*values)
        if self.recorder is not None and not self._live():  # kept from a recorded call
            return value
        if not seen:
            return HostScalar(value, None, self.recorder, (op, operands))
        out = HostScalar(value, None, self.recorder, (op, operands), True)
        self.recorder.hand_out(out)
        return out

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._apply("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._apply("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._apply("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._apply("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        plain = isinstance(other, (int, float)) and not isinstance(other, HostScalar)
        real = (plain and float(other).is_integer()) or _range(self)[0] >= 0
        if real or not (self.value < 0 if self.seen else self < 0):
            return self._apply("pow", self, other)
        return self.specialise() ** _value(other)  # may be complex

    def __rpow__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other < 0:
            return other ** self.specialise()
        return self._apply("pow", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __neg__(self) -> Any:
        return self._apply("neg", self)

    def __pos__(self) -> HostScalar:
        return self

    def __abs__(self) -> Any:
        return self._apply("abs", self)

    # Looking at the value.
    def __float__(self) -> float:
        return float(self.specialise())

    def __int__(self) -> int:
        if self.seen and self._live():
            self.recorder.decide(self, "int")
            return int(self.value)
        return int(self.specialise())

    def __bool__(self) -> bool:
        """Whether it is not zero: that, not the value, is what the function depends on."""
        if self.seen and self._live():
            self.recorder.decide(self, "bool")
            return bool(self.value)
        if self.expr is not None or not self._live():
            return bool(self.specialise())
        self.recorder.truth(self)
        return bool(self.value)

    def __hash__(self) -> int:
        return hash(self.specialise())

    # With anything but a number, the other operand's comparison decides (a Tensor compares its
    # elements with this number, which then stays lifted).
    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        if isinstance(other, (HostScalar, Number, np.ndarray)):
            if self._live() and self.recorder.compare(compare.__name__, self, other):
                return compare(self.value, other.value if isinstance(other, HostScalar) else other)
            return compare(self.specialise(), _value(other))
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compare(operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.specialise(), digits)

    def __trunc__(self) -> int:
        return int(self.specialise())

    def __floor__(self) -> int:
        return math.floor(self.specialise())

    def __ceil__(self) -> int:
        return math.ceil(self.specialise())

    def __format__(self, spec: str) -> str:
        return format(self.specialise(), spec)

    def __repr__(self) -> str:
        return repr(self.specialise())

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __getattr__(self, name: str) -> Any:
        """is_integer, hex, real, ...: those of the float."""
        if not hasattr(float, name):
            raise AttributeError(f"'float' object has no attribute {name!r}")
        return getattr(self.specialise(), name)

    # With NumPy: the float, which ranks below what an array holds.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.specialise(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*plain(inputs), **plain(kwargs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*plain(args), **plain(kwargs))

    def __deepcopy__(self, memo: Any) -> float:
        return self.specialise()

    def __reduce__(self) -> Any:
        return (float, (self.specialise(),))


class Numbering:
    """Numbers lifted expressions, so that equal ones (`1 - beta` of each parameter) are one."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._table: dict[Any, int] = {}
        self._keep: list[HostScalar] = []

    def of(self, scalar: HostScalar) -> int:
        """The number; the same for the same operations on the same leaves and constants."""
        known, stack = self._known, [scalar]
        self._keep.append(scalar)  # with its operands, so that no id is used again
        while stack:
            node = stack[-1]
            op, operands = node.expr or ("leaf", ())
            waiting = [x for x in operands if is_lifted(x) and id(x) not in known]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            key: tuple[Any, ...] = (op, node.name if node.expr is None else None)
            key += tuple([known[id(x)] if is_lifted(x) else (type(x), repr(x)) for x in operands])
            known[id(node)] = self._table.setdefault(key, len(self._table))
        return known[id(scalar)]


class Comparison:
    """A comparison of lifted numbers (of one at least), and how it came out."""

    __slots__ = ("a", "b", "name", "outcome")

    def __init__(self, name: str, a: Any, b: Any) -> None:
        self.name, self.a, self.b = name, a, b
        values = [x.value if isinstance(x, HostScalar) else x for x in (a, b)]
        self.outcome = bool(COMPARE[name](*values))


SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE: dict[str, Callable[..., Any]] = {name: getattr(operator, name) for name in SIGNS}


class Truth:
    """Stands where a guard has a number's value, for all numbers that are (not) zero."""

    __slots__ = ("nonzero",)

    def __init__(self, nonzero: bool) -> None:
        self.nonzero = nonzero

    def __repr__(self) -> str:
        return "not zero" if self.nonzero else "zero"


def is_lifted(x: Any) -> bool:
    """Whether x is a lifted number (of which `isinstance(x, float)` is true, too)."""
    return type(x) is HostScalar


def _is_size(leaf: HostScalar) -> bool:
    return isinstance(leaf.name, tuple) and leaf.name[0] == "size"


def is_told(x: Any) -> bool:
    """Whether comparisons of a lifted number tell what calls a recording holds for: not of one
    that is made of sizes, which they would fix."""
    stack, known = [x], set()
    while stack:
        node = stack.pop()
        if not is_lifted(node) or id(node) in known:
            continue
        known.add(id(node))
        if node.expr is not None:
            stack.extend(node.expr[1])
        elif _is_size(node):
            return False
    return True


def plain(x: Any) -> Any:
    """x with floats for lifted numbers, and ints for symbolic sizes, which are specialised: in
    tuples, lists and dicts, too.

    Lists and dicts are changed in place, as they would hold floats if nothing was lifted.
    """
    kind = type(x)
    if kind is HostScalar:
        return x.specialise()
    if isinstance(x, Sym):
        return x.__index__()
    if kind is list:
        x[:] = [plain(y) for y in x]
    elif kind is slice:
        return slice(plain(x.start), plain(x.stop), plain(x.step))
    elif kind is dict:
        for key, value in x.items():
            x[key] = plain(value)
    elif isinstance(x, tuple):
        new = [plain(y) for y in x]
        if any(a is not b for a, b in zip(new, x, strict=True)):
            return kind._make(new) if hasattr(kind, "_make") else kind(new)
    return x


def make_plain(frame: FrameType, names: Iterable[str] | None) -> None:
    """Arguments of a frame that is about to run (None: all) become plain, if they are lifted."""
    fields = frame.f_locals  # what is set in it becomes the frame's when a profile function ends
    for name in list(fields) if names is None else names:
        value = fields.get(name)
        if isinstance(value, (float, Sym, tuple, list, dict)):
            new = plain(value)
            if new is not value:
                fields[name] = new


def _of_size(x: Any) -> Any:
    return HostScalar.of_size(x) if isinstance(x, Sym) else x


def _range(x: Any) -> tuple[float, float]:
    """What a number is at least and at most in every call, as far as sizes tell."""
    if isinstance(x, Sym):
        known = bounds(x)
        return (-math.inf if known[0] is None else known[0],
                math.inf if known[1] is None else known[1])  # fmt: skip
    if not isinstance(x, HostScalar):
        return x, x
    if x.expr is None:
        return _range(x.name[1]) if _is_size(x) else (-math.inf, math.inf)
    op, (first, *others) = x.expr
    low, high = _range(first)
    least, most = _range(others[0]) if others else (0.0, 0.0)
    if op == "add":
        return low + least, high + most
    if op == "sub":
        return low - most, high - least
    if op == "neg":
        return -high, -low
    positive = op == "abs" or (op in ("mul", "div", "floordiv", "pow") and min(low, least) >= 0)
    return 0.0 if positive else -math.inf, math.inf


def _value(x: Any) -> Any:
    return x.specialise() if isinstance(x, HostScalar) else x


def lift(value: Any, owner: Any, key: Any) -> Any:
    """`value` of slot `key` of `owner`, as the function that is being recorded shall see it.

    Outside of recording, and for what is no float and no tuple with floats, the value itself. The
    recorder decides: `recorder.lift_number(value, owner, key)` gives a HostScalar, or the value.
    """
    if state.recorder is None:
        return value
    if type(value) is tuple:
        return tuple([lift(x, value, i) for i, x in enumerate(value)])
    if type(value) is not float:
        return value
    return state.recorder.lift_number(value, owner, key)
