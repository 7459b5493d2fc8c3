"""torch.accelerator: the device beside the CPU, which is CUDA's where there is one."""

from __future__ import annotations

from typing import Any

from jitgrad import cpu, cuda, mps, xpu
from jitgrad.cuda import current_device as current_device_index
from jitgrad.cuda import current_stream as current_stream
from jitgrad.cuda import device_count as device_count
from jitgrad.cuda import empty_cache as empty_cache
from jitgrad.cuda import is_available as is_available
from jitgrad.cuda import max_memory_allocated as max_memory_allocated
from jitgrad.cuda import max_memory_reserved as max_memory_reserved
from jitgrad.cuda import memory_allocated as memory_allocated
from jitgrad.cuda import memory_reserved as memory_reserved
from jitgrad.cuda import reset_peak_memory_stats as reset_peak_memory_stats
from jitgrad.cuda import set_device as set_device_index
from jitgrad.cuda import synchronize as synchronize
from jitgrad.device import device
from jitgrad.device import device as Device
from jitgrad.missing import missing

__all__ = [
    "current_accelerator", "current_device_index", "current_stream", "device_count", "empty_cache",
    "is_available", "max_memory_allocated", "max_memory_reserved", "memory_allocated",
    "memory_reserved", "reset_peak_memory_stats", "set_device_index", "synchronize",
]  # fmt: skip


def current_accelerator(check_available: bool = False) -> Any:
    """The device; None where there is none."""
    return device("cuda") if cuda.is_available() else None


def get_device_module(device: Any = None) -> Any:
    """The module for devices of a kind, as `cuda`; of the one beside the CPU, or the CPU, by
    default. Raises RuntimeError for a kind without one."""
    place = (current_accelerator() or "cpu") if device is None else device
    kind = Device(place).type
    modules = {"cpu": cpu, "cuda": cuda, "mps": mps, "xpu": xpu}
    if kind not in modules:
        raise RuntimeError(f"[get_device_module] expected a kind that has a module; got {kind!r}")
    return modules[kind]


__getattr__ = missing(__name__)
