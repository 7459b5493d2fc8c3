"""Packing into tiles, for the products of `tile_unit.py`.

    panels [k / depth][part][width / 16][16][16 words]

Owns `pack_tiles`. A tile of A has a row for each entry of x, and in it words along k; a tile of B a
row for each word along k, and in it entries of x. A word is a group of neighbours along k. Operands
are read 16 words at a time, along k where neighbours in memory are neighbours along k, else along
x; a tile whose rows lie the other way is turned in registers. What is missing at the ends is zero.
"""

from __future__ import annotations

import math

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I32, Int, storage_type, vector_of
from jitgrad.compiler.codegen.convert import parts_of
from jitgrad.compiler.codegen.dot import TILE, Dot
from jitgrad.compiler.codegen.memory import first_lanes, masks_pay
from jitgrad.compiler.codegen.packing import Source
from jitgrad.compiler.codegen.tile_unit import WORDS


def pack_tiles(
    source: Source, panels: ir.Value, dot: Dot, width: int, count: Int, depth: Int, stride: Int,
    rows: bool,
) -> None:  # fmt: skip
    """As packing.pack, in tiles; rows: those of A. `stride` counts elements of panels."""
    _Packing(source, panels, dot, width, stride, rows).pack(count, depth)


class _Packing:
    def __init__(
        self, source: Source, panels: ir.Value, dot: Dot, width: int, stride: Int, rows: bool
    ) -> None:
        self.source, self.panels, self.dot = source, panels, dot
        self.width, self.stride, self.rows = width, stride, rows
        self.code = source.frame.code
        self.element = storage_type(dot.a)  # of panels; those of B are as wide
        self.access = source.access
        self.along_k = self.access is not None and self.access.parts[2].is_unit
        # Torn tiles are read by masks.
        self.masked = (
            self.access is not None
            and masks_pay(source.ops.target, [self.access.array.dtype.itemsize])
            and (self.along_k or self.access.parts[1].is_unit)
        )

    def pack(self, count: Int, depth: Int) -> None:
        code, step = self.code, self.dot.depth
        full = code.mul(code.div(depth, step), step)
        whole = code.mul(code.div(count, TILE), TILE)
        lines = code.local(I32, WORDS * self.dot.copies) if self.rows != self.along_k else None

        def tile(x: Int, k: Int) -> None:
            if self.access is None:
                self._elements(x, TILE, k, step)
            else:
                self._tile(x, k, lines)

        if self.along_k:  # so that what is read together lies together
            with code.loop(0, whole, TILE) as x, code.loop(0, full, step) as k:
                tile(x, k)
        else:
            with code.loop(0, full, step) as k, code.loop(0, whole, TILE) as x:
                tile(x, k)

        def torn(x: Int, rows: Int, k: Int, many: Int) -> None:
            if self.masked:
                self._tile(x, k, lines, rows, many)
            else:
                self._elements(x, rows, k, many)

        left = code.sub(depth, full)
        with code.b.if_then(code.less(0, left)), code.loop(0, whole, TILE) as x:
            torn(x, TILE, full, left)
        rest = code.sub(count, whole)
        with code.b.if_then(code.less(0, rest)), code.loop(0, depth, step) as k:
            torn(whole, rest, k, code.min(step, code.sub(depth, k)))
        used = code.mul(code.ceildiv(count, TILE), TILE)
        end = code.mul(code.ceildiv(count, self.width), self.width)
        with code.loop(used, end, TILE) as x, code.loop(0, depth, step) as k:
            self._clear(x, k)

    def _at(self, x: Int, k: Int, part: int) -> ir.Value:
        """The tile of entries from x on, and words from k on."""
        code = self.code
        of_panel = code.at(
            self.panels, code.mul(code.div(x, self.width), self.stride), self.element
        )
        step = code.add(code.mul(code.div(k, self.dot.depth), self.dot.copies), part)
        within = code.div(code.rem(x, self.width), TILE)
        number = code.add(code.mul(step, self.width // TILE), within)
        return code.at(of_panel, code.mul(number, WORDS), I32)

    def _clear(self, x: Int, k: Int) -> None:
        code = self.code
        nothing = ir.Constant(vector_of(I32, TILE), None)
        for part in range(self.dot.copies):
            tile = self._at(x, k, part)
            with code.loop(0, WORDS, TILE) as at:
                code.store(nothing, tile, at, I32)

    def _elements(self, x: Int, rows: Int, k: Int, many: Int) -> None:
        """A tile of `rows` entries by `many` elements along k, word by word."""
        code, group = self.code, self.dot.group
        self._clear(x, k)
        tiles = [self._at(x, k, part) for part in range(self.dot.copies)]

        def parts(i: Int, j: Int) -> list[ir.Value]:
            return self._parts(self.source.element_at(code.add(x, i), code.add(k, j)))

        words = code.div(many, group)
        with code.loop(0, rows) as i:

            def place(w: Int) -> Int:
                """Where word w of entry i is."""
                line, at = (i, w) if self.rows else (w, i)
                return code.add(code.mul(line, TILE), at)

            with code.loop(0, words) as w:
                found = [parts(i, code.add(code.mul(w, group), j)) for j in range(group)]
                for tile, word in zip(tiles, zip(*found, strict=True), strict=True):
                    code.store(self._words(code.join(word)), tile, place(w), I32)
            with code.loop(code.mul(words, group), many) as j:  # the last word is not whole
                at = code.add(code.mul(place(words), group), code.rem(j, group))
                for tile, value in zip(tiles, parts(i, j), strict=True):
                    code.store(value, tile, at, self.element)

    def _tile(
        self, x: Int, k: Int, lines: ir.Value | None, rows: Int = TILE, many: Int | None = None
    ) -> None:
        """A tile, whole, or of `rows` entries by `many` elements along k. lines: where it lies
        before it is turned, if it is."""
        code, copies = self.code, range(self.dot.copies)
        tiles = [self._at(x, k, part) for part in copies]
        homes = tiles
        if lines is not None:
            homes = [code.at(lines, part * WORDS, I32) for part in copies]
        count: Int = TILE
        if many is not None:
            count = rows if self.along_k else code.ceildiv(many, self.dot.group)
        with code.loop(0, count) as line:
            if self.along_k:
                words = self._along_k(code.add(x, line), k, many)
            else:
                words = self._along_x(x, k, line, rows, many)
            for home, word in zip(homes, words, strict=True):
                code.store(word, home, code.mul(line, TILE), I32)
        if many is not None:
            nothing = ir.Constant(vector_of(I32, TILE), None)
            with code.loop(count, TILE) as line:
                for home in homes:
                    code.store(nothing, home, code.mul(line, TILE), I32)
        if lines is not None:
            for home, tile in zip(homes, tiles, strict=True):
                found = [code.load(home, r * TILE, I32, TILE) for r in range(TILE)]
                for r, turned in enumerate(code.transpose(found)):
                    code.store(turned, tile, r * TILE, I32)

    def _read(self, offset: Int, width: int, many: Int | None) -> ir.Value:
        """`width` neighbours, the first `many` of them, if that is given, and zeros."""
        if many is None:
            return self.source.read(offset, width)
        mask = first_lanes(self.code.b, self.code.value(many), width)
        value = self.source.read(offset, width, mask)
        return self.code.b.select(mask, value, ir.Constant(value.type, None))

    def _along_k(self, x: Int, k: Int, many: Int | None = None) -> list[ir.Value]:
        """TILE words along k of one entry, of each part."""
        code = self.code
        offset = code.add(self.source.x.at(x), self.source.k.at(k))
        if not self.dot.parts:
            return [self._words(self._read(offset, self.dot.depth, many))]
        halves = []
        for h in range(self.dot.group):
            left = None if many is None else code.sub(many, h * TILE)
            halves.append(self._parts(self._read(code.add(offset, h * TILE), TILE, left)))
        return [self._words(code.side_by_side(part)) for part in zip(*halves, strict=True)]

    def _along_x(
        self, x: Int, k: Int, line: Int, rows: Int = TILE, many: Int | None = None
    ) -> list[ir.Value]:
        """The words of TILE entries at one place along k, of each part."""
        code, group = self.code, self.dot.group
        first = code.mul(line, group)
        found = []
        for j in range(group):
            at = code.add(first, j)
            if many is None:
                found.append(self._parts(self._entries(x, self.source.k.at(code.add(k, at)))))
                continue
            there = code.less(at, many)  # else no entry is read, at a place that is there
            inside = self.source.k.at(code.add(k, code.min(at, code.sub(many, 1))))
            offset = code.add(self.source.x.at(x), inside)
            taken = code.b.select(there, code.value(rows), code.value(0))
            found.append(self._parts(self._read(offset, TILE, taken)))
        return [self._words(code.interleave(part)) for part in zip(*found, strict=True)]

    def _entries(self, x: Int, step: Int) -> ir.Value:
        """TILE neighbours along x."""
        code, source = self.code, self.source
        along = math.gcd(source.vector_along(1, TILE), TILE)
        pieces = [
            source.read(code.add(source.x.at(code.add(x, start)), step), along)
            for start in range(0, TILE, along)
        ]
        return code.join(pieces) if along == 1 else code.side_by_side(pieces)

    def _words(self, value: ir.Value) -> ir.Value:
        return self.code.b.bitcast(value, vector_of(I32, value.type.count // self.dot.group))

    def _parts(self, value: ir.Value) -> list[ir.Value]:
        """What panels hold of an operand's value: itself, or the bits of its parts."""
        if not self.dot.parts:
            return [value]
        return parts_of(self.code.b, self.source.ops.target, value, self.dot.parts)
