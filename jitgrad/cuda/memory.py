"""torch.cuda's memory functions: what the caching allocator of a device says.

Without a device they say that nothing is used. The allocator is runtime/cuda/allocator.py.
"""

from __future__ import annotations

from typing import Any

from jitgrad.device import device as Device
from jitgrad.runtime import cuda


def index_of(device: Any) -> int:
    """The number of a device: an int, "cuda:1", a device, None (the current one)."""
    if device is None:
        return cuda.device.current()
    if isinstance(device, int):
        return device
    found = Device(device)
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return cuda.device.current() if found.index is None else found.index


def _allocator(device: Any) -> Any:
    """The allocator of a device; None where there is no device and none was asked for by number."""
    if not cuda.device.count() and (device is None or device in ("cuda", 0)):
        return None
    return cuda.device.device(index_of(device), "cuda.memory").allocator


def _figure(name: str) -> Any:
    def figure(device: Any = None) -> int:
        found = _allocator(device)
        return 0 if found is None else int(found.statistics()[name])

    return figure


def _named(function: Any, name: str, doc: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


memory_allocated = _named(
    _figure("allocated_bytes.all.current"), "memory_allocated", "Bytes that tensors use."
)
max_memory_allocated = _named(
    _figure("allocated_bytes.all.peak"), "max_memory_allocated", "The most bytes that were used."
)
memory_reserved = _named(
    _figure("reserved_bytes.all.current"), "memory_reserved", "Bytes taken from the driver."
)
max_memory_reserved = _named(
    _figure("reserved_bytes.all.peak"), "max_memory_reserved", "The most bytes that were taken."
)
memory_cached, max_memory_cached = memory_reserved, max_memory_reserved


def empty_cache() -> None:
    """Gives memory that no tensor uses back to the driver. Raises RuntimeError while work is
    captured."""
    if cuda.device.initialized():
        for index in range(cuda.device.count()):
            cuda.capture.refuse_wait(index, "cuda.empty_cache")
            cuda.device.device(index).allocator.release_cached()


def reset_peak_memory_stats(device: Any = None) -> None:
    """The peaks are what is used now."""
    found = _allocator(device)
    if found is not None:
        found.reset_peaks()


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """The sums of what was allocated and freed start from 0."""
    found = _allocator(device)
    if found is not None:
        found.reset_accumulated()


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Figures of the allocator: {"allocated_bytes.all.peak": ...}; empty without a device."""
    found = _allocator(device)
    return {} if found is None else dict(sorted(found.statistics().items()))


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """Every segment of memory with its blocks, and who holds them."""
    found = _allocator(device)
    return [] if found is None else found.snapshot()


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the allocator's figures; empty without a device."""
    found = _allocator(device)
    if found is None:
        return ""
    figures = found.statistics()
    names = ["allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes"]
    names += [] if abbreviated else ["inactive_split_bytes", "allocation", "segment"]
    kinds = ("current", "peak", "allocated", "freed")
    lines = [
        f"| {'cuda:' + str(index_of(device)):<22}" + "".join(f"| {k:>14} " for k in kinds) + "|"
    ]
    for name in names:
        row = "".join(f"| {figures[f'{name}.all.{k}']:>14} " for k in kinds)
        lines.append(f"| {name:<22}{row}|")
    held = [f"| held by {tag}: {n} bytes" for tag, n in ([] if abbreviated else found.holders())]
    return "\n".join([*lines, *held])


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes that the device has free, and in all."""
    there = cuda.device.device(index_of(device), "cuda.mem_get_info")
    free, total = there.driver.memory_info(there.index)
    return free, total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Reserves at most this share of the device's memory. Raises ValueError out of [0, 1]."""
    if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    there = cuda.device.device(index_of(device), "cuda.set_per_process_memory_fraction")
    there.allocator.limit = int(there.properties.total_memory * fraction)


EFFECTS: tuple[Any, ...] = (
    memory_allocated, empty_cache, reset_peak_memory_stats, reset_accumulated_memory_stats,
    memory_stats, memory_snapshot, memory_summary, mem_get_info, set_per_process_memory_fraction,
)  # fmt: skip
"""What changes the allocator, or tells what is not so at each call (memory_allocated stands for all
figures, whose code is one)."""
