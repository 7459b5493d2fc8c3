"""What a library made by export and its loader agree on: the descriptor, status codes, the seal.

Owns numbers, and the seal that is appended to a finished library. `compiler/codegen/capi.py` emits
what is described here, `runtime/artifact.py` reads it. Opens no library.

The seal is the last 64 bytes of the file: 8 bytes magic, the number of bytes before it (u64, little
endian), SHA-256 of those bytes and of the 16 before it, 16 zero bytes. Loaders of ELF ignore what
follows the last section. It guards against damage; it is no signature.
"""

from __future__ import annotations

import hashlib
import struct

from jitgrad.runtime.errors import ArtifactError

FORMAT_VERSION = 2

# The exported symbol that describes a library, an array of 8-byte words.
DESCRIPTOR = "jg_model"
DESCRIPTOR_MAGIC = b"JGMODEL\0"
(
    DESC_MAGIC, DESC_FORMAT, DESC_METADATA,  # 8 bytes; the format version; JSON text (char*)
    DESC_STATUS, DESC_CREATE, DESC_DESTROY, DESC_RUN, DESC_LAST_ERROR,  # functions
    DESC_PY_CALL,  # for CPython: jg_py_call with self's words as artifact.py fills them
    DESC_SET_SIZES, DESC_OUTPUT_SHAPE,  # functions, of models with symbolic sizes; else 0
) = range(11)  # fmt: skip
DESC_WORDS = 11

# What run returns.
OK, FAULT, BAD_ARGUMENT, BUSY = 0, 1, 2, 3

# Codes of dtypes in the C interface.
DTYPE_CODES = {
    "bool": 0, "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6,
    "bfloat16": 7, "float32": 8, "float64": 9, "uint32": 10, "uint64": 11,
}  # fmt: skip

SEAL_MAGIC = b"JGSEAL01"
SEAL_BYTES = 64
_HEAD = struct.Struct("<8sQ")


def sealed(content: bytes) -> bytes:
    """The content with its seal appended."""
    head = _HEAD.pack(SEAL_MAGIC, len(content))
    digest = hashlib.sha256(content)
    digest.update(head)
    return b"".join([content, head, digest.digest(), bytes(16)])


def check_seal(data: bytes, path: str) -> bytes:
    """The digest of a sealed file's content.

    Raises ArtifactError when there is no seal, or when it does not fit: the file was truncated,
    extended, stripped or altered.
    """
    start = len(data) - SEAL_BYTES
    seal = data[start:] if start >= 0 else b""
    if seal[:8] != SEAL_MAGIC:
        raise ArtifactError(
            f"[load] expected a library made by jitgrad.export(...).native; {path!r} "
            f"({len(data)} bytes) does not end with its seal: it is not one, or was truncated, "
            "extended or stripped; export it again"
        )
    _, length = _HEAD.unpack_from(seal)
    digest = hashlib.sha256(memoryview(data)[:start])
    digest.update(seal[: _HEAD.size])
    if length != start or digest.digest() != seal[16:48] or any(seal[48:]):
        raise ArtifactError(
            f"[load] the content of {path!r} ({len(data)} bytes) does not match its SHA-256 seal: "
            "the file was altered or damaged; copy or export it again"
        )
    return digest.digest()
