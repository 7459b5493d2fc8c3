"""Normalisation by the statistics of a batch, of a sample, or by a norm.

16-bit dtypes are computed in float32 and rounded once, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jitgrad.functions as ops
from jitgrad import fused
from jitgrad.autograd.modes import no_grad
from jitgrad.composites import composite, is_large
from jitgrad.functions.args import expect_one_device
from jitgrad.functions.shape import row_major
from jitgrad.info import finfo
from jitgrad.nn.functional.args import (
    expect_floating,
    expect_same_or_wide,
    expect_shape,
    expect_tensors,
)
from jitgrad.nn.functional.padding import pad
from jitgrad.promotion import cast
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


def _wide(x: Tensor) -> Tensor:
    return cast(x, dtypes.float32) if x._type.dtype.itemsize == 2 else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _centre(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, x - mean, biased variance) over dims, which stay as 1."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    return mean, centred, (centred * centred).mean(dims, keepdim=True)


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias for x (N, C, ...), weight and bias (C)."""
    shape = (1, -1) + (1,) * (x.dim() - 2)
    scale, shift = (None if p is None else p.reshape(shape) for p in (weight, bias))
    return _affine(x, scale, shift)


@row_major
@naming("NativeBatchNormBackward0")
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias for each channel of (N, C, ...) (Ioffe and
    Szegedy 2015). All others are (C,), of input's dtype.

    Training uses the batch's mean and biased variance over all dims but C, and moves the running
    ones, unbiased, in place: r = (1 - momentum) * r + momentum * new. Else the running ones are
    used. Raises ValueError for fewer than 2 dims (but for no elements), one value per channel when
    training, or one of the statistics alone; RuntimeError for missing ones, and for dtypes or
    shapes that do not fit.
    """
    expect_tensors("batch_norm", input=input)
    if input.dim() == 1 and input.shape[0] == 0:  # no channels
        return _affine(input.clone(), *(p if p is None else p[:1] for p in (weight, bias)))
    if input.dim() < 2:
        raise ValueError(f"[batch_norm] expected at least 2 dims; got {tuple(input.shape)}")
    expect_floating("batch_norm", "input", input)
    expect_shape(
        "batch_norm", (input.shape[1],), running_mean=running_mean, running_var=running_var,
        weight=weight, bias=bias,
    )  # fmt: skip
    dims = (0, *range(2, input.dim()))
    shape = (1, input.shape[1]) + (1,) * (input.dim() - 2)
    x = _wide(input)
    expect_same_or_wide(
        "batch_norm", input.dtype, weight=weight, bias=bias, running_mean=running_mean,
        running_var=running_var,
    )  # fmt: skip
    expect_one_device("batch_norm", input, running_mean, running_var, weight, bias)
    if (running_mean is None) != (running_var is None) and training:
        raise ValueError(
            "[batch_norm] expected both of running_mean and running_var, or neither; got one"
        )
    if eps < 0 or (training and eps == 0):
        raise ValueError(f"[batch_norm] expected a positive eps (0 in evaluation); got {eps}")
    if training:
        count = math.prod(input.shape[d] for d in dims)
        if count == 1:
            raise ValueError(
                "[batch_norm] expected more than 1 value per channel when training; got input "
                f"{tuple(input.shape)}"
            )
        given = [p for p in (x, running_mean, running_var, weight, bias) if p is not None]
        if (
            fused.fits(fused.normalise, given)
            and type(momentum) is float
            and count > 0
            and all(p._type.dtype is x._type.dtype for p in given)
        ):
            if running_mean is not None and running_var is not None:
                moves: dict[str, Any] = {"axes": dims, "momentum": momentum}
                wide = {"unbias": count / (count - 1)}
                with no_grad():
                    running_mean.copy_(fused.apply(fused.moved, (running_mean, x), moves))
                    running_var.copy_(fused.apply(fused.moved, (running_var, x), moves | wide))
            return cast(_normalised(x, dims, weight, bias, eps, shape), input._type.dtype)
        if running_mean is None or running_var is None or count == 0:
            return _normed(input, weight, bias, dims, eps)
        unbias = count / (count - 1)
        if is_large((x,)):
            out, new_mean, new_var = _batch_normed(
                input, running_mean, running_var, weight, bias, dims, momentum, unbias, eps
            )
            with no_grad():
                running_mean.copy_(new_mean)
                running_var.copy_(new_var)
            return out
        # The statistics move first: who computes again what was not saved stops at the result.
        mean, centred, var = _centre(x, dims)
        with no_grad():
            moved = _moved(running_mean, running_var, mean, var, momentum, unbias)
            for running, new in zip((running_mean, running_var), moved, strict=True):
                running.copy_(new)
        return _per_channel(centred * ops.rsqrt(var + eps), weight, bias).to(input.dtype)
    if running_mean is None or running_var is None:
        raise RuntimeError(
            "[batch_norm] expected running_mean and running_var when not training; got None"
        )
    return _normed_by(input, running_mean, running_var, weight, bias, eps)


@composite
def _normed(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, dims: tuple[int, ...], eps: float
) -> Tensor:
    """By the statistics over dims; weight and bias (C)."""
    _, centred, var = _centre(_wide(input), dims)
    return _per_channel(centred * ops.rsqrt(var + eps), weight, bias).to(input.dtype)


@composite
def _batch_normed(
    input: Tensor, running_mean: Tensor, running_var: Tensor, weight: Tensor | None,
    bias: Tensor | None, dims: tuple[int, ...], momentum: float | Tensor, unbias: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """_normed, and what the running statistics become."""
    mean, centred, var = _centre(_wide(input), dims)
    with no_grad():
        moved = _moved(running_mean, running_var, mean, var, momentum, unbias)
    out = _per_channel(centred * ops.rsqrt(var + eps), weight, bias).to(input.dtype)
    return out, *moved


def _moved(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor,
    momentum: float | Tensor, unbias: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Running statistics, moved towards the mean and the variance without bias."""
    new_mean, new_var = mean.detach().reshape(-1), var.detach().reshape(-1) * unbias
    return (
        _wide(running_mean.detach()) * (1 - momentum) + new_mean * momentum,
        _wide(running_var.detach()) * (1 - momentum) + new_var * momentum,
    )


