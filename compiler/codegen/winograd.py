"""Winograd's algorithm for 3x3 convolutions without stride: F(4x4, 3x3), on the micro-kernel.

Owns `generate` for contractions that are marked `winograd` (their record decides, by shapes alone).
A tile of 4 x 4 results takes 36 products a channel instead of 144. Two launches:

    filter  U = G g G^T of each pair of channels, packed, [36][panels][C][mr]
    blocks  for some rows of tiles: V = B^T d B of each channel, packed, [36][panels][C][nr]; the 36
            products U V by the micro-kernel; Y = A^T M A; then the epilogue, row by row of tiles

The matrices are winograd_transforms.py's. A NaN or an infinity spreads over its tile.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.access import Access, separate
from jitgrad.compiler.codegen.blocking import DEPTH, ceildiv, is_constant, named_dims
from jitgrad.compiler.codegen.code import I1, I64, Int, storage_type
from jitgrad.compiler.codegen.emit import Ops
from jitgrad.compiler.codegen.epilogue import Epilogue
from jitgrad.compiler.codegen.frame import Frame, link
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.microkernel import Tile, candidates
from jitgrad.compiler.codegen.outline import Uses
from jitgrad.compiler.codegen.packing import Source, pack
from jitgrad.compiler.codegen.packing_routine import call_packing, form_of
from jitgrad.compiler.codegen.routines import micro_routine, packing_routine, transform_routine
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.codegen.values import Reader, emit
from jitgrad.compiler.codegen.winograd_transforms import (
    FILTER,
    INPUT,
    OUTPUT,
    POINTS,
    SIDE,
    TAPS,
    M,
    Transform,
)
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.math import expand
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.runtime import dtypes

_LINE = 16  # elements of a cache line
_MOST_TILES = 64  # of a block
_TASKS = 8  # blocks that are wanted, so that threads get equal shares
_KEPT_TILES = 512  # up to which the filter's transform takes a share of the time worth keeping it
_FILTER_GRAIN = 64  # pairs of (panel of rows, channel) that a thread transforms at least

F32 = dtypes.float32
_Vectors = tuple[ir.Value, Int, int]
"""Memory, the place of the first vector in it, elements from each to the next."""


def generate(kernel: ContractionKernel, target: Target, keeps: bool = True) -> Generated:
    """Code of a contraction that is marked `winograd`. keeps: whether the filter's transforms may
    stay between calls, where they are constants."""
    return _Generator(kernel, target, keeps).generate()


@dataclass(frozen=True)
class _Blocks:
    """tile: of the micro-kernel; rows: of tiles in a block; parts: blocks of output channels."""

    tile: Tile
    rows: int
    parts: int


def _choose(target: Target, outputs: int, across: int, rows: int) -> _Blocks:
    """The blocks that waste least; `rows` rows of `across` tiles are expected in all."""
    best, least = None, 0.0
    for tile in candidates(target, F32):
        padded = -(-outputs // tile.mr) * tile.mr
        for count in range(1, max(1, min(rows, _MOST_TILES // across)) + 1):
            tiles = count * across
            cols = -(-tiles // tile.nr) * tile.nr
            cost = padded * cols / (outputs * tiles) * (1 + 3 / tiles)
            cost *= 1 + max(0, _TASKS - -(-rows // count)) * 0.02
            if best is None or cost < least:
                best, least = _Blocks(tile, count, 1), cost
    assert best is not None
    panels = -(-outputs // best.tile.mr)
    few = -(-rows // best.rows) < _TASKS // 2 and outputs >= 128
    return _Blocks(best.tile, best.rows, 2 if few and panels > 1 else 1)


class _Generator:
    def __init__(self, kernel: ContractionKernel, target: Target, keeps: bool) -> None:
        self.kernel, self.target, self.ops = kernel, target, Ops(target)
        c, array = kernel.contraction, kernel.array
        first = array.ndim
        (self.row,), (self.image, self.height, self.width) = c.m, c.n
        self.depth = tuple(range(first, first + 3))
        self.extents: dict[int, Dim] = dict(enumerate((*array.shape, *c.k)))
        sizes = [self.extents[a] for a in (self.row, self.height, self.width, first)]
        self.O, self.H, self.W, self.C = (_static(d) for d in sizes)
        self.down, self.across = -(-self.H // M), -(-self.W // M)
        self.tile_rows = self.extents[self.image] * self.down
        blocks = _choose(target, self.O, self.across, hint(self.tile_rows))
        self.tile, self.rows, self.parts = blocks.tile, blocks.rows, blocks.parts
        self.lanes = self.tile.width
        self.panels = -(-self.O // self.tile.mr)
        self.part_panels = -(-self.panels // self.parts)
        self.col_panels = -(-(self.rows * self.across) // self.tile.nr)
        self.cols = self.col_panels * self.tile.nr  # tiles of a block, rounded up
        self.element = storage_type(F32)
        module = ir.Module("winograd")
        module.triple = target.triple
        self.uses = Uses(module, target)
        # From a point to the next; a line more than a round number, so that what is written side by
        # side does not meet in one set of a cache.
        self.filter_step = self.panels * self.C * self.tile.mr + _LINE
        self.input_step = self.col_panels * self.C * self.tile.nr + _LINE
        self.product_step = self.col_panels * self.part_panels * self.tile.mr * self.tile.nr + _LINE
        self.side_step = self.cols + _LINE
        self.filters = Array("filters", (POINTS * self.filter_step,), F32)
        tiles = hint(self.tile_rows) * self.across
        keeps &= is_constant(c.a, (self.O, self.C)) and tiles <= _KEPT_TILES
        self.kept = [self.filters] if keeps else []

    def generate(self) -> Generated:
        names = named_dims(self.kernel)
        filter_frame = Frame(self.uses, "filter", names)
        self._filter(filter_frame)
        blocks_frame = Frame(self.uses, "blocks", names)
        self._blocks(blocks_frame)
        total = ceildiv(self.tile_rows, self.rows) * self.parts
        frames = [
            (filter_frame, "filter", self.panels * self.C, _FILTER_GRAIN),
            (blocks_frame, "blocks", total, 1),
        ]
        workspace = [] if self.kept else [self.filters]
        return link(self.uses, frames, workspace, self.kept)

    # -- launch: filter ------------------------------------------------------------------------
    def _filter(self, frame: Frame) -> None:
        code, mr, lanes = frame.code, self.tile.mr, self.lanes
        groups = ((), (self.row,), self.depth)
        taps = TAPS * TAPS
        capacities = (mr, taps)
        a = self.kernel.contraction.a
        source = Source(frame, a, groups, self.extents, F32, capacities, self.ops)
        source.set_batch({})
        gathered = code.local(self.element, taps * mr + lanes)
        memory = frame.array(self.filters)
        form = form_of(source, mr)
        with code.loop(frame.begin, frame.end) as t:
            panel, channel = code.div(t, self.C), code.rem(t, self.C)
            row = code.mul(panel, mr)
            rows = code.min(mr, code.sub(self.O, row))
            source.set_x(row, rows)
            source.set_k(code.mul(channel, taps), taps)
            if form is not None:
                call_packing(source, self.uses(packing_routine(form, self.target)), gathered,
                             rows, taps, 0)  # fmt: skip
            else:
                with frame.often():
                    pack(source, gathered, mr, rows, taps, 0)
            for start in range(0, mr, lanes):
                used = min(lanes, mr - start)
                to = code.add(code.mul(t, mr), start)
                self._transform(
                    frame, FILTER, (gathered, start, mr), (memory, to, self.filter_step), used
                )

    # -- launch: blocks ------------------------------------------------------------------------
    def _blocks(self, frame: Frame) -> None:
        code, tile = frame.code, self.tile
        micro = self.uses(micro_routine(tile, F32, self.target))
        inputs = frame.scratch(self.element, POINTS * self.input_step)
        products = frame.scratch(self.element, POINTS * self.product_step)
        side = frame.scratch(self.element, POINTS * self.side_step)  # one channel, before and after
        row_of_tiles = frame.scratch(self.element, M * self.W + M * M)
        reader = _Input(self, frame)
        epilogue = Epilogue(
            frame, self.kernel, ((self.image,), (self.row,), (self.height, self.width)),
            self.extents, Tile(1, -(-M * self.W // self.lanes), self.lanes), (1, M * self.W),
            self.ops,
        )  # fmt: skip
        filters = frame.array(self.filters)
        tile_rows = frame.dim(self.tile_rows)
        zero = ir.Constant(ir.VectorType(self.element, self.lanes), None)
        with code.loop(frame.begin, frame.end) as t:
            part, block = code.rem(t, self.parts), code.div(t, self.parts)
            first = code.mul(block, self.rows)
            rows = code.min(self.rows, code.sub(tile_rows, first))
            used = code.ceildiv(code.mul(rows, self.across), tile.nr)
            with frame.often(), code.loop(0, POINTS * self.side_step, self.lanes) as i:
                code.store(zero, side, i, self.element)
            reader.set_rows(first, rows)
            with frame.often(), code.loop(0, self.C) as channel:
                reader.gather(channel, side, rows)
                self._transform_input(frame, side, inputs, channel, used)
            panel = code.mul(part, self.part_panels)
            panels = code.min(self.part_panels, code.sub(self.panels, panel))
            self._multiply(frame, micro, filters, inputs, products, panel, panels, used)
            row = code.mul(panel, tile.mr)
            count = code.min(code.mul(panels, tile.mr), code.sub(self.O, row))
            with frame.often(), code.loop(0, count) as i:
                self._transform_output(frame, products, side, i, used)
                with code.loop(0, rows) as r:
                    image, down = self._place(frame, code.add(first, r))
                    self._untile(frame, side, row_of_tiles, code.mul(r, self.across))
                    y = code.mul(down, M)
                    cols = code.mul(code.min(M, code.sub(self.H, y)), self.W)
                    axes = {self.image: image}
                    epilogue.set_block(axes, code.add(row, i), 1, code.mul(y, self.W), cols)
                    epilogue.emit(row_of_tiles, 0, 1, 0, cols)

    def _place(self, frame: Frame, tile_row: Int) -> tuple[Int, Int]:
        """The image, and the row of tiles in it."""
        return frame.code.div(tile_row, self.down), frame.code.rem(tile_row, self.down)

    def _transform_input(
        self, frame: Frame, side: ir.Value, inputs: ir.Value, channel: Int, used: Int
    ) -> None:
        """V of one channel, from [36][cols] to the panels."""
        code, nr = frame.code, self.tile.nr
        with code.loop(0, used) as j, code.loop(0, nr, self.lanes) as lane:
            at = code.add(code.mul(j, nr), lane)
            to = code.add(code.mul(code.add(code.mul(j, self.C), channel), nr), lane)
            self._transform(frame, INPUT, (side, at, self.side_step), (inputs, to, self.input_step))

    def _multiply(
        self, frame: Frame, micro: ir.Function, filters: ir.Value, inputs: ir.Value,
        products: ir.Value, panel: Int, panels: Int, used: Int,
    ) -> None:  # fmt: skip
        """The 36 products, [36][column panels][row panels][mr][nr]."""
        code, mr, nr = frame.code, self.tile.mr, self.tile.nr
        # Of the next panel of filters each of the column panels asks for a share.
        pace = code.value(code.div(code.add(code.sub(used, 1), mr * F32.itemsize), used))
        with code.loop(0, POINTS) as point, code.loop(0, panels) as i, code.loop(0, used) as j:
            u = code.mul(code.add(panel, i), self.C * mr)
            u = code.add(u, code.mul(point, self.filter_step))
            v = code.add(code.mul(j, self.C * nr), code.mul(point, self.input_step))
            to = code.mul(code.add(code.mul(j, self.part_panels), i), mr * nr)
            to = code.add(to, code.mul(point, self.product_step))
            following = code.beyond(filters, code.add(u, self.C * mr), self.element)
            next_point = code.add(code.mul(panel, self.C * mr), self.filter_step)
            next_point = code.add(next_point, code.mul(point, self.filter_step))
            ends_here = code.equal(code.add(i, 1), panels)
            following = code.b.select(
                ends_here, code.beyond(filters, next_point, self.element), following
            )
            for start in range(0, self.C, DEPTH):
                depth = min(DEPTH, self.C - start)
                share = code.mul(code.mul(pace, depth), j)
                place = code.beyond(following, code.add(share, start * mr * F32.itemsize))
                arguments = [
                    code.value(depth),
                    code.at(filters, code.add(u, start * mr), self.element),
                    code.at(inputs, code.add(v, start * nr), self.element),
                    code.value(nr),
                    code.at(products, to, self.element),
                    ir.Constant(I1, int(start == 0)),
                    place,
                    pace,
                ]
                code.b.call(micro, arguments)

    def _transform_output(
        self, frame: Frame, products: ir.Value, side: ir.Value, row: Int, used: Int
    ) -> None:
        """Y of one output channel, [16][cols]."""
        code, mr, nr = frame.code, self.tile.mr, self.tile.nr
        panel, within = code.div(row, mr), code.rem(row, mr)
        with code.loop(0, used) as j, code.loop(0, nr, self.lanes) as lane:
            at = code.mul(code.add(code.mul(j, self.part_panels), panel), mr)
            at = code.add(code.mul(code.add(at, within), nr), lane)
            to = code.add(code.mul(j, nr), lane)
            self._transform(
                frame, OUTPUT, (products, at, self.product_step), (side, to, self.side_step)
            )

    def _untile(self, frame: Frame, side: ir.Value, out: ir.Value, first: Int) -> None:
        """A row of tiles of Y, from `first` on, as M rows of W results. A tile that is not whole
        runs over into what comes later, which is written later."""
        code = frame.code
        with code.loop(0, M) as a:
            row = code.mul(a, self.W)

            def chunk(start: Int, row: Int = row, a: Int = a) -> None:
                columns = []
                for b in range(M):
                    at = code.mul(code.add(code.mul(a, M), b), self.side_step)
                    at = code.add(code.add(at, first), start)
                    columns.append(code.load(side, at, self.element, M))
                for k, v in enumerate(code.transpose(columns)):
                    at = code.add(row, code.mul(code.add(start, k), M))
                    code.store(v, out, at, self.element)

            def single(tile: int, row: Int = row, a: Int = a) -> None:
                for b in range(M):
                    at = code.mul(code.add(code.mul(a, M), b), self.side_step)
                    v = code.load(side, code.add(code.add(at, first), tile), self.element)
                    code.store(v, out, code.add(row, tile * M + b), self.element)

            self._over_tiles(frame, chunk, single)

    def _over_tiles(
        self, frame: Frame, chunk: Callable[[Int], None], single: Callable[[int], None]
    ) -> None:
        """chunk(first) for each M tiles of a row; the last ones may be among them twice."""
        if self.across < M:
            for tile in range(self.across):
                single(tile)
            return
        with frame.code.loop(0, self.across // M * M, M) as start:
            chunk(start)
        if self.across % M:
            chunk(self.across - M)

    def _transform(
        self, frame: Frame, which: Transform, source: _Vectors, to: _Vectors, used: int = 0
    ) -> None:
        """Transforms vectors of which the first `used` lanes count (0: all)."""
        code = frame.code
        routine = transform_routine(which, self.lanes, used or self.lanes, self.target)
        arguments = []
        for base, start, step in (source, to):
            arguments += [code.at(base, start, self.element), code.value(step)]
        code.b.call(self.uses(routine), arguments)


class _Input:
    """Reads the tiles of one channel. The operand is whole tiles large: nothing is outside."""

    def __init__(self, own: _Generator, frame: Frame) -> None:
        self.own, self.frame = own, frame
        self.expr = expand(own.kernel.contraction.b)
        self.starts = frame.scratch(I64, own.rows)
        self.first: Int = 0
        access = None
        channel, kh, kw = own.depth
        if self.expr.op == "load" and self.expr.dtype is F32:
            axes = (own.image, channel, own.height, own.width, kh, kw)
            access = separate(self.expr.attr, self.expr.args, [(a,) for a in axes], own.extents)
            if access is not None and not (access.parts[3].is_unit and access.parts[5].is_unit):
                access = None
        self.access: Access | None = access

    def set_rows(self, first: Int, rows: Int) -> None:
        """The rows of tiles of the block."""
        self.first = first
        if self.access is None:
            return
        own, frame, code = self.own, self.frame, self.frame.code
        image_part, _, height_part = self.access.parts[:3]
        with frame.often(), code.loop(0, rows) as r:
            image, down = own._place(frame, code.add(first, r))
            at = frame.index(image_part.expr, {own.image: image})
            at = code.add(at, frame.index(height_part.expr, {own.height: code.mul(down, M)}))
            code.store(code.value(at), self.starts, r, I64)

    def gather(self, channel: Int, side: ir.Value, rows: Int) -> None:
        """Entry (i, j) of all tiles of the block's rows, for each i, j: [36][cols]."""
        own, code = self.own, self.frame.code
        with code.loop(0, rows) as r, code.loop(0, SIDE) as i:
            to = code.add(code.mul(i, SIDE * own.side_step), code.mul(r, own.across))
            if self.access is None:
                self._elements(channel, side, r, i, to)
            else:
                self._vectors(self.access, channel, side, r, i, to)

    def _elements(self, channel: Int, side: ir.Value, r: Int, i: Int, to: Int) -> None:
        own, frame, code = self.own, self.frame, self.frame.code
        image, down = own._place(frame, code.add(self.first, r))
        with code.loop(0, own.across) as tile, code.loop(0, SIDE) as j:
            c, kh, kw = own.depth
            axes: dict[int, Int] = {
                own.image: image, c: channel, own.height: code.mul(down, M), kh: i,
                own.width: code.mul(tile, M), kw: j,
            }  # fmt: skip
            (value,) = emit([self.expr], Reader(frame, own.ops, axes))
            at = code.add(code.add(to, code.mul(j, own.side_step)), tile)
            code.store(value, side, at, own.element)

    def _vectors(
        self, access: Access, channel: Int, side: ir.Value, r: Int, i: Int, to: Int
    ) -> None:
        own, frame, code = self.own, self.frame, self.frame.code
        parts = access.parts
        c, kh, kw = own.depth
        at = code.add(code.load(self.starts, r, I64), frame.index(parts[1].expr, {c: channel}))
        at = code.add(at, frame.index(parts[3].expr, {own.width: 0}))
        at = code.add(at, frame.index(parts[4].expr, {kh: i}))
        at = code.add(at, frame.index(parts[5].expr, {kw: 0}))
        row = code.at(frame.array(access.array), at, own.element)

        def put(value: ir.Value, j: int, tile: Int) -> None:
            code.store(value, side, code.add(code.add(to, j * own.side_step), tile), own.element)

        def chunk(start: Int) -> None:
            starts = [code.mul(code.add(start, k), M) for k in range(M + 1)]
            found = [code.load(row, s, own.element, M) for s in starts[:M]]
            rest = SIDE - M
            last = code.load(row, starts[M], own.element, rest)  # no more is sure to be there
            found.append(code.shuffle(last, last, [*range(rest), *range(rest)]))
            for j, v in enumerate(code.transpose(found[:M])):
                put(v, j, start)
            for j, v in enumerate(code.transpose(found[1:])[:rest]):
                put(v, M + j, start)

        def single(tile: int) -> None:
            for j in range(SIDE):
                put(code.load(row, tile * M + j, own.element), j, tile)

        own._over_tiles(frame, chunk, single)


def _static(d: Dim) -> int:
    assert isinstance(d, int)
    return d
