"""Packing: copies blocks of a contraction's operands into panels that the micro-kernel streams.

Owns `Source` (an operand as read: addresses where its offset is separable, else an expression) and
`pack`. A panel holds `width` neighbours of x (rows of A or columns of B) for each k, [k][width],
in the accumulator's dtype; the last panel is filled up with zeros. Whatever an operand is, a
transpose, a convolution's windows, half precision, a fused producer, ends here.

How a full panel is read depends on what neighbours in memory are (all decided while compiling):
along x, vectors are copied; along k, small blocks are transposed in registers; else elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import llvmlite.ir as ir

from jitgrad.compiler.codegen.access import operand_access
from jitgrad.compiler.codegen.code import Int, prefetch, size_of, storage_type, vector_of
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.frame import Frame
from jitgrad.compiler.codegen.memory import Access as Lanes
from jitgrad.compiler.codegen.memory import first_lanes, masks_pay
from jitgrad.compiler.codegen.positions import Positions
from jitgrad.compiler.codegen.values import Reader, emit, from_storage
from jitgrad.compiler.loops import Expr
from jitgrad.compiler.math import expand
from jitgrad.compiler.symbolic import Dim
from jitgrad.runtime.dtypes import DType

_BLOCK_BYTES = 16  # blocks that are transposed in registers are this wide
_ROWS = 8  # rows of k that are copied side by side
_EDGE_ROWS = 4  # rows of a torn panel that are transposed together


class Source:
    """An operand of a contraction, read at (batch, x, k).

    groups: its batch, x and k axes. capacities: the most x and k entries that a block has.
    """

    def __init__(
        self,
        frame: Frame,
        expr: Expr,
        groups: tuple[Sequence[int], Sequence[int], Sequence[int]],
        extents: Mapping[int, Dim],
        acc: DType,
        capacities: tuple[int, int],
        ops: Ops,
    ) -> None:
        self.frame, self.groups, self.extents = frame, groups, extents
        self.expr, self.acc, self.ops = expand(expr).cast(acc), acc, ops
        self.access = operand_access(self.expr, groups, extents)
        self.batch_axes: dict[int, Int] = {}
        self.batch_offset: Int = 0
        self.x_start: Int = 0
        self.k_start: Int = 0
        self.max_vector = max(1, ops.target.vector_bytes // acc.itemsize)
        if self.access is not None:
            _, x, k = self.access.parts
            self.x = Positions(frame, x, groups[1], extents, capacities[0])
            self.k = Positions(frame, k, groups[2], extents, capacities[1])
            self.element = storage_type(self.access.array.dtype)

    def set_batch(self, axes: dict[int, Int]) -> None:
        self.batch_axes = axes
        if self.access is not None:
            self.batch_offset = self.frame.index(self.access.parts[0].expr, axes)

    def set_x(self, start: Int, count: Int) -> None:
        self.x_start = start
        if self.access is not None:
            self.x.fill(start, count)

    def set_k(self, start: Int, count: Int) -> None:
        self.k_start = start
        if self.access is not None:
            self.k.fill(start, count)

    # -- reading -------------------------------------------------------------------------------
    def read(self, offset: Int, width: int = 1, mask: ir.Value | None = None) -> ir.Value:
        """`width` neighbours in memory at a whole offset, in the accumulator's dtype; without those
        that the mask leaves out."""
        assert self.access is not None
        code = self.frame.code
        array = self.access.array
        offset = code.add(self.batch_offset, offset)
        if mask is None:
            value = code.load(self.frame.array(array), offset, self.element, width)
        else:
            memory = self.frame.array(array)
            lanes = Lanes(memory, self.element, code.value(offset), width, 1, mask, inside=False)
            value = lanes.load(code.b, self.element)
        value = from_storage(code, value, array.dtype, width)
        (result,) = emit([self.expr], _Loaded(self.frame, self.ops, value), width)
        return result

    def element_at(self, x: Int, k: Int) -> ir.Value:
        """The operand at flattened indices x_start + x, k_start + k."""
        code = self.frame.code
        if self.access is not None:
            return self.read(code.add(self.x.at(x), self.k.at(k)))
        frame, (_, xs, ks) = self.frame, self.groups
        axes = dict(self.batch_axes)
        axes |= frame.unflatten(code.add(self.x_start, x), xs, self.extents)
        axes |= frame.unflatten(code.add(self.k_start, k), ks, self.extents)
        (value,) = emit([self.expr], Reader(frame, self.ops, axes))
        return value

    def address(self, x: Int, k: Int) -> ir.Value:
        """Where the element at flattened indices x_start + x, k_start + k lies."""
        code = self.frame.code
        offset = code.add(self.batch_offset, code.add(self.x.at(x), self.k.at(k)))
        return code.at(self.base(), offset, self.element)

    def base(self) -> ir.Value:
        """The address of the array's memory."""
        assert self.access is not None
        return self.frame.array(self.access.array)

    # -- what is known while compiling ----------------------------------------------------------
    def vector_along(self, which: int, limit: int) -> int:
        """How many neighbours along group `which` (1: x, 2: k) lie together; a power of two."""
        if self.access is None:
            return 1
        part = self.access.parts[which]
        if part.is_unit:
            return limit
        return math.gcd(part.run, limit)


