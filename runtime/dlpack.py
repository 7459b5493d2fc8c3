"""DLPack: capsules of arrays, and what is in a capsule.

Owns the C structures (dmlc/dlpack, dlpack.h: the unversioned form and version 1) and who keeps what
alive. Capsules that are given out are NumPy's, with the device and the dtype set to what NumPy does
not know: so their deleters are C, which readers may call from any thread and while an exception is
on its way. Memory that was taken calls the giver's deleter with the last array on it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from jitgrad.runtime import dtypes

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13  # DLDeviceType
ON_HOST = (CPU, CUDA_HOST, CUDA_MANAGED)
"""Types of memory that the host reads and writes."""

NEWEST = (1, 0)
"""The version that is asked for; of what comes, the major number counts."""

_CODES = {"i": 0, "u": 1, "f": 2, "bfloat": 4, "c": 5, "b": 6}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY = 1
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Plain(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", _Deleter), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_FORMS: dict[bytes, Any] = {_PLAIN: _Plain, _VERSIONED: _Versioned}

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Content(NamedTuple):
    """What a capsule says of its memory; strides in bytes, None for a dense array. `owner` keeps
    the memory."""

    device_type: int
    device_id: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    read_only: bool
    owner: Any


def export(x: np.ndarray[Any, Any], device: tuple[int, int] | None = None, **options: Any) -> Any:
    """A capsule of an array's memory, on a device (type, number) if that is not the host. `options`
    are those of NumPy's `__dlpack__`, which raises for wrong ones, TypeError or BufferError."""
    dtype = dtypes.from_numpy(x.dtype)
    known = x.view(np.uint16) if dtype is dtypes.bfloat16 else x
    capsule = np.ndarray.__dlpack__(known, **options)
    _, found = _open(capsule)
    tensor = found.tensor
    if known is not x:
        tensor.code = _CODES["bfloat"]
    if device is not None:
        tensor.device_type, tensor.device_id = device
        if not x.size:
            tensor.data = None
    return capsule


def take(capsule: Any) -> Content:
    """What is in a capsule, which is taken: it cannot be used again. Raises RuntimeError for what
    is no capsule of DLPack's, one that was taken and a newer major version, BufferError for dtypes
    that are not here, ValueError for what is no shape and for no memory."""
    name, found = _open(capsule)
    if name == _VERSIONED and found.major > NEWEST[0]:
        raise RuntimeError(
            f"[from_dlpack] expected DLPack's major version {NEWEST[0]} at most; got "
            f"{found.major}.{found.minor}"
        )
    t = found.tensor
    dtype = _dtype(t.code, t.bits, t.lanes)
    shape = tuple([t.shape[k] for k in range(t.ndim)])
    if t.ndim < 0 or any(n < 0 for n in shape):
        raise ValueError(
            f"[from_dlpack] expected sizes that are not negative; got ndim {t.ndim}, shape {shape}"
        )
    strides = None
    if t.strides:
        strides = tuple([t.strides[k] * dtype.itemsize for k in range(t.ndim)])
    if not t.data and 0 not in shape:
        raise ValueError(f"[from_dlpack] expected memory for shape {shape}; got a null pointer")
    read_only = name == _VERSIONED and bool(found.flags & _READ_ONLY)
    _api.PyCapsule_SetName(capsule, _USED[name])
    return Content(
        t.device_type, t.device_id, (t.data or 0) + t.byte_offset, shape, strides, dtype, read_only,
        _Taken(found),
    )  # fmt: skip


_USED = {name: b"used_" + name for name in _FORMS}
"""By a capsule's name: that of a taken one (kept here: a capsule only has its address)."""


def host_array(content: Content) -> np.ndarray[Any, Any]:
    """An array on memory that the host reads."""
    shape, dtype = content.shape, content.dtype
    if not math.prod(shape):
        return np.empty(shape, dtype)
    low, high = span("from_dlpack", content.address, shape, content.strides, dtype)
    place = (ctypes.c_char * (high - low)).from_address(low)
    place.owner = content.owner  # type: ignore[attr-defined]
    array: np.ndarray[Any, Any] = np.ndarray(
        shape, dtype, memoryview(place), content.address - low, content.strides
    )
    array.flags.writeable = not content.read_only
    return array


def span(
    op: str, address: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: np.dtype[Any]
) -> tuple[int, int]:
    """The first address of an array's elements, of which there are some, and that behind the last.
    Raises ValueError where there are no such addresses."""
    if strides is None:
        low, high = 0, (math.prod(shape) - 1) * dtype.itemsize
    else:
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    low, high = address + low, address + high + dtype.itemsize
    if low < 0 or high > 1 << 63:
        raise ValueError(
            f"[{op}] expected elements within an address space; got shape {tuple(shape)} and "
            f"strides {strides} in bytes at {address:#x}"
        )
    return low, high


def _open(capsule: Any) -> tuple[bytes, Any]:
    if type(capsule).__name__ == "PyCapsule":
        for name, form in _FORMS.items():
            if _api.PyCapsule_IsValid(capsule, name):
                return name, form.from_address(_api.PyCapsule_GetPointer(capsule, name))
    raise RuntimeError(
        "from_dlpack received an invalid capsule: expected one called 'dltensor' or "
        f"'dltensor_versioned'; got {capsule!r}. Note that DLTensor capsules can be consumed only "
        "once, so you might have already constructed a tensor from it once."
    )


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    for dtype in dtypes.ALL:
        kind = "bfloat" if dtype is dtypes.bfloat16 else dtype.np.kind
        if (_CODES[kind], dtype.itemsize * 8, 1) == (code, bits, lanes):
            return dtype.np
    raise BufferError(
        f"[from_dlpack] no dtype here has {bits} bits of {_KINDS.get(code, f'code {code}')} and "
        f"{lanes} lanes"
    )


class _Taken:
    """Calls the giver's deleter when nothing stands on the memory any more."""

    def __init__(self, found: Any) -> None:
        self._deleter, self._place = found.deleter, ctypes.addressof(found)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter is going down
            if self._deleter:
                self._deleter(self._place)
