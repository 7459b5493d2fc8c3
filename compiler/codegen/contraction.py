"""The contraction engine: matmul, batched matmul, einsum, convolution and its gradients.

Owns `generate` and the loops around the micro-kernel; sizes are `blocking.py`'s, reading operands
`packing.py`'s, the inner loop `microkernel.py`'s, results `epilogue.py`'s. Up to three launches:

    pack    the panels of B, into a workspace (only where several row blocks share them)
    blocks  for each (batch, split, row block, column block): for each block of k, pack A (and B),
            then run the micro-kernel over the tiles; after the last block of k, the epilogue
    reduce  (only where K is split) sums the splits' tiles in order, then the epilogue

Design: Van Zee and van de Geijn, "BLIS", ACM TOMS 41(3), 2015; Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen import winograd
from jitgrad.compiler.codegen.blocking import _ROUND, DEPTH, ceildiv, named_dims, plan_blocks
from jitgrad.compiler.codegen.code import Code, Int, size_of, storage_type
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.epilogue import Epilogue
from jitgrad.compiler.codegen.frame import Frame, link
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.microkernel import prefetch
from jitgrad.compiler.codegen.packing import Source, edge_panel, pack
from jitgrad.compiler.codegen.packing_routine import call_packing, form_of
from jitgrad.compiler.codegen.routines import (
    Uses,
    micro_routine,
    packing_routine,
    row_routine,
)
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import Array, ContractionKernel
from jitgrad.compiler.symbolic import Dim, hint

_PACK_GRAIN = 1 << 15  # elements of B that a thread packs at least
_REDUCE_GRAIN = 1 << 12  # results that a thread sums at least
_GROUP = 8  # panels of B that are packed together


def generate(kernel: ContractionKernel, target: Target) -> Generated:
    """Code of a contraction for a target. Raises InternalError for an expression that it lacks."""
    if kernel.contraction.winograd:
        return winograd.generate(kernel, target)
    return _Engine(kernel, target).generate()


class _Engine:
    def __init__(self, kernel: ContractionKernel, target: Target) -> None:
        self.kernel, self.target = kernel, target
        self.plan = plan_blocks(kernel, target)
        self.acc = kernel.contraction.acc
        self.element = storage_type(self.acc)
        self.ops = Ops(target)
        self.names = named_dims(kernel)
        self.module = ir.Module("contraction")
        self.module.triple = target.triple
        self.uses = Uses(self.module)
        self.split = not (isinstance(self.plan.splits, int) and self.plan.splits == 1)
        p = self.plan
        self.b_panels: Array | None = None
        self.partials: Array | None = None
        if p.share_b:
            panels = ceildiv(p.N, p.tile.nr)
            size = p.count * panels * p.K * p.tile.nr
            self.b_panels = Array("b_panels", (size,), self.acc)
        if self.split:
            size = p.tasks * (p.block_rows * p.block_cols)
            self.partials = Array("partials", (size,), self.acc)

    def generate(self) -> Generated:
        p = self.plan
        frames: list[tuple[Frame, str, Dim, int]] = []
        if self.b_panels is not None:
            frame = self._frame("pack")
            self._pack(frame)
            total = p.count * ceildiv(ceildiv(p.N, p.tile.nr), _GROUP)
            work = max(1, hint(p.K) * p.tile.nr * _GROUP)
            frames.append((frame, "pack", total, max(1, _PACK_GRAIN // work)))
        frame = self._frame("blocks")
        self._blocks(frame)
        frames.append((frame, "blocks", p.tasks, p.grain))
        if self.split:
            frame = self._frame("reduce")
            self._reduce(frame)
            grain = max(1, _REDUCE_GRAIN // (p.block_rows * p.block_cols))
            frames.append((frame, "reduce", p.count * p.row_blocks * p.col_blocks, grain))
        workspace = [w for w in (self.b_panels, self.partials) if w is not None]
        return link(self.module, self.target, frames, workspace, self.uses.codes)

    def _packed(
        self, source: Source, panels: ir.Value, width: int, count: Int, depth: Int, stride: Int
    ) -> None:
        """As `pack`; by the routine of the operand's form where it has one."""
        form = form_of(source, width)
        if form is None:
            pack(source, panels, width, count, depth, stride)
            return
        routine = self.uses(packing_routine(form, self.target))
        call_packing(source, routine, panels, count, depth, stride)

    def _frame(self, symbol: str) -> Frame:
        return Frame(self.module, symbol, self.names)

    def _source(self, frame: Frame, side: str, x_capacity: int, k_capacity: int) -> Source:
        p = self.plan
        expr, group = (p.a, p.rows) if side == "a" else (p.b, p.cols)
        return Source(
            frame, expr, (p.batch, group, p.depth), p.extents, self.acc,
            (x_capacity, k_capacity), self.ops,
        )  # fmt: skip

    def _depth(self, frame: Frame) -> tuple[Int, Int, Int]:
        """K, the number of blocks of k (at least 1), and their size."""
        code = frame.code
        K = frame.dim(self.plan.K)
        blocks = code.max(1, code.ceildiv(K, DEPTH))
        size = code.div(code.add(K, code.sub(blocks, 1)), blocks)
        size = code.mul(code.ceildiv(size, _ROUND), _ROUND)
        return K, blocks, size

    # -- launch: pack --------------------------------------------------------------------------
    def _pack(self, frame: Frame) -> None:
        """Packs whole panels, [count][panels][K][nr]."""
        p, code = self.plan, frame.code
        assert self.b_panels is not None
        source = self._source(frame, "b", _GROUP * p.tile.nr, DEPTH)
        memory = frame.array(self.b_panels)
        K, blocks, size = self._depth(frame)
        N = frame.dim(p.N)
        panels = code.ceildiv(N, p.tile.nr)
        groups = code.ceildiv(panels, _GROUP)
        with code.loop(frame.begin, frame.end) as t:
            number = code.div(t, groups)
            first = code.mul(code.rem(t, groups), _GROUP)
            source.set_batch(frame.unflatten(number, p.batch, p.extents))
            col = code.mul(first, p.tile.nr)
            cols = code.min(_GROUP * p.tile.nr, code.sub(N, col))
            source.set_x(col, cols)
            stride = code.mul(K, p.tile.nr)
            at = code.mul(code.add(code.mul(number, panels), first), stride)
            panel = code.at(memory, at, self.element)
            with code.loop(0, blocks) as q:
                start = code.min(code.mul(q, size), K)
                depth = code.min(size, code.sub(K, start))
                source.set_k(start, depth)
                at = code.mul(start, p.tile.nr)
                here = code.at(panel, at, self.element)
                self._packed(source, here, p.tile.nr, cols, depth, stride)

    # -- launch: blocks ------------------------------------------------------------------------
    def _blocks(self, frame: Frame) -> None:
        p, code, tile = self.plan, frame.code, self.plan.tile
        micro = self.uses(micro_routine(tile, self.acc, self.target))
        source_a = self._source(frame, "a", p.block_rows, p.depth_cap)
        a_panels = frame.scratch(self.element, p.block_rows * p.depth_cap)
        source_b = b_block = None
        if self.b_panels is None:
            source_b = self._source(frame, "b", p.block_cols, p.depth_cap)
            packed = tile.nr if p.direct_b else p.block_cols  # only the last panel, or all
            b_block = frame.scratch(self.element, packed * p.depth_cap)
        row_kernel = row_sums = None
        if p.direct_b:
            row_kernel = self.uses(row_routine(tile.width, self.acc, self.target))
            row_sums = frame.scratch(self.element, p.block_cols)
        epilogue = None if self.split else self._epilogue(frame)
        # Tiles outlive their block of k, or are all made at once; else one is enough.
        keep = self.split or p.direct_b or not (isinstance(p.K, int) and p.K <= DEPTH)
        tiles = None
        if not self.split:
            count = p.block_rows * p.block_cols if keep else tile.mr * tile.nr
            tiles = frame.scratch(self.element, count)
        M, N = frame.dim(p.M), frame.dim(p.N)
        K, blocks, size = self._depth(frame)
        splits = frame.dim(p.splits)
        per_split = code.div(code.add(blocks, code.sub(splits, 1)), splits)
        row_blocks, col_blocks = frame.dim(p.row_blocks), frame.dim(p.col_blocks)

        with code.loop(frame.begin, frame.end) as t:
            col_block = code.rem(t, col_blocks)
            rest = code.div(t, col_blocks)
            row_block, rest = code.rem(rest, row_blocks), code.div(rest, row_blocks)
            split, number = code.rem(rest, splits), code.div(rest, splits)
            row, col = code.mul(row_block, p.block_rows), code.mul(col_block, p.block_cols)
            rows = code.min(p.block_rows, code.sub(M, row))
            cols = code.min(p.block_cols, code.sub(N, col))
            axes = frame.unflatten(number, p.batch, p.extents)
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
                source_a.set_k(start, depth)
                a_stride = code.mul(depth, tile.mr)
                self._packed(source_a, a_panels, tile.mr, rows, depth, a_stride)
                b_stride: Int
                if source_b is not None:
                    assert b_block is not None
                    source_b.set_k(start, depth)
                    b_stride = code.mul(depth, tile.nr)
                    b_base = b_block
                    if not p.direct_b:
                        self._packed(source_b, b_block, tile.nr, cols, depth, b_stride)
                else:
                    assert self.b_panels is not None
                    b_stride = code.mul(K, tile.nr)
                    panels = code.ceildiv(N, tile.nr)
                    panel = code.add(code.mul(number, panels), code.div(col, tile.nr))
                    at = code.add(code.mul(panel, b_stride), code.mul(start, tile.nr))
                    b_base = code.at(frame.array(self.b_panels), at, self.element)
                first = code.equal(q, first_block)
                last = code.equal(q, last_block)
                row_panels = code.ceildiv(rows, tile.mr)
                if row_kernel is not None:
                    assert source_b is not None and row_sums is not None
                    whole = code.mul(code.div(cols, tile.nr), tile.nr)
                    place = code.add(source_b.x.at(0), source_b.k.at(0))
                    place = code.add(source_b.batch_offset, place)
                    code.b.call(
                        row_kernel,
                        [
                            code.value(depth), a_panels,
                            code.at(source_b.base(), place, self.element),
                            code.value(source_b.k.stride), home, first, row_sums,
                            code.value(whole),
                        ],
                    )  # fmt: skip
                with code.loop(0, code.ceildiv(cols, tile.nr)) as j:
                    b_panel = code.at(b_base, code.mul(j, b_stride), self.element)
                    with code.loop(0, row_panels) as i:
                        if source_b is None:
                            self._prefetch_panel(code, b_panel, b_stride, i, row_panels, depth)
                        a_panel = code.at(a_panels, code.mul(i, a_stride), self.element)
                        where = code.mul(code.add(code.mul(j, row_panels), i), tile.mr * tile.nr)
                        result = code.at(home, where if keep else 0, self.element)
                        arguments = [
                            code.value(depth), a_panel, b_panel, code.value(tile.nr), result, first
                        ]  # fmt: skip
                        if row_kernel is None:
                            code.b.call(micro, arguments)
                        else:  # only the last panel is left, if it is not whole
                            assert source_b is not None
                            x = code.mul(j, tile.nr)
                            rest = code.sub(cols, x)
                            with code.b.if_then(code.less(rest, tile.nr)):
                                edge_panel(source_b, b_base, x, rest, tile.nr, depth)
                                arguments[2] = b_base
                                code.b.call(micro, arguments)
                        if epilogue is not None:
                            with code.b.if_then(last):
                                self._finish_tile(epilogue, result, i, rows, j, cols)

    def _prefetch_panel(
        self, code: Code, panel: ir.Value, stride: Int, i: Int, count: Int, depth: Int
    ) -> None:
        """The i-th of `count` shares of the next panel of B, from memory or L3 into L2."""
        nbytes = size_of(self.element)
        total = code.mul(depth, self.plan.tile.nr * nbytes)
        share = code.mul(code.ceildiv(code.div(total, count), 64), 64)
        start = code.mul(i, share)
        following = code.beyond(panel, code.mul(stride, nbytes))
        with code.loop(start, code.min(total, code.add(start, share)), 64) as line:
            prefetch(code, code.beyond(following, line), write=False, locality=2)

    def _finish_tile(
        self, epilogue: Epilogue, result: ir.Value, i: Int, rows: Int, j: Int, cols: Int
    ) -> None:
        code, tile = epilogue.frame.code, self.plan.tile
        row, col = code.mul(i, tile.mr), code.mul(j, tile.nr)
        epilogue.emit(
            result,
            row, code.min(tile.mr, code.sub(rows, row)),
            col, code.min(tile.nr, code.sub(cols, col)),
        )  # fmt: skip

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
            row_panels = code.ceildiv(rows, tile.mr)
            with code.loop(0, code.ceildiv(cols, tile.nr)) as j, code.loop(0, row_panels) as i:
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
