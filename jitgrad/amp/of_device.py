"""What jitgrad.cpu.amp and jitgrad.cuda.amp, deprecated names of jitgrad.amp, have in common."""

from __future__ import annotations

from typing import ClassVar

from jitgrad.amp import grad_scaler
from jitgrad.runtime.userline import warn


def deprecated(device: str, name: str) -> None:
    """Warns that a name of jitgrad.amp is to be used, with the device."""
    old, new = f"torch.{device}.amp.{name}(args...)", f"torch.amp.{name}('{device}', args...)"
    warn(f"`{old}` is deprecated. Please use `{new}` instead.", FutureWarning)


class GradScaler(grad_scaler.GradScaler):
    """amp.GradScaler(device, ...), of a subclass's device."""

    device: ClassVar[str]

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        deprecated(self.device, "GradScaler")
        super().__init__(
            self.device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
