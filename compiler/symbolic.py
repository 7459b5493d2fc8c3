"""Symbolic dims: integers of a shape that are not known until a call.

Owns `Sym` (an expression over named dims, with a hint: the value it had while recording) and
`ShapeEnv` (the guards that comparing or using a Sym as a plain int adds). A dim of a shape is an
`int` or a `Sym`; code in infer, vjp, jvp, batch and lower computes with either through the same
operators, so long as it branches on dims only where it must: each `bool` of a comparison that the
form alone cannot decide is a guard. 0 and 1 are never symbolic.

A subclass of Sym (jitgrad/sizes.py: what users compute with) gives itself when it meets a plain
one; atoms hold plain ones.

Canonical form: a sum of products, {monomial: coefficient}, where a monomial is a sorted tuple of
atoms, an atom is a dim name or a floordiv/mod/max/min of Syms. Equal expressions are equal keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Union

from jitgrad.runtime.userline import called_by_user, user_line

Dim = Union[int, "Sym"]
Atom = Union[str, "Func"]
Monomial = tuple[Atom, ...]

LARGEST = 2**48
"""No dim is larger: there is no memory for it."""

MAX_KNOWN = 1024
"""How many values of symbolic dims something is kept for (sizes, plans, types)."""

_FUNCS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


@dataclass(eq=False)
class Func:
    """An atom: `name(a, b)` with name one of floordiv, mod, max, min. Equal by form, so looking
    one up asks nothing of sizes."""

    name: str
    a: Dim
    b: Dim

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Func):
            return NotImplemented
        mine, theirs = (self.name, _key(self.a), _key(self.b)), (_key(other.a), _key(other.b))
        return mine == (other.name, *theirs)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.a, self.b))

    def __str__(self) -> str:
        return f"{self.name}({self.a},{self.b})"


_PERIOD = math.lcm(*range(1, 65))
"""Sizes that differ by it have the same remainders by all numbers up to 64."""


class Guard(NamedTuple):
    """`a kind b` has this outcome in every call. kind: ==, < or <=. line: of the user's code.
    called: the function of ours that the line called, which compared; "" where the line did."""

    kind: str
    a: Dim
    b: Dim
    outcome: bool
    line: str
    called: str = ""

    def __str__(self) -> str:
        return self.expression()

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds for these values of the dims; not where they make it divide by 0."""
        try:
            a, b = evaluate(self.a, values), evaluate(self.b, values)
        except ZeroDivisionError:
            return False
        return _compare(self.kind, a, b) == self.outcome

    @property
    def is_fixing(self) -> bool:
        """Whether it holds of few sizes only, as n == 4 does, and n // 4 == 1; not a remainder,
        which repeats, nor what holds of all large sizes."""
        dims = [d for d in (self.a, self.b) if isinstance(d, Sym)]
        return not self.holds({n: d.env.hints[n] + _PERIOD for d in dims for n in d.names()})

    def told(self) -> str:
        """The guard as Python, and what in the user's code asked for it."""
        where = [self.called] * bool(self.called) + [f"at {self.line}"] * bool(self.line)
        return self.expression() + (f" ({', '.join(where)})" if where else "")

    def expression(self, names: Mapping[str, str] | None = None) -> str:
        """The guard as Python over the names of dims (`names`: what they are called there)."""
        opposite = {"==": ("!=", False), "<": ("<=", True), "<=": ("<", True)}
        kind, swap = (self.kind, False) if self.outcome else opposite[self.kind]
        sides = [expression(x, names) for x in ((self.b, self.a) if swap else (self.a, self.b))]
        for k, text in enumerate(sides):
            if text.startswith("(") and " % " in text and text.find(")") == len(text) - 1:
                sides[k] = text[1:-1]
        return f"{sides[0]} {kind} {sides[1]}"


