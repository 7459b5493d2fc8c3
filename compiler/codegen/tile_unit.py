"""Products of tiles of 16 rows by 16 words: by Intel's AMX, or by plain code that does the same.

Owns the operations of tiles (`TileUnit`) and their two forms. `Amx` emits the instructions; tiles
are numbers of registers. `Plain` keeps tiles in memory, for processors that have no AMX: with it
everything around the operations (packing, tails, addresses, epilogues) is tested everywhere.

A product adds to a tile of float32 or int32, dst[m][n], what words of A[m][k] and B[k][n] give:
pairs of bfloat16, or fours of bytes. Of bfloat16 the first elements of the pairs have a sum and the
second ones another, each in the order of k from zero, rounded after each addition; then
dst + (first + second). Numbers below the normal range count as zero, before and after. Bytes are
exact, modulo 2^32. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
TDPBF16PS, TDPBSSD, LDTILECFG.
"""

from __future__ import annotations

from typing import Protocol

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I8, I32, I64, VOID, Code, Int, vector_of
from jitgrad.compiler.codegen.convert import splat
from jitgrad.compiler.codegen.dot import TILE, Dot
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime import dtypes

TILES = 8  # registers
WORDS = TILE * TILE  # of a tile
_ROW = 4 * TILE  # bytes
_F32 = ir.FloatType()
_NORMAL = 0x00800000  # the bits of the least normal float32
_SIGN, _SIZE = -(2**31), 0x7FFFFFFF


