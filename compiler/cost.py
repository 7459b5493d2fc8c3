"""What fusion weighs: the work of an expression, the points of a definition, bytes.

Weights are rough instruction counts per element on a vector machine; only their order of
magnitude matters. Symbolic dims count with their hints.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.kernels import (
    Kernel,
    LoopKernel,
    Stage,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import (
    INDEX,
    MATH,
    Array,
    Contraction,
    Expr,
    Reduction,
    Scatter,
    Sort,
    loads,
    postorder,
)
from jitgrad.compiler.symbolic import hint, prod
from jitgrad.compiler.types import TensorType

_WEIGHT = {"div": 4, "sqrt": 4, "floordiv": 6, "mod": 6}
_FREE = {"const", "axis", "size", "load", "cast", "bitcast"}
_MATH_WEIGHT = {"exp": 12, "exp2": 12, "sigmoid": 16, "rsqrt": 6, "pow": 50}


def weight(roots: Iterable[Expr]) -> int:
    """Instructions per point, each shared node once. Plain index sums are free."""
    return sum(map(own_weight, postorder(roots)))


def own_weight(e: Expr) -> int:
    """The weight of one node, without its arguments."""
    if e.op in _FREE or (e.dtype is INDEX and e.op in ("add", "sub", "mul")):
        return 0
    if e.op in MATH:
        return _MATH_WEIGHT.get(e.op, 25)
    return _WEIGHT.get(e.op, 1)


def points(array: Array) -> int:
    """How often a definition's body is evaluated."""
    n = hint(array.numel)
    d = array.define
    if isinstance(d, Reduction):
        return n * hint(prod(d.extents))
    if isinstance(d, Contraction):
        return n * hint(prod(d.k))
    if isinstance(d, Scatter):
        return n + hint(prod(d.extents))
    if isinstance(d, Sort):
        return n // max(1, hint(array.shape[d.along])) * hint(d.extent)
    return n


def nbytes(array: Array | TensorType) -> int:
    """Bytes of the elements of an array, or of a value of that type."""
    return hint(array.numel) * array.dtype.itemsize


def bytes_moved(kernel: Kernel) -> int:
    """Bytes that a kernel reads and writes: each array once, and no more of one than it asks for
    (a gather reads what its indices name)."""
    written = sum(map(nbytes, kernel_writes(kernel)))
    if not isinstance(kernel, LoopKernel):
        return written + sum(map(nbytes, kernel_reads(kernel)))
    asked: dict[Array, int] = {}
    outer = hint(prod(kernel.outer))
    p = len(kernel.outer)
    for stage in kernel.stages:
        inner = hint(prod(stage.inner))
        for e in loads(_roots(stage)):
            inside = any(x.op == "axis" and x.attr >= p for x in postorder(e.args))
            points = outer * (inner if inside else 1)
            asked[e.attr] = asked.get(e.attr, 0) + points * e.attr.dtype.itemsize
    return written + sum(min(nbytes(a), asked.get(a, 0)) for a in kernel_reads(kernel))


def _roots(stage: Stage) -> list[Expr]:
    stored = [e for t in stage.stores for e in (*t.index, t.value)]
    return stored + [r.value for r in stage.reduces]