@composite
def _normed_by(
    input: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None,
    eps: float,
) -> Tensor:  # fmt: skip
    """By these statistics; all others (C)."""
    shape = (1, -1) + (1,) * (input.dim() - 2)
    centred = _wide(input) - mean.reshape(shape)
    scaled = centred * ops.rsqrt(_wide(var.reshape(shape)) + eps)
    return _per_channel(scaled, weight, bias).to(input.dtype)


@row_major
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dims, which are of the sizes
    normalized_shape, as weight and bias are; var is biased (Ba, Kiros and Hinton 2016).

    Raises RuntimeError for shapes that do not fit, or an input that is not floating.
    """
    shape = tuple(normalized_shape)
    _expect_last_dims("layer_norm", input, shape, weight=weight, bias=bias)
    expect_same_or_wide("layer_norm", input.dtype, weight=weight, bias=bias)
    rank = input.dim()
    axes = tuple(range(rank - len(shape), rank))
    out = _normalised(_wide(input), axes, weight, bias, eps)
    return called(cast(out, input._type.dtype), "NativeLayerNormBackward0")


def _normalised(
    x: Tensor, axes: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float,
    shape: tuple[int, ...] | None = None,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) over axes, times weight, plus bias, which are of `shape`."""
    affine = () if weight is None else (weight,) if bias is None else (weight, bias)
    attrs = {"axes": axes, "eps": eps} | ({} if shape is None else {"shape": shape})
    parts: tuple[Tensor, ...] = tuple([cast(p, x._type.dtype) for p in affine])
    out: Tensor = fused.apply(fused.normalise, (x, *parts), attrs)
    if weight is None and bias is not None:
        out = out + (bias if shape is None else bias.reshape(shape))
    return out


def _expect_last_dims(
    op: str, input: Tensor, normalized_shape: Sequence[int], **affine: Tensor | None
) -> None:
    expect_tensors(op, input=input)
    expect_floating(op, "input", input)
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"[{op}] expected input (..., {', '.join(map(str, shape))}) for normalized_shape "
            f"{shape}; got {tuple(input.shape)}"
        )
    expect_shape(op, shape, **affine)


