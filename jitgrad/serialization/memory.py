"""Tensors on memory that was read from a file: storages by key, views of them, devices.

Owns the rule that tensors of one stored storage share one Storage here. Where the bytes come from
is archive.py's and pickled.py's.
"""

from __future__ import annotations

import math
import pickle
import struct
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.autograd.modes import no_grad
from jitgrad.creation import placed
from jitgrad.device import place
from jitgrad.functions.shape import as_strided
from jitgrad.runtime import cuda
from jitgrad.runtime.dtypes import DType
from jitgrad.storage import Storage, TypedStorage
from jitgrad.tensor import Tensor, wrap_array

_MOST_REPEATED = 2**31  # elements that a tensor may have beyond those of its storage
_LOCAL_HEADER = 30  # bytes of a zip member's header before its name


class RuleError(Exception):
    """Raised from what a user's `map_location` raised, which says nothing of the file."""


class Location:
    """What `map_location` says of a stored device. Raises RuntimeError for one that is not here."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        if isinstance(rule, str):
            place(rule)

    def of(self, stored: str, flat: np.ndarray[Any, Any]) -> str:
        """The device that memory stored from this one comes to; `flat` are its elements."""
        rule = self.rule
        if isinstance(rule, dict):
            stored = str(rule.get(stored, stored))
        elif callable(rule):
            stored = _called(rule, stored, flat)
        elif rule is not None:
            stored = str(rule)
        kind = stored.partition(":")[0]
        if kind in ("cpu", "meta"):
            return "cpu"
        if kind != "cuda" or not cuda.device.count():
            raise RuntimeError(
                f"[load] Attempting to deserialize object on a {stored} device; there is the CPU "
                "only. Pass map_location='cpu' to load it there."
            )
        return place(stored, "load")


def _called(rule: Any, stored: str, flat: np.ndarray[Any, Any]) -> str:
    """The device of the storage that a function gives for a stored one; None stands for the stored
    device."""
    try:
        found = rule(wrap_array(flat).untyped_storage(), stored)
        if found is not None and not isinstance(found, (Storage, TypedStorage)):
            raise TypeError(
                "[load] expected a map_location that gives a storage, as storage.cuda(0) is, or "
                f"None; got {found!r}"
            )
    except Exception as error:
        raise RuleError from error
    return stored if found is None else str(found.device)


class Memory:
    """Storages of one file, and the tensors made of them.

    name: the file's, for errors. mmap: whether bytes stay in the file (copied when written to).
    """

    def __init__(self, location: Location, name: str, mmap: bool) -> None:
        self.location = location
        self.name = name
        self.mmap = mmap
        self._roots: dict[Any, Tensor] = {}
        self._stored: dict[Any, str] = {}
        self._devices: dict[Any, str] = {}

    def expect(self, key: Any, stored: str) -> None:
        """Notes the device that a storage was stored from; the CPU, if nothing was noted."""
        self._stored[key] = stored

    def member(self, file: zipfile.ZipFile, name: str) -> Any:
        """A zip member's bytes, in memory of its own that may be written."""
        if not self.mmap:
            return bytearray(file.read(name))
        info = file.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            return bytearray(file.read(name))
        assert file.fp is not None and file.filename is not None
        file.fp.seek(info.header_offset)
        header = file.fp.read(_LOCAL_HEADER)
        sizes = struct.unpack("<HH", header[26:30])
        start = info.header_offset + _LOCAL_HEADER + sum(sizes)
        if not info.file_size:
            return bytearray()
        return np.memmap(file.filename, np.uint8, "c", start, (info.file_size,))

    def tensor(
        self, key: Any, flat: np.ndarray[Any, Any], dtype: DType, offset: int,
        shape: Sequence[int], stride: Sequence[int],
    ) -> Tensor:  # fmt: skip
        """A tensor that shows elements of the storage `key`, whose elements are `flat`."""
        shape, stride = tuple(map(int, shape)), tuple(map(int, stride))
        reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        empty = 0 in shape
        fits = empty or 0 <= offset <= offset + reach < flat.size
        if min((0, *shape, *stride)) < 0 or offset < 0 or not fits:
            raise RuntimeError(
                f"[load] expected a whole file; in {self.name} a tensor of shape {shape} lies "
                f"outside its storage of {flat.size} elements"
            )
        if math.prod(shape) > max(flat.size, _MOST_REPEATED):
            raise pickle.UnpicklingError(
                f"[load] refused: in {self.name} a tensor of shape {shape} shows a storage of "
                f"{flat.size} elements, each many times"
            )
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = self.location.of(self._stored.get(key, "cpu"), flat)
        if empty:
            return placed(wrap_array(np.empty(shape, dtype.np)), device)
        root = self._roots.get(key)
        if root is None:
            dense = math.prod(shape) == flat.size and _row_major(shape, stride)
            root = placed(wrap_array(flat.reshape(shape) if dense else flat), device)
            self._roots[key] = root
            if dense:
                return root
        if root.dtype is not dtype:
            raise RuntimeError(
                f"[load] expected one dtype for each storage; {self.name} shows one as "
                f"{root.dtype} and as {dtype}; save copies instead"
            )
        with no_grad():
            return as_strided(root, shape, stride, offset)


def _row_major(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True
