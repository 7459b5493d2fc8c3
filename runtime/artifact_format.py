"""What a library made by export and its loader agree on: the descriptor, status codes, the seal,
the file of weights.

Owns numbers, the seal that is appended to a finished library, and the head of a file of weights.
`compiler/codegen/capi.py` emits what is described here, `runtime/artifact.py` reads it. Opens no
library.

The seal is the last 64 bytes of the file: 8 bytes magic, the number of bytes before it (u64, little
endian), SHA-256 of the checksum (`checksum`) of those bytes and of the 16 before it, 16 zero bytes.
Loaders of ELF ignore what follows the last section. It guards against damage; it is no signature.

A file of weights begins with 128 bytes: 8 bytes magic, a version (u64), the number of bytes that
follow (u64), a digest of their layout (32), their checksum (32), zeros. A library knows the layout
that it reads (`compiler/weights.py`): it takes any values that lie so.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from typing import Any

from jitgrad.runtime.errors import ArtifactError

# hashlib loads OpenSSL: 3 milliseconds of the time to the first result. Python 3.11, then 3.12.
try:
    from _sha256 import sha256  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import sha256

FORMAT_VERSION = 3

# The exported symbol that describes a library, an array of 8-byte words.
DESCRIPTOR = "jg_model"
DESCRIPTOR_MAGIC = b"JGMODEL\0"
(
    DESC_MAGIC, DESC_FORMAT, DESC_METADATA,  # 8 bytes; the format version; JSON text (char*)
    DESC_STATUS, DESC_CREATE, DESC_DESTROY, DESC_RUN, DESC_LAST_ERROR,  # functions
    DESC_PY_CALL,  # for CPython: jg_py_call with self's words as artifact.py fills them
    DESC_SET_SIZES, DESC_OUTPUT_SHAPE,  # functions, of models with symbolic sizes; else 0
    DESC_CREATE_WITH,  # a function, of models with a file of weights (then CREATE is 0); else 0
) = range(12)  # fmt: skip
DESC_WORDS = 12

# What run returns.
OK, FAULT, BAD_ARGUMENT, BUSY = 0, 1, 2, 3

MAX_THREADS = 1024  # of a call

# Codes of dtypes in the C interface.
DTYPE_CODES = {
    "bool": 0, "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6,
    "bfloat16": 7, "float32": 8, "float64": 9, "uint32": 10, "uint64": 11, "uint16": 12,
}  # fmt: skip

SEAL_MAGIC = b"JGSEAL03"
SEAL_BYTES = 64
_HEAD = struct.Struct("<8sQ")

WEIGHTS_MAGIC = b"JGWEIGHT"
WEIGHTS_VERSION = 3
WEIGHTS_HEAD = 128
_WEIGHTS = struct.Struct("<8sQQ32s32s")
WEIGHTS_DIGEST = slice(56, _WEIGHTS.size)
"""Where the checksum stands in the head."""

PIECE = 2**22
WORKERS = 4


def checksum(data: Any) -> bytes:
    """SHA-256 of the CRC-32s of the data's pieces of 4 MiB, which threads share among them. Twice
    as fast as SHA-256 of all where the processor has instructions for that, else ten times."""
    view = memoryview(data)
    starts = range(0, len(view), PIECE)
    found = [0] * len(starts)
    available = getattr(os, "sched_getaffinity", None)
    processors = len(available(0)) if available is not None else os.cpu_count() or 1
    count = max(1, min(len(starts), processors, WORKERS))

    def work(first: int) -> None:
        for k in range(first, len(starts), count):
            found[k] = zlib.crc32(view[starts[k] : starts[k] + PIECE])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, count)]
    for t in threads:
        t.start()
    work(0)
    for t in threads:
        t.join()
    return sha256(struct.pack(f"<{len(found)}I", *found)).digest()


def sealed(content: bytes) -> bytes:
    """The content with its seal appended."""
    head = _HEAD.pack(SEAL_MAGIC, len(content))
    return b"".join([content, head, _sealing(content, head), bytes(16)])


def _sealing(content: Any, head: bytes) -> bytes:
    return sha256(checksum(content) + head).digest()


def check_seal(data: Any, path: str) -> bytes:
    """The digest in a sealed file (bytes, or what they are mapped in).

    Raises ArtifactError when there is no seal, or when it does not fit: the file was truncated,
    extended, stripped or altered.
    """
    start = len(data) - SEAL_BYTES
    seal = bytes(data[start:]) if start >= 0 else b""
    if seal[:6] == SEAL_MAGIC[:6] and seal[:8] != SEAL_MAGIC:
        raise ArtifactError(
            f"[load] expected a library with a seal {SEAL_MAGIC.decode()}; that of {path!r} is of "
            "another version of jitgrad; export it again"
        )
    if seal[:8] != SEAL_MAGIC:
        raise ArtifactError(
            f"[load] expected a library made by jitgrad.export(...).native; {path!r} "
            f"({len(data)} bytes) does not end with its seal: it is not one, or was truncated, "
            "extended or stripped; export it again"
        )
    _, length = _HEAD.unpack_from(seal)
    with memoryview(data) as view:
        found = _sealing(view[:start], seal[: _HEAD.size])
    if length != start or found != seal[16:48] or any(seal[48:]):
        raise ArtifactError(
            f"[load] the content of {path!r} ({len(data)} bytes) does not match its checksum: "
            "the file was altered or damaged; copy or export it again"
        )
    return found


def weights_head(nbytes: int, layout: bytes, digest: bytes) -> bytes:
    """The first bytes of a file of weights."""
    head = _WEIGHTS.pack(WEIGHTS_MAGIC, WEIGHTS_VERSION, nbytes, layout, digest)
    return head.ljust(WEIGHTS_HEAD, b"\0")


def check_weights(data: Any, path: str, layout: bytes, nbytes: int, verify: bool) -> None:
    """Checks a file of weights (what it is mapped in) for a library that reads this layout.

    Raises ArtifactError when it is none, of another version, of another layout, truncated,
    extended, or (where `verify`) when its content was altered.
    """
    head = bytes(data[:WEIGHTS_HEAD])
    what = f"[load] expected a file of weights for this library; {path!r} "
    if len(head) < WEIGHTS_HEAD or head[:8] != WEIGHTS_MAGIC:
        raise ArtifactError(f"{what}({len(data)} bytes) is none; copy or export it again")
    _, version, length, theirs, digest = _WEIGHTS.unpack_from(head)
    if version != WEIGHTS_VERSION:
        raise ArtifactError(f"{what}has version {version}, not {WEIGHTS_VERSION}; export it again")
    if theirs != layout or length != nbytes or any(head[_WEIGHTS.size :]):
        raise ArtifactError(
            f"{what}belongs to another library: names, shapes or dtypes of its weights are others, "
            "or it was written for another processor; write it with weights(...) of an export of "
            "the same model, for the library's target, or export both again"
        )
    if len(data) != WEIGHTS_HEAD + nbytes:
        raise ArtifactError(
            f"{what}has {len(data)} bytes, not {WEIGHTS_HEAD + nbytes}: it was truncated or "
            "extended; copy or export it again"
        )
    if verify:
        with memoryview(data) as view, view[WEIGHTS_HEAD:] as content:
            found = checksum(content)
        if found != digest:
            raise ArtifactError(
                f"[load] the content of {path!r} ({len(data)} bytes) does not match its checksum: "
                "the file was altered or damaged; copy or export it again"
            )
