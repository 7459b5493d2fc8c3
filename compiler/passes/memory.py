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

from collections.abc import Callable, Mapping
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
from jitgrad.compiler.symbolic import Dim

ALIGN = 128


@dataclass
class Block:
    """A piece of the arena: the arrays that live there in turn, in waves [start, end]."""

    arrays: list[Array]
    size: int
    start: int
    end: int
    offset: int = 0


@dataclass
class Plan:
    """Where everything lives. `offsets`: bytes into the arena, for temporaries only."""

    blocks: list[Block] = field(default_factory=list)
    offsets: dict[Array, int] = field(default_factory=dict)
    peak: int = 0
    lower_bound: int = 0
    total: int = 0
    waves: int = 0

    def largest(self) -> Dim:
        """The bytes of the arrays that are live in the wave with the most, as a formula."""
        live = [[b for b in self.blocks if b.start <= n <= b.end] for n in range(self.waves)]
        most = max(live, key=lambda blocks: sum(b.size for b in blocks), default=[])
        total: Dim = 0
        for b in most:
            total = total + b.arrays[0].numel * b.arrays[0].dtype.itemsize
        return total


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
    first: dict[Array, int] = {}
    last: dict[Array, int] = {}
    made_by: dict[Array, Kernel] = {}
    readers_in: dict[tuple[Array, int], int] = {}
    reads = {k: kernel_reads(k) for wave in schedule.waves for k in wave}
    for n, wave in enumerate(schedule.waves):
        for k in wave:
            writes = kernel_writes(k)
            for a in [*writes, *workspace.get(k, [])]:
                if a not in fixed and a not in schedule.home:
                    first.setdefault(a, n)
                    last[a] = max(last.get(a, n), n)
                    made_by.setdefault(a, k)
            for a in reads[k]:
                if a in first and a not in writes:
                    last[a] = n
                    readers_in[a, n] = readers_in.get((a, n), 0) + 1
    block_of: dict[Array, Block] = {}
    blocks: list[Block] = []
    for a in first:
        k = made_by[a]
        taken = _take_over(a, k, reads[k], first[a], last, readers_in, block_of, size_of)
        if taken is not None:
            taken.arrays.append(a)
            taken.end = max(taken.end, last[a])
            block_of[a] = taken
        else:
            block = Block([a], _aligned(size_of(a)), first[a], last[a])
            block_of[a] = block
            blocks.append(block)
    _place(blocks)
    n_waves = len(schedule.waves)
    change = [0] * (n_waves + 1)
    for b in blocks:
        change[b.start] += b.size
        change[b.end + 1] -= b.size
    live = list(accumulate(change))
    return Plan(
        blocks,
        {a: b.offset for a, b in block_of.items()},
        max((b.offset + b.size for b in blocks), default=0),
        max(live, default=0),
        sum(_aligned(size_of(a)) for a in first),
        n_waves,
    )


def _aligned(n: int) -> int:
    return max(ALIGN, (n + ALIGN - 1) // ALIGN * ALIGN)


def _take_over(
    a: Array,
    kernel: Kernel,
    reads: list[Array],
    wave: int,
    last: Mapping[Array, int],
    readers_in: Mapping[tuple[Array, int], int],
    block_of: Mapping[Array, Block],
    size_of: Callable[[Array], int],
) -> Block | None:
    """The block of a dying operand that `a` may be stored over."""
    writes = kernel_writes(kernel)
    if a not in writes:
        return None
    for x in reads:
        block = block_of.get(x)
        if block is None or x in writes or block.arrays[-1] is not x:
            continue
        dies_here = last[x] == wave and readers_in.get((x, wave)) == 1
        if dies_here and size_of(x) == size_of(a) and reads_where_it_writes(kernel, x, a):
            return block
    return None


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
