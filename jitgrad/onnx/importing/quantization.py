"""Handlers of ONNX's ops on quantised numbers: integers with a scale and a zero point."""

from __future__ import annotations

from typing import Any

import jitgrad as jg
from jitgrad.onnx.importing.calls import Call, axis_of, dtype_of, handler
from jitgrad.onnx.importing.networks import convolve
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor


def _spread(c: Call, scale: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point beside x: for all, along an axis, or for blocks along it."""
    if scale.ndim == 0 or scale.numel() == 1:
        return scale.reshape(())
    axis = axis_of(c.attr("axis", 1), x.ndim)
    block = c.attr("block_size", 0)
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return scale.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


def _quantised(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """round(x / scale) + zero, kept within the dtype."""
    info = jg.iinfo(dtype)
    y = jg.round(x / scale)
    if zero is not None:
        y = y + zero.to(y.dtype)
    return jg.clamp(y, info.min, info.max).to(dtype)


@handler("QuantizeLinear")
def quantize(c: Call) -> Tensor:
    c.ignore("saturate", "precision", "axis", "block_size")
    x = c.tensor(0)
    zero = c.optional(2)
    number = c.attr("output_dtype", 0)
    dtype = dtype_of(number) if number else (jg.uint8 if zero is None else zero.dtype)
    if dtype.is_floating_point:
        c.unsupported(f"quantisation to {dtype}")
    scale = _spread(c, c.tensor(1), x)
    x = x if x.is_floating_point() else x.to(jg.float32)
    return _quantised(x, scale, None if zero is None else _spread(c, zero, x), dtype)


@handler("DequantizeLinear")
def dequantize(c: Call) -> Tensor:
    c.ignore("axis", "block_size")
    x, scale = c.tensor(0), c.tensor(1)
    if c.attr("output_dtype", 0):
        c.unsupported("output_dtype")
    y = x.to(scale.dtype)
    if c.has(2):
        y = y - _spread(c, c.tensor(2), x).to(scale.dtype)
    return y * _spread(c, scale, x)


@handler("DynamicQuantizeLinear")
def dynamic_quantize(c: Call) -> Any:
    x = c.tensor(0)
    low = jg.clamp(jg.amin(x), max=0)
    scale = (jg.clamp(jg.amax(x), min=0) - low) / 255
    zero = jg.clamp(jg.round(-low / scale), 0, 255).to(jg.uint8)
    return _quantised(x, scale, zero, jg.uint8), scale, zero


def _centred(x: Tensor, zero: Tensor | None, row: bool = False) -> Tensor:
    """x minus its zero point, as int32; one for each row of a matrix, or each column."""
    wide = x.to(jg.int32)
    if zero is None:
        return wide
    z = zero.to(jg.int32)
    if z.ndim == 1 and z.numel() > 1 and row:
        z = z.reshape(-1, 1)
    return wide - (z.reshape(()) if z.numel() == 1 else z)


@handler("MatMulInteger")
def matmul_integer(c: Call) -> Tensor:
    a, b = _centred(c.tensor(0), c.optional(2), True), _centred(c.tensor(1), c.optional(3))
    return jg.matmul(a, b)


@handler("QLinearMatMul")
def qlinear_matmul(c: Call) -> Tensor:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (c.tensor(i) for i in range(8))
    product = jg.matmul(_centred(a, a_zero, True), _centred(b, b_zero)).to(jg.float32)
    if a_scale.ndim == 1 and a_scale.numel() > 1:
        a_scale = a_scale.reshape(-1, 1)
    y = product * (a_scale * b_scale).to(jg.float32)
    return _quantised(y, y_scale.to(jg.float32), y_zero, y_zero.dtype)


@handler("ConvInteger")
def conv_integer(c: Call) -> Tensor:
    return _conv(c, c.tensor(0), c.optional(2), c.tensor(1), c.optional(3)).to(jg.int32)


@handler("QLinearConv")
def qlinear_conv(c: Call) -> Tensor:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (c.tensor(i) for i in range(8))
    total = _conv(c, x, x_zero, w, w_zero)
    rank = x.ndim - 2
    if c.has(8):
        total = total + c.tensor(8).to(jg.float64).reshape(-1, *[1] * rank)
    scale = x_scale * w_scale
    scale = scale.reshape(-1, *[1] * rank) if scale.numel() > 1 else scale.reshape(())
    return _quantised(total * scale.to(jg.float64), y_scale, y_zero, y_zero.dtype)


def _conv(c: Call, x: Tensor, x_zero: Tensor | None, w: Tensor, w_zero: Tensor | None) -> Tensor:
    """The convolution of centred integers; float64 holds its sums exactly."""
    a = _centred(x, x_zero).to(jg.float64)
    if w_zero is not None and w_zero.numel() > 1:
        w_zero = w_zero.reshape(-1, *[1] * (w.ndim - 1))
    return convolve(c, a, _centred(w, w_zero).to(jg.float64), None)
