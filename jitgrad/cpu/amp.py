"""Deprecated names of jitgrad.amp, for "cpu"."""

from __future__ import annotations

from jitgrad import amp
from jitgrad.amp import of_device
from jitgrad.amp.of_device import deprecated
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class autocast(amp.autocast):
    """amp.autocast("cpu", ...): deprecated."""

    def __init__(
        self, enabled: bool = True, dtype: DType = dtypes.bfloat16, cache_enabled: bool = True
    ) -> None:
        deprecated("cpu", "autocast")
        super().__init__("cpu", dtype, enabled, cache_enabled)


class GradScaler(of_device.GradScaler):
    """amp.GradScaler("cpu", ...): deprecated."""

    device = "cpu"


__all__ = ["GradScaler", "autocast"]
