"""Linear maps, tables of rows, dropout."""

from __future__ import annotations

import jitgrad.functions as ops
from jitgrad.creation import rand_like, zeros_like
from jitgrad.functions.select import one_hot as one_hot
from jitgrad.nn.functional.args import expect_dtype, expect_tensors, into
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: input (..., in), weight (out, in), bias (out) -> (..., out).

    weight may be (in), which gives (...). Raises RuntimeError for sizes or dtypes that differ.
    """
    expect_tensors("linear", input=input, weight=weight)
    if weight.dim() not in (1, 2) or input.dim() < 1 or input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"[linear] expected input (..., in) and weight (out, in); got input "
            f"{tuple(input.shape)}, weight {tuple(weight.shape)}; the last dims must be equal"
        )
    expect_dtype("linear", input.dtype, weight=weight, bias=bias)
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), (1,), ()):
        raise RuntimeError(
            f"[linear] expected bias of shape {tuple(weight.shape[:-1])} for weight "
            f"{tuple(weight.shape)}; got {tuple(bias.shape)}"
        )
    out = ops.matmul(input, weight.t() if weight.dim() == 2 else weight)
    return out if bias is None else out + bias


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight (V, D) by index: input (*) of int64 or int32 -> (*, D).

    Rows of padding_idx get no gradient. Raises RuntimeError for other dtypes and a weight that is
    no matrix, AssertionError for padding_idx out of range, IndexError for an index out of range.
    """
    expect_tensors("embedding", input=input, weight=weight)
    if input.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(
            f"[embedding] expected indices of int64 or int32; got {input.dtype} "
            f"{tuple(input.shape)}; convert them with .long()"
        )
    if weight.dim() != 2:
        raise RuntimeError(f"[embedding] expected weight (V, D); got {tuple(weight.shape)}")
    rows = weight.index_select(0, input.reshape(-1)).reshape((*input.shape, weight.shape[1]))
    if padding_idx is None:
        return rows
    count = int(weight.shape[0])
    if not -count <= padding_idx < count:
        raise AssertionError(
            f"[embedding] expected padding_idx within the {count} rows of weight; got {padding_idx}"
        )
    return ops.where((input == padding_idx % count).unsqueeze(-1), rows.detach(), rows)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """When training: zeroes elements with probability p, divides the others by 1 - p (Srivastava
    et al. 2014). Else the input.

    Draws from the default generator. Raises ValueError unless 0 <= p <= 1.
    """
    expect_tensors("dropout", input=input)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"[dropout] expected a probability from 0 to 1; got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return into(input, input * 0.0, inplace)
    dtype = input.dtype if input.dtype in (dtypes.float32, dtypes.float64) else dtypes.float32
    keep = rand_like(input.detach(), dtype=dtype) >= p
    return into(input, ops.where(keep, input * (1.0 / (1.0 - p)), zeros_like(input)), inplace)
