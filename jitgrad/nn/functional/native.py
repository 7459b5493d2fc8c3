"""jitgrad.batch_norm, embedding, convolution, ...: functions that PyTorch has at the top, or for
its own use, in an order of arguments of their own. Composed of those of nn.functional.

Losses and recurrent layers of that kind are in native_losses.py and native_recurrent.py. Flags that
choose a library (`cudnn_enabled`) choose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.creation import arange, empty, zeros
from jitgrad.functions.select import searchsorted
from jitgrad.nn.functional import convolution as _convolutions
from jitgrad.nn.functional import normalization as _norms
from jitgrad.nn.functional.dropout import alpha_dropout as _alpha_dropout
from jitgrad.nn.functional.dropout import dropout as _dropout
from jitgrad.nn.functional.dropout import feature_alpha_dropout as _feature_alpha_dropout
from jitgrad.nn.functional.dropout import feature_dropout as _feature_dropout
from jitgrad.nn.functional.dropout import kept
from jitgrad.nn.functional.embedding import embedding as _embedding
from jitgrad.nn.functional.embedding import embedding_bag as _embedding_bag
from jitgrad.runtime import dtypes
from jitgrad.runtime.arguments import located
from jitgrad.tensor import Tensor

__all__ = [
    "alpha_dropout", "alpha_dropout_", "batch_norm", "conv_tbc", "convolution", "dropout",
    "dropout_", "embedding", "embedding_bag", "embedding_renorm_", "feature_alpha_dropout",
    "feature_alpha_dropout_", "feature_dropout", "feature_dropout_", "group_norm", "instance_norm",
    "layer_norm", "native_batch_norm", "native_dropout", "native_group_norm", "native_layer_norm",
    "native_norm", "norm_except_dim",
]  # fmt: skip


def _statistics(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """The mean, and 1 / sqrt(variance + eps), along dims, which stay with size 1."""
    variance = x.var(dims, correction=0, keepdim=True)
    return x.mean(dims, keepdim=True), (variance + eps).rsqrt()


def native_layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """layer_norm, with the mean and 1 / sqrt(variance + eps) of each row, off the tape."""
    out = _norms.layer_norm(input, normalized_shape, weight, bias, eps)
    return out, *_statistics(input.detach(), tuple(range(-len(normalized_shape), 0)), eps)


def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int,
    group: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """group_norm, with the mean and 1 / sqrt(variance + eps) of each group, (N, group)."""
    out = _norms.group_norm(input, group, weight, bias, eps)
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


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    """nn.functional.layer_norm."""
    return _norms.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """nn.functional.group_norm."""
    return _norms.group_norm(input, num_groups, weight, bias, eps)


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """nn.functional.batch_norm, with weight and bias before the running statistics."""
    return _norms.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )


def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float,
    cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """nn.functional.instance_norm, with weight and bias before the running statistics."""
    return _norms.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """batch_norm, with the mean and 1 / sqrt(variance + eps) of each channel when training, off the
    tape (empty tensors else)."""
    out = _norms.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        return out, empty(0, dtype=input.dtype), empty(0, dtype=input.dtype)
    mean, scale = _statistics(input.detach(), (0, *range(2, input.dim())), eps)
    return out, mean.reshape(-1), scale.reshape(-1)


# -- dropout -------------------------------------------------------------------------------------
def dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.dropout."""
    return _dropout(input, p, train)


def dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """dropout, in place."""
    return _dropout(input, p, train, inplace=True)


def alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.alpha_dropout."""
    return _alpha_dropout(input, p, train)


def alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """alpha_dropout, in place."""
    return _alpha_dropout(input, p, train, inplace=True)


def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """dropout of whole channels of (N, C, ...)."""
    return _feature_dropout(input, p, train)


def feature_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """feature_dropout, in place."""
    return _feature_dropout(input, p, train, inplace=True)


def feature_alpha_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """nn.functional.feature_alpha_dropout."""
    return _feature_alpha_dropout(input, p, train)


def feature_alpha_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """feature_alpha_dropout, in place."""
    return _feature_alpha_dropout(input, p, train, inplace=True)


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """dropout, and the bool mask of what is kept. `train` None is True."""
    if train is False:
        return input.clone(), ops.eq(zeros(input.shape), 0)
    mask = kept(input, p, input.shape)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    return ops.where(mask, input * scale, 0.0).to(input.dtype), mask


# -- tables --------------------------------------------------------------------------------------
_BAG_MODES = ("sum", "mean", "max")


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False,
    mode: int = 0, sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """nn.functional.embedding_bag with weight first, its mode a number (0 sum, 1 mean, 2 max): the
    bags (B, D); of each index, its bag; the size of each bag; and with max the index that each
    element is of, (B, D), else zeros (B)."""
    name = _BAG_MODES[mode]
    out = _embedding_bag(
        indices, weight, offsets, scale_grad_by_freq=scale_grad_by_freq, mode=name, sparse=sparse,
        per_sample_weights=per_sample_weights, include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )  # fmt: skip
    bags, count = out.shape[0], indices.shape[0]
    bag = searchsorted(offsets, arange(count), right=True) - 1
    counted = ops.ne(indices, -1 if padding_idx is None else padding_idx % weight.shape[0])
    sizes = zeros(bags, dtype=dtypes.int64).index_add(0, bag, counted.long())
    if name != "max":
        return out, bag, sizes, zeros(bags, dtype=dtypes.int64)
    member = ops.logical_and(ops.eq(bag, arange(bags).unsqueeze(1)), counted).unsqueeze(-1)
    rows = ops.where(member, weight.detach()[indices], float("-inf"))
    return out, bag, sizes, indices.long()[rows.argmax(1)]


def embedding_renorm_(input: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scales the rows of input that indices name to max_norm, where their norm is larger."""
    with no_grad():
        _embedding(indices, input, None, max_norm, norm_type)
    return input


# -- convolutions --------------------------------------------------------------------------------
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """conv1d, conv2d or conv3d, or the transposed one, by the number of weight's dims."""
    n = weight.dim() - 2
    step, pads, gaps = (
        v[0] if len(v) == 1 else tuple(v) for v in (stride, padding, dilation)
    )  # fmt: skip
    if not transposed:
        return _convolutions.convolution(n, input, weight, bias, step, pads, gaps, groups)
    more = output_padding[0] if len(output_padding) == 1 else tuple(output_padding)
    return _convolutions.transposed_convolution(
        n, input, weight, bias, step, pads, more, groups, gaps
    )


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution of sequences: input (T, N, C_in), weight (K, C_in, C_out), bias (C_out) ->
    (T + 2 pad - K + 1, N, C_out)."""
    if input.dim() != 3 or weight.dim() != 3 or bias.dim() != 1:
        raise RuntimeError(
            "[conv_tbc] expected input (T, N, C_in), weight (K, C_in, C_out) and bias (C_out); got "
            f"{tuple(input.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    out = _convolutions.conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)


# -- norms ---------------------------------------------------------------------------------------
def native_norm(input: Tensor, p: float = 2) -> Tensor:
    """The p-norm of all elements."""
    return ops.norm(input, p)


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """The norm over all dims but one, which keep the size 1; of everything when dim is -1."""
    if dim == -1:
        return ops.norm(v, pow)
    rest = [d for d in range(v.dim()) if d != dim]
    return ops.norm(v, pow, rest, keepdim=True)


globals().update({name: located(globals()[name]) for name in __all__})
