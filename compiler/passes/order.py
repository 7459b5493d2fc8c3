"""Ordering: kernels in an order that lowers the peak, state written in place after the commit.

Before: kernels, in dependency order. After: a `Schedule`: kernels in waves (kernels of one wave do
not depend on each other and run under one barrier), the wave before which the commit point
stands, and for each storage write whether its value is stored straight into the input's memory.

A value may be stored in place when every other reader of the old contents can run before, the
kernel itself reads the old element only where it writes, and nothing that may flag an error
depends on it. Otherwise the value goes to memory of its own and is copied at the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    SpecialKernel,
    Stage,
    Store,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import (
    Array,
    Expr,
    axis,
    load,
    loads,
)
from jitgrad.compiler.lower import Program
from jitgrad.compiler.passes.faults import can_fault, must_be_waited_for
from jitgrad.compiler.passes.reach import Precedence


@dataclass
class Schedule:
    """Attributes:
    waves: lists of kernels.
    commit: number of waves before the commit point.
    home: array -> the input array in whose memory it is stored (in-place writes and copies).
    """

    waves: list[list[Kernel]]
    commit: int
    home: dict[Array, Array] = field(default_factory=dict)


def order(kernels: list[Kernel], program: Program) -> Schedule:
    """Schedules the kernels of a program."""
    reads = {k: set(kernel_reads(k)) - set(kernel_writes(k)) for k in kernels}
    maker = {a: k for k in kernels for a in kernel_writes(k)}
    readers: dict[Array, list[Kernel]] = {}
    for k in kernels:
        for a in reads[k]:
            readers.setdefault(a, []).append(k)
    precedence: Precedence[Kernel] = Precedence()
    for k in kernels:
        precedence.add(k, [maker[a] for a in reads[k] if a in maker])
    faulty = must_be_waited_for(kernels)
    home: dict[Array, Array] = {}
    taken: set[Array] = set()  # the values of home
    times = Counter(program.results)
    copies: list[tuple[Array, Array]] = []
    for i, position in program.writes:
        target, value = program.inputs[i], program.results[position]
        if value is target:
            continue
        writer = maker.get(value)
        first = [r for r in readers.get(target, []) if r is not writer]
        first += [f for f in faulty if f is not writer]
        if (
            writer is not None
            and times[value] == 1
            and not times[target]
            and target not in taken
            and _in_place(writer, value, target)
            and not precedence.must_follow(first, writer)
        ):
            home[value] = target
            taken.add(target)
            precedence.add(writer, first)
        else:
            copies.append((value, target))
    before = {k: set(precedence.before[k]) for k in kernels}
    linear = _schedule(kernels, before, reads, program)
    writers = {maker[a] for a in home}
    waves = _waves(linear, before, reads, home)
    commit = next((n for n, w in enumerate(waves) if any(k in writers for k in w)), len(waves))
    commit += _append_copies(waves, copies, home)
    return Schedule(waves, commit, home)


def _in_place(k: Kernel, value: Array, target: Array) -> bool:
    """Whether the kernel itself can store the value in the target's memory."""
    if target.strides is not None or can_fault(k):
        return False
    if nbytes(value) != nbytes(target) or value.dtype is not target.dtype:
        return False
    return reads_where_it_writes(k, target, value)


def reads_where_it_writes(kernel: Kernel, source: Array, target: Array) -> bool:
    """Whether storing `target` over `source`'s memory is safe: wherever the kernel loads
    `source`, it is at the very index at which that outer point stores `target`, not later."""
    if isinstance(kernel, (SpecialKernel, ChainKernel)):
        return source not in kernel_reads(kernel)
    if isinstance(kernel, ContractionKernel):
        c = kernel.contraction
        if any(e.attr is source for e in loads([c.a, c.b])):
            return False
        return _same_points(kernel.stores, [], source, target)
    writing = next(
        (n for n, s in enumerate(kernel.stages) if any(t.array is target for t in s.stores)), None
    )
    if writing is None:
        return False
    stages = kernel.stages
    if any(t.array is target and t.combine for t in stages[writing].stores):
        return False
    if any(e.attr is source for s in stages[writing + 1 :] for e in loads(_stage_roots(s))):
        return False
    earlier = [e for s in stages[:writing] for e in _stage_roots(s)]
    here = [r.value for r in stages[writing].reduces]
    return _same_points(list(stages[writing].stores), [*earlier, *here], source, target)


def _stage_roots(s: Stage) -> list[Expr]:
    return [e for t in s.stores for e in (*t.index, t.value)] + [r.value for r in s.reduces]


