"""Asking for memory before a pass over a row needs it, while another pass computes.

A kernel that goes over a row several times (softmax: its maximum, its sum, its results) waits for
memory in the first pass, which reads, and in the last, which writes; processors look ahead within
a row, and far fewer elements than they compute meanwhile. So the pass that computes most asks, line
by line, for the row that comes next, in rows that lie in memory one after the other, and one before
the last for the lines that the last will write. Owns what is asked for (`Ahead.of`) and the asking.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I8, i64, prefetch
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.program import Program, Step
from jitgrad.compiler.codegen.schedule import coefficient, constant_of
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.loops import Array, Expr, axis, loads
from jitgrad.compiler.symbolic import hint

_LINE = 64  # bytes of a line of the cache
_LONGEST = 1 << 16  # bytes of a row: beyond, it might be gone again before it is needed


@dataclass
class Row:
    """What lies at `begin` of an array in this outer point's row, and, for what is read, how far
    behind it the next row lies (both in elements; None for what is written)."""

    array: Array
    begin: Expr
    apart: Expr | None


@dataclass
class Ahead:
    """What each pass over a row asks for: the dearest one for what the next row reads, the dearest
    one before the last for what that will write."""

    rows: dict[int, list[Row]]  # by id of the step

    @classmethod
    def of(cls, program: Program, fn: Function) -> Ahead | None:
        """What is worth asking for; None for kernels of one pass, or of little memory."""
        passes = [s for s in program.steps if s.space.axes]
        if len(passes) < 2 or not program.outer.axes or any(len(s.space.axes) > 1 for s in passes):
            return None
        outer, last = axis(program.outer.axes[-1]), passes[-1]
        stored = {x.array for s in passes for x in s.stores}

        def row(step: Step, array: Array, offset: Expr) -> tuple[Expr, Expr] | None:
            """Where a row begins and what lies between rows, of an array in memory that is gone
            over element by element."""
            size = hint(step.space.extents[0]) * array.dtype.itemsize
            if size > _LONGEST or nbytes(array) < fn.target.l2:
                return None
            inner = axis(step.space.axes[0])
            poly = fn.simplifier.poly(offset)
            apart = coefficient(poly, outer)
            if constant_of(coefficient(poly, inner)) != 1 or not apart:
                return None
            begin = {m: c for m, c in poly.items() if inner not in m}
            return fn.simplifier.expr(begin), fn.simplifier.expr(apart)

        reads: dict[tuple[Array, Expr], Row] = {}
        for step in passes:
            for e in loads(step.roots()):
                inside = e.attr in stored or e.attr not in fn.operands.number
                found = None if inside else row(step, e.attr, e.args[0])
                if found is not None:
                    reads[e.attr, found[0]] = Row(e.attr, *found)
        writes = []
        for x in last.stores:
            whole = x.array in fn.operands.number and not x.combine
            found = row(last, x.array, x.offset) if whole else None
            if found is not None:
                writes.append(Row(x.array, found[0], None))
        before = max(passes[:-1], key=Step.cost)
        if before.space.extents != last.space.extents:
            writes = []
        asked: dict[int, list[Row]] = {id(before): writes}
        dearest = before if before.cost() > last.cost() else last
        asked.setdefault(id(dearest), []).extend(reads.values())
        return cls(asked) if reads or writes else None

    def ask(self, scope: Scope, step: Step, i: ir.Value) -> None:
        """Asks, in a pass, for what lies beside `scope`'s lanes, from element i on."""
        for row in self.rows.get(id(step), ()):
            size = row.array.dtype.itemsize
            place = scope.child()
            place.width = 1
            at = place.value(row.begin)
            if row.apart is not None:
                apart = place.value(row.apart)
                at = scope.at_end().add(at, apart)
            b = scope.at_end()
            at = b.mul(b.add(at, i), i64(size))
            base = scope.fn.pointer(row.array)
            b = scope.at_end()
            for line in range(0, scope.width * size, _LINE):
                address = b.gep(base, [b.add(at, i64(line))], source_etype=I8)
                prefetch(b, address, write=row.apart is None, locality=2)
