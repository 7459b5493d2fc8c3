"""Loads at clamped indices under a condition that makes the clamps idle, as padding makes them:
`select(0 <= i and i < n, x[min(max(i, 0), n - 1)], 0)`.

Owns the proof. Where the condition holds, the offset without clamps is the same, and it is linear
in the loop's axes, so a masked load of neighbours can take the place of a gather (`scope.py`).
"""

from __future__ import annotations

from jitgrad.compiler.index import Poly, Simplifier
from jitgrad.compiler.loops import (
    INDEX,
    Expr,
    rewrite,
)
from jitgrad.runtime import dtypes


def unclamped(e: Expr, simplifier: Simplifier) -> Expr | None:
    """For select(c, x[offset], other): the offset without the clamps that c makes idle.

    None where e is no such select, or c decides no clamp.
    """
    if e.op != "select" or e.args[1].op != "load" or not e.args[1].args:
        return None
    facts = _facts(e.args[0], simplifier)

    def leaf(x: Expr) -> Expr | None:
        if x.dtype is not INDEX or x.op not in ("min", "max"):
            return None
        for inner, bound in (x.args, x.args[::-1]):
            if bound.op == "const":
                low, high = (inner, bound) if x.op == "min" else (bound, inner)
                if _implied(_difference(simplifier, high, low), facts):
                    return inner
        return None

    offset = e.args[1].args[0]
    found = rewrite(offset, leaf)
    return None if found is offset else simplifier.simplify(found)


def _difference(s: Simplifier, high: Expr, low: Expr) -> Poly:
    out = dict(s.poly(high))
    for m, c in s.poly(low).items():
        out[m] = out.get(m, 0) - c
    return {m: c for m, c in out.items() if c}


def _facts(condition: Expr, s: Simplifier) -> list[Poly]:
    """Polynomials that are not negative where the condition holds."""
    out, todo = [], [condition]
    while todo:
        c = todo.pop()
        if c.op == "and" and c.dtype is dtypes.bool_:
            todo += c.args
        elif c.op in ("lt", "le") and c.args[0].dtype is INDEX:
            poly = _difference(s, c.args[1], c.args[0])
            if c.op == "lt":
                poly[()] = poly.get((), 0) - 1
            out.append(poly)
    return out


def _implied(poly: Poly, facts: list[Poly]) -> bool:
    """poly >= 0 follows from one fact: it is a fact plus a constant that is not negative."""
    terms = {m: c for m, c in poly.items() if m}
    return any(
        {m: c for m, c in fact.items() if m} == terms and poly.get((), 0) >= fact.get((), 0)
        for fact in facts
    )
