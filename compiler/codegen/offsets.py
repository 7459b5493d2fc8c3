"""Constant places become arguments: kernels that differ in which slice they read are one kernel.

An unrolled loop reads xs[0], xs[1], ...: kernels equal but for that number. `lift_offsets` puts a
size of a name of its own ("#0", "#1", ...) in the place of an index that is a constant; what the
numbers are goes with each launch, as a word among its arguments. Dims of size 1 are left alone, for
there is one place only.
"""

from __future__ import annotations

from dataclasses import replace

from jitgrad.compiler.kernels import (
    ContractionKernel,
    Kernel,
    LoopKernel,
    Reduce,
    Stage,
    Store,
    kernel_exprs,
)
from jitgrad.compiler.loops import (
    Array,
    Contraction,
    Expr,
    load,
    loads,
    rewrite,
    size,
)
from jitgrad.compiler.symbolic import Sym

MARK = "#"


def lift_offsets(kernel: Kernel) -> tuple[Kernel, list[int], dict[Array, Array]]:
    """The kernel with places lifted, their values by number, and {new array: the kernel's own}."""
    if not isinstance(kernel, (LoopKernel, ContractionKernel)):
        return kernel, [], {}
    lifted: dict[Expr, Expr] = {}
    values: list[int] = []
    own = set(kernel.locals) if isinstance(kernel, LoopKernel) else {kernel.array}
    for e in loads(kernel_exprs(kernel)):
        index = list(e.args)
        for k, (i, d) in enumerate(zip(e.args, e.attr.shape, strict=True)):
            if i.op == "const" and not isinstance(d, Sym) and d != 1 and e.attr not in own:
                index[k] = size(f"{MARK}{len(values)}")
                values.append(i.attr)
        if index != list(e.args):
            lifted[e] = load(e.attr, index)
    if not values:
        return kernel, [], {}

    def new(e: Expr) -> Expr:
        return rewrite(e, lambda x: lifted.get(x))

    if isinstance(kernel, LoopKernel):
        stages = [
            Stage(
                s.inner,
                tuple(replace(t, value=new(t.value)) for t in s.stores),
                tuple(Reduce(r.array, new(r.value), r.combine, r.order) for r in s.reduces),
            )
            for s in kernel.stages
        ]
        return replace(kernel, stages=stages), values, {}
    old = kernel.array
    define = old.define
    assert isinstance(define, Contraction)
    define = replace(define, a=new(define.a), b=new(define.b))
    array = Array(old.name, old.shape, old.dtype, define, old.line, old.strides)

    def moved(e: Expr) -> Expr:
        return rewrite(
            new(e), lambda x: load(array, x.args) if x.op == "load" and x.attr is old else None
        )

    stores = [
        Store(array if t.array is old else t.array, t.index, moved(t.value)) for t in kernel.stores
    ]
    return ContractionKernel(array, stores, kernel.lines, kernel.name), values, {array: old}
