"""Code generation for the CPU: a kernel of the loop language becomes `Generated` LLVM assembly.

Owns the dispatch by kind of kernel. How loops look is in `nest.py` and `special.py`; how a module
is finished, in `assemble.py`.
"""

from __future__ import annotations

from jitgrad.compiler.codegen import nest
from jitgrad.compiler.codegen.assemble import Part, assemble
from jitgrad.compiler.codegen.chained import generate_chain
from jitgrad.compiler.codegen.columns import launch_columns, launch_folds
from jitgrad.compiler.codegen.contraction import generate as generate_contraction
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import version_key as version_key
from jitgrad.compiler.codegen.pieces import pieces
from jitgrad.compiler.codegen.program import prepare
from jitgrad.compiler.codegen.special import generate_special
from jitgrad.compiler.codegen.split import split
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tiles import tiled
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
)


def generate(kernel: Kernel, target: Target) -> Generated:
    """Code for a kernel. Raises CompileError for what is not compiled (complex numbers)."""
    if isinstance(kernel, ContractionKernel):
        return generate_contraction(kernel, target)
    if isinstance(kernel, LoopKernel):
        return generate_loops(kernel, target)
    if isinstance(kernel, ChainKernel):
        return generate_chain(kernel, target, _part)
    return generate_special(kernel, target)


def _part(kernel: Kernel, target: Target) -> Generated:
    """Code for a part of a chain, which keeps nothing between calls."""
    if isinstance(kernel, ContractionKernel):
        return generate_contraction(kernel, target, keeps=False)
    return generate(kernel, target)


def generate_loops(kernel: LoopKernel, target: Target) -> Generated:
    """Code for a LoopKernel: one launch, or more for sums over columns (columns.py), for a large
    reduction to few outputs (split.py), and for what reads here or there (pieces.py). What turns
    memory around goes in tiles (tiles.py)."""
    program = prepare(kernel)
    programs, workspace = launch_folds(program) or launch_columns(program) or split(program)
    if len(programs) == 1:
        programs = pieces(programs[0])
    parts = [tiled(p, target) or Part(p, nest.emit) for p in programs]
    return assemble(parts, target, workspace)
