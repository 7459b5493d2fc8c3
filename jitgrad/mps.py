"""torch.mps: there is no such device, and none is planned (docs/limits.md)."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return False


def device_count() -> int:
    """The number of devices."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing: there is no device to seed."""


def seed() -> None:
    """Nothing: there is no device to seed."""


def empty_cache() -> None:
    """Nothing: there is no cache."""


def synchronize(device: Any = None) -> None:
    """Nothing: there is nothing to wait for."""


__getattr__ = missing(__name__)
