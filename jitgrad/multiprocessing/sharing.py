"""How a tensor's memory gets from process to process: the reducers of multiprocessing's pickler.

A storage that is sent moves to shared memory first, with all tensors on it; the receiver maps the
same memory. By strategy, what travels is a file descriptor, or the name of a file in memory. Of a
name, each process has its own (a hard link), and removes it when it is done: the memory goes with
the last one. Python's resource tracker removes those of processes that were killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import weakref
from collections.abc import Callable
from multiprocessing import reduction, resource_tracker, util
from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.copying import reduce_tensor
from jitgrad.runtime import memory_file
from jitgrad.runtime.memory_file import Mapping, mapping_of
from jitgrad.storage import Storage, span
from jitgrad.tensor import Tensor

_live: weakref.WeakValueDictionary[Any, Storage] = weakref.WeakValueDictionary()
"""Storages on shared memory by (file, place in it), so that what comes twice is one storage."""

_named: weakref.WeakSet[Mapping] = weakref.WeakSet()
"""The mappings of this process that have a name."""


# -- names ---------------------------------------------------------------------------------------
def _tracked(path: str, note: Callable[[str, str], None]) -> None:
    """Tells the resource tracker of a name, or that it is gone."""
    if os.path.dirname(path) == "/dev/shm":
        note("/" + os.path.basename(path), "shared_memory")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        _tracked(path, resource_tracker.unregister)


def _named_mapping(fd: int, nbytes: int, path: str) -> Mapping:
    mapping = Mapping(fd, nbytes, path=path, at_end=_remove)
    _named.add(mapping)
    return mapping


def _create_named(nbytes: int) -> Mapping:
    fd, path = memory_file.create_named(nbytes)
    _tracked(path, resource_tracker.register)
    return _named_mapping(fd, nbytes, path)


def _link(path: str) -> str:
    """One more name of the file, for the receiver, who removes it."""
    new = f"{path}-{secrets.token_hex(4)}"
    os.link(path, new)
    _tracked(new, resource_tracker.register)
    return new


def _remove_names() -> None:
    for mapping in list(_named):
        if mapping.path is not None and mapping._pid == os.getpid():
            _remove(mapping.path)
            mapping.path = None


def _clean_at_exit(_: Any = None) -> None:
    util.Finalize(None, _remove_names, exitpriority=0)


_clean_at_exit()
util.register_after_fork(_named, _clean_at_exit)


# -- strategies ----------------------------------------------------------------------------------
_STRATEGIES = {"file_descriptor": memory_file.anonymous, "file_system": _create_named}
_BY_NAME_ONLY = sys.platform in ("darwin", "win32")


def get_all_sharing_strategies() -> set[str]:
    """The strategies that this system has."""
    return {"file_system"} if _BY_NAME_ONLY else set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """The strategy in force."""
    return next(n for n, make in _STRATEGIES.items() if make is memory_file.strategy[0])


def set_sharing_strategy(new_strategy: str) -> None:
    """How tensors are shared from now on.

    "file_descriptor" (the default): nothing has a name, so nothing can be left behind; each shared
    storage holds a descriptor. "file_system": files in /dev/shm, which hold no descriptor. Batches
    of a DataLoader's workers hold none in either. Raises AssertionError for another name.
    """
    if new_strategy not in get_all_sharing_strategies():
        raise AssertionError(
            f"invalid sharing strategy {new_strategy!r}, expected one of "
            f"{get_all_sharing_strategies()}"
        )
    if new_strategy == "file_system":
        resource_tracker.ensure_running()  # before any fork, so that all processes have one
    memory_file.strategy[0] = _STRATEGIES[new_strategy]


# -- reducers ------------------------------------------------------------------------------------
def _place(array: np.ndarray[Any, Any], mapping: Mapping) -> tuple[Any, ...]:
    offset = array.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    return tuple(array.shape), tuple(array.strides), int(offset)


def reduce_storage(storage: Storage) -> tuple[Any, ...]:
    """The handle of a storage's memory, which moves to shared memory if it is not there."""
    low, high = span(storage._bytes("send to a process"))
    if low == high:
        return storage.__reduce__()
    mapping = mapping_of(storage.array)
    if mapping is None or (mapping.fd is None and mapping.path is None):
        storage.move(memory_file.new_shared(high - low))
        mapping = mapping_of(storage.array)
    assert mapping is not None and storage.array is not None
    place = _place(storage.array, mapping)
    if mapping.path is not None:
        _live[_key(os.stat(mapping.path), place)] = storage
        handle: Any = _link(mapping.path)
    else:
        assert mapping.fd is not None
        _live[_key(os.fstat(mapping.fd), place)] = storage
        try:
            handle = reduction.DupFd(mapping.fd)
        except OSError as error:
            raise memory_file.explained(error, mapping.nbytes) from error
    return rebuild_storage, (handle, mapping.nbytes, storage.type.dtype, place)


def _key(stat: os.stat_result, place: tuple[Any, ...]) -> Any:
    return stat.st_dev, stat.st_ino, place


def rebuild_storage(handle: Any, nbytes: int, dtype: Any, place: tuple[Any, ...]) -> Storage:
    """The storage of a handle: on the sender's memory, or the very one if it is known here."""
    named = isinstance(handle, str)
    try:
        fd = os.open(handle, os.O_RDWR) if named else handle.detach()
    except OSError as error:
        raise memory_file.explained(error, nbytes) from error
    key = _key(os.fstat(fd), place)
    found = _live.get(key)
    if found is not None:
        os.close(fd)
        if named:
            _remove(handle)
        return found
    mapping = _named_mapping(fd, nbytes, handle) if named else Mapping(fd, nbytes, keep=True)
    shape, strides, offset = place
    array: Any = np.ndarray(shape, dtype.np, mapping.array(), offset, strides)
    storage = Storage(array, TensorType(shape, dtype))
    _live[key] = storage
    return storage


def reduce_shared_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor for another process. Raises RuntimeError for what an op made on the tape."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd "
            "does not support crossing process boundaries.  If you just want to transfer the data, "
            "call detach() on the tensor before serializing (e.g., putting it on the queue)."
        )
    return reduce_tensor(tensor, 4)


def register() -> None:
    """Teaches multiprocessing's pickler (queues, pipes, pools, arguments of spawned processes)."""
    reduction.register(Tensor, reduce_shared_tensor)  # subclasses pickle as ever: leaves
    reduction.register(Storage, reduce_storage)
