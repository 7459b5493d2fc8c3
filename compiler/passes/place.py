"""Placing: what a kernel stores goes where a copy would put it.

Before: kernels. After: those without copies that only rename places: an array that is made of
another one by a reshape or a permutation, where nothing else reads that one, is stored by the
kernel that made the other. The new place must keep neighbours along the last axis neighbours (a
transposition stays a kernel of its own, which goes by blocks).

A copy's index into what it copies has in each place a digit of one of its own axes (axis // c % d),
and each axis is the sum of its digits: so the place of an element is known from its index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jitgrad.compiler.kernels import (
    ContractionKernel,
    Kernel,
    LoopKernel,
    Store,
    kernel_reads,
    without_stores,
)
from jitgrad.compiler.loops import INDEX, Array, Expr, axis, const
from jitgrad.compiler.symbolic import is_static

_RUN = 16  # neighbours that stay neighbours at least

Digit = tuple[int, int, int]
"""Of an index: the axis of the copy, what that is divided by, and how many values it has."""


def place(kernels: list[Kernel], roots: Iterable[Array]) -> list[Kernel]:
    """The kernels without the copies."""
    kept = set(roots)
    readers: dict[Array, int] = {}
    for k in kernels:
        for a in kernel_reads(k):
            readers[a] = readers.get(a, 0) + 1
    makers: dict[Array, tuple[int, int, int]] = {}  # number of the kernel, stage, store
    out: list[Kernel | None] = list(kernels)
    for n, k in enumerate(kernels):
        for copy in _copies(k):
            source = copy.value.attr
            at = makers.get(source)
            if at is None or source in kept or readers[source] != 1:
                continue
            reader = out[n]
            assert reader is not None
            rest = without_stores(reader, {copy.array})
            if rest is not None and source in kernel_reads(rest):
                continue
            digits = _digits(copy, source)
            if digits is not None and _moved(out, at, copy, digits):
                out[n] = rest
        now = out[n]
        if now is not None:
            makers |= {t.array: (n, s, i) for s, i, t in _stores(now)}
    return [k for k in out if k is not None]


def _stores(k: Kernel) -> list[tuple[int, int, Store]]:
    """The stores of a kernel, with the numbers of the stage and in it."""
    if isinstance(k, ContractionKernel):
        return [(0, i, t) for i, t in enumerate(k.stores)]
    if not isinstance(k, LoopKernel):
        return []
    local = set(k.locals)
    return [
        (s, i, t)
        for s, stage in enumerate(k.stages)
        for i, t in enumerate(stage.stores)
        if not t.combine and t.array not in local
    ]


def _copies(k: Kernel) -> list[Store]:
    """The stores of a pointwise kernel that only copy an array to another shape."""
    if not isinstance(k, LoopKernel) or len(k.stages) != 1 or k.stages[0].inner:
        return []
    here = tuple(axis(n) for n in range(len(k.outer)))
    return [
        t for _, _, t in _stores(k)
        if t.index == here and t.value.op == "load" and t.value.attr is not t.array
        and is_static([*t.array.shape, *t.value.attr.shape]) and t.array.shape == tuple(k.outer)
    ]  # fmt: skip


def _digits(copy: Store, source: Array) -> list[Digit | None] | None:
    """The digit that each index of the source is; None if they are not all the digits there are,
    or the last one is not that of neighbours."""
    shape = copy.array.shape
    found: list[Digit | None] = []
    of_axis: dict[int, list[tuple[int, int]]] = {}
    for index, size in zip(copy.value.args, source.shape, strict=True):
        assert isinstance(size, int)
        if size == 1:
            found.append(None)
            continue
        digit = _digit(index, size)
        if digit is None:
            return None
        found.append((*digit, size))
        of_axis.setdefault(digit[0], []).append((digit[1], size))
    for n, extent in enumerate(shape):
        reach = 1
        for divisor, size in sorted(of_axis.get(n, [])):
            if divisor != reach:
                return None
            reach *= size
        if reach != extent:
            return None
    last = next((d for d in reversed(found) if d is not None), None)
    wide = [n for n, extent in enumerate(shape) if extent != 1]
    if last is None or last[:2] != (wide[-1], 1) or last[2] < min(_RUN, shape[wide[-1]]):
        return None
    return found


def _digit(index: Expr, size: int) -> tuple[int, int] | None:
    """The axis and the divisor of axis // divisor, or of axis // divisor % size."""
    if index.op == "mod" and index.args[1] is const(size, INDEX):
        index = index.args[0]
    divisor = 1
    if index.op == "floordiv" and index.args[1].op == "const":
        index, divisor = index.args[0], index.args[1].attr
    return (index.attr, divisor) if index.op == "axis" else None


def _moved(
    out: list[Kernel | None], at: tuple[int, int, int], copy: Store, digits: list[Digit | None]
) -> bool:
    """Has a kernel store what it made to where the copy would bring it."""
    n, s, i = at
    k = out[n]
    old = next((t for a, b, t in _stores(k) if (a, b) == (s, i)), None) if k is not None else None
    if k is None or old is None or old.array is not copy.value.attr:
        return False
    index = [const(0, INDEX)] * copy.array.ndim
    for place, digit in zip(old.index, digits, strict=True):
        if digit is not None:
            index[digit[0]] = index[digit[0]] + place * digit[1]
    new = replace(old, array=copy.array, index=tuple(index))
    out[n] = _with(k, s, i, new)
    return True


def _with(k: Kernel, s: int, i: int, store: Store) -> Kernel:
    if isinstance(k, ContractionKernel):
        return replace(k, stores=[*k.stores[:i], store, *k.stores[i + 1 :]])
    assert isinstance(k, LoopKernel)
    stages = list(k.stages)
    stores = stages[s].stores
    stages[s] = replace(stages[s], stores=(*stores[:i], store, *stores[i + 1 :]))
    return replace(k, stages=stages)
