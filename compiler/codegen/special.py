"""Scan and Scatter kernels; the way to those of Sort (sorting.py).

Owns their loops. A scan goes along its axis one element after the other, with lanes along the last
other axis where there is one to the right. A scatter copies its base, then does its points in
order; axes that the index passes through unchanged are done in parallel, with lanes along the
last if it is the output's last.
"""

from __future__ import annotations

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import Accumulator
from jitgrad.compiler.codegen.assemble import Part, assemble
from jitgrad.compiler.codegen.code import i64
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.kernelcode import Generated
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
        with scope.loop(i64(0), count, 1) as (inner, k):
            b = inner.at_end()
            at = b.sub(b.sub(count, i64(1)), k) if self.scan.reverse else k
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
    program = bare_program(outer, extents, stores, list(array.shape))
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
