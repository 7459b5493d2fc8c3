"""Tensors on a GPU shared with other libraries: DLPack, the CUDA array interface, their streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.outside import export
from jitgrad.runtime import cuda, dlpack, dtypes
from jitgrad.tensor import Tensor, wrap

_NEWEST = 3  # version of the CUDA array interface that is read


def to_dlpack(
    x: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
    copy: bool | None = None,
) -> Any:  # fmt: skip
    """A capsule of x's memory (Tensor.__dlpack__), for work on the reader's stream (DLPack's word:
    None or 1 is the default stream, -1 asks for no order). Raises TypeError for what is no number
    of a stream, BufferError for streams that DLPack forbids on CUDA, and for another device."""
    if stream is not None and (stream in (0, 2) or stream < -1):
        raise BufferError(f"[__dlpack__] unsupported stream on CUDA: {stream}; use 1 or None")
    own = (dlpack.CUDA, x.get_device())
    if dl_device is not None and tuple(dl_device) != own:
        raise BufferError(f"[__dlpack__] expected dl_device {own}; got {dl_device}; copy it first")
    array: Any = (x.clone() if copy else x)._shared("__dlpack__")
    capsule = dlpack.export(array, own, max_version=max_version)
    _follow(cuda.device.device(array.device_index), stream)
    return capsule


def _follow(device: Any, stream: int | None) -> None:
    """A reader's stream waits for what the current one has; stream as DLPack says."""
    if stream == -1:
        return
    reader = 0 if stream in (None, 0, 1) else stream
    mine, driver = cuda.device.current_stream(device.index), device.driver
    if reader == mine:
        return
    event = driver.new_event(device.index, False)
    driver.record(device.index, event, mine)
    driver.wait(device.index, reader, event)
    driver.release_event(device.index, event)


def reader_stream(index: int) -> int:
    """DLPack's word for the current stream of a device: 1 is the default one."""
    return cuda.device.current_stream(cuda.device.device(index, "from_dlpack").index) or 1


def from_content(content: dlpack.Content) -> Tensor:
    """A tensor on a GPU's memory that came in a capsule. Raises ValueError for what is not that
    device's memory, and for memory that may not be written."""
    if content.read_only:
        raise ValueError("[from_dlpack] expected memory that may be written; got it read-only")
    array = cuda.arrays.foreign(
        "from_dlpack", content.address, content.shape, content.strides, content.dtype,
        content.owner, content.device_id,
    )  # fmt: skip
    return _tensor(array)


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
    """A tensor on the memory of what has a CUDA array interface, on that memory's device, whose
    current stream waits for its stream. Raises TypeError for an interface that is no dict, and
    ValueError, naming the field, for fields that are missing or malformed, another version, masks,
    read-only memory, memory that is not a device's, a stream 0, which the protocol forbids, strides
    that are negative or not of the shape, and elements that lie between others."""
    given = source.__cuda_array_interface__
    if not isinstance(given, dict):
        raise TypeError(f"[as_tensor] expected __cuda_array_interface__ as a dict; got {given!r}")
    missing = [key for key in ("shape", "typestr", "data", "version") if key not in given]
    if missing:
        raise ValueError(
            f"[as_tensor] expected a CUDA array interface with {missing[0]!r}; it has only "
            f"{sorted(map(str, given))}"
        )
    if not _is_int(given["version"]) or not 1 <= given["version"] <= _NEWEST:
        raise _wrong("version", f"version {_NEWEST} at most, from 1", given["version"])
    shape = _ints(given, "shape")
    strides = None if given.get("strides") is None else _ints(given, "strides")
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"[as_tensor] expected strides for shape {shape}; got {strides}")
    dtype = _dtype(given["typestr"])
    data = given["data"]
    if not (isinstance(data, (tuple, list)) and len(data) == 2 and _is_address(data[0])):
        raise _wrong("data", "data as (address, whether it is read-only)", data)
    address, read_only = data
    if not address and 0 not in shape:
        raise ValueError(f"[as_tensor] expected memory for shape {shape}; got a null pointer")
    other = given.get("stream")
    if other is not None and (not _is_int(other) or other < 0):
        raise _wrong("stream", "a stream as None or a positive int", other)
    if other == 0:
        raise ValueError("[as_tensor] expected a stream other than 0; use 1, the default stream")
    if given.get("mask") is not None or read_only:
        raise ValueError("[as_tensor] expected memory that may be written, without a mask")
    array = cuda.arrays.foreign("as_tensor", address or 0, shape, strides, dtype, source)
    device = cuda.arrays.device_of(array)
    mine = cuda.device.current_stream(device.index)
    if other not in (None, mine or 1):
        with cuda.device.on_stream(device.index, 0 if other == 1 else other):
            _follow(device, mine or 1)
    return _tensor(array)


def _wrong(field: str, expected: str, got: Any) -> ValueError:
    return ValueError(
        f"[as_tensor] expected a CUDA array interface with {expected}; got {field} {got!r}"
    )


def _is_int(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_address(x: Any) -> bool:
    return x is None or (_is_int(x) and 0 <= x < 2**64)


def _ints(given: dict[str, Any], field: str) -> tuple[int, ...]:
    """The field as ints. Raises ValueError unless they are, from 0 on: a tensor goes forward."""
    value = given[field]
    if not isinstance(value, (tuple, list)) or not all(_is_int(n) and n >= 0 for n in value):
        raise _wrong(field, f"{field} as a tuple of ints that are not negative", value)
    return tuple([int(n) for n in value])


def _dtype(typestr: Any) -> np.dtype[Any]:
    try:
        if not isinstance(typestr, str):
            raise TypeError
        dtype = np.dtype(typestr)
        dtypes.from_numpy(dtype)
    except (TypeError, KeyError, ValueError):
        raise _wrong("typestr", "typestr as the name of a number's dtype", typestr) from None
    return dtype


def record_stream(x: Tensor, stream: Any) -> None:
    """x's memory is used by work on a stream: it is reused after that (Tensor.record_stream).
    Raises TypeError for what is no stream."""
    if not isinstance(getattr(stream, "cuda_stream", None), int):
        raise TypeError(
            f"[record_stream] expected a jitgrad.cuda.Stream; got {type(stream).__name__}"
        )
    array: Any = x._array("record_stream")
    cuda.arrays.used_on(array, stream.cuda_stream)
