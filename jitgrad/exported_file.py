"""The file of an Exported: `.jgx`, a zip of the graph's text, its state as safetensors, and JSON.

Owns `write` and `read`. Nothing in a file is code: the text is read by compiler/parse.py, which
knows the op records and literals only. Members, none of them compressed:

    metadata.json       format, version, creator, names of inputs and outputs, the result's tree,
                        that of the inputs where they are no plain tensors, with the names of the
                        parameters, and of the other two members their sizes and SHA-256
    graph.txt           the graph (compiler/text.py), source lines without their folders
    state.safetensors   the values of its inputs of kind "state"

Whatever a file says is checked before it is believed: names and sizes of members, digests, types.
A digest guards against damage, it is no signature.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.parse import ParseError, parse
from jitgrad.compiler.symbolic import hint
from jitgrad.compiler.text import to_text
from jitgrad.compiler.verify import verify
from jitgrad.pytree import LEAF, Structure, names_of
from jitgrad.runtime import dtypes
from jitgrad.runtime.errors import ArtifactError, InternalError
from jitgrad.serialization.safe import read_safetensors, safetensors_bytes

VERSION = 1
_FORMAT = "jitgrad-exported"
_METADATA, _GRAPH, _STATE = "metadata.json", "graph.txt", "state.safetensors"
_MOST_TEXT = 1 << 28  # bytes of graph text, and of JSON
_MOST_BYTES = 1 << 46  # of one value; the address space ends near it
_MOST_DEPTH = 50  # of a tree


class Parts(NamedTuple):
    """What a file holds, checked."""

    graph: Graph
    state: dict[str, np.ndarray[Any, Any]]
    input_names: list[str]
    output_names: list[str]
    structure: Structure
    arguments: Structure | None = None


# -- writing -------------------------------------------------------------------------------------
def write(parts: Parts, path: str | os.PathLike[str], creator: str) -> None:
    """Writes a file in one step. Raises OSError where it cannot be written."""
    path = Path(path)
    members = {
        _GRAPH: to_text(parts.graph, os.path.basename).encode(),
        _STATE: safetensors_bytes({k: _storable(a) for k, a in parts.state.items()}),
    }
    about: dict[str, Any] = {
        "format": _FORMAT, "version": VERSION, "creator": creator,
        "inputs": parts.input_names, "outputs": parts.output_names,
        "result": _tree(parts.structure),
        "members": {
            k: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for k, data in members.items()
        },
    }  # fmt: skip
    if parts.arguments is not None:
        about["arguments"] = {"tuple": [_tree(tree) for tree in parts.arguments.children]}
        labels = names_of(parts.arguments)
        if labels is not None:
            about["parameters"] = list(labels)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as file:
            file.writestr(_METADATA, json.dumps(about, indent=1))
            for name, data in members.items():
                file.writestr(name, data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise type(error)(
            error.errno,
            f"[save] expected a place that can be written; {str(path)!r} cannot be: "
            f"{error.strerror}",
        ) from None


def _storable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """safetensors have no complex128: its parts lie side by side."""
    flat = np.ascontiguousarray(array)
    return flat.reshape(-1).view(np.float64) if flat.dtype == np.complex128 else flat


def _tree(structure: Structure) -> Any:
    """The structure of results or inputs as JSON. Classes stay behind: named tuples are read back
    as tuples, dataclasses and registered classes as dicts and tuples."""
    if structure.kind is None:
        return None
    inside = [_tree(c) for c in structure.children]
    if structure.kind is list or structure.kind is tuple:
        return {structure.kind.__name__: inside}
    names = names_of(structure)
    if names is None or issubclass(structure.kind, tuple):
        return {"tuple": inside}
    return {"dict": [list(names), inside]}


# -- reading -------------------------------------------------------------------------------------
def read(path: str | os.PathLike[str]) -> Parts:
    """The parts of a file by `write`.

    Raises FileNotFoundError; ArtifactError, which says what is wrong, for any file that is not one
    by `write`, or is damaged, or of a newer version.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            return _Reader(name, stream).parts()
    except OSError as error:
        raise type(error)(
            error.errno, f"[load_exported] expected a .jgx file; {error.strerror}", name
        ) from None


