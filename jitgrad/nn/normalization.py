"""Normalisation layers with no running statistics: LayerNorm, RMSNorm, GroupNorm, and those
across channels. Those with them: batchnorm.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.making import ones, zeros
from jitgrad.nn import functional as F
from jitgrad.nn.functional.args import IntOrInts
from jitgrad.nn.functional.normalization import across_channels
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor


class LayerNorm(Module):
    """Normalises over the last dims; see nn.functional.layer_norm."""

    def __init__(
        self, normalized_shape: IntOrInts, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape: Sequence[int] = tuple(shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        kind = {"device": device, "dtype": dtype}
        affine = elementwise_affine
        weight = Parameter(ones(*self.normalized_shape, **kind)) if affine else None
        self.register_parameter("weight", weight)
        shift = Parameter(zeros(*self.normalized_shape, **kind)) if affine and bias else None
        self.register_parameter("bias", shift)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )

    def reset_parameters(self) -> None:
        reset_affine(self)


def reset_affine(module: Any) -> None:
    """weight becomes 1 and bias 0, where there are any."""
    if module.weight is not None:
        module.weight.data.fill_(1)
    if getattr(module, "bias", None) is not None:
        module.bias.data.zero_()


class RMSNorm(Module):
    """Divides by the root mean square over the last dims; see nn.functional.rms_norm."""

    def __init__(
        self, normalized_shape: IntOrInts, eps: float | None = None,
        elementwise_affine: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape: Sequence[int] = tuple(shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        kind = {"device": device, "dtype": dtype}
        weight = Parameter(ones(*self.normalized_shape, **kind)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def reset_parameters(self) -> None:
        reset_affine(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """Normalises groups of channels of (N, C, ...); see nn.functional.group_norm.

    Raises ValueError unless num_groups divides num_channels.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_groups <= 0 or num_channels % num_groups:
            raise ValueError(
                f"[GroupNorm] num_channels ({num_channels}) must be divisible by num_groups "
                f"({num_groups})"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        kind = {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(ones(num_channels, **kind)) if affine else None)
        shift = Parameter(zeros(num_channels, **kind)) if affine and bias else None
        self.register_parameter("bias", shift)

    def reset_parameters(self) -> None:
        reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Divides by the mean square of nearby channels; see nn.functional.local_response_norm."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(LocalResponseNorm):
    """LocalResponseNorm of (N, C, H, W) over a symmetric window, which for an even `size` is one
    channel shorter. (PyTorch's has channel 0 in the window of all later channels.)"""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() != 4:
            raise ValueError(f"[CrossMapLRN2d] expected (N, C, H, W); got {tuple(input.shape)}")
        reach = (self.size - 1) // 2
        return across_channels(input, (reach, reach), self.size, self.alpha, self.beta, self.k)
