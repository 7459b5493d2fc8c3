"""Storage: one piece of memory, shared by a tensor and all its views and aliases.

Owns the memory and its write counter. Which part of it a tensor shows, and how, is in the tensor
(`_data`, `_chain`).
"""

from __future__ import annotations

import gc
import mmap
import os
from types import CodeType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from jitgrad import gpu
from jitgrad.compiler.types import TensorType
from jitgrad.device import place
from jitgrad.outside import export
from jitgrad.runtime import cuda
from jitgrad.runtime.dtypes import DType, uint8
from jitgrad.runtime.memory_file import Mapping, bytes_at, mapping_of, new_shared
from jitgrad.state import bump_epoch, state


def overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Whether two elements of a view show the same memory (an expanded view, windows that overlap).

    Dims by growing stride: where each step goes past all that the smaller ones reach, nothing
    repeats. Where that does not decide it, the elements' offsets are compared.
    """
    if array.flags.c_contiguous or array.size < 2:
        return False
    dims = [(abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1]
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    if any(stride == 0 for stride, _ in dims):
        return True
    offsets = np.zeros((), np.int64)
    for stride, size in dims:
        offsets = np.add.outer(offsets, np.arange(size) * stride)
    return np.unique(offsets).size < array.size


def is_part(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array shows another array's memory. (Results of compiled code stand on leases of
    memory, runtime/buffers.py, which are no arrays.)"""
    return isinstance(array.base, np.ndarray)


