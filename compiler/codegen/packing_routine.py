"""Packing as a routine: the code of `packing.pack` for operands that are loads, one for each Form.
Where an operand lies, its strides and its tables of offsets are arguments.

    void pack(ptr memory, i64 x, i64 k, ptr panels, i64 count, i64 depth, i64 stride)

`memory`: the element at x 0, k 0, or where no offset is added yet; `x`, `k`: of each side, the
stride, or the address of the table of its offsets; the others as in `packing.pack`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.access import Access, Part
from jitgrad.compiler.codegen.code import I64, PTR, VOID, Code, Int, storage_type
from jitgrad.compiler.codegen.dot import Dot
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.frame import Frame
from jitgrad.compiler.codegen.packing import Source, pack, takes_single_elements
from jitgrad.compiler.codegen.packing_groups import pack_groups
from jitgrad.compiler.codegen.packing_tiles import pack_tiles
from jitgrad.compiler.codegen.positions import Positions
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    const,
    load,
)
from jitgrad.runtime.dtypes import DType

_RUN = 64  # runs matter up to the length of a vector


@dataclass(frozen=True)
class Side:
    """What code knows of the offsets along x or k: their stride, None where it is an argument;
    whether a table has them; the length of runs of neighbours."""

    stride: int | None
    table: bool
    run: int


@dataclass(frozen=True)
class Form:
    """What the code of a packing depends on: the operand's dtype and its casts, the innermost
    first; the accumulator's dtype; the panels' width; its sides; in which groups, and whether 128
    is added (see `packing_groups.py`); whether tiles are those of A (see `packing_tiles.py`)."""

    dtype: DType
    casts: tuple[DType, ...]
    acc: DType
    width: int
    x: Side
    k: Side
    dot: Dot | None = None
    flip: bool = False
    rows: bool = False


def form_of(
    source: Source, width: int, dot: Dot | None = None, flip: bool = False, rows: bool = False
) -> Form | None:
    """The form of an operand; None where it is no load, so that its code is its own."""
    if source.access is None:
        return None
    casts = []
    e = source.expr
    while e.op == "cast":
        casts.append(e.dtype)
        e = e.args[0]
    if e.op != "load":
        return None
    sides = []
    for part, positions in zip(source.access.parts[1:], (source.x, source.k), strict=True):
        stride = positions.stride if positions.table is None else None
        known = stride if isinstance(stride, int) else None
        if known != 1 and not (positions is source.x and takes_single_elements(source, width)):
            known = None  # the code is as good without, and serves others too
        sides.append(Side(known, positions.table is not None, math.gcd(part.run, _RUN)))
    dtype = source.access.array.dtype
    x, k = sides
    return Form(dtype, tuple(reversed(casts)), source.acc, width, x, k, dot, flip, rows)


def emit_packing(module: ir.Module, name: str, form: Form, target: Target) -> ir.Function:
    """The routine as a function of `module`."""
    kind = ir.FunctionType(VOID, [PTR, I64, I64, PTR, I64, I64, I64])
    function = ir.Function(module, kind, name)
    function.attributes.add("nounwind")
    memory, x, k, panels, count, depth, stride = function.args
    for pointer in (memory, panels):
        pointer.add_attribute("noalias")
    code = Code(ir.IRBuilder(function.append_basic_block("entry")))
    source = _FormSource(form, Ops(target), code, memory, x, k)
    if form.dot is None:
        pack(source, panels, form.width, count, depth, stride)
    elif form.dot.tiles:
        pack_tiles(source, panels, form.dot, form.width, count, depth, stride, form.rows)
    else:
        pack_groups(source, panels, form.dot, form.width, count, depth, stride, form.flip)
    code.b.ret_void()
    return function


def call_packing(
    source: Source, routine: ir.Function, panels: ir.Value, count: Int, depth: Int, stride: Int
) -> None:
    """Calls the routine for the source's current block."""
    code = source.frame.code
    place: Int = source.batch_offset
    words: list[ir.Value] = []
    for positions in (source.x, source.k):
        if positions.table is None:
            place = code.add(place, positions.at(0))
            words.append(code.value(positions.stride))
        else:
            words.append(code.b.ptrtoint(positions.table, I64))
    memory = code.at(source.base(), place, source.element)
    sizes = [code.value(n) for n in (count, depth, stride)]
    code.b.call(routine, [memory, *words, panels, *sizes])


class _FormSource(Source):
    """An operand as a routine sees it."""

    def __init__(
        self, form: Form, ops: Ops, code: Code, memory: ir.Value, x: ir.Value, k: ir.Value
    ) -> None:
        array = Array("operand", (1,), form.dtype)
        expr = load(array, [const(0, INDEX)])
        for dtype in form.casts:
            expr = expr.cast(dtype)
        self.expr, self.acc, self.ops = expr, form.acc, ops
        self.frame = _RoutineFrame(code, memory)
        self.groups, self.extents = ((), (), ()), {}
        self.batch_axes = {}
        self.batch_offset = self.x_start = self.k_start = 0
        self.max_vector = max(1, ops.target.vector_bytes // form.acc.itemsize)
        self.element = storage_type(form.dtype)
        self.x, self.k = _Given(code, form.x, x), _Given(code, form.k, k)
        nothing = Part(const(0, INDEX), None, 1)
        self.access = Access(array, (nothing, _part(form.x), _part(form.k)))


def _part(side: Side) -> Part:
    return Part(const(0, INDEX), const(1, INDEX) if side.stride == 1 else None, side.run)


class _RoutineFrame(Frame):
    """Has the code and the address of the one array."""

    def __init__(self, code: Code, memory: ir.Value) -> None:
        self.code, self.memory = code, memory

    def array(self, array: Array) -> ir.Value:
        return self.memory


class _Given(Positions):
    """Offsets by the stride or the table that a routine is given."""

    def __init__(self, code: Code, side: Side, word: ir.Value) -> None:
        self.code = code
        self.table = code.b.inttoptr(word, PTR) if side.table else None
        self.stride = word if side.stride is None else side.stride

    def at(self, i: Int) -> Int:
        if self.table is not None:
            return self.code.load(self.table, i, I64)
        return self.code.mul(i, self.stride)
