"""Pointwise kernels that read here up to some index and there beyond it (cat, roll, padding by
reflection), by pieces.

Owns when, and the pieces. What rows choose between elements of one array becomes one read, at a
place that is chosen once a row. The last axis is cut where a condition changes: a row goes part
after part (`nest.py`), in each of which the condition is known. Where other axes choose between
arrays, the kernel's space is cut, and each piece is a launch. So no point reads both sides to
choose one. Each point is computed as without pieces. On GPUs a kernel that chooses among many
arrays (cat of 100 tensors) is cut into pieces that choose among a few (`groups`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.program import Program, RowPart, Step
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
from jitgrad.compiler.symbolic import Dim, hint, is_static

_LEAST_POINTS = 1 << 14  # smaller kernels are not worth more launches
_MOST_PIECES = 4
_MOST_PARTS = 8  # of a row
_SCATTERED = 8  # reads of neighbours that one of elements here and there costs


def pieces(program: Program) -> list[Program]:
    """The programs of the pieces; the program alone where it is not cut."""
    if not _is_pointwise(program) or hint(program.outer.total) < _LEAST_POINTS:
        return [program]
    program = _one_read(program)
    parts = _parts(program)
    if parts:
        return [replace(program, row_parts=parts)]
    cuts = _cuts(program)
    count = math.prod(len(places) + 1 for places in cuts.values())
    return _cut(program, cuts) if count <= _MOST_PIECES else [program]


def groups(program: Program, most: int) -> list[Program]:
    """The programs of pieces that choose among at most `most` each; the program alone where it does
    not choose among more."""
    cuts = _cuts(program) if _is_pointwise(program) else {}
    cuts = {k: places for k, places in cuts.items() if len(places) >= most}
    return _cut(program, {k: set(sorted(p)[most - 1 :: most]) for k, p in cuts.items()})


def _cut(program: Program, cuts: dict[int, set[int]]) -> list[Program]:
    if not cuts:
        return [program]
    sides = [[0, *sorted(cuts.get(k, ())), d] for k, d in _extents(program).items()]
    corners = itertools.product(*(itertools.pairwise(side) for side in sides))
    return [_piece(program, corner) for corner in corners]


def _is_pointwise(program: Program) -> bool:
    if len(program.steps) != 1 or program.buffers or program.scalar:
        return False
    (step,) = program.steps
    if step.space.axes or step.reduces or any(t.combine for t in step.stores):
        return False
    return bool(program.outer.axes)


# -- rows that read elsewhere ----------------------------------------------------------------------
def _one_read(program: Program) -> Program:
    """The program where a choice between two elements of one array, made by all of a row alike, is
    a choice of the place that is read."""
    (step,) = program.steps
    last = axis(program.outer.axes[-1])
    s = Simplifier(dict(zip(program.outer.axes, program.outer.extents, strict=True)))

    def leaf(e: Expr) -> Expr | None:
        if e.op != "select" or e.attr == "rare" or e.args[0].axes & 1 << last.attr:
            return None
        c, a, b = e.args
        if a.op != "load" or b.op != "load" or a.attr is not b.attr or not a.args:
            return None
        if a.attr not in program.operands.number or loops.loads([c]):
            return None
        first, second = (s.poly(s.simplify(x.args[0])) for x in (a, b))
        common = {m: n for m, n in first.items() if second.get(m) == n}
        if coefficient(first, last) != coefficient(second, last):
            return None
        rest = [s.expr({m: n for m, n in p.items() if m not in common}) for p in (first, second)]
        if any(x.axes & 1 << last.attr for x in rest):
            return None
        return loops.load(a.attr, (s.expr(common) + loops.select(c, *rest),))

    stores = [replace(t, value=rewrite(t.value, leaf)) for t in step.stores]
    return replace(program, steps=[replace(step, stores=stores)])


# -- parts of rows ---------------------------------------------------------------------------------
def _parts(program: Program) -> list[RowPart]:
    """The parts of a row, where reads are less work in the longest of them; else []."""
    outer = program.outer
    last, length = outer.axes[-1], outer.extents[-1]
    if len(outer.axes) < 2 or program.aligned != 1 or not isinstance(length, int):
        return []
    extents = dict(zip(outer.axes, outer.extents, strict=True))
    s = Simplifier(extents)
    at: set[int] = set()
    for e in postorder(program.exprs()):
        if e.op == "select" and e.attr != "rare":
            for c in _conditions(e.args[0]):
                at.update(_changes(s, c, {last: length}).get(last, ()))
    if not 0 < len(at) < _MOST_PARTS:
        return []
    whole = [(0, d) for d in outer.extents[:-1]]
    parts = []
    for side in itertools.pairwise([0, *sorted(at), length]):
        piece = _one_read(_piece(program, (*whole, side)))
        parts.append(RowPart(*side, piece.steps))
    longest = max(parts, key=lambda p: p.stop - p.start)
    less = _reading(program, longest.steps, last) < _reading(program, program.steps, last)
    return parts if less else []


def _reading(program: Program, steps: list[Step], last: int) -> int:
    """The work of reading for neighbours along the last axis: one for each read of neighbours, more
    for those of elements here and there."""
    s = Simplifier({})
    work = 0
    for e in loops.loads([e for t in steps for e in t.roots()]):
        if e.attr in program.operands.number and e.args:
            poly = s.poly(s.simplify(e.args[0]))
            plain = all(a.op == "axis" or not a.axes >> last & 1 for m in poly for a in m)
            work += 1 if plain else _SCATTERED
    return work


# -- pieces of the space ---------------------------------------------------------------------------
def _extents(program: Program) -> dict[int, int]:
    return {k: hint(d) for k, d in zip(program.outer.axes, program.outer.extents, strict=True)}


def _piece(program: Program, corner: tuple[tuple[int, Dim], ...]) -> Program:
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
    """For each axis the indices at which a piece may begin."""
    if not is_static(program.outer.extents):
        return {}
    (step,) = program.steps
    s, extents = Simplifier(_extents(program)), _extents(program)
    cuts: dict[int, set[int]] = {}
    for e in postorder(step.roots()):
        if e.op == "select" and _reads(program, e.args[1]) and _reads(program, e.args[2]):
            for c in _conditions(e.args[0]):
                for k, at in _changes(s, c, extents).items():
                    cuts.setdefault(k, set()).update(at)
    return cuts


def _reads(program: Program, e: Expr) -> bool:
    return any(x.attr in program.operands.number for x in loops.loads([e]))


def _conditions(e: Expr) -> list[Expr]:
    """The comparisons of indices that a condition is made of."""
    if e.op == "and":
        return [c for a in e.args for c in _conditions(a)]
    return [e] if e.op in COMPARE and e.args[0].dtype is INDEX else []


def _changes(s: Simplifier, c: Expr, extents: dict[int, int]) -> dict[int, list[int]]:
    """Where a comparison of one axis, or its floor division by a number, with a constant becomes
    true or false."""
    a, b = (s.poly(x) for x in c.args)
    gap = {m: a.get(m, 0) - b.get(m, 0) for m in {*a, *b}}
    names = {x for m, n in gap.items() if n for x in m}
    if len(names) != 1:
        return {}
    (name,) = names
    along, by = name, 1
    if name.op == "floordiv":
        along, by = name.args[0], constant_of(s.poly(name.args[1])) or 0
    slope = constant_of(coefficient(gap, name)) if along.op == "axis" and by > 0 else None
    if not slope or any(len(m) > 1 for m in gap) or along.attr not in extents:
        return {}
    rest = gap.get((), 0)
    if c.op in ("lt", "le"):
        rest -= c.op == "le"  # slope (x // by) + rest < 0
        found = [-(rest // slope) if slope > 0 else rest // -slope + 1]
    else:
        found = [] if rest % slope else [-rest // slope, -rest // slope + 1]
    inside = [at * by for at in found if 0 < at * by < extents[along.attr]]
    return {along.attr: inside} if inside else {}
