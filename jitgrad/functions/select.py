"""Functions that pick or place elements by index tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad import loop_nodes
from jitgrad.casting import widest
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym, prod
from jitgrad.composites import composite
from jitgrad.dispatch import apply, full
from jitgrad.functions.args import (
    expect_dtype,
    expect_one_device,
    expect_range,
    one_axis,
    positions,
)
from jitgrad.functions.shape import keeping_layout, row_major, separate
from jitgrad.promotion import cast, constant, elementwise, result_type, stored
from jitgrad.runtime import dtypes
from jitgrad.state import state
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor, wrap_array


def as_index(name: str, index: Tensor) -> Tensor:
    """An index as int64 (int32 is converted). Raises RuntimeError for other dtypes."""
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}(): argument 'index' must be Tensor, not {type(index).__name__}")
    if index.dtype is dtypes.int64:
        return index
    if index.dtype is not dtypes.int32 and (index.numel() or index.dtype.is_floating_point):
        raise RuntimeError(
            f"{name}(): Expected dtype int32/int64 for index; got {index._type}; convert it with "
            ".long()"
        )
    return cast(index, dtypes.int64)


def expect_positions(
    name: str, index: Tensor, axis: int, size: Any, error: type[Exception] = IndexError,
    low: Any = 0,
) -> Tensor:  # fmt: skip
    """The index, from `low` to size - 1: for records whose negative positions count from the end,
    which are mistakes unless low is -size.

    Raises `error` for another one.
    """
    text = f"[{name}] index {{value}} is out of bounds for dimension {axis}"
    if not isinstance(size, Sym):  # a text would fix it
        text += f" with size {size}"
    return expect_range(index, low, size - 1, error, text)


def _line(name: str, index: Tensor, error: type[Exception] = IndexError) -> Tensor:
    """The index as a vector. Raises `error` for one of more dims."""
    if index.ndim > 1:
        raise error(f"{name}(): Index is supposed to be a vector; got {index._type}")
    return as_index(name, index).reshape(-1)


def expect_slices(name: str, input: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """The index as a vector. Raises RuntimeError unless source has one slice of input along the
    axis for each of its elements."""
    index = _line(name, index)
    own, given = list(input._type.shape), list(source._type.shape)
    if len(own) != len(given) or own[:axis] + own[axis + 1 :] != given[:axis] + given[axis + 1 :]:
        raise RuntimeError(
            f"{name}(): source tensor shape must match self tensor shape, excluding dim {axis}; "
            f"got self {input._type} and source {source._type}"
        )
    count = given[axis] if given else 1
    if index._type.shape[0] != count:
        raise RuntimeError(
            f"{name}(): Number of indices ({index.numel()}) should be equal to source.size({axis}) "
            f"({count})"
        )
    return index


def _no_positions(index: Tensor, input: Tensor) -> bool:
    """Whether the index is empty, and so may have any rank."""
    return index.ndim != input.ndim and any(d == 0 for d in index._type.shape)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """out[i][j][k] = input[i][index[i][j][k]][k] for dim 1. Raises IndexError out of range."""
    axis = one_axis("gather", input.ndim, dim)
    index = as_index("gather", index)
    if _no_positions(index, input):
        return separate(input.reshape(-1)[:0].reshape(tuple(index._type.shape)), input)
    if not input.ndim or not index.ndim and input.ndim == 1:
        source, flat = input.reshape(-1), index.reshape(-1)
        picked = apply(OPS["gather"], (source, flat), {"axis": 0})
        return picked.reshape(tuple(index._type.shape))
    return apply(OPS["gather"], (input, index), {"axis": axis})


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather with shapes broadcast, positions below 0 along dim counted from the end; flattened
    when dim is None, with positions from 0 on.

    Raises RuntimeError for positions out of range and indices of another dtype or rank.
    """
    if indices.dtype is not dtypes.int64:
        raise RuntimeError(
            f"torch.take_along_dim(): dtype of indices should be Long but got {indices._type}"
        )
    if dim is None:
        flat = input.reshape(-1)
        size = flat._type.shape[0]
        error = RuntimeError
        where = expect_positions("take_along_dim", indices.reshape(-1), 0, size, error)
        return gather(flat, 0, where)
    if input.ndim != indices.ndim:
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions; "
            f"got {input._type} and {indices._type}"
        )
    if not input.ndim:
        raise IndexError(
            f"Dimension specified as {dim} but tensor has no dimensions (take_along_dim)"
        )
    axis = one_axis("take_along_dim", input.ndim, dim)
    a, b = list(input._type.shape), list(indices._type.shape)
    for k in range(len(a)):
        if k != axis:
            size = b[k] if a[k] != b[k] and a[k] == 1 else a[k]
            a[k] = b[k] = size
    size = a[axis]
    name = "take_along_dim"
    indices = expect_positions(name, indices, axis, size, RuntimeError, -size)
    counted = indices.remainder(input.shape[axis])
    return gather(input.expand(a), axis, counted.expand(b))


