"""Tensors on a GPU shared with other libraries: DLPack, the CUDA array interface, their streams."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.outside import export
from jitgrad.runtime import cuda, dtypes
from jitgrad.tensor import Tensor, wrap

_NEWEST = 3  # version of the CUDA array interface that is read


def to_dlpack(
    x: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
    copy: bool | None = None,
) -> Any:  # fmt: skip
    """A capsule of x's memory (Tensor.__dlpack__). Raises BufferError for another device."""
    own = (cuda.dlpack.CUDA, x.get_device())
    if dl_device is not None and tuple(dl_device) != own:
        raise BufferError(f"[__dlpack__] expected dl_device {own}; got {dl_device}; copy it first")
    source = x.clone() if copy else x
    return cuda.dlpack.export(source._shared("__dlpack__"), stream)


def is_device_capsule(x: Any) -> bool:
    """Whether a DLPack capsule is of a GPU's memory."""
    return bool(cuda.dlpack.is_device(x))


def from_capsule(capsule: Any) -> Tensor:
    """A tensor on a capsule's memory."""
    return _tensor(cuda.dlpack.take(capsule))


def from_dlpack(source: Any) -> Tensor:
    """A tensor on the memory of what speaks DLPack, of which the current stream waits for."""
    index = int(source.__dlpack_device__()[1])
    stream = cuda.device.current_stream(index)
    # DLPack's word for the default stream is 1.
    return from_capsule(source.__dlpack__(stream=stream or 1))


def _tensor(array: Any) -> Tensor:
    t = TensorType(array.shape, dtypes.from_numpy(array.dtype), f"cuda:{array.device_index}")
    out = wrap(array, t)
    export(out._storage)
    return out


def interface(x: Tensor) -> dict[str, Any]:
    """x's CUDA array interface. Raises RuntimeError where x needs a gradient, TypeError for
    bfloat16, which the interface has no name for."""
    if x.requires_grad:
        raise RuntimeError(
            "Can't get __cuda_array_interface__ on Variable that requires grad. If gradients "
            "aren't required, use var.detach() to get Variable that doesn't require grad."
        )
    if x.dtype is dtypes.bfloat16:
        raise TypeError("[__cuda_array_interface__] expected a dtype of NumPy; got bfloat16")
    array: Any = x._shared("__cuda_array_interface__")
    stream = cuda.device.current_stream(array.device_index)
    place = cuda.arrays.address_of(array) if array.size else 0
    return {
        "shape": array.shape, "typestr": array.dtype.str, "data": (place, False),
        "strides": None if array.flags.c_contiguous else array.strides,
        "stream": stream or 1, "version": 3,
    }  # fmt: skip


def from_interface(source: Any) -> Tensor:
    """A tensor on the memory of what has a CUDA array interface, on the current device; the current
    stream waits for its stream. Raises ValueError for keys that are missing, a newer version,
    masks, read-only memory, no memory, a stream 0, which the protocol forbids, strides that are
    not of the shape, and elements that lie between others."""
    given = source.__cuda_array_interface__
    missing = [key for key in ("shape", "typestr", "data", "version") if key not in given]
    if missing:
        raise ValueError(
            f"[as_tensor] expected a CUDA array interface with {missing[0]!r}; it has only "
            f"{sorted(given)}"
        )
    if not 0 <= given["version"] <= _NEWEST:
        raise ValueError(
            f"[as_tensor] expected a CUDA array interface of version {_NEWEST} at most; got "
            f"{given['version']}"
        )
    dtype = np.dtype(given["typestr"])
    address, read_only = given["data"]
    shape, strides = tuple(given["shape"]), given.get("strides")
    if not address and math.prod(shape):
        raise ValueError(f"[as_tensor] expected memory for shape {shape}; got a null pointer")
    if given.get("stream") == 0:
        raise ValueError("[as_tensor] expected a stream other than 0; use 1, the default stream")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"[as_tensor] expected strides for shape {shape}; got {strides}")
    if (address or 0) % dtype.itemsize or any(s % dtype.itemsize for s in strides or ()):
        raise ValueError(
            f"[as_tensor] expected an address and strides of whole elements of {dtype.itemsize} "
            f"bytes; got {address:#x} and strides {strides}"
        )
    if given.get("mask") is not None or read_only:
        raise ValueError("[as_tensor] expected memory that may be written, without a mask")
    device = cuda.device.device(None, "as_tensor")
    other, mine = given.get("stream"), cuda.device.current_stream(device.index)
    if other not in (None, mine or 1):
        with cuda.device.on_stream(device.index, 0 if other == 1 else int(other)):
            cuda.dlpack.follow(device, mine or 1)
    array = cuda.arrays.foreign(address, shape, strides, dtype, device, source)
    return _tensor(array)


def record_stream(x: Tensor, stream: Any) -> None:
    """x's memory is used by work on a stream: it is reused after that (Tensor.record_stream)."""
    array: Any = x._array("record_stream")
    cuda.arrays.used_on(array, stream.cuda_stream)
