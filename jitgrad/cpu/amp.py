"""Deprecated names of jitgrad.amp, for "cpu"."""

from __future__ import annotations

from jitgrad import amp
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.userline import warn


def deprecated(name: str) -> None:
    """Warns that another name is to be used."""
    new = f"torch.amp.{name}('cpu', args...)"
    warn(
        f"`torch.cpu.amp.{name}(args...)` is deprecated. Please use `{new}` instead.", FutureWarning
    )


class autocast(amp.autocast):
    """amp.autocast("cpu", ...): deprecated."""

    def __init__(
        self, enabled: bool = True, dtype: DType = dtypes.bfloat16, cache_enabled: bool = True
    ) -> None:
        deprecated("autocast")
        super().__init__("cpu", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """amp.GradScaler("cpu", ...): deprecated."""

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        deprecated("GradScaler")
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


__all__ = ["GradScaler", "autocast"]
