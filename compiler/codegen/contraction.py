"""The contraction engine: matmul, batched matmul, einsum, convolution and its gradients.

Owns `generate` and the loops around the micro-kernel; sizes are `blocking.py`'s, reading operands
`packing.py`'s, the inner loop `microkernel.py`'s, results `epilogue.py`'s. Up to three launches:

    pack    the panels of B, into a workspace (only where several row blocks share them), or of A
            (where it is small, and blocks of columns would each pack it); of a side that is made of
            constants, into memory that stays between calls
    blocks  for each (batch, split, row block, column block): for each block of k, pack A (and B),
            then run the micro-kernel over the tiles; after the last block of k, the epilogue, tile
            after tile, or row after row of a strip of them (Plan.strip)
    reduce  (only where K is split) sums the splits' tiles in order, then the epilogue

Design: Van Zee and van de Geijn, "BLIS", ACM TOMS 41(3), 2015; Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen import winograd
from jitgrad.compiler.codegen.blocking import ceildiv, named_dims, plan_blocks
from jitgrad.compiler.codegen.code import Code, Int, storage_type
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.epilogue import Epilogue
from jitgrad.compiler.codegen.frame import Frame, link
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.microkernel import LINE, UNROLL
from jitgrad.compiler.codegen.outline import Uses
from jitgrad.compiler.codegen.packing import Source, edge_panel, pack
from jitgrad.compiler.codegen.packing_groups import pack_groups
from jitgrad.compiler.codegen.packing_routine import call_packing, form_of
from jitgrad.compiler.codegen.packing_tiles import pack_tiles
from jitgrad.compiler.codegen.routines import (
    columns_routine,
    micro_routine,
    packing_routine,
    rows_routine,
    signs_routine,
)
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.tile_unit import tile_unit
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.symbolic import Dim, hint

_PACK_GRAIN = 1 << 15  # elements of B that a thread packs at least
_REDUCE_GRAIN = 1 << 12  # results that a thread sums at least
_GROUP = 8  # the most panels that are packed together
_PACK_TASKS = 4  # that packing is cut into, where it is worth so many


def generate(kernel: ContractionKernel, target: Target, keeps: bool = True) -> Generated:
    """Code of a contraction for a target. keeps: whether what is made of constants may stay between
    calls. Raises InternalError for an expression that it lacks."""
    if kernel.contraction.winograd:
        return winograd.generate(kernel, target, keeps)
    return _Engine(kernel, target, keeps).generate()


class _Engine:
    def __init__(self, kernel: ContractionKernel, target: Target, keeps: bool) -> None:
        self.kernel, self.target = kernel, target
        self.plan = plan_blocks(kernel, target, keeps)
        self.acc = kernel.contraction.acc
        self.element = storage_type(self.acc)
        dot = self.plan.dot
        # A step of the micro-kernel takes so much of k; panels have whole steps.
        self.step = dot.depth if dot is not None else 1
        self.copies = dot.copies if dot is not None else 1
        self.unit = tile_unit(target) if dot is not None and dot.tiles else None
        self.packed = {"a": dot.a, "b": dot.b} if dot is not None else dict.fromkeys("ab", self.acc)
        self.ops = Ops(target)
        self.names = named_dims(kernel)
        module = ir.Module("contraction")
        module.triple = target.triple
        self.uses = Uses(module, target)
        self.split = not (isinstance(self.plan.splits, int) and self.plan.splits == 1)
        p = self.plan
        self.panels: dict[str, Array] = {}  # of the sides that a launch of their own packs
        self.partials: Array | None = None
        for side in "ab":
            if side in p.packed:
                width, extent = self._side(side)
                size = ceildiv(p.K, self.step) * self.step * self.copies * width
                size = p.count * ceildiv(extent, width) * size
                self.panels[side] = Array(f"{side}_panels", (size,), self.packed[side])
        if self.split:
            size = p.tasks * (p.block_rows * p.block_cols)
            self.partials = Array("partials", (size,), self.acc)

    def generate(self) -> Generated:
        p = self.plan
        frames: list[tuple[Frame, str, Dim, int]] = []
        for side in self.panels:
            width, extent = self._side(side)
            frame = self._frame(f"pack_{side}")
            self._pack(frame, side)
            group = self._group(side)
            total = p.count * ceildiv(ceildiv(extent, width), group)
            work = max(1, hint(p.K) * width * group)
            frames.append((frame, f"pack_{side}", total, max(1, _PACK_GRAIN // work)))
        frame = self._frame("blocks")
        self._blocks(frame)
        frames.append((frame, "blocks", p.tasks, p.grain))
        if self.split:
            frame = self._frame("reduce")
            self._reduce(frame)
            grain = max(1, _REDUCE_GRAIN // (p.block_rows * p.block_cols))
            frames.append((frame, "reduce", p.count * p.row_blocks * p.col_blocks, grain))
        kept = [self.panels[side] for side in p.kept]
        workspace = [w for w in (*self.panels.values(), self.partials) if w and w not in kept]
        return link(self.uses, frames, workspace, kept)

    def _side(self, side: str) -> tuple[int, Dim]:
        """The width of a side's panels, and how many rows or columns it has."""
        p = self.plan
        return (p.tile.mr, p.M) if side == "a" else (p.tile.nr, p.N)

    def _group(self, side: str) -> int:
        """How many panels of a side are packed together."""
        width, extent = self._side(side)
        share = -(-hint(extent) // width) // _PACK_TASKS
        least = _PACK_GRAIN // max(1, hint(self.plan.K) * width)
        return max(1, min(_GROUP, max(share, least)))

    def _frame(self, symbol: str) -> Frame:
        return Frame(self.uses, symbol, self.names)

    def _source(self, frame: Frame, side: str, x_capacity: int, k_capacity: int) -> Source:
        p = self.plan
        expr, group = (p.a, p.rows) if side == "a" else (p.b, p.cols)
        dtype = self.packed[side]
        if p.dot is not None and p.dot.parts:
            dtype = self.acc
        elif p.dot is not None:
            expr = expr.args[0]  # as it lies, not converted
        return Source(
            frame, expr, (p.batch, group, p.depth), p.extents, dtype,
            (x_capacity, k_capacity), self.ops,
        )  # fmt: skip

    def _fill(
        self, source: Source, panels: ir.Value, width: int, count: Int, depth: Int, stride: Int,
        side: str,
    ) -> None:  # fmt: skip
        """Packs a block of A or B; by the routine of the operand's form where it has one."""
        dot = self.plan.dot
        flip = side == "a" and dot is not None and dot.flips
        tiles = dot is not None and dot.tiles
        form = form_of(source, width, dot, flip, tiles and side == "a")
        if form is not None:
            routine = self.uses(packing_routine(form, self.target))
            call_packing(source, routine, panels, count, depth, stride)
            return
        with source.frame.often():
            if dot is not None and tiles:
                pack_tiles(source, panels, dot, width, count, depth, stride, side == "a")
            elif dot is not None:
                pack_groups(source, panels, dot, width, count, depth, stride, flip)
            else:
                pack(source, panels, width, count, depth, stride)

    def _padded(self, code: Code, depth: Int) -> Int:
        """What `depth` takes up in a panel: whole steps."""
        return code.mul(code.ceildiv(depth, self.step), self.step * self.copies)

    def _depth(self, frame: Frame) -> tuple[Int, Int, Int]:
        """K, the number of blocks of k (at least 1), and their size."""
        code = frame.code
        K = frame.dim(self.plan.K)
        blocks = code.max(1, code.ceildiv(K, self.plan.deepest))
        size = code.div(code.add(K, code.sub(blocks, 1)), blocks)
        size = code.mul(code.ceildiv(size, self.plan.unit), self.plan.unit)
        return K, blocks, size

    # -- launch: pack --------------------------------------------------------------------------
    def _pack(self, frame: Frame, side: str) -> None:
        """Packs whole panels, [count][panels][K][width]."""
        p, code = self.plan, frame.code
        width, extent = self._side(side)
        group = self._group(side)
        source = self._source(frame, side, group * width, p.deepest)
        memory = frame.array(self.panels[side])
        K, blocks, size = self._depth(frame)
        N = frame.dim(extent)
        panels = code.ceildiv(N, width)
        groups = code.ceildiv(panels, group)
        with code.loop(frame.begin, frame.end) as t:
            number = code.div(t, groups)
            first = code.mul(code.rem(t, groups), group)
            source.set_batch(frame.unflatten(number, p.batch, p.extents))
            col = code.mul(first, width)
            cols = code.min(group * width, code.sub(N, col))
            source.set_x(col, cols)
            stride = code.mul(self._padded(code, K), width)
            at = code.mul(code.add(code.mul(number, panels), first), stride)
            element = storage_type(self.packed[side])
            panel = code.at(memory, at, element)
            with code.loop(0, blocks) as q:
                start = code.min(code.mul(q, size), K)
                depth = code.min(size, code.sub(K, start))
                source.set_k(start, depth)
                at = code.mul(start, self.copies * width)
                place = code.at(panel, at, element)
                self._fill(source, place, width, cols, depth, stride, side)

    # -- launch: blocks ------------------------------------------------------------------------
    def _blocks(self, frame: Frame) -> None:
        p, code, tile = self.plan, frame.code, self.plan.tile
        micro = None
        if p.in_place != "columns":
            micro = self.uses(micro_routine(tile, self.acc, self.target, dot=p.dot, lanes=p.lanes))
        of_a, of_b = (storage_type(self.packed[side]) for side in "ab")
        micro_a = None  # for panels of A that are read where they lie
        if p.direct_a is not None:
            micro_a = self.uses(micro_routine(tile, self.acc, self.target, p.direct_a))
        source_a = None
        if "a" not in self.panels:
            source_a = self._source(frame, "a", p.block_rows, p.depth_cap)
            a_panels = frame.scratch(of_a, p.block_rows * p.depth_cap * self.copies)
        source_b = b_block = None
        if "b" not in self.panels:
            source_b = self._source(frame, "b", p.block_cols, p.depth_cap)
            packed = tile.nr if p.in_place or p.direct_b else p.block_cols  # the last panel, or all
            if p.in_place != "columns":
                b_block = frame.scratch(of_b, packed * p.depth_cap * self.copies)
        signs = column_signs = None  # of products of which A is stored with 128 added
        if p.dot is not None and p.dot.flips:
            signs = self.uses(signs_routine(tile, p.dot, self.target))
            column_signs = frame.scratch(self.element, tile.nr)
        row_kernel = row_sums = None
        if p.in_place == "columns":
            row_kernel = self.uses(columns_routine(tile.width, self.acc, self.target))
        elif p.in_place:
            row_kernel = self.uses(rows_routine(tile.mr, tile.width, self.acc, self.target))
            row_sums = frame.scratch(self.element, max(p.lanes, tile.mr) * p.block_cols)
        epilogue = None if self.split else self._epilogue(frame)
        # Tiles outlive their block of k, or are all made at once; else one is enough.
        one_block = isinstance(p.K, int) and p.deepest >= p.K
        keep = self.split or bool(p.in_place) or not one_block
        wide = epilogue is not None and p.strip > 0 and epilogue.width > 1
        size_of_tile = tile.mr * tile.nr
        tiles = None
        if not self.split:
            count = size_of_tile
            if keep:
                count = p.block_rows * p.block_cols
            elif wide:
                count = p.block_rows * p.strip
            tiles = frame.scratch(self.element, count)
        M, N = frame.dim(p.M), frame.dim(p.N)
        K, blocks, size = self._depth(frame)
        splits = frame.dim(p.splits)
        per_split = code.div(code.add(blocks, code.sub(splits, 1)), splits)
        row_blocks, col_blocks = frame.dim(p.row_blocks), frame.dim(p.col_blocks)

        # Of the next panel of a B in place each row panel asks for a line of each row, one a step.
        asks = p.direct_b and p.far and tile.nv == UNROLL
        if self.unit is not None:
            self.unit.begin(code)
        with code.loop(frame.begin, frame.end) as t:
            col_block = code.rem(t, col_blocks)
            rest = code.div(t, col_blocks)
            row_block, rest = code.rem(rest, row_blocks), code.div(rest, row_blocks)
            split, number = code.rem(rest, splits), code.div(rest, splits)
            row, col = code.mul(row_block, p.block_rows), code.mul(col_block, p.block_cols)
            rows = code.min(p.block_rows, code.sub(M, row))
            cols = code.min(p.block_cols, code.sub(N, col))
            axes = frame.unflatten(number, p.batch, p.extents)
            if source_a is not None:
                source_a.set_batch(axes)
                source_a.set_x(row, rows)
            if source_b is not None:
                source_b.set_batch(axes)
                source_b.set_x(col, cols)
            if epilogue is not None:
                epilogue.set_block(axes, row, rows, col, cols)
            home = tiles
            if self.partials is not None:
                at = code.mul(t, p.block_rows * p.block_cols)
                home = code.at(frame.array(self.partials), at, self.element)
            assert home is not None
            first_block = code.mul(split, per_split)
            last_block = code.sub(
                code.max(
                    code.add(first_block, 1), code.min(blocks, code.add(first_block, per_split))
                ),
                1,
            )
            with code.loop(first_block, code.add(last_block, 1)) as q:
                start = code.min(code.mul(q, size), K)
                depth = code.min(size, code.sub(K, start))
                padded = self._padded(code, depth)
                steps = code.value(code.ceildiv(depth, self.step))
                a_stride = code.mul(padded, tile.mr)
                whole_rows: Int = 0  # that are read where they lie
                if source_a is not None:
                    source_a.set_k(start, depth)
                if source_a is None:
                    a_panels, a_stride = self._ready(frame, "a", number, row, K, start)
                elif micro_a is None:
                    self._fill(source_a, a_panels, tile.mr, rows, depth, a_stride, "a")
                else:
                    whole_rows = code.mul(code.div(rows, tile.mr), tile.mr)
                    self._pack_edge(source_a, a_panels, whole_rows, rows, tile.mr, depth)
                b_stride: Int
                if source_b is not None:
                    source_b.set_k(start, depth)
                    b_stride = code.mul(padded, tile.nr)
                    b_base = source_b.address(0, 0) if b_block is None else b_block
                    if p.direct_b:
                        whole = code.mul(code.div(cols, tile.nr), tile.nr)
                        self._pack_edge(source_b, b_block, whole, cols, tile.nr, depth)
                    elif not p.in_place:
                        self._fill(source_b, b_block, tile.nr, cols, depth, b_stride, "b")
                else:
                    b_base, b_stride = self._ready(frame, "b", number, col, K, start)
                first = code.equal(q, first_block)
                last = code.equal(q, last_block)
                row_panels, col_panels = code.ceildiv(rows, tile.mr), code.ceildiv(cols, tile.nr)
                # Of the next panel of B each of the row panels asks for a share.
                step_bytes = self.step * self.copies * tile.nr * self.packed["b"].itemsize
                pace: Int = 0
                if asks:
                    assert source_b is not None
                    pace = code.mul(source_b.k.stride, self.packed["b"].itemsize)
                if source_b is None:
                    pace = code.value(
                        code.div(code.add(code.sub(row_panels, 1), step_bytes), row_panels)
                    )
                    share = code.mul(pace, steps)
                    width = self.copies * tile.nr
                    ends = code.sub(code.mul(col_panels, b_stride), code.mul(start, width))
                    below = code.mul(padded, tile.nr)
                    next_block = code.at(
                        b_base, code.b.select(last, code.value(ends), code.value(below)), of_b
                    )
                if row_kernel is not None:
                    assert source_b is not None
                    ready = cols
                    if p.in_place == "rows":
                        ready = code.mul(code.div(cols, tile.nr), tile.nr)
                    step = source_b.k.stride if p.in_place == "rows" else source_b.x.stride
                    arguments = [
                        code.value(depth), a_panels, source_b.address(0, 0), code.value(step),
                        home, first, *([row_sums] if row_sums is not None else []),
                        code.value(ready),
                    ]  # fmt: skip
                    code.b.call(row_kernel, arguments)

                def panel(j: Int, slot: Int) -> None:
                    """The products of column panel j, and its results, if they are not wide; slot:
                    which of the panels of tiles it has."""
                    col = code.mul(j, tile.nr)
                    b_panel = code.at(b_base, code.mul(j, b_stride), of_b)
                    b_step: Int = tile.nr
                    if p.direct_b:
                        assert source_b is not None
                        torn = code.less(code.sub(cols, col), tile.nr)
                        b_panel = code.b.select(torn, b_base, source_b.address(col, 0))
                        step = code.value(source_b.k.stride)
                        b_step = code.b.select(torn, code.value(tile.nr), step)
                    last_arguments = []
                    if signs is not None:
                        assert column_signs is not None
                        code.b.call(signs, [steps, b_panel, column_signs])
                        last_arguments = [column_signs]
                    ahead = b_panel
                    if source_b is None:
                        following = code.beyond(b_panel, b_stride, of_b)
                        ends_here = code.equal(code.add(j, 1), col_panels)
                        ahead = code.b.select(ends_here, next_block, following)
                    if asks:
                        assert source_b is not None
                        ends_here = code.equal(code.add(j, 1), col_panels)
                        ahead = code.b.select(
                            ends_here,
                            source_b.address(0, depth),
                            source_b.address(code.add(col, tile.nr), 0),
                        )
                    with code.loop(0, row_panels) as i:
                        place = ahead
                        if source_b is None:
                            place = code.beyond(ahead, code.mul(i, share))
                        elif asks:  # what lies in the line of the element before it is there
                            line = code.add(code.mul(i, LINE), LINE - 1)
                            place = code.beyond(ahead, line)
                        where = code.mul(code.add(code.mul(slot, row_panels), i), size_of_tile)
                        result = code.at(home, where if keep or wide else 0, self.element)
                        rest = [
                            b_panel, code.value(b_step), result, first, place, code.value(pace),
                            *last_arguments,
                        ]  # fmt: skip
                        if p.in_place == "rows":  # the last panel is left, if it is not whole
                            assert source_b is not None
                            left = code.sub(cols, col)
                            with code.b.if_then(code.less(left, tile.nr)):
                                with frame.often():
                                    edge_panel(source_b, b_base, col, left, tile.nr, depth)
                                rest[0] = b_base
                                code.b.call(micro, [code.value(depth), a_panels, *rest])
                        elif micro_a is not None:
                            row = code.mul(i, tile.mr)
                            assert source_a is not None
                            with code.b.if_else(code.less(row, whole_rows)) as (there, packed_one):
                                with there:
                                    a_panel = source_a.address(row, 0)
                                    code.b.call(micro_a, [code.value(depth), a_panel, *rest])
                                with packed_one:
                                    code.b.call(micro, [code.value(depth), a_panels, *rest])
                        elif micro is not None:
                            a_panel = code.at(a_panels, code.mul(i, a_stride), of_a)
                            code.b.call(micro, [steps, a_panel, *rest])
                        if epilogue is not None and not wide:
                            with code.b.if_then(last):
                                self._finish_tile(epilogue, result, i, rows, j, cols)

                strip = p.strip // tile.nr if wide else 1
                with code.loop(0, col_panels, strip) as start:
                    stop = code.min(code.add(start, strip), col_panels)
                    with code.loop(start, stop) as j:
                        panel(j, j if keep else code.sub(j, start))
                    if epilogue is not None and wide:
                        with code.b.if_then(last):
                            panels = home
                            if keep:
                                at = code.mul(start, code.mul(row_panels, size_of_tile))
                                panels = code.at(home, at, self.element)
                            self._finish_strip(epilogue, panels, rows, start, stop, cols)

        if self.unit is not None:
            self.unit.end(code)

    def _finish_strip(
        self, epilogue: Epilogue, tiles: ir.Value, rows: Int, start: Int, stop: Int, cols: Int
    ) -> None:
        """The results of column panels start .. stop - 1, row after row."""
        code, tile = epilogue.frame.code, self.plan.tile
        unknown = epilogue.frame.unknown
        row_panels, rows = unknown(code.ceildiv(rows, tile.mr)), unknown(rows)
        with epilogue.frame.often(), code.loop(0, rows) as row:
            panel, within = code.div(row, tile.mr), code.rem(row, tile.mr)
            with code.loop(start, stop) as j:
                where = code.add(code.mul(code.sub(j, start), row_panels), panel)
                at = code.mul(code.add(code.mul(where, tile.mr), within), tile.nr)
                col = code.mul(j, tile.nr)
                count = code.min(tile.nr, code.sub(cols, col))
                epilogue.emit_row(code.at(tiles, at, self.element), row, col, count)

    def _ready(
        self, frame: Frame, side: str, number: Int, x: Int, K: Int, start: Int
    ) -> tuple[ir.Value, Int]:
        """Where the panel of row or column x, from `start` of k on, lies in the panels of a launch
        of their own, and the distance to the next."""
        code = frame.code
        width, extent = self._side(side)
        stride = code.mul(self._padded(code, K), width)
        panels = code.ceildiv(frame.dim(extent), width)
        panel = code.add(code.mul(number, panels), code.div(x, width))
        at = code.add(code.mul(panel, stride), code.mul(start, self.copies * width))
        element = storage_type(self.packed[side])
        return code.at(frame.array(self.panels[side]), at, element), stride

    @staticmethod
    def _pack_edge(
        source: Source, panel: ir.Value, whole: Int, count: Int, width: int, depth: Int
    ) -> None:
        """The last panel, where it is torn."""
        code = source.frame.code
        rest = code.sub(count, whole)
        with source.frame.often(), code.b.if_then(code.less(0, rest)):
            edge_panel(source, panel, whole, rest, width, depth)

    def _finish_tile(
        self, epilogue: Epilogue, result: ir.Value, i: Int, rows: Int, j: Int, cols: Int
    ) -> None:
        code, tile = epilogue.frame.code, self.plan.tile
        row, col = code.mul(i, tile.mr), code.mul(j, tile.nr)
        p = self.plan
        row_count: Int = code.min(tile.mr, code.sub(rows, row))
        col_count: Int = code.min(tile.nr, code.sub(cols, col))
        if isinstance(p.M, int) and p.M % tile.mr == 0:  # no panel is torn
            row_count = tile.mr
        if isinstance(p.N, int) and p.N % tile.nr == 0:
            col_count = tile.nr
        unknown = epilogue.frame.unknown
        row, row_count, col = unknown(row), unknown(row_count), unknown(col)
        with epilogue.frame.often():
            epilogue.emit(result, row, row_count, col, col_count)

    def _epilogue(self, frame: Frame) -> Epilogue:
        p = self.plan
        return Epilogue(
            frame, self.kernel, (p.batch, p.rows, p.cols), p.extents, p.tile,
            (p.block_rows, p.block_cols), self.ops,
        )  # fmt: skip

    # -- launch: reduce ------------------------------------------------------------------------
    def _reduce(self, frame: Frame) -> None:
        """Sums the splits of each tile in order, then stores it."""
        p, code, tile = self.plan, frame.code, self.plan.tile
        assert self.partials is not None
        epilogue = self._epilogue(frame)
        size = tile.mr * tile.nr
        total = code.local(self.element, size)
        memory = frame.array(self.partials)
        M, N, splits = frame.dim(p.M), frame.dim(p.N), frame.dim(p.splits)
        row_blocks, col_blocks = frame.dim(p.row_blocks), frame.dim(p.col_blocks)
        per_number = code.mul(row_blocks, col_blocks)
        block = p.block_rows * p.block_cols
        with code.loop(frame.begin, frame.end) as t:
            number, within = code.div(t, per_number), code.rem(t, per_number)
            row = code.mul(code.div(within, col_blocks), p.block_rows)
            col = code.mul(code.rem(within, col_blocks), p.block_cols)
            rows = code.min(p.block_rows, code.sub(M, row))
            cols = code.min(p.block_cols, code.sub(N, col))
            axes = frame.unflatten(number, p.batch, p.extents)
            epilogue.set_block(axes, row, rows, col, cols)
            row_panels, col_panels = code.ceildiv(rows, tile.mr), code.ceildiv(cols, tile.nr)
            with frame.often(), code.loop(0, col_panels) as j, code.loop(0, row_panels) as i:
                where = code.mul(code.add(code.mul(j, row_panels), i), size)
                with code.loop(0, size, tile.width) as lane:
                    code.store(ir.Constant(self._vector(), None), total, lane, self.element)
                with code.loop(0, splits) as s:
                    task = code.add(code.mul(number, splits), s)
                    task = code.add(code.mul(task, per_number), within)
                    at = code.add(code.mul(task, block), where)
                    with code.loop(0, size, tile.width) as lane:
                        part = code.load(memory, code.add(at, lane), self.element, tile.width)
                        old = code.load(total, lane, self.element, tile.width)
                        first = code.equal(s, 0)
                        add = code.b.fadd if self.acc.is_floating_point else code.b.add
                        new = code.b.select(first, part, add(old, part))
                        code.store(new, total, lane, self.element)
                self._finish_tile(epilogue, total, i, rows, j, cols)

    def _vector(self) -> ir.Type:
        width = self.plan.tile.width
        return ir.VectorType(self.element, width) if width > 1 else self.element
