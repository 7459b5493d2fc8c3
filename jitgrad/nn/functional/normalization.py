"""Normalisation by the statistics of a batch, of a sample, or by a norm.

16-bit dtypes are computed in float32 and rounded once, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.nn.functional.args import expect_floating, expect_shape, expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


def _wide(x: Tensor) -> Tensor:
    return x.to(dtypes.float32) if x.dtype.itemsize == 2 else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _centre(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, x - mean, biased variance) over dims, which stay as 1."""
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    return mean, centred, (centred * centred).mean(dims, keepdim=True)


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
    used. Raises ValueError for fewer than 2 dims, one value per channel when training, or missing
    statistics; RuntimeError for dtypes or shapes that do not fit.
    """
    expect_tensors("batch_norm", input=input)
    if input.dim() < 2:
        raise ValueError(f"[batch_norm] expected at least 2 dims; got {tuple(input.shape)}")
    expect_floating("batch_norm", "input", input)
    expect_shape(
        "batch_norm", (input.shape[1],), running_mean=running_mean, running_var=running_var,
        weight=weight, bias=bias,
    )  # fmt: skip
    dims = (0, *range(2, input.dim()))
    shape = (1, -1) + (1,) * (input.dim() - 2)
    x = _wide(input)
    if training:
        count = math.prod(int(input.shape[d]) for d in dims)
        if count <= 1:
            raise ValueError(
                "[batch_norm] expected more than 1 value per channel when training; got input "
                f"{tuple(input.shape)}"
            )
        mean, centred, var = _centre(x, dims)
        if running_mean is not None and running_var is not None:
            with no_grad():
                new_mean = mean.detach().reshape(-1)
                new_var = var.detach().reshape(-1) * (count / (count - 1))
                for running, new in ((running_mean, new_mean), (running_var, new_var)):
                    running.copy_(_wide(running) * (1 - momentum) + new * momentum)
    else:
        if running_mean is None or running_var is None:
            raise ValueError(
                "[batch_norm] expected running_mean and running_var when not training; got None"
            )
        centred = x - running_mean.reshape(shape)
        var = running_var.reshape(shape)
    scaled = centred * ops.rsqrt(_wide(var) + eps)
    scale, shift = (None if p is None else p.reshape(shape) for p in (weight, bias))
    return _affine(scaled, scale, shift).to(input.dtype)


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
    expect_tensors("layer_norm", input=input)
    expect_floating("layer_norm", "input", input)
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"[layer_norm] expected input (..., {', '.join(map(str, shape))}) for normalized_shape "
            f"{shape}; got {tuple(input.shape)}"
        )
    expect_shape("layer_norm", shape, weight=weight, bias=bias)
    dims = tuple(range(-len(shape), 0))
    _, centred, var = _centre(_wide(input), dims)
    return _affine(centred * ops.rsqrt(var + eps), weight, bias).to(input.dtype)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """x / max(norm(x, p, dim), eps), of input's shape; written into `out`, if given."""
    expect_tensors("normalize", input=input)
    result = input / ops.norm(input, p, dim, keepdim=True).clamp(min=eps)
    return result if out is None else out.copy_(result)
