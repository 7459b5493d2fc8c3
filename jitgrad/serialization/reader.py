"""torch.PyTorchFileReader: the records of a file that `torch.save` wrote, by name.

Owns no format: a record is a member of the zip archive, bytes or the memory of a storage. What
they mean is pickled.py's.
"""

from __future__ import annotations

import os
import zipfile
from typing import IO, Any

import numpy as np

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor, wrap_array


class PyTorchFileReader:
    """Reads records of PyTorch's zip files, without their archive's name in front.

    Args:
        file: a path, or a file opened for reading bytes. RuntimeError unless it is such a file.
    """

    def __init__(self, file: str | os.PathLike[str] | IO[bytes]) -> None:
        try:
            self._archive = zipfile.ZipFile(file)
        except (OSError, zipfile.BadZipFile) as error:
            raise RuntimeError(f"[PyTorchFileReader] cannot read {file}: {error}") from error
        names = self._archive.namelist()
        self._folder = names[0].split("/", 1)[0] + "/" if names else ""

    def get_all_records(self) -> list[str]:
        """The names, in the file's order."""
        return [n.removeprefix(self._folder) for n in self._archive.namelist()]

    def has_record(self, name: str) -> bool:
        """Whether there is a record of this name."""
        return self._folder + name in self._archive.NameToInfo

    def get_record(self, name: str) -> bytes:
        """A record's bytes. Raises RuntimeError where there is none of this name."""
        return self._archive.read(self._info(name))

    def get_record_size(self, name: str) -> int:
        """The number of a record's bytes."""
        return self._info(name).file_size

    def get_storage_from_record(self, name: str, numel: int, dtype: Any) -> Tensor:
        """A tensor of no elements, whose storage has the first numel of a record's (of bytes, where
        dtype is a storage's class). Raises RuntimeError for a record that is shorter."""
        kind = dtype if isinstance(dtype, DType) else dtypes.uint8
        data = np.frombuffer(bytearray(self.get_record(name)), np.uint8)
        size = numel * kind.itemsize
        if data.size < size:
            raise RuntimeError(
                f"[PyTorchFileReader] expected {size} bytes in {name!r}; got {data.size}"
            )
        return wrap_array(data[:size].view(kind.np))[:0]

    def serialization_id(self) -> str:
        """The number that the file's writer gave it; "" without one."""
        name = ".data/serialization_id"
        return self.get_record(name).decode() if self.has_record(name) else ""

    def _info(self, name: str) -> zipfile.ZipInfo:
        if not self.has_record(name):
            raise RuntimeError(
                f"PytorchStreamReader failed locating file {name}: file not found; there are "
                f"{self.get_all_records()}"
            )
        return self._archive.getinfo(self._folder + name)
