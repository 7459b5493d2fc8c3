"""Loop nests of a LoopKernel: which loop is vectorised, and the loops themselves.

Two shapes of code. *Outer*: lanes run along the last outer axis, and every stage is done for all
lanes at once (elementwise kernels; reductions over leading axes). *Inner*: one outer point at a
time, lanes run along the last axis of each stage (row reductions, softmax). Both do a stretch
[begin, end) of the flattened outer space, row by row, in wide steps and then a tail (masked where
the target has masks, else one by one). Bits do not depend on the choice: see `accumulate.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler import kernels, loops
from jitgrad.compiler.codegen.accumulate import COLUMN_BLOCK, LANE_BLOCK, Accumulator
from jitgrad.compiler.codegen.ahead import Ahead
from jitgrad.compiler.codegen.code import I64, i64
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.memory import broadcast, iota
from jitgrad.compiler.codegen.program import Program, RowPart, Step
from jitgrad.compiler.codegen.schedule import Space, coefficient, walk
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.codegen.short_rows import emit_short_rows, rows_at_once
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import Array, axis
from jitgrad.compiler.symbolic import Dim, Sym, hint

_HEAVY = 12  # a body of more ops than this is computed in narrower steps
_HEAVY_WIDE = 40  # where there are 32 vector registers


def emit(program: Program, fn: Function) -> None:
    """Emits the whole kernel into `fn`."""
    nest = Nest(program, fn)
    if nest.inner_mode():
        at_once = rows_at_once(nest)
        if at_once:
            emit_short_rows(nest, at_once)
        else:
            nest.emit_inner()
    else:
        nest.emit_outer()


@dataclass
class _Rows:
    """A stage's loop space: `rows` points of the leading axes, `count` of the last."""

    lead: Space
    last: int | None
    rows: ir.Value
    count: ir.Value
    static_rows: int | None
    static_count: int | None


def _static(d: Dim) -> int | None:
    return None if isinstance(d, Sym) else d


