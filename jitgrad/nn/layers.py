"""Layers with parameters or state: Linear, convolutions, norms, Embedding, Dropout, pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jitgrad.creation import empty, ones, zeros
from jitgrad.creation import tensor as make_tensor
from jitgrad.nn import functional as F
from jitgrad.nn import init
from jitgrad.nn.functional import IntOrInts
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class Identity(Module):
    """Returns its input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Flatten(Module):
    """Flattens dims start_dim..end_dim into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Linear(Module):
    """y = x @ weight.T + bias. x (..., in_features) -> (..., out_features).

    weight (out, in) and bias (out) start as U(-1/sqrt(in), 1/sqrt(in)).
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        kind = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(out_features, in_features, **kind))
        self.bias: Parameter | None
        if bias:
            self.bias = Parameter(empty(out_features, **kind))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            init.uniform_fan_in_bias_(self.bias, self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class _ConvNd(Module):
    """What Conv1d, Conv2d and Conv3d share; `spatial` is the number of spatial dims."""

    spatial = 0

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: IntOrInts, stride: IntOrInts = 1,
        padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, n = type(self).__name__, self.spatial
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"[{name}] in_channels and out_channels must be divisible by groups")
        if padding_mode != "zeros":
            raise ValueError(
                f"[{name}] padding_mode must be 'zeros'; got {padding_mode!r}; pad the input with "
                "nn.functional.pad first (docs/limits.md)"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = F._each(kernel_size, n, name, "kernel_size")
        self.stride = F._each(stride, n, name, "stride")
        self.padding = padding if isinstance(padding, str) else F._each(padding, n, name, "padding")
        self.dilation = F._each(dilation, n, name, "dilation")
        self.padding_mode = padding_mode
        kind = {"device": device, "dtype": dtype}
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(*shape, **kind))
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
        return F._conv(
            self.spatial, input, self.weight, self.bias, self.stride, self.padding,
            self.dilation, self.groups,
        )  # fmt: skip

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        if self.padding != (0,) * self.spatial:
            parts.append(f"padding={self.padding}")
        if self.dilation != (1,) * self.spatial:
            parts.append(f"dilation={self.dilation}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
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


class _BatchNorm(Module):
    """Batch normalisation with running statistics; see nn.functional.batch_norm."""

    ranks: tuple[int, ...] = ()

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        kind = {"device": device, "dtype": dtype}
        for name, make in (("weight", ones), ("bias", zeros)):
            param = Parameter(make(num_features, **kind)) if affine else None
            self.register_parameter(name, param)
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, **kind) if tracked else None)
        self.register_buffer("running_var", ones(num_features, **kind) if tracked else None)
        batches = make_tensor(0, dtype=dtypes.int64) if tracked else None
        self.register_buffer("num_batches_tracked", batches)

    def reset_running_stats(self) -> None:
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in self.ranks:
            raise ValueError(
                f"[{type(self).__name__}] expected {' or '.join(map(str, self.ranks))} dims; "
                f"got {tuple(input.shape)}"
            )
        if input.shape[1] != self.num_features:
            raise RuntimeError(
                f"[{type(self).__name__}] expected {self.num_features} channels; got input "
                f"{tuple(input.shape)}"
            )
        momentum: Any = self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # a cumulative average
                momentum = 1.0 / self.num_batches_tracked.to(dtypes.float64)
        use_batch = self.training or not self.track_running_stats
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, use_batch,
            momentum if momentum is not None else 0.0, self.eps,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W)."""

    ranks = (5,)


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
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class Embedding(Module):
    """A table (num_embeddings, embedding_dim) of rows, looked up by int64 index.

    The row of padding_idx starts as zeros and gets no gradient. Raises IndexError for an index out
    of range.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if max_norm is not None:
            raise ValueError("[Embedding] max_norm is not supported (docs/limits.md)")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AssertionError("Padding_idx must be within num_embeddings")
        self.padding_idx = padding_idx if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.data[self.padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        pad = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{pad}"


class Dropout(Module):
    """Zeroes elements with probability p when training; see nn.functional.dropout."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"[Dropout] expected a probability from 0 to 1; got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class _MaxPoolNd(Module):
    """What the max-pooling layers share."""

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
        return F._max_pool(
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


class AvgPool2d(Module):
    """Mean over windows of (N, C, H, W)."""

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
        return F.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
