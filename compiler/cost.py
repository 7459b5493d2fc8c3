"""What fusion weighs: the work of an expression, the points of a definition, bytes.

Weights are rough instruction counts per element on a vector machine; only their order of
magnitude matters. Symbolic dims count with their hints.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.loops import (
    INDEX,
    MATH,
    Array,
    Contraction,
    Expr,
    Reduction,
    Scatter,
    Sort,
    postorder,
)
from jitgrad.compiler.symbolic import hint, prod
from jitgrad.compiler.types import TensorType

_WEIGHT = {"div": 4, "sqrt": 4, "floordiv": 6, "mod": 6}
_FREE = {"const", "axis", "size", "load", "cast", "bitcast"}
_MATH_WEIGHT = {"exp": 12, "exp2": 12, "sigmoid": 16, "rsqrt": 6, "pow": 50}


def weight(roots: Iterable[Expr]) -> int:
    """Instructions per point, each shared node once. Plain index sums are free."""
    total = 0
    for e in postorder(roots):
        if e.op in _FREE or (e.dtype is INDEX and e.op in ("add", "sub", "mul")):
            continue
        if e.op in MATH:
            total += _MATH_WEIGHT.get(e.op, 25)
        else:
            total += _WEIGHT.get(e.op, 1)
    return total


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
