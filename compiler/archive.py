"""Static archives (`.a`): object files and the index of their symbols, as `ar rcs` makes them.

Owns the System V format, written and read, which GNU ld, gold, lld and mold read: the magic, then
members, each with a header of 60 bytes in ASCII. The first member, "/", is the index: a count, the
offset of the member for each symbol (big-endian), the names. Names over 15 characters are in the
member "//".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from jitgrad.runtime.errors import ArtifactError

MAGIC = b"!<arch>\n"


def archive(members: Sequence[tuple[str, bytes, Sequence[str]]]) -> bytes:
    """An archive of members: the name, the content and the symbols of each."""
    long_names, labels = b"", []
    for name, _, _ in members:
        label = f"{name}/"
        if len(label) > 16:
            label = f"/{len(long_names)}"
            long_names += f"{name}/\n".encode()
        labels.append(label)
    symbols = [s for _, _, given in members for s in given]
    texts = b"".join(s.encode() + b"\0" for s in symbols)
    at = len(MAGIC) + 60 + _even(4 + 4 * len(symbols) + len(texts))
    at += 60 + _even(len(long_names)) if long_names else 0
    offsets = []
    for _, data, given in members:
        offsets += [at] * len(given)
        at += 60 + _even(len(data))
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *offsets) + texts
    parts = [MAGIC, _member("/", index)]
    if long_names:
        parts.append(_member("//", long_names))
    parts += [_member(label, m[1]) for label, m in zip(labels, members, strict=True)]
    return b"".join(parts)


def members(data: bytes, path: str) -> list[tuple[str, bytes]]:
    """The names and contents of an archive's object files. Raises ArtifactError for what is none,
    or is truncated."""
    if data[: len(MAGIC)] != MAGIC:
        raise ArtifactError(f"[archive] expected a static archive; {path!r} is none")
    found, names, at = [], b"", len(MAGIC)
    while at < len(data):
        header = data[at : at + 60]
        label, size = header[:16].rstrip(), header[48:58].strip()
        end = at + 60 + int(size) if size.isdigit() else 0
        if header[58:] != b"`\n" or not at + 60 <= end <= len(data):
            raise ArtifactError(
                f"[archive] {path!r} ({len(data)} bytes) is damaged or truncated at byte {at}"
            )
        content = data[at + 60 : end]
        if label == b"//":
            names = content
        elif label != b"/":
            if label[1:].isdigit():
                label = names[int(label[1:]) :].partition(b"\n")[0]
            found.append((label.rstrip(b"/").decode(errors="replace"), content))
        at = _even(end)
    return found


def _even(n: int) -> int:
    return n + n % 2


def _member(label: str, data: bytes) -> bytes:
    """A header (name, time, owner, group, mode, size) and the content, padded to an even size."""
    header = f"{label:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)
