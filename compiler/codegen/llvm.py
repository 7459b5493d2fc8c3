"""Code generation for the CPU: a kernel of the loop language becomes `Generated` LLVM assembly.

Owns the dispatch by kind of kernel and the finishing of modules: canonical text, the key that is its
digest, symbols that carry the key. How loops look is in `nest.py` and `special.py`.
"""

from __future__ import annotations

import hashlib

import llvmlite.ir as ir

from jitgrad.compiler.codegen import nest
from jitgrad.compiler.codegen.contraction import generate as generate_contraction
from jitgrad.compiler.codegen.kernelcode import Generated, Launch
from jitgrad.compiler.codegen.objects import version_key as version_key
from jitgrad.compiler.codegen.program import Program, points_cost, prepare
from jitgrad.compiler.codegen.scope import Function
from jitgrad.compiler.codegen.special import generate_special
from jitgrad.compiler.codegen.split import split
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import Array, ContractionKernel, Kernel, LoopKernel
from jitgrad.compiler.symbolic import hint

_BLOCK_NS = 30_000  # a block of this much work is worth a thread's attention


def generate(kernel: Kernel, target: Target) -> Generated:
    """Code for a kernel. Raises CompileError for what is not compiled (complex numbers)."""
    if isinstance(kernel, ContractionKernel):
        return generate_contraction(kernel, target)
    if isinstance(kernel, LoopKernel):
        return generate_loops(kernel, target)
    return generate_special(kernel, target)


def generate_loops(kernel: LoopKernel, target: Target) -> Generated:
    """Code for a LoopKernel: one launch, or two for a large reduction to few outputs."""
    whole = prepare(kernel)
    parts, workspace = split(whole)
    return finish(parts, target, workspace)


def finish(parts: list[Program], target: Target, workspace: list[Array]) -> Generated:
    """One module with a function for each part."""
    module = ir.Module("kernel")
    module.triple = target.triple
    launches, scratch = [], 0
    for n, program in enumerate(parts):
        fn = Function(module, f"kernel_{n}", target, program.operands, program.dims)
        for step in program.steps:
            fn.stored.update(s.array for s in step.stores if s.array in program.operands.number)
        fn.find_rare(program.exprs())
        nest.emit(program, fn)
        fn.finish()
        scratch = max(scratch, fn.scratch_bytes)
        launches.append(
            Launch(f"kernel_{n}", program.operands.list, program.outer.total, _grain(program))
        )
    return named(str(module), launches, workspace, scratch)


def named(
    text: str, launches: list[Launch], workspace: list[Array], scratch: int
) -> Generated:
    """Gives the symbols kernel_0, kernel_1, ... of a module names that carry its digest."""
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    renamed = []
    for n, launch in enumerate(launches):
        symbol = f"jg_{key}_{n}"
        text = text.replace(f'@"kernel_{n}"', f'@"{symbol}"')
        renamed.append(Launch(symbol, launch.operands, launch.total, launch.grain))
    return Generated(key, text, renamed, workspace, scratch)


def _grain(program: Program) -> int:
    """Points of a block: worth waking a thread, whole vectors, whole rows where rows are short."""
    each = points_cost(program)
    points = max(1, int(_BLOCK_NS / each))
    if len(program.outer.axes) > 1:
        row = hint(program.outer.extents[-1])
        if 0 < row < points:
            return points // row * row
    return points if points < 64 else points // 64 * 64