class _Loaded(Reader):
    """The one load of an operand has this value."""

    def __init__(self, frame: Frame, ops: Ops, value: ir.Value) -> None:
        super().__init__(frame, ops, {})
        self.value = value

    def leaf(self, e: Expr) -> ir.Value | None:
        return self.value if e.op == "load" else None


def pack(source: Source, panels: ir.Value, width: int, count: Int, depth: Int, stride: Int) -> None:
    """Packs x entries 0..count-1 and k entries 0..depth-1 of the source's current block.

    Panel p begins `stride` elements after panel p-1; count > 0.
    """
    code = source.frame.code
    element = storage_type(source.acc)
    whole = code.mul(code.div(count, width), width)

    def panel_at(x: Int) -> ir.Value:
        return code.at(panels, code.mul(code.div(x, width), stride), element)

    pieces = _copied_pieces(source, width)
    block = _block_along_k(source, width, depth)
    if pieces or takes_single_elements(source, width):
        # A few rows of k at a time, so that each is read in one long run over the panels.
        with code.loop(0, depth, _ROWS) as k:
            stop = code.min(code.add(k, _ROWS), depth)
            with code.loop(0, whole, width) as x:
                if pieces:
                    _copy(source, panel_at(x), x, width, k, stop, pieces)
                else:
                    _gather(source, panel_at(x), x, width, k, stop)
    else:
        with code.loop(0, whole, width) as x:
            if block > 1:
                _transpose(source, panel_at(x), x, width, depth, block)
            else:
                _evaluate(source, panel_at(x), x, width, depth)
    rest = code.sub(count, whole)
    if isinstance(rest, int) and rest == 0:
        return
    with code.b.if_then(code.less(0, rest)):
        edge_panel(source, panel_at(whole), whole, rest, width, depth)


def edge_panel(source: Source, panel: ir.Value, x: Int, rest: Int, width: int, depth: Int) -> None:
    """A panel with `rest` of `width` entries, from x on; the others are 0, or the last of them: not
    what memory held, since arithmetic of numbers below the normal range can be slow."""
    code = source.frame.code
    block = _block_along_k(source, width, depth)
    if block > 1 and not _copied_pieces(source, width):
        _clear(source, panel, width, depth)
        rows = min(_EDGE_ROWS, block, 1 << (width.bit_length() - 1))
        with code.loop(0, rest, rows) as first:
            first = code.min(first, width - rows)
            _transpose_rows(source, panel, x, width, depth, block, first, rows, rest)
        return
    if _is_copied_by_masks(source, width):
        _copy_first(source, panel, x, rest, width, depth)
        return
    element = storage_type(source.acc)
    zero = ir.Constant(element, None)
    with code.loop(0, depth) as k:
        row = code.at(panel, code.mul(k, width), element)
        with code.loop(0, rest) as i:
            code.store(source.element_at(code.add(x, i), k), row, i, element)
        with code.loop(rest, width) as i:
            code.store(zero, row, i, element)


