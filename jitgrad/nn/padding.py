"""Padding layers; see nn.functional.pad."""

from __future__ import annotations

from jitgrad.nn.functional import pad
from jitgrad.nn.functional.args import IntOrInts, per_dim
from jitgrad.nn.module import Module
from jitgrad.tensor import Tensor


class _PadNd(Module):
    """What padding layers share. padding: an int for all sides, or an int for each, as pad's
    (last low, last high, second to last low, ...)."""

    spatial = 0
    mode = ""

    def __init__(self, padding: IntOrInts) -> None:
        super().__init__()
        self.padding = per_dim(padding, 2 * self.spatial, type(self).__name__, "padding")

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPadNd(_PadNd):
    mode = "constant"

    def __init__(self, padding: IntOrInts, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadNd):
    """Pads the last dim with `value`; negative amounts crop."""

    spatial = 1


class ConstantPad2d(_ConstantPadNd):
    """Pads the last 2 dims with `value`; negative amounts crop."""

    spatial = 2


class ConstantPad3d(_ConstantPadNd):
    """Pads the last 3 dims with `value`; negative amounts crop."""

    spatial = 3


class _ZeroPadNd(_ConstantPadNd):
    def __init__(self, padding: IntOrInts) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad1d(_ZeroPadNd, ConstantPad1d):
    """Pads the last dim with zeros."""


class ZeroPad2d(_ZeroPadNd, ConstantPad2d):
    """Pads the last 2 dims with zeros."""


class ZeroPad3d(_ZeroPadNd, ConstantPad3d):
    """Pads the last 3 dims with zeros."""


class _ReflectionPadNd(_PadNd):
    mode = "reflect"


class ReflectionPad1d(_ReflectionPadNd):
    """Pads the last dim of (N, C, L) with the input mirrored, without its edge."""

    spatial = 1


class ReflectionPad2d(_ReflectionPadNd):
    """Pads the last 2 dims of (N, C, H, W) with the input mirrored, without its edge."""

    spatial = 2


class ReflectionPad3d(_ReflectionPadNd):
    """Pads the last 3 dims of (N, C, D, H, W) with the input mirrored, without its edge."""

    spatial = 3


class _ReplicationPadNd(_PadNd):
    mode = "replicate"


class ReplicationPad1d(_ReplicationPadNd):
    """Pads the last dim of (N, C, L) with its edge."""

    spatial = 1


class ReplicationPad2d(_ReplicationPadNd):
    """Pads the last 2 dims of (N, C, H, W) with their edges."""

    spatial = 2


class ReplicationPad3d(_ReplicationPadNd):
    """Pads the last 3 dims of (N, C, D, H, W) with their edges."""

    spatial = 3


class _CircularPadNd(_PadNd):
    mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (self.spatial + 1, self.spatial + 2):
            raise ValueError(
                f"[{type(self).__name__}] expected {self.spatial + 1}D or {self.spatial + 2}D "
                f"input (got {input.dim()}D input); got {input._type}"
            )
        return super().forward(input)


class CircularPad1d(_CircularPadNd):
    """Pads the last dim of (N, C, L) with what comes at its other end."""

    spatial = 1


class CircularPad2d(_CircularPadNd):
    """Pads the last 2 dims of (N, C, H, W) with what comes at their other ends."""

    spatial = 2


class CircularPad3d(_CircularPadNd):
    """Pads the last 3 dims of (N, C, D, H, W) with what comes at their other ends."""

    spatial = 3
