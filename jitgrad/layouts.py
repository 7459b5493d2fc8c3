"""Layouts: how the elements of results lie in memory, as PyTorch's do.

Owns `laid`, the layout of results on new memory: row-major, but of records that keep their
operands' (`Op.keeps_layout`), and `strides_of`, the strides of tensors that have no data, as eager
code would have them. A root made without data lies as `set_order` noted; a view's strides follow
from its chain of view ops, each run once for each layout on an array that stands on no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgrad.compiler.ops.movement import inverse_axes
from jitgrad.compiler.symbolic import Sym, hint
from jitgrad.runtime.errors import InternalError
from jitgrad.storage import LevelStorage

if TYPE_CHECKING:
    from jitgrad.storage import Storage
    from jitgrad.tensor import Tensor

Layout = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shape, strides in bytes, and NumPy's dtype."""

_known: dict[Any, Layout] = {}
_MAX_KNOWN = 8192


def laid(op: Any, result: Any, arrays: Sequence[Any]) -> Any:
    """A record's result as it is to lie in memory; `arrays` are its operands. A copy, where the
    reference or NumPy laid it otherwise."""
    if getattr(result, "ndim", 0) < 2 or op.keeps_layout is None:
        return result
    dense = result.flags.c_contiguous
    if op.keeps_layout:
        for x in arrays:
            if not x.flags.c_contiguous:
                order = order_of(result.shape, arrays)
                return result if order is None and dense else in_order(result, order)
    return result if dense else in_order(result, None)


def order_of(shape: tuple[int, ...], arrays: Sequence[Any]) -> tuple[int, ...] | None:
    """The dims of an elementwise result from the slowest to the fastest; None: as they are.

    A dim is slower than another if its stride is larger in the first operand that has both and
    tells; else they stay in order.
    """
    rank = len(shape)
    strides = []
    for x in arrays:
        missing = rank - x.ndim
        strides.append(
            [0] * missing + [0 if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
        )
    order = list(range(rank))
    for i in range(rank - 2, -1, -1):
        k = i
        for j in range(i + 1, rank):
            slower = _slower(order[k], order[j], shape, strides)
            if slower < 0:
                order[k], order[j] = order[j], order[k]
                k = j
            elif slower > 0:
                break
    return None if all(a == b for a, b in enumerate(order)) else tuple(order)


def order_of_memory(array: Any) -> tuple[int, ...] | None:
    """The dims of an array from the slowest to the fastest; None: row-major."""
    if array is None or array.flags.c_contiguous:
        return None
    return order_of(array.shape, (array,))


def root_order(storage: Storage) -> tuple[int, ...] | None:
    """The same of a storage's root, whose array may be still to be computed."""
    if storage.array is None:
        layout = getattr(storage, "layout", None)
        return None if layout is None else order_of_memory(ghost(layout))
    return order_of_memory(storage.array)


def _slower(a: int, b: int, shape: tuple[int, ...], strides: Sequence[Sequence[int]]) -> int:
    """1 if dim a is slower than b, a later dim; -1 if it is faster; 0 where none tells."""
    for steps in strides:
        x, y = abs(steps[a]), abs(steps[b])
        if x and y and (x != y or shape[b] > shape[a]):
            return 1 if x > y else -1
    return 0


def in_order(x: Any, order: tuple[int, ...] | None) -> Any:
    """x, or a copy, whose memory has its dims in this order without gaps (None: row-major)."""
    if order is None:
        return x if x.flags.c_contiguous else x.copy()
    if x.transpose(order).flags.c_contiguous:
        return x
    return x.transpose(order).copy().transpose(inverse_axes(order))


def strides_of(x: Tensor) -> tuple[int, ...]:
    """The strides of a tensor, in bytes."""
    if x._data is not None:
        return tuple(x._data.strides)
    return layout_of(x)[1]


def layout_of(x: Tensor) -> Layout:
    """Shape, strides and dtype of a tensor without data."""
    root = x._storage.array
    if root is not None:
        layout = layout_in(root)
    else:
        found: Layout | None = getattr(x._storage, "layout", None)
        type_ = x._storage.type
        layout = found or dense(tuple(map(hint, type_.shape)), type_.dtype.np)
    for op, attrs in x._chain:
        layout = _through(op, attrs, layout)
    return layout


def layout_in(array: Any) -> Layout:
    """How an array lies in memory."""
    return tuple(array.shape), tuple(array.strides), array.dtype


def dense(shape: tuple[int, ...], dtype: Any, order: tuple[int, ...] | None = None) -> Layout:
    """The layout of a root: without gaps, its dims in this order (None: row-major)."""
    strides, step = [0] * len(shape), np.dtype(dtype).itemsize
    for k in reversed(range(len(shape)) if order is None else order):
        strides[k] = step
        step *= max(shape[k], 1)
    return shape, tuple(strides), dtype


def set_order(operands: Sequence[Tensor], made: Tensor) -> None:
    """Notes how the result of a record that keeps its operands' layout lies in memory, or will lie:
    it has no data."""
    if not all(map(is_dense, operands)):
        type_ = made._storage.type
        shape = tuple(map(hint, type_.shape))
        order = order_of(shape, [outline(x) for x in operands])
        if order is not None:
            made._storage.layout = dense(shape, type_.dtype.np, order)


def set_layout(made: Tensor, of: Tensor) -> None:
    """Notes that a root without data lies as `of`, or, where it has fewer dims, its slices, do."""
    if not is_told(of) or is_dense(of):
        return
    shape, strides, dtype = layout_of(of)
    type_ = made._storage.type
    skipped = len(shape) - type_.ndim
    if shape[skipped:] == tuple(map(hint, type_.shape)):
        made._storage.layout = shape[skipped:], strides[skipped:], dtype


def is_told(x: Tensor) -> bool:
    """Whether it is known how a tensor lies in memory, or will lie: not inside of vmap, where it is
    the tensor below that has memory."""
    return x._data is not None or type(x._storage) is not LevelStorage


def is_dense(x: Tensor) -> bool:
    """Whether a tensor's elements lie in row-major order, without gaps."""
    if x._data is not None:
        return bool(x._data.flags.c_contiguous)
    if not x._chain and x._storage.array is None and not hasattr(x._storage, "layout"):
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


def outline(x: Tensor) -> np.ndarray[Any, Any]:
    """An array that lies as the tensor does: its own, or one on no memory."""
    return ghost(layout_of(x)) if x._data is None else x._data


def can_view(op: Any, attrs: dict[str, Any], layout: Layout) -> bool:
    """Whether a view op gives a view of memory that lies so. (Reshape may need a copy.)"""
    asks = getattr(op, "can_view", None)
    return asks is None or bool(asks(layout[0], layout[1], _hints(attrs["shape"])))


def _hints(x: Any) -> Any:
    """An attribute as data has it: sizes are ints, without a guard."""
    if isinstance(x, tuple):
        return tuple(map(_hints, x))
    return hint(x) if isinstance(x, Sym) else x


def _through(op: Any, attrs: dict[str, Any], layout: Layout) -> Layout:
    attrs = {name: _hints(value) for name, value in attrs.items()}
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
