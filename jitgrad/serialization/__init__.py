"""Saving and loading objects that hold tensors, without ever executing code from a file.

Owns the public functions: `save`, `load`, `save_safetensors`, `load_safetensors`, and the list of
classes that a user allows in PyTorch's files. The format of `save` is archive.py; PyTorch's files
are read by pickled.py; tensors on the memory that was read are made by memory.py.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from jitgrad.creation import placed
from jitgrad.serialization import archive, pickled
from jitgrad.serialization.memory import Location, Memory, RuleError
from jitgrad.serialization.safe import read_safetensors, safetensors_bytes
from jitgrad.tensor import Tensor, wrap_array

__all__ = [
    "add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "load_safetensors",
    "safe_globals", "save", "save_safetensors",
]  # fmt: skip

File = str | os.PathLike[str] | IO[bytes]
_DAMAGED = (zipfile.BadZipFile, UnicodeDecodeError, struct.error, zlib.error, EOFError)


def save(
    obj: Any,
    f: File,
    pickle_module: Any = None,
    pickle_protocol: int | None = None,
    _use_new_zipfile_serialization: bool = True,
) -> None:
    """Writes an object to a file: a zip of JSON and safetensors, which `load` reads back.

    obj: tensors (strided, of any dtype and shape), NumPy arrays, numbers, strings, bytes, None,
    dtypes, devices, sizes, in nested dicts, lists, tuples, sets. Tensors that share memory share it
    after loading. A file at the path is replaced only when all is written. The pickle arguments are
    PyTorch's; nothing is pickled, so they have no effect.

    Raises TypeError for what cannot be stored (functions, modules: save `module.state_dict()`),
    naming where in obj it is.
    """
    if isinstance(f, (str, os.PathLike)):
        _replace(Path(f), lambda stream: archive.write(obj, stream))
    else:
        archive.write(obj, f)


def load(
    f: File,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Reads what `save` wrote; or a PyTorch file (`.pt`, `.pth`, new or legacy); or safetensors.

    map_location: "cpu", a device, a dict from stored devices to others, or a function of a storage
    and its stored device that gives a storage (whose device counts) or None (the stored device);
    needed for PyTorch's files whose tensors were on a GPU: without it, tensors of `save` come to
    the CPU. mmap: tensors stay on the file, read when used and never written
    back (paths only). weights_only has no effect: never is anything in a file executed. A PyTorch
    file that asks for anything but tensors and plain containers raises pickle.UnpicklingError,
    which names it; `add_safe_globals` allows classes of your own.

    Raises EOFError for an empty file, RuntimeError for one that is torn or of no known format.
    """
    if isinstance(f, (str, os.PathLike)):
        with Path(f).open("rb") as stream:
            return _load(stream, Memory(Location(map_location), os.fspath(f), bool(mmap)))
    if mmap:
        raise ValueError("[load] expected a path with mmap=True; got a file object")
    return _load(f, Memory(Location(map_location), getattr(f, "name", "the file object"), False))


def _load(stream: IO[bytes], memory: Memory) -> Any:
    try:
        return _read(stream, memory)
    except RuleError as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


def _read(stream: IO[bytes], memory: Memory) -> Any:
    name = memory.name
    start = stream.tell()
    head = stream.read(9)
    stream.seek(start)
    if not head:
        raise EOFError(f"[load] expected a saved file; {name} is empty")
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(stream) as file:
                reader = archive.read if archive.MEMBER in file.namelist() else pickled.read_zip
                return reader(file, memory)
        except (*_DAMAGED, NotImplementedError) as error:
            raise RuntimeError(
                f"[load] expected a whole zip file; {name} is torn or damaged: {error}; "
                "save it anew"
            ) from None
    if head[:1] == b"\x80":
        return pickled.read_legacy(stream, memory)
    if head[8:9] == b"{":
        return _safetensors(stream.read(), name, memory.location)
    raise RuntimeError(
        f"[load] expected a file by jitgrad.save, a PyTorch file or safetensors; {name} begins "
        f"with {head[:4]!r}"
    )


def save_safetensors(
    tensors: Mapping[str, Tensor], filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Writes tensors by name to a safetensors file. Raises TypeError for what is no Tensor."""
    data = safetensors_bytes(dict(tensors), metadata)
    _replace(Path(filename), lambda stream: stream.write(data))


def load_safetensors(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name. Raises RuntimeError for a damaged file."""
    return _safetensors(Path(filename).read_bytes(), os.fspath(filename), Location(device))


def _safetensors(data: bytes, name: str, location: Location) -> dict[str, Tensor]:
    return {
        key: placed(wrap_array(array), location.of("cpu", array))
        for key, array in read_safetensors(bytearray(data), name).items()
    }


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Writes beside the path, then renames: a failure leaves what was there."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


# -- what else PyTorch's files may name ----------------------------------------------------------
def add_safe_globals(safe_globals: list[Any]) -> None:
    """Allows classes and functions in the PyTorch files that `load` reads. They are called with
    what the file says: add only what is harmless with any arguments."""
    for item in safe_globals:
        value, name = item if isinstance(item, tuple) else (item, None)
        pickled.allowed[name or f"{value.__module__}.{value.__qualname__}"] = value


def get_safe_globals() -> list[Any]:
    """What add_safe_globals has allowed."""
    return list(pickled.allowed.values())


def clear_safe_globals() -> None:
    """Takes back what add_safe_globals has allowed."""
    pickled.allowed.clear()


@contextmanager
def safe_globals(safe_globals: list[Any]) -> Iterator[None]:
    """add_safe_globals inside a with block."""
    before = dict(pickled.allowed)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        pickled.allowed.clear()
        pickled.allowed.update(before)
