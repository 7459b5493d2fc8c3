"""Sort kernels: rows in parallel, each in workspace arrays; stable.

Long rows are sorted by digits of 8 bits, the lowest first: keys become unsigned words in whose
order the sort is (NaN above all, one zero), each packed with its place in the row where both fit
into 64 bits. A digit that all keys share costs no pass. Where only the first elements are wanted,
those whose highest digit is beyond the last wanted one's are left out before, and where they are
few, all but about as many. Short rows are
merged.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.assemble import Part, assemble
from jitgrad.compiler.codegen.code import I32, I64, PTR, i64, vector_of
from jitgrad.compiler.codegen.emit import to_memory, width_of
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.memory import broadcast
from jitgrad.compiler.codegen.nest import Nest
from jitgrad.compiler.codegen.program import FlatStore, Program, bare_program
from jitgrad.compiler.codegen.schedule import Space, offset_of
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import (
    Array,
    Sort,
    axis,
)
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_MERGED = 32  # elements of the longest row that is merged
_DIGITS = 256  # values of a digit
_GROUPS = 256  # that a row is dealt out to, where
_FEW = 64  # elements of it are wanted, or less


def generate_sort(arrays: list[Array], target: Target) -> Generated:
    """Code for the two results of a Sort, or for one of them."""
    by_part = {}
    for a in arrays:
        assert isinstance(a.define, Sort)
        by_part[a.define.part] = a
    shape = arrays[0].shape
    sort = arrays[0].define
    assert isinstance(sort, Sort)
    dtype, along = sort.body.dtype, sort.along
    values = by_part.get(0) or Array("values", shape, dtype)
    indices = by_part.get(1) or Array("indices", shape, dtypes.int64)
    merged = isinstance(sort.extent, int) and sort.extent <= _MERGED
    packed = not merged and dtype.itemsize <= 4
    # Workspace rows lie along the sorted axis.
    order = [k for k in range(len(shape)) if k != along]
    wshape = (*(shape[k] for k in order), sort.extent)
    key = dtype if merged else dtypes.int64
    kinds = [] if merged else [dtype]
    kinds += [key, key] if packed else [key, dtypes.int64] * 2
    work = [Array(f"work{n}", wshape, kind) for n, kind in enumerate(kinds)]
    number = axis(along).cast(dtypes.int64)
    index = tuple(axis(k) for k in range(len(shape)))
    windex = tuple(axis(k) for k in (*order, along))
    stores = [(a, offset_of(a, index), number) for a in (values, indices)]
    stores += [(w, offset_of(w, windex), sort.body if k == 0 else number)
               for k, w in enumerate(work)]  # fmt: skip
    outer = Space(order, [shape[k] for k in order])
    extents = dict(enumerate(shape)) | {along: sort.extent}
    program = bare_program(outer, extents, stores, [*shape, sort.extent])
    program.scalar = True
    nest = _ByMerging if merged else _ByDigits
    n = max(2, hint(sort.extent))
    part = Part(
        program,
        lambda p, fn: nest(p, fn, sort, shape[along]).emit_outer(),
        4.0 * n * (n.bit_length() if merged else 1 + dtype.itemsize),
    )
    spare = [a for part_number, a in ((0, values), (1, indices)) if part_number not in by_part]
    return assemble([part], target, [*work, *spare])


class _ByDigits(Nest):
    """stores: values, indices, a copy of the row, then the words (and numbers) twice.

    A word is (key << 32 | number), or a key of 64 bits beside its number.
    """

    def __init__(self, program: Program, fn: Function, sort: Sort, count: Dim) -> None:
        super().__init__(program, fn)
        self.sort, self.count = sort, count
        self.values, self.indices, self.row, *work = program.steps[0].stores
        self.dtype: DType = self.row.value.dtype
        self.passes = self.dtype.itemsize
        self.packed = len(work) == 2
        self.work = [work[:1], work[1:]] if self.packed else [work[:2], work[2:]]
        self.partial = count != sort.extent
        self.lanes = max(4, self.fn.target.vector_bytes // 4)

    def outer_steps(self, scope: Scope) -> None:
        n = self.dim(self.sort.extent)
        bytes_ = [[self._start(scope, w) for w in side] for side in self.work]
        source, target = ([self.fn.slot(PTR) for _ in side] for side in self.work)
        for slots, addresses in ((source, bytes_[0]), (target, bytes_[1])):
            for slot, address in zip(slots, addresses, strict=True):
                scope.at_end().store(address, slot)
        counts = self.fn.slot(I64, self.passes * _DIGITS)
        self._clear(scope, counts)
        left = scope.counter(n)
        if self.packed and self.partial and isinstance(self.count, int) and self.count <= _FEW:
            self._fill_with_least(scope, n, source, target, counts, left)
        else:
            self._fill(scope, n, source, counts)
            if self.partial:
                self._leave_out(scope, n, source, target, counts, left)
        m = scope.at_end().load(left, typ=I64)
        with scope.when(scope.at_end().icmp_signed(">", m, i64(1))) as some:
            for d in range(self.passes):
                self._pass(some, d, m, source, target, counts)
        self._results(scope, source)

    def _start(self, scope: Scope, store: FlatStore) -> ir.Value:
        """The address of a workspace row's first element."""
        first = scope.child()
        first.bind(self.sort.along, i64(0))
        return first.access(store.array, store.offset, first).pointer(first.at_end())

    # -- words ---------------------------------------------------------------------------------
    def _key(self, scope: Scope, x: ir.Value) -> ir.Value:
        """The unsigned number, of x's size, that is in the place of x in the order."""
        dtype, ops, width = self.dtype, self.fn.ops, width_of(x)
        b = scope.at_end()
        word = ir.IntType(8 * dtype.itemsize)

        def number(k: int) -> ir.Value:
            return broadcast(b, ir.Constant(word, k), width)

        high = number(1 << (word.width - 1))
        bits = to_memory(b, x, dtype)
        if dtype.is_floating_point:
            zero = ops.compare("eq", dtype, [x, ir.Constant(x.type, None)])
            nan = ops.compare("ne", dtype, [x, x])
            if bits.type != vector_of(word, width):
                bits = b.bitcast(bits, vector_of(word, width))
            sign = b.ashr(bits, number(word.width - 1))
            bits = b.xor(bits, b.or_(sign, high))
            bits = b.select(nan, number(-1), b.select(zero, high, bits))
        elif dtype.signed and dtype is not dtypes.bool_:
            bits = b.xor(bits, high)
        return b.xor(bits, number(-1)) if self.sort.descending else bits

    def _digit(self, b: ir.IRBuilder, word: ir.Value, d: int) -> ir.Value:
        shift = 8 * d + (32 if self.packed else 0)
        return b.and_(b.lshr(word, i64(shift)), i64(_DIGITS - 1))

    def _cell(
        self, b: ir.IRBuilder, counts: ir.Value, d: int, digit: ir.Value | None = None
    ) -> ir.Value:
        """Where the elements with this value of digit d are counted."""
        at = i64(d * _DIGITS) if digit is None else b.add(digit, i64(d * _DIGITS))
        return b.gep(counts, [at], source_etype=I64)

    def _count(self, b: ir.IRBuilder, counts: ir.Value, word: ir.Value, digits: range) -> None:
        for d in digits:
            cell = self._cell(b, counts, d, self._digit(b, word, d))
            b.store(b.add(b.load(cell, typ=I64), i64(1)), cell)

    def _clear(self, scope: Scope, counts: ir.Value) -> None:
        wide = ir.VectorType(I64, 8)
        with scope.loop(i64(0), i64(self.passes * _DIGITS), 8) as (inner, k):
            b = inner.at_end()
            b.store(ir.Constant(wide, None), b.gep(counts, [k], source_etype=I64), align=64)

    # -- steps ---------------------------------------------------------------------------------
    def _fill(self, scope: Scope, n: ir.Value, source: list[ir.Value], counts: ir.Value) -> None:
        """Makes the words of the row, and counts their digits (where some go, the highest)."""
        digits = range(self.passes - 1 if self.partial else 0, self.passes)
        with scope.loop(i64(0), n, 1) as (fill, e):
            fill.bind(self.sort.along, e)
            x = fill.value(self.row.value)
            fill.store(self.row.array, self.row.offset, x)
            word = self._key(fill, x)
            b = fill.at_end()
            word = b.zext(word, I64) if word.type != I64 else word
            if self.packed:
                word = b.or_(b.shl(word, i64(32)), e)
            self._put(b, source, e, [word] if self.packed else [word, e])
            self._count(b, counts, word, digits)

    def _fill_with_least(
        self, scope: Scope, n: ir.Value, source: list[ir.Value], target: list[ir.Value],
        counts: ir.Value, left: ir.Value,
    ) -> None:  # fmt: skip
        """Makes the words of the elements that may be among the first few, and counts their digits.

        The row is dealt out to groups; where as many groups as elements are wanted have an element
        at or before a bound, nothing beyond the bound is wanted.
        """
        groups, width = self.fn.slot(I32, _GROUPS), self.lanes
        wide = ir.VectorType(I32, width)
        with scope.loop(i64(0), i64(_GROUPS), width) as (inner, g):
            b = inner.at_end()
            b.store(broadcast(b, ir.Constant(I32, -1), width), self._at(b, groups, g), align=4)
        keys = scope.at_end().load(target[0], typ=PTR)

        def key(s: Scope, e: ir.Value) -> None:
            x = s.vector(self.row.value)
            s.store(self.row.array, self.row.offset, x)
            word = self._key(s, x)
            b = s.at_end()
            kind = vector_of(I32, s.width)
            word = b.zext(word, kind) if word.type != kind else word
            b.store(word, self._at(b, keys, e), align=4)
            cell = self._at(b, groups, b.and_(e, i64(_GROUPS - 1)))
            least = b.load(cell, typ=kind, align=4)
            b.store(b.select(b.icmp_unsigned("<", word, least), word, least), cell, align=4)

        self._by_vectors(scope, n, key)
        bound = self._bound(scope, groups)
        scope.at_end().store(i64(0), left)

        def keep(s: Scope, e: ir.Value) -> None:
            b = s.at_end()
            word = b.load(self._at(b, keys, e), typ=I32, align=4)
            with s.when(b.icmp_unsigned("<=", word, bound)) as taken:
                b = taken.at_end()
                packed = b.or_(b.shl(b.zext(word, I64), i64(32)), e)
                at = b.load(left, typ=I64)
                self._put(b, source, at, [packed])
                self._count(b, counts, packed, range(self.passes))
                b.store(b.add(at, i64(1)), left)

        def look(s: Scope, e: ir.Value) -> None:
            if s.width == 1:
                keep(s, e)
                return
            b = s.at_end()
            words = b.load(self._at(b, keys, e), typ=wide, align=4)
            near = b.icmp_unsigned("<=", words, broadcast(b, bound, width))
            bits = b.bitcast(near, ir.IntType(width))
            with s.when(b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))) as some:
                end = some.at_end().add(e, i64(width))
                with some.loop(e, end, 1) as (one, k):
                    keep(one, k)

        self._by_vectors(scope, n, look)

    def _by_vectors(
        self, scope: Scope, n: ir.Value, body: Callable[[Scope, ir.Value], None]
    ) -> None:
        """body(scope, first element) for vectors of the row, then for single elements."""
        position = scope.counter(i64(0))
        for width in (self.lanes, 1):
            with scope.loop_from(position, n, width, whole=True) as (inner, e):
                inner.bind_lanes(self.sort.along, e, width)
                body(inner, e)

    def _bound(self, scope: Scope, groups: ir.Value) -> ir.Value:
        """The least number that as many groups are at or below as elements are wanted."""
        width, bound = self.lanes, self.fn.slot(I32)
        scope.at_end().store(ir.Constant(I32, 0), bound)
        bit, total = self.fn.slot(I32), self.fn.slot(I64)
        scope.at_end().store(ir.Constant(I32, 1 << 31), bit)
        with scope.loop(i64(0), i64(32), 1) as (step, _):
            b = step.at_end()
            low, power = b.load(bound, typ=I32), b.load(bit, typ=I32)
            tried = b.add(low, b.sub(power, ir.Constant(I32, 1)))
            b.store(i64(0), total)
            with step.loop(i64(0), i64(_GROUPS), width) as (inner, g):
                b = inner.at_end()
                least = b.load(self._at(b, groups, g), typ=ir.VectorType(I32, width), align=4)
                below = b.icmp_unsigned("<=", least, broadcast(b, tried, width))
                count = b.ctpop(b.bitcast(below, ir.IntType(width)))
                b.store(b.add(b.load(total, typ=I64), b.zext(count, I64)), total)
            b = step.at_end()
            enough = b.icmp_signed(">=", b.load(total, typ=I64), self.dim(self.count))
            b.store(b.select(enough, low, b.add(low, power)), bound)
            b.store(b.lshr(power, ir.Constant(I32, 1)), bit)
        return scope.at_end().load(bound, typ=I32)

    def _at(self, b: ir.IRBuilder, base: ir.Value, k: ir.Value) -> ir.Value:
        """The address of word k, of 32 bits."""
        return b.gep(base, [k], source_etype=I32)

    def _leave_out(
        self, scope: Scope, n: ir.Value, source: list[ir.Value], target: list[ir.Value],
        counts: ir.Value, left: ir.Value,
    ) -> None:  # fmt: skip
        """Keeps the words whose highest digit is at most that of the last element wanted."""
        top, wanted = self.passes - 1, self.dim(self.count)
        before, limit = scope.counter(i64(0)), scope.counter(i64(-1))
        with scope.loop(i64(0), i64(_DIGITS), 1) as (inner, t):
            b = inner.at_end()
            sum_ = b.load(before, typ=I64)
            needed = b.icmp_signed("<", sum_, wanted)
            b.store(b.select(needed, t, b.load(limit, typ=I64)), limit)
            cell = self._cell(b, counts, top, t)
            b.store(b.add(sum_, b.load(cell, typ=I64)), before)
        self._clear(scope, counts)
        scope.at_end().store(i64(0), left)
        last = scope.at_end().load(limit, typ=I64)
        with scope.loop(i64(0), n, 1) as (inner, e):
            b = inner.at_end()
            words = self._get(b, source, e)
            kept = b.icmp_signed("<=", self._digit(b, words[0], top), last)
            with inner.when(kept) as taken:
                b = taken.at_end()
                at = b.load(left, typ=I64)
                self._put(b, target, at, words)
                self._count(b, counts, words[0], range(self.passes))
                b.store(b.add(at, i64(1)), left)
        self._swap(scope, source, target)

    def _pass(
        self, scope: Scope, d: int, m: ir.Value, source: list[ir.Value], target: list[ir.Value],
        counts: ir.Value,
    ) -> None:  # fmt: skip
        """Moves the words to where their digit d says, unless it is the same in all."""
        b = scope.at_end()
        first = self._get(b, source, i64(0))[0]
        same = b.load(self._cell(b, counts, d, self._digit(b, first, d)), typ=I64)
        with scope.when(b.icmp_signed("<", same, m)) as move:
            total = move.counter(i64(0))
            with move.loop(i64(0), i64(_DIGITS), 1) as (inner, t):
                b = inner.at_end()
                cell, sum_ = self._cell(b, counts, d, t), b.load(total, typ=I64)
                b.store(b.add(sum_, b.load(cell, typ=I64)), total)
                b.store(sum_, cell)
            with move.loop(i64(0), m, 1) as (inner, e):
                b = inner.at_end()
                words = self._get(b, source, e)
                cell = self._cell(b, counts, d, self._digit(b, words[0], d))
                at = b.load(cell, typ=I64)
                self._put(b, target, at, words)
                b.store(b.add(at, i64(1)), cell)
            self._swap(move, source, target)

    def _results(self, scope: Scope, source: list[ir.Value]) -> None:
        with scope.loop(i64(0), self.dim(self.count), 1) as (copy, e):
            b = copy.at_end()
            words = self._get(b, source, e)
            number = b.and_(words[0], i64(0xFFFFFFFF)) if self.packed else words[1]
            there = copy.child()
            there.bind(self.sort.along, number)
            value = there.value(loops.load(self.row.array, (self.row.offset,)))
            copy.bind(self.sort.along, e)
            copy.store(self.values.array, self.values.offset, value)
            copy.store(self.indices.array, self.indices.offset, number)

    # -- buffers: slots that hold addresses of words -----------------------------------------------
    def _get(self, b: ir.IRBuilder, slots: list[ir.Value], at: ir.Value) -> list[ir.Value]:
        bases = [b.load(s, typ=PTR) for s in slots]
        return [b.load(b.gep(p, [at], source_etype=I64), typ=I64) for p in bases]

    def _put(
        self, b: ir.IRBuilder, slots: list[ir.Value], at: ir.Value, words: list[ir.Value]
    ) -> None:
        for slot, word in zip(slots, words, strict=True):
            b.store(word, b.gep(b.load(slot, typ=PTR), [at], source_etype=I64))

    def _swap(self, scope: Scope, source: list[ir.Value], target: list[ir.Value]) -> None:
        b = scope.at_end()
        for x, y in zip(source, target, strict=True):
            held = b.load(x, typ=PTR), b.load(y, typ=PTR)
            b.store(held[1], x)
            b.store(held[0], y)


