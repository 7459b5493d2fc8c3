"""What files of native code say of themselves, read without opening them as code: of any machine.

Owns finding the description, the JSON text that `native.py` puts into each model (its keys are
those of `runtime.Model.info`), and the custom section that has it in a WebAssembly module, where
the linker leaves out data that nothing reads. The seal of ELF files is artifact_format.py's.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from jitgrad.compiler.archive import MAGIC, members
from jitgrad.runtime.artifact_format import check_seal
from jitgrad.runtime.errors import ArtifactError

_ELF, _WASM = b"\x7fELF", b"\0asm"
_MACH_O = b"\xcf\xfa\xed\xfe"
_BEGIN = b'{"name": "'
_KEYS = {"name", "creator", "triple", "inputs", "outputs", "sizes", "weights_bytes"}
_SECTION = b"jitgrad"


class Described(NamedTuple):
    """A file, or one in an archive. digest: its checksum, found right; None for a kind of file that
    has none. info: the description; None where there is none: in what maps weights, and in
    WebAssembly that other programs made."""

    name: str
    nbytes: int
    digest: bytes | None
    info: dict[str, Any] | None


def described(data: bytes, path: str) -> list[Described]:
    """What is in a library, an object file, an archive of such, or a WebAssembly module.

    Raises ArtifactError for what is none, or was altered or truncated.
    """
    if data.startswith(MAGIC):
        return [_one(content, name) for name, content in members(data, path)]
    if data[:4] not in (_ELF, _WASM, _MACH_O):
        raise ArtifactError(
            f"[inspect] expected a library, an object file, an archive or a WebAssembly module; "
            f"{path!r} ({len(data)} bytes) is none"
        )
    return [_one(data, path)]


def _one(data: bytes, name: str) -> Described:
    digest = None
    if data.startswith(_ELF):
        digest = check_seal(data, name)
    elif data.startswith(_WASM):
        digest = _check_module(data, name)
    return Described(name, len(data), digest, _description(data))


def _description(data: bytes) -> dict[str, Any] | None:
    """The first text that is a description."""
    at = data.find(_BEGIN)
    while at >= 0:
        try:
            found = json.loads(data[at : data.find(b"\0", at)])
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and found.keys() >= _KEYS:
            return found
        at = data.find(_BEGIN, at + 1)
    return None


# -- WebAssembly ---------------------------------------------------------------------------------
def described_module(module: bytes, metadata: str) -> bytes:
    """A module, or an object that is yet to be linked to one, with its description and the SHA-256
    of all before it as its last section. (Linkers copy that of an object among the module's.)"""
    name = bytes([len(_SECTION)]) + _SECTION
    text = metadata.encode() + b"\0"
    head = b"\0" + _leb128(len(name) + len(text) + 32)
    whole = b"".join([module, head, name, text])
    return whole + hashlib.sha256(whole).digest()


def _sections(data: bytes) -> list[bytes] | None:
    """The contents of the custom sections, b"" for others; None where they are not whole."""
    found, at = [], 8
    while at < len(data):
        kind, size, shift = data[at], 0, 0
        at += 1
        while True:
            if at >= len(data) or shift > 28:
                return None
            size |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                break
        if kind > 13 or at + size > len(data):
            return None
        found.append(data[at : at + size] if kind == 0 else b"")
        at += size
    return found


def _check_module(data: bytes, name: str) -> bytes | None:
    """The checksum, found right; None of a module that others linked or made."""
    label = bytes([len(_SECTION)]) + _SECTION
    sections = _sections(data)
    ours = [s.startswith(label) for s in sections or ()]
    if ours and not ours[-1] and (any(ours) or _BEGIN not in data):
        return None
    found = hashlib.sha256(data[:-32]).digest()
    if sections is None or found != data[-32:]:
        raise ArtifactError(
            f"[inspect] the content of {name!r} ({len(data)} bytes) does not match its checksum: "
            "the file was truncated, altered or stripped; export it again"
        )
    return found


def _leb128(n: int) -> bytes:
    parts = []
    while n > 127:
        parts.append(n & 127 | 128)
        n >>= 7
    return bytes([*parts, n])