@naming("TakeBackward0")
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened input, by int64 positions."""
    if index.dtype is not dtypes.int64:
        raise RuntimeError(f"take(): Expected a long tensor for index, but got {index._type}")
    expect_one_device("take", input, index)
    return input.reshape(-1)[index]


def _source(input: Tensor, index: Tensor, src: Any) -> Tensor:
    """src of scatter: a tensor cropped to the index's shape, or a number filled to it."""
    if not isinstance(src, Tensor):
        return stored(src, input.dtype).expand(tuple(index._type.shape))
    if src.dtype is not input.dtype:
        raise RuntimeError(
            "scatter(): Expected self.dtype to be equal to src.dtype; got "
            f"{input._type} and {src._type}"
        )
    if max(src.ndim, 1) != max(index.ndim, 1):
        raise RuntimeError(
            "[scatter] Index tensor must have the same number of dimensions as src tensor; got "
            f"{index._type} and {src._type}"
        )
    for k in range(min(src.ndim, index.ndim)):
        if src._type.shape[k] != index._type.shape[k]:
            if src._type.shape[k] < index._type.shape[k]:
                raise RuntimeError(
                    f"[scatter] Expected index {list(index.shape)} to be no larger than src "
                    f"{list(src.shape)} in every dimension"
                )
            src = src.narrow(k, 0, index._type.shape[k])
    return src


def scatter_by(name: str, record: str, input: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    """A scatter record applied; of bools, sums are "or" and products "and"."""
    if input.dtype is dtypes.bool_ and record != "scatter":
        record = {"scatter_add": "scatter_amax", "scatter_prod": "scatter_amin"}.get(record, record)
        expect_dtype(name, input.dtype, src=src if isinstance(src, Tensor) else None)
        wide = cast(src, dtypes.uint8) if isinstance(src, Tensor) else int(bool(src))
        out = scatter_by(name, record, cast(input, dtypes.uint8), dim, index, wide)
        return cast(out, dtypes.bool_)
    axis = one_axis(name, input.ndim, dim)
    index = as_index(name, index)
    if _no_positions(index, input):
        return input.clone()
    if not input.ndim or not index.ndim and input.ndim == 1:
        parts = (input.reshape(-1), index.reshape(-1), _source(input, index, src).reshape(-1))
        return apply(OPS[record], parts, {"axis": 0}).reshape(tuple(input._type.shape))
    operands = (input, index, _source(input, index, src))
    return apply(OPS[record], operands, {"axis": axis})


def scatter(
    input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None,
    reduce: str | None = None,
) -> Tensor:  # fmt: skip
    """input with src written where gather would read; the last of several writes wins.

    reduce "add" or "multiply" combines instead.
    """
    src = value if src is None else src
    if reduce == "add":
        return scatter_add(input, dim, index, _source(input, index, src))
    if reduce == "multiply":
        return scatter_by("scatter", "scatter_prod", input, dim, index, src)
    if reduce is not None:
        raise RuntimeError("reduce argument must be either add or multiply.")
    return scatter_by("scatter", "scatter", input, dim, index, src)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """input with src added where gather would read, in the order of src's elements."""
    return scatter_by("scatter_add", "scatter_add", input, dim, index, src)


@naming("IndexSelectBackward0")
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input along dim that the 1-d index names."""
    axis = one_axis("index_select", input.ndim, dim)
    if index.ndim > 1:
        raise IndexError(f"index_select(): Index is supposed to be a vector; got {index._type}")
    index = as_index("index_select", index)
    size = input._type.shape[axis] if input.ndim else 1
    index = expect_positions("index_select", index.reshape(-1), axis, size)
    if not input.ndim:
        return apply(OPS["index"], (input.reshape(1), index), {"dims": (0,)}).reshape(())
    return apply(OPS["index"], (input, index), {"dims": (axis,)})


def _put_along(
    name: str, input: Tensor, dim: int, index: Tensor, values: Tensor, accumulate: bool,
    from_end: bool = False,
) -> Tensor:  # fmt: skip
    if accumulate and input.dtype is dtypes.bool_:  # the sum of bools is "or"
        wide = cast(input, dtypes.int64), cast(values, dtypes.int64)
        return cast(_put_along(name, wide[0], dim, index, wide[1], True), dtypes.bool_)
    axis = one_axis(name, input.ndim, dim)
    size = input._type.shape[axis] if input.ndim else 1
    low = -size if from_end else 0
    index = expect_positions(name, as_index(name, index).reshape(-1), axis, size, low=low)
    attrs = {"dims": (axis,), "accumulate": accumulate}
    if not input.ndim:
        parts = (input.reshape(1), values.reshape(1).expand(index._type.shape), index)
        return apply(OPS["index_put"], parts, attrs).reshape(())
    return apply(OPS["index_put"], (input, values, index), attrs)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    """input with source's slices added at the indices along dim."""
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"index_add_(): self ({input._type}) and source ({source._type}) must have the same "
            "scalar type"
        )
    axis = one_axis("index_add_", input.ndim, dim)
    index = expect_slices("index_add_", input, axis, index, source)
    values = source if alpha == 1 else source * alpha
    return called(_put_along("index_add", input, dim, index, values, True), "IndexAddBackward0")


