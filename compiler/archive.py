"""Static archives (`.a`): one object file and the index of its symbols, as `ar rcs` makes them.

Owns the System V format, which GNU ld, gold, lld and mold read: the magic, then members, each with
a header of 60 bytes in ASCII. The first member, "/", is the index: a count, the offset of the
member for each symbol (big-endian), the names. Names over 15 characters are in the member "//".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = b"!<arch>\n"


def archive(name: str, data: bytes, symbols: Sequence[str]) -> bytes:
    """An archive of one member."""
    label = f"{name}/"
    long_names = b""
    if len(label) > 16:
        long_names, label = f"{name}/\n".encode(), "/0"
    texts = b"".join(s.encode() + b"\0" for s in symbols)
    index_size = 4 + 4 * len(symbols) + len(texts)
    first = len(MAGIC) + 60 + _even(index_size)
    first += 60 + _even(len(long_names)) if long_names else 0
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *[first] * len(symbols)) + texts
    parts = [MAGIC, _member("/", index)]
    if long_names:
        parts.append(_member("//", long_names))
    parts.append(_member(label, data))
    return b"".join(parts)


def _even(n: int) -> int:
    return n + n % 2


def _member(label: str, data: bytes) -> bytes:
    """A header (name, time, owner, group, mode, size) and the content, padded to an even size."""
    header = f"{label:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    return header.encode() + data + b"\n" * (len(data) % 2)
