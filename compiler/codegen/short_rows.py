"""Short rows: several outer points at once, each with its row in one or a few vectors.

Owns the loops of kernels that reduce along rows of no more elements than a reduction has virtual
lanes (accumulate.py). Then each lane has one element of a row at most (or of each of a few rows, as
in a window), and what is left is the tree over lanes; the trees of several points are done as one,
in whose vectors the halves of two points stand side by side. What is made of the results alone (a
logarithm of each row's sum) is computed for all the points as lanes. What is combined with what,
and so the bits, is as in the loops of nest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import llvmlite.ir as ir

from jitgrad.compiler.codegen.accumulate import LANE_BLOCK, Accumulator, lane_count
from jitgrad.compiler.codegen.code import I8, I32, i64, lanes, undefined
from jitgrad.compiler.codegen.emit import Ops, width_of
from jitgrad.compiler.codegen.memory import broadcast, iota
from jitgrad.compiler.codegen.schedule import Space
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.loops import INDEX, Array, Expr, postorder
from jitgrad.compiler.symbolic import Sym

if TYPE_CHECKING:
    from jitgrad.compiler.codegen.nest import Nest
    from jitgrad.compiler.codegen.program import Step

_AT_ONCE = (8, 4, 2)  # rows
_SHORTEST = 4  # elements of the rows that this pays for
_MOST_CODE = 256  # vector operations of the rows that are done at once

State = list[ir.Value]


def rows_at_once(nest: Nest) -> int:
    """How many rows are to be done at once; 0 where the kernel's rows are not short."""
    program, target = nest.program, nest.fn.target
    special = program.unit or program.scalar or program.block_axis is not None
    inner = [step for step in program.steps if step.space.axes]
    if special or not program.outer.axes or not any(step.reduces for step in inner):
        return 0
    masks = program.masks_pay(target)
    code = 0
    done: set[Array] = set()
    for step in inner:
        count = _count(step)
        if not count or not (masks or count % _width(nest, count) == 0):
            return 0
        cost = step.cost() - len(_of_results(nest, step, done)) + 2 * len(step.reduces) + 2
        code += -(-count // _width(nest, count)) * cost
        done.update(r.array for r in step.reduces)
    return next((n for n in _AT_ONCE if n * code <= _MOST_CODE), int(code <= _MOST_CODE))


def _count(step: Step) -> int:
    """The elements of a step's rows; 0 where they are not short."""
    count, total = step.space.extents[-1], step.space.total
    most = min((lane_count(r.value.dtype) for r in step.reduces), default=64)
    if isinstance(count, Sym) or isinstance(total, Sym) or total > LANE_BLOCK:
        return 0
    return count if _SHORTEST <= count <= most else 0


def _width(nest: Nest, count: int) -> int:
    return min(nest.width, 1 << (count - 1).bit_length())


def emit_short_rows(nest: Nest, at_once: int) -> None:
    """Emits the kernel: `at_once` outer points after the other, then what is left one by one."""
    fn, top, steps = nest.fn, nest.fn.top, nest.program.steps
    nbytes = {a: -(-numel * a.dtype.itemsize // 64) * 64 for a, numel in nest.buffers.items()}
    memory = {a: fn.scratch(at_once * n) for a, n in nbytes.items()}
    position = top.counter(fn.begin)
    for n in (at_once, 1):
        with top.loop_from(position, fn.end, n, whole=True) as (block, first):
            points = []
            for k in range(n):
                point = block.child()
                nest.unflatten(point, point.at_end().add(first, i64(k)), nest.program.outer)
                for a, base in memory.items():
                    here = point.at_end().gep(base, [i64(k * nbytes[a])], source_etype=I8)
                    point.bind_buffer(a, here)
                points.append(point)
            across = block.child()  # lanes are the points
            across.width, across.aligned = n, 1
            done: set[Array] = set()
            for step in steps:
                _share(nest, across, points, step, done)
                if step.space.axes:
                    _step(nest, across, points, step)
                else:
                    for point in points:
                        nest.stores(point.child(), step)
                done.update(r.array for r in step.reduces)


def _of_results(nest: Nest, step: Step, done: set[Array]) -> dict[Expr, None]:
    """What the step computes of results of reductions alone, without what lies at places that
    depend on them."""
    found: dict[Expr, None] = {}
    apart: set[Expr] = set()
    for e in postorder(step.roots()):
        deps = nest.fn.deps(e)
        at_result = e.op == "load" and e.attr not in done and bool(deps)
        if at_result or any(a in apart for a in e.args):
            apart.add(e)
        elif deps and deps <= done and e.op != "load" and e.dtype is not INDEX:
            found[e] = None
    return found


def _share(nest: Nest, across: Scope, points: list[Scope], step: Step, done: set[Array]) -> None:
    """Computes what the step reads of results of reductions for all points at once."""
    ours = _of_results(nest, step, done)
    read = {a for e in postorder(step.roots()) if e not in ours for a in e.args}
    roots = [e for e in ours if e in read or e in step.roots()]
    if len(points) == 1 or not roots:
        return
    for e in roots:
        vector = across.vector(e)
        for k, point in enumerate(points):
            if e not in point.memo:
                point.memo[e] = point.at_end().extract_element(vector, ir.Constant(I32, k))


def _step(nest: Nest, across: Scope, points: list[Scope], step: Step) -> None:
    """One stage of all points."""
    count = _count(step)
    width = _width(nest, count)
    lead = Space(step.space.axes[:-1], step.space.extents[:-1])
    accs = [Accumulator.of(r, step.space.total) for r in step.reduces]
    held = [[[a.start(width) for _ in range(0, count, width)] for _ in points] for a in accs]
    if not lead.axes:
        _row(nest, points, step, accs, held, i64(0))
    else:
        states = [state for h in held for vectors in h for state in vectors]
        slots = [[nest.fn.slot(value.type) for value in state] for state in states]
        _put(across, states, slots)
        with across.loop(i64(0), nest.dim(lead.total), 1) as (inner, r):
            _get(inner, states, slots)
            rows = [inner.child_with(point) for point in points]
            for row in rows:
                nest.unflatten(row, r, lead)
            _row(nest, rows, step, accs, held, r)
            states = [state for h in held for vectors in h for state in vectors]
            _put(inner, states, slots)
        _get(across, states, slots)
    for a, r, mine in zip(accs, step.reduces, held, strict=True):
        b = across.at_end()
        trees = _trees(nest.fn.ops, a, [_halved(nest.fn.ops, a, vectors) for vectors in mine])
        results = [a.result(nest.fn.ops, state) for state in trees]
        for point, result in zip(points, results, strict=True):
            point.bind_local(r.array, result)
        if len(points) > 1:
            together: ir.Value = undefined(ir.VectorType(results[0].type, len(points)))
            for k, result in enumerate(results):
                together = b.insert_element(together, result, ir.Constant(I32, k))
            across.bind_local(r.array, together)


def _row(
    nest: Nest, points: list[Scope], step: Step, accs: list[Accumulator],
    held: list[list[list[State]]], number: ir.Value,
) -> None:  # fmt: skip
    """One row of each point: what is `held` of each accumulator, point and vector takes it."""
    count = _count(step)
    width = _width(nest, count)
    for k, point in enumerate(points):
        for m, start in enumerate(range(0, count, width)):
            part = point.child()
            part.bind_lanes(step.space.axes[-1], i64(start), width, width)
            b = part.at_end()
            if count - start < width:
                left = broadcast(b, i64(count - start), width)
                part.mask = b.icmp_signed("<", iota(width), left)
            first = b.add(b.mul(number, i64(count)), i64(start))
            for a, r, mine in zip(accs, step.reduces, held, strict=True):
                new = a.element(part, part.vector(r.value), first, 1)
                new = a.masked(part, new, part.mask)
                part.at_end()
                mine[k][m] = a.append(nest.fn.ops, mine[k][m], new)
            nest.stores(part, step)


def _put(scope: Scope, states: list[State], slots: list[State]) -> None:
    b = scope.at_end()
    for state, mine in zip(states, slots, strict=True):
        for value, slot in zip(state, mine, strict=True):
            b.store(value, slot)


def _get(scope: Scope, states: list[State], slots: list[State]) -> None:
    b = scope.at_end()
    for state, mine in zip(states, slots, strict=True):
        state[:] = [b.load(x, typ=v.type) for x, v in zip(mine, state, strict=True)]


def _halved(ops: Ops, a: Accumulator, vectors: list[State]) -> State:
    """The vectors of one row combined by halves; those that are missing are as at the start."""
    n = 1 << (len(vectors) - 1).bit_length()
    while n > 1:
        n //= 2
        vectors = [
            a.join(ops, v, vectors[k + n]) if k + n < len(vectors) else v
            for k, v in enumerate(vectors[:n])
        ]
    return vectors[0]


def _trees(ops: Ops, a: Accumulator, rows: list[State]) -> list[State]:
    """The lanes of each row's vector combined by halves, to scalars."""
    count = len(rows)
    n = width_of(rows[0][0])  # lanes of a row; a vector has those of 1, 2, 4, .. rows
    if n == 1:
        return rows
    vectors = rows
    while n > 1:
        seconds: Sequence[State | None] = vectors[1::2] if len(vectors) > 1 else [None]
        pairs = zip(vectors[::2], seconds, strict=True)
        vectors = [a.join(ops, *_sides(ops, x, y, n)) for x, y in pairs]
        n //= 2
    b = ops.builder
    found: list[State] = []
    for state in vectors:
        if width_of(state[0]) == 1:
            found.append(state)
            continue
        for k in range(width_of(state[0])):
            found.append([b.extract_element(part, ir.Constant(I32, k)) for part in state])
    return found[:count]


def _sides(ops: Ops, x: State, y: State | None, n: int) -> tuple[State, State]:
    """The lower halves, and the upper ones, of each n lanes of x and then of y."""
    width = width_of(x[0])
    total = width if y is None else 2 * width
    sides = []
    for first in (0, n // 2):
        order = tuple(k + e for k in range(first, total, n) for e in range(n // 2))
        sides.append([_chosen(ops, v, None if y is None else y[k], order) for k, v in enumerate(x)])
    return sides[0], sides[1]


def _chosen(ops: Ops, x: ir.Value, y: ir.Value | None, order: tuple[int, ...]) -> ir.Value:
    """These lanes of x followed by y."""
    if len(order) == 1:
        return ops.builder.extract_element(x, ir.Constant(I32, order[0]))
    return ops.builder.shuffle_vector(x, undefined(x.type) if y is None else y, lanes(order))
