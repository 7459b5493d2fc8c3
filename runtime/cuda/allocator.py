"""The caching allocator of a device's memory.

Memory is taken from the driver in segments and given out in blocks, which are split and merged; a
block that is freed is kept for its stream. Sizes are rounded up to 512 bytes. Requests up to 512
KiB come from segments of 2 MiB; larger ones from segments of their own size or of a sixth of what
is reserved, at most 8 MiB, rounded to 2 MiB: small programs take little, large ones seldom ask the
driver (the constants were chosen on the traces of benchmarks/gpu_allocator.py). Of free blocks that
fit, the smallest is taken, at the lowest address; a rest is split off where it is worth a block.
Blocks above `max_split` are never split.

A block that other streams use (`used_on`) is reused after it was freed and events on those streams
have passed. After running out of memory, all segments without a used block go back to the driver,
and it is tried once more.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from jitgrad.runtime.cuda.driver import CudaError, DeviceMemoryError, Driver
from jitgrad.runtime.errors import OutOfMemoryError as OutOfMemoryError

ROUND = 512
SMALL = 512 << 10
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 8 << 20
_SHARE = 6
_LARGE = 10 << 20
_SLACK = 20 << 20  # bytes that a block above max_split may be too large by
_ROUND_SEGMENT = 2 << 20
_REST = 64 << 10  # bytes of a large block that are worth a block of their own
_TRIMS = 64  # allocations until the first trim; after each it takes twice as many


@dataclass(eq=False)
class Segment:
    """Memory from the driver: a chain of blocks, for one stream."""

    address: int
    nbytes: int
    stream: int
    small: bool
    first: Block | None = None


@dataclass(eq=False)
class Block:
    """A piece of a segment. `tag` says who holds it, for people."""

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

    @property
    def key(self) -> tuple[int, int]:
        return self.nbytes, self.address


def rounded(nbytes: int) -> int:
    """The size of the block of a request."""
    return max(ROUND, nbytes + ROUND - 1 & -ROUND)


def segment_size(nbytes: int, reserved: int = 0) -> int:
    """What is asked of the driver for a block of so many bytes, when so many are reserved."""
    if nbytes <= SMALL:
        return _SMALL_SEGMENT
    wanted = max(nbytes, min(_LARGE_SEGMENT, reserved // _SHARE))
    return wanted + _ROUND_SEGMENT - 1 & -_ROUND_SEGMENT


class _Pool:
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


class _Count:
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


class Allocator:
    """The memory of one device. Safe to use from several threads.

    max_split: blocks above so many bytes are given out whole, to requests of at least such size.
    limit: the most bytes that are reserved (set_per_process_memory_fraction).
    history: where it is a list, what is allocated and freed is noted: ("new" or "free", address,
    bytes).
    """

    def __init__(self, driver: Driver, device: int = 0, max_split: int | None = None) -> None:
        self.driver, self.device, self.max_split = driver, device, max_split
        self.limit: int | None = None
        self.history: list[tuple[str, int, int]] | None = None
        self.counts = {
            name: _Count()
            for name in (
                "allocation", "segment", "active", "inactive_split", "allocated_bytes",
                "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
            )
        }  # fmt: skip
        self.retries = self.failures = 0
        self._ticks, self._next_trim = 0, _TRIMS
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._segments: dict[int, Segment] = {}
        self._used: dict[int, Block] = {}
        self._waiting: deque[tuple[int, Block]] = deque()  # (event, block), oldest first
        self._events: list[int] = []  # that can be recorded again
        self._lock = threading.RLock()

    # -- allocating --------------------------------------------------------------------------------
    def allocate(self, nbytes: int, stream: int = 0, tag: str = "") -> int:
        """The address of `nbytes` bytes, for work on a stream. Raises OutOfMemoryError."""
        with self._lock:
            self._settle()
            size = rounded(nbytes)
            self._ticks += 1
            block = self._find(size, stream)
            if block is None:
                self._trim(size)
                block = self._grow(size, stream)
            if block is None:
                self.retries += 1
                self._wait()
                block = self._find(size, stream)
                if block is None:
                    self._release_cached()
                    block = self._grow(size, stream)
            if block is None:
                self.failures += 1
                raise OutOfMemoryError(self._failure(nbytes))
            self._split(block, size)
            block.used, block.requested, block.tag = True, nbytes, tag
            self._used[block.address] = block
            for name, n in (
                ("allocation", 1), ("active", 1), ("allocated_bytes", block.nbytes),
                ("active_bytes", block.nbytes), ("requested_bytes", nbytes),
            ):  # fmt: skip
                self.counts[name].add(n)
            if self.history is not None:
                self.history.append(("new", block.address, nbytes))
            return block.address

    def _pool(self, segment_stream: int, small: bool) -> _Pool:
        key = (segment_stream, small)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool()
        return pool

    def _find(self, size: int, stream: int) -> Block | None:
        pool = self._pool(stream, size <= SMALL)
        block = pool.best(size)
        if block is None:
            return None
        limit = self.max_split
        if limit is not None and size > SMALL:
            if size < limit <= block.nbytes:
                return None  # whole blocks are for large requests
            if size >= limit and block.nbytes >= size + _SLACK:
                return None  # too much would be lost
        self._unlist(block)
        return block

    def _grow(self, size: int, stream: int) -> Block | None:
        nbytes = segment_size(size, self.counts["reserved_bytes"].current)
        if self.limit is not None and self.counts["reserved_bytes"].current + nbytes > self.limit:
            return None
        try:
            address = self.driver.allocate(self.device, nbytes)
        except DeviceMemoryError:
            return None
        segment = Segment(address, nbytes, stream, size <= SMALL)
        segment.first = Block(address, nbytes, segment)
        self._segments[address] = segment
        self.counts["segment"].add(1)
        self.counts["reserved_bytes"].add(nbytes)
        return segment.first

    def _trim(self, size: int) -> None:
        """Before more is taken for a large block, segments of which nothing is used go back: small
        ones that an earlier phase left do not serve it. Ever more seldom: phases may return."""
        if size < _LARGE or self._ticks < self._next_trim:
            return
        whole = [s.first for s in self._segments.values() if not s.small and s.first is not None]
        idle = sum(b.nbytes for b in whole if b.next is None and not b.used and not b.waiting)
        if idle >= size // 4:
            self._next_trim = 2 * self._ticks
            self._release_cached()

    def _split(self, block: Block, size: int) -> None:
        rest = block.nbytes - size
        if block.segment.small:
            worth = rest >= ROUND
        else:
            worth = rest > _REST and (self.max_split is None or size < self.max_split)
        if not worth:
            return
        tail = Block(block.address + size, rest, block.segment, block, block.next)
        if tail.next is not None:
            tail.next.previous = tail
        block.next, block.nbytes = tail, size
        self._list(tail)

    def _list(self, block: Block) -> None:
        """Puts a free block into its pool."""
        self._pool(block.segment.stream, block.segment.small).add(block)
        if block.previous is not None or block.next is not None:
            self.counts["inactive_split"].add(1)
            self.counts["inactive_split_bytes"].add(block.nbytes)

    def _unlist(self, block: Block) -> None:
        self._pool(block.segment.stream, block.segment.small).remove(block)
        if block.previous is not None or block.next is not None:
            self.counts["inactive_split"].take(1)
            self.counts["inactive_split_bytes"].take(block.nbytes)

    # -- freeing -----------------------------------------------------------------------------------
    def free(self, address: int) -> None:
        """Gives memory back. It may be reused by its stream at once: what the stream was given to
        do before comes before."""
        with self._lock:
            block = self._used.pop(address, None)
            if block is None:
                raise CudaError(f"[cuda] no memory was allocated at address {address:#x}")
            if self.history is not None:
                self.history.append(("free", address, 0))
            for name, n in (
                ("allocation", 1), ("allocated_bytes", block.nbytes),
                ("requested_bytes", block.requested),
            ):  # fmt: skip
                self.counts[name].take(n)
            if not block.streams:
                self._free(block)
                return
            for stream in sorted(block.streams):
                event = (
                    self._events.pop() if self._events else
                    self.driver.new_event(self.device, False)
                )  # fmt: skip
                self.driver.record(self.device, event, stream)
                self._waiting.append((event, block))
                block.waiting += 1
            block.streams.clear()

    def used_on(self, address: int, stream: int) -> None:
        """The block is used by work on another stream than it was allocated for."""
        with self._lock:
            block = self._used[address]
            if stream != block.segment.stream:
                block.streams.add(stream)

    def _free(self, block: Block) -> None:
        block.used, block.tag = False, ""
        self.counts["active"].take(1)
        self.counts["active_bytes"].take(block.nbytes)
        for other in (block.previous, block.next):
            if other is not None and not other.used and not other.waiting:
                self._unlist(other)
                self._merge(block, other)
        self._list(block)

    def _merge(self, block: Block, other: Block) -> None:
        """`block` takes its free neighbour's place too."""
        if other is block.previous:
            block.address = other.address
            block.previous = other.previous
            if block.previous is not None:
                block.previous.next = block
            else:
                block.segment.first = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.previous = block
        block.nbytes += other.nbytes

    def _settle(self) -> None:
        """Frees blocks whose events have passed."""
        kept: deque[tuple[int, Block]] = deque()
        while self._waiting:
            event, block = self._waiting.popleft()
            if self.driver.event_done(self.device, event):
                self._passed(event, block)
            else:
                kept.append((event, block))
        self._waiting = kept

    def _wait(self) -> None:
        while self._waiting:
            event, block = self._waiting.popleft()
            self.driver.synchronize_event(self.device, event)
            self._passed(event, block)

    def _passed(self, event: int, block: Block) -> None:
        self._events.append(event)
        block.waiting -= 1
        if not block.waiting:
            self._free(block)

    def release_cached(self) -> None:
        """Segments of which nothing is used go back to the driver (cuda.empty_cache)."""
        with self._lock:
            self._wait()
            self._release_cached()

    def _release_cached(self) -> None:
        for segment in list(self._segments.values()):
            block = segment.first
            assert block is not None
            if block.next is None and not block.used and not block.waiting:
                self._unlist(block)
                del self._segments[segment.address]
                self.driver.release(self.device, segment.address)
                self.counts["segment"].take(1)
                self.counts["reserved_bytes"].take(segment.nbytes)

    # -- what there is -----------------------------------------------------------------------------
    def holders(self, count: int = 5) -> list[tuple[str, int]]:
        """Who holds most: (tag, bytes), the largest first."""
        held: dict[str, int] = {}
        for block in self._used.values():
            held[block.tag or "unknown"] = held.get(block.tag or "unknown", 0) + block.nbytes
        return sorted(held.items(), key=lambda x: -x[1])[:count]

    def _failure(self, nbytes: int) -> str:
        free, total = self.driver.memory_info(self.device)
        used = self.counts["allocated_bytes"].current
        reserved = self.counts["reserved_bytes"].current
        limit = "" if self.limit is None else f" (limited to {_bytes(self.limit)})"
        held = "".join(f"\n  {_bytes(n):>10}  {tag}" for tag, n in self.holders())
        return (
            f"[cuda] CUDA out of memory. Tried to allocate {_bytes(nbytes)}. GPU {self.device} has "
            f"{_bytes(total)}{limit} in all, {_bytes(free)} of them free; {_bytes(used)} are "
            f"allocated, {_bytes(reserved - used)} reserved but not allocated. Free tensors, use "
            f"smaller batches, or call cuda.empty_cache(). Most is held by:{held or ' nobody'}"
        )

    def statistics(self) -> dict[str, int]:
        """PyTorch's memory_stats, as far as they apply: flat names of numbers."""
        with self._lock:
            found = {}
            for name, count in self.counts.items():
                for kind in ("current", "peak", "allocated", "freed"):
                    found[f"{name}.all.{kind}"] = getattr(count, kind)
            found["num_alloc_retries"] = self.retries
            found["num_ooms"] = self.failures
            found["max_split_size"] = -1 if self.max_split is None else self.max_split
            return found

    def reset_peaks(self) -> None:
        for count in self.counts.values():
            count.peak = count.current

    def reset_accumulated(self) -> None:
        for count in self.counts.values():
            count.allocated = count.freed = 0
        self.retries = self.failures = 0

    def snapshot(self) -> list[dict[str, Any]]:
        """Every segment with its blocks, by address."""
        with self._lock:
            return [self._describe(s) for _, s in sorted(self._segments.items())]

    def _describe(self, segment: Segment) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        block = segment.first
        while block is not None:
            state = "active_allocated" if block.used and not block.waiting else "inactive"
            if block.waiting:
                state = "active_pending_free"
            size = block.requested if block.used else 0
            blocks.append(
                {"address": block.address, "size": block.nbytes, "requested_size": size,
                 "state": state, "tag": block.tag}
            )  # fmt: skip
            block = block.next
        active = [b for b in blocks if b["state"] != "inactive"]
        allocated = [b for b in blocks if b["state"] == "active_allocated"]
        return {
            "device": self.device, "address": segment.address, "total_size": segment.nbytes,
            "stream": segment.stream, "segment_type": "small" if segment.small else "large",
            "allocated_size": sum(b["size"] for b in allocated),
            "active_size": sum(b["size"] for b in active), "blocks": blocks,
        }  # fmt: skip

    def check(self) -> None:
        """Raises InvariantError where something that must hold does not: for tests."""
        reserved = used = 0
        for segment in self._segments.values():
            block, at = segment.first, segment.address
            reserved += segment.nbytes
            before: Block | None = None
            while block is not None:
                free = not block.used and not block.waiting
                _must(block.address == at and block.nbytes > 0, "blocks lie side by side")
                _must(block.previous is before, "the chain holds")
                beside = before is not None and not before.used and not before.waiting
                _must(not (free and beside), "free neighbours are merged")
                pool = self._pool(segment.stream, segment.small)
                _must((block.key in pool.blocks) == free, "the pool has the free blocks")
                if block.used and not block.waiting:
                    used += block.nbytes
                    _must(self._used.get(block.address) is block, "used blocks are known")
                at += block.nbytes
                before, block = block, block.next
            _must(at == segment.address + segment.nbytes, "blocks fill their segment")
        _must(reserved == self.counts["reserved_bytes"].current, "reserved bytes are counted")
        _must(used == self.counts["allocated_bytes"].current, "allocated bytes are counted")


class InvariantError(AssertionError):
    """The allocator's structure is broken: a bug of ours."""


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(f"[cuda] expected that {what}")


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} bytes"
