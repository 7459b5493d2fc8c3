"""Scan, scatter and sort kernels on the GPU.

A scan is a thread for each line where lines lie side by side, else a block for each line: tiles of
as many elements as threads, summed by doubling distances, the total carried on. A scatter copies
its base, then does its points: axes that the index passes through in parallel, the others in order
by one thread, so that results repeat. A sort is a bitonic network over each line by one block,
whose comparisons look at the place too, which makes it stable.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.cuda import scalar
from jitgrad.compiler.codegen.cuda.combine import Combine
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Scope
from jitgrad.compiler.codegen.program import named_dims
from jitgrad.compiler.codegen.schedule import Operands, Space, flatten_loads, offset_of
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    Array,
    Expr,
    Scan,
    Scatter,
    Sort,
    axis,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint
from jitgrad.runtime import dtypes

_LONG_SCAN = 64  # elements of a line that are worth a block
_FEW_LINES = 4096


class Flat:
    """Expressions of a special kernel with every access by element offset, and its operands."""

    def __init__(self, extents: dict[int, Dim], arrays: Sequence[Array]) -> None:
        self.operands = Operands()
        self.simplifier = Simplifier(extents)
        self.dims: list[Dim] = [*extents.values()]
        for a in arrays:
            self.dims += [*a.shape, *(a.strides or ())]

    def expr(self, e: Expr) -> Expr:
        return flatten_loads(e, self.operands, {}, self.simplifier, True)

    def local(self, e: Expr, own: dict[Array, Array]) -> Expr:
        """As `expr`, with arrays of the kernel's own, which are no operands."""
        return flatten_loads(e, self.operands, own, self.simplifier, True)

    def place(self, array: Array, index: Sequence[Expr]) -> tuple[Array, Expr]:
        """The stand-in of an array, and the offset of an index in it."""
        stand_in = self.operands.array(array)
        return stand_in, self.expr(offset_of(array, index))

    def writer(self, symbol: str, target: CudaTarget) -> KernelWriter:
        for a in self.operands.list:
            if isinstance(a, Array):
                self.dims += [*a.shape, *(a.strides or ())]
        return KernelWriter(symbol, self.operands, named_dims(self.dims), target)


Kernel = tuple[KernelWriter, Dim, int]


def _space(axes: Sequence[int], extents: Sequence[Dim]) -> Space:
    wide = [(k, d) for k, d in zip(axes, extents, strict=True) if isinstance(d, Sym) or d != 1]
    return Space([k for k, _ in wide], [d for _, d in wide])


def _ones(axes: Sequence[int], extents: Sequence[Dim]) -> dict[int, str]:
    return {k: "0" for k, d in zip(axes, extents, strict=True) if not isinstance(d, Sym) and d == 1}


