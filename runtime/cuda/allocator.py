"""The caching allocator of a device's memory.

Memory is taken from the driver in segments and given out in blocks, which are split and merged; a
block that is freed is kept for its stream. Sizes are rounded up to 512 bytes; requests up to 512
KiB and larger ones have segments of their own. Of free blocks that fit, the smallest is taken, at
the lowest address; a rest is split off where it is worth a block.

Where the device has virtual memory, a stream has one segment that grows in place: a range of
addresses as large as the device's memory, of which pages get memory as blocks need them
(`blocks.best_place`); a block of a page or more begins at a page. Elsewhere, and with a limit on
splitting, a segment is a piece of memory: 2 MiB for small requests, else their own size or a sixth
of what is reserved, at most 8 MiB, rounded to 2 MiB (the constants were chosen on the traces of
benchmarks/gpu_allocator.py). Blocks above `max_split` are never split.

A block that other streams use (`used_on`) is reused after it was freed and events on those streams
have passed. After running out of memory, all free pages, and segments without a used block, go back
to the driver, and it is tried once more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from jitgrad.runtime.cuda.blocks import Block, Count, Pool, Segment, best_place, pages
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


def rounded(nbytes: int) -> int:
    """The size of the block of a request."""
    return max(ROUND, nbytes + ROUND - 1 & -ROUND)


def segment_size(nbytes: int, reserved: int = 0) -> int:
    """What is asked of the driver for a block of so many bytes, when so many are reserved."""
    if nbytes <= SMALL:
        return _SMALL_SEGMENT
    wanted = max(nbytes, min(_LARGE_SEGMENT, reserved // _SHARE))
    return wanted + _ROUND_SEGMENT - 1 & -_ROUND_SEGMENT


class _Turn:
    """The allocator's lock. Python's collector may free tensors in the middle of the allocator's
    own work, in the same thread: what is to be done then waits until that is over.

    depth: how often the thread that holds it has entered. over: called when it is left for good.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._lock = threading.RLock()
        self.depth = 0
        self.over = over

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        try:
            if self.depth == 1:
                self.over()
        finally:
            self.depth -= 1
            self._lock.release()