@composite
def _group_normed(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    n, channels = input.shape[:2]
    size = channels // groups * math.prod(input.shape[2:])
    _, centred, var = _centre(_wide(input).reshape(n, groups, size), (2,))
    scaled = (centred * ops.rsqrt(var + eps)).reshape(input.shape)
    return _per_channel(scaled, weight, bias).to(input.dtype)


@row_major
@naming("NativeGroupNormBackward0")
def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias over each group of channels of (N, C, ...), for
    each sample; weight and bias (C) (Wu and He 2018).

    Raises RuntimeError for shapes that do not fit, ValueError for one value in all.
    """
    op = "group_norm"
    expect_tensors(op, input=input)
    expect_floating(op, "input", input)
    if input.dim() < 2 or num_groups <= 0 or input.shape[1] % num_groups:
        raise RuntimeError(
            f"[{op}] expected input (N, C, ...), C divisible by num_groups={num_groups}; got "
            f"{tuple(input.shape)}"
        )
    n, channels = input.shape[:2]
    expect_shape(op, (channels,), weight=weight, bias=bias)
    expect_same_or_wide(op, input.dtype, weight=weight, bias=bias)
    size = channels // num_groups * math.prod(input.shape[2:])
    if n * size == 1:
        raise ValueError(
            f"[{op}] Expected more than 1 value per channel when training, got input size "
            f"{tuple(input.shape)}"
        )
    return _group_normed(input, weight, bias, groups=num_groups, eps=eps)


@row_major
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """batch_norm for each sample by itself: statistics over the dims of (N, C, ...) after C
    (Ulyanov, Vedaldi and Lempitsky 2016). All others are (C,).

    The running statistics, if given, move towards the mean over N of the samples' ones. Without
    use_input_stats they are used. Raises ValueError for one spatial element, RuntimeError for
    missing statistics and for shapes that do not fit.
    """
    op = "instance_norm"
    expect_tensors(op, input=input)
    expect_floating(op, "input", input)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                f"[{op}] expected running_mean and running_var without use_input_stats; got None"
            )
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    count = math.prod(input.shape[2:])
    if input.dim() < 2 or count == 1:
        raise ValueError(
            f"[{op}] Expected more than 1 spatial element when training, got input size "
            f"{tuple(input.shape)}"
        )
    given = {"running_mean": running_mean, "running_var": running_var}
    expect_shape(op, (input.shape[1],), weight=weight, bias=bias, **given)
    expect_same_or_wide(op, input.dtype, weight=weight, bias=bias, **given)
    expect_one_device(op, input, weight, bias, running_mean, running_var)
    if (running_mean is None) != (running_var is None):
        raise ValueError(f"[{op}] expected both of running_mean and running_var, or neither")
    dims = tuple(range(2, input.dim()))
    if running_mean is not None and running_var is not None:
        with no_grad():
            mean, _, var = _centre(_wide(input.detach()), dims)
            new_mean = mean.mean(0).reshape(-1)
            new_var = var.mean(0).reshape(-1) * (count / (count - 1))
            for running, new in ((running_mean, new_mean), (running_var, new_var)):
                running.copy_(_wide(running) * (1 - momentum) + new * momentum)
    return _normed(input, weight, bias, dims, eps)


@row_major
@composite
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    """x / sqrt(mean(x**2) + eps) * weight over the last dims, which are of the sizes
    normalized_shape, as weight is (Zhang and Sennrich 2019). eps None is the dtype's. The result
    is of input's dtype, whatever weight's is.

    Raises RuntimeError for shapes that do not fit, or an input that is not floating.
    """
    _expect_last_dims("rms_norm", input, normalized_shape, weight=weight)
    x = _wide(input)
    small = finfo(x.dtype).eps if eps is None else eps
    dims = tuple(range(-len(tuple(normalized_shape)), 0))
    scaled = (x * ops.rsqrt((x * x).mean(dims, keepdim=True) + small)).to(input.dtype)
    return _affine(scaled, weight, None).to(input.dtype)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * m)**beta, m the mean of x**2 over `size` neighbouring channels of
    (N, C, ...), zeros beyond the ends (Krizhevsky, Sutskever and Hinton 2012).

    Raises ValueError for fewer than 3 dims.
    """
    expect_tensors("local_response_norm", input=input)
    if input.dim() < 3:
        raise ValueError(
            "[local_response_norm] Expected 3D or higher dimensionality input (got "
            f"{input.dim()} dimensions)"
        )
    return across_channels(input, (size // 2, (size - 1) // 2), size, alpha, beta, k)


@composite
def across_channels(
    input: Tensor, reach: tuple[int, int], size: int, alpha: float, beta: float, k: float
) -> Tensor:
    """x / (k + alpha / size * s)**beta, s the sum of x**2 over the channels from reach[0] below to
    reach[1] above."""
    if input.numel() == 0:
        return input
    pads = [0, 0] * (input.dim() - 2) + list(reach)
    squares = pad(input * input, pads).unfold(1, sum(reach) + 1, 1)
    return input / (squares.sum(-1) * (alpha / size) + k) ** beta


@composite
def _unit(input: Tensor, p: float, dim: int, eps: float) -> Tensor:
    return input / ops.norm(input, p, dim, keepdim=True).clamp(min=eps)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """x / max(norm(x, p, dim), eps), of input's shape; written into `out`, if given."""
    expect_tensors("normalize", input=input)
    result = _unit(input, p, dim, eps)
    return result if out is None else out.copy_(result)
