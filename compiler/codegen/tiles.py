"""Pointwise kernels that turn memory around (transposed copies, permuted axes), tile by tile.

Owns when, and the loops. A kernel whose stores lie along one axis and which reads along another
would use one element of every line of memory that it touches, and touch the line again much later.
In tiles of a vector each way, lines are read whole, turned around in registers, and lie in a small
buffer when the tile's points are computed. Bits are those of other code: only the order of points
is another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import llvmlite.ir as ir

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.assemble import Part
from jitgrad.compiler.codegen.code import alignment, i64, lanes, storage_type
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.nest import Nest
from jitgrad.compiler.codegen.program import Program, points_cost
from jitgrad.compiler.codegen.schedule import Space, coefficient, constant_of
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    Array,
    Expr,
    axis,
    postorder,
    rewrite,
)
from jitgrad.compiler.symbolic import Dim, hint

_BLOCK, _ROW, _START = range(1 << 20, (1 << 20) + 3)  # axis numbers that no kernel uses
_LEAST_POINTS = 1 << 14  # smaller kernels stay in the cache as they are
_LEAST = 16  # points of each of the two axes
_TALL = 4  # tiles one below the other that are done together: longer stretches of what is read


@dataclass
class _Tiles:
    """Tiles along axis `across`, the last one, where stores lie, and axis `down`, where `turned`
    lie: loads, with their strides along `across`."""

    down: int
    across: int
    turned: dict[Expr, Expr]
    extents: dict[int, Dim]


def tiled(program: Program, target: Target) -> Part | None:
    """The launch in tiles of a kernel that turns memory around; None for other kernels."""
    program = _forward(program)
    tiles = _plan(program)
    if tiles is None:
        return None
    rows = _TALL * program.lanes(target)
    lead = [k for k in program.outer.axes if k not in (tiles.down, tiles.across)]
    blocks = -(-tiles.extents[tiles.down] // rows)
    outer = Space([*lead, _BLOCK], [*(tiles.extents[k] for k in lead), blocks])
    each = points_cost(program) * rows * max(1, hint(tiles.extents[tiles.across]))
    return Part(replace(program, outer=outer), lambda p, fn: _Nest(p, fn, tiles).emit(), each)


def _forward(program: Program) -> Program:
    """The program with axes counted from their end where that makes loads go forward along them
    (rotations); the order of rows is free."""
    if len(program.steps) != 1 or program.scalar:
        return program
    (step,) = program.steps
    extents = dict(zip(program.outer.axes, program.outer.extents, strict=True))
    s = Simplifier(extents)
    loads = [e for e in loops.loads(step.roots()) if e.attr in program.operands.number]
    mapping = {}
    for k in program.outer.axes[:-1]:
        strides = {_stride(s, e.args[0], k) for e in loads}
        if -1 in strides and 1 not in strides:
            mapping[axis(k)] = loops.dim(extents[k] - 1) - axis(k)
    if not mapping or step.space.axes or step.reduces:
        return program

    def renew(e: Expr) -> Expr:
        return s.simplify(rewrite(e, mapping.get))

    stores = [replace(t, offset=renew(t.offset), value=renew(t.value)) for t in step.stores]
    return replace(program, steps=[replace(step, stores=stores)])


def _plan(program: Program) -> _Tiles | None:
    outer = program.outer
    if len(program.steps) != 1 or len(outer.axes) < 2 or program.buffers or program.scalar:
        return None
    (step,) = program.steps
    if step.space.axes or step.reduces or any(t.combine for t in step.stores):
        return None
    if hint(outer.total) < _LEAST_POINTS:
        return None
    across = outer.axes[-1]
    s = Simplifier({})
    if any(_stride(s, t.offset, across) != 1 for t in step.stores):
        return None
    turned: dict[int, dict[Expr, Expr]] = {}
    for load in loops.loads(step.roots()):
        along = coefficient(s.poly(load.args[0]), axis(across))
        near = constant_of(along)
        if load.attr not in program.operands.number or along is None:
            continue
        if near is not None and abs(near) < _LEAST:
            continue
        for k in outer.axes[:-1]:
            if _stride(s, load.args[0], k) == 1:
                turned.setdefault(k, {})[load] = s.expr(along)
    if not turned:
        return None
    down = max(turned, key=lambda k: len(turned[k]))
    extents = dict(zip(outer.axes, outer.extents, strict=True))
    if min(hint(extents[down]), hint(extents[across])) < _LEAST:
        return None
    return _Tiles(down, across, turned[down], extents)


def _stride(s: Simplifier, offset: Expr, k: int) -> int | None:
    """How far apart in memory neighbours along axis k are; None where it is no constant."""
    return constant_of(coefficient(s.poly(offset), axis(k)))


class _Nest(Nest):
    """Rows of tiles, each of `width` points both ways; what is left at the ends point by point."""

    def __init__(self, program: Program, fn: Function, tiles: _Tiles) -> None:
        super().__init__(program, fn)
        self.tiles = tiles
        (self.step,) = program.steps
        self.buffers = {}
        place = axis(_ROW) * self.width + axis(tiles.across) - axis(_START)
        self.held = {}
        for k, load in enumerate(tiles.turned):
            array = Array(f"tile{k}", (self.width * self.width,), load.dtype)
            self.held[array] = load
        known = {e: loops.load(a, (place,)) for a, e in self.held.items()}
        self.inside = replace(
            self.step,
            stores=[replace(t, value=rewrite(t.value, known.get)) for t in self.step.stores],
        )

    def emit(self) -> None:
        tiles, fn, width = self.tiles, self.fn, self.width
        high, wide = self.dim(tiles.extents[tiles.down]), self.dim(tiles.extents[tiles.across])
        memory = {a: fn.slot(ir.VectorType(storage_type(a.dtype), width), width) for a in self.held}
        inside, outside = self.inside.roots(), self.step.roots()
        fn.rare = {}
        fn.find_rare([*inside, *outside])
        self.rare = [_only(fn.rare, inside), _only(fn.rare, outside)]
        with fn.top.loop(fn.begin, fn.end, 1) as (row, at):
            self.unflatten(row, at, self.program.outer)
            b = row.at_end()
            top = b.mul(row.axes[_BLOCK], i64(_TALL * width))
            bottom = _least(row, b.add(top, i64(_TALL * width)), high)
            with row.loop(i64(0), wide, width) as (strip, start):
                past = strip.at_end().add(start, i64(width))
                with strip.loop(top, bottom, width) as (tile, first):
                    self._tile(tile, first, bottom, start, past, wide, memory)

    def _tile(
        self, scope: Scope, first: ir.Value, bottom: ir.Value, start: ir.Value, past: ir.Value,
        wide: ir.Value, memory: dict[Array, ir.Value],
    ) -> None:  # fmt: skip
        """The points [first, bottom) of `down`, `width` at most, and [start, past) of `across`."""
        tiles, width = self.tiles, self.width
        b = scope.at_end()
        below = b.add(first, i64(width))
        whole = b.and_(b.icmp_signed("<=", below, bottom), b.icmp_signed("<=", past, wide))
        with scope.when(whole) as square:
            self.fn.rare = self.rare[0]
            for array, pointer in memory.items():
                self._turn(square, self.held[array], first, start, pointer)
                square.bind_buffer(array, pointer)
            square.bind(_START, start)
            with square.loop(i64(0), i64(width), 1) as (line, k):
                line.bind(_ROW, k)
                line.bind(tiles.down, line.at_end().add(first, k))
                line.bind_lanes(tiles.across, start, width)
                self.stores(line, self.inside)
        with scope.when(scope.at_end().not_(whole)) as rest:
            self.fn.rare = self.rare[1]
            stop, end = _least(rest, below, bottom), _least(rest, past, wide)
            with rest.loop(first, stop, 1) as (line, i):
                line.bind(tiles.down, i)
                self.sweep(line, tiles.across, start, end, width, self._points)

    def _points(self, scope: Scope, i: ir.Value) -> None:
        self.stores(scope.child(), self.step)

    def _turn(
        self, scope: Scope, load: Expr, first: ir.Value, start: ir.Value, to: ir.Value
    ) -> None:
        """Puts the tile of a load into memory, with the points of `across` side by side."""
        tiles, width = self.tiles, self.width
        corner = scope.child()
        corner.bind(tiles.down, first)
        corner.bind(tiles.across, start)
        pointer = corner.access(load.attr, load.args[0], corner).pointer(corner.at_end())
        stride = corner.value(tiles.turned[load])
        kind = storage_type(load.dtype)
        b = corner.at_end()
        rows = []
        for k in range(width):
            there = b.gep(pointer, [b.mul(stride, i64(k))], source_etype=kind)
            rows.append(b.load(there, align=alignment(kind), typ=ir.VectorType(kind, width)))
        for k, vector in enumerate(transposed(b, rows)):
            b.store(vector, b.gep(to, [i64(k * width)], source_etype=kind), align=alignment(kind))


def _only(rare: dict[Expr, list[Expr]], roots: list[Expr]) -> dict[Expr, list[Expr]]:
    """The rare selects (see Function) of these expressions."""
    known = set(postorder(roots))
    return {c: [e for e in group if e in known] for c, group in rare.items()}


def transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The columns of a square of vectors; their number is a power of two. In each step the blocks
    off the diagonal of pairs of vectors change places."""
    n, step = len(rows), 1
    rows = list(rows)
    while step < n:
        upper = [k if not k & step else n + k - step for k in range(n)]
        lower = [k + step if not k & step else n + k for k in range(n)]
        for i in range(n):
            if not i & step:
                x, y = rows[i], rows[i + step]
                rows[i] = b.shuffle_vector(x, y, lanes(tuple(upper)))
                rows[i + step] = b.shuffle_vector(x, y, lanes(tuple(lower)))
        step *= 2
    return rows


def _least(scope: Scope, x: ir.Value, y: ir.Value) -> ir.Value:
    b = scope.at_end()
    return b.select(b.icmp_signed("<", x, y), x, y)
