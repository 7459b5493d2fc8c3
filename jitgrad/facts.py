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


def tensor_facts(t: Tensor) -> tuple[Any, ...]:
    """What guards require of a captured tensor besides where it is."""
    hooks = tuple(map(id, t._hooks.values())) if t._hooks else ()
    post = tuple(map(id, t._post_hooks.values())) if t._post_hooks else ()
    return (type(t), t._type, t.requires_grad, t._node is None, layout(t._data), hooks, post)
