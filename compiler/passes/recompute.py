"""Recomputation: kernels run a second time, so that what they store need not be kept so long.

`recompute`: before, a Schedule whose plan is above a bound; after, one whose plan is not, or the
best that was found. `spare`: before, any Schedule; after, one with a lower peak for little work. An
array that is live in the wave with the most bytes, but read only before and after it, is made again
by a copy of its kernel just before it is read again; the kernels that read it from there on read
the new one. The copy has the same code, so the bits are the same.

Greedy: of the arrays that may go, the one first that costs the least work for each byte. A kernel
may run again (or, of a contraction that stores its sums, what it makes of them) where it flags no
error and all that it reads is still there: inputs that nothing has written, results, and
temporaries, which then live longer where they are small, or are made again themselves.

Source: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016), for the
idea; which arrays go is decided on the planned schedule, not on layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.kernels import (
    ChainKernel,
    ContractionKernel,
    Kernel,
    LoopKernel,
    Reduce,
    SpecialKernel,
    Stage,
    Store,
    kernel_reads,
    kernel_writes,
    without_stores,
)
from jitgrad.compiler.loops import (
    Array,
    Contraction,
    Expr,
    axis,
    load,
    rewrite,
)
from jitgrad.compiler.passes.faults import can_fault
from jitgrad.compiler.passes.memory import Plan
from jitgrad.compiler.passes.order import Schedule
from jitgrad.compiler.symbolic import Dim, hint, prod
from jitgrad.runtime.errors import MemoryLimitError

_DEPTH = 6  # copies that one array may need
_SMALL = 8  # an operand lives longer if it is so many times smaller than what goes
_TRIES = 12  # candidates that are planned before it gives up
_NAMED = 5  # arrays that an error names
_ROUNDS = 3  # of recomputation that nobody asked for; of which:
_EXTRA = 0.03  # the work that may be added, as a share of all
_CHEAP = 3  # bytes moved for each byte that is not kept
_LARGE = 1 / 256  # of the peak: what goes
_WORTH = 0.97  # of the peak: what is left
_PRODUCTS_PER_BYTE = 8  # multiply-adds that take as long as moving a byte


def recompute(
    schedule: Schedule,
    fixed: set[Array],
    plan_of: Callable[[Schedule], Plan],
    limit: int,
) -> tuple[Schedule, Plan]:
    """A schedule whose planned peak is at most `limit` bytes, or the least that was found.

    fixed: arrays with memory of their own (inputs, results). plan_of: the plan of a schedule.
    """
    plan = plan_of(schedule)
    while plan.peak > limit:
        better = _step(schedule, fixed, plan_of, plan)
        if better is None:
            break
        schedule, plan = better
    return schedule, plan


def spare(
    schedule: Schedule, fixed: set[Array], plan_of: Callable[[Schedule], Plan], plan: Plan
) -> tuple[Schedule, Plan]:
    """A schedule with a lower peak that takes hardly more time: loops whose results are large, and
    live where most is, run again, as long as that adds less than a share of all the work."""
    for _ in range(_ROUNDS):
        live = live_bytes(plan)
        uses = _Uses(schedule, fixed)
        left = _EXTRA * sum(_work(k) for k in uses.reads)
        chosen = []
        for copies in uses.candidates(live.index(max(live))):
            cheap = copies.work <= _CHEAP * copies.saved and copies.saved >= _LARGE * plan.peak
            if cheap and copies.work <= left and all(_is_loop(k) for k in copies.kernels):
                left -= copies.work
                chosen.append(copies)
        if not chosen:
            break
        new = uses.applied(*chosen)
        found = plan_of(new)
        if found.peak > _WORTH * plan.peak:
            break
        schedule, plan = new, found
    return schedule, plan


def _is_loop(kernel: Kernel) -> bool:
    return isinstance(kernel, LoopKernel)


def live_bytes(plan: Plan) -> list[int]:
    """The bytes that are live in each wave."""
    change = [0] * (plan.waves + 1)
    for b in plan.blocks:
        change[b.start] += b.size
        change[b.end + 1] -= b.size
    out, total = [], 0
    for c in change[: plan.waves]:
        total += c
        out.append(total)
    return out


def _step(
    schedule: Schedule, fixed: set[Array], plan_of: Callable[[Schedule], Plan], plan: Plan
) -> tuple[Schedule, Plan] | None:
    """The schedule with one array more made again, and its plan; None if none lowers the peak."""
    live = live_bytes(plan)
    most = max(live)
    uses = _Uses(schedule, fixed)
    full = [n for n, x in enumerate(live) if x == most]
    for wave in (full[0], full[-1]):
        for copies in uses.candidates(wave)[:_TRIES]:
            new = uses.applied(copies)
            found = plan_of(new)
            now = live_bytes(found)
            high = max(now)
            if (high, now.count(high), found.peak) < (most, live.count(most), plan.peak):
                return new, found
    return None


@dataclass
class _Copies:
    """Kernels to run again before a wave: their arrays by what each is a copy of.

    saved: bytes that are not live at the peak; work: what running them costs, as bytes moved.
    """

    before: int
    kernels: list[Kernel] = field(default_factory=list)
    new: dict[Array, Array] = field(default_factory=dict)
    saved: int = 0
    work: float = 0.0


class _Uses:
    """Who makes and reads what, when."""

    def __init__(self, schedule: Schedule, fixed: set[Array]) -> None:
        self.schedule, self.fixed = schedule, fixed
        self.maker: dict[Array, Kernel] = {}
        self.made: dict[Array, int] = {}
        self.read: dict[Array, list[int]] = {}
        self.written: dict[Array, int] = {}  # input -> the wave that writes to it
        self.reads: dict[Kernel, list[Array]] = {}
        self.special: set[Array] = set()  # read by kernels that cannot be told to read another
        for n, wave in enumerate(schedule.waves):
            for k in wave:
                self.reads[k] = kernel_reads(k)
                for a in kernel_writes(k):
                    self.maker.setdefault(a, k)
                    self.made.setdefault(a, n)
                    if a in schedule.home:
                        target = schedule.home[a]
                        self.written[target] = min(n, self.written.get(target, n))
                for a in self.reads[k]:
                    self.read.setdefault(a, []).append(n)
                    if isinstance(k, SpecialKernel):
                        self.special.add(a)

    def candidates(self, wave: int) -> list[_Copies]:
        """What may be made again so as not to be live in a wave, the cheapest by the byte first."""
        found = []
        for a, made in self.made.items():
            uses = self.read.get(a, [])
            later = [n for n in uses if n > wave]
            if made >= wave or not later or wave in uses or not self._movable(a):
                continue
            copies = _Copies(min(later))
            if self._copy(a, wave, copies, _DEPTH) and copies.saved > 0:
                found.append(copies)
        return sorted(found, key=lambda c: c.work / c.saved)

    def _movable(self, a: Array) -> bool:
        if a in self.fixed or a in self.schedule.home or a in self.special:
            return False
        k = self.maker[a]
        return isinstance(k, (LoopKernel, ContractionKernel)) and not can_fault(k)

    def _copy(self, a: Array, wave: int, copies: _Copies, depth: int) -> bool:
        """Adds a copy of the kernel of `a`, and of those whose results it lacks; or says no."""
        if a in copies.new:
            return True
        if depth == 0 or not self._movable(a) or len(copies.kernels) >= _DEPTH:
            return False
        kernel = _of_the_sums(self.maker[a], a)
        copies.saved += nbytes(a)
        for x in kernel_reads(kernel):
            if x in kernel_writes(kernel):
                continue
            if x not in self.maker or x in self.fixed:
                if self.written.get(x, copies.before) < copies.before:
                    return False  # an input that has other contents by then
                continue
            if x in self.schedule.home:
                return False
            if max(self.read.get(x, [self.made[x]])) >= copies.before:
                continue
            last = max(self.read.get(x, [self.made[x]]))
            if last >= wave or nbytes(x) * _SMALL <= nbytes(a):
                copies.saved -= nbytes(x) if last < wave else 0
            elif not self._copy(x, wave, copies, depth - 1):
                return False
            else:
                copies.saved -= nbytes(x)  # it was not live there
        again, names = _again(kernel, a, copies.new)
        copies.kernels.append(again)
        copies.new.update(names)
        copies.work += _work(kernel)
        return True

    def applied(self, *chosen: _Copies) -> Schedule:
        """The schedule with the copies in waves of their own, read from there on; what nobody reads
        any longer is not stored."""
        waves = list(self.schedule.waves)
        commit = self.schedule.commit
        for copies in sorted(chosen, key=lambda c: -c.before):  # the last first: numbers stay
            rest = [[self._reading(k, copies.new) for k in w] for w in waves[copies.before :]]
            waves[copies.before :] = [[k] for k in copies.kernels] + rest
            if copies.before <= self.schedule.commit:
                commit += len(copies.kernels)
        read = {a for w in waves for k in w for a in kernel_reads(k)}
        unread = {a for copies in chosen for a in copies.new} - read

        def needed(k: Kernel) -> Kernel | None:
            return k if can_fault(k) else without_stores(k, unread)

        waves = [[x for k in w if (x := needed(k)) is not None] for w in waves]
        commit -= sum(not w for w in waves[:commit])
        return replace(self.schedule, waves=[w for w in waves if w], commit=commit)

    def _reading(self, kernel: Kernel, new: Mapping[Array, Array]) -> Kernel:
        reads = self.reads.get(kernel)
        if reads is None:  # of another copy, or that reads one
            reads = self.reads[kernel] = kernel_reads(kernel)
        if isinstance(kernel, SpecialKernel) or not any(a in new for a in reads):
            return kernel
        return renamed(kernel, new, {})


def _of_the_sums(kernel: Kernel, a: Array) -> Kernel:
    """For what a contraction makes of sums that it stores as well, a loop that makes it of these;
    the kernel itself for all else."""
    if not isinstance(kernel, ContractionKernel) or a is kernel.array:
        return kernel
    sums = kernel.array
    places = tuple(axis(k) for k in range(sums.ndim))
    plain = any(
        s.array is sums and s.index == places and s.value is load(sums, places)
        for s in kernel.stores
    )
    if not plain:
        return kernel
    stores = tuple(s for s in kernel.stores if s.array is a)
    return LoopKernel(sums.shape, [Stage((), stores)], [], kernel.lines, f"{kernel.name}_again")


def _again(
    kernel: Kernel, a: Array, known: Mapping[Array, Array]
) -> tuple[Kernel, dict[Array, Array]]:
    """A copy of a kernel that stores `a`, or all where it reads what it stores, into new arrays."""
    own = set(kernel_writes(kernel))
    needed = own if own & set(kernel_reads(kernel)) else {a}
    names = {
        x: Array(f"{x.name}_again", x.shape, x.dtype, None, x.line)
        for x in kernel_writes(kernel)
        if x in needed
    }
    return renamed(kernel, known, names), names


def renamed(kernel: Kernel, reads: Mapping[Array, Array], writes: Mapping[Array, Array]) -> Kernel:
    """A kernel that reads and writes other arrays. With `writes`, it stores nothing else."""
    mapping = {**reads, **writes}
    assert not isinstance(kernel, SpecialKernel)
    if isinstance(kernel, ChainKernel):
        assert not writes
        parts = [renamed(k, reads, {}) for k in kernel.kernels]
        return replace(kernel, kernels=parts)
    if isinstance(kernel, ContractionKernel):
        old = kernel.array
        c = kernel.contraction
        mapping.pop(old, None)
        define = replace(c, a=_loading(c.a, mapping), b=_loading(c.b, mapping))
        assert isinstance(define, Contraction)
        # The sums are an array of the kernel's own; what is stored of them keeps its name.
        sums = Array(old.name, old.shape, old.dtype, define, old.line)
        mapping[old] = sums
        stores = _stores(kernel.stores, mapping, writes)
        return ContractionKernel(sums, list(stores), kernel.lines, kernel.name)
    stages = []
    for s in kernel.stages:
        reduces = tuple(
            Reduce(r.array, _loading(r.value, mapping), r.combine, r.order) for r in s.reduces
        )
        kept = _stores(s.stores, mapping, writes, kernel.locals)
        if kept or reduces:
            stages.append(Stage(s.inner, kept, reduces))
    return LoopKernel(kernel.outer, stages, list(kernel.locals), kernel.lines, kernel.name)


def _stores(
    stores: Iterable[Store],
    mapping: Mapping[Array, Array],
    writes: Mapping[Array, Array],
    local: Iterable[Array] = (),
) -> tuple[Store, ...]:
    own = set(local)
    return tuple(
        Store(
            writes.get(s.array, s.array),
            tuple(_loading(i, mapping) for i in s.index),
            _loading(s.value, mapping),
            s.combine,
        )
        for s in stores
        if not writes or s.array in writes or s.array in own
    )


def _loading(e: Expr, mapping: Mapping[Array, Array]) -> Expr:
    """e with loads of other arrays."""

    def leaf(x: Expr) -> Expr | None:
        return load(mapping[x.attr], x.args) if x.op == "load" and x.attr in mapping else None

    return rewrite(e, leaf)


def _work(kernel: Kernel) -> float:
    """What a kernel costs, as bytes moved."""
    moved = float(sum(map(nbytes, kernel_reads(kernel))) + sum(map(nbytes, kernel_writes(kernel))))
    if isinstance(kernel, ContractionKernel):
        c = kernel.contraction
        moved += hint(kernel.array.numel) * hint(prod(c.k)) / _PRODUCTS_PER_BYTE
    return moved


def check_limit(plan: Plan, limit: int | None, size_of: Callable[[Dim], int] = hint) -> None:
    """Raises MemoryLimitError, naming the largest arrays, for a plan that is above a limit.

    size_of: the value of a symbolic dim.
    """
    if limit is None or plan.peak <= limit:
        return
    live = live_bytes(plan)
    wave = live.index(max(live))
    here = [b for b in plan.blocks if b.start <= wave <= b.end]
    named = []
    for b in sorted(here, key=lambda b: -b.size)[:_NAMED]:
        a = b.arrays[-1]
        where = f" (at {a.line})" if a.line else ""
        named.append(
            f"{a.name}: {a.dtype.name}{list(map(size_of, a.shape))}, {b.size} bytes{where}"
        )
    raise MemoryLimitError(
        f"[jit] expected temporaries of at most {limit} bytes (memory_limit); the least that was "
        f"found is {plan.peak} bytes. The largest of {len(here)} that are needed at once: "
        f"{'; '.join(named)}. Raise the limit, or use smaller batches"
    )