@dataclass
class ShapeEnv:
    """The dims of one trace: their hints and the guards that recording added to them.

    low, high: what a dim is at least (2 where nothing is said) and at most (LARGEST). live: False
    once the function that users' sizes (sizes.py) belong to is recorded. least: of dims whose calls
    may have sizes below `low` all the same (export), the least of them; code that chooses by a size
    (`Sym.chooses`) is then answered for `low`, and guards say so where the others differ.
    """

    hints: dict[str, int] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    low: dict[str, int] = field(default_factory=dict)
    high: dict[str, int] = field(default_factory=dict)
    live: bool = True
    by_form: bool = False
    least: dict[str, int] = field(default_factory=dict)

    def dim(self, name: str, hint: int) -> Sym:
        """A new symbolic dim, at least 2 in every call (0 and 1 are specialised)."""
        self.hints[name] = hint
        return Sym({(name,): 1}, self)

    def holds(self, values: Mapping[str, int]) -> bool:
        """True when all guards hold for these values of the dims."""
        return all(g.holds(values) for g in self.guards)

    def guard(self, kind: str, a: Dim, b: Dim, outcome: bool) -> None:
        """Adds a guard, once."""
        if self.known(kind, a, b) is None:
            guard = Guard(kind, plain(a), plain(b), outcome, user_line(), called_by_user())
            self.guards.append(guard)

    def known(self, kind: str, a: Dim, b: Dim) -> bool | None:
        """The outcome of a comparison that was guarded before; None where it was not."""
        new = (kind, _key(a), _key(b))
        for g in self.guards:
            if new == (g.kind, _key(g.a), _key(g.b)) or (
                kind == "==" and new == (g.kind, _key(g.b), _key(g.a))
            ):
                return g.outcome
        return None

    @contextmanager
    def every_size(self) -> Iterator[None]:
        """Inside, bounds are those of all sizes that calls may have (`least`)."""
        before, self.low = self.low, {**self.low, **self.least}
        try:
            yield
        finally:
            self.low = before

    @contextmanager
    def deciding_by_form(self) -> Iterator[None]:
        """Inside, sizes that are not known to be equal are taken as different, without a guard:
        for the compiler, which then does what is right for both."""
        before, self.by_form = self.by_form, True
        try:
            yield
        finally:
            self.by_form = before


def _compare(kind: str, a: int, b: int) -> bool:
    return {"==": a == b, "<": a < b, "<=": a <= b}[kind]


def _sort_key(atom: Atom) -> str:
    return str(atom)


