"""Tensors whose data is still to be computed: by segments (lazy_recorder.py), when it is wanted.

Owns who has work to do (`recorders`), what memory others than tensors can see (`is_shared`,
`watch`), and `fetch`, which gives a tensor its data. A pending tensor has no `_data` and its
storage no array.
"""

from __future__ import annotations

import os
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.runtime.buffers import is_leased
from jitgrad.state import state
from jitgrad.storage import LevelStorage, Storage

recorders: dict[int, Any] = {}
"""The lazy recorders of all calls that run in segments now, of all threads, by id."""

_exported: weakref.WeakSet[Storage] = weakref.WeakSet()
"""Storages whose array others have been given, or gave."""

_pointed: weakref.WeakSet[Storage] = weakref.WeakSet()
"""Storages whose address others have been given: nobody knows for how long."""


_watched: weakref.WeakSet[Storage] = weakref.WeakSet()
"""Storages of `watch`."""

shown_now = [0]
"""How often others were given the memory of a watched storage."""


def waits(x: Any) -> bool:
    """Whether a tensor has no data as yet: it was made in a call that runs in segments."""
    return x._data is None and state.lazy is not None and type(x._storage) is not LevelStorage


def shown(array: Any, chain: Any) -> Any:
    """What a chain of view ops shows of a root's array."""
    for op, attrs in chain:
        array = op.reference(array, **attrs)
    return array


def settle(storage: Storage) -> None:
    """Computes what a storage is to hold, where a segment of any thread has yet to do so."""
    for recorder in list(recorders.values()):
        if recorder.holds(storage):
            recorder.flush("its value is wanted")
            return


def fetch(x: Any) -> bool:
    """Gives a tensor without data its data, if there is any to be had."""
    storage = x._storage
    if type(storage) is LevelStorage:
        return False
    if storage.array is None:
        settle(storage)
        if storage.array is None:
            return False
    if x._data is None:
        x._data = shown(storage.array, x._chain)
    return True


def export(storage: Storage, address: bool = False) -> None:
    """Notes that others than tensors get to see a storage's memory, or only its address."""
    if state.lazy is not None:
        state.lazy.export(storage)
    (_pointed if address else _exported).add(storage)
    if storage in _watched:
        shown_now[0] += 1


def watch(storage: Storage) -> bool:
    """Whether tensors alone see a storage's memory, so that whoever writes to it grows its version.
    If so, `shown_now` changes when that ends."""
    if storage in _pointed or storage in _exported or _is_of_others(storage.array):
        return False
    _watched.add(storage)
    return True


def is_shared(storage: Storage, data: Any) -> bool:
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


def _refs(storage: Storage, data: Any) -> int:
    return sys.getrefcount(storage.array)


def _count(part: bool) -> int:
    """_refs, in is_shared, of an array that a storage and one tensor alone refer to."""
    tensor = SimpleNamespace(_data=np.zeros(2))
    storage = Storage(tensor._data, None)  # type: ignore[arg-type]
    if part:
        tensor._data = tensor._data[:1]

    def as_there(storage: Storage, data: Any) -> int:
        return _refs(storage, data)

    return as_there(storage, tensor._data)


_ROOT, _PART = _count(False), _count(True)


def _before_fork() -> None:
    """A child process has no part in what its parent has yet to compute."""
    if state.lazy is not None:
        state.lazy.flush("the process forks")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
