"""Pointwise kernels that read here up to some index and there beyond it (cat, roll), by pieces.

Owns when, and the pieces: the kernel's space is cut where such a condition changes, and each piece
is a launch in which the condition is known. So no point reads both sides to choose one. Each point
is computed as without pieces.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.program import Program
from jitgrad.compiler.codegen.schedule import Space, coefficient, constant_of
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    COMPARE,
    INDEX,
    Expr,
    axis,
    postorder,
    rewrite,
)
from jitgrad.compiler.symbolic import hint, is_static

_LEAST_POINTS = 1 << 14  # smaller kernels are not worth more launches
_MOST_PIECES = 4


def pieces(program: Program) -> list[Program]:
    """The programs of the pieces; the program alone where it is not cut."""
    cuts = _cuts(program)
    if not cuts:
        return [program]
    sides = [[0, *sorted(cuts.get(k, ())), d] for k, d in _extents(program).items()]
    corners = itertools.product(*(itertools.pairwise(side) for side in sides))
    return [_piece(program, corner) for corner in corners]


def _extents(program: Program) -> dict[int, int]:
    return {k: hint(d) for k, d in zip(program.outer.axes, program.outer.extents, strict=True)}


def _piece(program: Program, corner: tuple[tuple[int, int], ...]) -> Program:
    """The program of the points from `start` up to `stop` of each axis."""
    axes = program.outer.axes
    sizes = [stop - start for start, stop in corner]
    moved = {axis(k): axis(k) + start for k, (start, _) in zip(axes, corner, strict=True) if start}
    s = Simplifier(dict(zip(axes, sizes, strict=True)))

    def known(e: Expr) -> Expr:
        return s.simplify(rewrite(e, moved.get))

    (step,) = program.steps
    stores = [replace(t, offset=known(t.offset), value=known(t.value)) for t in step.stores]
    return replace(
        program, outer=Space(list(axes), list(sizes)), steps=[replace(step, stores=stores)]
    )


def _cuts(program: Program) -> dict[int, set[int]]:
    """For each axis the indices at which a piece begins; empty where none are worth it."""
    outer = program.outer
    if len(program.steps) != 1 or program.buffers or program.scalar:
        return {}
    (step,) = program.steps
    if step.space.axes or step.reduces or any(t.combine for t in step.stores):
        return {}
    if not is_static(outer.extents) or hint(outer.total) < _LEAST_POINTS:
        return {}
    s, extents = Simplifier(_extents(program)), _extents(program)
    cuts: dict[int, set[int]] = {}
    for e in postorder(step.roots()):
        if e.op == "select" and _reads(program, e.args[1]) and _reads(program, e.args[2]):
            for c in _conditions(e.args[0]):
                for k, at in _changes(s, c, extents).items():
                    cuts.setdefault(k, set()).update(at)
    count = 1
    for places in cuts.values():
        count *= len(places) + 1
    return cuts if count <= _MOST_PIECES else {}


def _reads(program: Program, e: Expr) -> bool:
    return any(x.attr in program.operands.number for x in loops.loads([e]))


def _conditions(e: Expr) -> list[Expr]:
    """The comparisons of indices that a condition is made of."""
    if e.op == "and":
        return [c for a in e.args for c in _conditions(a)]
    return [e] if e.op in COMPARE and e.args[0].dtype is INDEX else []


def _changes(s: Simplifier, c: Expr, extents: dict[int, int]) -> dict[int, list[int]]:
    """Where a comparison of one axis with a constant becomes true or false."""
    if c.op not in ("lt", "le"):
        return {}
    a, b = (s.poly(x) for x in c.args)
    gap = {m: a.get(m, 0) - b.get(m, 0) for m in {*a, *b}}
    names = {x for m, n in gap.items() if n for x in m}
    if len(names) != 1:
        return {}
    (name,) = names
    slope = constant_of(coefficient(gap, name)) if name.op == "axis" else None
    if not slope or any(len(m) > 1 for m in gap) or name.attr not in extents:
        return {}
    rest = gap.get((), 0) - (c.op == "le")  # slope x + rest < 0
    at = -(rest // slope) if slope > 0 else rest // -slope + 1
    return {name.attr: [at]} if 0 < at < extents[name.attr] else {}
