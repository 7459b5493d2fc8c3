"""Memory of arrays: aligned allocation, addresses, overlap, and how much there is of it.

Owns what the launch path needs to know of an ndarray. It does not own the arena of a compiled
program (`runtime/launch.py`) nor devices other than the CPU.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.runtime import abi

if TYPE_CHECKING:  # importing it takes a millisecond
    from numpy.typing import DTypeLike, NDArray

# A cache line on every CPU that we compile for is 64 or 128 bytes; AVX-512 wants 64.
ALIGNMENT = 128
_WORTH_ALIGNING = 2**20


def round_up(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """The smallest multiple of `alignment` (a power of two) that is not below `nbytes`."""
    return (nbytes + alignment - 1) & -alignment


def empty(nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes of uninitialised memory, as a uint8 array of shape (nbytes,).

    The first byte is 128-byte aligned. NumPy aligns to 16 only, so this takes the aligned part of
    a slightly larger array, which stays alive as `base`.
    """
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    offset = -address(raw) & (ALIGNMENT - 1)
    return raw[offset : offset + nbytes]


class _Lease:
    """Memory that an array stands on. When the last array on it dies it goes back to `_idle`.

    NumPy keeps the lease as the `base` of every view, so memory is given out again only when
    nobody can reach it any more. It spares the page faults of mapping large results anew.
    """

    __slots__ = ("__array_interface__", "raw")

    def __init__(
        self, raw: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.raw = raw
        self.__array_interface__ = {
            "data": (address(raw), False), "shape": shape, "typestr": dtype.str, "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        _give_back(self.raw)


_MAX_IDLE_BYTES = 256 * 2**20
_idle: dict[int, list[NDArray[np.uint8]]] = {}
_idle_bytes = 0


def _give_back(raw: NDArray[np.uint8]) -> None:
    global _idle_bytes
    if _idle_bytes + raw.nbytes <= _MAX_IDLE_BYTES:
        _idle_bytes += raw.nbytes  # a race miscounts by one block at most, never shares memory
        _idle.setdefault(raw.nbytes, []).append(raw)


held: list[list[Any]] = []
"""Lists of idle memory of others (the arenas of runtime/launch.py), which empty_cache clears."""


def empty_cache() -> None:
    """Frees all memory that is kept for later calls and that nobody uses: of results, of arenas.
    What is free goes back to the system."""
    for memory in held:
        memory.clear()
    free_results()


def free_results() -> None:
    """Frees the memory of results that is kept for later calls and that nobody uses. All that is
    free goes back to the system, where the C library does that (glibc)."""
    global _idle_bytes
    _idle.clear()
    _idle_bytes = 0
    if _trim is not None:
        _trim(0)


def _find_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or none by that name
        return None
    return found


_trim = _find_trim()


def is_leased(array: NDArray[Any]) -> bool:
    """Whether an array stands directly on memory that `empty_array` gives out again."""
    return isinstance(array.base, _Lease)


def empty_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An uninitialised contiguous array, for the outputs of compiled code.

    From 1 MiB up its first element is 128-byte aligned, and its memory is reused after the last
    array on it has died. Below that this costs more time (7 us) than it can save, and the array is
    NumPy's own, aligned for its dtype.
    """
    global _idle_bytes
    dtype = np.dtype(dtype)
    nbytes = dtype.itemsize * math.prod(shape)
    if nbytes < _WORTH_ALIGNING:
        return np.empty(shape, dtype)
    nbytes = round_up(nbytes, 4096)
    try:
        raw = _idle[nbytes].pop()
        _idle_bytes -= nbytes
    except (KeyError, IndexError):
        raw = empty(nbytes)
    array = np.asarray(_Lease(raw, shape, dtype))
    return array if array.dtype == dtype else array.view(dtype)


def array_maker(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
    """A function that makes what empty_array(shape, dtype) makes; decides once how, for calls."""
    if math.prod(shape) * dtype.itemsize < _WORTH_ALIGNING:
        return functools.partial(np.empty, shape, dtype)
    return functools.partial(empty_array, shape, dtype)


def _address_by_interface(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _address_by_layout(
    array: NDArray[Any],
    _read: Any = ctypes.c_int64.from_address,
    _id: Any = id,
    _offset: int = abi.PY_DATA_OFFSET,
) -> int:
    """Reads the data pointer where NumPy keeps it: the first field behind the object's header.

    A tenth of the time of `array.ctypes.data` or `__array_interface__`, which build objects that
    nobody wants. The C API of NumPy fixes this layout, and `layout_holds` checks it here.
    """
    return _read(_id(array) + _offset).value


def _layout_holds() -> bool:
    """Whether objects look as `abi.PY_TYPE_OFFSET` and `PY_DATA_OFFSET` say.

    Not so on PyPy, on CPython without a GIL (a larger header), and on 32-bit machines.
    """
    if object.__basicsize__ != abi.PY_DATA_OFFSET or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    samples = [np.zeros(5), np.zeros((4, 6))[::-1, 1::2], np.zeros((0, 3)), np.array(1), read_only]
    type_address = ctypes.c_int64.from_address
    return all(
        _address_by_layout(x) == _address_by_interface(x)
        and type_address(id(x) + abi.PY_TYPE_OFFSET).value == id(np.ndarray)
        for x in samples
    )


LAYOUT_HOLDS = _layout_holds()

# The address of an array's first element (the one at index 0, ..., 0, whatever the strides).
# Works for read-only, empty and strided arrays, and subclasses; anything that is no ndarray gives
# nonsense, unchecked. The array must stay alive while its address is used.
address = _address_by_layout if LAYOUT_HOLDS else _address_by_interface


def byte_bounds(array: NDArray[Any]) -> tuple[int, int]:
    """The half-open range of addresses that the array's elements touch; empty if it has none."""
    first = address(array)
    if array.size == 0:
        return first, first
    low, high = first, first + array.itemsize
    for dim, stride in zip(array.shape, array.strides, strict=True):
        if stride > 0:
            high += (dim - 1) * stride
        else:
            low += (dim - 1) * stride
    return low, high


def may_overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether the ranges of memory of two arrays intersect: quick, and never wrongly False.

    It can be True for arrays that interleave, as x[::2] and x[1::2] do; see `overlap`.
    """
    low_a, high_a = byte_bounds(a)
    low_b, high_b = byte_bounds(b)
    return low_a < high_b and low_b < high_a


def overlap(a: NDArray[Any], b: NDArray[Any], max_work: int = 1000) -> bool:
    """Whether two strided arrays have a byte in common.

    Exact where a bounded search decides (NumPy's: it solves a Diophantine equation, which is
    NP-hard in general); else True.
    """
    if not may_overlap(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=max_work))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class MemoryStatistics:
    """Counts bytes that are alive, by what they are for. `peak` is since the last reset."""

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.by_purpose: dict[str, int] = {}
        self._renew_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        """After fork() too, since another thread of the parent may have held the old one."""
        self._lock = threading.RLock()  # re-entrant: a finalizer may run inside _change

    def add(self, owner: Any, nbytes: int, purpose: str) -> None:
        """Counts nbytes until `owner` (anything that can be weakly referenced) dies."""
        self._change(nbytes, purpose)
        weakref.finalize(owner, self._change, -nbytes, purpose).atexit = False

    def _change(self, nbytes: int, purpose: str) -> None:
        with self._lock:
            self.current += nbytes
            self.peak = max(self.peak, self.current)
            self.by_purpose[purpose] = self.by_purpose.get(purpose, 0) + nbytes

    def reset_peak(self) -> None:
        self.peak = self.current


# Long-lived memory that compiled programs hold besides the user's own arrays: arenas, scratch.
statistics = MemoryStatistics()