def _is_copied_by_masks(source: Source, width: int) -> bool:
    """Whether the first entries of rows are read as vectors that are not whole."""
    if source.access is None or not source.access.parts[1].is_unit or source.max_vector < 2:
        return False
    sizes = [source.access.array.dtype.itemsize, source.acc.itemsize]
    return masks_pay(source.ops.target, sizes)


def _copy_first(source: Source, panel: ir.Value, x: Int, rest: Int, width: int, depth: Int) -> None:
    """`rest` neighbours along x, and zeros, for each k."""
    code, element, vector = source.frame.code, storage_type(source.acc), source.max_vector
    zero = ir.Constant(vector_of(element, vector), None)
    pieces = []
    for start in range(0, width, vector):
        mask = first_lanes(code.b, code.value(code.sub(rest, start)), vector)
        within = code.min(start, code.sub(rest, 1))  # where all are left out too
        pieces.append((start, mask, source.x.at(code.add(x, within))))
    with code.loop(0, depth) as k:
        k_offset = source.k.at(k)
        row = code.mul(k, width)
        for start, mask, offset in pieces:
            value = source.read(code.add(offset, k_offset), vector, mask)
            value = code.b.select(mask, value, zero)
            at, room = code.value(code.add(row, start)), width - start
            stored = first_lanes(code.b, code.value(room), vector) if room < vector else None
            Lanes(panel, element, at, vector, 1, stored).store(code.b, value, element)


def _clear(source: Source, panel: ir.Value, width: int, depth: Int) -> None:
    """Makes a panel zero."""
    code, element = source.frame.code, storage_type(source.acc)
    pieces = in_powers(width, source.max_vector)
    starts = [sum(pieces[:k]) for k in range(len(pieces))]
    with code.loop(0, depth) as k:
        row = code.at(panel, code.mul(k, width), element)
        for start, piece in zip(starts, pieces, strict=True):
            code.store(ir.Constant(vector_of(element, piece), None), row, start, element)


