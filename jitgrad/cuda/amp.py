"""Deprecated names of jitgrad.amp, for "cuda"."""

from __future__ import annotations

from typing import Any

from jitgrad import amp
from jitgrad.amp import of_device
from jitgrad.amp.of_device import deprecated
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class autocast(amp.autocast):
    """amp.autocast("cuda", ...): deprecated."""

    def __init__(
        self, enabled: bool = True, dtype: DType = dtypes.float16, cache_enabled: bool = True
    ) -> None:
        deprecated("cuda", "autocast")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(of_device.GradScaler):
    """amp.GradScaler("cuda", ...): deprecated."""

    device = "cuda"


def custom_fwd(fwd: Any = None, *, cast_inputs: DType | None = None) -> Any:
    """amp.custom_fwd for "cuda": deprecated."""
    deprecated("cuda", "custom_fwd")
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """amp.custom_bwd for "cuda": deprecated."""
    deprecated("cuda", "custom_bwd")
    return amp.custom_bwd(bwd, device_type="cuda")


__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
