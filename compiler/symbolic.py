"""Symbolic dims: integers of a shape that are not known until a call.

Owns `Sym` (an expression over named dims, with a hint: the value it had while recording) and
`ShapeEnv` (the guards that comparing or using a Sym as a plain int adds). A dim of a shape is an
`int` or a `Sym`; code in infer, vjp, jvp, batch and lower computes with either through the same
operators, so long as it branches on dims only where it must: each `bool` of a comparison that the
form alone cannot decide is a guard. 0 and 1 are never symbolic.

Canonical form: a sum of products, {monomial: coefficient}, where a monomial is a sorted tuple of
atoms, an atom is a dim name or a floordiv/mod/max/min of Syms. Equal expressions are equal keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Union

Dim = Union[int, "Sym"]
Atom = Union[str, "Func"]
Monomial = tuple[Atom, ...]

_FUNCS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class Func:
    """An atom: `name(a, b)` with name one of floordiv, mod, max, min."""

    name: str
    a: Dim
    b: Dim

    def __str__(self) -> str:
        return f"{self.name}({self.a},{self.b})"


@dataclass
class ShapeEnv:
    """The dims of one trace: their hints and the guards that recording added to them."""

    hints: dict[str, int] = field(default_factory=dict)
    guards: list[tuple[str, Dim, Dim, bool]] = field(default_factory=list)

    def dim(self, name: str, hint: int) -> Sym:
        """A new symbolic dim, at least 2 in every call (0 and 1 are specialised)."""
        self.hints[name] = hint
        return Sym({(name,): 1}, self)

    def holds(self, values: Mapping[str, int]) -> bool:
        """True when all guards hold for these values of the dims."""
        return all(
            _compare(kind, evaluate(a, values), evaluate(b, values)) == outcome
            for kind, a, b, outcome in self.guards
        )


def _compare(kind: str, a: int, b: int) -> bool:
    return {"==": a == b, "<": a < b, "<=": a <= b}[kind]


def _sort_key(atom: Atom) -> str:
    return str(atom)


class Sym:
    """A symbolic integer. Supports + - * // % with ints and Syms; comparing may add a guard."""

    __slots__ = ("env", "key", "terms")

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
        self.env.guards.append(("==", self, self.hint, True))
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
        return _make(terms, self.env)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return _make({m: -c for m, c in self.terms.items()}, self.env)

    def __sub__(self, other: Dim) -> Dim:
        return self + (-other)

    def __rsub__(self, other: int) -> Dim:
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in _terms(other).items():
                m = tuple(sorted(m1 + m2, key=_sort_key))
                terms[m] = terms.get(m, 0) + c1 * c2
        return _make(terms, self.env)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return _floordiv(self, other, self.env)

    def __rfloordiv__(self, other: int) -> Dim:
        return _floordiv(other, self, self.env)

    def __mod__(self, other: Dim) -> Dim:
        return self - _floordiv(self, other, self.env) * other

    def __rmod__(self, other: int) -> Dim:
        return other - _floordiv(other, self, self.env) * self

    # -- comparison --------------------------------------------------------------------------
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return _decide("==", self, other, self.env)

    def __lt__(self, other: Dim) -> bool:
        return _decide("<", self, other, self.env)

    def __le__(self, other: Dim) -> bool:
        return _decide("<=", self, other, self.env)

    def __gt__(self, other: Dim) -> bool:
        return _decide("<", other, self, self.env)

    def __ge__(self, other: Dim) -> bool:
        return _decide("<=", other, self, self.env)

    def __str__(self) -> str:
        parts = []
        for m, c in self.key:
            factors = ([str(c)] if c != 1 or not m else []) + [str(a) for a in m]
            parts.append("*".join(factors))
        return "+".join(parts) or "0"

    def __repr__(self) -> str:
        return f"Sym({self}, hint={self.hint})"


def _terms(d: Dim) -> Mapping[Monomial, int]:
    return d.terms if isinstance(d, Sym) else ({(): int(d)} if d else {})


def _make(terms: Mapping[Monomial, int], env: ShapeEnv) -> Dim:
    """A Sym, or a plain int when no dim is left."""
    terms = {m: c for m, c in terms.items() if c}
    if not terms:
        return 0
    if set(terms) == {()}:
        return terms[()]
    return Sym(terms, env)


def _floordiv(a: Dim, b: Dim, env: ShapeEnv) -> Dim:
    if isinstance(b, int) and b == 1:
        return a
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
            return _make(quotient, env)
    if isinstance(a, Sym) and isinstance(b, Sym) and a.key == b.key:
        return 1
    return _make({(Func("floordiv", a, b),): 1}, env)


def _decide(kind: str, a: Dim, b: Dim, env: ShapeEnv) -> bool:
    """The truth of a comparison: from the form where it decides, else from hints, guarded."""
    diff = a - b
    if isinstance(diff, int):
        return _compare(kind, diff, 0)
    # All dims are >= 2, so a sum with positive coefficients has a lower bound.
    if all(isinstance(x, str) for m in diff.terms for x in m):
        low = sum(c * 2 ** len(m) for m, c in diff.terms.items())
        if all(c > 0 for m, c in diff.terms.items() if m) and low > 0:
            return False
        if all(c < 0 for m, c in diff.terms.items() if m) and low < 0:
            return kind != "=="
    outcome = _compare(kind, evaluate(a, env.hints), evaluate(b, env.hints))
    env.guards.append((kind, a, b, outcome))
    return outcome


def smax(a: Dim, b: Dim) -> Dim:
    """max(a, b) without a guard."""
    return _func("max", a, b)


def smin(a: Dim, b: Dim) -> Dim:
    """min(a, b) without a guard."""
    return _func("min", a, b)


def _func(name: str, a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return _FUNCS[name](a, b)
    if isinstance(a, Sym) and isinstance(b, Sym) and a.key == b.key:
        return a
    env = a.env if isinstance(a, Sym) else b.env  # type: ignore[union-attr]
    return _make({(Func(name, a, b),): 1}, env)


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
    return isinstance(diff, int) and diff == 0
