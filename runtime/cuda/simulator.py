"""A driver whose device is this machine's memory: for tests, and for Numba's CUDA simulator.

Work is done at once, unless `lazy`: then each stream keeps what it was given in order, until it is
synchronised or waited for, as a GPU that is slow would. `launches`, `waits` and `peer_copies` are
counts. `capacity` bytes can be allocated. With `memory=False` addresses have nothing behind them
(for the allocator's tests). Virtual memory has pages of `page` bytes (0: there is none). Launches
and copies that name another device's memory or stream are refused.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.runtime.buffers import address as address_of
from jitgrad.runtime.buffers import empty
from jitgrad.runtime.cuda.driver import CudaError, DeviceMemoryError, Properties

_FIRST = 1 << 40  # addresses without memory start here
_ALIGNMENT = 512
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class SimulatedDriver:
    """See the module. `lazy`, `capacity` and `memory` may be set before the first use."""

    def __init__(
        self, capacity: int = 8 << 30, *, memory: bool = True, lazy: bool = False, devices: int = 1,
        page: int = 2 << 20,
    ) -> None:  # fmt: skip
        self.capacity, self.memory, self.lazy, self.devices = capacity, memory, lazy, devices
        self.used = [0] * devices
        self._held: dict[int, tuple[int, int, Any]] = {}  # address -> device, bytes, memory
        self._next = _FIRST
        self.page = page if not memory or _NO_RESERVE else 0
        self._ranges: dict[int, tuple[int, Any]] = {}  # address -> bytes, addresses of the host
        self._mapped: dict[int, int] = {}  # address of a page that has memory -> device
        self._handles = 1 << 8  # small numbers mean default streams to others
        self._queues: dict[int, deque[Callable[[], bool]]] = {}
        self._recorded: dict[int, tuple[bool, float]] = {}
        self._released: set[int] = set()
        self._stream_device: dict[int, int] = {}
        self.launches = self.waits = self.peer_copies = 0
        self._pinned: dict[int, int] = {}
        self._noted: dict[int, list[Callable[[], object]]] = {}
        self._graphs: dict[int, list[Callable[[], object]]] = {}

    def device_count(self) -> int:
        return self.devices

    def properties(self, device: int) -> Properties:
        self._check(device)
        return Properties("Numba's CUDA simulator", 8, 0, self.capacity, 1, simulated=True)

    def _check(self, device: int) -> None:
        if not 0 <= device < self.devices:
            raise CudaError(
                f"[cuda] expected a device below {self.devices}; got {device} (invalid device "
                "ordinal)"
            )

    def use(self, device: int) -> None:
        self._check(device)

    def memory_info(self, device: int) -> tuple[int, int]:
        return self.capacity - self.used[device], self.capacity

    # -- memory ------------------------------------------------------------------------------------
    def allocate(self, device: int, nbytes: int) -> int:
        self._check(device)
        if self.used[device] + nbytes > self.capacity:
            raise DeviceMemoryError(f"[cuda] no {nbytes} bytes of memory are left")
        held: Any = None
        if self.memory:
            held = empty(nbytes + _ALIGNMENT)
            place = address_of(held) + _ALIGNMENT - 1 & -_ALIGNMENT
        else:
            place = self._next
            self._next += nbytes + _ALIGNMENT - 1 & -_ALIGNMENT
        self._held[place] = (device, nbytes, held)
        self.used[device] += nbytes
        return place

    def release(self, device: int, address: int) -> None:
        self.synchronize(device)
        _, nbytes, _ = self._held.pop(address)
        self.used[device] -= nbytes

    def page_size(self, device: int) -> int:
        return self.page

    def reserve(self, device: int, nbytes: int) -> int:
        self._check(device)
        held: Any = None
        if self.memory:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            held = mmap.mmap(-1, nbytes + self.page, flags=flags)
            place = ctypes.addressof(ctypes.c_char.from_buffer(held)) + self.page - 1
        else:
            place = self._next + self.page - 1
            self._next += nbytes + self.page
        place &= -self.page
        self._ranges[place] = (nbytes, held)
        return place

    def unreserve(self, device: int, address: int, nbytes: int) -> None:
        size, _ = self._ranges.pop(address)
        if size != nbytes or any(address <= at < address + size for at in self._mapped):
            raise CudaError(f"[cuda] the range at {address:#x} is in use, or another one")

    def map_pages(self, device: int, address: int, nbytes: int) -> None:
        self._whole_pages(address, nbytes)
        if self.used[device] + nbytes > self.capacity:
            raise DeviceMemoryError(f"[cuda] no {nbytes} bytes of memory are left")
        places = range(address, address + nbytes, self.page)
        inside = any(a <= address and places.stop <= a + n for a, (n, _) in self._ranges.items())
        if not inside or any(at in self._mapped for at in places):
            raise CudaError(f"[cuda] the pages at {address:#x} are not reserved, or have memory")
        self._mapped.update(dict.fromkeys(places, device))
        self.used[device] += nbytes

    def unmap_pages(self, device: int, address: int, nbytes: int) -> None:
        self._whole_pages(address, nbytes)
        if any(self._queues.values()):
            raise CudaError(f"[cuda] the pages at {address:#x} may be in use: there is work to do")
        for at in range(address, address + nbytes, self.page):
            if self._mapped.pop(at, None) != device:
                raise CudaError(f"[cuda] the page at {at:#x} has no memory")
            for start, (size, held) in self._ranges.items():
                if held is not None and start <= at < start + size:
                    first = ctypes.addressof(ctypes.c_char.from_buffer(held))
                    held.madvise(mmap.MADV_DONTNEED, at - first, self.page)
        self.used[device] -= nbytes

    def _whole_pages(self, address: int, nbytes: int) -> None:
        if (address | nbytes) % self.page:
            raise CudaError(f"[cuda] {nbytes} bytes at {address:#x} are not whole pages")

    def _expect_own(self, device: int, stream: int, *addresses: int) -> None:
        """Raises CudaError where a stream, or memory at an address, is another device's."""
        if self._stream_device.get(stream, device) != device:
            raise CudaError(f"[cuda] stream {stream} is not of device {device}")
        for at in addresses if self.devices > 1 else ():
            if self.device_of(at) not in (None, device):
                raise CudaError(f"[cuda] the memory at {at:#x} is not of device {device}")

    def _do(self, stream: int, work: Callable[[], object]) -> None:
        if stream in self._noted:
            self._noted[stream].append(work)
            return
        if not self.lazy:
            work()
            return

        def one() -> bool:
            work()
            return True

        self._queues.setdefault(stream, deque()).append(one)

    def copy_in(self, device: int, to: int, host: int, nbytes: int, stream: int) -> None:
        self._expect_own(device, stream, to)
        if stream in self._noted and not self._is_pinned(host, nbytes):
            raise CudaError(f"[cuda] stream {stream} is captured: host memory must be pinned")
        if self._is_pinned(host, nbytes):  # it is read when its turn comes
            self._do(stream, lambda: ctypes.memmove(to, host, nbytes))
        elif self.lazy:  # the caller may write its memory again
            kept = ctypes.create_string_buffer(ctypes.string_at(host, nbytes), nbytes)
            self._do(stream, lambda: ctypes.memmove(to, kept, nbytes))
        else:
            ctypes.memmove(to, host, nbytes)

    def copy_out(self, device: int, host: int, of: int, nbytes: int, stream: int) -> None:
        self._expect_own(device, stream, of)
        self._do(stream, lambda: ctypes.memmove(host, of, nbytes))

    def copy_within(self, device: int, to: int, of: int, nbytes: int, stream: int) -> None:
        self._expect_own(device, stream, to, of)
        if to != of and abs(to - of) < nbytes:
            raise CudaError(f"[cuda] {nbytes} bytes at {to:#x} and at {of:#x} overlap")
        self._do(stream, lambda: ctypes.memmove(to, of, nbytes))

    def copy_peer(
        self, to_device: int, to: int, of_device: int, of: int, nbytes: int, stream: int
    ) -> None:
        if (self.device_of(to), self.device_of(of)) != (to_device, of_device):
            raise CudaError(f"[cuda] {to:#x} or {of:#x} is not on the device that was named")
        self.peer_copies += 1
        self._do(stream, lambda: ctypes.memmove(to, of, nbytes))

    def device_of(self, address: int) -> int | None:
        for start, (device, nbytes, _) in self._held.items():
            if start <= address < start + nbytes:
                return device
        return self._mapped.get(address & -self.page) if self.page else None

    def fill(self, device: int, to: int, byte: int, nbytes: int, stream: int) -> None:
        self._expect_own(device, stream, to)
        self._do(stream, lambda: ctypes.memset(to, byte, nbytes))

    def pin(self, address: int, nbytes: int) -> None:
        first, end = address // mmap.PAGESIZE, (address + nbytes - 1) // mmap.PAGESIZE
        for a, n in self._pinned.items():
            if first <= (a + n - 1) // mmap.PAGESIZE and a // mmap.PAGESIZE <= end:
                raise CudaError(f"[cuda] a page of the {nbytes} bytes at {address:#x} is pinned")
        self._pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        del self._pinned[address]

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(p <= address and address + nbytes <= p + n for p, n in self._pinned.items())

    # -- streams and events ------------------------------------------------------------------------
    def _handle(self) -> int:
        self._handles += 1
        return self._handles

    def new_stream(self, device: int, priority: int) -> int:
        self._check(device)
        stream = self._handle()
        self._stream_device[stream] = device
        return stream

    def run(self, stream: int, steps: int | None = None) -> None:
        """Does the next `steps` pieces of a stream's work, or as much as waits for nothing."""
        queue = self._queues.get(stream)
        while queue and (steps is None or steps > 0):
            if not queue[0]():
                return
            queue.popleft()
            steps = None if steps is None else steps - 1

    def synchronize_stream(self, device: int, stream: int) -> None:
        if stream in self._noted:
            raise CudaError(f"[cuda] stream {stream} is captured: it cannot be waited for")
        self.waits += 1
        queue = self._queues.get(stream)
        while queue:
            before = len(queue)
            self.run(stream)
            if len(queue) == before:  # it waits for an event of another stream
                for other in list(self._queues):
                    if other != stream:
                        self.run(other, 1)

    def stream_done(self, device: int, stream: int) -> bool:
        return not self._queues.get(stream)

    def synchronize(self, device: int) -> None:
        for stream in list(self._queues):
            self.synchronize_stream(device, stream)

    def new_event(self, device: int, timing: bool) -> int:
        event = self._handle()
        self._recorded[event] = (True, 0.0)
        return event

    def release_event(self, device: int, event: int) -> None:
        if self._recorded.get(event, (True, 0.0))[0]:
            self._recorded.pop(event, None)
        else:  # others wait for it
            self._released.add(event)

    def record(self, device: int, event: int, stream: int) -> None:
        self._expect_own(device, stream)
        self._recorded[event] = (False, 0.0)

        def done() -> None:
            if event in self._recorded:
                self._recorded[event] = (True, time.perf_counter())
            if event in self._released:
                self._released.discard(event)
                del self._recorded[event]

        self._do(stream, done)

    def event_done(self, device: int, event: int) -> bool:
        return self._recorded[event][0]

    def wait(self, device: int, stream: int, event: int) -> None:
        if self.lazy:
            queue = self._queues.setdefault(stream, deque())
            queue.append(lambda: self._recorded.get(event, (True, 0.0))[0])

    def synchronize_event(self, device: int, event: int) -> None:
        self.waits += 1
        while not self._recorded[event][0]:
            for stream in list(self._queues):
                self.run(stream, 1)

    def elapsed(self, device: int, start: int, end: int) -> float:
        for event in (start, end):
            self.synchronize_event(device, event)
        return (self._recorded[end][1] - self._recorded[start][1]) * 1e3

    # -- kernels -----------------------------------------------------------------------------------
    def load(self, device: int, code: Any, symbol: str) -> Any:
        """`code` is what makes the kernel of a name callable: code(symbol)[grid, block](*args)."""
        return code(symbol)

    def launch(
        self, device: int, function: Any, grid: int, block: int, stream: int,
        args: Sequence[tuple[str, int]],
    ) -> None:  # fmt: skip
        self._expect_own(device, stream, *[word for kind, word in args if kind[0] == "*"])
        self.launches += stream not in self._noted
        values = [self._argument(kind, word) for kind, word in args]
        self._do(stream, lambda: function[grid, block](*values))

    # -- graphs ------------------------------------------------------------------------------------
    def begin_capture(self, device: int, stream: int, relaxed: bool = False) -> None:
        if not stream or stream in self._noted:
            raise CudaError(f"[cuda] stream {stream} cannot be captured")
        self._noted[stream] = []

    def end_capture(self, device: int, stream: int) -> int:
        graph = self._handle()
        self._graphs[graph] = self._noted.pop(stream)
        return graph

    def launch_graph(self, device: int, graph: int, stream: int) -> None:
        self.launches += 1
        for work in self._graphs[graph]:
            self._do(stream, work)

    def release_graph(self, device: int, graph: int) -> None:
        del self._graphs[graph]

    def _argument(self, kind: str, word: int) -> Any:
        """A number, or the elements from an address to the end of what was allocated there."""
        if not kind.startswith("*"):
            return word
        dtype = np.dtype(kind[1:])
        end = self._end(word)
        count = (end - word) // dtype.itemsize
        if not count:
            return np.empty(1, dtype)
        memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(word)
        return np.ndarray((count,), dtype, memory)

    def _end(self, address: int) -> int:
        """Where the memory ends that an address is in."""
        for start, (_, nbytes, _) in self._held.items():
            if start <= address < start + nbytes:
                return start + nbytes
        at = address & -self.page if self.page else 0
        if at not in self._mapped:
            raise CudaError(f"[cuda] no device memory at address {address:#x}")
        while at in self._mapped:
            at += self.page
        return at
