"""The memory plan: lifetimes, in-place reuse, offsets in one arena.

Before: a Schedule and, for each kernel, the workspace its code needs. After: a `Plan`: which
memory every array lives in. Inputs, outputs and state have memory of their own (outputs are fresh
at every call, never recycled); everything else gets an offset in one arena, placed by best fit,
largest first. An array takes over the memory of an operand that dies in its kernel when the kernel
reads that operand only where it writes.

Numbers: `peak` is the arena's size; `lower_bound` the largest sum of bytes that are live in one
wave, which no placement can beat for this order; `total` the sum of all buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.kernels import (
    Kernel,
    kernel_reads,
    kernel_writes,
)
from jitgrad.compiler.loops import Array
from jitgrad.compiler.passes.order import Schedule, reads_where_it_writes
from jitgrad.compiler.symbolic import Sym

ALIGN = 128


@dataclass
class Block:
    """A piece of the arena: the arrays that live there in turn (and their numbers among all lives),
    in waves [start, end]."""

    arrays: list[Array]
    size: int
    start: int
    end: int
    offset: int = 0
    lives: list[int] = field(default_factory=list)


@dataclass
class Plan:
    """Where everything lives. `offsets`: bytes into the arena, for temporaries only."""

    blocks: list[Block] = field(default_factory=list)
    offsets: dict[Array, int] = field(default_factory=dict)
    peak: int = 0
    lower_bound: int = 0
    total: int = 0
    waves: int = 0


@dataclass
class Life:
    """An array of the arena: the waves [start, end] that it is needed in.

    over: the numbers of the lives that end where this one begins, and whose memory it may be stored
    over if it is as large.
    """

    array: Array
    start: int
    end: int
    over: list[int] = field(default_factory=list)


def plan_memory(
    schedule: Schedule,
    fixed: set[Array],
    workspace: Mapping[Kernel, list[Array]],
    size_of: Callable[[Array], int] = nbytes,
) -> Plan:
    """Plans every array that is not in `fixed` (inputs, results) or stored into an input.

    workspace: temporary arrays that a kernel's code needs while it runs. size_of: bytes of an
    array (for these values of the symbolic dims).
    """
    lives = lifetimes(schedule, fixed, workspace)
    sizes = [size_of(x.array) for x in lives]
    blocks, offsets = place([(x.start, x.end, x.over) for x in lives], sizes)
    for b in blocks:
        b.arrays = [lives[k].array for k in b.lives]
    n_waves = len(schedule.waves)
    change = [0] * (n_waves + 1)
    for b in blocks:
        change[b.start] += b.size
        change[b.end + 1] -= b.size
    return Plan(
        blocks,
        {x.array: offset for x, offset in zip(lives, offsets, strict=True)},
        peak_of(blocks),
        max(accumulate(change), default=0),
        sum(map(_aligned, sizes)),
        n_waves,
    )


def lifetimes(
    schedule: Schedule, fixed: set[Array], workspace: Mapping[Kernel, list[Array]]
) -> list[Life]:
    """The arrays that plan_memory plans, in the order in which they are made."""
    lives: dict[Array, Life] = {}
    made_by: dict[Array, Kernel] = {}
    readers_in: dict[tuple[Array, int], int] = {}
    reads = {k: kernel_reads(k) for wave in schedule.waves for k in wave}
    for n, wave in enumerate(schedule.waves):
        for k in wave:
            writes = kernel_writes(k)
            for a in [*writes, *workspace.get(k, [])]:
                if a not in fixed and a not in schedule.home:
                    life = lives.setdefault(a, Life(a, n, n))
                    life.end = max(life.end, n)
                    made_by.setdefault(a, k)
            for a in reads[k]:
                if a in lives and a not in writes:
                    lives[a].end = n
                    readers_in[a, n] = readers_in.get((a, n), 0) + 1
    number = {a: k for k, a in enumerate(lives)}
    for a, life in lives.items():
        k = made_by[a]
        writes = kernel_writes(k)
        if a not in writes:
            continue
        for x in reads[k]:
            if x in lives and x not in writes and number[x] < number[a]:
                dies_here = lives[x].end == life.start and readers_in.get((x, life.start)) == 1
                if dies_here and _may_be_as_large(x, a) and reads_where_it_writes(k, x, a):
                    life.over.append(number[x])
    return list(lives.values())


def place(
    lives: Sequence[tuple[int, int, Sequence[int]]], sizes: Sequence[int]
) -> tuple[list[Block], list[int]]:
    """Blocks and, for each life (start, end, over), its offset, for bytes of each."""
    block_of: list[Block] = []
    blocks: list[Block] = []
    for k, (start, end, over) in enumerate(lives):
        taken = next((block_of[x] for x in over
                      if block_of[x].lives[-1] == x and sizes[x] == sizes[k]), None)  # fmt: skip
        if taken is None:
            taken = Block([], _aligned(sizes[k]), start, end)
            blocks.append(taken)
        taken.lives.append(k)
        taken.end = max(taken.end, end)
        block_of.append(taken)
    _place(blocks)
    return blocks, [b.offset for b in block_of]


def peak_of(blocks: Sequence[Block]) -> int:
    """The bytes of the arena."""
    return max((b.offset + b.size for b in blocks), default=0)


def _may_be_as_large(a: Array, b: Array) -> bool:
    sizes = [x.numel * x.dtype.itemsize for x in (a, b)]
    return any(isinstance(n, Sym) for n in sizes) or sizes[0] == sizes[1]


def _aligned(n: int) -> int:
    return max(ALIGN, (n + ALIGN - 1) // ALIGN * ALIGN)


def _place(blocks: list[Block]) -> None:
    """Offsets: largest first, each into the smallest gap that fits among its contemporaries."""
    placed: list[Block] = []
    during: dict[int, list[Block]] = {}  # wave -> placed blocks
    for b in sorted(blocks, key=lambda b: (-b.size, b.start)):
        lifetime = range(b.start, b.end + 1)
        if sum(len(during.get(n, ())) for n in lifetime) < len(placed):
            near = {id(p): p for n in lifetime for p in during.get(n, ())}
            found = list(near.values())
        else:
            found = [p for p in placed if p.start <= b.end and b.start <= p.end]
        others = sorted(found, key=lambda p: (p.offset, p.size))
        best: tuple[int, int] | None = None
        free = 0
        for p in others:
            gap = p.offset - free
            if gap >= b.size and (best is None or gap < best[0]):
                best = (gap, free)
            free = max(free, p.offset + p.size)
        b.offset = best[1] if best is not None else free
        placed.append(b)
        for n in lifetime:
            during.setdefault(n, []).append(b)
