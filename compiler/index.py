"""Index arithmetic: simplifies INDEX expressions by exact rules, using the ranges of axes.

Owns the normal form (a polynomial over atoms with integer coefficients) and the rules for
floordiv and mod. Movement ops leave nested unflatten/flatten arithmetic behind; here it becomes
`axis` again wherever the ranges prove it. No general algebra: every rule is a few lines.

`Simplifier(extents).simplify(expr)` works on whole bodies: each INDEX sub-expression is
normalised, and comparisons of INDEX values that the ranges decide become constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jitgrad.compiler import loops
from jitgrad.compiler.loops import (
    COMPARE,
    INDEX,
    Array,
    Expr,
    const,
    make,
    postorder,
    rebuild,
)
from jitgrad.compiler.symbolic import Dim, Sym, prod
from jitgrad.runtime import dtypes

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
Bounds = tuple[Dim, Dim] | None


class Simplifier:
    """Simplifies expressions whose axis k runs over [0, extents[k])."""

    def __init__(self, extents: Mapping[int, Dim]) -> None:
        self.extents = extents
        self.memo: dict[Expr, Expr] = {}
        self.polys: dict[Expr, Poly] = {}
        self.bounds_memo: dict[Expr, Bounds] = {}
        self.order: dict[Expr, int] = {}
        self.env = next((d.env for d in extents.values() if isinstance(d, Sym)), None)

    def simplify(self, root: Expr) -> Expr:
        """root with every INDEX part in normal form."""
        for e in postorder([root]):
            if e in self.memo:
                continue
            args = tuple(self.memo[a] for a in e.args)
            if e.dtype is INDEX:
                self.memo[e] = self._index(rebuild(e, args))
            elif e.op in COMPARE and args[0].dtype is INDEX:
                self.memo[e] = self._compare(e.op, args[0], args[1])
            elif e.op == "and" and e.dtype is dtypes.bool_:
                self.memo[e] = _and(rebuild(e, args))
            else:
                self.memo[e] = rebuild(e, args)
        return self.memo[root]

    # -- normal form ---------------------------------------------------------------------------
    def poly(self, e: Expr) -> Poly:
        """The polynomial of an INDEX expression whose arguments are already simplified."""
        found = self.polys.get(e)
        if found is not None:
            return found
        for sub in postorder([e]):
            if sub in self.polys or sub.dtype is not INDEX:
                continue
            if sub.op == "const":
                p: Poly = {(): sub.attr} if sub.attr else {}
            elif sub.op == "add":
                p = _add(self.polys[sub.args[0]], self.polys[sub.args[1]], 1)
            elif sub.op == "sub":
                p = _add(self.polys[sub.args[0]], self.polys[sub.args[1]], -1)
            elif sub.op == "neg":
                p = _add({}, self.polys[sub.args[0]], -1)
            elif sub.op == "mul":
                p = self._mul(self.polys[sub.args[0]], self.polys[sub.args[1]])
            else:
                self.order.setdefault(sub, len(self.order))
                p = {(sub,): 1}
            self.polys[sub] = p
        return self.polys[e]

    def _mul(self, p: Poly, q: Poly) -> Poly:
        out: Poly = {}
        for m1, c1 in p.items():
            for m2, c2 in q.items():
                m = tuple(sorted(m1 + m2, key=lambda a: self.order[a]))
                out[m] = out.get(m, 0) + c1 * c2
        return {m: c for m, c in out.items() if c}

    def expr(self, p: Poly) -> Expr:
        """The expression of a polynomial, terms in the order of first appearance."""
        total: Expr | None = None
        constant = p.get((), 0)
        for m, c in p.items():
            if not m:
                continue
            term: Expr | None = None
            for atom in m:
                term = atom if term is None else make("mul", term, atom)
            assert term is not None
            if total is None:
                total = term if c == 1 else make("mul", term, const(c, INDEX))
            elif c < 0:
                scaled = term if c == -1 else make("mul", term, const(-c, INDEX))
                total = make("sub", total, scaled)
            else:
                scaled = term if c == 1 else make("mul", term, const(c, INDEX))
                total = make("add", total, scaled)
        if total is None:
            return const(constant, INDEX)
        if constant:
            total = make("add", total, const(constant, INDEX))
        self.polys[total] = p
        return total

    def _index(self, e: Expr) -> Expr:
        if e.op in ("const", "axis", "size"):
            if e.op == "axis" and self.extents.get(e.attr) == 1:
                return const(0, INDEX)
            return e
        if e.op in ("floordiv", "mod"):
            p, d = self.poly(e.args[0]), self.poly(e.args[1])
            return self._divide(p, d, e)
        if e.op in ("add", "sub", "mul", "neg"):
            return self.expr(self._join_div_mod(self.poly(e)))
        if e.op == "check":
            low_high, extent = self.bounds(e.args[0]), e.args[1]
            if low_high and _at_least(low_high[0], 0) and extent.op == "const":
                if _at_least(extent.attr - 1, low_high[1]):
                    return e.args[0]
        if e.op in ("min", "max"):
            a, b = self.bounds(e.args[0]), self.bounds(e.args[1])
            if a and b:
                low, high = (0, 1) if e.op == "min" else (1, 0)
                if _at_least(b[0], a[1]):
                    return e.args[low]
                if _at_least(a[0], b[1]):
                    return e.args[high]
        return e

    def _divide(self, p: Poly, d: Poly, e: Expr) -> Expr:
        """floordiv or mod of p by d (positive): terms that d divides are split off."""
        if len(d) != 1:
            return e
        ((dm, dc),) = d.items()
        quotient: Poly = {}
        rest: Poly = {}
        for m, c in p.items():
            q = _divide_monomial(m, dm)
            if q is not None and c % dc == 0:
                quotient[q] = quotient.get(q, 0) + c // dc
            elif not dm and c // dc:  # part of a constant coefficient
                if not m:  # the constant term splits freely
                    quotient[m] = c // dc
                    rest[m] = c % dc
                else:
                    rest[m] = c
            else:
                rest[m] = c
        rest = {m: c for m, c in rest.items() if c}
        bounds = self.poly_bounds(rest)
        divisor = self._monomial_dim(dm, dc)
        if bounds and divisor is not None and _at_least(bounds[0], 0):
            if _at_least(divisor - 1, bounds[1]):
                return self.expr(rest if e.op == "mod" else quotient)
        if not dm and rest and e.op == "floordiv":
            g = math.gcd(dc, *rest.values())
            if g > 1:
                rest = {m: c // g for m, c in rest.items()}
                dc //= g
            if len(rest) == 1:
                ((rm, rc),) = rest.items()
                if rc == 1 and len(rm) == 1 and rm[0].op == "floordiv":
                    inner, by = rm[0].args
                    if by.op == "const":
                        again = make("floordiv", inner, const(by.attr * dc, INDEX))
                        again = self._divide(self.poly(inner), {(): by.attr * dc}, again)
                        return self.expr(_add(quotient, self.poly(again), 1))
            part = make("floordiv", self.expr(rest), const(dc, INDEX))
            return self.expr(_add(quotient, self.poly(part), 1))
        if e.op == "mod":
            return make("mod", self.expr(rest), e.args[1])
        part = make("floordiv", self.expr(rest), e.args[1])
        return self.expr(_add(quotient, self.poly(part), 1))

    def _join_div_mod(self, p: Poly) -> Poly:
        """k*c*(x // c) + k*(x % c) = k*x, as long as such pairs are left."""
        changed = True
        while changed:
            changed = False
            for m, k in p.items():
                if len(m) != 1 or m[0].op != "mod" or m[0].args[1].op != "const":
                    continue
                x, c = m[0].args
                div = self._index(make("floordiv", x, c))
                dp = self.poly(div)
                scale = k * c.attr
                # every term of x // c must be present with its coefficient times k*c
                if dp and all(p.get(t, 0) == v * scale for t, v in dp.items()):
                    p = {t: v for t, v in p.items() if t != m and t not in dp}
                    p = _add(p, self.poly(x), k)
                    changed = True
                    break
        return p

    def _monomial_dim(self, m: Monomial, c: int) -> Dim | None:
        """A divisor as a Dim: a constant, or a product of sizes; None for anything else."""
        if not m:
            return c
        if self.env is None or any(atom.op != "size" for atom in m):
            return None
        return Sym({tuple(sorted(atom.attr for atom in m)): c}, self.env)

    # -- ranges --------------------------------------------------------------------------------
    def bounds(self, e: Expr) -> Bounds:
        """(lowest, highest) value of an INDEX expression, or None where not known."""
        if e in self.bounds_memo:
            return self.bounds_memo[e]
        b = self._bounds(e)
        self.bounds_memo[e] = b
        return b

    def _bounds(self, e: Expr) -> Bounds:
        if e.op == "const":
            return e.attr, e.attr
        if e.op == "axis":
            extent = self.extents.get(e.attr)
            return None if extent is None else (0, extent - 1)
        if e.op == "size" and self.env is not None:
            d = Sym({(e.attr,): 1}, self.env)
            return d, d
        if e.op == "check" and e.args[1].op == "const":
            return 0, e.args[1].attr - 1
        if e.op == "mod" and e.args[1].op == "const":
            return 0, e.args[1].attr - 1
        if e.op == "floordiv" and e.args[1].op == "const":
            b = self.bounds(e.args[0])
            return None if b is None else (b[0] // e.args[1].attr, b[1] // e.args[1].attr)
        if e.op == "select":
            a, b = self.bounds(e.args[1]), self.bounds(e.args[2])
            return _union(a, b)
        if e.op in ("min", "max"):
            a, b = self.bounds(e.args[0]), self.bounds(e.args[1])
            ints = [x for y in (a, b) if y for x in y]
            if a and b and not any(isinstance(x, Sym) for x in ints):
                f = min if e.op == "min" else max
                return f(a[0], b[0]), f(a[1], b[1])
            return None
        if e.op in ("add", "sub", "mul", "neg"):
            return self.poly_bounds(self.poly(e))
        return None

    def poly_bounds(self, p: Poly) -> Bounds:
        low: Dim = 0
        high: Dim = 0
        for m, c in p.items():
            mlow: Dim = 1
            mhigh: Dim = 1
            for atom in m:
                b = self.bounds(atom)
                if b is None or (len(m) > 1 and not _at_least(b[0], 0)):
                    return None
                mlow, mhigh = mlow * b[0], mhigh * b[1]
            low, high = (low + c * mlow, high + c * mhigh) if c > 0 else (
                low + c * mhigh, high + c * mlow)  # fmt: skip
        return low, high

    def _compare(self, op: str, a: Expr, b: Expr) -> Expr:
        bounds = self.poly_bounds(_add(self.poly(a), self.poly(b), -1))  # of a - b
        if bounds:
            low, high = bounds
            if op == "lt":
                if _at_least(-1, high):
                    return const(True, dtypes.bool_)
                if _at_least(low, 0):
                    return const(False, dtypes.bool_)
            if op == "le":
                if _at_least(0, high):
                    return const(True, dtypes.bool_)
                if _at_least(low, 1):
                    return const(False, dtypes.bool_)
            if op in ("eq", "ne"):
                if _at_least(low, 1) or _at_least(-1, high):
                    return const(op == "ne", dtypes.bool_)
                if isinstance(low, int) and isinstance(high, int) and low == high == 0:
                    return const(op == "eq", dtypes.bool_)
        return make(op, a, b)


def _and(e: Expr) -> Expr:
    a, b = e.args
    if a.op == "const":
        return b if a.attr else a
    if b.op == "const":
        return a if b.attr else b
    return e


def _add(p: Poly, q: Poly, scale: int) -> Poly:
    out = dict(p)
    for m, c in q.items():
        out[m] = out.get(m, 0) + c * scale
    return {m: c for m, c in out.items() if c}


def _divide_monomial(m: Monomial, by: Monomial) -> Monomial | None:
    rest = list(m)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _at_least(a: Dim, b: Dim) -> bool:
    """a >= b, proved without a guard."""
    diff = a - b
    if isinstance(diff, int):
        return diff >= 0
    positive = all(c > 0 for m, c in diff.terms.items() if m)
    plain = all(isinstance(x, str) for m in diff.terms for x in m)
    low = sum(c * 2 ** len(m) for m, c in diff.terms.items())
    return positive and plain and low >= 0


def _union(a: Bounds, b: Bounds) -> Bounds:
    if a is None or b is None or any(isinstance(x, Sym) for x in (*a, *b)):
        return None
    return min(a[0], b[0]), max(a[1], b[1])


def strides_of(array: Array) -> tuple[Dim, ...]:
    """The strides of an array's memory, in elements (dense row-major unless stated)."""
    if array.strides is not None:
        return array.strides
    # An empty array has no elements to place; as NumPy does, its strides are those of dims of 1.
    shape = [1 if not isinstance(d, Sym) and d == 0 else d for d in array.shape]
    return tuple(prod(shape[k + 1 :]) for k in range(array.ndim))


def offset(array: Array, index: Sequence[Expr], extents: Mapping[int, Dim]) -> Expr:
    """The element offset of array[index], simplified."""
    s = Simplifier(extents)
    total = const(0, INDEX)
    for i, stride in zip(index, strides_of(array), strict=True):
        total = make("add", total, make("mul", i, loops.dim(stride)))
    return s.simplify(total)
