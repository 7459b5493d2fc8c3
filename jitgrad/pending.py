"""Tensors whose data is still to be computed: by segments (lazy_recorder.py), when it is wanted.

Owns who has work to do (`recorders`), and `fetch`, which gives a tensor its data. A pending tensor
has no `_data` and its storage no array.
"""

from __future__ import annotations

import os
from typing import Any

from jitgrad.state import state
from jitgrad.storage import LevelStorage, Storage

recorders: dict[int, Any] = {}
"""The lazy recorders of all calls that run in segments now, of all threads, by id."""


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


def _before_fork() -> None:
    """A child process has no part in what its parent has yet to compute."""
    if state.lazy is not None:
        state.lazy.flush("the process forks")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
