"""Scans on the GPU, and what kernels that are no loop kernels share (`Flat`).

A scan is a thread for each line where lines lie side by side, else a block for each line: tiles of
as many elements as threads, summed by doubling distances, the total carried on.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.cuda.combine import Combine
from jitgrad.compiler.codegen.cuda.target import CudaTarget
from jitgrad.compiler.codegen.cuda.writer import KernelWriter, Part, Scope
from jitgrad.compiler.codegen.program import named_dims
from jitgrad.compiler.codegen.schedule import Operands, Space, flatten_loads, offset_of
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.loops import (
    Array,
    Expr,
    Scan,
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


def space_of(axes: Sequence[int], extents: Sequence[Dim]) -> Space:
    wide = [(k, d) for k, d in zip(axes, extents, strict=True) if isinstance(d, Sym) or d != 1]
    return Space([k for k, _ in wide], [d for _, d in wide])


def ones_of(axes: Sequence[int], extents: Sequence[Dim]) -> dict[int, str]:
    return {k: "0" for k, d in zip(axes, extents, strict=True) if not isinstance(d, Sym) and d == 1}


# -- scan ------------------------------------------------------------------------------------------
def scan(array: Array, define: Scan, symbol: str, target: CudaTarget) -> Part:
    rank, along = array.ndim, define.along
    flat = Flat(dict(enumerate(array.shape)), [array])
    body = flat.expr(define.body)
    factor = None if define.factor is None else flat.expr(define.factor)
    stand_in, offset = flat.place(array, tuple(axis(k) for k in range(rank)))
    w = flat.writer(symbol, target)
    others = [k for k in range(rank) if k != along]
    sizes = [array.shape[k] for k in others]
    outer = space_of(others, sizes)
    total, count = w.extent(outer), w.dim(array.shape[along])
    acc = Combine(define.combine, body.dtype)
    lines = hint(outer.total)
    alone = along != rank - 1 or hint(array.shape[along]) < _LONG_SCAN or lines > _FEW_LINES
    alone |= factor is not None
    at = f"{count} - 1 - m" if define.reverse else "m"
    if alone:
        with w.block(f"for p in range(cuda.grid(1), {total}, cuda.gridsize(1)):"):
            point = Scope(w, ones_of(others, sizes), {})
            w.unflatten("p", outer, point)
            state = acc.start(w)
            with w.block(f"for m in range({count}):"):
                inner = point.child()
                inner.axes[along] = w.let(at, "j")
                if factor is not None:
                    w.line(f"{state[0]} = {state[0]} * {inner.value(factor)}")
                acc.add(w, state, [inner.value(body)])
                inner.store(stand_in, offset, state[0])
        return Part(w, outer.total, w.threads)
    held = w.shared(w.threads, body.dtype)
    start = acc.start(w)[0]
    w.line("t = cuda.threadIdx.x")
    with w.block(f"for p in range(cuda.blockIdx.x, {total}, cuda.gridDim.x):"):
        point = Scope(w, ones_of(others, sizes), {})
        w.unflatten("p", outer, point)
        carry = w.let(start, "carry")
        with w.block(f"for first in range(0, {count}, {w.threads}):"):
            w.line("m = first + t")
            value = w.let(start, "acc")
            inner = point.child()
            inner.axes[along] = w.let(at, "j")
            with w.block(f"if m < {count}:"):
                w.line(f"{value} = {inner.child().value(body)}")
            doubling(w, acc, held, value)
            w.line(f"{value} = {acc.joined(carry, value)}")
            with w.block(f"if m < {count}:"):
                inner.child().store(stand_in, offset, value)
            last = held_value(f"{held}[{w.threads - 1}]", body.dtype)
            w.line(f"{carry} = {acc.joined(carry, last)}")
            w.line("cuda.syncthreads()")
    return Part(w, outer.total, 1)


def held_value(text: str, dtype: loops.DType) -> str:
    return f"({text} != 0)" if dtype is dtypes.bool_ else text


def doubling(w: KernelWriter, acc: Combine, held: str, value: str) -> None:
    """The inclusive scan of a block's values: W. D. Hillis and G. L. Steele, CACM 29(12), 1986."""
    w.line(f"{held}[t] = {value}")
    w.line("cuda.syncthreads()")
    w.line("reach = 1")
    with w.block(f"while reach < {w.threads}:"):
        with w.block("if t >= reach:"):
            before = held_value(f"{held}[t - reach]", acc.dtype)
            w.line(f"{value} = {acc.joined(before, value)}")
        w.line("cuda.syncthreads()")
        w.line(f"{held}[t] = {value}")
        w.line("cuda.syncthreads()")
        w.line("reach *= 2")
