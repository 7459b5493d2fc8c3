"""Index tests for reads of a padded, strided or dilated region. Helpers of records, not records.

Owns `StridedRead`, what pad, slice_update, convolution and pooling lower their reads with: which
positions hold an element, and an index that is always safe to read; and the arithmetic of extents
that goes with it (`span`). Padding is defined as in XLA: element k of a dim of size n sits at
position `low + k * step` of a dim of size `low + span(n, step) + high`; `low` and `high` may be
negative, which crops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    dim,
    load,
    make,
    select,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, smax, surely_le
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


def span(n: Dim, step: int) -> Dim:
    """The extent that n elements, `step` apart, take up: (n - 1) * step + 1, and 0 for none."""
    if step == 1:
        return n
    extent = (n - 1) * step + 1
    return max(0, extent) if isinstance(extent, int) else smax(0, extent)


def readable(index: Expr, n: Dim) -> Expr:
    """An index of at least 0, clamped so that a dim of size n may be read there. Where n may be 0
    it is 0 then: what is read is not used, but it must be in memory."""
    index = make("min", index, dim(n - 1))
    return index if surely_le(1, n) else make("max", index, const(0, INDEX))


@dataclass(eq=False)
class StridedRead:
    """Where position `at` of a padded dim reads its operand.

    `inside`: the test that an element sits there (None: always). `index`: that element's index,
    clamped so that it may be read in any case.
    """

    inside: Expr | None
    index: Expr


def strided_read(at: Expr, extent: Dim, n: Dim, low: Dim, step: int) -> StridedRead:
    """The read at position `at` (in [0, extent)) of a dim whose n elements sit at low + k * step.

    Tests and clamps that the extents make needless are left out.
    """
    j = at - dim(low)
    tests = []
    if not surely_le(low, 0):
        tests.append(j >= 0)
        j = make("max", j, const(0, INDEX))
    if not surely_le(extent, low + span(n, step)):
        tests.append(at < dim(low + span(n, step)))
    if step > 1:
        tests.append((j % step).eq(0))
    index = j // step
    if not surely_le(extent, low + n * step):
        index = readable(index, n)
    return StridedRead(all_of(tests), index)


def all_of(tests: Sequence[Expr | None]) -> Expr | None:
    """The conjunction of the tests that are there; None when there is none."""
    out: Expr | None = None
    for t in tests:
        if t is not None:
            out = t if out is None else out & t
    return out


def guarded(inside: Expr | None, value: Expr, other: Expr) -> Expr:
    """value where inside holds, else other."""
    return value if inside is None else select(inside, value, other)


def is_empty(shape: Sequence[Dim]) -> bool:
    """True when a dim is 0 (symbolic dims count by their hint; infer has added the guard)."""
    return any(hint(d) == 0 for d in shape)


def guard_empty(shape: Sequence[Dim]) -> None:
    """For infer: guards whether derived symbolic dims are 0, so that lowering may ask."""
    for d in shape:
        if isinstance(d, Sym):
            bool(d == 0)


def zero_filled(b: Builder, shape: Sequence[Dim], dtype: DType) -> Array:
    """An array of zeros; what lowers where there is nothing to read."""
    return b.pointwise(shape, dtype, const(0, dtype))


def padded(
    b: Builder,
    x: Array,
    low: Sequence[Dim],
    high: Sequence[Dim],
    step: Sequence[int],
    value: float,
) -> Array:
    """x padded, cropped (negative low or high) and dilated, `value` in between; x when all is 0."""
    if all(not isinstance(p, Sym) and p == 0 for p in (*low, *high)) and all(s == 1 for s in step):
        return x
    shape = [lo + span(n, s) + hi for n, lo, hi, s in zip(x.shape, low, high, step, strict=True)]
    fill = const(value, x.dtype)
    if is_empty(x.shape):
        return b.pointwise(shape, x.dtype, fill)
    reads = [strided_read(axis(k), shape[k], x.shape[k], low[k], step[k]) for k in range(x.ndim)]
    body = load(x, [r.index for r in reads])
    return b.pointwise(shape, x.dtype, guarded(all_of([r.inside for r in reads]), body, fill))


def accumulator(dtype: DType) -> DType:
    """The dtype sums are accumulated in: float32 for float16 and bfloat16, else dtype itself."""
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype


def in_last_dims(slices: Iterable[slice]) -> tuple[Any, ...]:
    """The NumPy key that takes these slices of the last dims."""
    return (..., *slices)


def is_one(d: Dim) -> bool:
    """True for the static dim 1 (symbolic dims are at least 2)."""
    return not isinstance(d, Sym) and d == 1


def rounded(b: Builder, x: Array, dtype: DType) -> Array:
    """x rounded to dtype; x itself where it has that dtype."""
    if x.dtype is dtype:
        return x
    return b.pointwise(x.shape, dtype, load(x, b.axes(x.ndim)).cast(dtype))