class Allocator:
    """The memory of one device. Safe to use from several threads.

    max_split: blocks above so many bytes are given out whole, to requests of at least such size.
    paged: segments grow in place where the device can.
    limit: the most bytes that are reserved (set_per_process_memory_fraction).
    history: where it is a list, what is allocated and freed is noted: ("new" or "free", address,
    bytes).
    """

    def __init__(
        self, driver: Driver, device: int = 0, max_split: int | None = None, paged: bool = True
    ) -> None:
        self.driver, self.device, self.max_split = driver, device, max_split
        self._page = driver.page_size(device) if paged and max_split is None else 0
        self.limit: int | None = None
        self.history: list[tuple[str, int, int]] | None = None
        self.counts = {
            name: Count()
            for name in (
                "allocation", "segment", "active", "inactive_split", "allocated_bytes",
                "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
            )
        }  # fmt: skip
        self.retries = self.failures = 0
        self._ticks, self._next_trim = 0, _TRIMS
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._diverted: dict[int, int] = {}  # stream -> where its memory comes from instead
        self._kept: dict[int, int] = {}  # pools of graphs -> how many graphs use them
        self._segments: dict[int, Segment] = {}
        self._spaces: dict[tuple[int, bool], Segment] = {}  # those that grow in place
        self._used: dict[int, Block] = {}
        self._waiting: deque[tuple[int, Block]] = deque()  # (event, block), oldest first
        self._events: list[int] = []  # that can be recorded again
        self._late: deque[int] = deque()  # addresses to free when the work under way is done
        self._postponed: list[int] = []  # addresses to free: a stream is captured, or was no event
        self._lock = _Turn(self._free_late)

    # -- allocating --------------------------------------------------------------------------------
    def allocate(self, nbytes: int, stream: int = 0, tag: str = "") -> int:
        """The address of `nbytes` bytes, for work on a stream. Raises OutOfMemoryError."""
        with self._lock:
            self._settle()
            stream = self._diverted.get(stream, stream)
            size = rounded(nbytes)
            self._ticks += 1
            block = self._find(size, stream)
            if block is None:
                self._trim(size)
                block = self._grow(size, stream)
            if block is None:
                self.retries += 1
                self._free_postponed()
                self._wait()
                block = self._find(size, stream)
                if block is None:
                    self._release_cached()
                    block = self._grow(size, stream)
            if block is None:
                self.failures += 1
                raise OutOfMemoryError(self._failure(nbytes, tag))
            block = self._split(self._align(block, size), size)
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

    def _pool(self, segment_stream: int, small: bool) -> Pool:
        key = (segment_stream, small)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool()
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
        """A block of new memory, in no pool; None where there is none left."""
        if self._page:
            block = self._extend(size, stream)
            if block is not None:
                return block
        nbytes = segment_size(size, self.counts["reserved_bytes"].current)
        if self._past_limit(nbytes):
            return None
        try:
            address = self.driver.allocate(self.device, nbytes)
        except DeviceMemoryError:
            return None
        segment = Segment(address, nbytes, stream, size <= SMALL, span=nbytes)
        segment.first = Block(address, nbytes, segment)
        self._segments[address] = segment
        self.counts["segment"].add(1)
        self.counts["reserved_bytes"].add(nbytes)
        return segment.first

    def _past_limit(self, nbytes: int) -> bool:
        reserved = self.counts["reserved_bytes"].current
        return self.limit is not None and reserved + nbytes > self.limit

    def _extend(self, size: int, stream: int) -> Block | None:
        """A block in a segment that grows in place: free blocks, and pages that get memory."""
        segment = self._space(stream, size <= SMALL)
        found = None if segment is None else best_place(segment, size)
        if segment is None or found is None or self._past_limit(found[1]):
            return None
        block = found[0]
        if block.mapped:
            self._unlist(block)
        elif not self._map(block, size):
            return None
        try:
            while block.nbytes < size:
                following = block.next
                assert following is not None
                if following.mapped:
                    self._unlist(following)
                elif not self._map(following, size - block.nbytes):
                    return None
                block.join(following)
        finally:
            if block.nbytes < size:
                self._keep(block)
        return block

    def _space(self, stream: int, small: bool) -> Segment | None:
        """The segment of a stream that grows in place; None where there can be none."""
        segment = self._spaces.get((stream, small))
        if segment is None:
            _, total = self.driver.memory_info(self.device)
            span = 2 * pages(total, self._page)
            try:
                address = self.driver.reserve(self.device, span)
            except CudaError:
                self._page = 0  # not here
                return None
            segment = Segment(address, 0, stream, small, self._page, span)
            segment.first = Block(address, span, segment, mapped=False)
            self._spaces[stream, small] = self._segments[address] = segment
            self.counts["segment"].add(1)
        return segment

    def _map(self, block: Block, size: int) -> bool:
        """Gives so many of a block's first bytes memory; the rest is cut off. Whether there was
        memory left."""
        nbytes = min(pages(size, self._page), block.nbytes)
        try:
            self.driver.map_pages(self.device, block.address, nbytes)
        except DeviceMemoryError:
            return False
        if nbytes < block.nbytes:
            block.cut(nbytes)
        block.mapped = True
        block.segment.nbytes += nbytes
        self.counts["reserved_bytes"].add(nbytes)
        return True

    def _trim(self, size: int) -> None:
        """Before more is taken for a large block, segments of which nothing is used go back: small
        ones that an earlier phase left do not serve it. Ever more seldom: phases may return."""
        if size < _LARGE or self._ticks < self._next_trim:
            return
        whole = [s.first for s in self._segments.values() if not s.small and s.first is not None]
        idle = sum(b.nbytes for b in whole if b.next is None and b.free)
        if idle >= size // 4:
            self._next_trim = 2 * self._ticks
            self._release_cached()

    def _align(self, block: Block, size: int) -> Block:
        """The block, or where it has room for it the part from its first page on: blocks of pages
        that are freed leave whole pages."""
        page = block.segment.page
        before = -block.address % page if page else 0
        if size < page or not before or block.nbytes - before < size:
            return block
        tail = block.cut(before)
        self._list(block)
        return tail

    def _split(self, block: Block, size: int) -> Block:
        """The block, cut to its size where the rest is worth a block."""
        rest = block.nbytes - size
        if block.segment.small:
            worth = rest >= ROUND
        else:
            worth = rest > _REST and (self.max_split is None or size < self.max_split)
        if worth:
            tail = block.cut(size)
            block.used = True
            self._keep(tail)
        return block

    def _keep(self, block: Block) -> None:
        """Merges a free block with its neighbours and puts it into its pool."""
        for other in (block.previous, block.next):
            if other is not None and other.free and other.mapped:
                self._unlist(other)
                block.join(other)
        self._list(block)

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
        do before comes before. Where the driver fails, that is tried again later."""
        with self._lock:
            self._late.append(address)
            if self._lock.depth == 1:
                self._free_late()

    def _free_late(self) -> None:
        while self._late:
            address = self._late.popleft()
            block = self._used.get(address)
            if block is None:
                raise CudaError(f"[cuda] no memory was allocated at address {address:#x}")
            captured = not self._diverted.keys().isdisjoint(block.streams)
            # an event of a stream that is captured would not pass
            if captured or not self._give_back(block):
                self._postponed.append(address)

    def _free_postponed(self) -> None:
        self._late += self._postponed
        self._postponed.clear()
        self._free_late()

    def _give_back(self, block: Block) -> bool:
        """Frees a block, or has it wait for events; whether the driver could make them."""
        events: list[int] = []
        try:
            for stream in sorted(block.streams):
                known = self._events.pop() if self._events else None
                events.append(self.driver.new_event(self.device, False) if known is None else known)
                self.driver.record(self.device, events[-1], stream)
        except CudaError:
            self._events += events
            return False
        del self._used[block.address]
        if self.history is not None:
            self.history.append(("free", block.address, 0))
        for name, n in (
            ("allocation", 1), ("allocated_bytes", block.nbytes),
            ("requested_bytes", block.requested),
        ):  # fmt: skip
            self.counts[name].take(n)
        block.streams.clear()
        block.waiting = len(events)
        self._waiting += [(event, block) for event in events]
        if not events:
            self._free(block)
        return True

    def used_on(self, address: int, stream: int) -> None:
        """The block is used by work on another stream than it was allocated for."""
        with self._lock:
            block = self._used[address]
            if self._diverted.get(stream, stream) != block.segment.stream:
                block.streams.add(stream)

    def divert(self, stream: int, pool: int | None) -> None:
        """Memory for a stream comes from a pool with a (negative) number of its own, until it is
        diverted to None. What work of a graph uses is given to nothing else, and not to the driver,
        until as many `release_pool` as `divert` have come."""
        with self._lock:
            if pool is None:
                del self._diverted[stream]
                self._free_postponed()
                return
            self._diverted[stream] = pool
            self._kept[pool] = self._kept.get(pool, 0) + 1

    def release_pool(self, pool: int) -> None:
        with self._lock:
            self._kept[pool] -= 1
            if not self._kept[pool]:
                del self._kept[pool]
                self._release_cached()

    def _free(self, block: Block) -> None:
        block.used, block.tag = False, ""
        self.counts["active"].take(1)
        self.counts["active_bytes"].take(block.nbytes)
        self._keep(block)

    def _settle(self) -> None:
        """Frees blocks whose events have passed."""
        if not self._waiting:
            return
        done = [self.driver.event_done(self.device, event) for event, _ in self._waiting]
        waiting, self._waiting = self._waiting, deque()
        for passed, (event, block) in zip(done, waiting, strict=True):
            if passed:
                self._passed(event, block)
            else:
                self._waiting.append((event, block))

    def _wait(self) -> None:
        while self._waiting and not self._diverted:  # captured work must not be waited for
            event, block = self._waiting[0]
            self.driver.synchronize_event(self.device, event)
            self._waiting.popleft()
            self._passed(event, block)

    def _passed(self, event: int, block: Block) -> None:
        self._events.append(event)
        block.waiting -= 1
        if not block.waiting:
            self._free(block)

    def release_cached(self) -> None:
        """Segments of which nothing is used go back to the driver (cuda.empty_cache)."""
        with self._lock:
            self._free_postponed()
            self._wait()
            self._release_cached()

    def _release_cached(self) -> None:
        if self._diverted:  # captured work must not be waited for
            return
        if self._spaces:
            self.driver.synchronize(self.device)  # work that comes before must not lose its pages
        for segment in list(self._segments.values()):
            if segment.stream in self._kept:
                continue
            if segment.page:
                self._release_pages(segment)
            block = segment.first
            assert block is not None
            if block.next is not None or not block.free:
                continue
            if segment.page:
                self.driver.unreserve(self.device, segment.address, segment.span)
                del self._spaces[segment.stream, segment.small]
            else:
                self.driver.release(self.device, segment.address)
                self._unlist(block)
                self.counts["reserved_bytes"].take(segment.nbytes)
            del self._segments[segment.address]
            self.counts["segment"].take(1)

    def _release_pages(self, segment: Segment) -> None:
        """The whole pages in free blocks of a segment go back to the driver."""
        page = segment.page
        for block in segment:
            first = pages(block.address, page)
            last = (block.address + block.nbytes) // page * page
            if not block.free or not block.mapped or first >= last:
                continue
            self.driver.unmap_pages(self.device, first, last - first)
            self._unlist(block)
            if last < block.address + block.nbytes:
                self._list(block.cut(last - block.address))
            hole = block
            if block.address < first:
                hole = block.cut(first - block.address)
                self._list(block)
            hole.mapped = False
            segment.nbytes -= last - first
            self.counts["reserved_bytes"].take(last - first)
            for other in (hole.previous, hole.next):
                if other is not None and not other.mapped:
                    hole.join(other)

    # -- what there is -----------------------------------------------------------------------------
    def holders(self, count: int = 5) -> list[tuple[str, int]]:
        """Who holds most: (tag, bytes), the largest first."""
        held: dict[str, int] = {}
        for block in self._used.values():
            held[block.tag or "unknown"] = held.get(block.tag or "unknown", 0) + block.nbytes
        return sorted(held.items(), key=lambda x: -x[1])[:count]

    def _failure(self, nbytes: int, tag: str) -> str:
        free, total = self.driver.memory_info(self.device)
        used = self.counts["allocated_bytes"].current
        reserved = self.counts["reserved_bytes"].current
        wanted = f" for {tag}" if tag else ""
        if self._diverted:
            wanted += ", while work is captured (cuda.graph), when no cached memory is given back"
        limit = "" if self.limit is None else f" (limited to {_bytes(self.limit)})"
        held = "".join(f"\n  {_bytes(n):>10}  {tag}" for tag, n in self.holders())
        return (
            f"[cuda] CUDA out of memory. Tried to allocate {_bytes(nbytes)}{wanted}. GPU "
            f"{self.device} has "
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
        """Every segment with its blocks, by address; of one that grows in place, every stretch that
        has memory."""
        with self._lock:
            found = []
            for _, segment in sorted(self._segments.items()):
                stretches: list[list[Block]] = [[]]
                for block in segment:
                    if block.mapped:
                        stretches[-1].append(block)
                    else:
                        stretches.append([])
                found += [self._describe(segment, blocks) for blocks in stretches if blocks]
            return found

    def _describe(self, segment: Segment, stretch: list[Block]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        for block in stretch:
            state = "active_allocated" if block.used and not block.waiting else "inactive"
            if block.waiting:
                state = "active_pending_free"
            size = block.requested if block.used else 0
            blocks.append(
                {"address": block.address, "size": block.nbytes, "requested_size": size,
                 "state": state, "tag": block.tag}
            )  # fmt: skip
        active = [b for b in blocks if b["state"] != "inactive"]
        allocated = [b for b in blocks if b["state"] == "active_allocated"]
        return {
            "device": self.device, "address": blocks[0]["address"],
            "total_size": sum(b["size"] for b in blocks), "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "is_expandable": bool(segment.page),
            "allocated_size": sum(b["size"] for b in allocated),
            "active_size": sum(b["size"] for b in active), "blocks": blocks,
        }  # fmt: skip

    def check(self) -> None:
        """Raises InvariantError where something that must hold does not: for tests."""
        reserved = used = 0
        for segment in self._segments.values():
            at, with_memory = segment.address, 0
            before: Block | None = None
            for block in segment:
                _must(block.address == at and block.nbytes > 0, "blocks lie side by side")
                _must(block.previous is before, "the chain holds")
                alike = before is not None and before.free and before.mapped is block.mapped
                _must(not (block.free and alike), "free neighbours are merged")
                pool = self._pool(segment.stream, segment.small)
                listed = block.free and block.mapped
                _must((block.key in pool.blocks) == listed, "the pool has the free blocks")
                if block.used and not block.waiting:
                    used += block.nbytes
                    _must(self._used.get(block.address) is block, "used blocks are known")
                if block.mapped:
                    with_memory += block.nbytes
                else:
                    whole = segment.page and not (block.address | block.nbytes) % segment.page
                    _must(bool(whole) and block.free, "what has no memory is free pages")
                at += block.nbytes
                before = block
            _must(at == segment.address + segment.span, "blocks fill their segment")
            _must(with_memory == segment.nbytes, "the segment's memory is counted")
            reserved += segment.nbytes
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
