"""Asking for the next row of what a kernel reads, while it computes the last of this row.

A kernel that goes over a row several times (softmax: its maximum, its sum, its results) waits for
memory in the first pass only; processors look ahead within a row, and far fewer elements than they
compute meanwhile. So the last pass asks, line by line, for the row that comes next, in rows that
lie in memory one after the other. Owns what is asked for (`NextRow.of`) and the asking (`ask`).
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
class NextRow:
    """The arrays whose next row will be read, each with where this row's begins there, and what
    lies between rows, both in elements; `step` is the last pass over a row, which asks."""

    step: Step
    arrays: list[tuple[Array, Expr, Expr]]

    @classmethod
    def of(cls, program: Program, fn: Function) -> NextRow | None:
        """What is worth asking for; None for kernels of one pass, or of little memory."""
        passes = [s for s in program.steps if s.space.axes]
        if len(passes) < 2 or not program.outer.axes or any(len(s.space.axes) > 1 for s in passes):
            return None
        outer = axis(program.outer.axes[-1])
        stored = {x.array for s in passes for x in s.stores}
        found: dict[tuple[Array, Expr], Expr] = {}
        for step in passes:
            inner = axis(step.space.axes[0])
            for e in loads(step.roots()):
                if e.attr not in fn.operands.number or e.attr in stored:
                    continue
                row = hint(step.space.extents[0]) * e.attr.dtype.itemsize
                if row > _LONGEST or nbytes(e.attr) < fn.target.l2:
                    continue
                poly = fn.simplifier.poly(e.args[0])
                between = coefficient(poly, outer)
                if constant_of(coefficient(poly, inner)) != 1 or not between:
                    continue
                begin = {m: c for m, c in poly.items() if inner not in m}
                found[e.attr, fn.simplifier.expr(begin)] = fn.simplifier.expr(between)
        if not found:
            return None
        return cls(passes[-1], [(*which, between) for which, between in found.items()])

    def ask(self, scope: Scope, i: ir.Value) -> None:
        """Asks for what `scope`'s lanes, from element i on, will read in the next row."""
        for array, begin, between in self.arrays:
            size = array.dtype.itemsize
            place = scope.child()
            place.width = 1
            first, apart = place.value(begin), place.value(between)
            b = scope.at_end()
            at = b.mul(b.add(b.add(first, apart), i), i64(size))
            base = scope.fn.pointer(array)
            b = scope.at_end()
            for line in range(0, scope.width * size, _LINE):
                address = b.gep(base, [b.add(at, i64(line))], source_etype=I8)
                prefetch(b, address, write=False, locality=2)
