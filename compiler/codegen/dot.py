"""Dot products of short groups along k, by one instruction: bfloat16 in pairs, bytes in fours.

Owns which contractions can use them (`dot_of`), in vectors or in whole tiles (`tile_unit.py`), and
the step of the micro-kernel for vectors. Elsewhere such operands are converted while they are
packed.

vdpbf16ps adds two products to a float32, rounding after each, and takes numbers below the normal
range for zero. vpdpbusd multiplies unsigned bytes by signed ones: signed A is stored with 128
added, and sums begin at -128 times those of B's columns. Everything is modulo 2^32, so sums are
exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I32, BFloat, integers, vector_of
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import Contraction, Expr
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

MANY = 16  # rows and columns from which converting float32 operands pays
TILE = 16  # rows of a tile, and words of each
SIGN = 0x80  # what is added to signed bytes
_WORD = 4  # bytes of a group


@dataclass(frozen=True)
class Dot:
    """a, b: the operands' dtypes in panels; group: neighbours along k that lie together.

    depth: the k of a panel is a multiple of it. parts: operands are float32, and panels hold each
    number as a sum of so many bfloat16; 0: operands have the panels' dtypes.
    """

    a: DType
    b: DType
    group: int
    depth: int
    parts: int = 0

    @property
    def tiles(self) -> bool:
        """Whether products are formed in tiles."""
        return self.depth > self.group

    @property
    def flips(self) -> bool:
        """Whether A is stored with 128 added."""
        return self.a is dtypes.int8 and not self.tiles

    @property
    def copies(self) -> int:
        """Elements of a panel for each of the operand."""
        return max(1, self.parts)


def dot_of(c: Contraction, a: Expr, b: Expr, target: Target, least: int = MANY) -> Dot | None:
    """How the products of two operands are formed in groups; None where they are not. least: the
    fewest rows or columns that a side is known to have: tiles do not pay for one, nor do parts for
    less than MANY."""
    kinds = [e.args[0].dtype if e.op == "cast" and e.args[0].op == "load" else None for e in (a, b)]
    bfloat = [dtypes.bfloat16] * 2
    parts = c.parts if least >= MANY and c.acc is dtypes.float32 else 0
    if target.tiles and least > 1:
        return _in_tiles(c, kinds, parts)
    if target.has_bfloat_dot and c.acc is dtypes.float32:
        if kinds == bfloat:
            return Dot(dtypes.bfloat16, dtypes.bfloat16, 2, 2)
        if parts == 1:  # three products of parts are slower than one of float32
            return Dot(dtypes.bfloat16, dtypes.bfloat16, 2, 2, parts)
    signed = kinds[0] in (dtypes.int8, dtypes.uint8) and kinds[1] is dtypes.int8
    if target.has_byte_dot and c.acc is dtypes.int32 and signed:
        assert kinds[0] is not None
        return Dot(kinds[0], dtypes.int8, 4, 4)
    return None


def _in_tiles(c: Contraction, kinds: list[DType | None], parts: int) -> Dot | None:
    """How products are formed in tiles; None where they are not."""
    pair = dtypes.bfloat16, dtypes.bfloat16, 2, 2 * TILE
    if c.acc is dtypes.float32 and kinds == [dtypes.bfloat16] * 2:
        return Dot(*pair)
    if parts:
        return Dot(*pair, parts)
    if c.acc is dtypes.int32 and all(k in (dtypes.int8, dtypes.uint8) for k in kinds):
        assert kinds[0] is not None and kinds[1] is not None
        return Dot(kinds[0], kinds[1], 4, 4 * TILE)
    return None


class DotStep:
    """Multiply-add of words: lanes of a vector are groups of B, a word is a group of A."""

    def __init__(self, dot: Dot, module: ir.Module, width: int) -> None:
        self.dot, self.width = dot, width
        words = vector_of(I32, width)
        self.words = words
        if dot.b is dtypes.bfloat16:
            name, self.sums = "llvm.x86.avx512bf16.dpbf16ps.512", vector_of(ir.FloatType(), width)
            self.lanes: ir.Type = ir.VectorType(BFloat(), 2 * width)
        else:
            name, self.sums = "llvm.x86.avx512.vpdpbusd.512", words
            self.lanes = ir.VectorType(ir.IntType(8), _WORD * width)
        kind = ir.FunctionType(self.sums, [self.sums, self.lanes, self.lanes])
        self.function = module.globals.get(name) or ir.Function(module, kind, name)

    def add(self, b: ir.IRBuilder, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        """total + x . y, for words of A and of B."""
        return b.call(self.function, [total, b.bitcast(x, self.lanes), b.bitcast(y, self.lanes)])

    def signs(self) -> ir.Constant:
        """The word of an A whose elements are 128."""
        word = int.from_bytes([SIGN] * _WORD, "little", signed=True)
        return integers(I32, [word] * self.width)
