"""What memory others than tensors can see: NumPy, buffers, DLPack, those who have an address.

Owns `export`, which notes it, and what follows: `is_shared` and `watch`.
"""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.runtime.buffers import is_leased
from jitgrad.state import state

_exported: weakref.WeakSet[Any] = weakref.WeakSet()
"""Storages whose array others have been given, or gave."""

_pointed: weakref.WeakSet[Any] = weakref.WeakSet()
"""Storages whose address others have been given: nobody knows for how long."""

_watched: weakref.WeakSet[Any] = weakref.WeakSet()
"""Storages of `watch`."""

shown_now = [0]
"""How often others were given the memory of a watched storage."""


def export(storage: Any, address: bool = False) -> None:
    """Notes that others than tensors get to see a storage's memory, or only its address."""
    if state.lazy is not None:
        state.lazy.export(storage)
    (_pointed if address else _exported).add(storage)
    if storage in _watched:
        shown_now[0] += 1


def watch(storage: Any) -> bool:
    """Whether tensors alone see a storage's memory, so that whoever writes to it grows its version.
    If so, `shown_now` changes when that ends."""
    if storage in _pointed or storage in _exported or _is_of_others(storage.array):
        return False
    _watched.add(storage)
    return True


def is_shared(storage: Any, data: Any) -> bool:
    """Whether others may see or change the memory of a storage that has data: what is written to it
    must be there at once, and it can change without a word. `data`: of a tensor on it.

    A NumPy array on the memory refers to the storage's own; so where nothing does but the storage
    and the tensor, nobody else sees it (any more).
    """
    if storage in _pointed:
        return True
    if storage not in _exported:
        return False
    if _is_of_others(storage.array):
        return True
    if data is storage.array:
        return _refs(storage, data) > _ROOT
    return data.base is not storage.array or _refs(storage, data) > _PART


def _is_of_others(array: Any) -> bool:
    """Whether the memory is another array's, or of who knows whom (a buffer, DLPack)."""
    return array.base is not None and not is_leased(array)


def _refs(storage: Any, data: Any) -> int:
    return sys.getrefcount(storage.array)


def _count(part: bool) -> int:
    """_refs, in is_shared, of an array that a storage and one tensor alone refer to."""
    tensor = SimpleNamespace(_data=np.zeros(2))
    storage = SimpleNamespace(array=tensor._data)
    if part:
        tensor._data = tensor._data[:1]

    def as_there(storage: Any, data: Any) -> int:
        return _refs(storage, data)

    return as_there(storage, tensor._data)


_ROOT, _PART = _count(False), _count(True)
