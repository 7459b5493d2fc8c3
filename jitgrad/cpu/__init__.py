"""What torch.cpu has."""

from jitgrad.cpu import amp as amp


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return True


def device_count() -> int:
    """The number of devices."""
    return 1


__all__ = ["amp", "device_count", "is_available"]
