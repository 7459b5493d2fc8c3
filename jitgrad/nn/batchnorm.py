"""Normalisation layers with running statistics: BatchNorm, SyncBatchNorm, InstanceNorm."""

from __future__ import annotations

from typing import Any

from jitgrad.functions.args import expect_one_device
from jitgrad.making import ones, zeros
from jitgrad.making import tensor as make_tensor
from jitgrad.nn import functional as F
from jitgrad.nn.module import Module
from jitgrad.nn.normalization import reset_affine
from jitgrad.nn.parameter import Parameter
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


class _NormBase(Module):
    """Normalisation of channels, with running statistics.

    weight and bias (C) start as 1 and 0; without `affine` there are none. Buffers: running_mean
    (0), running_var (1), num_batches_tracked; none without track_running_stats.
    """

    _version = 2
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

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        reset_affine(self)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self.ranks:
            raise ValueError(
                f"[{type(self).__name__}] expected {' or '.join(map(str, self.ranks))} dims; "
                f"got {tuple(input.shape)}"
            )

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        # Version 1 had no num_batches_tracked.
        key = f"{prefix}num_batches_tracked"
        old = (local_metadata.get("version") or 1) < 2
        if old and self.track_running_stats and key not in state_dict:
            mine = self.num_batches_tracked
            state_dict[key] = make_tensor(0) if mine is None else mine
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_NormBase):
    """Batch normalisation; see nn.functional.batch_norm. momentum None makes a cumulative
    average."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise RuntimeError(
                f"[{type(self).__name__}] expected {self.num_features} channels; got input "
                f"{tuple(input.shape)}"
            )
        momentum: Any = self.momentum
        counts = self.training and self.track_running_stats
        counter = self.num_batches_tracked if counts else None
        if counter is not None:
            expect_one_device(
                type(self).__name__, input, self.running_mean, self.running_var, self.weight,
                self.bias,
            )  # fmt: skip
            counter.add_(1)
            if momentum is None:  # a cumulative average
                momentum = 1.0 / counter.to(dtypes.float64)
        # Running statistics are used, or moved, where there are any and they are asked for.
        kept = self.track_running_stats or not self.training
        mean, var = (self.running_mean, self.running_var) if kept else (None, None)
        use_batch = self.training or self.running_mean is None
        return F.batch_norm(
            input, mean, var, self.weight, self.bias, use_batch,
            momentum if momentum is not None else 0.0, self.eps,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W)."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, D, H, W)."""

    ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any rank whose statistics are those of all processes of a group. There are no
    process groups yet (docs/limits.md): in one process it is BatchNorm, as in PyTorch.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, process_group: Any = None,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"[SyncBatchNorm] expected at least 2 dims; got {tuple(input.shape)}")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module with every BatchNorm in it replaced by a SyncBatchNorm of the same state."""
        if isinstance(module, _BatchNorm):
            made = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_group,
            )  # fmt: skip
            for own in ("_parameters", "_buffers"):
                getattr(made, own).update(getattr(module, own))
            made.training = module.training
            return made
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _InstanceNorm(_NormBase):
    """Normalisation of each sample's channels; see nn.functional.instance_norm. By default without
    weights and running statistics."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        batched = input.dim() == self.ranks[1]
        channels = input.shape[1 if batched else 0]
        if channels != self.num_features:
            text = (
                f"[{type(self).__name__}] expected {self.num_features} channels, as num_features "
                f"says; got input {tuple(input.shape)}"
            )
            if self.affine:
                raise ValueError(text)
            warn(f"{text}; it has no effect without affine")
        x = input if batched else input.unsqueeze(0)
        momentum = self.momentum if self.momentum is not None else 0.0
        use_input = self.training or not self.track_running_stats
        y = F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, use_input, momentum,
            self.eps,
        )  # fmt: skip
        return y if batched else y.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (N, C, H, W) or (C, H, W)."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of (N, C, D, H, W) or (C, D, H, W)."""

    ranks = (4, 5)
