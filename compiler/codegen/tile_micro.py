"""The inner kernel of a contraction whose products are formed in tiles (`tile_unit.py`).

Owns the blocks of results that it makes and `emit_tile_micro`, which emits

    void micro(i64 kb, ptr a, ptr b, i64 b_step, ptr c, i1 first, ptr ahead, i64 pace)

as `emit_micro` does, for panels of `packing_tiles.py`: kb counts tiles along k, and b_step is not
used. Blocks of k follow each other in one sum: c is where the tiles of results begin, unless they
begin at zero. Of operands in parts, hi + lo, the products lo by hi, hi by hi, hi by lo are added in
this order, step by step along k, from zero; if a result of a block is infinite or no number, the
product hi by hi alone says what it is (an infinity times a zero part is none).
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I32, VOID, Code, Int
from jitgrad.compiler.codegen.convert import splat
from jitgrad.compiler.codegen.dot import TILE, Dot
from jitgrad.compiler.codegen.microkernel import MICRO, Tile, ask_ahead
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tile_unit import TILES, WORDS, tile_unit

# (row tiles, column tiles) of a block of results, each with its own tile, and one for each row and
# column tile of the operands.
_SQUARE, _FLAT, _TALL = (2, 2), (1, 3), (3, 1)
_AHEAD = 8  # lines of memory that a step along k asks for
_F32 = ir.FloatType()


def tile_for(rows: int, cols: int) -> Tile:
    """The block of results for a product of this size."""
    high, wide = _FLAT if rows <= TILE else _TALL if cols <= TILE else _SQUARE
    return Tile(high * TILE, wide, TILE)


def emit_tile_micro(
    module: ir.Module, name: str, tile: Tile, dot: Dot, target: Target
) -> ir.Function:
    """The micro-kernel as a function of `module`."""
    function = ir.Function(module, ir.FunctionType(VOID, MICRO), name)
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    kb, a, b, _, c, first, ahead, pace = function.args
    micro = _Micro(code, tile, dot, target, ahead, pace)
    if dot.parts < 2:
        micro.into(kb, a, b, c, first)
    else:
        micro.in_parts(kb, a, b, c, first)
    code.b.ret_void()
    return function


def _infinite() -> ir.Constant:
    """The bits of infinity, doubled."""
    return splat(ir.Constant(I32, -(2**24)), TILE)


class _Micro:
    """Tiles 0.. are results, row by row; then those of A, then those of B."""

    def __init__(
        self, code: Code, tile: Tile, dot: Dot, target: Target, ahead: ir.Value, pace: ir.Value
    ) -> None:
        self.code, self.tile, self.dot = code, tile, dot
        self.ahead, self.pace = ahead, pace
        self.unit = tile_unit(target)
        self.high, self.wide = tile.mr // TILE, tile.nv
        self.sums = [(i, j) for i in range(self.high) for j in range(self.wide)]
        self.of_a = len(self.sums)
        self.of_b = self.of_a + self.high
        assert self.of_b + self.wide <= TILES

    def into(self, kb: ir.Value, a: ir.Value, b: ir.Value, c: ir.Value, first: ir.Value) -> None:
        """c = or += the product."""
        code = self.code
        with code.b.if_else(first) as (begins, goes_on):
            with begins:
                self._zero()
            with goes_on:
                self._results(c, self.unit.load)
        with code.loop(0, kb) as k:
            self._ask(k)
            self._load("a", a, k, 0)
            self._load("b", b, k, 0)
            self._multiply()
        self._results(c, self.unit.store)

    def in_parts(
        self, kb: ir.Value, a: ir.Value, b: ir.Value, c: ir.Value, first: ir.Value
    ) -> None:
        """The same of operands in two parts."""
        code = self.code
        size = self.tile.mr * self.tile.nr
        found, plain = code.local(_F32, size), code.local(_F32, size)
        home = code.b.select(first, c, found)
        self._zero()
        with code.loop(0, kb) as k:
            self._ask(k)
            self._load("a", a, k, 1)
            self._load("b", b, k, 0)
            self._multiply()
            self._load("a", a, k, 0)
            self._multiply()
            self._load("b", b, k, 1)
            self._multiply()
        self._results(home, self.unit.store)
        with code.b.if_then(self._any_strange(home, size), likely=False):
            self._zero()
            with code.loop(0, kb) as k:
                self._load("a", a, k, 0)
                self._load("b", b, k, 0)
                self._multiply()
            self._results(plain, self.unit.store)
            with code.loop(0, size, TILE) as at:
                value = code.load(home, at, _F32, TILE)
                bad = code.b.icmp_unsigned(">=", self._sizes(home, at), _infinite())
                value = code.b.select(bad, code.load(plain, at, _F32, TILE), value)
                code.store(value, home, at, _F32)
        with code.b.if_then(code.b.not_(first)), code.loop(0, size, TILE) as at:
            total = code.b.fadd(code.load(c, at, _F32, TILE), code.load(found, at, _F32, TILE))
            code.store(total, c, at, _F32)

    def _ask(self, k: Int) -> None:
        """Asks for what is needed next, as much of it as step k has to."""
        code = self.code
        place = code.beyond(self.ahead, code.mul(k, self.pace))
        ask_ahead(code, place, code.value(code.div(self.pace, _AHEAD)), _AHEAD)

    def _sizes(self, memory: ir.Value, at: Int) -> ir.Value:
        """The bits of TILE results without their signs, doubled."""
        bits = self.code.load(memory, at, I32, TILE)
        return self.code.b.shl(bits, splat(ir.Constant(I32, 1), TILE))

    def _any_strange(self, memory: ir.Value, size: int) -> ir.Value:
        """Whether one of the results is infinite or no number."""
        b = self.code.b
        most = self._sizes(memory, 0)
        for at in range(TILE, size, TILE):
            other = self._sizes(memory, at)
            most = b.select(b.icmp_unsigned(">", most, other), most, other)
        bits = b.bitcast(b.icmp_unsigned(">=", most, _infinite()), ir.IntType(TILE))
        return b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    def _zero(self) -> None:
        for n in range(len(self.sums)):
            self.unit.zero(self.code, n)

    def _results(self, c: ir.Value, move: object) -> None:
        """Loads the tiles of results from c[mr][nr], or stores them."""
        assert callable(move)
        step = 4 * self.tile.nr
        for n, (i, j) in enumerate(self.sums):
            place = self.code.at(c, (i * self.tile.nr + j) * TILE, I32)
            move(self.code, n, place, step)

    def _load(self, side: str, panel: ir.Value, k: Int, part: int) -> None:
        """The tiles of a step along k."""
        code = self.code
        first, count = (self.of_a, self.high) if side == "a" else (self.of_b, self.wide)
        step = code.mul(code.add(code.mul(k, self.dot.copies), part), count)
        for n in range(count):
            place = code.at(panel, code.mul(code.add(step, n), WORDS), I32)
            self.unit.load(code, first + n, place, 4 * TILE)

    def _multiply(self) -> None:
        for n, (i, j) in enumerate(self.sums):
            self.unit.dot(self.code, self.dot, n, self.of_a + i, self.of_b + j)
