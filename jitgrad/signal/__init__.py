"""torch.signal: `windows`."""

from jitgrad.signal import windows as windows

__all__ = ["windows"]
