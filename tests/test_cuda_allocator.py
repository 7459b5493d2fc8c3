"""The caching allocator and the simulated driver, without a GPU: random operations with every
invariant checked, reuse across streams, statistics, and what is reserved for a training step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from other_driver import driven_by

from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.allocator import (
    Allocator,
    InvariantError,
    OutOfMemoryError,
    rounded,
    segment_size,
)
from jitgrad.runtime.cuda.driver import CudaError
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.knobs import knob

MIB = 1 << 20


def new(capacity: int = 1 << 30, page: int = 0, **more: Any) -> tuple[SimulatedDriver, Allocator]:
    driver = SimulatedDriver(capacity, memory=False, lazy=True, page=page)
    return driver, Allocator(driver, **more)


pages = pytest.mark.parametrize("page", [0, 2 * MIB], ids=["pieces", "pages"])


def test_sizes() -> None:
    assert [rounded(n) for n in (0, 1, 512, 513)] == [512, 512, 512, 1024]
    assert segment_size(512) == segment_size(MIB // 2) == 2 * MIB
    assert segment_size(MIB) == segment_size(MIB, 12 * MIB) == 2 * MIB
    assert segment_size(MIB, 24 * MIB) == 4 * MIB
    assert segment_size(MIB, 1 << 40) == 8 * MIB
    assert segment_size(11 * MIB + 512) == 12 * MIB


@pages
def test_what_is_freed_while_a_stream_that_uses_it_is_captured_is_reused_later(page: int) -> None:
    """An event noted in a graph passes at no time that one could wait for."""
    driver, a = new(page=page)
    stream = driver.new_stream(0, 0)
    x = a.allocate(1000)
    a.used_on(x, stream)
    a.divert(stream, -1)
    driver.begin_capture(0, stream)
    a.free(x)
    assert a.allocate(1000) != x
    graph = driver.end_capture(0, stream)
    a.divert(stream, None)
    assert driver._graphs[graph] == []
    driver.synchronize(0)
    assert a.allocate(1000) == x
    a.check()


@pages
def test_blocks_are_split_and_merged(page: int) -> None:
    driver, a = new(page=page)
    first, second, third = (a.allocate(1000) for _ in range(3))
    assert second == first + 1024 and third == first + 2048
    a.free(first)
    a.free(third)
    assert a.allocate(1024) == first  # the smallest that fits, not the rest of the segment
    a.free(first)
    a.free(second)
    a.check()
    (segment,) = a.snapshot()
    assert [b["state"] for b in segment["blocks"]] == ["inactive"]
    a.release_cached()
    assert a.snapshot() == [] and a.statistics()["reserved_bytes.all.current"] == 0
    assert driver.used == [0] and not driver._ranges and a.statistics()["segment.all.current"] == 0


@pages
def test_memory_is_of_its_stream(page: int) -> None:
    _, a = new(page=page)
    x = a.allocate(MIB, stream=0)
    a.free(x)
    assert a.allocate(MIB, stream=7) != x
    assert a.allocate(MIB, stream=0) == x


@pages
def test_memory_that_another_stream_uses_waits_for_its_event(page: int) -> None:
    driver, a = new(page=page)
    stream = driver.new_stream(0, 0)
    done: list[int] = []
    x = a.allocate(MIB)
    driver._do(stream, lambda: done.append(1))
    a.used_on(x, stream)
    a.free(x)
    y = a.allocate(MIB)
    assert y != x and not done
    driver.run(stream)
    assert done and a.allocate(MIB) == x
    a.check()


def test_running_out_frees_what_is_cached_and_then_says_who_holds_what() -> None:
    driver, a = new(capacity=64 * MIB)
    small = [a.allocate(20 * MIB, tag="weights") for _ in range(2)]
    a.free(small.pop())
    big = a.allocate(40 * MIB, tag="activations")  # fits once the cached segment has gone back
    assert a.statistics()["num_alloc_retries"] == 1
    with pytest.raises(OutOfMemoryError, match=r"(?s)Tried to allocate 30.00 MiB.*64.00 MiB in all"
                       r".*40.00 MiB  activations.*20.00 MiB  weights"):  # fmt: skip
        a.allocate(30 * MIB)
    assert a.statistics()["num_ooms"] == 1
    a.free(big)
    a.limit = 30 * MIB
    with pytest.raises(OutOfMemoryError, match="limited to 30.00 MiB"):
        a.allocate(45 * MIB)


def test_a_limit_on_splitting() -> None:
    _, a = new(max_split=32 * MIB)
    a.free(a.allocate(64 * MIB))
    small = a.allocate(20 * MIB)  # not a part of the block of 64 MiB
    assert a.statistics()["segment.all.current"] == 2
    a.free(small)
    a.allocate(60 * MIB)
    assert a.statistics()["segment.all.current"] == 2  # all of that block
    a.check()


def test_a_segment_grows_in_place() -> None:
    driver, a = new(page=2 * MIB)
    first, second = a.allocate(MIB), a.allocate(4 * MIB)
    assert second == first + 2 * MIB  # at a page; the rest of the first page is for others
    assert driver.used == [6 * MIB]
    third = a.allocate(MIB - 512)
    assert third == first + MIB and driver.used == [6 * MIB]
    a.free(second)
    assert a.allocate(9 * MIB) == second and driver.used == [12 * MIB]  # 6 MiB more
    a.check()
    (segment,) = a.snapshot()
    assert segment["is_expandable"] and segment["total_size"] == 12 * MIB
    assert a.statistics()["segment.all.current"] == 1


def test_free_pages_between_blocks_go_back_and_come_again() -> None:
    driver, a = new(page=2 * MIB)
    kept = [a.allocate(3 * MIB) for _ in range(8)]  # each has half a page to itself
    for address in kept[1::2]:
        a.free(address)
    before = driver.used[0]
    a.release_cached()
    a.check()
    assert driver.used[0] < before and len(a.snapshot()) == 4
    again = [a.allocate(3 * MIB) for _ in range(4)]
    assert sorted(again) == kept[1::2] and driver.used[0] == before


def test_running_out_in_pages_moves_them_from_where_they_are_free() -> None:
    driver, a = new(capacity=24 * MIB, page=2 * MIB)
    kept = [a.allocate(2 * MIB) for _ in range(12)]
    for address in kept[::2]:
        a.free(address)
    big = a.allocate(12 * MIB)  # pages of six blocks that do not lie side by side
    assert a.statistics()["num_alloc_retries"] == 1 and driver.used == [24 * MIB]
    a.check()
    with pytest.raises(OutOfMemoryError):
        a.allocate(2 * MIB)
    a.check()
    a.free(big)
    a.allocate(2 * MIB)
    a.limit = 24 * MIB
    with pytest.raises(OutOfMemoryError, match="limited to 24.00 MiB"):
        a.allocate(14 * MIB)
    a.check()


def test_pages_wait_for_the_work_on_them() -> None:
    driver, a = new(page=2 * MIB)
    x = a.allocate(4 * MIB)
    done: list[int] = []
    driver._do(0, lambda: done.append(1))
    a.free(x)
    a.release_cached()  # the driver refuses to take pages while there is work to do
    assert done and driver.used == [0]


def test_where_addresses_cannot_be_reserved_memory_comes_in_pieces() -> None:
    driver, a = new(page=2 * MIB)

    def refuse(device: int, nbytes: int) -> int:
        raise CudaError("[cuda] no such function")

    driver.reserve = refuse  # type: ignore[method-assign]
    a.free(a.allocate(3 * MIB))
    a.check()
    assert [s["is_expandable"] for s in a.snapshot()] == [False]
    assert Allocator(driver, paged=False)._page == 0 == Allocator(driver, max_split=MIB)._page


def _work(a: Allocator, driver: SimulatedDriver) -> None:
    """Every way to the driver, of whose calls one may fail: what failed is done again."""

    def attempt(call: Callable[[], Any]) -> Any:
        for _ in range(2):
            try:
                return call()
            except CudaError:
                a.check()
                assert driver.used == [a.statistics()["reserved_bytes.all.current"]]
        raise AssertionError("one call fails, once")

    streams = [driver.new_stream(0, 0) for _ in range(2)]
    live = [attempt(lambda n=n: a.allocate(n)) for n in (3 * MIB, 700, 5 * MIB, 3 * MIB, 4 * MIB)]
    for address in live[::2]:
        for stream in streams:
            a.used_on(address, stream)
        attempt(lambda address=address: a.free(address))
    attempt(lambda: a.free(live[3]))
    attempt(a.release_cached)
    more = [attempt(lambda n=n: a.allocate(n, streams[0])) for n in (9 * MIB, 3 * MIB)]
    with pytest.raises(OutOfMemoryError):
        attempt(lambda: a.allocate(60 * MIB))
    for address in (live[1], *more):
        a.used_on(address, streams[1])
        attempt(lambda address=address: a.free(address))
    attempt(lambda: a.allocate(20 * MIB))
    attempt(a.release_cached)
    a.check()


@pages
def test_a_call_of_the_driver_that_fails_leaves_the_allocator_whole(page: int) -> None:
    """The n-th call, for every n."""
    methods = (
        "memory_info", "allocate", "release", "reserve", "unreserve", "map_pages", "unmap_pages",
        "synchronize", "new_event", "record", "event_done", "synchronize_event",
    )  # fmt: skip
    failed: set[str] = set()
    total, n = 1, 0
    while n < total:
        n += 1
        driver, a = new(64 * MIB, page)
        count = 0

        def failing(name: str, call: Any, n: int = n) -> Any:
            def called(*args: Any) -> Any:
                nonlocal count
                count += 1
                if count == n:
                    failed.add(name)
                    raise CudaError(f"[cuda] {name} failed")
                return call(*args)

            return called

        with pytest.MonkeyPatch.context() as patch:
            for name in methods:
                patch.setattr(driver, name, failing(name, getattr(driver, name)))
            _work(a, driver)
        for address in list(a._used):
            a.free(address)
        a.release_cached()
        total = max(total, count)
        a.check()
        assert driver.used == [0] and a.snapshot() == [] and not a._waiting and not a._postponed
        assert not driver._ranges and not driver._mapped and not driver._held
        s = a.statistics()
        assert s["active_bytes.all.current"] == s["inactive_split_bytes.all.current"] == 0
    unused = (
        {"allocate", "release"} if page else {"reserve", "unreserve", "map_pages", "unmap_pages"}
    )
    assert failed >= {*methods} - unused - {"synchronize"}


@pages
def test_wrong_frees_are_errors(page: int) -> None:
    _, a = new(page=page)
    x = a.allocate(100)
    with pytest.raises(CudaError, match="no memory was allocated"):
        a.free(x + 8)
    a.free(x)
    with pytest.raises(CudaError, match="no memory was allocated"):
        a.free(x)


def test_the_check_finds_broken_structures() -> None:
    _, a = new()
    a.allocate(100)
    (segment,) = a._segments.values()
    assert segment.first is not None
    segment.first.nbytes += 512
    with pytest.raises(InvariantError):
        a.check()


def test_statistics() -> None:
    _, a = new()
    x, y = a.allocate(700), a.allocate(3 * MIB)
    a.free(x)
    s = a.statistics()
    assert s["allocated_bytes.all.current"] == 3 * MIB
    assert s["allocated_bytes.all.peak"] == 3 * MIB + 1024
    assert s["requested_bytes.all.allocated"] == 3 * MIB + 700
    assert s["reserved_bytes.all.current"] == 6 * MIB
    a.reset_peaks()
    assert a.statistics()["allocated_bytes.all.peak"] == 3 * MIB
    a.free(y)
    assert a.statistics()["allocation.all.freed"] == 2


def _size(rng: random.Random) -> int:
    return int(2 ** rng.uniform(0, 24 if rng.random() < 0.9 else 26))


def _random_operations(seed: int, count: int, every: int) -> None:
    """Random work on three streams. Each block is stamped by the work that uses it; no block may be
    given out while a stream still has work on its memory."""
    rng = random.Random(seed)
    page = rng.choice([0, 2 * MIB])
    driver, a = new(512 * MIB, page, max_split=None if page else rng.choice([None, 8 * MIB]))
    streams = [0, driver.new_stream(0, 0), driver.new_stream(0, 0)]
    live: dict[int, tuple[int, int]] = {}  # address -> bytes, stream
    busy: dict[tuple[int, int], tuple[int, int]] = {}  # (number, stream) of work -> memory
    number = 0

    def work(address: int, nbytes: int, stream: int) -> None:
        nonlocal number
        number += 1
        key = (number, stream)
        busy[key] = (address, address + nbytes)
        driver._do(stream, lambda: busy.pop(key))

    for step in range(count):
        kind = rng.random()
        if kind < 0.45 or not live:
            nbytes, stream = _size(rng), rng.choice(streams)
            try:
                address = a.allocate(nbytes, stream)
            except OutOfMemoryError:
                for old in rng.sample(sorted(live), len(live) // 2):
                    a.free(old)
                    del live[old]
                continue
            end = address + nbytes
            for (_, other), (low, high) in busy.items():
                assert other == stream or high <= address or end <= low, "still used elsewhere"
            live[address] = (nbytes, stream)
            work(address, nbytes, stream)
        elif kind < 0.85:
            address = rng.choice(list(live)) if len(live) < 50 else next(iter(live))
            a.free(address)
            del live[address]
        elif kind < 0.92:
            address = rng.choice(list(live))
            stream = rng.choice(streams)
            a.used_on(address, stream)
            work(address, live[address][0], stream)
        elif kind < 0.999:
            driver.run(rng.choice(streams), rng.randrange(20))
        else:
            a.release_cached()
        if step % every == 0:
            spans = sorted((x, x + n) for x, (n, _) in live.items())
            for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
                assert end <= start, "blocks overlap"
            a.check()
            assert driver.used == [a.statistics()["reserved_bytes.all.current"]]
    for address in live:
        a.free(address)
    driver.synchronize(0)
    a.release_cached()
    assert driver.used == [0] and a.snapshot() == [], "everything merges back"
    assert not driver._ranges and not driver._mapped
    s = a.statistics()
    assert s["active_bytes.all.current"] == s["inactive_split_bytes.all.current"] == 0


@pytest.mark.parametrize("seed", range(4))
def test_random_operations(seed: int) -> None:
    _random_operations(seed, 3000, 50)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_random_operations(seed: int) -> None:
    _random_operations(seed, 200_000, 2000)


@pytest.mark.parametrize("page", [0, 2 << 20])
def test_what_the_collector_frees_in_the_middle_waits(page: int, monkeypatch: Any) -> None:
    _, allocator = new(page=page)
    held = [allocator.allocate(3072) for _ in range(6)]
    describe = allocator._describe

    def collecting(segment: Any, stretch: Any) -> Any:
        while held:
            allocator.free(held.pop(0))
        return describe(segment, stretch)

    monkeypatch.setattr(allocator, "_describe", collecting)
    found = allocator.snapshot()
    assert sum(s["total_size"] for s in found) == allocator.counts["reserved_bytes"].current
    assert sum(s["allocated_size"] for s in found) == 6 * 3072
    assert allocator.counts["allocated_bytes"].current == 0 == len(held)
    allocator.check()


def test_the_limit_on_splitting_is_the_variable_s() -> None:
    with knob(cuda_max_split=32 * MIB), driven_by(SimulatedDriver(1 << 30)):
        allocator = device.device().allocator
        assert allocator.max_split == 32 * MIB and not allocator._page
    with driven_by(SimulatedDriver(1 << 30)):
        assert device.device().allocator.max_split is None
