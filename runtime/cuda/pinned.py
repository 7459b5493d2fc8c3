"""Pinned memory of the host: kept in place by the driver, so that copies of it are asynchronous."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.runtime.buffers import address as address_of
from jitgrad.runtime.cuda import device as devices

_PAGE = mmap.PAGESIZE
_roots: dict[int, Any] = {}
"""By id: weak references to the arrays whose memory is pinned."""


def pinned_copy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A dense copy of a host array in pinned memory."""
    made = empty(x.shape, x.dtype)
    np.copyto(made, x)
    return made


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A dense array in new pinned memory."""
    nbytes = math.prod(shape) * dtype.itemsize
    size = max(nbytes + _PAGE - 1 & -_PAGE, _PAGE)  # whole pages: none is pinned twice
    root = np.empty(size + _PAGE - 1, np.uint8)  # it owns its memory: the base of all views
    driver = devices.require("pin_memory")
    start = -address_of(root) & _PAGE - 1
    place = address_of(root) + start
    driver.pin(place, size)
    key = id(root)

    def release() -> None:
        _roots.pop(key, None)
        driver.unpin(place)

    weakref.finalize(root, release).atexit = False
    _roots[key] = weakref.ref(root)
    return np.ndarray(tuple(shape), dtype, root, start)


def is_pinned(x: np.ndarray[Any, Any]) -> bool:
    """Whether an array's memory was pinned here."""
    if not _roots:
        return False
    root: Any = x
    while isinstance(root, np.ndarray):
        found = _roots.get(id(root))
        if found is not None and found() is root:
            return True
        root = root.base
    return False
