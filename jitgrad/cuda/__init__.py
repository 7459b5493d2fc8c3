"""There is no CUDA device yet (docs/limits.md): what asks about one says so."""

from jitgrad.cuda import amp as amp


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return False


def device_count() -> int:
    """The number of devices."""
    return 0


__all__ = ["amp", "device_count", "is_available"]