@widest
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """input with source's slices written at the indices along dim."""
    if source.dtype is not input.dtype:
        raise RuntimeError(
            f"index_copy_(): self ({input._type}) and source ({source._type}) expected to have "
            "the same dtype"
        )
    if index.dtype is not dtypes.int64:
        raise RuntimeError(
            f"index_copy_(): Expected a long tensor for index, but got {index._type}; convert it "
            "with .long()"
        )
    index = _line("index_copy_", index)
    if not source.ndim or not input.ndim:
        if index.numel() != 1:
            raise IndexError(
                f"index_copy_(): When source is scalar, index should have one element (got "
                f"{index._type}); make source a slice for each index"
            )
        source = source.expand(tuple([1] * input.ndim)) if input.ndim else source
    elif source.ndim != input.ndim and input.ndim:
        raise IndexError(
            f"index_copy_(): expected source of input's rank; got {source._type} for {input._type}"
        )
    return called(_put_along("index_copy", input, dim, index, source, False), "IndexCopyBackward0")


@keeping_layout
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """input with a number written at the indices along dim; those below 0 count from the end."""
    axis = one_axis("index_fill", input.ndim, dim)
    if index.dtype is not dtypes.int64:
        raise IndexError(
            f"index_fill_(): Expected dtype int64 for index; got {index._type}; convert it with "
            ".long()"
        )
    index = _line("index_fill_", index, RuntimeError)
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s); got {value._type}"
        )
    complex_value = value.dtype.is_complex if isinstance(value, Tensor) else type(value) is complex
    if complex_value and not input.dtype.is_complex:
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported; got "
            f"{value} for {input._type}"
        )
    shape = list(input._type.shape)
    if shape:
        shape[axis] = index.numel()
    fill = cast(value, input.dtype) if isinstance(value, Tensor) else stored(value, input.dtype)
    return called(
        _put_along("index_fill", input, dim, index, fill.expand(tuple(shape)), False, True),
        "IndexFillBackward0",
    )


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero, (n, ndim) int64. Under jit their number is a
    value that Python looks at."""
    if state.recorder is not None and state.lazy is None and not state.levels:
        columns = coordinates(positions_of(input != 0), input._type.shape or (1,))
        if as_tuple:
            return tuple(columns)
        if not input.ndim:
            return columns[0].new_zeros((columns[0]._type.shape[0], 0))
        return apply(OPS["concatenate"], tuple([k.unsqueeze(1) for k in columns]), {"axis": 1})
    array, where = input._array("nonzero"), input._type.device
    flat = np.flatnonzero(array if array.dtype == np.bool_ else array != 0).astype(
        np.int64, copy=False
    )
    if as_tuple:
        parts = [np.empty_like(flat) for _ in array.shape] or [flat]
        _unravel(flat, array.shape, parts)
        return tuple(wrap_array(k).to(where) for k in parts)
    found = np.empty((len(flat), array.ndim), np.int64)
    _unravel(flat, array.shape, list(found.T))
    return wrap_array(found).to(where)


def _unravel(flat: np.ndarray, shape: Sequence[int], columns: Sequence[np.ndarray]) -> None:
    """Writes the coordinates of row-major positions. (A divmod by a number is some times as fast as
    np.nonzero's walk.)"""
    for n, column in zip(reversed(shape[1:]), reversed(columns), strict=False):
        flat, _ = np.divmod(flat, n, out=(np.empty_like(flat), column))
    if shape:
        columns[0][...] = flat


def positions_of(mask: Tensor) -> Tensor:
    """Where a bool tensor, flattened, is true; ascending. Python looks at how many there are."""
    ends = mask.reshape(-1).cumsum(0)
    count = int(ends[-1]) if ends._type.shape[0] else 0
    return searchsorted(ends, positions(count, ends), right=True)


def coordinates(flat: Tensor, sizes: Sequence[Any]) -> list[Tensor]:
    """The coordinates, in a tensor of this shape, of positions in the flattened tensor."""
    return [flat // max(prod(sizes[k + 1 :]), 1) % max(d, 1) for k, d in enumerate(sizes)]


def argwhere(input: Tensor) -> Tensor:
    """nonzero as a matrix."""
    return nonzero(input)


@naming("MaskedSelectBackward0")
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, in a vector. Under jit their number is a value that Python
    looks at."""
    if mask.dtype is not dtypes.bool_:
        raise RuntimeError(
            f"masked_select: expected BoolTensor for mask; got {mask._type}; compare it, e.g. != 0"
        )
    expect_one_device("masked_select", input, mask)
    shape = (input[None] if not input.ndim else input, mask)
    wide, mask = shape[0], mask if mask.ndim else mask.reshape(1)
    from_shapes = np.broadcast_shapes(tuple(wide.shape), tuple(mask.shape))
    return wide.expand(from_shapes)[mask.expand(from_shapes)]


@row_major
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 with a new last dim: 1 at the class, else 0."""
    if tensor.dtype is not dtypes.int64:
        raise RuntimeError(
            f"one_hot is only applicable to index tensor of type LongTensor; got {tensor._type}"
        )
    if num_classes == -1:
        if tensor.numel() == 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        text = "[one_hot] Class values must be non-negative; got {value}"
        tensor = expect_range(tensor, 0, None, RuntimeError, text)
        num_classes = int(tensor.max()) + 1
    else:
        text = "[one_hot] Class values must be non-negative and smaller than num_classes"
        text = f"{text}; got {{value}} with num_classes {num_classes}"
        tensor = expect_range(tensor, 0, num_classes - 1, RuntimeError, text)
    hit = elementwise(OPS["eq"], tensor.unsqueeze(-1), positions(num_classes, tensor))
    return cast(hit, dtypes.int64)


@row_major
def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where to insert values into a sorted last dim, to keep it sorted. `sorter` (int64, of
    sorted_sequence's shape) is the order in which an unsorted one is read."""
    if sorter is not None:
        if tuple(sorter.shape) != tuple(sorted_sequence.shape) or sorter.dtype is not dtypes.int64:
            raise RuntimeError(
                "torch.searchsorted(): boundary and sorter must have the same size, and sorter "
                f"must be int64; got {sorted_sequence._type} and {sorter._type}"
            )
        sorted_sequence = gather(sorted_sequence, -1, sorter)
    if side not in (None, "left", "right"):
        raise RuntimeError(f"searchsorted(): side can only be 'left' or 'right', but got {side}")
    if right and side == "left":
        raise RuntimeError("searchsorted(): side and right can't be set to opposites, got left")
    if not isinstance(input, Tensor):
        input = constant(input, result_type(sorted_sequence, input))
    if sorted_sequence.ndim == 0:
        raise RuntimeError("searchsorted(): boundaries tensor should have positive dimension")
    same = tuple(sorted_sequence._type.shape[:-1]) == tuple(input._type.shape[:-1])
    if sorted_sequence.ndim > 1 and not (same and input.ndim == sorted_sequence.ndim):
        raise RuntimeError(
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions "
            f"of boundaries tensor and input value tensor must match; got {sorted_sequence._type} "
            f"and {input._type}"
        )
    right = right or side == "right"
    size = sorted_sequence._type.shape[-1]
    ordered, values = sorted_sequence.detach(), input.detach()
    if isinstance(size, Sym) and loop_nodes.recording.records((ordered, values)):
        count = _search(ordered, values, right)
    else:
        size = operator.index(size)
        count = (_count_before if size <= _FEW else _bisect)(ordered, values, right, size)
    return cast(count, dtypes.int32) if out_int32 else count


_FEW = 16
"""Up to so many sorted elements, values are compared with each of them."""


@composite
def _count_before(ordered: Tensor, values: Tensor, right: bool, size: int) -> Tensor:
    """The number of elements that come before each value: not those from it on (NaN is last)."""
    wide = ordered if ordered.ndim == 1 else ordered.unsqueeze(-2)
    after = elementwise(OPS["gt" if right else "ge"], wide, values.unsqueeze(-1))
    return elementwise(OPS["logical_not"], after).sum(-1)


@composite
def _bisect(ordered: Tensor, values: Tensor, right: bool, size: int) -> Tensor:
    """The same by binary search: one gather for each bit of the size."""
    first = constant(0, dtypes.int64).expand(tuple(values._type.shape))
    while size:
        first = _halved(ordered, values, right, first, (size + 1) // 2)
        size //= 2
    return first


def _halved(ordered: Tensor, values: Tensor, right: bool, first: Tensor, half: Any) -> Tensor:
    """A step of it: what is sought is among `half` elements from `first` on, or as many more."""
    at = first + (half - 1)
    if ordered.ndim == 1:
        found = ordered.gather(0, at.reshape(-1)).reshape(tuple(at._type.shape))
    else:
        found = ordered.gather(-1, at)
    after = elementwise(OPS["gt" if right else "ge"], found, values)
    return apply(OPS["where"], (after, first, first + half), {})


def _search(ordered: Tensor, values: Tensor, right: bool) -> Tensor:
    """The same for a size that may differ from call to call: a loop."""
    size = ordered._type.shape[-1]
    edge = (0,) * ordered.ndim
    attrs = {"low": edge, "high": (*edge[1:], 1), "interior": edge, "value": 0}
    padded = apply(OPS["pad"], (ordered,), attrs)  # the size may be 0: there is one to read

    def goes_on(first: Tensor, left: Tensor) -> Tensor:
        return left > 0

    def step(first: Tensor, left: Tensor) -> list[Tensor]:
        return [_halved(padded, values, right, first, (left + 1) // 2), left // 2]

    first = full(values._type.shape, 0, dtypes.int64, values._type.device)
    left = full((), 0, dtypes.int64, values._type.device) + size
    found: Tensor = loop_nodes.recording.recorded_loop(goes_on, step, [first, left], None)[0]
    return found


def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the bucket that each value falls in. boundaries: sorted, of one dim."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got {boundaries._type}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor of input's shape and dtype, full of the value."""
    always = constant(True, dtypes.bool_)
    return apply(OPS["where"], (always, fill_values(input, value), input), {})


def fill_values(input: Tensor, value: Any) -> Tensor:
    """One value in input's shape and dtype (what fill_ assigns)."""
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{value.ndim} dimensions."
            )
        return cast(value, input.dtype).expand(tuple(input._type.shape))
    return stored(value, input.dtype).expand(tuple(input._type.shape))


def combine_indices(index: Sequence[Any]) -> tuple[Any, ...]:
    """The index of index_put_(indices, ...): a tuple as __getitem__ takes it."""
    return tuple(slice(None) if i is None else i for i in index)