class _Reader:
    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self.name = name
        self.size = os.fstat(stream.fileno()).st_size
        try:
            self.file = zipfile.ZipFile(stream)
            found = self.file.infolist()
        except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError) as error:
            raise self.error(f"it is no whole zip file ({error})") from None
        self.infos = {info.filename: info for info in found}
        expected = [_METADATA, _GRAPH, _STATE]
        if sorted(info.filename for info in found) != sorted(expected):
            names = ", ".join(repr(info.filename)[:60] for info in found[:5])
            raise self.error(f"it holds {names or 'nothing'}, not {', '.join(expected)}")

    def error(self, what: str) -> ArtifactError:
        return ArtifactError(
            f"[load_exported] expected a file by Exported.save; {self.name!r}: {what}"
        )

    def member(self, name: str, most: int) -> bytes:
        info = self.infos[name]
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise self.error(f"{name} is compressed or encrypted, which save does not do")
        if info.file_size != info.compress_size or info.file_size > min(most, self.size):
            raise self.error(f"{name} claims {info.file_size} bytes")
        try:
            return self.file.read(name)
        except (
            zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError, OSError
        ) as error:  # fmt: skip
            raise self.error(f"{name} is damaged ({error})") from None

    def parts(self) -> Parts:
        about = self._about()
        graph_text = self._checked(about, _GRAPH, _MOST_TEXT)
        state_bytes = self._checked(about, _STATE, self.size)
        graph = self._graph(graph_text)
        inputs, outputs = self._names(about, "inputs"), self._names(about, "outputs")
        if inputs != [i.name for i in graph.inputs if i.kind == "arg"]:
            raise self.error(f"its inputs are called {inputs}, but not in the graph")
        structure = self._structure(about.get("result"))
        if not len(outputs) == len(graph.outputs) == structure.count:
            raise self.error(
                f"{len(outputs)} names and a tree of {structure.count} leaves for "
                f"{len(graph.outputs)} results"
            )
        state = self._state(graph, state_bytes)
        if "arguments" not in about:
            return Parts(graph, state, inputs, outputs, structure)
        arguments = self._structure(about["arguments"])
        if arguments.kind is not tuple or arguments.count != len(inputs):
            raise self.error(f"{arguments.count} leaves of arguments for {len(inputs)} inputs")
        if "parameters" in about:  # files that were written before there were such have none
            labels = tuple(self._names(about, "parameters"))
            if len(labels) != len(arguments.children):
                raise self.error(
                    f"{len(labels)} names of parameters for {len(arguments.children)} arguments"
                )
            arguments = Structure(dict, labels, arguments.children)
        return Parts(graph, state, inputs, outputs, structure, arguments)

    def _about(self) -> dict[str, Any]:
        try:
            about = json.loads(self.member(_METADATA, _MOST_TEXT))
        except (ValueError, RecursionError) as error:
            raise self.error(f"{_METADATA} is no JSON ({error})") from None
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            raise self.error(f"{_METADATA} says another format")
        version = about.get("version")
        if type(version) is not int or version != VERSION:
            raise self.error(
                f"it has version {version!r}, this jitgrad reads version {VERSION}; load it with "
                f"the jitgrad that wrote it ({str(about.get('creator'))[:40]}), or export again"
            )
        return about

    def _checked(self, about: Mapping[str, Any], name: str, most: int) -> bytes:
        data = self.member(name, most)
        members = about.get("members")
        stated = members.get(name) if isinstance(members, dict) else None
        wanted = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if stated != wanted:
            raise self.error(f"{name} was altered: its SHA-256 is not the one on record")
        return data

    def _names(self, about: Mapping[str, Any], key: str) -> list[str]:
        names = about.get(key)
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise self.error(f"{_METADATA}: {key} are no names")
        if len(set(names)) != len(names):
            raise self.error(f"{_METADATA}: {key} have the same names")
        return names

    def _graph(self, text: bytes) -> Graph:
        try:
            graph = parse(text.decode())
            verify(graph)
        except (ParseError, UnicodeDecodeError, InternalError) as error:
            raise self.error(f"{_GRAPH}: {error}") from None
        except (
            TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError,
            ArithmeticError, RecursionError, MemoryError, AssertionError,
        ) as error:  # fmt: skip
            # infer's refusals: of attributes of another kind too, which records trust to be right
            raise self.error(f"{_GRAPH}: {type(error).__name__}: {str(error)[:300]}") from None
        extra = graph.env.guards[text.count(b"\n  guard ") :]
        if extra:
            conditions = ", ".join(g.expression() for g in extra)
            raise self.error(f"{_GRAPH}: its types hold only where {conditions[:300]}")
        values = [i.value for i in graph.inputs] + [v for n in graph.nodes for v in n.outputs]
        for v in values:
            count = 1
            for d in v.type.shape:
                count *= hint(d)
                if hint(d) < 0 or count * v.type.dtype.itemsize > _MOST_BYTES:
                    raise self.error(f"{_GRAPH}: a value of type {str(v.type)[:200]}")
        kinds = {i.kind for i in graph.inputs} - {"arg", "state"}
        if kinds or graph.rebinds:
            raise self.error(f"{_GRAPH}: inputs of kind {kinds}, or slots; exported graphs lack it")
        if any(graph.inputs[w.input].kind != "state" for w in graph.writes):
            raise self.error(f"{_GRAPH}: it writes to what is no state")
        return graph

    def _structure(self, tree: Any, depth: int = 0) -> Structure:
        if tree is None:
            return LEAF
        if depth > _MOST_DEPTH or not isinstance(tree, dict) or len(tree) != 1:
            raise self.error(f"{_METADATA}: a tree is malformed")
        ((kind, held),) = tree.items()
        names: Any = None
        if kind == "dict" and isinstance(held, list) and len(held) == 2:
            names, held = held
            good = isinstance(names, list) and all(isinstance(n, str) for n in names)
            if not good or not isinstance(held, list) or len(names) != len(held):
                raise self.error(f"{_METADATA}: a tree is malformed")
        kinds: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict}
        known = kind in kinds and isinstance(held, list)
        if not known or (kind == "dict") != (names is not None):
            raise self.error(f"{_METADATA}: a tree is malformed")
        inside = tuple(self._structure(x, depth + 1) for x in held)
        return Structure(kinds[kind], None if names is None else tuple(names), inside)

    def _state(self, graph: Graph, data: bytes) -> dict[str, np.ndarray[Any, Any]]:
        try:
            arrays = read_safetensors(bytearray(data), self.name)
        except (RuntimeError, ValueError, TypeError) as error:
            raise self.error(f"{_STATE}: {error}") from None
        wanted = {i.name: i.value.type for i in graph.inputs if i.kind == "state"}
        if set(arrays) != set(wanted):
            odd = sorted(set(arrays) ^ set(wanted))[:5]
            raise self.error(f"{_STATE} and the graph differ in {odd}")
        state: dict[str, np.ndarray[Any, Any]] = {}
        for name, type in wanted.items():
            flat = arrays[name].reshape(-1)
            if type.dtype is dtypes.complex128 and flat.dtype == np.float64 and flat.size % 2 == 0:
                flat = flat.view(np.complex128)
            shape = tuple(hint(d) for d in type.shape)
            count = int(np.prod(shape, dtype=object)) if shape else 1
            if flat.dtype != type.dtype.np or flat.size != count:
                raise self.error(f"{_STATE}: {name!r} is no {type}")
            state[name] = np.array(flat.reshape(shape), order="C")
        return state
