"""Memory that processes share: files that live in memory, and where they are mapped.

Owns making, writing and mapping them, and the errors when the system has no room. Which tensors
lie in such memory, and how it is handed on, is jitgrad's business (storage.py, multiprocessing/,
utils/data/).

A file is anonymous: it lives as long as a descriptor or a mapping of it does, so nothing is left
behind by a process that is killed. Only `create_named` makes one with a name, in FOLDER.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"
_POPULATE = 0x8000 if sys.platform == "linux" else 0  # MAP_POPULATE: no page faults later
_FAILED = ctypes.c_void_p(-1).value


def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ctypes.c_ssize_t,
    )  # fmt: skip
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library


_loaded: list[Any] = []


def _c() -> Any:
    if not _loaded:
        if sys.platform == "win32":
            raise RuntimeError(
                "[shared memory] expected a POSIX system; got Windows, where tensors cannot be "
                "shared between processes yet (docs/limits.md)"
            )
        _loaded.append(_libc())
    return _loaded[0]


class Mapping:
    """A file in memory, mapped for reading and writing. Arrays made of it keep it alive.

    Not by mmap.mmap, which holds a descriptor as long as it lives: a program that keeps many
    batches would run out of them.

    Attributes:
        nbytes: its size.
        fd: the descriptor, where it is kept so that the memory can be handed on; else None.
        path: this mapping's own name of the file, where it has one; else None.
    """

    def __init__(
        self, fd: int, nbytes: int, keep: bool = False, path: str | None = None,
        at_end: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        """Takes over fd: closes it unless `keep`, and then when the mapping ends.

        at_end is called with the path when the mapping ends, in the process that made it.
        """
        self.nbytes, self.fd, self._address = nbytes, fd if keep else None, 0
        self.path, self._at_end, self._pid = path, at_end, os.getpid()
        try:
            if nbytes:
                flags = mmap.MAP_SHARED | (0 if keep else _POPULATE)
                where = _c().mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
                if where in (None, _FAILED):
                    code = ctypes.get_errno()
                    raise explained(OSError(code, os.strerror(code)), nbytes)
                self._address = where
        finally:
            if not keep:
                os.close(fd)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        data = (self._address, False)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "version": 3}

    def array(self) -> np.ndarray[Any, Any]:
        """The bytes, as a uint8 array that shares and keeps this memory."""
        return np.asarray(self) if self.nbytes else np.empty(0, np.uint8)

    def __del__(self) -> None:
        if self._address:
            _c().munmap(self._address, self.nbytes)
            self._address = 0
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        if self.path is not None and self._at_end is not None and os.getpid() == self._pid:
            self._at_end(self.path)
            self.path = None


def mapping_of(array: Any) -> Mapping | None:
    """The mapping that an array's memory lies in, or None."""
    while array is not None and type(array) is not Mapping:
        array = array.obj if type(array) is memoryview else getattr(array, "base", None)
    return array


def bytes_at(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """The bytes from an address on, as an array. The caller keeps the memory alive."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_ubyte * nbytes).from_address(address)), np.uint8)


def anonymous(nbytes: int) -> Mapping:
    """Shared memory that is handed on by its descriptor."""
    return Mapping(create(nbytes), nbytes, keep=True)


strategy: list[Callable[[int], Mapping]] = [anonymous]
"""How tensors get memory that they share (multiprocessing.set_sharing_strategy)."""


def new_shared(nbytes: int) -> Mapping:
    """New shared memory that can be handed on, by the strategy in force."""
    _c()  # or the error that says that this system has none
    return strategy[0](nbytes)


def create(nbytes: int = 0) -> int:
    """The descriptor of a new file of `nbytes` zeros. Raises RuntimeError where there is no room.

    The memory is taken at once: a later write cannot fail, as it would with SIGBUS.
    """
    try:
        fd = os.memfd_create("jitgrad", os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # else a sandbox forbids it
            raise explained(error, nbytes) from error
    except AttributeError:
        pass  # not Linux
    else:
        _allocate(fd, nbytes)
        return fd
    fd, path = create_named(nbytes)
    os.unlink(path)
    return fd


def create_named(nbytes: int) -> tuple[int, str]:
    """The descriptor and the path of a new file of `nbytes` zeros, as `create`."""
    try:
        # Not by tempfile, which is slow to import: `import jitgrad` comes through here.
        path = os.path.join(FOLDER, f"jitgrad-{os.getpid()}-{os.urandom(8).hex()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise explained(error, nbytes) from error
    try:
        _allocate(fd, nbytes)
    except RuntimeError:
        os.unlink(path)
        raise
    return fd, path


def _allocate(fd: int, nbytes: int) -> None:
    try:
        if nbytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
        elif nbytes:
            os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        raise explained(error, nbytes) from error


def create_from(buffers: Sequence[Any]) -> int:
    """The descriptor of a new file that holds these bytes, one buffer after another."""
    fd = create()
    nbytes = sum(len(b) for b in buffers)
    try:
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                rest = rest[os.write(fd, rest) :]
    except OSError as error:
        os.close(fd)
        raise explained(error, nbytes) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def explained(error: OSError, nbytes: int) -> RuntimeError:
    """What a failure to get shared memory means, and what helps."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return RuntimeError(
            "[shared memory] Too many open files: expected a free file descriptor; this process "
            f"or the system has none left ({error.strerror}). Raise the limit with `ulimit -n`, "
            "hold fewer shared tensors, or use fewer workers"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
        return RuntimeError(
            f"[shared memory] expected room for {nbytes} bytes; got: {error.strerror}. The shared "
            f"memory (or its file system, {FOLDER}) is full: use fewer workers, a smaller "
            "prefetch_factor or batch, or give the container more (docker run --shm-size)"
        )
    return RuntimeError(f"[shared memory] expected {nbytes} bytes; got: {error}")
