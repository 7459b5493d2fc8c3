"""Programs become one module: functions, canonical text, its digest as key, launches with grains.

Owns the finishing of modules. Names of arrays, sites and outer totals never get into the text, so
equal kernels have equal keys.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import llvmlite.ir as ir

from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.kernelcode import Generated, Launch
from jitgrad.compiler.codegen.program import Program, points_cost
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import Array
from jitgrad.compiler.symbolic import hint

_BLOCK_NS = 30_000  # a block of this much work is worth a thread's attention


@dataclass
class Part:
    """One launch: a program, and what emits its body. cost: nanoseconds of one outer point."""

    program: Program
    emit: Callable[[Program, Function], None]
    cost: float | None = None


def assemble(parts: list[Part], target: Target, workspace: list[Array]) -> Generated:
    """One module with a function for each part, launched in order."""
    module = ir.Module("kernel")
    module.triple = target.triple
    launches, scratch = [], 0
    for n, part in enumerate(parts):
        program = part.program
        fn = Function(module, f"kernel_{n}", target, program.operands, program.dims)
        for step in program.steps:
            fn.stored.update(s.array for s in step.stores if s.array in program.operands.number)
        fn.find_rare(program.emitted())
        part.emit(program, fn)
        fn.finish()
        scratch = max(scratch, fn.scratch_bytes)
        known = list(program.operands.list)  # a later function may add to it; scratch comes after
        launches.append(
            Launch(
                f"kernel_{n}",
                known,
                program.outer.total,
                _grain(part),
                max(1, program.unit, program.aligned),
            )  # fmt: skip
        )
    text = str(module)
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    renamed = []
    for n, launch in enumerate(launches):
        symbol = f"jg_{key}_{n}"
        text = text.replace(f'@"kernel_{n}"', f'@"{symbol}"')
        renamed.append(replace(launch, symbol=symbol))
    return Generated(key, text, renamed, workspace, scratch)


def _grain(part: Part) -> int:
    """Points of a block: worth waking a thread, whole vectors, whole rows where rows are short."""
    program = part.program
    each = points_cost(program) if part.cost is None else part.cost
    points = max(1 if program.aligned == 1 else 64, int(_BLOCK_NS / each))
    if program.unit:
        return max(1, points // program.unit) * program.unit
    if len(program.outer.axes) > 1:
        row = hint(program.outer.extents[-1])
        if 0 < row < points:
            return points // row * row
    whole = math.lcm(64, program.aligned)
    return points if points < 64 else max(1, points // whole) * whole
