"""Routines: functions that many kernels call, each a module of its own, so that it is generated and
compiled once for a machine and not once for each kernel that uses it.

Owns how a routine is named (by its code, so equal routines are one) and declared in the module of a
caller. A kernel's object refers to its routines by symbol: who loads it (`objects.py`) loads them
first, and an export links their modules in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import VOID
from jitgrad.compiler.codegen.dot import Dot, DotStep
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.kernelcode import ROUTINE, Generated
from jitgrad.compiler.codegen.microkernel import (
    Tile,
    emit_columns,
    emit_micro,
    emit_row,
    emit_signs,
)
from jitgrad.compiler.codegen.packing_routine import Form, emit_packing
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tile_micro import emit_tile_micro
from jitgrad.compiler.codegen.winograd_transforms import Transform, emit_transform
from jitgrad.runtime.dtypes import DType

_NAME = "routine"  # until its code has given it one


@dataclass(frozen=True)
class Routine:
    """A routine's code, whose key is its symbol, and the types of its parameters."""

    code: Generated
    parameters: tuple[ir.Type, ...]


class Uses:
    """The routines that the code of a module calls."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.codes: list[Generated] = []

    def __call__(self, routine: Routine) -> ir.Function:
        """The routine as a function of the module."""
        known = self.module.globals.get(routine.code.key)
        if known is not None:
            return known
        self.codes.append(routine.code)
        kind = ir.FunctionType(VOID, routine.parameters)
        function = ir.Function(self.module, kind, routine.code.key)
        function.attributes.add("nounwind")
        return function


def _routine(target: Target, emit: Callable[[ir.Module], ir.Function]) -> Routine:
    module = ir.Module(_NAME)
    module.triple = target.triple
    function = emit(module)
    function.linkage = ""
    text = str(module)
    digest = hashlib.sha256((text + target.cpu + target.features).encode()).hexdigest()
    symbol = ROUTINE + digest[:32]
    text = text.replace(f'@"{_NAME}"', f'@"{symbol}"')
    return Routine(Generated(symbol, text, []), tuple(function.function_type.args))


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
            return emit_tile_micro(module, _NAME, tile, dot, target)
        step = DotStep(dot, module, tile.width) if dot is not None else None
        return emit_micro(module, _NAME, tile, acc, Ops(target), steps, step, lanes)

    return _routine(target, emit)


@lru_cache(maxsize=64)
def signs_routine(tile: Tile, dot: Dot, target: Target) -> Routine:
    """What the sign bytes of A add; see emit_signs."""

    def emit(module: ir.Module) -> ir.Function:
        return emit_signs(module, _NAME, tile, DotStep(dot, module, tile.width), Ops(target))

    return _routine(target, emit)


@lru_cache(maxsize=64)
def row_routine(width: int, acc: DType, target: Target) -> Routine:
    """One row by a matrix; see emit_row."""
    return _routine(target, lambda module: emit_row(module, _NAME, width, acc, Ops(target)))


@lru_cache(maxsize=64)
def columns_routine(width: int, acc: DType, target: Target) -> Routine:
    """One row by a matrix whose columns lie together; see emit_columns."""
    return _routine(target, lambda module: emit_columns(module, _NAME, width, acc, Ops(target)))


@lru_cache(maxsize=256)
def packing_routine(form: Form, target: Target) -> Routine:
    """Packing of operands of a form; see emit_packing."""
    return _routine(target, lambda module: emit_packing(module, _NAME, form, target))


@lru_cache(maxsize=64)
def transform_routine(which: Transform, lanes: int, used: int, target: Target) -> Routine:
    """A transform of Winograd's algorithm; see emit_transform."""
    return _routine(
        target, lambda module: emit_transform(module, _NAME, which, lanes, used, target)
    )