def _same_points(
    stores: list[Store] | tuple[Store, ...], others: list[Expr], source: Array, target: Array
) -> bool:
    index = next((s.index for s in stores if s.array is target), None)
    roots = [e for s in stores for e in (*s.index, s.value)] + others
    found = [e for e in loads(roots) if e.attr is source]
    if not found:
        return True
    return source.shape == target.shape and all(e.args == index for e in found)


def _schedule(
    kernels: list[Kernel],
    before: dict[Kernel, set[Kernel]],
    reads: dict[Kernel, set[Array]],
    program: Program,
) -> list[Kernel]:
    """List scheduling: of the ready kernels, the one that frees most (then the oldest)."""
    fixed = set(program.inputs) | set(program.results)
    waiting = {k: set(b) for k, b in before.items()}
    after: dict[Kernel, list[Kernel]] = {k: [] for k in kernels}
    for k, b in before.items():
        for p in b:
            after[p].append(k)
    left: dict[Array, int] = {}
    for k in kernels:
        for a in reads[k]:
            left[a] = left.get(a, 0) + 1
    age = {k: n for n, k in enumerate(kernels)}
    size = {a: nbytes(a) for k in kernels for a in (*reads[k], *kernel_writes(k)) if a not in fixed}
    growth = {k: sum(size.get(a, 0) for a in kernel_writes(k)) for k in kernels}  # made - freed
    last: dict[Array, list[Kernel]] = {a: [] for a in left if a in size}
    for k in kernels:
        for a in reads[k]:
            if a in last:
                last[a].append(k)
                growth[k] -= size[a] if left[a] == 1 else 0
    ready = [(growth[k], age[k], k) for k in kernels if not waiting[k]]
    heapify(ready)
    done: set[Kernel] = set()
    out: list[Kernel] = []
    while ready:
        stated, _, k = heappop(ready)
        if k in done or stated != growth[k]:
            continue  # another entry says what it would free now
        done.add(k)
        out.append(k)
        for a in reads[k]:
            left[a] -= 1
            if left[a] == 1 and a in last:
                n = next(n for n in last[a] if n not in done)
                growth[n] -= size[a]
                if not waiting[n]:
                    heappush(ready, (growth[n], age[n], n))
        for n in after[k]:
            waiting[n].discard(k)
            if not waiting[n]:
                heappush(ready, (growth[n], age[n], n))
    return out


def _waves(
    linear: list[Kernel],
    before: dict[Kernel, set[Kernel]],
    reads: dict[Kernel, set[Array]],
    home: dict[Array, Array],
) -> list[list[Kernel]]:
    """Neighbours that do not depend on each other share a wave (single-launch loop kernels)."""
    waves: list[list[Kernel]] = []
    inside: set[Kernel] = set()  # of the last wave
    read: set[Array] = set()  # by the last wave
    for k in linear:
        last = waves[-1] if waves else []
        joins = False
        if last and isinstance(k, LoopKernel) and isinstance(last[0], LoopKernel):
            writes = {home[a] for a in kernel_writes(k) if a in home}
            writers = [any(a in home for a in kernel_writes(p)) for p in (last[0], k)]
            independent = before[k].isdisjoint(inside) and read.isdisjoint(writes)
            joins = independent and writers[0] == writers[1]
        if joins:
            last.append(k)
        else:
            waves.append([k])
            inside, read = set(), set()
        inside.add(k)
        read |= reads[k]
    return waves


def _append_copies(
    waves: list[list[Kernel]], copies: list[tuple[Array, Array]], home: dict[Array, Array]
) -> int:
    """Final copies of values into their inputs' memory; returns how many waves come first now.

    A value that is itself an input's old contents goes through memory of its own first, since
    another copy may overwrite it.
    """
    if not copies:
        return 0
    staged: list[Kernel] = []
    final: list[Kernel] = []
    overwritten = {t for _, t in copies} | set(home.values())
    for value, target in copies:
        if value in overwritten and value is not target:
            kernel, fresh = copy_kernel(value, f"{value.name}_old")
            staged.append(kernel)
            value = fresh
        kernel, stored = copy_kernel(value, f"{target.name}_new", target)
        home[stored] = target
        final.append(kernel)
    if staged:
        waves.insert(0, staged)
    waves.append(final)
    return 1 if staged else 0


def copy_kernel(source: Array, name: str, like: Array | None = None) -> tuple[LoopKernel, Array]:
    """A kernel that copies `source` into a new array (laid out as `like`)."""
    strides = like.strides if like is not None else None
    made = Array(name, source.shape, source.dtype, None, source.line, strides)
    index = tuple(axis(k) for k in range(source.ndim))
    store = Store(made, index, load(source, index))
    return LoopKernel(source.shape, [Stage((), (store,))], [], (), f"copy_{name}"), made
