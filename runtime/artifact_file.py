"""The files of an exported library: read, checked and opened; weights mapped.

Owns what must hold before a file is opened as a library, and that each content is opened once. What
is in a library is artifact.py's, the seal and the head of weights artifact_format.py's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.runtime import artifact_format as fmt
from jitgrad.runtime.errors import ArtifactError

# ELF's numbers for machines (e_machine) and what Python calls them.
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 3: "i386", 40: "arm", 21: "ppc64le"}
_SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}


def read_file(path: str, what: str = "library file") -> bytes | mmap.mmap:
    """What a file holds, mapped: only what is looked at is read."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise type(error)(
            error.errno, f"[load] expected a {what} that can be read; {error.strerror}", path
        ) from None


def map_weights(
    info: Mapping[str, Any], library: str, given: str | os.PathLike[str] | None, verify: bool
) -> Any:
    """The file of weights, mapped; None for a library that has them."""
    if "weights_file" not in info:
        if given is not None:
            raise ArtifactError(
                f"[load] expected no weights: {library!r} holds its own; got {os.fspath(given)!r}"
            )
        return None
    if given is None:
        given = os.path.join(os.path.dirname(library), os.path.basename(info["weights_file"]))
    path = os.path.abspath(os.fspath(given))
    data = read_file(path, "file of weights")
    layout, nbytes = bytes.fromhex(info["weights_layout"]), int(info["weights_bytes"])
    fmt.check_weights(data, path, layout, nbytes, verify)
    return np.frombuffer(data, np.uint8)


def check_elf(data: bytes | mmap.mmap, path: str) -> None:
    """Raises ArtifactError unless the file is an ELF shared library for this machine."""
    if data[:4] != b"\x7fELF" or len(data) < 64:
        raise ArtifactError(
            f"[load] expected an ELF shared library; {path!r} ({len(data)} bytes) is none; give "
            "the .so file that jitgrad.export(...).native wrote"
        )
    here = platform.machine().lower()
    here = _SYNONYMS.get(here, here)
    kind, machine = struct.unpack_from("<HH", data, 16)
    theirs = _MACHINES.get(machine, f"machine {machine}")
    if data[4] != 2 or data[5] != 1:
        theirs = (
            f"{'32' if data[4] == 1 else '64'}-bit {'big' if data[5] == 2 else 'little'}-endian"
        )
    if theirs != here or not sys.platform.startswith("linux") or sys.maxsize < 2**32:
        raise ArtifactError(
            f"[load] expected a library for {here} on {sys.platform}; {path!r} is for {theirs} on "
            "linux; export the model for this machine"
        )
    if kind != 3:
        raise ArtifactError(
            f"[load] expected an ELF shared library; {path!r} is another kind of ELF file (type "
            f"{kind}); an object file has to be linked first"
        )


_lock = threading.Lock()
_opened: dict[str, bytes] = {}
"""{path: digest} of the libraries in this process."""


def open_library(path: str, digest: bytes, data: bytes | mmap.mmap) -> ctypes.CDLL:
    """Opens a verified file. The system finds open libraries by path, so a path that now has other
    content than when it was first opened is opened through a copy."""
    with _lock:
        known = _opened.get(path)
        try:
            if known is None or known == digest:
                library = ctypes.CDLL(path)
                _opened[path] = digest
                return library
            # Not by tempfile: importing it takes a tenth of the time to the first result.
            folder = os.environ.get("TMPDIR") or "/tmp"
            copy = os.path.join(folder, f"jitgrad-{os.getpid()}-{os.urandom(8).hex()}.so")
            handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                return ctypes.CDLL(copy)
            finally:
                os.unlink(copy)
        except OSError as error:
            raise ArtifactError(f"[load] the system cannot open {path!r}: {error}") from None


def after_fork_in_child() -> None:
    """Another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()
