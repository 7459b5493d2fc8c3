"""Pooling layers."""

from __future__ import annotations

from typing import Any

from jitgrad.nn.functional.args import IntOrInts
from jitgrad.nn.functional.pooling import avg_pool, max_pool
from jitgrad.nn.module import Module
from jitgrad.tensor import Tensor


class _MaxPoolNd(Module):
    """What the max-pooling layers share; see nn.functional.max_pool2d."""

    spatial = 0

    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        dilation: IntOrInts = 1, return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return max_pool(
            self.spatial, input, self.kernel_size, self.stride, self.padding, self.dilation,
            self.ceil_mode, self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPoolNd):
    """Maximum over windows of (N, C, L)."""

    spatial = 1


class MaxPool2d(_MaxPoolNd):
    """Maximum over windows of (N, C, H, W)."""

    spatial = 2


class MaxPool3d(_MaxPoolNd):
    """Maximum over windows of (N, C, D, H, W)."""

    spatial = 3


class _AvgPoolNd(Module):
    """What the mean-pooling layers share; see nn.functional.avg_pool2d."""

    spatial = 0

    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return avg_pool(
            self.spatial, input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPoolNd):
    """Mean over windows of (N, C, L)."""

    spatial = 1

    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)


class AvgPool2d(_AvgPoolNd):
    """Mean over windows of (N, C, H, W)."""

    spatial = 2


class AvgPool3d(_AvgPoolNd):
    """Mean over windows of (N, C, D, H, W)."""

    spatial = 3
