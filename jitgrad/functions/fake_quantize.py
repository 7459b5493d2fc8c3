"""Numbers as a quantised model would have them: fake_quantize_per_tensor_affine and _per_channel_.

The value is that of quantising and going back; its gradient is 1 where the number is within the
bounds, else 0 (straight-through, as in PyTorch).
"""

from __future__ import annotations

from typing import Any

from jitgrad.functions.args import expect_floating, expect_range, one_axis
from jitgrad.functions.elementwise import clamp, generated, where
from jitgrad.tensor import Tensor


def fake_quantize_per_tensor_affine(
    input: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> Tensor:
    """(clamp(round(input / scale) + zero_point, quant_min, quant_max) - zero_point) * scale.

    scale, zero_point: numbers, or tensors of one. Raises RuntimeError for bounds in the wrong order
    and a zero point outside of them.
    """
    expect_floating("fake_quantize_per_tensor_affine", "input", input)
    _expect_bounds("fake_quantize_per_tensor_affine", zero_point, quant_min, quant_max)
    return _quantized(input, scale, zero_point, quant_min, quant_max)


def fake_quantize_per_channel_affine(
    input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Tensor:
    """fake_quantize_per_tensor_affine with a scale and a zero point for each slice along axis.

    Raises RuntimeError for vectors of another length than the axis, and as above.
    """
    name = "fake_quantize_per_channel_affine"
    expect_floating(name, "input", input)
    k = one_axis(name, input.ndim, axis)
    for what, x in (("scale", scale), ("zero_point", zero_point)):
        if x.ndim != 1 or x.shape[0] != input.shape[k]:
            raise RuntimeError(
                f"[{name}] expected {what} of as many elements as input has along axis {axis}; got "
                f"{x._type} for {input._type}"
            )
    _expect_bounds(name, None, quant_min, quant_max)
    text = f"[{name}] `zero_point` must be between `quant_min` and `quant_max`; got {{value}}"
    zero_point = expect_range(zero_point, quant_min, quant_max, RuntimeError, text)
    shape = [1] * input.ndim
    shape[k] = input.shape[k]
    return _quantized(input, scale.reshape(shape), zero_point.reshape(shape), quant_min, quant_max)


def _expect_bounds(name: str, zero_point: Any, quant_min: int, quant_max: int) -> None:
    if quant_min > quant_max:
        raise RuntimeError(
            f"[{name}] `quant_min` should be less than or equal to `quant_max`; got {quant_min} "
            f"and {quant_max}"
        )
    if zero_point is not None and not isinstance(zero_point, Tensor):
        if not quant_min <= zero_point <= quant_max:
            raise RuntimeError(
                f"[{name}] `zero_point` must be between `quant_min` and `quant_max`; got "
                f"{zero_point}"
            )


def _quantized(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> Tensor:
    inverse = 1.0 / (scale.detach() if isinstance(scale, Tensor) else scale)
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.detach().to(x.dtype)
    q = generated["round"](x.detach() * inverse) + zero_point
    value = (clamp(q, low, high) - zero_point) * scale
    passing = where((q >= low) & (q <= high), x, 0.0)
    return value.detach() + (passing - passing.detach())