class Sym:
    """A symbolic integer. Supports + - * // % with ints and Syms; comparing may add a guard."""

    __slots__ = ("env", "key", "terms")
    chooses = False
    """Whether the code that compares it goes by the answer. (Of what a record infers, the answer is
    checked again at sizes below `low`: fixed_sizes.py.)"""

    def __init__(self, terms: Mapping[Monomial, int], env: ShapeEnv) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self.env = env
        self.key = tuple(sorted(self.terms.items(), key=lambda t: str(t[0])))

    # -- value -------------------------------------------------------------------------------
    @property
    def hint(self) -> int:
        """The value this expression had while recording."""
        return evaluate(self, self.env.hints)

    def __index__(self) -> int:
        """The hint, with a guard that later calls have the same value (specialises)."""
        self.env.guard("==", self, self.hint, True)
        return self.hint

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        return bool(self != 0)

    # -- arithmetic --------------------------------------------------------------------------
    def __add__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        terms = dict(self.terms)
        for m, c in _terms(other).items():
            terms[m] = terms.get(m, 0) + c
        return _make(terms, self.env, self, other)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _make({m: -c for m, c in self.terms.items()}, self.env, self)

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other) if isinstance(other, (int, Sym)) else NotImplemented

    def __rsub__(self, other: int) -> Dim:
        return (-self) + other if isinstance(other, (int, Sym)) else NotImplemented

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in _terms(other).items():
                m = tuple(sorted(m1 + m2, key=_sort_key))
                terms[m] = terms.get(m, 0) + c1 * c2
        return _make(terms, self.env, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _floordiv(self, other, self.env)

    def __rfloordiv__(self, other: int) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _floordiv(other, self, self.env)

    def __mod__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return self - _floordiv(self, other, self.env) * other

    def __rmod__(self, other: int) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return other - _floordiv(other, self, self.env) * self

    # -- comparison --------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("==", self, other, self.env)

    def __lt__(self, other: Dim) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("<", self, other, self.env)

    def __le__(self, other: Dim) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("<=", self, other, self.env)

    def __gt__(self, other: Dim) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("<", other, self, self.env)

    def __ge__(self, other: Dim) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("<=", other, self, self.env)

    def names(self) -> set[str]:
        """The named dims in it."""
        found: set[str] = set()
        stack: list[Dim] = [self]
        while stack:
            d = stack.pop()
            for atom in (x for m in d.terms for x in m) if isinstance(d, Sym) else ():
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    stack += [atom.a, atom.b]
        return found

    def __str__(self) -> str:
        parts = []
        for m, c in self.key:
            factors = ([str(c)] if c != 1 or not m else []) + [str(a) for a in m]
            parts.append("*".join(factors))
        return "+".join(parts) or "0"

    def label(self) -> str:
        """What types print."""
        return str(self)

    def __repr__(self) -> str:
        return f"Sym({self}, hint={self.hint})"


def _terms(d: Dim) -> Mapping[Monomial, int]:
    return d.terms if isinstance(d, Sym) else ({(): int(d)} if d else {})


def _make(terms: Mapping[Monomial, int], env: ShapeEnv, *operands: object) -> Dim:
    """A Sym, or a plain int when no dim is left; of the operands' class."""
    terms = {m: c for m, c in terms.items() if c}
    if not terms:
        return 0
    if set(terms) == {()}:
        return terms[()]
    kinds = [type(x) for x in operands if isinstance(x, Sym)]
    return next((k for k in kinds if k is not Sym), Sym)(terms, env)


def plain(d: Dim) -> Dim:
    """The dim as an int or a Sym of no subclass; what users kept of a recording that is over, as
    the int that it was."""
    if not isinstance(d, Sym) or type(d) is Sym:
        return d
    return Sym(d.terms, d.env) if d.env.live else d.hint


def _key(d: Dim) -> object:
    return d.key if isinstance(d, Sym) else d


def _floordiv(a: Dim, b: Dim, env: ShapeEnv) -> Dim:
    if not isinstance(b, Sym) and b == 1:
        return a
    if b == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    terms = _terms(a)
    divisor = _terms(b)
    if len(divisor) == 1:  # exact division term by term: (6*n*m) // (2*n) = 3*m
        ((bm, bc),) = divisor.items()
        quotient: dict[Monomial, int] = {}
        for m, c in terms.items():
            rest = list(m)
            if c % bc or any(rest.count(x) < bm.count(x) for x in bm):
                break
            for x in bm:
                rest.remove(x)
            quotient[tuple(rest)] = quotient.get(tuple(rest), 0) + c // bc
        else:
            return _make(quotient, env, a, b)
    if isinstance(a, Sym) and isinstance(b, Sym) and a.key == b.key:
        return 1
    least, above = bounds(a)[0], bounds(b - a)[0]
    if least is not None and above is not None and least >= 0 and above > 0:
        if getattr(a, "chooses", False) or getattr(b, "chooses", False):
            _decide("<=", 0, a, env)
            _decide("<", a, b, env)
        return 0
    return _make({(Func("floordiv", plain(a), plain(b)),): 1}, env, a, b)


def _decide(kind: str, a: Dim, b: Dim, env: ShapeEnv) -> bool:
    """The truth of a comparison: from the form where it decides, else from hints, guarded."""
    diff = a - b
    if not isinstance(diff, Sym):
        return _compare(kind, diff, 0)
    outcome = _by_form(kind, diff)
    if outcome is not None:
        if diff.chooses and env.least:
            with env.every_size():
                certain = _by_form(kind, diff) is not None
            if not certain:
                env.guard(kind, a, b, outcome)
        return outcome
    known = env.known(kind, a, b)
    if known is not None:
        return known
    if env.by_form and kind == "==":
        rest = _with_known(diff)
        return not isinstance(rest, Sym) and rest == 0
    outcome = _compare(kind, evaluate(a, env.hints), evaluate(b, env.hints))
    env.guard(kind, a, b, outcome)
    return outcome


def _with_known(d: Sym) -> Dim:
    """The same with the numbers that guards say quotients and the like in it are."""
    known: dict[Atom, int] = {}
    for g in d.env.guards:
        if g.kind == "==" and g.outcome and isinstance(g.a, Sym) and not isinstance(g.b, Sym):
            ((monomial, factor), *more) = g.a.terms.items()
            if not more and factor == 1 and len(monomial) == 1:
                known[monomial[0]] = g.b
    total: Dim = 0
    for monomial, factor in d.terms.items():
        number = math.prod([known[atom] for atom in monomial if atom in known])
        rest = tuple([atom for atom in monomial if atom not in known])
        total = total + _make({rest: factor * number}, d.env)
    return total


def _by_form(kind: str, diff: Sym) -> bool | None:
    """The truth of `diff kind 0` where bounds decide it."""
    low, high = bounds(diff)
    if low is not None and (low > 0 or (low == 0 and kind == "<")):
        return False
    if high is not None and (high < 0 or (high == 0 and kind == "<=")):
        return kind != "=="
    return None


_Range = tuple[int | None, int | None]
_Found = dict[Atom, _Range]
"""The bounds of the atoms in a dim: each is asked for several times, by each that is around it."""


def bounds(d: Dim) -> tuple[int | None, int | None]:
    """What a dim is at least and at most in every call; None where nothing is known."""
    return _bounds_of(d, {})


def _bounds_of(d: Dim, found: _Found) -> _Range:
    if not isinstance(d, Sym):
        return d, d
    low, high = _bounds(d, found)
    if any(isinstance(x, Func) and x.name == "floordiv" for m in d.terms for x in m):
        for upper in (False, True):
            scale, linear = _without_quotients(d, upper)
            bound = _bounds(linear, found)[upper] if isinstance(linear, Sym) else linear
            if bound is None:
                continue
            if upper:
                high = bound // scale if high is None else min(high, bound // scale)
            else:
                low = -(-bound // scale) if low is None else max(low, -(-bound // scale))
    return low, high


def settled(d: Dim) -> Dim:
    """The number that a dim is in every call, by its bounds or by a guard; the dim where none is
    known."""
    if not isinstance(d, Sym):
        return d
    low, high = bounds(d)
    if low is not None and low == high:
        return low
    return d.hint if d.env.known("==", d, d.hint) else d


def surely_le(a: Dim, b: Dim) -> bool:
    """True when a <= b in every call; False when it is not known."""
    least = bounds(b - a)[0]
    return least is not None and least >= 0


def _without_quotients(d: Sym, upper: bool) -> tuple[int, Dim]:
    """(s, e) with d <= e / s (>= where not `upper`): a // b lies between (a - b + 1) / b and a / b,
    for quotients by numbers that stand by themselves in the sum."""
    scale: int = 1
    for m in d.terms:
        if len(m) == 1 and isinstance(m[0], Func) and m[0].name == "floordiv":
            b = m[0].b
            scale *= b if not isinstance(b, Sym) and b > 0 else 1
    total: Dim = 0
    for m, c in d.terms.items():
        x = m[0] if len(m) == 1 else None
        if isinstance(x, Func) and x.name == "floordiv" and not isinstance(x.b, Sym) and x.b > 0:
            a = x.a if (c > 0) == upper else x.a - x.b + 1
            total = total + a * (c * scale // x.b)
        else:
            total = total + _make({m: c * scale}, d.env)
    return scale, total


def _bounds(d: Sym, found: _Found) -> _Range:
    low: int | None = 0
    high: int | None = 0
    for m, c in d.terms.items():
        a: int | None = 1
        b: int | None = 1
        for atom in m:
            a, b = _product((a, b), _atom_bounds(atom, d.env, found))
        if c < 0:
            a, b = b, a
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
    return low, high


def _product(x: _Range, y: _Range) -> _Range:
    """The bounds of a product, of those of its factors."""
    (a, b), (c, d) = x, y
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    if a is None or b is None or c is None or d is None:
        return None, None
    corners = (a * c, a * d, b * c, b * d)
    return min(corners), max(corners)


def _atom_bounds(atom: Atom, env: ShapeEnv, found: _Found) -> _Range:
    if isinstance(atom, str):
        return env.low.get(atom, 2), env.high.get(atom, LARGEST)
    if atom not in found:
        found[atom] = _func_bounds(atom, found)
    return found[atom]


def _func_bounds(atom: Func, found: _Found) -> _Range:
    (a, c), (b, d) = _bounds_of(atom.a, found), _bounds_of(atom.b, found)
    if atom.name == "floordiv":
        if b is None or b < 1:
            return None, None
        least = None if a is None else a // b if a < 0 else 0 if d is None else a // d
        most = None if c is None else c // b if c >= 0 else -1 if d is None else c // d
        return least, most
    if atom.name == "max":
        known = [x for x in (a, b) if x is not None]
        return max(known, default=None), (None if c is None or d is None else max(c, d))
    if atom.name == "min":
        known = [x for x in (c, d) if x is not None]
        return (None if a is None or b is None else min(a, b)), min(known, default=None)
    return None, None


def smax(a: Dim, b: Dim) -> Dim:
    """max(a, b) without a guard."""
    return _func("max", a, b)


def smin(a: Dim, b: Dim) -> Dim:
    """min(a, b) without a guard."""
    return _func("min", a, b)


def _func(name: str, a: Dim, b: Dim) -> Dim:
    if not isinstance(a, Sym) and not isinstance(b, Sym):
        return _FUNCS[name](a, b)
    if isinstance(a, Sym) and isinstance(b, Sym) and a.key == b.key:
        return a
    low, high = bounds(a - b)  # where one is never the greater, it is chosen by its form
    if low is not None and low >= 0:
        return a if name == "max" else b
    if high is not None and high <= 0:
        return b if name == "max" else a
    env = a.env if isinstance(a, Sym) else b.env  # type: ignore[union-attr]
    return _make({(Func(name, plain(a), plain(b)),): 1}, env, a, b)


def expression(d: Dim, names: Mapping[str, str] | None = None) -> str:
    """A dim as Python over the names of dims (`names`: what they are called there)."""
    if not isinstance(d, Sym):
        return str(d)
    d, rests = _remainders(d)
    parts = []
    for m, c in d.key:
        factors = ([str(c)] if c != 1 or not m else []) + [_atom_text(a, names) for a in m]
        parts.append(" * ".join(factors))
    for f, c in rests:
        parts.append(" * ".join([str(c)] * (c != 1) + [_atom_text(f, names)]))
    text = " + ".join(parts).replace("+ -1 * ", "- ").replace("+ -", "- ")
    return f"({text})" if len(parts) > 1 else text


def _remainders(d: Sym) -> tuple[Sym, list[tuple[Func, int]]]:
    """d as a sum with multiples of remainders: c a - c b (a // b) is c (a % b)."""
    found = []
    for m in [m for m in d.terms if any(isinstance(x, Func) for x in m)]:
        for f in [x for x in m if isinstance(x, Func) and x.name == "floordiv"]:
            if len(_terms(f.b)) != 1:
                continue
            ((by, scale),) = _terms(f.b).items()
            whole = {tuple(sorted((f, *by), key=_sort_key)): scale}
            c, none = divmod(-d.terms.get(m, 0), scale)
            if none or not c or set(whole) != {m}:
                continue
            of = _terms(f.a)
            if of and all(d.terms.get(k, 0) == c * n for k, n in of.items()):
                left = {k: n - c * (of.get(k, 0) - whole.get(k, 0)) for k, n in d.terms.items()}
                d = Sym(left, d.env)
                found.append((Func("mod", f.a, f.b), c))
    return d, found


def _atom_text(atom: Atom, names: Mapping[str, str] | None) -> str:
    if isinstance(atom, str):
        return names[atom] if names is not None else atom
    infix = {"floordiv": "//", "mod": "%"}.get(atom.name)
    if infix is None:
        return f"{atom.name}({expression(atom.a, names)}, {expression(atom.b, names)})"
    return f"({_operand(atom.a, names)} {infix} {_operand(atom.b, names)})"


def _operand(d: Dim, names: Mapping[str, str] | None) -> str:
    """A dim as text that binds as a whole (expression puts sums in brackets, but no products)."""
    text = expression(d, names)
    if not isinstance(d, Sym) or len(d.key) > 1:
        return text
    ((monomial, coefficient),) = d.key
    return text if coefficient == 1 and len(monomial) == 1 else f"({text})"


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The integer value of a dim for these values of the named dims."""
    if not isinstance(d, Sym):
        return int(d)
    total = 0
    for m, c in d.terms.items():
        product = c
        for atom in m:
            if isinstance(atom, Func):
                product *= _FUNCS[atom.name](evaluate(atom.a, values), evaluate(atom.b, values))
            else:
                product *= values[atom]
        total += product
    return total


def substitute(d: Dim, known: Mapping[str, Dim]) -> Dim:
    """A dim with others, or numbers, in the place of named dims."""
    if not isinstance(d, Sym):
        return d
    total: Dim = 0
    for m, c in d.terms.items():
        product: Dim = c
        for atom in m:
            if isinstance(atom, str):
                value = known.get(atom)
                product = product * (Sym({(atom,): 1}, d.env) if value is None else value)
                continue
            a, b = substitute(atom.a, known), substitute(atom.b, known)
            if atom.name == "floordiv":
                product = product * (a // b)
            elif atom.name == "mod":
                product = product * (a % b)
            else:
                product = product * _func(atom.name, a, b)
        total = total + product
    return total


def hint(d: Dim) -> int:
    """The value of a dim while recording, without a guard."""
    return d.hint if isinstance(d, Sym) else d


def prod(dims: Iterable[Dim]) -> Dim:
    """The product of dims; 1 for none."""
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def is_static(dims: Iterable[Dim]) -> bool:
    """True when no dim is symbolic."""
    return not any(isinstance(d, Sym) for d in dims)


def same(a: Dim, b: Dim) -> bool:
    """True when two dims are equal by form, without adding a guard."""
    diff = a - b
    return not isinstance(diff, Sym) and diff == 0
