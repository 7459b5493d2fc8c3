"""The epilogue of a contraction: from a tile of accumulators to memory.

Owns `Epilogue.emit`: for one tile, rounds the accumulators to the result's dtype, evaluates the
stores' expressions, and stores them. Vectors are used where every store, and every load that
depends on the column, lies contiguous along it; else elements. Columns that do not fill a vector
are the first lanes of one, by masks, where the target has them. Index arithmetic (a causal mask
compares row and column) is done once for a vector where it does not depend on the lane, else lane
by lane.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import llvmlite.ir as ir

from jitgrad.compiler.codegen.access import Access, separate
from jitgrad.compiler.codegen.code import Int, storage_type
from jitgrad.compiler.codegen.convert import cast
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.frame import Frame
from jitgrad.compiler.codegen.memory import Access as Lanes
from jitgrad.compiler.codegen.memory import first_lanes, iota, masks_pay
from jitgrad.compiler.codegen.microkernel import Tile
from jitgrad.compiler.codegen.positions import Positions
from jitgrad.compiler.codegen.values import Reader, emit, from_storage, to_storage
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.compiler.loops import (
    INDEX,
    Expr,
    loads,
    postorder,
)
from jitgrad.compiler.math import expand
from jitgrad.compiler.symbolic import Dim


class Epilogue:
    """The stores of a contraction kernel, for tiles of its (rows, columns).

    groups: the batch, row and column axes. capacities: the most rows and columns of a block.
    """

    def __init__(
        self,
        frame: Frame,
        kernel: ContractionKernel,
        groups: tuple[Sequence[int], Sequence[int], Sequence[int]],
        extents: Mapping[int, Dim],
        tile: Tile,
        capacities: tuple[int, int],
        ops: Ops,
    ) -> None:
        self.ops = ops
        self.frame, self.kernel, self.groups, self.extents = frame, kernel, groups, extents
        self.tile = tile
        self.acc = kernel.contraction.acc
        self.batch_axes: dict[int, Int] = {}
        self.places: list[tuple[Access, Positions, Positions] | None] = []
        self.batch_offsets: list[Int] = []
        roots = [s.value for s in kernel.stores]
        self.values = [expand(e) for e in roots]
        self.loads = [e for e in loads(self.values) if e.attr is not kernel.array]
        wanted = [(s.array, s.index) for s in kernel.stores]
        wanted += [(e.attr, e.args) for e in self.loads]
        for array, index in wanted:
            access = separate(array, index, [tuple(g) for g in groups], extents)
            if access is None:
                self.places.append(None)
                continue
            rows = Positions(frame, access.parts[1], groups[1], extents, capacities[0])
            cols = Positions(frame, access.parts[2], groups[2], extents, capacities[1])
            for positions in (rows, cols):
                if positions.stride not in (0, 1):
                    positions.stride = frame.unknown(positions.stride)
            self.places.append((access, rows, cols))
        self.lane_axis: int | None = None
        self.by_lane: set[Expr] = set()
        self.width = self._vector_width(self.values)
        self.masked = masks_pay(ops.target, [array.dtype.itemsize for array, _ in wanted])

    def _vector_width(self, roots: Sequence[Expr]) -> int:
        """Columns that are evaluated together; 1 where something forbids it."""
        width = self.tile.width
        inside: set[Expr] = set()
        for e in self.loads:
            inside.update(postorder(e.args))
        for place in self.places:
            if place is None:
                return 1
            part = place[0].parts[2]
            if part.is_zero or part.is_unit:
                continue
            width = math.gcd(width, part.run)
        first = self.places[: len(self.kernel.stores)]
        if any(p is not None and p[0].parts[2].is_zero for p in first):
            return 1
        return math.gcd(width, self._index_width(roots))

    def _index_width(self, roots: Sequence[Expr]) -> int:
        """The widest vector of columns that index arithmetic allows; finds `lane_axis`, which
        counts its lanes, and `by_lane`, the index expressions that depend on it."""
        plain = _outside_loads(roots)
        if not any(e.dtype is INDEX for e in plain):
            return self.tile.width
        if any(e.op == "check" for e in plain):
            return 1
        longer = [a for a in self.groups[2] if self.extents[a] != 1]
        self.lane_axis = longer[-1] if longer else None
        self.by_lane = {
            e
            for e in plain
            if e.dtype is INDEX
            and any(x.op == "axis" and x.attr == self.lane_axis for x in postorder([e]))
        }
        if len(longer) < 2:
            return self.tile.width
        extent = self.extents[longer[-1]]
        return extent if isinstance(extent, int) else 1

    # -- per block -----------------------------------------------------------------------------
    def set_block(
        self, batch_axes: dict[int, Int], row: Int, rows: Int, col: Int, cols: Int
    ) -> None:
        """The block of output that the next tiles lie in."""
        unknown = self.frame.unknown
        self.batch_axes = batch_axes
        self.row, self.col = row, col = unknown(row), unknown(col)
        self.batch_offsets = []
        for place in self.places:
            if place is None:
                self.batch_offsets.append(0)
                continue
            access, row_positions, col_positions = place
            self.batch_offsets.append(unknown(self.frame.index(access.parts[0].expr, batch_axes)))
            row_positions.fill(row, rows)
            col_positions.fill(col, cols)

    # -- per tile ------------------------------------------------------------------------------
    def emit(self, tile: ir.Value, row: Int, rows: Int, col: Int, cols: Int) -> None:
        """Stores `rows` by `cols` of a tile that lies at (row, col) of the block."""
        code = self.frame.code
        if self.width == 1:
            self._elements(tile, row, rows, col, cols)
            return
        with code.loop(0, rows) as i:
            self.emit_row(self._row_of(tile, i), code.add(row, i), col, cols)

    def emit_row(self, values: ir.Value, row: Int, col: Int, cols: Int) -> None:
        """Stores `cols` neighbours of a row that lie at (row, col) of the block."""
        code = self.frame.code
        whole = code.mul(code.div(cols, self.width), self.width)
        with code.loop(0, whole, self.width) as j:
            self._at(values, row, col, j, self.width)
        if isinstance(whole, int) and whole == cols:
            return
        if self.masked:
            rest = code.value(code.sub(cols, whole))
            with code.b.if_then(code.less(0, rest)):
                mask = first_lanes(code.b, rest, self.width)
                self._at(values, row, col, whole, self.width, mask)
        else:
            with code.loop(whole, cols) as j:
                self._at(values, row, col, j, 1)

    def _row_of(self, tile: ir.Value, i: Int) -> ir.Value:
        code = self.frame.code
        return code.at(tile, code.mul(i, self.tile.nr), storage_type(self.acc))

    def _elements(self, tile: ir.Value, row: Int, rows: Int, col: Int, cols: Int) -> None:
        code = self.frame.code
        with code.loop(0, rows) as i, code.loop(0, cols) as j:
            self._at(self._row_of(tile, i), code.add(row, i), col, j, 1)

    def _at(
        self, values: ir.Value, block_row: Int, col: Int, j: Int, width: int,
        mask: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """`width` columns from column j of the tile on; of these, those of the mask."""
        code, frame, kernel = self.frame.code, self.frame, self.kernel
        value = code.load(values, j, storage_type(self.acc), width)
        value = self._rounded(value)
        block_col = code.add(col, j)
        reader = _TileReader(self, value, block_row, block_col, width, mask)
        values = emit(self.values, reader, width)
        for n, (store, v) in enumerate(zip(kernel.stores, values, strict=True)):
            stored = to_storage(code, v, store.array.dtype, width)
            offset = self.offset(n, block_row, block_col)
            if offset is None:
                offset = reader.offset(store.array, emit(store.index, reader))
            kind, memory = storage_type(store.array.dtype), frame.array(store.array)
            if mask is None:
                code.store(stored, memory, offset, kind)
            else:
                lanes = Lanes(memory, kind, code.value(offset), width, 1, mask)
                lanes.store(code.b, stored, kind)

    def _rounded(self, value: ir.Value) -> ir.Value:
        """The accumulator in the result's dtype."""
        b, to = self.frame.code.b, self.kernel.array.dtype
        return cast(b, self.ops.target, value, self.acc, to)

    def offset(self, place: int, row: Int, col: Int) -> Int | None:
        found = self.places[place]
        if found is None:
            return None
        code = self.frame.code
        sums = code.add(self.batch_offsets[place], found[1].at(row))
        return code.add(sums, found[2].at(col))


