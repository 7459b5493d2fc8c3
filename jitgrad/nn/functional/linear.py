"""Linear and bilinear maps."""

from __future__ import annotations

import jitgrad.functions as ops
from jitgrad import fused
from jitgrad.casting import lower
from jitgrad.functions.linalg import times_transposed
from jitgrad.nn.functional.args import expect_dtype, expect_shape, expect_tensors
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor


@lower
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: input (..., in), weight (out, in), bias (out) -> (..., out).

    weight may be (in), which gives (...). Raises RuntimeError for sizes or dtypes that differ.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        expect_tensors("linear", input=input, weight=weight)
    sizes, form = input._type.shape, weight._type.shape
    if len(form) not in (1, 2) or not sizes or sizes[-1] != form[-1]:
        raise RuntimeError(
            f"[linear] expected input (..., in) and weight (out, in); got input "
            f"{tuple(input.shape)}, weight {tuple(weight.shape)}; the last dims must be equal"
        )
    dtype = input._type.dtype
    if weight._type.dtype is not dtype or (bias is not None and bias._type.dtype is not dtype):
        expect_dtype("linear", dtype, weight=weight, bias=bias)
    if bias is not None and bias._type.shape != form[:-1]:
        if tuple(bias._type.shape) not in (tuple(form[:-1]), (1,), ()):
            raise RuntimeError(
                f"[linear] expected bias of shape {tuple(weight.shape[:-1])} for weight "
                f"{tuple(weight.shape)}; got {tuple(bias.shape)}"
            )
    if bias is not None and len(form) == 2 and len(sizes) > 1:
        made: Tensor = fused.apply(fused.addmm, (input, weight, bias), {})
        return called(made, "AddmmBackward0" if len(sizes) == 2 else "ViewBackward0")
    out = times_transposed(input, weight) if len(form) == 2 else ops.matmul(input, weight)
    if bias is None:
        return out
    out = out + bias
    return called(out, "AddmmBackward0") if len(sizes) == 2 else out


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1' W[k] x2 + bias[k]: input1 (*, in1), input2 (*, in2), weight (out, in1, in2), bias (out)
    -> (*, out).

    Raises RuntimeError for sizes or dtypes that differ.
    """
    op = "bilinear"
    expect_tensors(op, input1=input1, input2=input2, weight=weight)
    expect_dtype(op, input1.dtype, input2=input2, weight=weight, bias=bias)
    fits = weight.dim() == 3 and input1.dim() == input2.dim() >= 1
    fits = fits and tuple(input1.shape[:-1]) == tuple(input2.shape[:-1])
    if not fits or (input1.shape[-1], input2.shape[-1]) != tuple(weight.shape[1:]):
        raise RuntimeError(
            f"[{op}] expected input1 (*, in1), input2 (*, in2) and weight (out, in1, in2); got "
            f"{tuple(input1.shape)}, {tuple(input2.shape)} and weight {tuple(weight.shape)}"
        )
    out, in1, in2 = weight.shape
    expect_shape(op, (out,), bias=bias)
    half = ops.matmul(input1, weight.permute(1, 0, 2).reshape(in1, out * in2))
    half = half.reshape((*input1.shape[:-1], out, in2))
    result = (half * input2.unsqueeze(-2)).sum(-1).to(input1.dtype)
    return result if bias is None else result + bias
