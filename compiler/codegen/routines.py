"""The routines that many kernels call, so that each is generated and compiled once for a machine,
not once for each kernel that uses it.

Owns which there are. What a routine is: outline.py. A kernel's object refers to its routines by
symbol: who loads it (`objects.py`) loads them first, and an export links their modules in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import llvmlite.ir as ir

from jitgrad.compiler.codegen.dot import Dot, DotStep
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.microkernel import (
    Tile,
    emit_columns,
    emit_micro,
    emit_rows,
    emit_signs,
)
from jitgrad.compiler.codegen.outline import NAME, Routine, finished
from jitgrad.compiler.codegen.packing_routine import Form, emit_packing
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tile_micro import emit_tile_micro
from jitgrad.compiler.codegen.winograd_transforms import Transform, emit_transform
from jitgrad.runtime.dtypes import DType


def _routine(target: Target, emit: Callable[[ir.Module], ir.Function]) -> Routine:
    return finished(emit(ir.Module(NAME)), target)


@lru_cache(maxsize=256)
def micro_routine(
    tile: Tile,
    acc: DType,
    target: Target,
    steps: tuple[int, int] | None = None,
    dot: Dot | None = None,
    lanes: int = 1,
) -> Routine:
    """The micro-kernel of a tile; see emit_micro, and emit_tile_micro for products in tiles."""

    def emit(module: ir.Module) -> ir.Function:
        if dot is not None and dot.tiles:
            return emit_tile_micro(module, NAME, tile, dot, target)
        step = DotStep(dot, module, tile.width) if dot is not None else None
        return emit_micro(module, NAME, tile, acc, Ops(target), steps, step, lanes)

    return _routine(target, emit)


@lru_cache(maxsize=64)
def signs_routine(tile: Tile, dot: Dot, target: Target) -> Routine:
    """What the sign bytes of A add; see emit_signs."""

    def emit(module: ir.Module) -> ir.Function:
        return emit_signs(module, NAME, tile, DotStep(dot, module, tile.width), Ops(target))

    return _routine(target, emit)


@lru_cache(maxsize=64)
def rows_routine(rows: int, width: int, acc: DType, target: Target) -> Routine:
    """Few rows by a matrix; see emit_rows."""
    return _routine(target, lambda module: emit_rows(module, NAME, rows, width, acc, Ops(target)))


@lru_cache(maxsize=64)
def columns_routine(width: int, acc: DType, target: Target) -> Routine:
    """One row by a matrix whose columns lie together; see emit_columns."""
    return _routine(target, lambda module: emit_columns(module, NAME, width, acc, Ops(target)))


@lru_cache(maxsize=256)
def packing_routine(form: Form, target: Target) -> Routine:
    """Packing of operands of a form; see emit_packing."""
    return _routine(target, lambda module: emit_packing(module, NAME, form, target))


@lru_cache(maxsize=64)
def transform_routine(which: Transform, lanes: int, used: int, target: Target) -> Routine:
    """A transform of Winograd's algorithm; see emit_transform."""
    return _routine(target, lambda module: emit_transform(module, NAME, which, lanes, used, target))
