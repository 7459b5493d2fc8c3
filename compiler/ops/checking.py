"""What a record asks of its operands' elements (`record.Check`), in the loop language.

Owns the test of one element (`broken`), its flag (`flag`), and the check of a whole operand apart
from the op's result (`verdict`), for where nothing computes all of that result.
"""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    const,
    dim,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.record import Check, is_half
from jitgrad.compiler.ops.regions import all_of
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.runtime import dtypes


def broken(check: Check, x: Expr) -> Expr:
    """Whether x is not as asked (NaN never is in a range)."""
    x = x.cast(dtypes.float32) if is_half(x.dtype) else x
    tests: list[Expr | None] = [] if check.zero else [x.ne(0)]
    tests += [_bound(x, check.low, low=True), _bound(x, check.high, low=False)]
    good = all_of(tests)
    if good is not None and check.allowed is not None:
        good = make("or", good, x.eq(check.allowed))
    return const(False, dtypes.bool_) if good is None else make("not", good)


def _bound(x: Expr, bound: Dim | float | None, low: bool) -> Expr | None:
    """bound <= x, or x <= bound; None where x's dtype has no number that breaks it."""
    if bound is None:
        return None
    if isinstance(bound, Sym):
        number = dim(bound).cast(x.dtype)
    else:
        if not x.dtype.is_floating_point:
            info = np.iinfo(x.dtype.np)
            if (bound <= info.min) if low else (bound >= info.max):
                return None
            if (bound > info.max) if low else (bound < info.min):
                return const(False, dtypes.bool_)
        number = const(bound, x.dtype)
    return number <= x if low else x <= number


def flag(b: Builder, bad: Expr) -> Expr:
    """`bad`, which flags the node's fault where it holds. (What comes back is always false, but no
    rule of the compiler knows that, so the check stays.)"""
    position = b.check(select(bad, const(1, INDEX), const(0, INDEX)), 1)
    return position.cast(dtypes.int32).ne(0)


def verdict(b: Builder, check: Check, x: Array) -> Array:
    """A 0-d bool, made by flagging the fault of each element of x that is not as asked."""
    bad = flag(b, broken(check, load(x, b.axes(x.ndim))))
    if not x.ndim:
        return b.pointwise((), dtypes.bool_, bad)
    return b.reduction((), x.shape, bad, "any")
