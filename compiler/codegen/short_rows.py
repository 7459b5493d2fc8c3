"""Short rows: several outer points at once, each with its row in one or a few vectors.

Owns the loops of kernels that reduce along rows of no more elements than a reduction has virtual
lanes (accumulate.py). Then each lane has one element of a row at most, and what is left is the tree
over lanes; the trees of several rows are done as one, in whose vectors the halves of two rows stand
side by side. What is combined with what, and so the bits, is as in the loops of nest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import llvmlite.ir as ir

from jitgrad.compiler.codegen.accumulate import Accumulator, lane_count
from jitgrad.compiler.codegen.code import I8, I32, i64, lanes, undefined
from jitgrad.compiler.codegen.emit import Ops, width_of
from jitgrad.compiler.codegen.memory import broadcast, iota
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
    masks = target.has_masks and program.masks_pay(target)
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
    """The elements of a step's row; 0 where it is not short."""
    count = step.space.extents[-1]
    most = min((lane_count(r.value.dtype) for r in step.reduces), default=64)
    if len(step.space.axes) > 1 or isinstance(count, Sym):
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
    """What the step computes of results of reductions alone."""
    found: dict[Expr, None] = {}
    for e in postorder(step.roots()):
        deps = nest.fn.deps(e)
        if deps and deps <= done and e.op != "load" and e.dtype is not INDEX:
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
    accs = [Accumulator.of(r, count) for r in step.reduces]
    held: list[list[list[State]]] = [[] for _ in accs]  # of each accumulator, point, vector
    for point in points:
        for mine in held:
            mine.append([])
        for start in range(0, count, width):
            part = point.child()
            part.bind_lanes(step.space.axes[0], i64(start), width, width)
            left = count - start
            if left < width:
                b = part.at_end()
                part.mask = b.icmp_signed("<", iota(width), broadcast(b, i64(left), width))
            for a, r, mine in zip(accs, step.reduces, held, strict=True):
                new = a.element(part, part.vector(r.value), i64(start), 1)
                new = a.masked(part, new, part.mask)
                part.at_end()
                mine[-1].append(a.append(nest.fn.ops, a.start(width), new))
            nest.stores(part, step)
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
        seconds: Sequence[State | None] = vectors[1::2] or [None]
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
