"""Functions that build or take apart arrangements: splits along named dims, block matrices,
triangle indices, products and combinations of vectors."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.symbolic import prod
from jitgrad.creation import arange, host_tensor, placed, zeros
from jitgrad.functions.args import as_shape, expect_range, one_axis, one_given
from jitgrad.functions.select import coordinates, searchsorted
from jitgrad.functions.shape import (
    cat,
    clone,
    diag_embed,
    expand,
    meshgrid,
    narrow,
    pad_constant,
    reshape,
    separate,
    split,
    stack,
    tensor_split,
    unsqueeze,
)
from jitgrad.promotion import cast, constant, result_type
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import state
from jitgrad.tensor import Tensor, wrap_array


# -- splits ----------------------------------------------------------------------------------------
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of the sizes given, along a dim. Views."""
    return split(input, list(split_sizes), dim)


def _parts(name: str, given: tuple[Any, ...], sections: Any, indices: Any) -> Any:
    """The one argument of hsplit and its kin: a number, or indices (which may come one by one)."""
    first = given if len(given) > 1 else given[0] if given else None
    return one_given(name, first, sections, indices)


def _split_along(name: str, input: Tensor, parts: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise RuntimeError(
            f"torch.{name} requires a tensor with at least {least} dimension, but got a tensor "
            f"with {input.ndim} dimensions!"
        )
    if isinstance(parts, int) and (parts <= 0 or input.shape[axis] % parts):
        raise RuntimeError(
            f"torch.{name} attempted to split along dimension {axis}, but the size of the "
            f"dimension {input.shape[axis]} is not divisible by the split_size {parts}!"
        )
    return tensor_split(input, parts, axis)


def hsplit(
    input: Tensor, *given: Any, sections: Any = None, indices: Any = None
) -> tuple[Tensor, ...]:
    """Parts along dim 1 (dim 0 of a vector): a number of equal ones, or cut at indices. Views."""
    parts = _parts("hsplit", given, sections, indices)
    return _split_along("hsplit", input, parts, 0 if input.ndim == 1 else 1, 1)


def vsplit(
    input: Tensor, *given: Any, sections: Any = None, indices: Any = None
) -> tuple[Tensor, ...]:
    """Parts along dim 0 of a matrix or more: a number of equal ones, or cut at indices. Views."""
    parts = _parts("vsplit", given, sections, indices)
    return _split_along("vsplit", input, parts, 0, 2)


def dsplit(
    input: Tensor, *given: Any, sections: Any = None, indices: Any = None
) -> tuple[Tensor, ...]:
    """Parts along dim 2: a number of equal ones, or cut at indices. Views."""
    parts = _parts("dsplit", given, sections, indices)
    return _split_along("dsplit", input, parts, 2, 3)


def narrow_copy(input: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """narrow, as a copy."""
    return clone(narrow(input, dim, start, length))


# -- matrices of parts -----------------------------------------------------------------------------
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The flattened elements as a diagonal matrix."""
    return diag_embed(input.reshape(-1), offset)


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with these (matrices, row vectors, numbers) along its diagonal, zeros elsewhere."""
    if not tensors:
        return zeros(1, 0)
    dtype = result_type(*tensors)
    blocks = []
    for i, x in enumerate(tensors):
        if x.ndim > 2:
            raise RuntimeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has "
                f"{x.ndim} dimensions"
            )
        blocks.append(cast(x.reshape((1,) * (2 - x.ndim) + tuple(x._type.shape)), dtype))
    width = sum(x.shape[1] for x in blocks)
    rows, left = [], 0
    for x in blocks:
        count = x.shape[1]
        rows.append(pad_constant(x, (left, width - left - count)))
        left += count
    return cat(rows, 0)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All tuples of elements of these vectors, one a row (a vector itself for a single one)."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    for x in tensors:
        if x.ndim != 1:
            raise RuntimeError(f"cartesian_prod: Expect a 1D vector, but got shape {list(x.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([g.reshape(-1) for g in meshgrid(*tensors)], 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, one a row, in the order of itertools."""
    if input.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return input.new_empty(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(operator.index(input.shape[0])), r))
    index = host_tensor(np.array(rows, np.int64).reshape(-1, r))
    return input[index.reshape(-1)].reshape(len(rows), r)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The matrix of powers of a vector's elements: x**(N-1) ... x**0 in columns, or ascending."""
    if x.ndim != 1:
        raise RuntimeError(f"x must be a one-dimensional tensor; got {x._type}")
    count = x.shape[0] if N is None else N
    if count < 0:
        raise RuntimeError(f"N must be non-negative; got {N}")
    dtype = dtypes.int64 if x.dtype.is_integer or x.dtype is dtypes.bool_ else x.dtype
    one = constant(1, dtype).expand((x.shape[0], 1))
    columns: list[Tensor] = []
    for _ in range(operator.index(count)):
        last = columns[-1] * cast(x, dtype).unsqueeze(1) if columns else one
        columns.append(last)
    if not columns:
        return zeros(x.shape[0], 0, dtype=dtype)
    return cat(columns if increasing else columns[::-1], 1)


# -- repetitions -----------------------------------------------------------------------------------
def repeat_interleave(
    input: Any = None, repeats: Any = None, dim: int | None = None, *,
    output_size: int | None = None,
) -> Tensor:  # fmt: skip
    """Each element along `dim` (flattened by default) repeated so many times: a number, or one for
    each element. Python looks at the sum of repeats in a tensor, unless output_size is given."""
    if repeats is None or input is None:  # the one argument is `repeats` then
        return _repeated(one_given("repeat_interleave", input, repeats))
    if dim is None:
        input, dim = reshape(input, -1), 0
    axis = one_axis("repeat_interleave", input.ndim, dim)
    if isinstance(repeats, np.integer) or (
        isinstance(repeats, Tensor) and repeats.numel() == 1 and output_size is None
    ):
        repeats = int(repeats)
    if isinstance(repeats, int):
        shape = input._type.shape
        if repeats < 0:
            raise RuntimeError(f"repeats can not be negative; got {repeats}")
        if output_size is not None and output_size != shape[axis] * repeats:
            raise RuntimeError(
                f"[repeat_interleave] expected an output_size of {shape[axis] * repeats}, as "
                f"repeats say; got {output_size}"
            )
        wide = expand(unsqueeze(input, axis + 1), (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
        made = reshape(wide, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))
        return separate(made, input)
    size = operator.index(input._type.shape[axis])
    if repeats.numel() not in (1, size):
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{repeats.numel()} and input.size({axis}) = {size}"
        )
    if output_size is None:
        return input.index_select(axis, _repeated(repeats))
    repeats = repeats.expand(size)
    text = f"allocated size does not match required size: output_size {output_size} for {{value}}"
    expect_range(repeats.sum(), output_size, output_size, RuntimeError, text)
    return input.index_select(axis, _of_size(repeats, output_size))


def _repeated(repeats: Tensor) -> Tensor:
    """0, 1, 2, ..., each as often as `repeats` says."""
    if repeats.ndim != 1:
        raise RuntimeError(
            f"repeat_interleave only accept 1D vector as repeat; got {repeats._type}"
        )
    if repeats.dtype not in (dtypes.int64, dtypes.int32):
        raise NotImplementedError(
            f"[repeat_interleave] expected repeats of int64 or int32; got {repeats._type}; convert "
            "them with .long()"
        )
    if state.recorder is not None and state.lazy is None and not state.levels:
        text = "repeats can not be negative; got {value}"
        repeats = expect_range(cast(repeats, dtypes.int64), 0, 2**63 - 1, RuntimeError, text)
        return _of_size(repeats, int(repeats.sum()))
    counts = repeats._array("repeat_interleave")
    if counts.size and counts.min() < 0:
        raise RuntimeError(f"repeats can not be negative; got {counts[counts < 0][0]}")
    index = wrap_array(np.repeat(np.arange(counts.size, dtype=np.int64), counts))
    return placed(index, repeats._type.device)


def _of_size(repeats: Tensor, size: int) -> Tensor:
    """The same, where their number is known: nothing is read, for place i is of the first number
    whose end is past i."""
    return searchsorted(repeats.cumsum(0), arange(size), right=True)


# -- index tensors ---------------------------------------------------------------------------------
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """(2, n): rows and columns of the lower triangle of a row x col matrix."""
    _expect_sizes("tril_indices", row, col)
    return _triangle_indices(np.tril_indices(row, offset, col), dtype, device, requires_grad)


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """(2, n): rows and columns of the upper triangle of a row x col matrix."""
    _expect_sizes("triu_indices", row, col)
    return _triangle_indices(np.triu_indices(row, offset, col), dtype, device, requires_grad)


def _expect_sizes(name: str, row: int, col: int) -> None:
    if row < 0 or col < 0:
        raise RuntimeError(f"[{name}] row and col must be non-negative; got {row} and {col}")


def _triangle_indices(found: Any, dtype: DType | None, device: Any, requires_grad: bool) -> Tensor:
    index = host_tensor(np.stack(found).astype((dtype or dtypes.int64).np))
    index.requires_grad_(requires_grad)
    return index if device is None else placed(index, device)


def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """The coordinates, in a tensor of this shape, of positions in the flattened tensor."""
    if indices.is_floating_point() or indices.dtype is dtypes.bool_:
        raise ValueError(
            f"expected 'indices' to be integer dtype, but got {indices._type}; use .long()"
        )
    sizes = as_shape((shape,)) if isinstance(shape, int) else as_shape((tuple(shape),))
    if any(isinstance(n, int) and n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {tuple(sizes)}")
    total = prod(sizes)
    text = f"[unravel_index] index {{value}} is out of range for shape {tuple(sizes)}"
    flat = expect_range(cast(indices, dtypes.int64), -total, total - 1, ValueError, text)
    return tuple(coordinates(flat, sizes))


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` elements that are not zero, (size, ndim) int64; missing ones
    are fill_value. Unlike nonzero, its shape is fixed, so it compiles."""
    flat = (input == 0).reshape(-1)
    total = flat.shape[0]
    order = flat.to(dtypes.uint8).argsort(stable=True)
    if size > total:
        order = pad_constant(order, (0, size - total))
    order = order.narrow(0, 0, size)
    there = (arange(size) < total - flat.sum()).unsqueeze(1)
    if not input.ndim:
        return zeros(size, 0, dtype=dtypes.int64)
    columns = stack(coordinates(order, input._type.shape), 1)
    return columns.masked_fill(~there, fill_value)
