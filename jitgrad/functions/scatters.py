"""Tensors with a part replaced or combined: scatter_reduce, index_put, slice_scatter, ...

All are out of place; what picks elements is in select.py, and writing in place in inplace.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_range, one_axis
from jitgrad.functions.select import (
    as_index,
    expect_positions,
    expect_slices,
    scatter,
    scatter_add,
    scatter_by,
)
from jitgrad.functions.shape import (
    as_strided,
    broadcast_tensors,
    diagonal_view,
    keeping_layout,
    row_major,
    select,
    slice_along,
)
from jitgrad.promotion import cast, constant
from jitgrad.runtime import dtypes
from jitgrad.tape.lasting import lasting
from jitgrad.tape.views import put_chain
from jitgrad.tensor import Tensor

_REDUCTIONS = {"sum": 0, "prod": 1, "mean": 0, "amax": 0, "amin": 0}


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """What meets at each place of input (where gather would read src's element) combined by "sum",
    "prod", "mean", "amax" or "amin"; with input's own element unless include_self is False.

    Ties of amax and amin share the gradient.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            "reduce argument must be either sum, prod, mean, amax or amin, got " + str(reduce)
        )
    base = input
    if not include_self:
        base = _neutral(input, reduce, _hit(input, dim, index))
    if reduce == "sum":
        return scatter_add(base, dim, index, src)
    if reduce != "mean":
        return scatter_by("scatter_reduce", f"scatter_{reduce}", base, dim, index, src)
    total = scatter_add(base, dim, index, src)
    ones = constant(1, input.dtype).expand(tuple(index._type.shape))
    start = input.new_ones(tuple(input._type.shape))
    if not include_self:
        start = start - cast(_hit(input, dim, index), input.dtype)
    count = scatter_add(start, dim, index, ones)
    if input.dtype.is_floating_point:
        return total / count
    return total.div(count, rounding_mode="floor")


def _hit(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Where the index names a place of input."""
    none = input.new_zeros(tuple(input._type.shape), dtype=dtypes.int8)
    return scatter(none, dim, index, 1) != 0


def _neutral(input: Tensor, reduce: str, where: Tensor) -> Tensor:
    """input with what changes nothing under `reduce` at places that `where` holds."""
    dtype = input.dtype
    value: Any = _REDUCTIONS[reduce]
    if dtype is dtypes.bool_:
        return apply(OPS["where"], (where, constant(reduce in ("prod", "amin"), dtype), input), {})
    if reduce in ("amax", "amin"):
        low = reduce == "amax"
        if dtype.is_floating_point:
            value = float("-inf") if low else float("inf")
        elif dtype.signed:
            value = -(2 ** (dtype.bits - 1)) if low else 2 ** (dtype.bits - 1) - 1
        else:
            value = 0 if low else 2**dtype.bits - 1
    return apply(OPS["where"], (where, constant(value, dtype), input), {})


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    """input with source's slices combined into its slices at the indices along dim, by "prod",
    "mean", "amax" or "amin"."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got "
            f"{reduce}."
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"index_reduce(): self and source expected to have the same dtype; got {input._type} "
            f"and {source._type}"
        )
    axis = one_axis("index_reduce", input.ndim, dim)
    index = expect_slices("index_reduce_", input, axis, index, source)
    size = input._type.shape[axis] if input.ndim else 1
    index = expect_positions("index_reduce", index, axis, size)
    shape = tuple(source._type.shape) or (1,)
    place = tuple(-1 if k == axis else 1 for k in range(len(shape)))
    wide = index.reshape(place).expand(shape).reshape(tuple(source._type.shape))
    return scatter_reduce(input, axis, wide, source, reduce, include_self=include_self)


@row_major
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """input with the first elements of source, in order, where the mask holds.

    Raises RuntimeError for a mask that is not bool or another dtype of source, and where source has
    too few elements.
    """
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}"
        )
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"masked_scatter: expected self and source to have same dtypes but got {input.dtype} "
            f"and {source.dtype}"
        )
    input, mask = broadcast_tensors(input, mask)
    text = "masked_scatter: expected source to have at least {value} elements; got "
    expect_range(mask.sum(), None, source.numel(), RuntimeError, text + str(source._type))
    if source.numel() == 0:
        return input.clone()
    flat = mask.reshape(-1)
    place = cast(flat, dtypes.int64).cumsum(0) - 1
    place = apply(OPS["where"], (flat, place, constant(0, dtypes.int64)), {})
    values = source.reshape(-1).gather(0, place).reshape(tuple(input._type.shape))
    return apply(OPS["where"], (mask, values, input), {})


@keeping_layout
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """input with source's elements at positions of the flattened input (or added there).

    Raises RuntimeError for another dtype; IndexError for another number of elements, and out of
    range.
    """
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self {input._type} "
            f"and source {source._type}"
        )
    if index.dtype is not dtypes.int64:
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {index._type}")
    if index.numel() != source.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements; got "
            f"{source._type} and {index._type}"
        )
    if accumulate and input.dtype is dtypes.bool_:
        counts = put(cast(input, dtypes.int64), index, cast(source, dtypes.int64), True)
        return cast(counts, dtypes.bool_)
    flat, where = input.reshape(-1), as_index("put_", index).reshape(-1)
    attrs = {"dims": (0,), "accumulate": accumulate}
    out = apply(OPS["index_put"], (flat, source.reshape(-1), where), attrs)
    return out.reshape(tuple(input._type.shape))


# -- one view replaced -----------------------------------------------------------------------------
def _scattered(name: str, input: Tensor, src: Tensor, view: Tensor) -> Tensor:
    """input with what `view` (a view of it) shows replaced by src."""
    if tuple(src._type.shape) != tuple(view._type.shape):
        raise RuntimeError(
            f"[{name}] expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, slice size = {list(view.shape)}"
        )
    chain = view._chain[len(input._chain) :]
    return put_chain(input, chain, cast(src, input.dtype))


@keeping_layout
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """input with input[..., start:end:step, ...] along dim replaced by src."""
    axis = one_axis("slice_scatter", input.ndim, dim)
    if step <= 0:
        raise RuntimeError(f"slice step must be positive; got {step}")
    low, high = _bounds(start, end, input._type.shape[axis])
    view = slice_along(input, axis, low, high, step)
    return _scattered("slice_scatter", input, src, view)


def _bounds(start: Any, end: Any, size: Any) -> tuple[Any, Any]:
    low = 0 if start is None else start + size if start < 0 else start
    high = size if end is None else end + size if end < 0 else end
    low = 0 if low < 0 else size if low > size else low
    high = low if high < low else size if high > size else high
    return low, high


@keeping_layout
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """input with input.select(dim, index) replaced by src."""
    return _scattered("select_scatter", input, src, select(input, dim, index))


@keeping_layout
def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """input with its diagonal of two dims replaced by src."""
    view = diagonal_view(input, offset, dim1, dim2)
    return _scattered("diagonal_scatter", input, src, view)


@lasting
def as_strided_scatter(
    input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:  # fmt: skip
    """A copy of input, in row-major order, with what as_strided shows of it replaced by src."""
    copy = input.clone().contiguous()
    view = as_strided(copy, size, stride, 0 if storage_offset is None else storage_offset)
    return _scattered("as_strided_scatter", copy, src, view)
