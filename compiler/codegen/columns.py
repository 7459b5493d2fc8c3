"""Sums over columns in the order of memory: row after row, sums of all columns side by side.

Owns two rewritings into launches over rows. A kernel over rows that also sums over its rows (stores
with a `combine`) keeps one row of partial sums for each block of COLUMN_BLOCK rows; a second launch
adds the blocks. A kernel that reduces columns, one outer point a column, becomes such kernels, one
for each stage, with its scalars in memory between them. The order of additions is that of
accumulate.py: within a block one row after the other, then block after block. So bits do not
depend on which form is chosen. Walking down the columns instead would touch a new line of memory,
and often a new page, at every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from jitgrad.compiler import loops
from jitgrad.compiler.codegen.accumulate import COLUMN_BLOCK, OPERATIONS, neutral
from jitgrad.compiler.codegen.program import FlatStore, Program, Step
from jitgrad.compiler.codegen.schedule import Space, coefficient, constant_of
from jitgrad.compiler.cost import weight
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.kernels import Reduce
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
    make,
    rewrite,
    select,
)
from jitgrad.compiler.symbolic import Dim, Sym, hint, is_static

_BLOCK, _STRIP = 1 << 20, (1 << 20) + 1  # axis numbers that no kernel uses
_LEAST_POINTS = 1 << 12  # smaller kernels stay as they are
_LEAST_COLUMNS, _LEAST_ROWS = 32, 16
_STRIPS = (4096, 2048, 1024, 512)  # columns that are summed side by side, where there are many
_TASKS = 8  # blocks that keep several threads busy
_SERIAL = 1 << 17  # points that one thread does as fast
_HEAVY = 4  # work that takes longer than a load: a division
_NOTHING = Space([], [])


def launch_folds(program: Program) -> tuple[list[Program], list[Array]] | None:
    """The launches, and partial sums between them, of a kernel with sums over its outer points;
    None for other kernels."""
    if not any(t.combine for s in program.steps for t in s.stores):
        return None
    rows = program.outer
    blocks = _block_count(rows.total)
    row = _flat(rows)
    steps, workspace = [], []
    sums: dict[tuple[tuple[int, ...], tuple[object, ...]], list[tuple[FlatStore, Array]]] = {}
    for step in program.steps:
        stores = []
        for t in step.stores:
            if not t.combine:
                stores.append(t)
                continue
            target = t.array
            if isinstance(blocks, Sym) or blocks != 1:  # of no block too: the second launch writes
                partial = Array("partial", (blocks * hint(t.array.numel),), t.value.dtype)
                workspace.append(partial)
                target = program.operands.array(partial)
                key = tuple(step.space.axes), tuple(step.space.extents)
                sums.setdefault(key, []).append((t, target))
            size = hint(t.array.numel)
            stores.append(_accumulate(target, t.offset, t.value, t.combine, row, size))
        steps.append(Step(step.space, stores, step.reduces))
    programs = [replace(program, steps=steps, unit=COLUMN_BLOCK)]
    for (axes, extents), found in sums.items():
        joined = _Joined(Space(list(axes), list(extents)), blocks)  # type: ignore[arg-type]
        stores = []
        for t, partial in found:
            local = Array("whole", (), t.value.dtype)
            size = hint(t.array.numel)
            joined.add(local, partial, axis(_BLOCK) * size + t.offset, t.combine)
            stores.append(FlatStore(t.array, t.offset, loops.load(local, ())))
        joined.steps.append(Step(_NOTHING, stores, []))
        programs.append(joined.program(program))
    return programs, workspace


def launch_columns(program: Program) -> tuple[list[Program], list[Array]] | None:
    """The launches by rows, and what lies between them, of a kernel that reduces columns; None
    where walking down the columns is as good, or where the kernel is of another kind."""
    plan = _plan(program)
    return None if plan is None else _Columns(program, plan).launches()


def _accumulate(
    target: Array, offset: Expr, value: Expr, combine: str, row: Expr, size: int
) -> FlatStore:
    """One row of partial sums takes one more value; each block of rows starts anew."""
    block = make("floordiv", row, const(COLUMN_BLOCK, INDEX))
    where = block * size + offset
    first = make("mod", row, const(COLUMN_BLOCK, INDEX)).eq(0)
    start = const(neutral(combine, value.dtype), value.dtype)
    old = select(first, start, loops.load(target, (where,)))
    return FlatStore(target, where, make(OPERATIONS[combine], old, value))


def _block_count(rows: Dim) -> Dim:
    return (rows + (COLUMN_BLOCK - 1)) // COLUMN_BLOCK


def _flat(space: Space) -> Expr:
    total = const(0, INDEX)
    for k, d in zip(space.axes, space.extents, strict=True):
        total = total * loops.dim(d) + axis(k)
    return total


@dataclass
class _Joined:
    """A launch over columns that adds up blocks, then does what is done once for each column."""

    outer: Space
    blocks: Dim
    reduces: list[Reduce] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def add(self, local: Array, partial: Array, where: Expr, combine: str) -> None:
        self.reduces.append(Reduce(local, loops.load(partial, (where,)), combine, "columns"))

    def program(self, like: Program) -> Program:
        steps = list(self.steps)
        if self.reduces:
            steps.insert(0, Step(Space([_BLOCK], [self.blocks]), [], self.reduces))
        return replace(like, outer=self.outer, steps=steps, buffers={}, column_limit=2)


# -- kernels with one outer point for each column -------------------------------------------------
@dataclass(frozen=True)
class _Plan:
    """lead: the outer axes but the last, `column`. strip: columns of a task, all if 0."""

    lead: Space
    column: int
    columns: int
    rows: Space
    strip: int


def _plan(program: Program) -> _Plan | None:
    steps = [s for s in program.steps if s.space.axes]
    reduces = [r for s in program.steps for r in s.reduces]
    outer = program.outer
    if not reduces or not outer.axes or program.buffers or program.scalar:
        return None
    if any(r.order != "columns" or r.combine.startswith("arg") for r in reduces):
        return None
    if any(s.reduces and not s.space.axes for s in program.steps):
        return None
    rows = steps[0].space
    if any(s.space.axes != rows.axes or s.space.extents != rows.extents for s in steps):
        return None
    lead = Space(outer.axes[:-1], outer.extents[:-1])
    if not is_static(outer.extents) or (lead.axes and not is_static(rows.extents)):
        return None
    columns, count, many = hint(outer.extents[-1]), hint(rows.total), hint(lead.total)
    points = columns * count * many
    if columns < _LEAST_COLUMNS or count < _LEAST_ROWS or points < _LEAST_POINTS:
        return None
    if _score(program, steps) <= 0:
        return None
    blocks = -(-count // COLUMN_BLOCK) * many
    if many > 1 and count % COLUMN_BLOCK:
        blocks = many
    strip = 0
    for size in _STRIPS if is_static(rows.extents) else ():
        if columns % size == 0 and size < columns:
            strip = size
            if blocks * (columns // size) >= _TASKS:
                break
    if blocks >= _TASKS and columns <= _STRIPS[0]:
        strip = 0
    if blocks * (columns // strip if strip else 1) < _TASKS // 2 and points > _SERIAL:
        return None
    return _Plan(lead, outer.axes[-1], columns, rows, strip)


def _score(program: Program, steps: Sequence[Step]) -> int:
    """Positive where neighbours in memory are neighbouring columns."""
    s = Simplifier({})
    score = 0
    for step in steps:
        across, down = axis(program.outer.axes[-1]), axis(step.space.axes[-1])
        stored = [t.offset for t in step.stores]
        read = [e.args[0] for e in loops.loads(step.roots())
                if e.attr in program.operands.number]  # fmt: skip
        for place in (*stored, *read):
            poly = s.poly(place)
            if coefficient(poly, across) == {} or coefficient(poly, down) == {}:
                continue
            score += constant_of(coefficient(poly, across)) == 1
            score -= constant_of(coefficient(poly, down)) == 1
    return score


class _Columns:
    """The launches of one kernel."""

    def __init__(self, program: Program, plan: _Plan) -> None:
        self.program, self.plan = program, plan
        self.blocks = _block_count(plan.rows.total)
        self.results: list[Program | _Joined] = []
        self.workspace: list[Array] = []
        self.whole: dict[Array, Array] = {}  # a local -> its values for all columns, in memory
        self.once: dict[Expr, Expr] = {}  # what is computed once a column -> its load from memory
        self.position = _flat(program.outer)  # of a column among the results

    def launches(self) -> tuple[list[Program], list[Array]]:
        steps = self.program.steps
        for n, step in enumerate(steps):
            if not step.space.axes:
                stores = [replace(t, value=self._value(t.value, n)) for t in step.stores]
                self._tail().steps.append(Step(_NOTHING, stores, []))
                continue
            later = _locals(steps[n + 1 :])
            self._rows(step, n, later)
        done = [p.program(self.program) if isinstance(p, _Joined) else p for p in self.results]
        return done, self.workspace

    def _tail(self) -> _Joined:
        """The launch over columns that what comes next can be done in."""
        if not self.results or not isinstance(self.results[-1], _Joined):
            self.results.append(_Joined(self.program.outer, self.blocks))
        last = self.results[-1]
        assert isinstance(last, _Joined)
        return last

    def _value(self, e: Expr, n: int) -> Expr:
        """e with the locals of earlier launches read from memory."""
        last = self.results[-1] if self.results else None
        own = {r.array for r in last.reduces} if isinstance(last, _Joined) else set()

        def leaf(x: Expr) -> Expr | None:
            if x.op == "load" and x.attr in self.whole and x.attr not in own:
                return loops.load(self.whole[x.attr], (self.position,))
            return None

        return rewrite(e, leaf)

    def _memory(self, name: str, size: Dim, like: Expr) -> Array:
        made = Array(name, (size,), like.dtype)
        self.workspace.append(made)
        return self.program.operands.array(made)

    def _rows(self, step: Step, n: int, later: set[Array]) -> None:
        """The launch over rows of one stage, and the one that adds its blocks."""
        plan = self.plan
        step = self._without_invariants(step, n)
        self.results.append(_Joined(_NOTHING, 0))  # no locals are at hand in a launch over rows
        stores = [replace(t, value=self._value(t.value, n)) for t in step.stores]
        values = [self._value(r.value, n) for r in step.reduces]
        self.results.pop()
        row, column = _flat(plan.rows), axis(plan.column)
        leads = _flat(plan.lead)
        many = hint(plan.lead.total)
        joins = []
        for r, value in zip(step.reduces, values, strict=True):
            each = self.blocks * plan.columns
            partial = self._memory("partial", many * each, value)
            lead = leads * loops.dim(each)
            store = _accumulate(partial, lead + column, value, r.combine, row, plan.columns)
            stores.append(store)
            where = lead + axis(_BLOCK) * plan.columns + column
            joins.append((r, partial, where))
        self.results.append(self._launch(stores))
        if not isinstance(self.blocks, Sym) and self.blocks == 1:
            for r, partial, _ in joins:
                self.whole[r.array] = partial
            return
        if not joins:
            return
        joined = _Joined(self.program.outer, self.blocks)
        self.results.append(joined)
        kept = []
        for r, partial, where in joins:
            joined.add(r.array, partial, where, r.combine)
            if r.array in later:
                whole = self._memory("whole", many * plan.columns, r.value)
                self.whole[r.array] = whole
                kept.append(FlatStore(whole, self.position, loops.load(r.array, ())))
        joined.steps.append(Step(_NOTHING, kept, []))

    def _without_invariants(self, step: Step, n: int) -> Step:
        """The stage with what is the same in all rows, and more work than a load, from memory: it
        is computed once a column, in the launch before this one."""
        rows = sum(1 << k for k in self.plan.rows.axes)

        def is_heavy_invariant(e: Expr) -> bool:
            return not (e.dtype is INDEX or e.axes & rows or e.has_check) and weight([e]) >= _HEAVY

        seen: set[Expr] = set()
        stack = [*(t.value for t in step.stores), *(r.value for r in step.reduces)]
        while stack:
            e = stack.pop()
            if e in seen:
                continue
            seen.add(e)
            if not is_heavy_invariant(e):
                stack += e.args
            elif e not in self.once:
                made = self._memory("once", hint(self.program.outer.total), e)
                store = FlatStore(made, self.position, self._value(e, n))
                self._tail().steps.append(Step(_NOTHING, [store], []))
                self.once[e] = loops.load(made, (self.position,))
        memo = dict(self.once)
        stores = [replace(t, value=rewrite(t.value, lambda _: None, memo)) for t in step.stores]
        reduces = [replace(r, value=rewrite(r.value, lambda _: None, memo)) for r in step.reduces]
        return replace(step, stores=stores, reduces=reduces)

    def _launch(self, stores: list[FlatStore]) -> Program:
        plan = self.plan
        axes = [*plan.lead.axes, *plan.rows.axes]
        extents = [*plan.lead.extents, *plan.rows.extents]
        columns = plan.columns
        if plan.strip:
            axes, extents = [_STRIP, *axes], [plan.columns // plan.strip, *extents]
            columns = plan.strip
            moved = {axis(plan.column): axis(_STRIP) * plan.strip + axis(plan.column)}
            s = Simplifier(dict(zip((*axes, plan.column), (*extents, columns), strict=True)))

            def renew(e: Expr) -> Expr:
                return s.simplify(rewrite(e, lambda x: moved.get(x)))

            stores = [replace(t, offset=renew(t.offset), value=renew(t.value)) for t in stores]
        # Blocks of work begin with a block of sums; a strip has all rows before the next has any.
        unit = COLUMN_BLOCK
        if plan.strip or plan.lead.axes:
            count = plan.rows.total
            assert isinstance(count, int)
            unit = COLUMN_BLOCK if count % COLUMN_BLOCK == 0 else count
        step = Step(Space([plan.column], [columns]), stores, [])
        return replace(self.program, outer=Space(axes, extents), steps=[step], unit=unit)


def _locals(steps: Iterable[Step]) -> set[Array]:
    """The row-local scalars that steps read."""
    return {e.attr for s in steps for e in loops.loads(s.roots())}
