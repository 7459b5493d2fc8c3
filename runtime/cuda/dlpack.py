"""DLPack of arrays on a device: capsules out of them, and arrays on what is in a capsule.

Owns the C structures of DLPack (dmlc/dlpack, dlpack.h, the unversioned form that every reader
takes) and who keeps what alive: memory that was given out lives until its reader calls the deleter,
and memory that was taken calls the giver's with the last array on it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from jitgrad.runtime import dtypes
from jitgrad.runtime.buffers import address as address_of
from jitgrad.runtime.cuda import device as devices
from jitgrad.runtime.cuda.arrays import DeviceArray, foreign

CUDA = 2  # DLDeviceType
_CODES = {"i": 0, "u": 1, "f": 2, "bfloat": 4, "c": 5, "b": 6}
_NEW, _USED = b"dltensor", b"used_dltensor"


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter),
]  # fmt: skip

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

_given: dict[int, Any] = {}
"""By the address of its structure: what was given out and not yet deleted."""


@_Deleter
def _delete(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


_capsules: list[Any] = []
"""Those that were given out, kept until nobody else has them."""


def _forget_unused(phase: str = "start", info: Any = None) -> None:
    """Lets go of capsules that only we have, and of the memory of those that nobody took. Called at
    each collection of garbage and each export: a capsule has no destructor, as Python code that
    runs in one loses the exception of a reader that refuses the capsule."""
    for k in range(len(_capsules) - 1, -1, -1):
        if phase == "start" and sys.getrefcount(_capsules[k]) <= _KEPT:
            capsule = _capsules.pop(k)
            if _api.PyCapsule_IsValid(capsule, _NEW):
                _given.pop(_api.PyCapsule_GetPointer(capsule, _NEW), None)


_KEPT = 2  # the list's reference, and that of sys.getrefcount's argument
gc.callbacks.append(_forget_unused)


def export(x: DeviceArray, stream: Any) -> Any:
    """A capsule of an array, for work on the reader's stream (DLPack's word: None or 1 is the
    default stream, -1 asks for no order). Raises TypeError for what is no number of a stream,
    BufferError for 0, which DLPack forbids on CUDA."""
    if stream is not None and type(stream) is not int:
        raise TypeError(f"stream must be ``int`` or ``none``; got {type(stream).__name__}")
    if stream is not None and (stream == 0 or stream < -1):
        raise BufferError(f"[__dlpack__] unsupported stream on CUDA: {stream}; use 1 or None")
    _forget_unused()
    device = devices.device(x.device_index)
    follow(device, stream)
    rank = x.ndim
    made = Managed()
    shape = (ctypes.c_int64 * rank)(*x.shape)
    strides = (ctypes.c_int64 * rank)(*[s // x.itemsize for s in x.strides])
    kind = "bfloat" if dtypes.from_numpy(x.dtype).name == "bfloat16" else x.dtype.kind
    made.tensor = Tensor(
        address_of(x) if x.size else None, CUDA, x.device_index, rank, _CODES[kind],
        x.itemsize * 8, 1, shape, strides, 0,
    )  # fmt: skip
    made.deleter = _delete
    place = ctypes.addressof(made)
    _given[place] = (made, shape, strides, x)
    capsule = _api.PyCapsule_New(place, _NEW, None)
    _capsules.append(capsule)
    return capsule


def follow(device: devices.Device, stream: Any) -> None:
    """A reader's stream waits for what the current one has; stream as DLPack says."""
    if stream == -1:
        return
    reader = 0 if stream in (None, 0, 1) else int(stream)
    mine, driver = devices.current_stream(device.index), device.driver
    if reader == mine:
        return
    event = driver.new_event(device.index, False)
    driver.record(device.index, event, mine)
    driver.wait(device.index, reader, event)
    driver.release_event(device.index, event)


def is_device(capsule: Any) -> bool:
    """Whether a new capsule is of a GPU's memory."""
    if type(capsule).__name__ != "PyCapsule" or not _api.PyCapsule_IsValid(capsule, _NEW):
        return False
    place = _api.PyCapsule_GetPointer(capsule, _NEW)
    return bool(Tensor.from_address(place).device_type == CUDA)


def take(capsule: Any) -> DeviceArray:
    """An array on a capsule's memory, which is taken: it cannot be used again. Raises ValueError
    for a capsule that was, and for what is not on a GPU or has no dtype here."""
    if not _api.PyCapsule_IsValid(capsule, _NEW):
        raise ValueError(
            "[from_dlpack] expected a capsule called 'dltensor' that was not used before; a "
            "capsule can be taken once"
        )
    place = _api.PyCapsule_GetPointer(capsule, _NEW)
    managed = ctypes.cast(place, ctypes.POINTER(Managed))
    t = managed.contents.tensor
    dtype = _dtype(t.code, t.bits, t.lanes)
    if t.device_type != CUDA:
        raise ValueError(f"[from_dlpack] expected memory of a GPU; got device type {t.device_type}")
    shape = tuple(t.shape[k] for k in range(t.ndim))
    strides = None
    if t.strides:
        strides = tuple(t.strides[k] * dtype.itemsize for k in range(t.ndim))
    _api.PyCapsule_SetName(capsule, _USED)
    address = (t.data or 0) + t.byte_offset
    device = devices.device(t.device_id, "from_dlpack")
    return foreign(address, shape, strides, dtype, device, _Taken(managed))


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    kinds = {number: kind for kind, number in _CODES.items()}
    kind = kinds.get(code)
    if kind == "bfloat" and bits == 16 and lanes == 1:
        return dtypes.bfloat16.np
    if kind in (None, "bfloat") or lanes != 1:
        raise ValueError(f"[from_dlpack] no dtype here is DLPack's ({code}, {bits}, {lanes})")
    return np.dtype(bool) if kind == "b" else np.dtype(f"{kind}{bits // 8}")


class _Taken:
    """Calls the giver's deleter when nothing stands on the memory any more."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter is going down
            deleter: Any = self._managed.contents.deleter
            if deleter:
                deleter(self._managed)
