"""The safetensors format: named arrays in one piece of memory.

Writing is the safetensors library's. Reading is here because it must not copy: arrays are views of
the memory given, which may be a mapped file, or part of a zip.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor

_DTYPES = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "I16": dtypes.int16,
    "I32": dtypes.int32, "I64": dtypes.int64, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
    "F32": dtypes.float32, "F64": dtypes.float64, "C64": dtypes.complex64,
    "U16": dtypes.uint16, "U32": dtypes.uint32, "U64": dtypes.uint64,
}  # fmt: skip
_MOST_HEADER = 100_000_000  # bytes; as the library has it


def safetensors_bytes(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file of tensors or arrays by name."""
    from safetensors.numpy import save

    arrays = {}
    for name, x in tensors.items():
        if isinstance(x, Tensor):
            x = x.detach()._array("save_safetensors")
        if not isinstance(name, str) or not isinstance(x, np.ndarray):
            raise TypeError(
                f"[save_safetensors] expected tensors by name; got {type(x).__name__} under "
                f"{name!r}; use jitgrad.save for other objects"
            )
        if x.dtype == np.complex128:
            raise TypeError(
                f"[save_safetensors] the format has no complex128; got {name!r}; use jitgrad.save"
            )
        arrays[name] = np.ascontiguousarray(x).reshape(x.shape)
    data: bytes = save(arrays, metadata)
    return data


def read_safetensors(memory: Any, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name, views of `memory` (a writable buffer). Raises RuntimeError if damaged."""
    whole = np.frombuffer(memory, np.uint8)

    def expect(ok: bool, what: str) -> None:
        if not ok:
            raise RuntimeError(f"[load] expected a safetensors file; {name} is damaged: {what}")

    expect(whole.size >= 8, "no header")
    length = int(whole[:8].view("<u8")[0])
    expect(length <= min(_MOST_HEADER, whole.size - 8), f"a header of {length} bytes")
    try:
        header = json.loads(bytes(whole[8 : 8 + length]))
    except ValueError as error:
        header = None
        expect(False, f"the header is no JSON ({error})")
    expect(isinstance(header, dict), "the header is no object")
    data = whole[8 + length :]
    arrays = {}
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        try:
            dtype: DType = _DTYPES[entry["dtype"]]
            shape = tuple(int(n) for n in entry["shape"])
            begin, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            expect(False, f"{key!r} has no dtype that jitgrad has, or no shape: {entry!r:.200}")
        size = math.prod(shape) * dtype.itemsize
        expect(min((0, *shape)) == 0, f"{key!r} has the shape {shape}")
        expect(
            0 <= begin <= end <= data.size and end - begin == size,
            f"{key!r} of {size} bytes lies at {begin} to {end} of {data.size}",
        )
        arrays[key] = data[begin:end].view(dtype.np).reshape(shape)
    return arrays
