"""torch.native_layer_norm, native_group_norm and torch.embedding: functions that PyTorch has for
its own use, in its order of arguments, composed of the public ones."""

from __future__ import annotations

from typing import Any

from jitgrad.nn.functional.embedding import embedding as _embedding
from jitgrad.nn.functional.normalization import group_norm, layer_norm
from jitgrad.tensor import Tensor


def _statistics(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """The mean, and 1 / sqrt(variance + eps), along dims, which stay with size 1."""
    variance = x.var(dims, correction=0, keepdim=True)
    return x.mean(dims, keepdim=True), (variance + eps).rsqrt()


def native_layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """layer_norm, with the mean and 1 / sqrt(variance + eps) of each row, off the tape."""
    out = layer_norm(input, normalized_shape, weight, bias, eps)
    return out, *_statistics(input.detach(), tuple(range(-len(normalized_shape), 0)), eps)


def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int,
    group: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """group_norm, with the mean and 1 / sqrt(variance + eps) of each group, (N, group)."""
    out = group_norm(input, group, weight, bias, eps)
    rows = input.reshape(N, group, C // group * HxW)
    mean, scale = _statistics(rows, (2,), eps)
    return out, mean.squeeze(2), scale.squeeze(2)


def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    """nn.functional.embedding with weight first; a negative padding_idx is none."""
    padding = None if padding_idx < 0 else padding_idx
    return _embedding(
        indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
    )
