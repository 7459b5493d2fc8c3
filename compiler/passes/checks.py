"""Checks: every element that a checked op asks something of is looked at, needed or not.

Before: a Program in which a checked op's result carries its checks: computing all of the result
checks all elements. After: where it is not sure that all of them will be (nothing reads the result,
or only a part of it is read), the program has an array of its own that makes the check, over the
checked operand alone; so compiled code raises what eager code raises, which computes everything.

A check depends on some axes of the result that carries it (the row of a gather, not the column).
All values of these axes are computed if the array is a result or no Pointwise (those are computed
whole), or if they are all read by an array of which, in turn, all values of the axes that select
them are. `_selects` decides that from the indices of a load: where it cannot tell it says no, which
costs a small kernel, never a check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.interpret import node_checks
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Call,
    Expr,
    Pointwise,
    axis,
    const,
    definition_exprs,
    dim,
    loads,
    postorder,
)
from jitgrad.compiler.lower import Program
from jitgrad.compiler.ops.checking import verdict
from jitgrad.compiler.ops.record import Check
from jitgrad.compiler.passes.inline import axis_extents, live_arrays
from jitgrad.compiler.symbolic import Dim, Sym, hint, prod
from jitgrad.runtime import dtypes

Reads = dict[Array, list[tuple[Array, Expr]]]


def keep_checks(program: Program) -> Program:
    """The program, with arrays in `checks` for what nothing else is sure to check."""
    if not program.sites:
        return program
    reads = _reads(program)
    ends = set(program.results)
    builder = Builder()
    builder.prefix = "check"
    for number, site in enumerate(program.sites):
        if (site.node.op.host and site.node.op.checked) or site.node.op.bodies:
            program.checks.append(site.arrays[-1])  # run for what its reference may raise
            continue
        carriers = [
            (a, axes) for a in site.arrays if (axes := _checked_axes(a, number)) is not None
        ]
        if carriers and all(_computed(a, axes, reads, ends) for a, axes in carriers):
            continue
        for check in node_checks(site.node):
            operand = site.operands[check.operand]
            if hint(operand.numel) == 0 or _proven(check, operand):
                continue
            builder.site, builder.line = number, site.node.line
            program.checks.append(verdict(builder, check, operand))
    program.arrays += builder.arrays
    return program


def _checked_axes(array: Array, site: int) -> frozenset[int] | None:
    """The axes on which the site's checks in a definition depend; None when there is no check."""
    checks = [e for e in postorder(definition_exprs(array)) if e.op == "check" and e.attr == site]
    if not checks:
        return None
    return frozenset(e.attr for e in postorder(checks) if e.op == "axis")


def _reads(program: Program) -> Reads:
    """For each array that something needs, the arrays that read it, and how."""
    live = live_arrays(program)
    reads: Reads = {a: [] for a in live}
    for reader in live:
        for e in loads(definition_exprs(reader)):
            if e.attr in reads:
                reads[e.attr].append((reader, e))
    return reads


def _computed(array: Array, axes: frozenset[int], reads: Reads, ends: set[Array]) -> bool:
    """Whether it is sure that elements at all values of these axes are computed."""
    stack, seen = [(array, axes)], {(array, axes)}
    while stack:
        a, wanted = stack.pop()
        if a not in reads or hint(prod(tuple(axis_extents(a).values()))) == 0:
            continue
        if a in ends or not isinstance(a.define, Pointwise):
            return True
        for reader, e in reads[a]:
            if isinstance(reader.define, Call):  # it takes the whole array
                return True
            found = _selects(a, wanted, e, reader)
            if found is not None and (reader, found) not in seen:
                seen.add((reader, found))
                stack.append((reader, found))
    return False


def _selects(
    array: Array, wanted: frozenset[int], read: Expr, reader: Array
) -> frozenset[int] | None:
    """The reader's axes that select among all values of the wanted axes of `array`; None where it
    is not sure that a load reads all of those values."""
    extents = axis_extents(reader)
    used: set[int] = set()
    for k in sorted(wanted):
        n = array.shape[k]
        if not isinstance(n, Sym) and n == 1:
            continue
        mine = {e.attr for e in postorder([read.args[k]]) if e.op == "axis"}
        if mine & used or not _reaches_all(read.args[k], n, extents):
            break
        used |= mine
    else:
        return frozenset(used)
    return frozenset(extents) if _in_order(array, read, reader) else None


def _reaches_all(i: Expr, n: Dim, extents: Mapping[int, Dim]) -> bool:
    """Whether an index takes every value in [0, n): it is an axis of that extent, or moves by at
    most one from point to point of one axis, from end to end of the range."""
    if i.op == "axis":
        extent = extents[i.attr]
        if extent is n or (isinstance(extent, Sym) and isinstance(n, Sym) and extent.key == n.key):
            return True
    axes = {e.attr for e in postorder([i]) if e.op == "axis"}
    steady = all(
        e.op in ("axis", "const", "add", "sub", "neg", "min", "max") for e in postorder([i])
    )
    if not steady or len(axes) != 1 or [e.op for e in _paths(i)].count("axis") != 1:
        return False
    (k,) = axes
    extent = extents[k]
    if isinstance(extent, Sym) or isinstance(n, Sym):
        return False
    return {_value(i, k, 0), _value(i, k, extent - 1)} == {0, n - 1}


def _paths(e: Expr) -> list[Expr]:
    """The nodes of an expression as a tree, shared nodes once for each use (a few at most)."""
    out: list[Expr] = []
    stack = [e]
    while stack and len(out) < 32:
        out.append(stack.pop())
        stack += out[-1].args
    return out if not stack else []


_STEADY: dict[str, Any] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "neg": lambda a: -a,
    "min": min, "max": max,
}  # fmt: skip


def _value(i: Expr, k: int, at: int) -> int:
    values: dict[Expr, int] = {}
    for e in postorder([i]):
        if e.op in ("axis", "const"):
            values[e] = at if e.op == "axis" else e.attr
        else:
            values[e] = _STEADY[e.op](*(values[a] for a in e.args))
    return values[i]


def _in_order(array: Array, read: Expr, reader: Array) -> bool:
    """Whether the reader's points, in order, read the array's elements in order (a reshape)."""
    extents = axis_extents(reader)
    sizes = tuple(extents.values())
    if any(isinstance(d, Sym) for d in (*sizes, *array.shape)) or prod(sizes) != array.numel:
        return False
    simplify = Simplifier(extents).simplify
    mine = _flat(tuple(axis(k) for k in extents), sizes)
    return simplify(_flat(read.args, array.shape)) is simplify(mine)


def _flat(index: tuple[Expr, ...], shape: tuple[Dim, ...]) -> Expr:
    total = const(0, INDEX)
    for i, d in zip(index, shape, strict=True):
        total = total * dim(d) + i
    return total


def _proven(check: Check, operand: Array) -> bool:
    """Whether what is asked is known from the operand's definition: a constant, or an index that
    was checked before."""
    while isinstance(operand.define, Pointwise):
        body = operand.define.body
        value = body.args[0] if body.op == "cast" else body
        if value.op == "load":
            operand = value.attr
            continue
        if value.op == "const":
            return check.first(np.asarray(value.attr).astype(operand.dtype.np)) is None
        if body.dtype is not dtypes.int64 or not check.zero:
            return False
        bounds = Simplifier(axis_extents(operand)).bounds(body.cast(INDEX))
        return (
            bounds is not None
            and not any(isinstance(x, Sym) for x in (*bounds, check.low, check.high))
            and (check.low is None or check.low <= bounds[0])
            and (check.high is None or bounds[1] <= check.high)
        )
    return False