class _ByMerging(Nest):
    """Bottom-up merging. stores: values, indices, then keys and numbers, twice."""

    def __init__(self, program: Program, fn: Function, sort: Sort, count: Dim) -> None:
        super().__init__(program, fn)
        self.sort, self.count = sort, count

    def outer_steps(self, scope: Scope) -> None:
        step = self.program.steps[0]
        values, indices, *work = step.stores
        count = self.dim(self.sort.extent)
        along = self.sort.along
        with scope.loop(i64(0), count, 1) as (fill, e):
            fill.bind(along, e)
            key = fill.value(work[0].value)
            fill.store(work[0].array, work[0].offset, key)
            fill.store(work[1].array, work[1].offset, e)
        run = scope.counter(i64(1))
        turn = scope.counter(i64(0))
        with scope.loop_from(run, count, None) as (one, width):
            b = one.at_end()
            which = b.load(turn, typ=I64)
            flip = b.icmp_unsigned("!=", which, i64(0))
            for inward in (False, True):
                with one.when(flip if inward else one.at_end().not_(flip)) as branch:
                    pair = (work[2:], work[:2]) if inward else (work[:2], work[2:])
                    self.merge_pass(branch, width, count, *pair)
            b = one.at_end()
            b.store(b.xor(which, i64(1)), turn)
            b.store(b.shl(width, i64(1)), run)
        flip = scope.at_end().icmp_unsigned("!=", scope.at_end().load(turn, typ=I64), i64(0))
        for second in (False, True):
            with scope.when(flip if second else scope.at_end().not_(flip)) as branch:
                source = work[2:] if second else work[:2]
                with branch.loop(i64(0), self.dim(self.count), 1) as (copy, e):
                    copy.bind(along, e)
                    for to, of in zip((values, indices), source, strict=True):
                        got = copy.value(loops.load(of.array, (of.offset,)))
                        copy.store(to.array, to.offset, got)

    def merge_pass(
        self,
        scope: Scope,
        width: ir.Value,
        count: ir.Value,
        source: list[FlatStore],
        target: list[FlatStore],
    ) -> None:
        """Merges neighbouring sorted runs of `width`."""
        low = scope.counter(i64(0))
        left, right = self.fn.slot(I64), self.fn.slot(I64)
        along = self.sort.along
        with scope.loop_from(low, count, None) as (pair, start):
            b = pair.at_end()

            def least(x: ir.Value) -> ir.Value:
                return b.select(b.icmp_signed("<", x, count), x, count)

            middle = least(b.add(start, width))
            end = least(b.add(middle, width))
            b.store(start, left)
            b.store(middle, right)
            with pair.loop(start, end, 1) as (inner, k):
                b = inner.at_end()
                i, j = b.load(left, typ=I64), b.load(right, typ=I64)
                last = b.sub(count, i64(1))
                a_at, b_at = inner.child(), inner.child()
                a_at.bind(along, i)
                b_at.bind(along, b.select(b.icmp_signed("<", j, last), j, last))
                x = a_at.value(loops.load(source[0].array, (source[0].offset,)))
                y = b_at.value(loops.load(source[0].array, (source[0].offset,)))
                first = self.before(inner, y, x)
                b = inner.at_end()
                spent = b.icmp_signed(">=", i, middle)
                take = b.and_(b.icmp_signed("<", j, end), b.or_(spent, first))
                chosen = inner.child()
                chosen.bind(along, b.select(take, b_at.axes[along], i))
                put = inner.child()
                put.bind(along, k)
                for of, to in zip(source, target, strict=True):
                    got = chosen.value(loops.load(of.array, (of.offset,)))
                    put.store(to.array, to.offset, got)
                b = inner.at_end()
                right_step = b.zext(take, I64)
                b.store(b.add(j, right_step), right)
                b.store(b.add(i, b.sub(i64(1), right_step)), left)
            pair.at_end().store(end, low)

    def before(self, scope: Scope, y: ir.Value, x: ir.Value) -> ir.Value:
        """y must come before x, strictly."""
        dtype, ops = self.program.steps[0].stores[2].value.dtype, self.fn.ops
        scope.at_end()
        down = self.sort.descending
        less = ops.compare("lt", dtype, [x, y] if down else [y, x])
        if not dtype.is_floating_point:
            return less
        nan_x, nan_y = ops.compare("ne", dtype, [x, x]), ops.compare("ne", dtype, [y, y])
        b = ops.builder
        odd, even = (nan_y, nan_x) if down else (nan_x, nan_y)
        return b.or_(less, b.and_(odd, b.not_(even)))
