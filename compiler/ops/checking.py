"""What a record asks of its operands' elements (`record.Check`), in the loop language.

Owns the test of one element (`broken`), its flag (`flag`), and the check of a whole operand apart
from the op's result (`verdict`), for where nothing computes all of that result.
"""

from __future__ import annotations

from jitgrad.compiler.loops import INDEX, Array, Builder, Expr, const, dim, load, make, select
from jitgrad.compiler.ops.record import Check, is_half
from jitgrad.compiler.symbolic import Dim, Sym
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


def broken(check: Check, x: Expr) -> Expr:
    """Whether x is not as asked (NaN never is in a range)."""
    x = x.cast(dtypes.float32) if is_half(x.dtype) else x
    tests = [] if check.zero else [x.ne(0)]
    if check.low is not None:
        tests.append(_number(check.low, x.dtype) <= x)
    if check.high is not None:
        tests.append(x <= _number(check.high, x.dtype))
    good = tests[0] if tests else const(True, dtypes.bool_)
    for t in tests[1:]:
        good = good & t
    return make("not", good)


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


def _number(value: Dim | float, dtype: DType) -> Expr:
    return dim(value).cast(dtype) if isinstance(value, Sym) else const(value, dtype)
