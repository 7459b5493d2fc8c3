"""Normalisation layers: BatchNorm1d, BatchNorm2d, BatchNorm3d, LayerNorm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.creation import ones, zeros
from jitgrad.creation import tensor as make_tensor
from jitgrad.nn import functional as F
from jitgrad.nn.functional.args import IntOrInts
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class _BatchNorm(Module):
    """Batch normalisation with running statistics; see nn.functional.batch_norm.

    weight and bias (C) start as 1 and 0; without `affine` there are none. Buffers: running_mean
    (0), running_var (1), num_batches_tracked; momentum None makes a cumulative average.
    """

    ranks: tuple[int, ...] = ()

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        kind = {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(ones(num_features, **kind)) if affine else None)
        shift = Parameter(zeros(num_features, **kind)) if affine and bias else None
        self.register_parameter("bias", shift)
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
        # Running statistics are used, or moved, where there are any and they are asked for.
        kept = self.track_running_stats or not self.training
        mean, var = (self.running_mean, self.running_var) if kept else (None, None)
        use_batch = self.training or self.running_mean is None
        return F.batch_norm(
            input, mean, var, self.weight, self.bias, use_batch,
            momentum if momentum is not None else 0.0, self.eps,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
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
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )
