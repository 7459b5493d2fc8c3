"""Facts: what guards require of a tensor, besides where it is found."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.tensor import Tensor

FACTS = ("class", "type", "requires_grad", "is_leaf", "strides", "hooks", "hooks")


def layout(data: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """Strides in elements; None for dense row-major."""
    if data.flags.c_contiguous:
        return None
    return tuple(s // data.itemsize for s in data.strides)


def leaf_facts(x: Any) -> tuple[Any, ...] | None:
    """What guards require of a tensor argument; None for anything else."""
    if not isinstance(x, Tensor):
        return None
    return (type(x), x._type, x.requires_grad, x._node is None, layout(x._data))


def place_facts(t: Tensor) -> tuple[Any, ...]:
    """What code may ask of a tensor besides these: where it lies in its storage, that storage's
    size, what it is a view of, and what the tape knows of it. Guarded where it is asked for."""
    base, array = None if t._view is None else t._view.base, t._storage.array
    offset = 0
    if t._data is not None and array is not None:
        start = array.__array_interface__["data"][0]
        offset = t._data.__array_interface__["data"][0] - start
    size = 0 if array is None else array.nbytes
    return (offset, size, None if base is None else leaf_facts(base), t._retains, t._out)


def tensor_facts(t: Tensor) -> tuple[Any, ...]:
    """What guards require of a captured tensor besides where it is."""
    hooks = tuple(map(id, t._hooks.values())) if t._hooks else ()
    post = tuple(map(id, t._post_hooks.values())) if t._post_hooks else ()
    return (type(t), t._type, t.requires_grad, t._node is None, layout(t._data), hooks, post)
