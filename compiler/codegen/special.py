"""Scan, Scatter and Sort kernels.

Owns their loops. A scan goes along its axis one element after the other, with lanes along the last
other axis where there is one to the right. A scatter copies its base, then does its points in
order; axes that the index passes through unchanged are done in parallel, with lanes along the
last if it is the output's last. A sort merges runs bottom-up (stable), rows in parallel, in
workspace arrays.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import Accumulator
from jitgrad.compiler.codegen.assemble import Part, assemble
from jitgrad.compiler.codegen.code import I64
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.nest import Nest, emit
from jitgrad.compiler.codegen.program import FlatStore, Program, Step, named_dims, prepare
from jitgrad.compiler.codegen.schedule import Operands, Space, flatten_loads, offset_of
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    Array,
    Expr,
    LoopKernel,
    Scan,
    Scatter,
    Sort,
    SpecialKernel,
    Stage,
    Store,
    axis,
)
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import InternalError


def generate_special(kernel: SpecialKernel, target: Target) -> Generated:
    """Code for a Scan, Scatter or Sort."""
    array = kernel.arrays[0]
    if isinstance(array.define, Scan):
        return _scan(array, array.define, target)
    if isinstance(array.define, Scatter):
        return _scatter(array, array.define, target)
    if isinstance(array.define, Sort):
        return _sort(kernel.arrays, target)
    raise InternalError(f"{array} is no special kernel's")


def _i64(x: int) -> ir.Constant:
    return ir.Constant(I64, x)


def _is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


def _program(
    outer: Space,
    extents: dict[int, Dim],
    stores: list[tuple[Array, Expr, Expr]],
    kernel_dims: list[Dim],
) -> Program:
    """A program of one step whose body is emitted by hand."""
    operands = Operands()
    s = Simplifier(extents)
    wide = [(k, d) for k, d in zip(outer.axes, outer.extents, strict=True) if not _is_one(d)]
    outer = Space([k for k, _ in wide], [d for _, d in wide])
    flat = []
    for array, offset, value in stores:
        value = flatten_loads(value, operands, {}, s)
        stand_in = operands.array(array)
        flat.append(FlatStore(stand_in, flatten_loads(offset, operands, {}, s), value))
    reads = [a for a in operands.list if isinstance(a, Array)]
    dims = kernel_dims + [d for a in reads for d in (*a.shape, *(a.strides or ()))]
    return Program(outer, [Step(Space([], []), flat, [])], {}, operands, named_dims(dims))


# -- scan ------------------------------------------------------------------------------------------
class _ScanNest(Nest):
    def __init__(self, program: Program, fn: Function, scan: Scan, extent: Dim) -> None:
        super().__init__(program, fn)
        self.scan, self.extent = scan, extent

    def outer_steps(self, scope: Scope) -> None:
        (store,) = self.program.steps[0].stores
        a = Accumulator(self.scan.combine, store.value.dtype)
        start = a.start(scope.width)[0]
        slot = self.fn.slot(start.type)
        scope.at_end().store(start, slot)
        count = self.dim(self.extent)
        with scope.loop(_i64(0), count, 1) as (inner, k):
            b = inner.at_end()
            at = b.sub(b.sub(count, _i64(1)), k) if self.scan.reverse else k
            inner.bind(self.scan.along, at)
            new = inner.vector(store.value)
            b = inner.at_end()
            (total,) = a.join(self.fn.ops, [b.load(slot, typ=start.type)], [new])
            b.store(total, slot)
            inner.store(store.array, store.offset, total)


def _scan(array: Array, scan: Scan, target: Target) -> Generated:
    rank = array.ndim
    others = [k for k in range(rank) if k != scan.along]
    outer = Space(others, [array.shape[k] for k in others])
    index = tuple(axis(k) for k in range(rank))
    extents = dict(enumerate(array.shape))
    stores = [(array, offset_of(array, index), scan.body)]
    program = _program(outer, extents, stores, list(array.shape))
    program.scalar = scan.along == rank - 1
    extent = array.shape[scan.along]
    part = Part(
        program,
        lambda p, fn: _ScanNest(p, fn, scan, extent).emit_outer(),
        2.0 * max(1, hint(extent)),
    )
    return assemble([part], target, [])


# -- scatter ---------------------------------------------------------------------------------------
class _ScatterNest(Nest):
    def __init__(self, program: Program, fn: Function, combine: str, inner: Space) -> None:
        super().__init__(program, fn)
        self.combine, self.inner = combine, inner

    def outer_steps(self, scope: Scope) -> None:
        (store,) = self.program.steps[0].stores
        with scope.loop(_i64(0), self.dim(self.inner.total), 1) as (inner, m):
            self.unflatten(inner, m, self.inner)
            if self.combine == "set":
                new = inner.vector(store.value)
            else:
                a = Accumulator(self.combine, store.value.dtype)
                value = inner.vector(store.value)
                old = inner.vector(loops.load(store.array, (store.offset,)))
                inner.at_end()
                (new,) = a.join(self.fn.ops, [old], [value])
            inner.store(store.array, store.offset, new)


def _scatter(array: Array, scatter: Scatter, target: Target) -> Generated:
    rank = array.ndim
    identity = tuple(axis(k) for k in range(rank))
    copy = LoopKernel(array.shape, [Stage((), (Store(array, identity, scatter.base),))])
    # An axis of the points that is itself an index splits the output: elements of different parts
    # are written by points of different parts, in the same order whoever runs a part.
    parallel = [
        j for j in range(len(scatter.extents)) if any(i is axis(rank + j) for i in scatter.index)
    ]
    rest = [j for j in range(len(scatter.extents)) if j not in parallel]
    outer = Space([rank + j for j in parallel], [scatter.extents[j] for j in parallel])
    inner = Space([rank + j for j in rest], [scatter.extents[j] for j in rest])
    extents = {rank + j: d for j, d in enumerate(scatter.extents)}
    stores = [(array, offset_of(array, scatter.index), scatter.value)]
    program = _program(outer, extents, stores, [*array.shape, *scatter.extents])
    # Lanes only along neighbours in memory: rows of the output, a power of two apart, would share
    # one set of the cache.
    apart = [rank + j for j in parallel if not _is_one(scatter.extents[j])]
    program.scalar = not (apart and scatter.index[-1] is axis(apart[-1]))
    part = Part(
        program,
        lambda p, fn: _ScatterNest(p, fn, scatter.combine, inner).emit_outer(),
        2.0 * max(1, hint(inner.total)),
    )
    return assemble([Part(prepare(copy), emit), part], target, [])


# -- sort ------------------------------------------------------------------------------------------
class _SortNest(Nest):
    """stores: values, indices, then the four workspace arrays (keys and indices, twice)."""

    def __init__(self, program: Program, fn: Function, sort: Sort, extent: Dim) -> None:
        super().__init__(program, fn)
        self.sort, self.extent = sort, extent

    def outer_steps(self, scope: Scope) -> None:
        step = self.program.steps[0]
        values, indices, *work = step.stores
        count = self.dim(self.extent)
        along = self.sort.along
        with scope.loop(_i64(0), count, 1) as (fill, e):
            fill.bind(along, e)
            key = fill.value(work[0].value)
            fill.store(work[0].array, work[0].offset, key)
            fill.store(work[1].array, work[1].offset, e)
        run = scope.counter(_i64(1))
        turn = scope.counter(_i64(0))
        with scope.loop_from(run, count, None) as (one, width):
            b = one.at_end()
            which = b.load(turn, typ=I64)
            flip = b.icmp_unsigned("!=", which, _i64(0))
            for inward in (False, True):
                with one.when(flip if inward else one.at_end().not_(flip)) as branch:
                    pair = (work[2:], work[:2]) if inward else (work[:2], work[2:])
                    self.merge_pass(branch, width, count, *pair)
            b = one.at_end()
            b.store(b.xor(which, _i64(1)), turn)
            b.store(b.shl(width, _i64(1)), run)
        flip = scope.at_end().icmp_unsigned("!=", scope.at_end().load(turn, typ=I64), _i64(0))
        for second in (False, True):
            with scope.when(flip if second else scope.at_end().not_(flip)) as branch:
                source = work[2:] if second else work[:2]
                with branch.loop(_i64(0), count, 1) as (copy, e):
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
        low = scope.counter(_i64(0))
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
                last = b.sub(count, _i64(1))
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
                b.store(b.add(i, b.sub(_i64(1), right_step)), left)
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


def _sort(arrays: list[Array], target: Target) -> Generated:
    by_part = {}
    for a in arrays:
        assert isinstance(a.define, Sort)
        by_part[a.define.part] = a
    shape = arrays[0].shape
    sort = arrays[0].define
    assert isinstance(sort, Sort)
    body = sort.body
    rank = len(shape)
    values = by_part.get(0) or Array("values", shape, body.dtype)
    indices = by_part.get(1) or Array("indices", shape, dtypes.int64)
    others = [k for k in range(rank) if k != sort.along]
    # Workspace rows lie along the sorted axis.
    order = [*others, sort.along]
    wshape = tuple(shape[k] for k in order)
    windex = tuple(axis(k) for k in order)
    work = [
        Array(f"{name}{n}", wshape, body.dtype if name == "keys" else dtypes.int64)
        for n in range(2)
        for name in ("keys", "numbers")
    ]
    index = tuple(axis(k) for k in range(rank))
    number = axis(sort.along).cast(dtypes.int64)
    stores = [
        (values, offset_of(values, index), body),
        (indices, offset_of(indices, index), number),
    ]
    stores += [
        (w, offset_of(w, windex), body if k % 2 == 0 else number) for k, w in enumerate(work)
    ]
    outer = Space(others, [shape[k] for k in others])
    program = _program(outer, dict(enumerate(shape)), stores, list(shape))
    program.scalar = True
    extent = shape[sort.along]
    n = max(2, hint(extent))
    part = Part(
        program,
        lambda p, fn: _SortNest(p, fn, sort, extent).emit_outer(),
        4.0 * n * n.bit_length(),
    )
    spare = [a for part_number, a in ((0, values), (1, indices)) if part_number not in by_part]
    return assemble([part], target, [*work, *spare])
