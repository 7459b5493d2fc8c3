"""Batches of samples: default_collate and default_convert, and the table that extends them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from jitgrad.creation import as_tensor, tensor
from jitgrad.functions import stack
from jitgrad.runtime import dtypes
from jitgrad.state import state
from jitgrad.tensor import Tensor, wrap_array

_TEXT = "OSU"  # kinds of NumPy dtypes that are no numbers


def default_convert(data: Any) -> Any:
    """A sample whose NumPy arrays and scalars are tensors, in nested sequences and mappings; the
    rest as it is. What a loader without batches applies."""
    if isinstance(data, (np.ndarray, np.generic)) and not isinstance(data, (str, bytes)):
        return data if np.asarray(data).dtype.kind in _TEXT else as_tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: default_convert(data[key]) for key in data})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(x) for x in data))
    if isinstance(data, tuple):
        return [default_convert(x) for x in data]
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like_sequence(data, [default_convert(x) for x in data])
    return data


def _like_mapping(old: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """The items as a mapping of old's type (a defaultdict stays one), or as a dict."""
    try:
        if isinstance(old, MutableMapping):
            clone = copy.copy(old)
            clone.update(items)
            return clone
        return type(old)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _like_sequence(old: Sequence[Any], items: list[Any]) -> Any:
    """The items as a sequence of old's type, or as a list."""
    try:
        if isinstance(old, MutableSequence):
            clone = copy.copy(old)
            for i, item in enumerate(items):
                clone[i] = item
            return clone
        return type(old)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def collate(batch: Any, *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    """Joins samples by a table from type to function(batch, collate_fn_map=...): the sample's own
    type first, then the first entry that it is an instance of. Mappings, named tuples and
    sequences are joined element by element.

    Raises TypeError for other types, RuntimeError for lengths that differ, KeyError for mappings
    of other keys.
    """
    first = batch[0]
    table = collate_fn_map or {}
    if type(first) in table:
        return table[type(first)](batch, collate_fn_map=collate_fn_map)
    for cls, function in table.items():
        if isinstance(first, cls):
            return function(batch, collate_fn_map=collate_fn_map)

    def joined(samples: Any) -> Any:
        return collate(samples, collate_fn_map=collate_fn_map)

    if isinstance(first, Mapping):
        items = {key: joined([_value(x, key, first) for x in batch]) for key in first}
        return _like_mapping(first, items)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(x) for x in zip(*batch, strict=True)))
    if isinstance(first, Sequence):
        if any(len(x) != len(first) for x in batch):
            raise RuntimeError(
                "[default_collate] each element in list of batch should be of equal size; got "
                f"lengths {sorted({len(x) for x in batch})}; pass a collate_fn that pads"
            )
        elements = [joined(x) for x in zip(*batch, strict=True)]
        return elements if isinstance(first, tuple) else _like_sequence(first, elements)
    raise _unknown(type(first))


def _unknown(what: Any) -> TypeError:
    return TypeError(
        "[default_collate] default_collate: batch must contain tensors, numpy arrays, numbers, "
        f"dicts or lists; found {what}; pass a collate_fn"
    )


def _value(sample: Any, key: Any, first: Mapping[Any, Any]) -> Any:
    if key not in sample:
        raise KeyError(
            f"[default_collate] expected samples with the keys {list(first)}; one has no {key!r}"
        )
    return sample[key]


def collate_tensor_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Stacks tensors of one shape along a new first dim."""
    kind = batch[0]._type
    # One copy each, without an op for every sample.
    if are_plain(batch) and all(x._type is kind for x in batch):
        first = batch[0]._data
        out: np.ndarray[Any, Any] = np.empty((len(batch), *first.shape), first.dtype)
        for i, x in enumerate(batch):
            out[i] = x._data
        return wrap_array(out)
    return stack(list(batch), 0)


def are_plain(tensors: Any) -> bool:
    """Whether no tape, recorder or level follows these tensors, which are on the CPU: their arrays
    may be used."""
    if state.recorder is not None or state.levels or state.abstract:
        return False
    return all(
        type(x) is Tensor
        and x._data is not None
        and x._type.device == "cpu"
        and not x.requires_grad
        for x in tensors
    )


def collate_numpy_array_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stacks arrays of numbers. Raises TypeError for strings and objects."""
    if batch[0].dtype.kind in _TEXT:
        raise _unknown(batch[0].dtype)
    return collate([as_tensor(x) for x in batch], collate_fn_map=collate_fn_map)


def collate_numpy_scalar_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """NumPy's numbers as a vector of their dtype."""
    return as_tensor(np.array(batch))


def collate_float_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Python's floats as a float64 vector."""
    return tensor([float(x) for x in batch], dtype=dtypes.float64)


def collate_int_fn(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
    """Python's ints as an int64 vector, bools as a bool one."""
    return tensor(list(batch))


def collate_str_fn(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Strings stay as they are."""
    return batch


default_collate_fn_map: dict[Any, Callable[..., Any]] = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}
"""How default_collate joins what is no container; users may add to it."""


def default_collate(batch: Any) -> Any:
    """Joins samples: tensors and arrays of one shape along a new first dim, numbers into a tensor
    (Python's ints int64, floats float64); tuples (as lists), sequences, named tuples and mappings
    element by element; strings stay as they are. Errors as `collate`.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)