def _copied_pieces(source: Source, width: int) -> list[int]:
    """How a row of a panel is copied as vectors along x; empty where it cannot be."""
    if source.access is None:
        return []
    if source.access.parts[1].is_unit:
        return in_powers(width, source.max_vector)
    along = math.gcd(source.vector_along(1, source.max_vector), width)
    return [along] * (width // along) if along > 1 else []


def takes_single_elements(source: Source, width: int) -> bool:
    """Whether neighbours in memory are neighbours along neither x nor k."""
    along_none = _block_along_k(source, width) == 1 and not _copied_pieces(source, width)
    return source.access is not None and along_none


def _block_along_k(source: Source, width: int, depth: Int | None = None) -> int:
    """How many neighbours along k are transposed together: as many as a vector holds, where panels
    are multiples of vectors and `depth` may be as much; 1 where they do not lie together."""
    block = max(1, _BLOCK_BYTES // size_of(storage_type(source.acc)))
    vector = source.max_vector
    if width % vector == 0 and not (isinstance(depth, int) and depth < vector):
        block = max(block, vector)
    return source.vector_along(2, block)


def _evaluate(source: Source, panel: ir.Value, x: Int, width: int, depth: Int) -> None:
    """Element by element."""
    code, element = source.frame.code, storage_type(source.acc)
    with code.loop(0, depth) as k:
        row = code.at(panel, code.mul(k, width), element)
        with code.loop(0, width) as i:
            code.store(source.element_at(code.add(x, i), k), row, i, element)


def _gather(source: Source, panel: ir.Value, x: Int, width: int, k_start: Int, k_stop: Int) -> None:
    """Loads of single elements."""
    code, element = source.frame.code, storage_type(source.acc)
    positions = source.x
    if positions.table is None and isinstance(positions.stride, int):
        # one address, from which all others are a fixed distance away
        start, distances = positions.at(x), [positions.stride * i for i in range(width)]
        places: list[tuple[Int, int]] = [(start, d) for d in distances]
    else:
        places = [(positions.at(code.add(x, i)), 0) for i in range(width)]
    with code.loop(k_start, k_stop) as k:
        k_offset = source.k.at(k)
        row = code.at(panel, code.mul(k, width), element)
        for i, (place, distance) in enumerate(places):
            at = code.add(code.add(place, k_offset), distance)
            code.store(source.read(at), row, i, element)


def in_powers(width: int, largest: int) -> list[int]:
    """width as a sum of powers of two, none over `largest`, falling."""
    out = []
    while width:
        piece = min(largest, 1 << (width.bit_length() - 1))
        out.append(piece)
        width -= piece
    return out


def _copy(
    source: Source,
    panel: ir.Value,
    x: Int,
    width: int,
    k_start: Int,
    k_stop: Int,
    pieces: list[int],
) -> None:
    """Vectors along x, for each k."""
    code, element = source.frame.code, storage_type(source.acc)
    starts = [sum(pieces[:k]) for k in range(len(pieces))]
    offsets = [source.x.at(code.add(x, s)) for s in starts]
    with code.loop(k_start, k_stop) as k:
        k_offset = source.k.at(k)
        row = code.mul(k, width)
        for piece, start, offset in zip(pieces, starts, offsets, strict=True):
            value = source.read(code.add(offset, k_offset), piece)
            code.store(value, panel, code.add(row, start), element)


def _transpose(source: Source, panel: ir.Value, x: Int, width: int, depth: Int, block: int) -> None:
    """Blocks of up to `block` entries of x by `block` neighbours along k, through registers. What
    whole blocks leave goes with some of the last one again."""
    code = source.frame.code
    whole = width - width % block
    if whole:
        with code.loop(0, whole, block) as first:
            _transpose_rows(source, panel, x, width, depth, block, first, block)
        if width > whole:
            _transpose_rows(source, panel, x, width, depth, block, width - block, block)
        return
    done = 0
    for piece in in_powers(width, block):
        _transpose_rows(source, panel, x, width, depth, block, done, piece)
        done += piece


def _transpose_rows(
    source: Source,
    panel: ir.Value,
    x: Int,
    width: int,
    depth: Int,
    block: int,
    first: Int,
    rows: int,
    count: Int | None = None,
) -> None:
    """Entries first .. first + rows - 1 of x, by `block` neighbours along k; of those from `count`
    on, the one before it."""
    code, element = source.frame.code, storage_type(source.acc)
    entries = [code.add(first, r) for r in range(rows)]
    if count is not None:
        entries = [code.min(e, code.sub(count, 1)) for e in entries]
    offsets = [source.x.at(code.add(x, e)) for e in entries]
    whole = code.mul(code.div(depth, block), block)
    line = max(block, 64 // size_of(source.element))
    with code.loop(0, whole, line) as start:
        for o in offsets:  # what the next block of k will read here
            ahead = code.add(code.add(o, source.k.at(start)), depth)
            ahead = code.add(source.batch_offset, ahead)
            address = code.beyond(source.base(), ahead, source.element)
            prefetch(code.b, address, write=False, locality=2)
        with code.loop(start, code.min(whole, code.add(start, line)), block) as k:
            k_offset = source.k.at(k)
            vectors = [source.read(code.add(o, k_offset), block) for o in offsets]
            for j, column in enumerate(code.transpose(vectors)):
                at = code.add(code.mul(code.add(k, j), width), first)
                code.store(column, panel, at, element)
    with code.loop(whole, depth) as k:
        k_offset = source.k.at(k)
        for r, o in enumerate(offsets):
            at = code.add(code.add(code.mul(k, width), first), r)
            code.store(source.read(code.add(o, k_offset)), panel, at, element)
