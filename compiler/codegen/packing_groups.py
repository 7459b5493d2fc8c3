"""Packing in groups along k, for the dot products of `dot.py`: [k / group][width][group] panels.

Owns `pack_groups`. Where neighbours along x lie together, vectors are interleaved; where neighbours
along k do, groups are words, of which blocks are turned in registers; else elements are copied.
"""

from __future__ import annotations

import math

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I32, Int, integers, storage_type, vector_of
from jitgrad.compiler.codegen.convert import parts_of
from jitgrad.compiler.codegen.dot import SIGN, Dot
from jitgrad.compiler.codegen.packing import Source, in_powers

_LANES = 16  # entries that are interleaved at a time
_BLOCK = 4  # entries, and words of each, that are turned at a time


def pack_groups(
    source: Source, panels: ir.Value, dot: Dot, width: int, count: Int, depth: Int, stride: Int,
    flip: bool,
) -> None:  # fmt: skip
    """As packing.pack, in groups along k. The last group is filled up with zeros; `flip` adds 128
    to every element. float32 operands are rounded to panels of bfloat16 (`Dot.parts`)."""
    code = source.frame.code
    element = storage_type(dot.a)  # of panels; those of B are as wide
    group = dot.group
    full = code.mul(code.div(depth, group), group)
    whole = code.mul(code.div(count, width), width)

    def panel_at(x: Int) -> ir.Value:
        return code.at(panels, code.mul(code.div(x, width), stride), element)

    access = source.access
    along = math.gcd(source.vector_along(1, _LANES), width)
    with code.loop(0, whole, width) as x:
        panel = panel_at(x)
        if access is not None and access.parts[2].is_unit:
            _words(source, panel, dot, width, x, full, flip)
        else:
            with code.loop(0, full, group) as k:
                if along >= _BLOCK:
                    _interleave(source, panel, dot, width, x, k, along, flip)
                elif access is not None:
                    _gather(source, panel, dot, width, x, k, flip)
                else:
                    _elements(source, panel, dot, width, x, width, k, group, flip)
        with code.b.if_then(code.less(full, depth)):
            _elements(source, panel, dot, width, x, width, full, code.sub(depth, full), flip)
    rest = code.sub(count, whole)
    with code.b.if_then(code.less(0, rest)):
        with code.loop(0, full, group) as k:
            _elements(source, panel_at(whole), dot, width, whole, rest, k, group, flip)
        with code.b.if_then(code.less(full, depth)):
            many = code.sub(depth, full)
            _elements(source, panel_at(whole), dot, width, whole, rest, full, many, flip)


def _stored(source: Source, dot: Dot, value: ir.Value, flip: bool) -> ir.Value:
    """An operand's value as panels hold it."""
    if dot.parts:
        (value,) = parts_of(source.frame.code.b, source.ops.target, value, dot.parts)
    if not flip:
        return value
    kind = value.type
    is_vector = isinstance(kind, ir.VectorType)
    element = kind.element if is_vector else kind
    word = int.from_bytes([SIGN] * (element.width // 8), "little", signed=True)
    sign = integers(element, [word] * kind.count) if is_vector else ir.Constant(element, word)
    return source.frame.code.b.xor(value, sign)


def _elements(
    source: Source, panel: ir.Value, dot: Dot, width: int, x: Int, rows: Int, k: Int, many: Int,
    flip: bool,
) -> None:  # fmt: skip
    """One group of `rows` entries, of which `many` neighbours along k are there."""
    code, element, group = source.frame.code, storage_type(dot.a), dot.group
    row = code.at(panel, code.mul(k, width), element)
    start = 0
    for piece in in_powers(width, _LANES):
        code.store(ir.Constant(vector_of(I32, piece), None), row, start, I32)
        start += piece

    def value(i: Int, j: Int) -> ir.Value:
        found = source.element_at(code.add(x, i), code.add(k, j))
        return _stored(source, dot, found, flip)

    if isinstance(many, int) and many == group:
        with code.loop(0, rows) as i:
            word = code.join([value(i, j) for j in range(group)])
            code.store(word, row, code.mul(i, group), element)
        return
    with code.loop(0, rows) as i, code.loop(0, many) as j:
        code.store(value(i, j), row, code.add(code.mul(i, group), j), element)


def _interleave(
    source: Source, panel: ir.Value, dot: Dot, width: int, x: Int, k: Int, along: int, flip: bool
) -> None:
    """Vectors of `along` neighbours of the rows of a group, element by element in turn."""
    code, element, group = source.frame.code, storage_type(dot.a), dot.group
    row = code.at(panel, code.mul(k, width), element)
    steps = [source.k.at(code.add(k, j)) for j in range(group)]
    for start in range(0, width, along):
        offset = source.x.at(code.add(x, start))
        rows = [
            _stored(source, dot, source.read(code.add(offset, step), along), flip) for step in steps
        ]
        code.store(code.interleave(rows), row, start * group, element)


def _gather(
    source: Source, panel: ir.Value, dot: Dot, width: int, x: Int, k: Int, flip: bool
) -> None:
    """Loads of single elements."""
    code, element, group = source.frame.code, storage_type(dot.a), dot.group
    row = code.at(panel, code.mul(k, width), element)
    steps = [source.k.at(code.add(k, j)) for j in range(group)]
    for i in range(width):
        offset = source.x.at(code.add(x, i))
        for j, step in enumerate(steps):
            value = _stored(source, dot, source.read(code.add(offset, step)), flip)
            code.store(value, row, i * group + j, element)


def _words(
    source: Source, panel: ir.Value, dot: Dot, width: int, x: Int, full: Int, flip: bool
) -> None:
    """Neighbours along k are words: blocks of 4 entries by 4 words are turned in registers."""
    code, element, group = source.frame.code, storage_type(dot.a), dot.group
    block = _BLOCK
    wide = code.mul(code.div(full, group * block), group * block)
    for start in range(0, width, block):
        offsets = [
            source.x.at(code.add(code.add(x, start), r)) for r in range(min(block, width - start))
        ]

        def load(offset: Int, k: Int, words: int) -> ir.Value:
            value = source.read(code.add(offset, source.k.at(k)), words * group)
            return code.b.bitcast(_stored(source, dot, value, flip), vector_of(I32, words))

        def put(value: ir.Value, k: Int, first: int) -> None:
            at = code.add(code.mul(k, width), first * group)
            address = code.at(panel, at, element)
            code.b.store(value, address, align=1)

        with code.loop(0, wide, group * block) as k:
            loaded = [load(o, k, block) for o in offsets]
            if len(loaded) == block:
                for j, column in enumerate(code.transpose(loaded)):
                    put(column, code.add(k, j * group), start)
            else:
                for r, v in enumerate(loaded):
                    for j in range(block):
                        word = code.b.extract_element(v, ir.Constant(I32, j))
                        put(word, code.add(k, j * group), start + r)
        with code.loop(wide, full, group) as k:
            for r, o in enumerate(offsets):
                put(load(o, k, 1), k, start + r)
