"""jit: all that Python can do with an int or a float that stands for those of later calls.

Each operation is called with several numbers, eager and under @jit; values, types and errors must
be equal, whether jit computes with the number at each call or guards it.
"""

from __future__ import annotations

import array
import bisect
import cmath
import collections
import copy
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import operator
import pickle
import random
import re
import statistics
import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.jit import jit

INTS = [7, 5, 12, 5, 3]
FLOATS = [7.5, 5.0, -2.5, 5.0, 0.25]
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_",
          "or_", "xor", "eq", "ne", "lt", "le", "gt", "ge", "divmod"]  # fmt: skip
OTHERS = [0, 1, 3, -3, 7, True, 0.5, -2.0, math.inf, math.nan, 1 + 2j, "a", None, [1], (1, 2),
          np.int64(3), np.float32(2.5), np.array([1, 2, 3]), fractions.Fraction(1, 3),
          decimal.Decimal("2.5")]  # fmt: skip
Table = dict[str, Callable[[Any], Any]]


class Kind(enum.IntEnum):
    A, B, C, D = 5, 7, 12, 3


def binary() -> Table:
    out: Table = {}
    for name in BINARY:
        g = divmod if name == "divmod" else getattr(operator, name)
        for o in OTHERS:
            out[f"{name}(n, {o!r})"] = lambda n, g=g, o=o: g(n, o)
            out[f"{name}({o!r}, n)"] = lambda n, g=g, o=o: g(o, n)
        out[f"{name}(n, n)"] = lambda n, g=g: g(n, n)
        out[f"{name}(n - 5, n)"] = lambda n, g=g: g(n - 5, n)
        out[f"{name}(n // 2, n - 5)"] = lambda n, g=g: g(n // 2, n - 5)
        in_place = getattr(operator, "i" + name.strip("_"), None)
        if in_place is not None and name not in ("ne", "le", "lt", "gt", "ge", "eq"):
            out[f"i{name}(n, 3)"] = lambda n, g=in_place: g(n, 3)
    return out


def methods(kind: type) -> Table:
    """Methods of int or float: of the number, and of the class, called with it."""
    skipped = {"__new__", "__init__", "__init_subclass__", "__subclasshook__", "__class__",
               "__reduce__", "__reduce_ex__", "__dir__", "__getattribute__", "__setattr__",
               "__delattr__", "__doc__", "__getnewargs__", "__getstate__",
               "__sizeof__"}  # fmt: skip
    out: Table = {}
    for name in sorted(set(dir(kind)) - skipped):
        for given in ((), (3,), ("x",), (2, 5)):

            def method(n: Any, name: str = name, given: Any = given) -> Any:
                found = getattr(n, name)
                return found(*given) if callable(found) else found

            def of_class(n: Any, name: str = name, given: Any = given) -> Any:
                found = getattr(kind, name)
                return found(n, *given) if callable(found) else found.__get__(n)

            out[f"n.{name}{given}"] = method
            out[f"{kind.__name__}.{name}(n, *{given})"] = of_class
    return out


def functions() -> Table:
    out: Table = {}
    for module in (math, cmath, operator):
        for name in dir(module):
            g = getattr(module, name)
            if name.startswith("_") or not callable(g):
                continue
            if isinstance(g, type) or name == "call":
                continue
            out[f"{module.__name__}.{name}(n)"] = lambda n, g=g: g(n)
            if module is not cmath:
                out[f"{module.__name__}.{name}(n, 3)"] = lambda n, g=g: g(n, 3)
                out[f"{module.__name__}.{name}(n, 2.5)"] = lambda n, g=g: g(n, 2.5)
                out[f"{module.__name__}.{name}(3, n)"] = lambda n, g=g: g(3, n)
                out[f"{module.__name__}.{name}([n, 2])"] = lambda n, g=g: g([n, 2])
    for name in ("is_", "is_not"):  # small ints are one object
        for given in ("n, 3", "3, n"):
            del out[f"operator.{name}({given})"]
    return out


def matched(n: Any) -> Any:
    match n:
        case 5:
            return "five"
        case 7 | 12:
            return "some"
        case int():
            return "int"
        case float():
            return "float"
    return None


def halved(n: Any) -> int:
    steps = 0
    while n > 1:
        n //= 2
        steps += 1
    return steps


def changed(container: Any, name: str, *given: Any) -> Any:
    getattr(container, name)(*given)
    return container


PERCENT, BRACES = "%d %s %05.1f", "{:,} {}"
LETTERS = "abcdefghijklmnopqrst"
EXPRESSIONS: list[Callable[[Any], Any]] = [
    # powers, rounding, text
    lambda n: pow(3, n, 7), lambda n: pow(n, 3, 7), lambda n: pow(3, 5, n),
    lambda n: pow(n, -1, 101), lambda n: pow(n, n, n + 1), lambda n: pow(exp=n, base=2),
    lambda n: round(n), lambda n: round(n, 1), lambda n: round(n, -1), lambda n: round(9.876, n),
    lambda n: f"{n}|{n:5}|{n!r}|{n:>{n}}|{n:.2f}", lambda n: PERCENT % (n, n, n),
    lambda n: BRACES.format(n, n), lambda n: f"{n / 2:.1f}", lambda n: f"{n:x}",
    str, repr, bin, hex, oct, chr, ascii, bytes, bool, int, float, complex, abs, hash, iter, len,
    lambda n: n(), lambda n: n[0], lambda n: int("12", n + 5), lambda n: int(n / 2),
    lambda n: round(n / 3, 2), lambda n: math.floor(n / 2), lambda n: math.ceil(n / 3),
    # keys, elements, slices, ranges
    lambda n: {3: "a", 5: "b", 7: "c"}.get(n), lambda n: {n: 1, n + 1: 2}, lambda n: {n, 5},
    lambda n: changed({}, "__setitem__", n, 1), lambda n: {(5, 1): "x"}.get((n, 1)),
    lambda n: hash((n, 1)), lambda n: n in (3, 5, 7), lambda n: n in [12, 64],
    lambda n: n in range(4, 10), lambda n: n in {5, 12}, lambda n: n in {7: 1},
    lambda n: LETTERS[n], lambda n: LETTERS[n : n + 2], lambda n: LETTERS[-n:],
    lambda n: LETTERS[::n], lambda n: "ab" * n, lambda n: [1] * n, lambda n: n * (1, 2),
    lambda n: range(n), lambda n: list(range(1, n, 2)), lambda n: len(range(n)), lambda n: slice(n),
    lambda n: slice(1, 50).indices(n), lambda n: slice(n).indices(100), lambda n: [*range(n)],
    lambda n: changed(list(LETTERS), "insert", n, "x"), lambda n: list(LETTERS).pop(n),
    lambda n: [3, 5, 7, 12].index(n), lambda n: [5, 5, 7].count(n), lambda n: bytes(range(99))[n],
    lambda n: changed([3, 5, 7, 12], "remove", n), lambda n: list(enumerate("ab", n)),
    lambda n: sum(i for i in range(n)), lambda n: [i * n for i in range(3)],
    lambda n: list(collections.deque(range(20), n)), lambda n: "abc".translate({97: n + 90}),
    lambda n: "a".center(n), lambda n: "ab".ljust(n, "."), lambda n: "7".zfill(n),
    lambda n: "a b c d e f g h".split(" ", n), lambda n: "a" * 20 + "".replace("a", "b", n),
    lambda n: re.sub("a", "b", "aaaaaaaa", count=n),
    # comparisons, conditions
    lambda n: 3 < n < 10, lambda n: 3 <= n <= 7 < 100, lambda n: not n, lambda n: n and 3,
    lambda n: n or 3, lambda n: 1 if n - 5 else 2, lambda n: (n - 5) or "z", lambda n: n == 5.0,
    lambda n: n == decimal.Decimal(5), lambda n: fractions.Fraction(5) < n, lambda n: n == Kind.A,
    lambda n: (n, 1) == (5, 1), lambda n: (n, 1) < (6, 0), lambda n: [n] == [7],
    lambda n: {"a": n} == {"a": 7}, lambda n: n == "5", lambda n: n is None, matched, halved,
    # classes
    lambda n: isinstance(n, int), lambda n: isinstance(n, float), lambda n: isinstance(n, bool),
    lambda n: type(n), lambda n: n.__class__, lambda n: issubclass(type(n), int), Kind,
    lambda n: Kind.A + n,
    # functions of Python's and of the standard library
    lambda n: max(n, 6), lambda n: min([n, 3, 9.5]), lambda n: sum([n, n, 0.5]),
    lambda n: sorted([5, n, 6]), lambda n: divmod(n, 2.5), lambda n: divmod(7, n - 5),
    lambda n: list(itertools.islice(LETTERS, n)), lambda n: list(itertools.repeat(1, n)),
    lambda n: bisect.bisect([1, 5, 9], n), lambda n: json.dumps({"a": n}), copy.copy,
    lambda n: copy.deepcopy([n]), lambda n: pickle.loads(pickle.dumps(n)),
    lambda n: struct.pack("d", n), lambda n: struct.pack("i", n),
    lambda n: array.array("i", [n]).tolist(), lambda n: fractions.Fraction(n),
    lambda n: fractions.Fraction(3, n), decimal.Decimal, lambda n: fractions.Fraction(1, 2) + n,
    lambda n: decimal.Decimal("1.5") * n, lambda n: datetime.timedelta(days=n),
    lambda n: functools.reduce(operator.mul, [n, n]), lambda n: statistics.median([n, 2, 9]),
    lambda n: random.Random(n).random(), lambda n: math.comb(n, 2), lambda n: (1 + 2j) * n + n * 1j,
    lambda n: complex(n, n), lambda n: float.__add__(1.5, n), lambda n: n + 2**70,
    lambda n: (n.real, n.imag), lambda n: (-n // 3, -n % 3, n // -3, n % -3),
    lambda n: 1 / (n - 5), lambda n: 1 // (n - 5), lambda n: (n - 6) ** 0.5, lambda n: 0 ** (n - 5),
    lambda n: math.log(n - 5), lambda n: 2**-n, lambda n: (-1) ** n, lambda n: 1 << (n - 5),
    # NumPy
    lambda n: np.zeros(n), np.arange, np.array, np.asarray, np.sqrt, np.isnan, np.int64, np.float32,
    lambda n: np.array([n, 1]), lambda n: np.add(n, 1), lambda n: np.array([1, 2]) + n,
    lambda n: n + np.array([1, 2]), lambda n: np.float32(1.5) * n, lambda n: np.int8(3) + n,
    lambda n: np.arange(50)[n], lambda n: np.arange(50)[:n], lambda n: np.full(2, n),
    lambda n: np.array([5, 7]) == n, lambda n: np.power(2, n), lambda n: np.clip(n, 3, 6),
    lambda n: np.linspace(0, 1, n), lambda n: np.maximum(n, 6), lambda n: np.prod((n, 2)),
    lambda n: np.where([True, False], n, 0), lambda n: np.result_type(n, np.float32),
    lambda n: np.left_shift(1, n), lambda n: changed(np.zeros(2), "__iadd__", n),
    lambda n: np.isscalar(n), lambda n: np.array_equal(n, 5), lambda n: np.random.default_rng(n),
    # tensors
    lambda n: jg.tensor(n), lambda n: jg.tensor([n, 1]), lambda n: jg.full((2,), n),
]  # fmt: skip


def known(x: Any) -> Any:
    """A value with its types, so that == tells whether two are alike."""
    if isinstance(x, jg.Tensor):
        return ("tensor", str(x.dtype), x.tolist())
    if isinstance(x, np.ndarray):
        return ("array", x.dtype.str, x.shape, x.tobytes())
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, [*map(known, x)])
    if isinstance(x, dict):
        return ("dict", [(known(a), known(b)) for a, b in x.items()])
    if isinstance(x, set):
        return ("set", sorted(map(repr, x)))
    return (type(x).__name__, re.sub(" at 0x[0-9A-Fa-f]+", "", repr(x)))


def outcome(function: Any, n: Any) -> Any:
    try:
        return known(function(n))
    except Exception as error:
        return ("raises", type(error).__name__)


TABLES: dict[str, tuple[Callable[[], Table], list[Any]]] = {
    "binary_of_ints": (binary, INTS),
    "binary_of_floats": (binary, FLOATS),
    "methods_of_ints": (lambda: methods(int), INTS),
    "methods_of_floats": (lambda: methods(float), FLOATS),
    "functions_of_ints": (functions, INTS),
    "functions_of_floats": (functions, FLOATS),
    "expressions_of_ints": (lambda: {str(k): f for k, f in enumerate(EXPRESSIONS)}, INTS),
    "expressions_of_floats": (lambda: {str(k): f for k, f in enumerate(EXPRESSIONS)}, FLOATS),
}


@pytest.mark.parametrize("name", TABLES)
def test_numbers_do_what_they_do(name: str) -> None:
    make, values = TABLES[name]
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, function in make().items():
            fast = jit(lambda n, function=function: function(n), fallback="silent")
            for n in values:
                want, found = outcome(function, n), outcome(fast, n)
                if want != found:
                    wrong.append((what, n, want, found))
    assert not wrong, wrong


def test_what_is_arithmetic_is_recorded_twice() -> None:
    """... and not for each value."""
    for function in (lambda n: n * 2 + 1, lambda n: n // 2, lambda n: -n, lambda n: n / 4,
                     lambda n: n + 0.5, lambda n: divmod(n, 3),
                     lambda n: max(n, 2), lambda n: isinstance(n, int)):  # fmt: skip
        fast = jit(lambda n, function=function: function(n), fallback="error")
        for n in (7, 5, 12, 30, 44):
            assert known(fast(n)) == known(function(n))
        assert fast.stats.traces == 2, fast.explain_last_miss()


def test_an_error_of_the_function_is_its_own() -> None:
    """It is recorded again without stand-ins of numbers, and only where nothing was done before."""
    done: list[int] = []
    box, array = [0], np.zeros(1)
    buffer = jg.zeros(1)

    def fails(n: Any) -> Any:
        return n + "text"

    def extends(n: Any) -> Any:
        done.extend([n])
        return math.ldexp("no", n)

    def appends(n: Any) -> Any:
        done.append(1)
        return math.ldexp("no", n)

    def fills_an_argument(n: Any, given: Any = done) -> Any:
        given += [1]
        return math.ldexp("no", n)

    def counts(n: Any) -> Any:
        box[0] += 1
        done.extend([1])
        return math.ldexp("no", n)

    def writes_an_array(n: Any) -> Any:
        array[0] += 1
        return math.ldexp("no", n)

    def writes_a_tensor(n: Any) -> Any:
        buffer.add_(1)
        return math.ldexp("no", n)

    for function in (fails, extends, appends, fills_an_argument, counts, writes_an_array,
                     writes_a_tensor):  # fmt: skip
        done.clear()
        box[0], array[0] = 0, 0
        buffer.zero_()
        fast = jit(function, fallback="silent")
        for k, n in enumerate((7, 5, 9)):
            with pytest.raises(TypeError):
                fast(n)
            found = max(len(done), box[0], int(array[0]), int(buffer))
            assert found == (k + 1) * (function is not fails)


def test_a_list_that_is_an_argument_is_filled_once() -> None:
    @jit(fallback="silent")
    def f(given: Any, n: Any) -> Any:
        given.append(n)
        return math.ldexp("no", n)

    for n in (7, 5, 9):
        given: list[int] = []
        with pytest.raises(TypeError):
            f(given, n)
        assert given == [n]