# -- scan ------------------------------------------------------------------------------------------
def scan(array: Array, define: Scan, symbol: str, target: CudaTarget) -> Kernel:
    rank, along = array.ndim, define.along
    flat = Flat(dict(enumerate(array.shape)), [array])
    body = flat.expr(define.body)
    stand_in, offset = flat.place(array, tuple(axis(k) for k in range(rank)))
    w = flat.writer(symbol, target)
    others = [k for k in range(rank) if k != along]
    sizes = [array.shape[k] for k in others]
    outer = _space(others, sizes)
    total, count = w.extent(outer), w.dim(array.shape[along])
    acc = Combine(define.combine, body.dtype)
    lines = hint(outer.total)
    alone = along != rank - 1 or hint(array.shape[along]) < _LONG_SCAN or lines > _FEW_LINES
    at = f"{count} - 1 - m" if define.reverse else "m"
    if alone:
        with w.block(f"for p in range(cuda.grid(1), {total}, cuda.gridsize(1)):"):
            point = Scope(w, _ones(others, sizes), {})
            w.unflatten("p", outer, point)
            state = acc.start(w)
            with w.block(f"for m in range({count}):"):
                inner = point.child()
                inner.axes[along] = w.let(at, "j")
                acc.add(w, state, [inner.value(body)])
                inner.store(stand_in, offset, state[0])
        return w, outer.total, w.threads
    held = w.shared(w.threads, body.dtype)
    start = acc.start(w)[0]
    w.line("t = cuda.threadIdx.x")
    with w.block(f"for p in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
        point = Scope(w, _ones(others, sizes), {})
        w.unflatten("p", outer, point)
        carry = w.let(start, "carry")
        with w.block(f"for first in range(0, {count}, {w.threads}):"):
            w.line("m = first + t")
            value = w.let(start, "acc")
            inner = point.child()
            inner.axes[along] = w.let(at, "j")
            with w.block(f"if m < {count}:"):
                w.line(f"{value} = {inner.child().value(body)}")
            _doubling(w, acc, held, value)
            w.line(f"{value} = {acc.joined(carry, value)}")
            with w.block(f"if m < {count}:"):
                inner.child().store(stand_in, offset, value)
            last = _held(f"{held}[{w.threads - 1}]", body.dtype)
            w.line(f"{carry} = {acc.joined(carry, last)}")
            w.line("cuda.syncthreads()")
    return w, outer.total, 1


def _held(text: str, dtype: loops.DType) -> str:
    return f"({text} != 0)" if dtype is dtypes.bool_ else text


def _doubling(w: KernelWriter, acc: Combine, held: str, value: str) -> None:
    """The inclusive scan of a block's values: W. D. Hillis and G. L. Steele, CACM 29(12), 1986."""
    w.line(f"{held}[t] = {value}")
    w.line("cuda.syncthreads()")
    w.line("reach = 1")
    with w.block(f"while reach < {w.threads}:"):
        with w.block("if t >= reach:"):
            before = _held(f"{held}[t - reach]", acc.dtype)
            w.line(f"{value} = {acc.joined(before, value)}")
        w.line("cuda.syncthreads()")
        w.line(f"{held}[t] = {value}")
        w.line("cuda.syncthreads()")
        w.line("reach *= 2")


# -- scatter ---------------------------------------------------------------------------------------
def scatter(array: Array, define: Scatter, symbol: str, target: CudaTarget) -> Kernel:
    """The points of a scatter; the base has been copied."""
    rank = array.ndim
    points = [rank + j for j in range(len(define.extents))]
    flat = Flat(dict(zip(points, define.extents, strict=True)), [array])
    value = flat.expr(define.value)
    stand_in, offset = flat.place(array, define.index)
    w = flat.writer(symbol, target)
    through = [k for k in points if any(i is axis(k) for i in define.index)]
    extent = dict(zip(points, define.extents, strict=True))
    rest = [k for k in points if k not in through]
    outer = _space(through, [extent[k] for k in through])
    inner = _space(rest, [extent[k] for k in rest])
    acc = None if define.combine == "set" else Combine(define.combine, value.dtype)
    with w.block(f"for p in range(cuda.grid(1), {w.extent(outer)}, cuda.gridsize(1)):"):
        point = Scope(w, _ones(points, define.extents), {})
        w.unflatten("p", outer, point)
        with w.block(f"for m in range({w.extent(inner)}):"):
            scope = point.child()
            w.unflatten("m", inner, scope)
            new, at = scope.values([value, offset])
            if acc is not None:
                place = w.let(at, "j")
                old = w.let(scalar.loaded(f"{w.array(stand_in)}[{place}]", array.dtype))
                text = acc.joined(old, new)
                w.line(f"{w.array(stand_in)}[{place}] = {scalar.stored(text, array.dtype)}")
            else:
                w.line(f"{w.array(stand_in)}[{at}] = {scalar.stored(new, array.dtype)}")
    return w, outer.total, w.threads


# -- sort ------------------------------------------------------------------------------------------
def sort(arrays: Sequence[Array], symbol: str, target: CudaTarget) -> Kernel:
    """Values and places of a stable sort, each line by one block in the memory of the results."""
    define = arrays[0].define
    assert isinstance(define, Sort)
    along, rank = define.along, arrays[0].ndim
    shape = tuple(define.extent if k == along else d for k, d in enumerate(arrays[0].shape))
    wanted = {a.define.part: a for a in arrays if isinstance(a.define, Sort)}
    # The first elements alone are copied from a sort of all.
    by_part = wanted if arrays[0].shape[along] == define.extent else {}
    spare = [
        by_part.get(0) or Array("values", shape, define.body.dtype),
        by_part.get(1) or Array("places", shape, dtypes.int64),
    ]
    flat = Flat(dict(enumerate(shape)), [*spare, *arrays])
    body = flat.expr(define.body)
    index = tuple(axis(k) for k in range(rank))
    (keys, at), (places, place_at) = (flat.place(a, index) for a in spare)
    firsts = [] if by_part else [(k, *flat.place(a, index)) for k, a in sorted(wanted.items())]
    w = flat.writer(symbol, target)
    w.workspace += [a for k, a in enumerate(spare) if k not in by_part]
    others = [k for k in range(rank) if k != along]
    outer = _space(others, [shape[k] for k in others])
    count = w.dim(shape[along])
    w.line("t = cuda.threadIdx.x")
    with w.block(f"for p in range(cuda.blockIdx.x, {w.extent(outer)}, cuda.gridDim.x):"):
        point = Scope(w, _ones(others, [shape[k] for k in others]), {})
        w.unflatten("p", outer, point)
        with w.block(f"for e in range(t, {count}, {w.threads}):"):
            scope = point.child()
            scope.axes[along] = "e"
            scope.store(keys, at, scope.value(body))
            w.line(f"{w.array(places)}[{scope.value(place_at)}] = e")
        w.line("cuda.syncthreads()")
        w.line("width = 2")
        with w.block(f"while width < 2 * {count}:"):
            w.line("reach = width // 2")
            w.line("mirror = width - 1")
            with w.block("while reach > 0:"):
                with w.block(f"for e in range(t, {count}, {w.threads}):"):
                    w.line("other = e ^ mirror")
                    with w.block(f"if e < other and other < {count}:"):
                        _exchange(w, point, along, (keys, at), (places, place_at), define)
                w.line("cuda.syncthreads()")
                w.line("reach //= 2")
                w.line("mirror = reach")
            w.line("width *= 2")
        if firsts:
            _first(
                w, point, along, arrays[0].shape[along], firsts, ((keys, at), (places, place_at))
            )
    return w, outer.total, 1


def _first(
    w: KernelWriter,
    point: Scope,
    along: int,
    count: Dim,
    firsts: Sequence[tuple[int, Array, Expr]],
    sources: Sequence[tuple[Array, Expr]],
) -> None:
    """Copies the first elements of what was sorted to the results."""
    with w.block(f"for e in range(t, {w.dim(count)}, {w.threads}):"):
        scope = point.child()
        scope.axes[along] = "e"
        for part, target, offset in firsts:
            source, at = sources[part]
            element = f"{w.array(source)}[{scope.value(at)}]"
            w.line(f"{w.array(target)}[{scope.value(offset)}] = {element}")
    w.line("cuda.syncthreads()")


def _exchange(
    w: KernelWriter,
    point: Scope,
    along: int,
    keys: tuple[Array, Expr],
    places: tuple[Array, Expr],
    define: Sort,
) -> None:
    """Puts elements e and other in order."""
    low, high = point.child(), point.child()
    low.axes[along], high.axes[along] = "e", "other"
    where = [w.let(s.value(offset), "j") for s in (low, high) for _, offset in (keys, places)]
    key, place = w.array(keys[0]), w.array(places[0])
    raw = [w.let(f"{(key, place)[k % 2]}[{i}]") for k, i in enumerate(where)]
    x, y = (scalar.loaded(raw[k], keys[0].dtype) for k in (0, 2))
    x, y = w.let(x), w.let(y)
    before = f"({y} {'>' if define.descending else '<'} {x})"
    same = f"({x} == {y})"
    if keys[0].dtype.is_floating_point:
        one, two = (y, x) if define.descending else (x, y)
        before = f"({before} or ({one} != {one} and {two} == {two}))"
        same = f"({same} or ({x} != {x} and {y} != {y}))"
    with w.block(f"if {before} or ({same} and {raw[3]} < {raw[1]}):"):
        for k, i in enumerate(where):
            w.line(f"{(key, place)[k % 2]}[{i}] = {raw[(k + 2) % 4]}")
