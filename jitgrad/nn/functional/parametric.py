"""Activations with more than an input element to them: weights (prelu), another half (glu), noise
(rrelu, gumbel_softmax)."""

from __future__ import annotations

import math

import jitgrad.functions as ops
from jitgrad.casting import lower
from jitgrad.composites import composite
from jitgrad.creation import rand_like, zeros_like
from jitgrad.nn.functional.activations import activation, applied, in_place, softmax
from jitgrad.nn.functional.args import expect_dtype, expect_floating, expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.tape.names import naming
from jitgrad.tape.pieces import in_pieces
from jitgrad.tensor import Tensor


@lower
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where x > 0, else weight * x: input (N, C, ...), weight (C), (1) or () (He et al. 2015).

    Raises RuntimeError for a weight of another size or dtype.
    """
    expect_tensors("prelu", input=input, weight=weight)
    expect_dtype("prelu", input.dtype, weight=weight)
    channels = input.shape[1] if input.dim() > 1 else 1
    if weight.dim() > 1 or weight.numel() not in (1, channels):
        raise RuntimeError(
            f"[prelu] expected weight of shape (1,) or ({channels},), one slope for each channel "
            f"of input {tuple(input.shape)}; got {tuple(weight.shape)}"
        )
    if weight.dim() == 1:
        spread = [1] * input.dim()
        if input.dim():
            spread[min(1, input.dim() - 1)] = -1
        weight = weight.reshape(spread)
    return _leaky(input, weight)


@composite
def _leaky(x: Tensor, slope: Tensor) -> Tensor:
    return in_pieces(ops.where(x > 0, x, slope * x), x, "prelu")


@naming("GluBackward0")
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), a and b the halves of input along dim (Dauphin et al. 2017).

    Raises RuntimeError for an odd size, IndexError for a dim out of range.
    """
    expect_tensors("glu", input=input)
    if not input.dim():
        raise RuntimeError("[glu] does not support 0-dimensional tensors; got a 0-d tensor")
    size = input.size(dim)
    if size % 2:
        raise RuntimeError(
            f"[glu] expected an even size along dim {dim}, to halve; got {tuple(input.shape)}"
        )
    return _gated(input, dim, size // 2)


@activation
def _gated(x: Tensor, dim: int, half: int) -> Tensor:
    return x.narrow(dim, 0, half) * ops.sigmoid(x.narrow(dim, half, half))


@activation
def _sloped(x: Tensor, slope: Tensor | float) -> Tensor:
    return ops.where(x > 0, x, x * slope)


@naming("RreluWithNoiseBackward0")
def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False,
    inplace: bool = False,
) -> Tensor:  # fmt: skip
    """x where x > 0, else x times a slope: drawn from U(lower, upper) for each element when
    training, else (lower + upper) / 2 (Xu et al. 2015).

    Raises RuntimeError when lower > upper.
    """
    expect_tensors("rrelu", input=input)
    expect_floating("rrelu", "input", input)
    if not (math.isfinite(lower) and math.isfinite(upper)):
        raise RuntimeError(f"[rrelu] expected finite bounds; got lower={lower}, upper={upper}")
    if lower > upper:
        raise RuntimeError(f"[rrelu] expected lower <= upper; got lower={lower}, upper={upper}")
    slope: Tensor | float = (lower + upper) / 2
    if training:
        wide = dtypes.float32 if input.dtype.itemsize == 2 else input.dtype
        slope = rand_like(input.detach(), dtype=wide) * (upper - lower) + lower
    return applied(_sloped, input, inplace, slope)


rrelu_ = in_place(rrelu)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample of the relaxed categorical distribution of logits: softmax((logits + noise) / tau),
    noise from the Gumbel distribution (Jang, Gu and Poole 2017; Maddison, Mnih and Teh 2017).

    With `hard`, one-hot, differentiated as if it were not. eps has no effect, as in PyTorch.
    """
    expect_tensors("gumbel_softmax", logits=logits)
    expect_floating("gumbel_softmax", "logits", logits)
    wide = dtypes.float32 if logits.dtype.itemsize == 2 else logits.dtype
    uniform = rand_like(logits.detach(), dtype=wide).clamp(min=2.0**-25)  # never 0
    noise = -ops.log(-ops.log(uniform))
    soft = softmax((logits + noise.to(logits.dtype)) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().argmax(dim, keepdim=True)
    one_hot = zeros_like(soft.detach()).scatter(dim, index, 1.0)
    return one_hot - soft.detach() + soft
