"""Checks: every element that a checked op asks something of is looked at, needed or not.

Before: a Program in which a checked op's result carries its checks: computing all of the result
checks all elements. After: where it is not sure that all of the result will be computed (nothing
reads it, or only a part of it is read), the program has an array of its own that makes the check,
over the checked operand alone; so compiled code raises what eager code raises, which computes
everything.

All of an array is computed if it is a result, if it is no Pointwise (those are never computed in
part), or if an array of which all is computed reads all of it. `_covers` decides the last from the
indices of the loads: it says no where it cannot tell, which costs a small kernel, never a check.
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


def keep_checks(program: Program) -> Program:
    """The program, with arrays in `checks` for what nothing else is sure to check."""
    if not program.sites:
        return program
    whole = _computed_whole(program)
    builder = Builder()
    builder.prefix = "check"
    for number, site in enumerate(program.sites):
        if site.node.op.host and site.node.op.checked:
            program.checks.append(site.arrays[-1])  # run for what its reference may raise
            continue
        carriers = [a for a in site.arrays if _carries(a, number)]
        if carriers and all(a in whole and hint(prod(_space(a))) > 0 for a in carriers):
            continue
        for check in node_checks(site.node):
            operand = site.operands[check.operand]
            if hint(operand.numel) == 0 or _proven(check, operand):
                continue
            builder.site, builder.line = number, site.node.line
            program.checks.append(verdict(builder, check, operand))
    program.arrays += builder.arrays
    return program


def _carries(array: Array, site: int) -> bool:
    return any(e.op == "check" and e.attr == site for e in postorder(definition_exprs(array)))


def _space(array: Array) -> tuple[Dim, ...]:
    """The extents of the loops that evaluate a definition's checks."""
    return tuple(axis_extents(array).values())


def _computed_whole(program: Program) -> set[Array]:
    """The arrays of which it is sure that every element is computed."""
    live = live_arrays(program)
    reads: dict[Array, list[tuple[Array, Expr]]] = {a: [] for a in live}
    for reader in live:
        for e in loads(definition_exprs(reader)):
            if e.attr in reads:
                reads[e.attr].append((reader, e))
    whole: set[Array] = set()
    for array in reversed(live):
        if (
            array in program.results
            or not isinstance(array.define, Pointwise)
            or any(r in whole and _covers(array, e, r) for r, e in reads[array])
        ):
            whole.add(array)
    return whole


def _covers(array: Array, read: Expr, reader: Array) -> bool:
    """Whether a load in `reader`, evaluated over all its space, reads every element of `array`."""
    extents = axis_extents(reader)
    if not hint(prod(tuple(extents.values()))):
        return False
    used: set[int] = set()
    for i, n in zip(read.args, array.shape, strict=True):
        if not isinstance(n, Sym) and n == 1:
            continue
        mine = {e.attr for e in postorder([i]) if e.op == "axis"}
        if mine & used or not _reaches_all(i, n, extents):
            break
        used |= mine
    else:
        return True
    return _in_order(array, read, reader)


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
