"""Deprecated names of jitgrad.amp, for "cuda"."""

from __future__ import annotations

from typing import Any

from jitgrad import amp
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.userline import warn


def deprecated(name: str) -> None:
    """Warns that another name is to be used."""
    new = f"torch.amp.{name}('cuda', args...)"
    warn(
        f"`torch.cuda.amp.{name}(args...)` is deprecated. Please use `{new}` instead.",
        FutureWarning,
    )


class autocast(amp.autocast):
    """amp.autocast("cuda", ...): deprecated."""

    def __init__(
        self, enabled: bool = True, dtype: DType = dtypes.float16, cache_enabled: bool = True
    ) -> None:
        deprecated("autocast")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """amp.GradScaler("cuda", ...): deprecated."""

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        deprecated("GradScaler")
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(fwd: Any = None, *, cast_inputs: DType | None = None) -> Any:
    """amp.custom_fwd for "cuda": deprecated."""
    deprecated("custom_fwd")
    return amp.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """amp.custom_bwd for "cuda": deprecated."""
    deprecated("custom_bwd")
    return amp.custom_bwd(bwd, device_type="cuda")


__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