class TileUnit(Protocol):
    """The operations on tiles 0 .. TILES - 1, in code at `code`'s builder.

    Every function that uses them runs between a `begin` and an `end` of its thread.
    """

    def begin(self, code: Code) -> None:
        """Readies the tiles of this thread."""

    def end(self, code: Code) -> None:
        """Gives the tiles back."""

    def zero(self, code: Code, tile: int) -> None:
        """tile = 0."""

    def load(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        """tile = rows of 64 bytes that lie `step` bytes apart."""

    def store(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        """The reverse of `load`."""

    def dot(self, code: Code, dot: Dot, to: int, a: int, b: int) -> None:
        """tile `to` += tile a by tile b."""


def tile_unit(target: Target) -> TileUnit:
    """The target's form of the operations."""
    return Amx() if target.tiles == "amx" else Plain()


class Amx:
    """The instructions. Tiles have all 16 rows of 64 bytes, always."""

    def begin(self, code: Code) -> None:
        """Palette 1; bytes 16.. are the bytes of a row of each tile, bytes 48.. their rows."""
        config = code.local(I64, 8)
        words = bytearray(64)
        words[0] = 1
        for tile in range(TILES):
            words[16 + 2 * tile], words[48 + tile] = _ROW, TILE
        for k in range(8):
            word = int.from_bytes(words[8 * k : 8 * k + 8], "little")
            code.store(ir.Constant(I64, word), config, k, I64)
        _call(code, "ldtilecfg", [config])

    def end(self, code: Code) -> None:
        _call(code, "tilerelease", [])

    def zero(self, code: Code, tile: int) -> None:
        _call(code, "tilezero", [ir.Constant(I8, tile)])

    def load(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        _call(code, "tileloadd64", [ir.Constant(I8, tile), address, code.value(step)])

    def store(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        _call(code, "tilestored64", [ir.Constant(I8, tile), address, code.value(step)])

    def dot(self, code: Code, dot: Dot, to: int, a: int, b: int) -> None:
        name = "tdpbf16ps"
        if dot.a is not dtypes.bfloat16:
            signs = ("s" if kind is dtypes.int8 else "u" for kind in (dot.a, dot.b))
            name = f"tdpb{''.join(signs)}d"
        _call(code, name, [ir.Constant(I8, tile) for tile in (to, a, b)])


def _call(code: Code, name: str, arguments: list[ir.Value]) -> None:
    """An intrinsic; those that begin with numbers of tiles want them as constants."""
    module, name = code.b.module, f"llvm.x86.{name}"
    function = module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(VOID, [a.type for a in arguments])
        function = ir.Function(module, kind, name)
        for parameter in function.args:
            if parameter.type == I8:
                set.add(parameter.attributes, "immarg")
    code.b.call(function, arguments)


class Plain:
    """Tiles are memory of the function that uses them."""

    def __init__(self) -> None:
        self.memory: dict[int, ir.Value] = {}

    def _tile(self, code: Code, tile: int) -> ir.Value:
        if tile not in self.memory:
            self.memory[tile] = code.local(I32, WORDS)
        return self.memory[tile]

    def begin(self, code: Code) -> None:
        pass

    def end(self, code: Code) -> None:
        pass

    def zero(self, code: Code, tile: int) -> None:
        memory = self._tile(code, tile)
        nothing = ir.Constant(vector_of(I32, TILE), None)
        with code.loop(0, WORDS, TILE) as at:
            code.store(nothing, memory, at, I32)

    def load(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        memory = self._tile(code, tile)
        with code.loop(0, TILE) as row:
            value = code.load(code.at(address, code.mul(row, step)), 0, I32, TILE)
            code.store(value, memory, code.mul(row, TILE), I32)

    def store(self, code: Code, tile: int, address: ir.Value, step: Int) -> None:
        memory = self._tile(code, tile)
        with code.loop(0, TILE) as row:
            value = code.load(memory, code.mul(row, TILE), I32, TILE)
            code.store(value, code.at(address, code.mul(row, step)), 0, I32)

    def dot(self, code: Code, dot: Dot, to: int, a: int, b: int) -> None:
        mine, left, right = (self._tile(code, tile) for tile in (to, a, b))
        narrow = dot.a is not dtypes.bfloat16
        kind = I32 if narrow else _F32
        count = 1 if narrow else 2
        sums = [code.local(kind, TILE) for _ in range(count)]
        with code.loop(0, TILE) as m:
            row = code.mul(m, TILE)
            for total in sums:
                code.store(ir.Constant(vector_of(kind, TILE), None), total, 0, kind)
            with code.loop(0, TILE) as k:
                x = code.splat(code.load(left, code.add(row, k), I32), TILE)
                y = code.load(right, code.mul(k, TILE), I32, TILE)
                for part, total in enumerate(sums):
                    old = code.load(total, 0, kind, TILE)
                    new = _bytes(code, dot, x, y, old) if narrow else _pair(code, part, x, y, old)
                    code.store(new, total, 0, kind)
            found = [code.load(total, 0, kind, TILE) for total in sums]
            old = code.load(mine, row, kind, TILE)
            if narrow:
                new = code.b.add(old, found[0])
            else:
                new = _flushed(code, code.b.fadd(found[0], found[1]))
                new = _flushed(code, code.b.fadd(_flushed(code, old), new))
            code.store(new, mine, row, kind)


def _flushed(code: Code, x: ir.Value) -> ir.Value:
    """float32 x, or a zero of its sign where it is below the normal range."""
    b = code.b
    words = vector_of(I32, TILE)
    bits = b.bitcast(x, words)
    size = b.and_(bits, splat(ir.Constant(I32, _SIZE), TILE))
    small = b.icmp_unsigned("<", size, splat(ir.Constant(I32, _NORMAL), TILE))
    zero = b.and_(bits, splat(ir.Constant(I32, _SIGN), TILE))
    return b.bitcast(b.select(small, zero, bits), x.type)


def _pair(code: Code, part: int, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
    """total + the product of one bfloat16 of each pair; the product is exact in float32."""
    b = code.b

    def element(words: ir.Value) -> ir.Value:
        if part == 0:
            words = b.shl(words, splat(ir.Constant(I32, 16), TILE))
        else:
            words = b.and_(words, splat(ir.Constant(I32, -(2**16)), TILE))
        return _flushed(code, b.bitcast(words, vector_of(_F32, TILE)))

    return _flushed(code, b.fadd(total, b.fmul(element(x), element(y))))


def _bytes(code: Code, dot: Dot, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
    """total + the four products of the words' bytes."""
    b = code.b
    top = splat(ir.Constant(I32, 24), TILE)

    def element(words: ir.Value, k: int, signed: bool) -> ir.Value:
        high = b.shl(words, splat(ir.Constant(I32, 24 - 8 * k), TILE))
        return b.ashr(high, top) if signed else b.lshr(high, top)

    for k in range(4):
        left = element(x, k, dot.a is dtypes.int8)
        right = element(y, k, dot.b is dtypes.int8)
        total = b.add(total, b.mul(left, right))
    return total
