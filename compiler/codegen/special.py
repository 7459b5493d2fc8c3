"""Scan and Scatter kernels; the way to those of Sort (sorting.py).

Owns their loops. A scan goes along its axis one element after the other, with lanes along the last
other axis where there is one to the right; along the last axis by several rows at once, or by
vectors of one row where any order gives the same bits. A scatter copies its base, then does its
points in order; axes that the index passes through unchanged are done in parallel, with lanes along
the last if it is the output's last.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import Accumulator
from jitgrad.compiler.codegen.assemble import Part, assemble
from jitgrad.compiler.codegen.code import I32, i64, lanes
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.memory import broadcast
from jitgrad.compiler.codegen.nest import Nest, emit
from jitgrad.compiler.codegen.program import Program, bare_program, prepare
from jitgrad.compiler.codegen.schedule import Space, offset_of
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.codegen.sorting import generate_sort
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.kernels import (
    LoopKernel,
    SpecialKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    Array,
    Scan,
    Scatter,
    Sort,
    axis,
)
from jitgrad.compiler.symbolic import Dim, hint
from jitgrad.runtime.errors import InternalError

_COLUMNS = 128  # neighbours that a scatter writes together
_ROWS = 4  # rows that are scanned together,
_LIGHT = 30  # where no more is computed for an element


def generate_special(kernel: SpecialKernel, target: Target) -> Generated:
    """Code for a Scan, Scatter or Sort."""
    array = kernel.arrays[0]
    if isinstance(array.define, Scan):
        return _scan(array, array.define, target)
    if isinstance(array.define, Scatter):
        return _scatter(array, array.define, target)
    if isinstance(array.define, Sort):
        return generate_sort(kernel.arrays, target)
    raise InternalError(f"{array} is no special kernel's")


def _is_one(d: Dim) -> bool:
    return isinstance(d, int) and d == 1


# -- scan ------------------------------------------------------------------------------------------
class _ScanNest(Nest):
    def __init__(
        self, program: Program, fn: Function, scan: Scan, extent: Dim, prefixes: bool
    ) -> None:
        """prefixes: whether lanes are neighbours of one row."""
        super().__init__(program, fn)
        self.scan, self.extent, self.prefixes = scan, extent, prefixes

    def emit(self) -> None:
        """Along the last axis several rows go together: one waits for each of its results. Where
        the order does not matter, a vector of one row does."""
        if self.prefixes:
            with self.fn.top.loop(self.fn.begin, self.fn.end, 1) as (point, r):
                self.unflatten(point, r, self.program.outer)
                self._by_vectors(point)
            return
        if not self.program.scalar or not self.program.outer.axes:
            self.emit_outer()
            return
        position = self.fn.top.counter(self.fn.begin)
        for n in (_ROWS if self.program.cost() <= _LIGHT else 2, 1):
            with self.fn.top.loop_from(position, self.fn.end, n, whole=True) as (block, first):
                points = [block.child() for _ in range(n)]
                for k, point in enumerate(points):
                    at = block.at_end().add(first, i64(k))
                    self.unflatten(point, at, self.program.outer)
                self._along(block, points)

    def outer_steps(self, scope: Scope) -> None:
        self._along(scope, [scope])

    def _by_vectors(self, scope: Scope) -> None:
        """One row: each vector is scanned by doubling, and takes what is before it."""
        (store,) = self.program.steps[0].stores
        a, ops = Accumulator(self.scan.combine, store.value.dtype), self.fn.ops
        (start,) = a.start(1)
        before = self.fn.slot(start.type)
        scope.at_end().store(start, before)

        def body(s: Scope, i: ir.Value) -> None:
            value, n, far = s.vector(store.value), s.width, 1
            b = s.at_end()
            while far < n:
                order = tuple(n + k - far if k >= far else k for k in range(n))
                moved = b.shuffle_vector(a.start(n)[0], value, lanes(order))
                (value,) = a.join(ops, [moved], [value])
                far *= 2
            (value,) = a.join(ops, [broadcast(b, b.load(before, typ=start.type), n)], [value])
            last = b.extract_element(value, ir.Constant(I32, n - 1)) if n > 1 else value
            b.store(last, before)
            s.store(store.array, store.offset, value)

        self.sweep(scope, self.scan.along, i64(0), self.dim(self.extent), self.width, body)

    def _along(self, scope: Scope, points: list[Scope]) -> None:
        """The scans of these points, whose loop is in `scope`."""
        store, *factors = self.program.steps[0].stores
        a = Accumulator(self.scan.combine, store.value.dtype)
        start = a.start(scope.width)[0]
        slots = [self.fn.slot(start.type) for _ in points]
        for slot in slots:
            scope.at_end().store(start, slot)
        count = self.dim(self.extent)
        with scope.loop(i64(0), count, 1) as (inner, k):
            b = inner.at_end()
            at = b.sub(b.sub(count, i64(1)), k) if self.scan.reverse else k
            for point, slot in zip(points, slots, strict=True):
                here = inner.child_with(point)
                here.bind(self.scan.along, at)
                new = here.vector(store.value)
                scales = [here.vector(f.value) for f in factors]
                b = here.at_end()
                before = b.load(slot, typ=start.type)
                for scale in scales:
                    before = self.fn.ops.arithmetic("mul", store.value.dtype, [before, scale])
                (total,) = a.join(self.fn.ops, [before], [new])
                b.store(total, slot)
                here.store(store.array, store.offset, total)


def _scan(array: Array, scan: Scan, target: Target) -> Generated:
    rank = array.ndim
    others = [k for k in range(rank) if k != scan.along]
    outer = Space(others, [array.shape[k] for k in others])
    index = tuple(axis(k) for k in range(rank))
    extents = dict(enumerate(array.shape))
    # The factor stands behind the body; it is not stored.
    bodies = [e for e in (scan.body, scan.factor) if e is not None]
    stores = [(array, offset_of(array, index), e) for e in bodies]
    program = bare_program(outer, extents, stores, list(array.shape))
    last = scan.along == rank - 1
    whole = not scan.body.dtype.is_floating_point and not scan.body.dtype.is_complex
    extent = array.shape[scan.along]
    forward = last and not scan.reverse and not _is_one(extent)
    prefixes = forward and scan.factor is None and (whole or scan.combine in ("max", "min"))
    program.scalar = last and not prefixes
    part = Part(
        program,
        lambda p, fn: _ScanNest(p, fn, scan, extent, prefixes).emit(),
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
        with scope.loop(i64(0), self.dim(self.inner.total), 1) as (inner, m):
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
    program = bare_program(outer, extents, stores, [*array.shape, *scatter.extents])
    # Lanes only along neighbours in memory: rows of the output, a power of two apart, would share
    # one set of the cache.
    apart = [rank + j for j in parallel if not _is_one(scatter.extents[j])]
    program.scalar = not (apart and scatter.index[-1] is axis(apart[-1]))
    if not program.scalar:
        program.unit = _COLUMNS
    part = Part(
        program,
        lambda p, fn: _ScatterNest(p, fn, scatter.combine, inner).emit_outer(),
        2.0 * max(1, hint(inner.total)),
    )
    return assemble([Part(prepare(copy), emit), part], target, [])
