"""Convolutions whose groups have one channel each: sums over the kernel's taps, point by point.

Owns when, and that form. As contractions they would be products of one row; as elementwise code
lanes lie along the output, and what follows (bias, activation) is fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    load,
)
from jitgrad.compiler.ops.regions import accumulator
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static, prod

MOST_TAPS = 64
"""The largest kernel, in elements, that is written out tap by tap."""


def is_depthwise(inputs: Dim, kernel: Sequence[Dim], groups: int) -> bool:
    """Whether each output channel is made of one input channel by few taps. inputs: of a group."""
    if isinstance(inputs, Sym) or inputs != 1 or groups == 1 or not is_static(kernel):
        return False
    return 0 < hint(prod(kernel)) <= MOST_TAPS


def by_taps(
    b: Builder, x: Array, w: Array, shape: Sequence[Dim],
    at: Callable[[Sequence[Expr], Sequence[int]], tuple[Sequence[Expr], Sequence[Expr]]],
) -> Array:  # fmt: skip
    """out[index] = the sum over taps k, in row-major order, of x[i] w[j] for (i, j) = at(index, k).

    shape: of out, whose dtype is x's; sums are in its accumulator's.
    """
    acc = accumulator(x.dtype)
    index = b.axes(len(shape))
    total: Expr | None = None
    for tap in itertools.product(*(range(int(k)) for k in w.shape[2:])):
        here, weight = at(index, tap)
        product = load(w, weight).cast(acc) * load(x, here).cast(acc)
        total = product if total is None else total + product
    assert total is not None
    return b.pointwise(shape, x.dtype, total.cast(x.dtype))