class Nest:
    """The loops of one kernel function; special kernels override `outer_steps`."""

    def __init__(self, program: Program, fn: Function) -> None:
        self.program, self.fn = program, fn
        self.width = program.lanes(fn.target)
        self.buffers = program.buffers

    # -- choice --------------------------------------------------------------------------------
    def inner_mode(self) -> bool:
        if self.program.unit:
            return True
        steps = [s for s in self.program.steps if s.space.axes]
        if not steps:
            return False
        reduces = [r for s in steps for r in s.reduces]
        if any(r.order.startswith("columns") for r in reduces):
            return False
        outer = self.program.outer
        if self.program.block_axis is not None:
            return True
        if not outer.axes or hint(outer.extents[-1]) < self.width:
            return True
        score = 0
        s = Simplifier({})
        for step in steps:
            inside, outside = axis(step.space.axes[-1]), axis(outer.axes[-1])
            for load in loops.loads(step.roots()):
                if load.attr in self.fn.operands.number:
                    poly = s.poly(load.args[0])
                    if all(coefficient(poly, axis(k)) == {} for k in step.space.axes):
                        continue  # one element for all of the inner space
                    score += walk(coefficient(poly, inside)) - walk(coefficient(poly, outside))
        if score < 0:
            return False
        most = max(hint(s.space.total) for s in steps)
        return most > self.width or (score > 0 and rows_at_once(self) > 0)

    # -- small parts ---------------------------------------------------------------------------
    def dim(self, d: Dim) -> ir.Value:
        return i64(d) if isinstance(d, int) else self.fn.top.value(loops.dim(d))

    def unflatten(self, scope: Scope, flat: ir.Value, space: Space) -> None:
        """Binds the axes of a space to the point number `flat` in row-major order."""
        for k in range(len(space.axes) - 1, -1, -1):
            if k == 0:
                scope.bind(space.axes[0], flat)
                return
            size = self.dim(space.extents[k])
            b = scope.at_end()
            scope.bind(space.axes[k], b.urem(flat, size))
            flat = b.udiv(flat, size)

    def sweep(
        self,
        scope: Scope,
        v: int,
        start: ir.Value,
        stop: ir.Value,
        wide: int,
        body: Callable[[Scope, ir.Value], None],
        exact: bool = False,
        aligned: int = 1,
    ) -> None:
        """body(scope, first point) along axis v in [start, stop): wide steps, then the tail.

        exact: the length is known to be a multiple of `wide`. aligned: `start` is one of this.
        """
        slot = scope.counter(start)
        if wide > 1:
            with scope.loop_from(slot, stop, wide, whole=True) as (inner, i):
                inner.bind_lanes(v, i, wide, math.gcd(aligned, wide))
                body(inner, i)
            if exact:
                return
        masked = self.program.masks_pay(self.fn.target)
        narrow = self.width if masked and not 1 < wide < self.width else 1
        with scope.loop_from(slot, stop, narrow) as (inner, i):
            inner.bind_lanes(v, i, narrow, math.gcd(aligned, wide, narrow))
            if narrow > 1:
                b = inner.at_end()
                left = broadcast(b, b.sub(stop, i), narrow)
                inner.mask = b.icmp_signed("<", iota(narrow), left)
            body(inner, i)

    def stores(self, scope: Scope, step: Step) -> None:
        """All values of a step's stores, then the stores."""
        values = []
        for s in step.stores:
            varies = scope.width > 1 and (scope.varies(s.offset) or s.array in scope.varying)
            values.append(scope.vector(s.value) if varies else scope.value(s.value))
        for s, value in zip(step.stores, values, strict=True):
            scope.store(s.array, s.offset, value)

    def rows(self, step: Step) -> _Rows:
        space = step.space
        if not space.axes:
            return _Rows(Space([], []), None, i64(1), i64(1), 1, 1)
        lead = Space(space.axes[:-1], space.extents[:-1])
        last = space.extents[-1]
        return _Rows(
            lead, space.axes[-1], self.dim(lead.total), self.dim(last),
            _static(lead.total), _static(last),
        )  # fmt: skip

    def bind_buffers(self, scope: Scope, lanes: int) -> None:
        for array, pointer in self.buffers.items():
            scope.bind_buffer(array, self.buffer_pointer(array, pointer, lanes))

    def buffer_pointer(self, array: Array, numel: int, lanes: int) -> ir.Value:
        key = (array, 0)
        found = self._buffer_memory.get(key)
        if found is None:
            most = self._most_lanes
            nbytes = numel * array.dtype.itemsize * most
            found = self._buffer_memory[key] = self.fn.scratch(nbytes)
        return found

    # -- outer: lanes along the last outer axis --------------------------------------------------
    def emit_outer(self) -> None:
        program, fn, top = self.program, self.fn, self.fn.top
        self._buffer_memory: dict[tuple[Array, int], ir.Value] = {}
        outer = program.outer
        size = program.cost()
        unroll = 4 if size <= 16 else 2 if size <= 240 else 1
        if any(s.space.axes for s in program.steps):
            unroll = 4 if size <= 60 else 2
        together = program.aligned  # what is done once for so many fills a vector
        unroll = together if together in (3, 5, 7) else max(unroll, together)
        wide = 1 if program.scalar else self.width * unroll
        self._most_lanes = wide if outer.axes else 1
        if not outer.axes:
            self.bind_buffers(top, 1)
            self.outer_steps(top)
            return
        v = outer.axes[-1]

        def body(scope: Scope, i: ir.Value) -> None:
            self.bind_buffers(scope, scope.width)
            self.outer_steps(scope)

        whole, wide = wide, self._within(wide, outer.extents[-1])
        if len(outer.axes) == 1:
            self.sweep(top, v, fn.begin, fn.end, wide, body, aligned=program.aligned)
            return
        lead = Space(outer.axes[:-1], outer.extents[:-1])
        length = self.dim(outer.extents[-1])
        position = top.counter(fn.begin)
        with top.loop_from(position, fn.end, None) as (row, at):
            b = row.at_end()
            number = b.udiv(at, length)
            start = b.sub(at, b.mul(number, length))
            room = b.add(start, b.sub(fn.end, at))
            stop = b.select(b.icmp_signed("<", room, length), room, length)
            self.unflatten(row, number, lead)
            if program.row_parts:
                self.row_parts(row, v, start, stop, whole)
            else:
                self.sweep(row, v, start, stop, wide, body, aligned=program.aligned)
            b = row.at_end()
            b.store(b.add(at, b.sub(stop, start)), position)

    def _within(self, wide: int, length: Dim) -> int:
        """The steps of `wide` points that a row of this length can take."""
        if not isinstance(length, int) or length >= wide:
            return wide
        if length in (2, 4, 8) and length < self.width:  # a row is one step
            return length
        return self.width if length >= self.width else 1

    def row_parts(self, row: Scope, v: int, start: ir.Value, stop: ir.Value, wide: int) -> None:
        """The points [start, stop) of a row, part after part."""
        for part in self.program.row_parts:
            low, length = i64(part.start), part.stop - part.start
            b = row.at_end()
            begin, end = b.sub(start, low), b.sub(stop, low)
            begin = b.select(b.icmp_signed("<", begin, i64(0)), i64(0), begin)
            end = b.select(b.icmp_signed("<", end, i64(length)), end, i64(length))

            def body(scope: Scope, i: ir.Value, part: RowPart = part) -> None:
                for step in part.steps:
                    self.stores(scope.child(), step)

            self.sweep(row.child(), v, begin, end, self._within(wide, length), body)

    def outer_steps(self, scope: Scope) -> None:
        for step in self.program.steps:
            columns = [r for r in step.reduces if r.order.startswith("columns")]
            lanes = [r for r in step.reduces if not r.order.startswith("columns")]
            if not step.reduces and not step.space.axes:
                child = scope.child()
                self.stores(child, step)
                continue
            # What is stored may take the memory of what is read: stores are in the last loop.
            if columns or not step.reduces:
                self.outer_columns(scope, step, columns, not lanes)
            if lanes:
                self.outer_lanes(scope, step, lanes, bool(step.stores))

    def outer_columns(
        self, scope: Scope, step: Step, reduces: Sequence[kernels.Reduce], stores: bool
    ) -> None:
        """The points of a stage one after the other; sums in blocks of blocks."""
        width = scope.width
        accs = [Accumulator.of(r, step.space.total) for r in reduces]
        total = self.dim(step.space.total)
        static = _static(step.space.total)
        limit = self.program.column_limit

        def state(values: Sequence[Accumulator]) -> list[list[ir.Value]]:
            slots = []
            for a in values:
                mine = []
                for part in a.start(width):
                    slot = self.fn.slot(part.type)
                    mine.append(slot)
                slots.append(mine)
            return slots

        def reset(s: Scope, slots: list[list[ir.Value]]) -> None:
            b = s.at_end()
            for a, mine in zip(accs, slots, strict=True):
                for part, slot in zip(a.start(width), mine, strict=True):
                    b.store(part, slot)

        def read(s: Scope, a: Accumulator, mine: list[ir.Value]) -> list[ir.Value]:
            b = s.at_end()
            return [
                b.load(slot, typ=part.type) for part, slot in zip(a.start(width), mine, strict=True)
            ]

        def add(s: Scope, slots: list[list[ir.Value]], news: list[list[ir.Value]]) -> None:
            for a, mine, new in zip(accs, slots, news, strict=True):
                old = read(s, a, mine)
                for slot, part in zip(mine, a.append(self.fn.ops, old, new), strict=True):
                    s.at_end().store(part, slot)

        def run(s: Scope, into: list[list[ir.Value]], start: ir.Value, stop: ir.Value) -> None:
            with s.loop(start, stop, 1) as (inner, m):
                self.unflatten(inner, m, step.space)
                pairs = zip(accs, reduces, strict=True)
                add(inner, into, [a.element(inner, inner.vector(r.value), m) for a, r in pairs])
                if stores:
                    self.stores(inner, step)

        first = state(accs)
        if static == 0:
            reset(scope, first)
        elif self.program.block_axis is not None:
            reset(scope, first)
            b = scope.at_end()
            start = b.mul(scope.axes[self.program.block_axis], i64(COLUMN_BLOCK))
            end = b.add(start, i64(COLUMN_BLOCK))
            run(scope, first, start, b.select(b.icmp_signed("<", end, total), end, total))
        elif not reduces or (static is not None and static <= COLUMN_BLOCK):
            reset(scope, first)
            run(scope, first, i64(0), total)
        else:
            second, third = state(accs), state(accs)
            for slots in (first, second, third):
                reset(scope, slots)
            block = i64(COLUMN_BLOCK)
            with scope.loop(i64(0), total, COLUMN_BLOCK) as (outer, start):
                b = outer.at_end()
                end = b.add(start, block)
                end = b.select(b.icmp_signed("<", end, total), end, total)
                reset(outer, first)
                run(outer, first, start, end)
                add(outer, second, [read(outer, a, m) for a, m in zip(accs, first, strict=True)])
                if limit > 2:
                    b = outer.at_end()
                    done = b.add(start, block)
                    every = b.and_(done, i64(COLUMN_BLOCK * COLUMN_BLOCK - 1))
                    with outer.when(b.icmp_unsigned("==", every, i64(0))) as full:
                        groups = [read(full, a, m) for a, m in zip(accs, second, strict=True)]
                        add(full, third, groups)
                        reset(full, second)
            if limit > 2:
                add(scope, third, [read(scope, a, m) for a, m in zip(accs, second, strict=True)])
                first = third
            else:
                first = second
        for a, r, mine in zip(accs, reduces, first, strict=True):
            self.finish(scope, r, read(scope, a, mine), a)

    def finish(
        self, scope: Scope, r: kernels.Reduce, state: list[ir.Value], a: Accumulator
    ) -> None:
        scope.at_end()
        scope.bind_local(r.array, a.result(self.fn.ops, state))

    def outer_lanes(
        self, scope: Scope, step: Step, reduces: Sequence[kernels.Reduce], stores: bool
    ) -> None:
        """The lanes order with one virtual lane after the other: lanes lie in memory."""
        width = scope.width
        accs = [Accumulator.of(r, step.space.total) for r in reduces]
        rows = self.rows(step)
        arrays = [a.array(self.fn, a.lanes, width) for a in accs]

        def element(s: Scope, r: ir.Value, e: ir.Value) -> None:
            self.unflatten(s, r, rows.lead)
            if rows.last is not None:
                s.bind(rows.last, e)
            for a, reduce, array in zip(accs, reduces, arrays, strict=True):
                value = s.vector(reduce.value)
                b = s.at_end()
                new = a.element(s, value, b.add(b.mul(r, rows.count), e))
                lane = s.at_end().and_(e, i64(a.lanes - 1))
                a.add_to(s, array, lane, width, new)
            if stores:
                self.stores(s, step)

        def block(s: Scope, r0: ir.Value, r1: ir.Value, e0: ir.Value, e1: ir.Value) -> None:
            for a, array in zip(accs, arrays, strict=True):
                a.clear(s, array, a.lanes, width)
            with s.loop(r0, r1, 1) as (row, r), row.loop(e0, e1, 1) as (inner, e):
                element(inner, r, e)

        def trees(s: Scope) -> list[list[ir.Value]]:
            return [a.tree(s, array, a.lanes, width) for a, array in zip(accs, arrays, strict=True)]

        self.lane_blocks(scope, rows, reduces, accs, block, trees)

    def lane_blocks(
        self,
        scope: Scope,
        rows: _Rows,
        reduces: Sequence[kernels.Reduce],
        accs: Sequence[Accumulator],
        block: Callable[[Scope, ir.Value, ir.Value, ir.Value, ir.Value], None],
        trees: Callable[[Scope], list[list[ir.Value]]],
    ) -> None:
        """Blocks of the lanes order, and the lanes that take their results."""
        width = scope.width
        size, static_rows, count = LANE_BLOCK, rows.static_rows, rows.static_count
        whole = self.program.flat_lanes
        single = whole or (
            count is not None and static_rows is not None and count * static_rows <= size
        )
        if self.program.block_axis is not None:
            bounds = self.block_bounds(scope, rows, scope.axes[self.program.block_axis])
            block(scope, *bounds)
            for r, a, state in zip(reduces, accs, trees(scope), strict=True):
                self.finish(scope, r, state, a)
            return
        if single:
            block(scope, i64(0), rows.rows, i64(0), rows.count)
            for r, a, state in zip(reduces, accs, trees(scope), strict=True):
                self.finish(scope, r, state, a)
            return
        second = [a.array(self.fn, a.lanes, width) for a in accs]
        for a, array in zip(accs, second, strict=True):
            if width == 1:
                a.clear(scope, array, a.lanes)
            else:
                a.clear(scope, array, a.lanes, width)
        with scope.loop(i64(0), self.block_count(scope, rows), 1) as (inner, k):
            block(inner, *self.block_bounds(inner, rows, k))
            for a, array, state in zip(accs, second, trees(inner), strict=True):
                b = inner.at_end()
                a.add_to(inner, array, b.and_(k, i64(a.lanes - 1)), width, state)
        for r, a, array in zip(reduces, accs, second, strict=True):
            self.finish(scope, r, a.tree(scope, array, a.lanes, width), a)

    def block_count(self, scope: Scope, rows: _Rows) -> ir.Value:
        per_row, rows_each = self._block_shape(scope, rows)
        b = scope.at_end()
        groups = b.udiv(b.add(rows.rows, b.sub(rows_each, i64(1))), rows_each)
        return b.mul(groups, per_row)

    def _block_shape(self, scope: Scope, rows: _Rows) -> tuple[ir.Value, ir.Value]:
        """Blocks of one row; rows of one block (one of them is 1)."""
        if rows.static_count is not None:
            n = rows.static_count
            return i64(max(1, -(-n // LANE_BLOCK))), i64(max(1, LANE_BLOCK // max(n, 1)))
        b = scope.at_end()
        n, size, one = rows.count, i64(LANE_BLOCK), i64(1)
        n = b.select(b.icmp_signed("<", n, one), one, n)
        per_row = b.udiv(b.add(n, i64(LANE_BLOCK - 1)), size)
        each = b.udiv(size, n)
        return per_row, b.select(b.icmp_signed("<", each, one), one, each)

    def block_bounds(
        self, scope: Scope, rows: _Rows, k: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        """Rows [r0, r1) and elements [e0, e1) of block k."""
        per_row, rows_each = self._block_shape(scope, rows)
        b = scope.at_end()
        group = b.udiv(k, per_row)
        part = b.sub(k, b.mul(group, per_row))
        r0 = b.mul(group, rows_each)
        r1 = b.add(r0, rows_each)
        r1 = b.select(b.icmp_signed("<", r1, rows.rows), r1, rows.rows)
        e0 = b.mul(part, i64(LANE_BLOCK))
        e1 = b.add(e0, i64(LANE_BLOCK))
        e1 = b.select(b.icmp_signed("<", e1, rows.count), e1, rows.count)
        return r0, r1, e0, e1

    # -- inner: lanes along the last axis of each stage -------------------------------------------
    def emit_inner(self) -> None:
        fn, top = self.fn, self.fn.top
        self._buffer_memory = {}
        self._most_lanes = 1
        self.bind_buffers(top, 1)
        self._ahead = Ahead.of(self.program, fn)
        with top.loop(fn.begin, fn.end, 1) as (point, r):
            self.unflatten(point, r, self.program.outer)
            for step in self.program.steps:
                child = point.child()
                if not step.space.axes and not step.reduces:
                    self.stores(child, step)
                elif not step.reduces:
                    self.inner_map(child, step)
                else:
                    self.inner_lanes(child, step)
                for reduce in step.reduces:
                    point.bind_local(reduce.array, child.locals[reduce.array])

    def ask_ahead(self, scope: Scope, step: Step, i: ir.Value) -> None:
        """Asks for memory beside elements from i on, where this pass over a row is to do so."""
        if self._ahead is not None and scope.mask is None:
            self._ahead.ask(scope, step, i)

    def _wide(self, step: Step) -> int:
        size = step.cost()
        return self.width * (4 if size <= 16 else 2 if size <= 60 else 1)

    def inner_map(self, scope: Scope, step: Step) -> None:
        rows = self.rows(step)
        assert rows.last is not None
        wide = self._wide(step)
        if rows.static_count is not None:
            while wide > self.width and wide > rows.static_count:
                wide //= 2
            if wide > rows.static_count:
                wide = 1
        exact = rows.static_count is not None and rows.static_count % max(wide, 1) == 0

        def body(s: Scope, i: ir.Value) -> None:
            self.ask_ahead(s, step, i)
            self.stores(s, step)

        with scope.loop(i64(0), rows.rows, 1) as (row, r):
            self.unflatten(row, r, rows.lead)
            self.sweep(row, rows.last, i64(0), rows.count, wide, body, exact and wide > 1)

    def inner_lanes(self, scope: Scope, step: Step) -> None:
        """The lanes order with as many virtual lanes at once as the body is light."""
        rows = self.rows(step)
        accs = [Accumulator.of(r, step.space.total) for r in step.reduces]
        counts = []
        for a in accs:
            n = a.lanes
            if rows.static_count is not None:
                while n > 1 and n // 2 >= rows.static_count:
                    n //= 2
            counts.append(n)
        fn = self.fn
        arrays = [a.array(fn, a.lanes) for a in accs]
        least = min(counts)
        width = min(self.width, least)
        heavy = _HEAVY_WIDE if fn.target.vector_bytes == 64 else _HEAVY
        light = step.cost() <= heavy and len(set(counts)) == 1 and not any(a.is_arg for a in accs)
        wide = least if light else min(least, width * (2 if step.cost() <= 60 else 1))
        if rows.static_count is not None and wide > rows.static_count:
            wide = 1 if rows.static_count < width else width
            light = False
        last = rows.last
        if last is None:
            last = -1
        exact = rows.static_count is not None and rows.static_count % wide == 0 and wide > 1
        in_registers = light and wide == least and wide > 1
        whole_rows = in_registers and exact  # lanes stay in registers from row to row
        registers = [
            [fn.slot(part.type) for part in a.start(wide)] if in_registers else None for a in accs
        ]

        def fill(s: Scope) -> None:
            """Lanes from memory to registers."""
            for a, array, slots in zip(accs, arrays, registers, strict=True):
                assert slots is not None
                s.at_end()
                for slot, part in zip(slots, a.get(fn.ops, array, i64(0), 1, wide), strict=True):
                    s.at_end().store(part, slot)

        def spill(s: Scope) -> None:
            """Lanes from registers to memory."""
            for a, array, slots in zip(accs, arrays, registers, strict=True):
                assert slots is not None
                b = s.at_end()
                kinds = [part.type for part in a.start(wide)]
                state = [b.load(x, typ=k) for x, k in zip(slots, kinds, strict=True)]
                a.put(fn.ops, array, i64(0), 1, state)

        def values(s: Scope, i: ir.Value, row: ir.Value) -> list[list[ir.Value]]:
            news = []
            self.ask_ahead(s, step, i)
            for a, reduce in zip(accs, step.reduces, strict=True):
                value = s.vector(reduce.value)
                b = s.at_end()
                new = a.element(s, value, b.add(b.mul(row, rows.count), i), 1)
                news.append(a.masked(s, new, s.mask))
            self.stores(s, step)
            return news

        def line(s: Scope, row: ir.Value, e0: ir.Value, e1: ir.Value) -> None:
            """One row: e0 is a multiple of every number of lanes."""
            self.unflatten(s, row, rows.lead)

            def memory(inner: Scope, i: ir.Value) -> None:
                for a, array, new, n in zip(
                    accs, arrays, values(inner, i, row), counts, strict=True
                ):
                    lane = inner.at_end().and_(i, i64(n - 1))
                    a.add_to(inner, array, lane, 1, new)

            if not in_registers:
                self.sweep(s, last, e0, e1, wide, memory, exact)
                return

            def step_wide(inner: Scope, i: ir.Value) -> None:
                inner.bind_lanes(last, i, wide)
                for a, slots, new in zip(accs, registers, values(inner, i, row), strict=True):
                    assert slots is not None
                    b = inner.at_end()
                    old = [b.load(x, typ=p.type) for x, p in zip(slots, new, strict=True)]
                    for slot, part in zip(slots, a.append(fn.ops, old, new), strict=True):
                        b.store(part, slot)

            if whole_rows and rows.static_count == wide:  # a row is one step
                step_wide(s.child(), i64(0))
                return
            if not whole_rows:
                fill(s)
            position = s.counter(e0)
            with s.loop_from(position, e1, wide, whole=True) as (inner, i):
                step_wide(inner, i)
            if not whole_rows:
                spill(s)
            if not exact:
                start = s.at_end().load(position, typ=I64)
                self.sweep(s, last, start, e1, 1, memory)

        def block(s: Scope, r0: ir.Value, r1: ir.Value, e0: ir.Value, e1: ir.Value) -> None:
            for a, array, n in zip(accs, arrays, counts, strict=True):
                a.clear(s, array, n)
            if whole_rows:
                fill(s)
            with s.loop(r0, r1, 1) as (row, r):
                line(row, r, e0, e1)
            if whole_rows:
                spill(s)

        def trees(s: Scope) -> list[list[ir.Value]]:
            return [a.tree(s, x, n) for a, x, n in zip(accs, arrays, counts, strict=True)]

        self.lane_blocks(scope, rows, step.reduces, accs, block, trees)
