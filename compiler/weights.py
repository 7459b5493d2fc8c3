"""The weights of a native library: where each lies, in its object or in a file beside it.

Owns `pack`, the section of an ELF object that holds them, and writing the file, which programs map
into memory (what its head says is in `runtime/artifact_format.py`). A library reads any file of its
layout: a model that was trained further needs no other code.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jitgrad.compiler.ir import Graph
from jitgrad.runtime import artifact_format as fmt
from jitgrad.runtime.errors import CompileError, InternalError

_ALIGN = 128


@dataclass
class Packed:
    """Attributes: `offsets`, of the slots of the state that a graph reads; `arrays`, dense, in
    that order; `nbytes`, of all with the gaps between them; `forms`, what each array is, whatever
    its values: the name, shape and dtype of state, or how what is kept follows from such."""

    offsets: dict[int, int]
    arrays: list[np.ndarray[Any, Any]]
    nbytes: int
    forms: list[Sequence[Any]]

    @property
    def layout(self) -> bytes:
        """A digest of where everything lies, and of what it is."""
        text = json.dumps([self.nbytes, *zip(self.offsets.values(), self.forms, strict=True)])
        return fmt.sha256(text.encode()).digest()

    def pieces(self) -> Iterator[Any]:
        """The bytes, in pieces: arrays are not copied."""
        for array in self.arrays:
            yield array.reshape(-1).view(np.uint8).data
            yield bytes(_gap(array))

    def content(self) -> bytes:
        """The bytes."""
        return b"".join(self.pieces())


def _gap(array: np.ndarray[Any, Any]) -> int:
    return -array.nbytes % _ALIGN if array.nbytes else _ALIGN  # something to point at


def pack(
    graph: Graph,
    state: Mapping[str, np.ndarray[Any, Any]],
    unread: Collection[int] = (),
    kept: Mapping[int, tuple[Sequence[Any], np.ndarray[Any, Any]]] | None = None,
) -> Packed:
    """The state that a graph of static state reads or writes, but for the slots `unread`; then what
    is kept of it, by slot, with its form (`Packed.forms`)."""
    used = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    used |= {graph.inputs[w.input].value for w in graph.writes}
    packed = Packed({}, [], 0, [])
    for slot, item in enumerate(graph.inputs):
        if item.kind != "state" or item.value not in used or slot in unread:
            continue
        shape = tuple(int(d) for d in item.value.type.shape)
        array = np.ascontiguousarray(state[item.name]).reshape(shape)
        if array.dtype != item.value.type.dtype.np:
            raise InternalError(f"state {item.name}: {array.dtype}, not {item.value.type}")
        _add(packed, slot, array, (item.name, shape, array.dtype.name))
    for slot, (form, array) in (kept or {}).items():
        _add(packed, slot, array, form)
    return packed


def _add(packed: Packed, slot: int, array: np.ndarray[Any, Any], form: Sequence[Any]) -> None:
    packed.offsets[slot] = packed.nbytes
    packed.arrays.append(array)
    packed.forms.append(form)
    packed.nbytes += array.nbytes + _gap(array)


def write_weights(packed: Packed, path: Path) -> None:
    """Writes the file."""
    with open(path, "w+b") as file:
        file.write(fmt.weights_head(packed.nbytes, packed.layout, bytes(32)))
        for piece in packed.pieces():
            file.write(piece)
        file.flush()
        digest = fmt.checksum(b"")
        if packed.nbytes:
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                memoryview(data) as view,
                view[fmt.WEIGHTS_HEAD :] as content,
            ):
                digest = fmt.checksum(content)
        file.seek(0)
        file.write(fmt.weights_head(packed.nbytes, packed.layout, digest))


def fill_section(data: bytes, name: str, content: bytes) -> bytes:
    """An ELF64 object with the (equally long) content of one section replaced."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise CompileError("[native] weights go into ELF objects only; this target makes no ELF")
    start = struct.unpack_from("<Q", data, 40)[0]
    size, count, strings = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, start + k * size) for k in range(count)]
    names = sections[strings][4]
    for entry in sections:
        at = names + entry[0]
        if data[at : data.index(b"\0", at)] == name.encode():
            offset, length = entry[4], entry[5]
            if length != len(content):
                raise InternalError(f"section {name} has {length} bytes, not {len(content)}")
            return b"".join([data[:offset], content, data[offset + length :]])
    raise InternalError(f"the object has no section {name}")
