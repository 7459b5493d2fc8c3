"""What a GPU driver does for us: the interface `Driver`, its errors, and what it says of a device.

`library.py` is NVIDIA's driver; `simulator.py` stands for one in host memory. Streams, events and
functions are opaque words; stream 0 is the default stream. Copies and launches are asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class CudaError(RuntimeError):
    """A call of the driver failed."""


class DeviceMemoryError(CudaError):
    """The driver has no such piece of memory left."""


@dataclass(frozen=True)
class Properties:
    """Of a device; named as PyTorch's are.

    Attributes:
        name, major, minor: "NVIDIA H200", say, and its compute capability.
        total_memory: bytes. multi_processor_count, warp_size. simulated: there is no such device.
    """

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    warp_size: int = 32
    simulated: bool = False
    L2_cache_size: int = 0
    max_threads_per_multi_processor: int = 2048
    shared_memory_per_block: int = 48 * 1024
    regs_per_multiprocessor: int = 65536

    @property
    def arch(self) -> str:
        return "sim" if self.simulated else f"sm_{self.major}{self.minor}"


class Driver(Protocol):
    """A driver. Every method may raise CudaError."""

    def device_count(self) -> int: ...

    def properties(self, device: int) -> Properties: ...

    def use(self, device: int) -> None:
        """Makes a device the thread's current one, for libraries that ask for it."""

    def memory_info(self, device: int) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""

    def device_of(self, address: int) -> int | None:
        """The device that reaches the memory at an address; None for what it does not know."""

    def allocate(self, device: int, nbytes: int) -> int:
        """The address of new memory; DeviceMemoryError where there is none."""

    def release(self, device: int, address: int) -> None: ...

    def page_size(self, device: int) -> int:
        """Bytes of a page of virtual memory, a power of two; 0 where the device has none."""

    def reserve(self, device: int, nbytes: int) -> int:
        """A range of addresses, from a page on, that has no memory."""

    def unreserve(self, device: int, address: int, nbytes: int) -> None:
        """Gives a whole range back; nothing of it has memory."""

    def map_pages(self, device: int, address: int, nbytes: int) -> None:
        """Gives pages of a range memory: all, or none of them and DeviceMemoryError."""

    def unmap_pages(self, device: int, address: int, nbytes: int) -> None:
        """Takes pages' memory back. Nothing may use it any more."""

    def copy_in(self, device: int, to: int, host: int, nbytes: int, stream: int) -> None:
        """From host memory, which may be written again at once (if it is not pinned)."""

    def copy_out(self, device: int, host: int, of: int, nbytes: int, stream: int) -> None: ...

    def copy_within(self, device: int, to: int, of: int, nbytes: int, stream: int) -> None:
        """Between places that do not overlap."""

    def copy_peer(
        self, to_device: int, to: int, of_device: int, of: int, nbytes: int, stream: int
    ) -> None:
        """From another device's memory, on a stream of that device."""

    def fill(self, device: int, to: int, byte: int, nbytes: int, stream: int) -> None: ...

    def new_stream(self, device: int, priority: int) -> int:
        """A stream that is there for good (Device keeps those that nobody uses)."""

    def synchronize_stream(self, device: int, stream: int) -> None: ...

    def stream_done(self, device: int, stream: int) -> bool: ...

    def synchronize(self, device: int) -> None: ...

    def new_event(self, device: int, timing: bool) -> int: ...

    def release_event(self, device: int, event: int) -> None: ...

    def record(self, device: int, event: int, stream: int) -> None: ...

    def event_done(self, device: int, event: int) -> bool: ...

    def wait(self, device: int, stream: int, event: int) -> None:
        """What comes on the stream later waits for the event."""

    def synchronize_event(self, device: int, event: int) -> None: ...

    def elapsed(self, device: int, start: int, end: int) -> float:
        """Milliseconds between two events."""

    def load(self, device: int, code: Any, symbol: str) -> Any:
        """A function of a compiled module."""

    def launch(
        self, device: int, function: Any, grid: int, block: int, stream: int,
        args: Sequence[tuple[str, int]],
    ) -> None:  # fmt: skip
        """args: (kind, word): "*" and a dtype's name with an address, or "int64" and a number."""

    def begin_capture(self, device: int, stream: int, relaxed: bool = False) -> None:
        """Work that is given to the stream is noted, not done (not on the default stream). relaxed:
        memory may be asked for meanwhile, and other streams waited for."""

    def end_capture(self, device: int, stream: int) -> int:
        """A graph of what was noted."""

    def launch_graph(self, device: int, graph: int, stream: int) -> None: ...

    def release_graph(self, device: int, graph: int) -> None: ...

    def pin(self, address: int, nbytes: int) -> None:
        """Host memory is kept in place, so that copies of it are asynchronous. No page of it may
        be pinned already."""

    def unpin(self, address: int) -> None: ...
