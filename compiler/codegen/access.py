"""How a contraction reaches memory: element offsets, split by groups of axes.

Owns `separate`: the offset of a load or store as f(batch axes) + g(row axes) + h(column or k axes),
and what is known of each part: its stride over the group's flattened index where it is linear, and
the length of its contiguous runs. It emits nothing.

A group is a tuple of axis numbers, outermost first; its flattened index runs row-major over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitgrad.compiler import loops
from jitgrad.compiler.index import Simplifier, offset
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    const,
    make,
    postorder,
)
from jitgrad.compiler.symbolic import Dim, Sym

_PLAIN_INDEX = {"const", "axis", "size", "add", "sub", "mul", "floordiv", "mod"}


@dataclass(frozen=True, eq=False)
class Part:
    """One group's share of an offset.

    Attributes:
        expr: the share, an INDEX expression over the group's axes and sizes.
        stride: elements per step of the group's flattened index; None where it is not linear.
        run: steps of 1 come in runs of this length, which start at its multiples (1: unknown).
    """

    expr: Expr
    stride: Expr | None
    run: int

    @property
    def is_unit(self) -> bool:
        """Neighbours along the group are neighbours in memory, all along."""
        return _is_const(self.stride, 1)

    @property
    def is_zero(self) -> bool:
        """The offset does not depend on the group."""
        return _is_const(self.stride, 0)


def _is_const(e: Expr | None, value: int) -> bool:
    return e is not None and e.op == "const" and e.attr == value


@dataclass(frozen=True, eq=False)
class Access:
    """The offset of an element of `array`: the sum of one Part for each group of axes."""

    array: Array
    parts: tuple[Part, ...]


def separate(
    array: Array,
    index: Sequence[Expr],
    groups: Sequence[tuple[int, ...]],
    extents: Mapping[int, Dim],
) -> Access | None:
    """The access array[index] split by groups, or None where some term mixes groups."""
    total = offset(array, index, extents)
    if any(e.op not in _PLAIN_INDEX for e in postorder([total])):
        return None
    simplifier = Simplifier(extents)
    poly = simplifier.poly(simplifier.simplify(total))
    home = {axis: g for g, axes in enumerate(groups) for axis in axes}
    split: list[Expr] = [const(0, INDEX) for _ in groups]
    for monomial, c in poly.items():
        term = const(c, INDEX)
        for atom in monomial:
            term = make("mul", atom, term)
        used = {home[e.attr] for e in postorder([term]) if e.op == "axis"}
        if len(used) > 1:
            return None
        g = used.pop() if used else 0
        split[g] = make("add", split[g], term)
    parts = [_part(e, axes, extents) for e, axes in zip(split, groups, strict=True)]
    return Access(array, tuple(parts))


def plain_load(e: Expr) -> Expr | None:
    """The load under a chain of casts, or None."""
    while e.op == "cast":
        e = e.args[0]
    return e if e.op == "load" else None


def operand_access(
    expr: Expr, groups: Sequence[Sequence[int]], extents: Mapping[int, Dim]
) -> Access | None:
    """The separable access of an operand that is a load (maybe cast), or None."""
    found = plain_load(expr)
    if found is None:
        return None
    return separate(found.attr, found.args, [tuple(g) for g in groups], extents)


def _part(expr: Expr, group: tuple[int, ...], extents: Mapping[int, Dim]) -> Part:
    expr = Simplifier(extents).simplify(expr)
    axes = [a for a in group if isinstance(extents[a], Sym) or extents[a] != 1]
    strides = _strides(expr, axes, extents)
    if strides is None:
        return Part(expr, None, 1)
    if not axes:
        return Part(expr, const(0, INDEX), 1)
    # Merge from the innermost axis outwards as long as the axes together are one long axis.
    stride = strides[-1]
    length: Dim = extents[axes[-1]]
    merged = 1
    for a, s in zip(reversed(axes[:-1]), reversed(strides[:-1]), strict=True):
        if not _equal(s, make("mul", stride, loops.dim(length))):
            break
        length = length * extents[a]
        merged += 1
    run = length if _is_const(stride, 1) and isinstance(length, int) else 1
    return Part(expr, stride if merged == len(axes) else None, run)


def _strides(expr: Expr, axes: Sequence[int], extents: Mapping[int, Dim]) -> list[Expr] | None:
    """The coefficient of each axis (over sizes), or None where expr is not linear in them."""
    poly = Simplifier(extents).poly(expr)
    found = {a: const(0, INDEX) for a in axes}
    for monomial, c in poly.items():
        among = [e for e in monomial if e.op == "axis"]
        others = [e for e in monomial if e.op != "axis"]
        if any(e.op == "axis" for o in others for e in postorder([o])) or len(among) > 1:
            return None
        if among:
            term = const(c, INDEX)
            for e in others:
                term = make("mul", e, term)
            found[among[0].attr] = make("add", found[among[0].attr], term)
    return [found[a] for a in axes]


def _equal(a: Expr, b: Expr) -> bool:
    return Simplifier({}).simplify(make("sub", a, b)) is const(0, INDEX)
