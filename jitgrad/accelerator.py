"""torch.accelerator: the device beside the CPU. There is none yet (docs/limits.md)."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing


def _no_device(what: str) -> RuntimeError:
    return RuntimeError(
        f"[accelerator.{what}] expected an accelerator; there is none: the GPU back end is not "
        "built yet (docs/limits.md); ask accelerator.is_available() first, or use device='cpu'"
    )


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return False


def device_count() -> int:
    """The number of devices."""
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """The device: None."""
    return None


def empty_cache() -> None:
    """Nothing: there is no cache."""


def synchronize(device: Any = None) -> None:
    """Nothing: there is nothing to wait for."""


def memory_allocated(device_index: Any = None) -> int:
    """Bytes in use: 0."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def reset_peak_memory_stats(device_index: Any = None) -> None:
    """Nothing: no memory is used."""


def current_device_index() -> int:
    """Raises RuntimeError: there is no device."""
    raise _no_device("current_device_index")


def set_device_index(device: Any) -> None:
    """Raises RuntimeError: there is no device."""
    raise _no_device("set_device_index")


def current_stream(device: Any = None) -> Any:
    """Raises RuntimeError: there is no device."""
    raise _no_device("current_stream")


__getattr__ = missing(__name__)
