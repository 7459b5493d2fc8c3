"""Tables of rows: embedding, and embedding_bag, which reduces rows by bags.

max_norm writes the table in place, as in PyTorch. `sparse` gradients do not exist here: an error.
"""

from __future__ import annotations

import math

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.composites import composite
from jitgrad.creation import arange, ones, zeros
from jitgrad.functions.args import expect_one_device, expect_range
from jitgrad.functions.select import expect_positions, searchsorted
from jitgrad.functions.shape import row_major
from jitgrad.nn.functional.args import expect_dtype, expect_tensors
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


@row_major
@naming("EmbeddingBackward0")
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of weight (V, D) by index: input (*) of int64 or int32 -> (*, D).

    Rows of padding_idx get no gradient. With max_norm, the rows looked up whose norm_type-norm is
    larger are first scaled to it, in place. scale_grad_by_freq divides a row's gradient by how
    often input names it. Raises RuntimeError for other dtypes and a weight that is no matrix,
    AssertionError for padding_idx out of range, IndexError for an index out of range.
    """
    padding_idx = _expect_table("embedding", input, weight, padding_idx, sparse)
    flat = expect_positions("embedding", input.reshape(-1).long(), 0, weight.shape[0])
    rows = _rows(flat, weight, max_norm, norm_type, scale_grad_by_freq)
    rows = rows.reshape((*input.shape, weight.shape[1]))
    if padding_idx is None:
        return rows
    return ops.where((input == padding_idx).unsqueeze(-1), rows.detach(), rows)


def _expect_table(
    op: str, input: Tensor, weight: Tensor, padding_idx: int | None, sparse: bool
) -> int | None:
    """padding_idx, counted from the start."""
    expect_tensors(op, input=input, weight=weight)
    expect_one_device(op, input, weight)
    if input.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(
            f"[{op}] expected indices of int64 or int32; got {input.dtype} "
            f"{tuple(input.shape)}; convert them with .long()"
        )
    if weight.dim() != 2:
        raise RuntimeError(f"[{op}] expected weight (V, D); got {tuple(weight.shape)}")
    if sparse:
        raise NotImplementedError(
            f"[{op}] sparse gradients are not supported (docs/limits.md); leave sparse=True out"
        )
    if padding_idx is None:
        return None
    count = int(weight.shape[0])
    if not -count <= padding_idx < count:
        raise AssertionError(
            f"[{op}] expected padding_idx within the {count} rows of weight; got {padding_idx}"
        )
    return padding_idx % count


def _rows(
    flat: Tensor, weight: Tensor, max_norm: float | None, norm_type: float, by_frequency: bool
) -> Tensor:
    """The rows that the int64 vector `flat` names; its positions have been checked."""
    if max_norm is not None:
        with no_grad():
            hit = zeros(int(weight.shape[0])).scatter(0, flat, 1.0) != 0
            length = ops.norm(weight, norm_type, 1)
            long = ops.logical_and(hit, length > max_norm)
            weight.copy_(weight * ops.where(long, max_norm / (length + 1e-7), 1.0).unsqueeze(1))
    rows = weight[flat]
    if not by_frequency:
        return rows
    counts = zeros(int(weight.shape[0]), dtype=dtypes.float64)
    counts = counts.scatter_add(0, flat, ones(tuple(flat.shape), dtype=dtypes.float64))
    share = (1.0 / counts[flat]).to(weight.dtype).unsqueeze(1)
    # The value stays; what is added is 0 and has the scaled gradient.
    fixed = rows.detach()
    return fixed + ops.where(ops.isfinite(fixed), (rows - fixed) * share, 0.0)


_MODES = ("sum", "mean", "max")


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or max of the rows of each bag of indices: (B, D).

    input is (B, N), a bag in each row, or (N) with offsets (B): where each bag begins (with
    include_last_offset, followed by the end of the last). Indices equal to padding_idx count
    nothing; an empty bag gives 0. per_sample_weights, of input's shape, multiply the rows ("sum"
    only). The rest as in `embedding`. Raises ValueError for shapes and options that do not fit.
    """
    op = "embedding_bag"
    padding_idx = _expect_table(op, input, weight, padding_idx, sparse)
    if not weight.is_floating_point():
        raise RuntimeError(f"[{op}] expected a floating weight; got {weight._type}")
    if offsets is not None and offsets.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(f"[{op}] expected offsets of int64 or int32; got {offsets._type}")
    _expect_bags(input, offsets, mode, per_sample_weights, scale_grad_by_freq)
    if per_sample_weights is not None:
        expect_dtype(op, weight.dtype, per_sample_weights=per_sample_weights)
    out = _bags(
        input, weight, offsets, per_sample_weights, max_norm, norm_type, scale_grad_by_freq, mode,
        include_last_offset, padding_idx,
    )  # fmt: skip
    return called(out, "EmbeddingBagBackward0")


