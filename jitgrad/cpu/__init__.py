"""What torch.cpu has: the one device, which works as it is called."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jitgrad.cpu import amp as amp
from jitgrad.missing import missing


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return True


def is_initialized() -> bool:
    """Whether the device is in use."""
    return True


def device_count() -> int:
    """The number of devices."""
    return 1


def current_device() -> str:
    """The name of the device."""
    return "cpu"


def set_device(device: Any) -> None:
    """Nothing: there is one device."""


def synchronize(device: Any = None) -> None:
    """Nothing: there is nothing to wait for."""


class Stream:
    """The one queue of the CPU, whose work is done when a call returns."""

    def __init__(self, priority: int = -1) -> None: ...

    def wait_stream(self, stream: Any) -> None:
        """Nothing: there is nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing: there is nothing to wait for."""


_STREAM = Stream()


def current_stream(device: Any = None) -> Stream:
    """The queue of the CPU."""
    return _STREAM


def stream(stream: Any) -> AbstractContextManager[None]:
    """A context that does nothing."""
    return nullcontext()


__getattr__ = missing(__name__)
