"""Pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.nn.functional.adaptive import adaptive_avg_pool, adaptive_max_pool
from jitgrad.nn.functional.args import IntOrInts, per_dim
from jitgrad.nn.functional.pooling import avg_pool, lp_pool, max_pool
from jitgrad.nn.functional.unpooling import fractional_max_pool, max_unpool
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
        steps = kernel_size if stride is None else stride
        super().__init__(
            _sizes(kernel_size), _sizes(steps), _sizes(padding), ceil_mode, count_include_pad
        )


def _sizes(x: IntOrInts) -> tuple[int, ...]:
    return (x,) if isinstance(x, int) else tuple(x)


class AvgPool2d(_AvgPoolNd):
    """Mean over windows of (N, C, H, W)."""

    spatial = 2


class AvgPool3d(_AvgPoolNd):
    """Mean over windows of (N, C, D, H, W)."""

    spatial = 3


class _LPPoolNd(Module):
    """What the p-norm pooling layers share; see nn.functional.lp_pool2d."""

    spatial = 0

    def __init__(
        self, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None,
        ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return lp_pool(
            self.spatial, input, float(self.norm_type), self.kernel_size, self.stride,
            self.ceil_mode,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPoolNd):
    """p-norm over windows of (N, C, L), times the number of elements to the 1/p."""

    spatial = 1


class LPPool2d(_LPPoolNd):
    """p-norm over windows of (N, C, H, W)."""

    spatial = 2


class LPPool3d(_LPPoolNd):
    """p-norm over windows of (N, C, D, H, W)."""

    spatial = 3


# -- adaptive --------------------------------------------------------------------------------------
class _AdaptivePoolNd(Module):
    """What adaptive pooling layers share; see nn.functional.adaptive_avg_pool2d."""

    spatial = 0

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveAvgPoolNd(_AdaptivePoolNd):
    def forward(self, input: Tensor) -> Tensor:
        return adaptive_avg_pool(self.spatial, input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """Means of (N, C, L) over output_size windows."""

    spatial = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """Means of (N, C, H, W) over as many windows as output_size says (None: as many as there are
    elements)."""

    spatial = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """Means of (N, C, D, H, W) over windows."""

    spatial = 3


class _AdaptiveMaxPoolNd(_AdaptivePoolNd):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return adaptive_max_pool(self.spatial, input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """Maxima of (N, C, L) over output_size windows."""

    spatial = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """Maxima of (N, C, H, W) over as many windows as output_size says."""

    spatial = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """Maxima of (N, C, D, H, W) over windows."""

    spatial = 3


# -- unpooling and fractional pooling --------------------------------------------------------------
class _MaxUnpoolNd(Module):
    """What the unpooling layers share; see nn.functional.max_unpool2d."""

    spatial = 0

    def __init__(
        self, kernel_size: IntOrInts, stride: IntOrInts | None = None, padding: IntOrInts = 0
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self.spatial
        self.kernel_size = per_dim(kernel_size, n, name, "kernel_size")
        self.stride = per_dim(kernel_size if stride is None else stride, n, name, "stride")
        self.padding = per_dim(padding, n, name, "padding")

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        return max_unpool(
            self.spatial, input, indices, self.kernel_size, self.stride, self.padding, output_size
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpoolNd):
    """MaxPool1d partly undone."""

    spatial = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """MaxPool2d partly undone."""

    spatial = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """MaxPool3d partly undone."""

    spatial = 3


class _FractionalMaxPoolNd(Module):
    """What the fractional pooling layers share; see nn.functional.fractional_max_pool2d."""

    spatial = 0

    def __init__(
        self, kernel_size: IntOrInts, output_size: IntOrInts | None = None,
        output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, n = type(self).__name__, self.spatial
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"[{name}] expected either output_size or output_ratio; got {output_size} and "
                f"{output_ratio}"
            )
        self.kernel_size = per_dim(kernel_size, n, name, "kernel_size")
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = (
            None if output_size is None else per_dim(output_size, n, name, "output_size")
        )
        self.output_ratio: tuple[float, ...] | None = None
        if output_ratio is not None:
            each = output_ratio if isinstance(output_ratio, Sequence) else (output_ratio,) * n
            if not all(0 < r < 1 for r in each):
                raise ValueError(f"[{name}] expected output_ratio in (0, 1); got {output_ratio}")
            self.output_ratio = tuple(each)

    def forward(self, input: Tensor) -> Any:
        return fractional_max_pool(
            self.spatial, input, self.kernel_size, self.output_size, self.output_ratio,
            self.return_indices, self._random_samples,
        )  # fmt: skip


class FractionalMaxPool2d(_FractionalMaxPoolNd):
    """Maxima of (N, C, H, W) over windows at random distances."""

    spatial = 2


class FractionalMaxPool3d(_FractionalMaxPoolNd):
    """Maxima of (N, C, D, H, W) over windows at random distances."""

    spatial = 3
