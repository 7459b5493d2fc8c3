"""Indexing with [], to read and to write: ints, slices, None, Ellipsis, bool masks, int tensors.

Owns the translation to ops. Ints, slices, None and Ellipsis give a view; a mask or an index tensor
gives a copy, by the `index` record. As in PyTorch (and unlike NumPy) an int beside an index tensor
selects first, so it does not count among the advanced indices.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.creation import placed, tensor
from jitgrad.dispatch import apply, assign
from jitgrad.functions.select import nonzero
from jitgrad.functions.shape import broadcast_shapes_of
from jitgrad.promotion import cast, stored
from jitgrad.runtime import dtypes
from jitgrad.sizes import infer
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor


def _is_sequence(part: Any) -> bool:
    return isinstance(part, (list, tuple, np.ndarray, range))


def _as_tuple(index: Any) -> tuple[Any, ...]:
    """The parts of an index. In PyTorch's eyes (and old NumPy's) a list is a tuple, too, if it is
    short and anything in it is a tensor, a sequence, a slice, None or Ellipsis: `x[[i, j]]` is
    `x[i, j]`, and `x[[0, 1]]` takes two rows."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, list) and len(index) < _LONG_LIST and any(map(_is_no_scalar, index)):
        return tuple(index)
    return (index,)


_LONG_LIST = 32  # a list of so many is never a tuple


def _is_no_scalar(part: Any) -> bool:
    if part is None or part is Ellipsis:
        return True
    return isinstance(part, (slice, Tensor)) or _is_sequence(part)


def _parts(x: Tensor, index: Any) -> list[Any]:
    """The index, one entry per dim (and None for new dims): Ellipsis filled in, sequences made
    tensors, integer scalars made ints."""
    parts: list[Any] = []
    used = 0
    for part in _as_tuple(index):
        if _is_sequence(part):
            part = _of_sequence(part)
        elif isinstance(part, np.bool_):
            part = bool(part)
        if isinstance(part, bool):
            part = tensor(part)
        if isinstance(part, Tensor) and part.dtype in _MASKS:
            used += part.ndim
        elif isinstance(part, Tensor) and not _is_index(part):
            raise IndexError(
                f"tensors used as indices must be long, int, byte or bool tensors; got {part._type}"
            )
        elif part is not None and part is not Ellipsis:
            if not isinstance(part, (slice, Tensor, int, Sym)):
                if isinstance(part, (str, bytes)):
                    raise TypeError(
                        f"a tensor is indexed by integers, slices and tensors, not by text; "
                        f"got {part!r}"
                    )
                try:
                    part = operator.index(part)
                except TypeError:
                    raise IndexError(
                        "only integers, slices (`:`), ellipsis (`...`), None and long or byte "
                        f"Variables are valid indices (got {type(part).__name__})"
                    ) from None
            used += 1
        parts.append(part)
    if used > x.ndim:
        raise IndexError(
            f"too many indices for tensor of dimension {x.ndim}; got {used} for {x._type}"
        )
    dots = [k for k, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    fill = [slice(None)] * (x.ndim - used)
    if dots:
        parts[dots[0] : dots[0] + 1] = fill
    else:
        parts += fill
    return parts


_MASKS = (dtypes.bool_, dtypes.uint8)


def _is_index(x: Tensor) -> bool:
    """Whether a tensor that is no mask may stand in an index: one of integers, if it has dims of
    those that PyTorch takes."""
    return x.dtype in (dtypes.int64, dtypes.int32) or (x.dtype.is_integer and not x.ndim)


def _of_sequence(part: Any) -> Tensor:
    """A list or array of indices as a tensor: bools, or int64 (of floats the whole part)."""
    if isinstance(part, list) and not part:
        return tensor([], dtype=dtypes.int64)
    made = tensor(part)
    if made.dtype.is_complex and not isinstance(part, np.ndarray):
        raise TypeError("'complex' object cannot be interpreted as an integer")
    return made if made.dtype in _MASKS else cast(made, dtypes.int64)


def _bound(value: Any, size: Any, default: Any) -> Any:
    """A slice's bound as an offset in [0, size]."""
    if value is None:
        return default
    if not isinstance(value, Sym):
        value = operator.index(value)
    if value < 0:
        value = value + size
        return 0 if value < 0 else value
    return size if value > size else value


_NAMES = {type(None): "UnsqueezeBackward0", slice: "SliceBackward0"}
"""What the tape calls the node of a view, by the type of its last part."""


def _view(x: Tensor, parts: Sequence[Any]) -> tuple[Tensor, list[Any]]:
    """Applies ints, slices and None. Returns the view, and for each of its dims the index tensor
    that is still to be applied there, or None."""
    starts: list[Any] = []
    stops: list[Any] = []
    steps: list[int] = []
    shape: list[Any] = []
    advanced: list[Any] = []
    sliced = reshaped = False
    k = 0
    sizes = x._type.shape
    for part in parts:
        if part is None:
            shape.append(1)
            advanced.append(None)
            reshaped = True
            continue
        if isinstance(part, Tensor):
            count = part.ndim if part.dtype in _MASKS else 1
            if count == 0:  # a 0-d mask indexes a new dim of size 1
                shape.append(1)
                advanced.append(part.reshape(1))
                reshaped = True
                continue
            for j in range(count):
                starts.append(0)
                stops.append(sizes[k])
                steps.append(1)
                shape.append(sizes[k])
                advanced.append(part if j == 0 else "of the mask")
                k += 1
            continue
        size = sizes[k]
        if isinstance(part, slice):
            step = 1 if part.step is None else operator.index(part.step)
            if step <= 0:
                raise ValueError("step must be greater than zero")
            start = _bound(part.start, size, 0)
            stop = _bound(part.stop, size, size)
            if part.stop is not None and stop < start:
                stop = start
            if part.stop is None and not isinstance(start, Sym) and isinstance(size, int):
                start = min(start, size)
            length = (stop - start + step - 1) // step
            sliced = sliced or part.start is not None or part.stop is not None or step != 1
            starts.append(start)
            stops.append(stop)
            steps.append(step)
            shape.append(length)
            advanced.append(None)
        else:
            if not (-size <= part and part < size):
                raise IndexError(
                    f"index {part} is out of bounds for dimension {k} with size {size}"
                )
            if part < 0:
                part = part + size
            starts.append(part)
            stops.append(part + 1)
            steps.append(1)
            sliced = reshaped = True
        k += 1
    if sliced:
        attrs = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}
        x = apply(OPS["slice"], (x,), attrs)
    if reshaped or not sliced:
        x = apply(OPS["reshape"], (x,), {"shape": tuple(shape)})
        if x._node is not None:
            told = [p for p in parts if p != slice(None)] if reshaped else []
            called(x, _NAMES.get(type(told[-1]) if told else slice, "SelectBackward0"))
    return x, advanced


