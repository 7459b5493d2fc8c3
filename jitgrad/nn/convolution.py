"""Convolution layers, and transposed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jitgrad.making import empty
from jitgrad.nn import init
from jitgrad.nn.functional import pad
from jitgrad.nn.functional.args import IntOrInts, per_dim
from jitgrad.nn.functional.convolution import convolution, transposed_convolution
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor

_PADDING_MODES = {
    "zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular",
}  # fmt: skip


class _ConvNd(Module):
    """What Conv1d, Conv2d and Conv3d share; `spatial` is the number of spatial dims.

    weight (out, in / groups, *kernel), or (in, out / groups, *kernel) where transposed, and bias
    (out) start as U(-b, b), b = 1 / sqrt(fan_in). padding_mode 'zeros', 'reflect', 'replicate' or
    'circular' says with what padding fills.
    """

    spatial = 0
    transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, n = type(self).__name__, self.spatial
        if groups <= 0 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"[{name}] expected in_channels and out_channels to be divisible by groups, which "
                f"is positive; got {in_channels}, {out_channels}, groups={groups}"
            )
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"[{name}] expected padding_mode to be one of {tuple(_PADDING_MODES)}; got "
                f"{padding_mode!r}"
            )
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(
                f"[{name}] expected padding to be ints, 'valid' or 'same'; got {padding!r}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_dim(kernel_size, n, name, "kernel_size")
        self.stride = per_dim(stride, n, name, "stride")
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError(
                f"[{name}] padding='same' is not supported for strided convolutions; got stride "
                f"{self.stride}; pass the padding as ints"
            )
        self.padding = padding if isinstance(padding, str) else per_dim(padding, n, name, "padding")
        self.dilation = per_dim(dilation, n, name, "dilation")
        self.padding_mode = padding_mode
        self.output_padding = (0,) * n
        kind = {"device": device, "dtype": dtype}
        ends = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(empty(ends[0], ends[1] // groups, *self.kernel_size, **kind))
        self.bias: Parameter | None
        if bias:
            self.bias = Parameter(empty(out_channels, **kind))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            init.uniform_fan_in_bias_(self.bias, self.weight)

    def forward(self, input: Tensor) -> Tensor:
        padding: str | int | tuple[int, ...] = self.padding
        if self.padding_mode != "zeros":
            input = pad(input, self._sides(), _PADDING_MODES[self.padding_mode])
            padding = 0
        return convolution(
            self.spatial, input, self.weight, self.bias, self.stride, padding,
            self.dilation, self.groups,
        )  # fmt: skip

    def _sides(self) -> list[int]:
        """The padding as nn.functional.pad wants it: the last dim first, low and high."""
        if self.padding == "valid":
            return [0] * (2 * self.spatial)
        if isinstance(self.padding, str):  # "same"
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [side for t in reversed(total) for side in (t // 2, t - t // 2)]
        return [int(p) for p in reversed(self.padding) for _ in range(2)]

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        if self.padding != (0,) * self.spatial:
            parts.append(f"padding={self.padding}")
        if self.dilation != (1,) * self.spatial:
            parts.append(f"dilation={self.dilation}")
        if self.output_padding != (0,) * self.spatial:
            parts.append(f"output_padding={self.output_padding}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class Conv1d(_ConvNd):
    """Convolution of (N, C, L); see nn.functional.conv1d."""

    spatial = 1


class Conv2d(_ConvNd):
    """Convolution of (N, C, H, W); see nn.functional.conv2d."""

    spatial = 2


class Conv3d(_ConvNd):
    """Convolution of (N, C, D, H, W); see nn.functional.conv3d."""

    spatial = 3


class _ConvTransposeNd(_ConvNd):
    """What the transposed convolutions share; see nn.functional.conv_transpose2d.

    forward takes an output_size as well: of the sizes whose convolution has the input's size, the
    one that is wanted (with or without batch and channel dims). Raises ValueError for another.
    """

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1, bias: bool = True,
        dilation: IntOrInts = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if padding_mode != "zeros":
            raise ValueError(
                f"[{name}] expected padding_mode 'zeros', the only one of transposed "
                f"convolutions; got {padding_mode!r}"
            )
        pads = per_dim(padding, self.spatial, name, "padding")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, pads, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        self.output_padding = per_dim(output_padding, self.spatial, name, "output_padding")

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        assert not isinstance(self.padding, str)
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return transposed_convolution(
            self.spatial, input, self.weight, self.bias, self.stride, self.padding, extra,
            self.groups, self.dilation,
        )  # fmt: skip

    def _extra(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that gives output_size."""
        name, n = type(self).__name__, self.spatial
        assert not isinstance(self.padding, str)
        lead = input.dim() - n
        wanted = tuple(int(d) for d in output_size)
        if len(wanted) == lead + n:
            wanted = wanted[lead:]
        if len(wanted) != n:
            raise ValueError(
                f"[{name}] expected output_size of {n} or {lead + n} sizes for input "
                f"{tuple(input.shape)}; got {tuple(output_size)}"
            )
        least = tuple(
            (q - 1) * s - 2 * p + d * (k - 1) + 1
            for q, s, p, d, k in zip(
                input.shape[lead:], self.stride, self.padding, self.dilation, self.kernel_size,
                strict=True,
            )
        )  # fmt: skip
        most = tuple(low + s - 1 for low, s in zip(least, self.stride, strict=True))
        if any(not a <= w <= b for a, w, b in zip(least, wanted, most, strict=True)):
            raise ValueError(
                f"[{name}] expected an output_size from {least} to {most} for input "
                f"{tuple(input.shape)}; got {wanted}"
            )
        return tuple(w - a for a, w in zip(least, wanted, strict=True))


class ConvTranspose1d(_ConvTransposeNd):
    """Transposed convolution of (N, C, L); see nn.functional.conv_transpose1d."""

    spatial = 1


class ConvTranspose2d(_ConvTransposeNd):
    """Transposed convolution of (N, C, H, W); see nn.functional.conv_transpose2d."""

    spatial = 2


class ConvTranspose3d(_ConvTransposeNd):
    """Transposed convolution of (N, C, D, H, W); see nn.functional.conv_transpose3d."""

    spatial = 3
