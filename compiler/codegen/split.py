"""Splitting a large reduction to few outputs into two launches, so that it runs in parallel.

Owns when and how. The bits do not change: the first launch computes the blocks that the single
kernel would have computed one after the other, the second combines them in the same order.
"""

from __future__ import annotations

from dataclasses import replace

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import COLUMN_BLOCK, LANE_BLOCK
from jitgrad.compiler.codegen.program import FlatStore, Program, Step
from jitgrad.compiler.codegen.schedule import Space
from jitgrad.compiler.kernels import Reduce
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
)
from jitgrad.compiler.symbolic import hint, is_static, prod

_BLOCK, _ALONE = 1 << 20, (1 << 20) + 1  # axis numbers that no kernel uses
_FEW_ROWS, _FEW_COLUMNS = 32, 2048  # outputs that do not keep several threads busy
_LARGE = 1 << 16  # reduced elements that are worth a second launch


def split(program: Program) -> tuple[list[Program], list[Array]]:
    """The programs of the launches, and the arrays of partial results between them."""
    if not _pays(program):
        return [program], []
    step, *rest = program.steps
    columns = step.reduces[0].order.startswith("columns")
    blocks = _blocks(step, columns)
    outer, total = program.outer, prod(program.outer.extents)
    flat = _flat(outer)
    block = axis(_BLOCK)
    if columns:
        where = block * loops.dim(total) + flat
        lead = Space([_BLOCK, *outer.axes], [blocks, *outer.extents])
        if not outer.axes:
            lead = Space([_BLOCK, _ALONE], [blocks, 1])
    else:
        where = flat * blocks + block
        lead = Space([*outer.axes, _BLOCK], [*outer.extents, blocks])
    workspace, parts, wholes, stores = [], [], [], []
    for r in step.reduces:
        partial = Array("partial", (total * blocks,), r.value.dtype)
        workspace.append(partial)
        stand_in = program.operands.array(partial)
        local = Array("part", (), r.value.dtype)
        parts.append(replace(r, array=local))
        stores.append(FlatStore(stand_in, where, loops.load(local, ())))
        wholes.append(Reduce(r.array, loops.load(stand_in, (where,)), r.combine, r.order))
    nothing = Space([], [])
    first = replace(
        program,
        outer=lead,
        steps=[Step(step.space, [], parts), Step(nothing, stores, [])],
        block_axis=_BLOCK,
        scalar=columns and not outer.axes,
    )
    second = replace(
        program,
        steps=[Step(Space([_BLOCK], [blocks]), [], wholes), *rest],
        column_limit=2,
        flat_lanes=True,
    )
    return [first, second], workspace


def _pays(program: Program) -> bool:
    step = program.steps[0]
    if not step.reduces or step.stores or program.buffers:
        return False
    if any(s.space.axes or s.reduces for s in program.steps[1:]):
        return False
    kinds = {r.order.startswith("columns") for r in step.reduces}
    if len(kinds) > 1 or any(r.combine.startswith("arg") for r in step.reduces):
        return False
    if not is_static([*step.space.extents, *program.outer.extents]):
        return False
    columns = kinds == {True}
    outputs, reduced = hint(program.outer.total), hint(step.space.total)
    few = _FEW_COLUMNS if columns else _FEW_ROWS
    return 0 < outputs <= few and outputs * reduced >= _LARGE and _blocks(step, columns) >= 2


def _blocks(step: Step, columns: bool) -> int:
    """How many blocks the reduction has: see accumulate.py."""
    total = hint(step.space.total)
    if columns:
        return -(-total // COLUMN_BLOCK)
    last = hint(step.space.extents[-1]) if step.space.extents else 1
    if last == 0:
        return 1
    rows = total // last
    per_row, rows_each = -(-last // LANE_BLOCK), max(1, LANE_BLOCK // last)
    return -(-rows // rows_each) * per_row


def _flat(space: Space) -> Expr:
    total = const(0, INDEX)
    for k, d in zip(space.axes, space.extents, strict=True):
        total = total * loops.dim(d) + axis(k)
    return total