def _advanced(x: Tensor, advanced: Sequence[Any]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Index tensors as the records want them: int64, of one shape; and the dims they index."""
    dims: list[int] = []
    tensors: list[Tensor] = []
    k = 0
    while k < len(advanced):
        part = advanced[k]
        if not isinstance(part, Tensor):
            k += 1
            continue
        if part.dtype in _MASKS:
            _check_mask(x, part, k)
            for j, where in enumerate(nonzero(part, as_tuple=True)):
                dims.append(k + j)
                tensors.append(where)
            k += part.ndim
        else:
            dims.append(k)
            tensors.append(cast(part, dtypes.int64))
            k += 1
    try:
        shape = broadcast_shapes_of(*(i._type.shape for i in tensors))
    except RuntimeError:
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            + ", ".join(str(list(i.shape)) for i in tensors)
        ) from None
    same = [i if tuple(i._type.shape) == tuple(shape) else i.expand(shape) for i in tensors]
    return tuple(dims), tuple([_beside(x, i) for i in same])


def _beside(x: Tensor, index: Tensor) -> Tensor:
    """An index or a mask where x is: those of tensors on a GPU may be on the CPU."""
    if index._type.device == x._type.device or index._type.device != "cpu":
        return index
    return placed(index, x._type.device)


def _check_mask(x: Tensor, mask: Tensor, k: int) -> None:
    for j, size in enumerate(mask._type.shape):
        if size != x._type.shape[k + j]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {j} does not match the shape "
                f"of the indexed tensor {list(x.shape)} at index {k + j}"
            )


def _expect_bools(mask: Tensor) -> None:
    if mask.dtype is dtypes.uint8:
        raise RuntimeError(
            f"masked_fill_ only supports boolean masks, but got a mask of {mask._type}; convert "
            "it with .bool()"
        )


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]."""
    if type(index) is int:  # the first of the most common kinds
        return x.select(0, index) if x._type.shape else _no_dims()
    view, advanced = _view(x, _parts(x, index))
    if any(isinstance(a, Tensor) for a in advanced):
        dims, tensors = _advanced(view, advanced)
        return apply(OPS["index"], (view, *tensors), {"dims": dims})
    return view


def _no_dims() -> Tensor:
    raise IndexError(
        "invalid index of a 0-dim tensor. Use `tensor.item()` to convert a 0-dim tensor to a number"
    )


def _value(x: Tensor, value: Any) -> Tensor:
    """The value of an assignment, of x's dtype."""
    if isinstance(value, Tensor):
        return cast(value, x.dtype)
    if _is_sequence(value) or isinstance(value, np.generic):
        return _beside(x, cast(tensor(np.asarray(value)), x.dtype))
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise ValueError(f"Overflow when unpacking long long; got {value}")
    return stored(value, x.dtype, halves=False)


def _fit(value: Tensor, shape: tuple[Any, ...]) -> Tensor:
    """value broadcast to the shape of what is assigned to; leading dims of size 1 may go."""
    have = tuple(value._type.shape)
    if have == shape:
        return value
    extra = len(have) - len(shape)
    if extra > 0 and all(not isinstance(d, Sym) and d == 1 for d in have[:extra]):
        value = value.reshape(have[extra:])
    try:
        fits = tuple(broadcast_shapes_of(tuple(value._type.shape), shape)) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(have)} cannot be broadcast to indexing "
            f"result of shape {list(shape)}"
        )
    return value.expand(shape)


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value, in place."""
    value = _value(x, value)
    view, advanced = _view(x, _parts(x, index))
    if not any(isinstance(a, Tensor) for a in advanced):
        assign(view, _fit(value, tuple(view._type.shape)))
        return
    only = [a for a in advanced if isinstance(a, Tensor)]
    first = advanced.index(only[0])
    if len(only) == 1 and only[0].dtype in _MASKS and value.numel() == 1:
        mask = only[0]
        _check_mask(view, mask, first)
        _expect_bools(mask)
        mask = mask.reshape((*mask._type.shape, *(1,) * (view.ndim - first - mask.ndim)))
        mask = _beside(view, mask)
        assign(view, apply(OPS["where"], (mask, value.reshape(()), view), {}))
        return
    put(view, advanced, value, False)


def put(view: Tensor, advanced: Sequence[Any], value: Tensor, accumulate: bool) -> None:
    """view[index tensors] = value, or += value with every repetition counted; in place."""
    dims, tensors = _advanced(view, advanced)
    target = infer(OPS["index"], view._type, *(i._type for i in tensors), dims=dims)
    assert not isinstance(target, tuple)
    if not value._type.shape:
        value = _beside(view, value)
    value = _fit(value, tuple(target.shape))
    attrs = {"dims": dims, "accumulate": accumulate}
    assign(view, apply(OPS["index_put"], (view, value, *tensors), attrs))


def index_put_(
    input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    """input[indices] = values (or += values) in place; returns input."""
    if not isinstance(values, Tensor) or values.dtype is not input.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {input.dtype} for "
            f"the destination and {getattr(values, 'dtype', type(values))} for the source."
        )
    if accumulate and input.dtype is dtypes.bool_:  # the sum of bools is "or"
        counts = index_put(cast(input, dtypes.int64), indices, cast(values, dtypes.int64), True)
        assign(input, cast(counts, dtypes.bool_))
        return input
    index = tuple(slice(None) if i is None else i for i in indices)
    view, advanced = _view(input, _parts(input, index))
    for mask in advanced:
        if isinstance(mask, Tensor) and values.numel() == 1 and not accumulate:
            _expect_bools(mask)
    put(view, advanced, values, accumulate)
    return input


def index_put(
    input: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy of input with values at the indices (or added there)."""
    return index_put_(input.clone(), indices, values, accumulate)