class Storage:
    """Memory of a root tensor.

    Attributes:
        array: the NumPy array that the root tensor shows; None in abstract mode.
        type: the root's TensorType.
        version: how often it was written.
        hidden: how many of these writes went through `.data`: the tape does not see them.
        writer: of the last write that was noted: the version after it, the user's code and
            instruction, and the function's name (dispatch.note_write). May be missing.
        layout: where there is no array, how the root lies in memory (layouts.py), if not in
            row-major order. May be missing.
    """

    __slots__ = ("__weakref__", "array", "hidden", "layout", "type", "version", "writer")
    layout: tuple[tuple[int, ...], tuple[int, ...], Any]
    writer: tuple[int, CodeType | None, int, str]

    def __init__(self, array: np.ndarray[Any, Any] | None, type: TensorType) -> None:
        self.array = array
        self.type = type
        self.version = 0
        self.hidden = 0

    def __repr__(self) -> str:
        if state.recorder is not None:
            state.recorder.raw_read(self, "repr")
        return f"<Storage {self.type}, version {self.version}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        array = self._bytes("deepcopy")
        if self.is_cuda:
            return Storage(gpu.kernels.moved(array, self.type.device), self.type)
        return Storage(np.array(array, order="K"), self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        array = self._on_host("pickle")
        if array.dtype.kind not in "biufc":  # bfloat16: its name is not NumPy's
            array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return _rebuild_storage, (
            array, self.type.dtype, tuple(self.type.shape), self.type.device
        )  # fmt: skip

    def elements(self) -> tuple[np.ndarray[Any, Any], int]:
        """A copy, on the host, of all elements from the root's lowest to its highest address, and
        the lowest address, which may be a GPU's."""
        array = self._bytes("save")
        low, high = span(array)
        index = tuple(
            slice(None, 1) if s >= 0 else slice(n - 1, None)
            for s, n in zip(array.strides, array.shape, strict=True)
        )
        count = (high - low) // array.itemsize
        first = array[index]
        flat = as_strided(first, (count,), (array.itemsize,), subok=True)
        return (gpu.kernels.host_array(flat) if self.is_cuda else flat.copy()), low

    # What of torch.UntypedStorage public code asks for.
    def data_ptr(self) -> int:
        """The address of the memory. Two tensors share memory iff their storages' are equal."""
        memory = self._bytes("data_ptr")
        export(self, address=True)
        return int(memory.__array_interface__["data"][0])

    def _bytes(self, what: str) -> np.ndarray[Any, Any]:
        if state.recorder is not None:
            state.recorder.raw_read(self, what)
        if self.array is None:
            raise RuntimeError(f"[{what}] expected a tensor with data; this one is abstract")
        return self.array

    def _on_host(self, what: str) -> np.ndarray[Any, Any]:
        """The memory, or a copy where it is a GPU's."""
        found: np.ndarray[Any, Any] = gpu.kernels.host_array(self._bytes(what))
        return found

    def nbytes(self) -> int:
        """Bytes of the root tensor."""
        if state.recorder is not None:
            state.recorder.memory_read(self, "size")
        return 0 if self.array is None else int(self.array.nbytes)

    size = __len__ = nbytes

    def element_size(self) -> int:
        return 1

    def tolist(self) -> list[int]:
        """The bytes."""
        return list(self._on_host("tolist").tobytes())

    @classmethod
    def from_file(cls, filename: str, shared: bool = False, nbytes: int | None = None) -> Storage:
        """The first bytes of a file (all by default), which are read when they are looked at.
        Writes go to the file with shared, else nowhere. Raises OSError for a file that is not
        there, RuntimeError for one that is shorter."""
        with open(filename, "r+b" if shared else "rb") as file:
            length = os.fstat(file.fileno()).st_size
            size = length if nbytes is None else nbytes
            if size > length:
                raise RuntimeError(
                    f"[storage.from_file] expected {size} bytes in {filename}; got {length}"
                )
            access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
            memory: Any = mmap.mmap(file.fileno(), size, access=access) if size else b""
        return cls(np.frombuffer(memory, np.uint8), TensorType((size,), uint8))

    def __getitem__(self, index: Any) -> Any:
        """A byte; of a slice, a storage that has a copy of these bytes."""
        flat = np.ascontiguousarray(self._on_host("storage")).reshape(-1).view(np.uint8)
        if not isinstance(index, slice):
            return int(flat[index])
        part = gpu.kernels.moved(flat[index], self.type.device)
        return Storage(part, TensorType(part.shape, uint8, self.type.device))

    def untyped(self) -> Storage:
        return self

    def resize_(self, size: int) -> Storage:
        """Raises RuntimeError: memory that tensors share is never moved; resize a tensor."""
        if size == self.nbytes():
            return self
        raise RuntimeError(
            f"[storage.resize_] expected the size {self.nbytes()} that it has; got {size}; a "
            "storage keeps its size here: use Tensor.resize_"
        )

    def is_shared(self) -> bool:
        """Whether the memory is one that processes share, or a GPU's, as PyTorch says."""
        if self.type.device != "cpu":
            return True
        if state.recorder is not None:
            state.recorder.raw_read(self, "is_shared")
        return self.array is not None and mapping_of(self.array) is not None

    def is_pinned(self, device: Any = "cuda") -> bool:
        """Whether the memory is pinned (Tensor.pin_memory)."""
        return self.array is not None and cuda.pinned.is_pinned(self.array)

    def share_memory_(self, only: Any = None) -> Storage:
        """Moves the memory to where processes can share it (Tensor.share_memory_).

        only: the tensor on this storage, where it is known to be the only one.
        """
        if not self.is_shared():
            low, high = span(self._bytes("share_memory_"))
            self.move(new_shared(high - low), only)
        return self

    def move(self, mapping: Mapping, only: Any = None) -> None:
        """The memory becomes `mapping`'s, which gets its contents; all tensors on it follow.

        NumPy arrays that were taken of it before keep the old memory.
        """
        array = self._bytes("share_memory_")
        low, high = span(array)
        new = mapping.array()
        new[...] = bytes_at(low, high - low)
        holders = gc.get_referrers(self) if only is None else [only]
        for tensor in (h for h in holders if hasattr(type(h), "_chain")):
            if tensor._storage is self and tensor._data.size:
                tensor._data = _at(new, tensor._data, low)
        if array.size:
            self.array = _at(new, array, low)
        bump_epoch()

    def cpu(self) -> Storage:
        """This storage; of a GPU's a copy on the CPU."""
        if not self.is_cuda:
            return self
        return Storage(self._on_host("cpu"), TensorType(self.type.shape, self.type.dtype))

    def cuda(self, device: Any = None) -> Storage:
        """This storage; a copy where it is not on that GPU (the current one if None)."""
        where = place("cuda" if device is None else device, "cuda")
        if where == self.type.device:
            return self
        moved = gpu.kernels.moved(self._bytes("cuda"), where)
        return Storage(moved, TensorType(self.type.shape, self.type.dtype, where))

    @property
    def is_cuda(self) -> bool:
        return self.type.device != "cpu"

    @property
    def device(self) -> Any:
        return self.type.device


def span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one after its last."""
    low = high = int(array.__array_interface__["data"][0])
    if not array.size:
        return low, high
    for stride, size in zip(array.strides, array.shape, strict=True):
        reach = stride * (size - 1)
        low, high = (low, high + reach) if reach >= 0 else (low + reach, high)
    return low, high + array.itemsize


def _at(new: np.ndarray[Any, Any], old: np.ndarray[Any, Any], low: int) -> Any:
    """What `old` showed of the memory from address `low`, of new memory."""
    offset = int(old.__array_interface__["data"][0]) - low
    return np.ndarray(old.shape, old.dtype, new, offset, old.strides)


def _rebuild_storage(
    plain: Any, dtype: DType, shape: tuple[int, ...], device: str = "cpu"
) -> Storage:
    """The inverse of Storage.__reduce__. Raises RuntimeError for a GPU that is not here."""
    if plain.dtype != dtype.np:
        plain = plain.view(dtype.np).reshape(shape)
    if device != "cpu":
        plain = gpu.kernels.moved(plain, device)
    return Storage(plain, TensorType(shape, dtype, device))


class TypedStorage:
    """A storage seen as elements of a dtype (torch.TypedStorage, as far as public code asks)."""

    def __init__(self, storage: Storage, dtype: DType) -> None:
        self._untyped_storage = storage
        self.dtype = dtype

    def untyped(self) -> Storage:
        return self._untyped_storage

    def data_ptr(self) -> int:
        return self._untyped_storage.data_ptr()

    def nbytes(self) -> int:
        return self._untyped_storage.nbytes()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def size(self) -> int:
        """The number of elements."""
        return self.nbytes() // self.dtype.itemsize

    __len__ = size

    def _values(self) -> np.ndarray[Any, Any]:
        array = self._untyped_storage._on_host("storage")
        return np.frombuffer(array.tobytes(), self.dtype.np)

    def tolist(self) -> Any:
        return self._values().tolist()

    def __getitem__(self, index: int) -> Any:
        return self._values()[index].item()

    def resize_(self, size: int) -> TypedStorage:
        self._untyped_storage.resize_(size * self.dtype.itemsize)
        return self

    def is_shared(self) -> bool:
        """Whether the memory is one that processes share."""
        return self._untyped_storage.is_shared()

    def share_memory_(self) -> TypedStorage:
        """This storage, moved to memory that processes share."""
        self._untyped_storage.share_memory_()
        return self

    def cpu(self) -> TypedStorage:
        """This storage; of a GPU's a copy on the CPU."""
        if self.device == "cpu":
            return self
        return TypedStorage(self._untyped_storage.cpu(), self.dtype)

    @property
    def device(self) -> Any:
        return self._untyped_storage.device

    def __repr__(self) -> str:
        return f"<TypedStorage of {self.size()} {self.dtype}>"


class LevelStorage(Storage):
    """What a tensor inside vmap lies on: another tensor, that holds the values of all examples.

    It has no array of its own; `type` is that of one example. Reading, writing and applying ops is
    the level's business (levels.py).

    Attributes:
        value: the tensor below, (B, *shape) where `batched`, else (*shape).
        level: the vmap that it belongs to.
    """

    __slots__ = ("batched", "level", "value")

    def __init__(self, value: Any, type: TensorType, level: Any, batched: bool) -> None:
        self.array = None
        self.type = type
        self.value = value
        self.level = level
        self.batched = batched

    @property
    def version(self) -> int:  # type: ignore[override]
        return self.value._storage.version

    @property
    def hidden(self) -> int:  # type: ignore[override]
        return self.value._storage.hidden
