"""Storage: one piece of memory, shared by a tensor and all its views and aliases.

Owns the memory and its write counter. Which part of it a tensor shows, and how, is in the tensor
(`_data`, `_chain`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import DType


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


class Storage:
    """Memory of a root tensor.

    Attributes:
        array: the NumPy array that the root tensor shows; None in abstract mode.
        type: the root's TensorType.
        version: how often it was written.
        hidden: how many of these writes went through `.data`: the tape does not see them.
    """

    __slots__ = ("__weakref__", "array", "hidden", "type", "version")

    def __init__(self, array: np.ndarray[Any, Any] | None, type: TensorType) -> None:
        self.array = array
        self.type = type
        self.version = 0
        self.hidden = 0

    def __repr__(self) -> str:
        return f"<Storage {self.type}, version {self.version}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Storage:
        return Storage(np.array(self._bytes("deepcopy"), order="K"), self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        array = self._bytes("pickle")
        plain = array.tobytes() if array.dtype.kind not in "biufc" else array
        return _rebuild_storage, (plain, self.type.dtype, tuple(array.shape))

    # What of torch.UntypedStorage public code asks for.
    def data_ptr(self) -> int:
        """The address of the memory. Two tensors share memory iff their storages' are equal."""
        return int(self._bytes("data_ptr").__array_interface__["data"][0])

    def _bytes(self, what: str) -> np.ndarray[Any, Any]:
        if self.array is None:
            raise RuntimeError(f"[{what}] expected a tensor with data; this one is abstract")
        return self.array

    def nbytes(self) -> int:
        """Bytes of the root tensor."""
        return 0 if self.array is None else int(self.array.nbytes)

    size = __len__ = nbytes

    def element_size(self) -> int:
        return 1

    def tolist(self) -> list[int]:
        """The bytes."""
        return list(self._bytes("tolist").tobytes())

    def __getitem__(self, index: int) -> int:
        return self._bytes("storage")[...].tobytes()[index]

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
        return False

    def is_pinned(self) -> bool:
        return False

    def share_memory_(self) -> Storage:
        """This storage (see Tensor.share_memory_)."""
        return self

    def cpu(self) -> Storage:
        return self

    is_cuda = False

    @property
    def device(self) -> Any:
        return self.type.device


def _rebuild_storage(plain: Any, dtype: DType, shape: tuple[int, ...]) -> Storage:
    if isinstance(plain, bytes):
        plain = np.frombuffer(bytearray(plain), dtype.np)
    return Storage(plain.reshape(shape), TensorType(shape, dtype))


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
        array = self._untyped_storage._bytes("storage")
        return np.frombuffer(array.tobytes(), self.dtype.np)

    def tolist(self) -> Any:
        return self._values().tolist()

    def __getitem__(self, index: int) -> Any:
        return self._values()[index].item()

    def resize_(self, size: int) -> TypedStorage:
        self._untyped_storage.resize_(size * self.dtype.itemsize)
        return self

    def is_shared(self) -> bool:
        return False

    def share_memory_(self) -> TypedStorage:
        return self

    def cpu(self) -> TypedStorage:
        return self

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