def _outside_loads(roots: Sequence[Expr]) -> list[Expr]:
    """The expressions under roots that are not part of a load's index."""
    seen: dict[Expr, None] = {}
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen[e] = None
            if e.op != "load":
                stack.extend(e.args)
    return list(seen)


class _TileReader(Reader):
    """Leaves of the epilogue at one element, or `width` columns, of a tile."""

    def __init__(
        self, epilogue: Epilogue, value: ir.Value, row: Int, col: Int, width: int,
        mask: ir.Value | None = None,
    ) -> None:  # fmt: skip
        super().__init__(epilogue.frame, epilogue.ops, {})
        self.epilogue, self.value, self.row, self.col = epilogue, value, row, col
        self.width, self.mask = width, mask
        self.known = False

    def leaf(self, e: Expr) -> ir.Value | None:
        ep, code = self.epilogue, self.code
        if e.op == "load":
            if e.attr is ep.kernel.array:
                return self.value
            place = len(ep.kernel.stores) + ep.loads.index(e)
            offset = ep.offset(place, self.row, self.col)
            if offset is None:
                return None
            found = ep.places[place]
            assert found is not None
            broadcast = self.width > 1 and found[0].parts[2].is_zero
            width = 1 if broadcast else self.width
            kind, memory = storage_type(e.dtype), ep.frame.array(e.attr)
            if self.mask is None or broadcast:
                value = code.load(memory, offset, kind, width)
            else:
                lanes = Lanes(memory, kind, code.value(offset), width, 1, self.mask)
                value = lanes.load(code.b, kind)
            value = from_storage(code, value, e.dtype, width)
            return code.splat(value, self.width) if broadcast else value
        if e.op == "axis" and not self.known:
            self._axes()
        if self.width == 1 or e.dtype is not INDEX:
            return super().leaf(e)
        if e not in ep.by_lane:
            one = _TileReader(ep, self.value, self.row, self.col, 1)
            return code.splat(emit([e], one)[0], self.width)
        if e.op == "axis":
            first = code.splat(code.value(self.axes[e.attr]), self.width)
            return code.b.add(first, iota(self.width))
        return None

    def _axes(self) -> None:
        ep, code = self.epilogue, self.code
        self.axes = dict(ep.batch_axes)
        _, rows, cols = ep.groups
        self.axes |= ep.frame.unflatten(code.add(ep.row, self.row), rows, ep.extents)
        self.axes |= ep.frame.unflatten(code.add(ep.col, self.col), cols, ep.extents)
        self.known = True
