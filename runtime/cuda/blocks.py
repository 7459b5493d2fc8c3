"""What the caching allocator keeps books of: segments, their blocks, pools of free blocks.

Also where a block goes in a segment that grows in place (`best_place`). Nothing here asks the
driver.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Segment:
    """Memory from the driver: a chain of blocks, for one stream.

    nbytes: of memory. page: 0 for a piece of memory; else the segment is a range of addresses,
    some of whose pages, of so many bytes, have memory.
    """

    address: int
    nbytes: int
    stream: int
    small: bool
    page: int = 0
    span: int = 0
    first: Block | None = None

    def __iter__(self) -> Iterator[Block]:
        block = self.first
        while block is not None:
            following = block.next
            yield block
            block = following


@dataclass(eq=False)
class Block:
    """A piece of a segment. `tag` says who holds it, for people; a block that is not `mapped` is
    addresses without memory: whole pages."""

    address: int
    nbytes: int
    segment: Segment
    previous: Block | None = None
    next: Block | None = None
    used: bool = False
    requested: int = 0
    tag: str = ""
    streams: set[int] = field(default_factory=set)
    waiting: int = 0
    mapped: bool = True

    @property
    def key(self) -> tuple[int, int]:
        return self.nbytes, self.address

    @property
    def free(self) -> bool:
        """Whether it may be given out, once it has memory."""
        return not self.used and not self.waiting

    def cut(self, nbytes: int) -> Block:
        """The block becomes its first bytes; gives the rest, a block of the same kind."""
        tail = Block(
            self.address + nbytes, self.nbytes - nbytes, self.segment, self, self.next,
            mapped=self.mapped,
        )  # fmt: skip
        if tail.next is not None:
            tail.next.previous = tail
        self.next, self.nbytes = tail, nbytes
        return tail

    def join(self, other: Block) -> None:
        """The block takes its neighbour's place too."""
        if other is self.previous:
            self.address = other.address
            self.previous = other.previous
            if self.previous is not None:
                self.previous.next = self
            else:
                self.segment.first = self
        else:
            self.next = other.next
            if self.next is not None:
                self.next.previous = self
        self.nbytes += other.nbytes


def best_place(segment: Segment, size: int) -> tuple[Block, int] | None:
    """Where in a segment that grows in place so many bytes go, and how many bytes of pages that
    takes: the fewest, then in front of no free block, then the lowest address."""
    best: tuple[Block, int] | None = None
    for start in segment:
        if not start.free:
            continue
        room = cost = 0
        block: Block | None = start
        while block is not None and block.free and room < size:
            if not block.mapped:
                cost += pages(min(block.nbytes, size - room), segment.page)
            room += block.nbytes
            block = block.next
        if room >= size and (
            best is None or (cost, start.mapped) < (best[1], best[0].mapped)
        ):  # fmt: skip
            best = start, cost
    return best


def pages(nbytes: int, page: int) -> int:
    """The bytes of the pages that hold so many bytes."""
    return -(-nbytes // page) * page


class Pool:
    """The free blocks of a stream, small or large: sorted by size, then address."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int]] = []
        self.blocks: dict[tuple[int, int], Block] = {}

    def add(self, block: Block) -> None:
        insort(self.keys, block.key)
        self.blocks[block.key] = block

    def remove(self, block: Block) -> None:
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.key]

    def best(self, nbytes: int) -> Block | None:
        at = bisect_left(self.keys, (nbytes, 0))
        return self.blocks[self.keys[at]] if at < len(self.keys) else None


class Count:
    """A number, its peak, and the sums of what was added and taken."""

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, n: int) -> None:
        self.current += n
        self.allocated += n
        self.peak = max(self.peak, self.current)

    def take(self, n: int) -> None:
        self.current -= n
        self.freed += n
