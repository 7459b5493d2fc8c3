"""Strides of tensors that have no data: as eager code would have them.

Owns `strides_of`. A root made without data is dense; a view's strides follow from its chain of view
ops, each run once for each layout on an array of these strides that stands on no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgrad.runtime.errors import InternalError

if TYPE_CHECKING:
    from jitgrad.tensor import Tensor

Layout = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shape, strides in bytes, and NumPy's dtype."""

_known: dict[Any, Layout] = {}
_MAX_KNOWN = 8192


def strides_of(x: Tensor) -> tuple[int, ...]:
    """The strides of a tensor, in bytes."""
    if x._data is not None:
        return tuple(x._data.strides)
    return layout_of(x)[1]


def layout_of(x: Tensor) -> Layout:
    """Shape, strides and dtype of a tensor without data."""
    root = x._storage.array
    if root is not None:
        layout: Layout = (tuple(root.shape), tuple(root.strides), root.dtype)
    else:
        type_ = x._storage.type
        layout = dense(tuple(map(int, type_.shape)), type_.dtype.np)
    for op, attrs in x._chain:
        layout = _through(op, attrs, layout)
    return layout


def dense(shape: tuple[int, ...], dtype: Any) -> Layout:
    """The layout of a root: row-major, without gaps."""
    strides, step = [], np.dtype(dtype).itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return shape, tuple(reversed(strides)), dtype


def is_dense(x: Tensor) -> bool:
    """Whether a tensor's elements lie in row-major order, without gaps."""
    if x._data is not None:
        return bool(x._data.flags.c_contiguous)
    if not x._chain and x._storage.array is None:
        return True
    shape, strides, dtype = layout_of(x)
    if 0 in shape:
        return True
    expected = dense(shape, dtype)[1]
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, expected, strict=True))


def ghost(layout: Layout) -> np.ndarray[Any, Any]:
    """An array of this layout that stands on no memory: its elements must not be touched."""
    shape, strides, dtype = layout
    return as_strided(np.zeros((), dtype), shape, strides)


def can_view(op: Any, attrs: dict[str, Any], layout: Layout) -> bool:
    """Whether a view op gives a view of memory that lies so. (Reshape may need a copy.)"""
    asks = getattr(op, "can_view", None)
    return asks is None or bool(asks(layout[0], layout[1], attrs["shape"]))


def _through(op: Any, attrs: dict[str, Any], layout: Layout) -> Layout:
    key: Any = (op, layout, tuple(attrs.items()))
    try:
        found = _known.get(key)
    except TypeError:  # an attribute that cannot be hashed
        key, found = None, None
    if found is None:
        shape, strides, dtype = layout
        if not can_view(op, attrs, layout):
            raise InternalError(f"{op.name} of strides {strides} is no view of {shape}: {attrs}")
        array = op.reference(ghost(layout), **attrs)
        found = (tuple(array.shape), tuple(array.strides), array.dtype)
        if key is not None:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            _known[key] = found
    return found