@composite
def _bags(
    input: Tensor, weight: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None,
    max_norm: float | None, norm_type: float, scale_grad_by_freq: bool, mode: str,
    include_last_offset: bool, padding_idx: int | None,
) -> Tensor:  # fmt: skip
    rows, error = weight.shape[0], RuntimeError
    flat = expect_positions("embedding_bag", input.reshape(-1).long(), 0, rows, error)
    wide = dtypes.float32 if weight.dtype.itemsize == 2 else weight.dtype
    rows = _rows(flat, weight, max_norm, norm_type, scale_grad_by_freq).to(wide)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    counted = flat >= 0 if padding_idx is None else flat != padding_idx
    if offsets is None:
        bags, size = (int(d) for d in input.shape)
        rows = rows.reshape(bags, size, weight.shape[1])
        counted = counted.reshape(bags, size)
        out = _padded_bags(rows, counted, mode)
        out = out[:-1] if include_last_offset else out
    else:
        bags = int(offsets.shape[0]) - include_last_offset
        out = _ragged_bags(rows, counted, offsets, bags, mode)
    return out.to(weight.dtype)


def _expect_bags(
    input: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None, by_frequency: bool
) -> None:
    op = "embedding_bag"
    if mode not in _MODES:
        raise ValueError(f"[{op}] mode has to be one of sum, mean or max; got {mode!r}")
    if mode == "max" and by_frequency:
        raise ValueError(f"[{op}] max mode does not support scaling the gradient by the frequency")
    if weights is not None:
        if tuple(weights.shape) != tuple(input.shape):
            raise ValueError(
                f"[{op}] expected per_sample_weights of input's shape {tuple(input.shape)}; got "
                f"{tuple(weights.shape)}"
            )
        if mode != "sum":
            raise NotImplementedError(
                f"[{op}] per_sample_weights was not None; it is only supported for mode='sum'; "
                f"got mode={mode!r}"
            )
    if input.dim() == 2 and offsets is None:
        return
    if input.dim() != 1 or offsets is None or offsets.dim() != 1:
        got = None if offsets is None else tuple(offsets.shape)
        raise ValueError(
            f"[{op}] expected input (B, N) without offsets, or (N) with offsets (B); got input "
            f"{tuple(input.shape)}, offsets {got}"
        )
    length = input.shape[0]
    text = f"[{op}] expected offsets to begin with 0 and to end within input's length {length}; "
    expect_range(offsets[:1], 0, 0, RuntimeError, text + "they begin with {value}")
    expect_range(offsets[-1:], None, length, RuntimeError, text + "they end with {value}")


def _padded_bags(rows: Tensor, counted: Tensor, mode: str) -> Tensor:
    """rows (B, N, D), counted (B, N) -> (B, D)."""
    used = counted.unsqueeze(-1)
    if mode == "max":
        if rows.shape[1] == 0:
            return rows.sum(1)
        largest = ops.where(used, rows, -math.inf).max(1).values
        return ops.where(counted.any(1, keepdim=True), largest, 0.0)
    total = ops.where(used, rows, 0.0).sum(1)
    if mode == "sum":
        return total
    return total / counted.to(rows.dtype).sum(1, keepdim=True).clamp(min=1)


def _ragged_bags(rows: Tensor, counted: Tensor, offsets: Tensor, bags: int, mode: str) -> Tensor:
    """rows (N, D), counted (N) -> (B, D)."""
    count = int(rows.shape[0])
    bag = searchsorted(offsets, arange(count), right=True) - 1  # of each row
    if mode == "max":
        member = ops.logical_and(bag == arange(bags).unsqueeze(1), counted)
        return _padded_bags(rows.unsqueeze(0).expand(bags, *rows.shape), member, mode)
    used = ops.where(counted.unsqueeze(-1), rows, 0.0)
    total = zeros(bags, int(rows.shape[1]), dtype=rows.dtype).index_add(0, bag, used)
    if mode == "sum":
        return total
    sizes = zeros(bags, dtype=rows.dtype).index_add(0, bag, counted.to(rows.dtype))
    return total / sizes.clamp(min=1).unsqueeze(-1)
