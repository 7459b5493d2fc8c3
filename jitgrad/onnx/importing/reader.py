"""ONNX files as plain Python objects: parsed, checked, and never trusted.

Owns what a sound file is: sizes that fit their data, values that are defined once and before they
are used, functions that do not call themselves, external data inside the model's folder. What the
nodes mean is elsewhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from jitgrad.onnx.errors import OnnxLoadError

Array = np.ndarray[Any, Any]
MAX_NODES = 1_000_000  # of a graph with all calls of functions written out
_ITEM_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_DOMAINS = {"ai.onnx": ""}


@dataclass
class Port:
    """A declared input or output: name, element type (ONNX's number, 0 if not given), dims: ints,
    names of dims, or None; `dims` itself is None where the rank is not given. kind: "tensor",
    "sequence", "optional" or ""."""

    name: str
    type: int = 0
    dims: list[int | str | None] | None = None
    kind: str = "tensor"


@dataclass
class Node:
    """op_type of a domain; names of operands ("" is an absent one) and results."""

    op_type: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{self.name!r} ({op})" if self.name else op


@dataclass
class Graph:
    """A graph or subgraph. `initializers`: arrays by name."""

    name: str
    inputs: list[Port]
    outputs: list[Port]
    nodes: list[Node]
    initializers: dict[str, Array]


@dataclass
class Function:
    """A model's own op: its body, which knows only its inputs and attributes."""

    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    opsets: dict[str, int]
    defaults: dict[str, Any]


@dataclass
class Model:
    """What a file holds."""

    graph: Graph
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
    producer: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """An attribute of a function's node that is an attribute of the call."""

    name: str


def read_model(source: str | os.PathLike[str] | bytes) -> Model:
    """Reads and checks a file, or its bytes. Raises OnnxLoadError; OSError if it cannot be read."""
    folder: Path | None = None
    if isinstance(source, bytes):
        data, what = source, "the bytes"
    else:
        path = Path(source)
        data, what, folder = path.read_bytes(), str(path), path.parent
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception as error:  # protobuf's own classes
        raise OnnxLoadError(
            f"[onnx.load] expected an ONNX model; {what} cannot be parsed ({error}): truncated, "
            "altered, or another kind of file"
        ) from None
    return model_of(proto, folder, what)


def model_of(proto: onnx.ModelProto, folder: Path | None = None, what: str = "the model") -> Model:
    """A parsed model, checked. folder: where external data lies."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise OnnxLoadError(
            f"[onnx.load] expected an ONNX model; {what} has no graph or no opset: truncated, or "
            "another kind of file"
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise OnnxLoadError(
            f"[onnx.load] expected a format version of at most {onnx.IR_VERSION}, which the "
            f"installed onnx {onnx.__version__} knows; {what} has {proto.ir_version}"
        )
    reader = _Reader(folder)
    opsets = _opsets(proto.opset_import)
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opsets.get("", 1) <= newest:
        raise OnnxLoadError(
            f"[onnx.load] expected an opset from 1 to {newest}; {what} has {opsets['']}"
        )
    functions: dict[tuple[str, str], Function] = {}
    for f in proto.functions:
        made = reader.function(f)
        if (made.domain, made.name) in functions:
            raise OnnxLoadError(f"[onnx.load] the function {made.name!r} is defined twice")
        functions[made.domain, made.name] = made
    graph = reader.graph(proto.graph, set())
    metadata = {_text(e.key): _text(e.value) for e in proto.metadata_props}
    model = Model(graph, opsets, functions, _text(proto.producer_name), metadata)
    _check_functions(model)
    return model


def builtin_function(node: Node, opsets: Mapping[str, int]) -> Function | None:
    """ONNX's own definition of an op by other ops, if it has one that needs no types."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None
    found: Any = schema
    return _Reader(None).function(found.function_body) if found.has_function else None


def _opsets(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(o.domain): o.version for o in imports}


def _text(s: Any) -> str:
    """A name. (protobuf gives bytes for what is no UTF-8.)"""
    if not isinstance(s, str):
        raise OnnxLoadError(f"[onnx.load] {s!r} is a name that is no UTF-8: altered")
    return s


def _domain(s: Any) -> str:
    name = _text(s)
    return _DOMAINS.get(name, name)


class _Reader:
    """Turns protos into our objects."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def graph(self, g: onnx.GraphProto, outer: set[str]) -> Graph:
        """outer: the names that an enclosing graph has defined at this place."""
        if g.sparse_initializer:
            raise OnnxLoadError("[onnx.load] sparse initializers are not supported")
        initializers: dict[str, Array] = {}
        for t in g.initializer:
            if not _text(t.name) or t.name in initializers:
                raise OnnxLoadError(f"[onnx.load] an initializer's name, {t.name!r}, is not unique")
            initializers[t.name] = self.tensor(t)
        inputs = [_port(v) for v in g.input]
        outputs = [_port(v) for v in g.output]
        known = outer | set(initializers)
        seen: set[str] = set()
        for p in inputs:
            if not p.name or p.name in seen:
                raise OnnxLoadError(f"[onnx.load] an input's name, {p.name!r}, is not unique")
            seen.add(p.name)
        defined = known | seen
        own = seen | set(initializers)
        nodes = [self.node(n, defined, own) for n in g.node]
        for p in outputs:
            if p.name not in defined:
                raise OnnxLoadError(f"[onnx.load] the output {p.name!r} is given by no node")
        return Graph(_text(g.name), inputs, outputs, nodes, initializers)

    def function(self, f: onnx.FunctionProto) -> Function:
        defined, own = set(map(_text, f.input)), set(f.input)
        nodes = [self.node(n, defined, own) for n in f.node]
        for name in map(_text, f.output):
            if name not in defined:
                raise OnnxLoadError(
                    f"[onnx.load] the output {name!r} of function {f.name!r} is given by no node"
                )
        defaults = {_text(a.name): self.attribute(a, set()) for a in f.attribute_proto}
        return Function(
            _domain(f.domain), _text(f.name), list(f.input), list(f.output), nodes,
            _opsets(f.opset_import), defaults,
        )  # fmt: skip

    def node(self, n: onnx.NodeProto, defined: set[str], own: set[str]) -> Node:
        op_type = _text(n.op_type)
        label = f"{_text(n.name)!r} ({op_type})" if n.name else op_type
        for name in map(_text, n.input):
            if name and name not in defined:
                raise OnnxLoadError(
                    f"[onnx.load] node {label} takes {name!r}, which no initializer, input or "
                    "earlier node gives: the graph has a cycle, is not sorted, or lacks a part"
                )
        attributes = {}
        for a in n.attribute:
            if not _text(a.name) or a.name in attributes:
                raise OnnxLoadError(f"[onnx.load] node {label} has attribute {a.name!r} twice")
            attributes[a.name] = self.attribute(a, defined)
        for name in map(_text, n.output):
            if name and name in own:
                raise OnnxLoadError(
                    f"[onnx.load] node {label} gives {name!r}, which is there already"
                )
            if name:
                own.add(name)
                defined.add(name)
        return Node(op_type, _domain(n.domain), n.name, list(n.input), list(n.output), attributes)

    def attribute(self, a: onnx.AttributeProto, defined: set[str]) -> Any:
        if a.ref_attr_name:
            return Reference(_text(a.ref_attr_name))
        kinds = onnx.AttributeProto
        if a.type == kinds.FLOAT:
            return float(a.f)
        if a.type == kinds.INT:
            return int(a.i)
        if a.type == kinds.STRING:
            return a.s.decode("utf-8", "replace")
        if a.type == kinds.FLOATS:
            return [float(v) for v in a.floats]
        if a.type == kinds.INTS:
            return [int(v) for v in a.ints]
        if a.type == kinds.STRINGS:
            return [s.decode("utf-8", "replace") for s in a.strings]
        if a.type == kinds.TENSOR:
            return self.tensor(a.t)
        if a.type == kinds.TENSORS:
            return [self.tensor(t) for t in a.tensors]
        if a.type == kinds.GRAPH:
            return self.graph(a.g, set(defined))
        if a.type == kinds.GRAPHS:
            return [self.graph(g, set(defined)) for g in a.graphs]
        if a.type == kinds.TYPE_PROTO:
            return a.tp.WhichOneof("value") or ""
        raise OnnxLoadError(f"[onnx.load] attribute {a.name!r} is of a kind that is not supported")

    # -- tensors -------------------------------------------------------------------------------
    def tensor(self, t: onnx.TensorProto) -> Array:
        shape = tuple(t.dims)
        if any(d < 0 for d in shape):
            raise OnnxLoadError(f"[onnx.load] tensor {t.name!r} has the shape {list(shape)}")
        if t.HasField("segment"):
            raise OnnxLoadError(f"[onnx.load] tensor {t.name!r} is in segments: not supported")
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(t.data_type))
        except (KeyError, TypeError, ValueError):
            raise OnnxLoadError(
                f"[onnx.load] tensor {t.name!r} has the element type {t.data_type}, which ONNX has "
                "not"
            ) from None
        count = math.prod(shape)
        if t.data_location == onnx.TensorProto.EXTERNAL:
            raw = self.external(t, count * dtype.itemsize)
            return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        if t.data_type == onnx.TensorProto.STRING:
            have, needs = len(t.string_data), count
        elif t.HasField("raw_data"):
            bits = _bits(t.data_type, dtype)
            have, needs = len(t.raw_data), (count * bits + 7) // 8
        else:
            have = sum(len(getattr(t, name)) for name in _ITEM_FIELDS)
            needs = _stored(t.data_type, count, dtype)
        if have != needs:
            raise OnnxLoadError(
                f"[onnx.load] tensor {t.name!r} of shape {list(shape)} needs {needs} of data; it "
                f"holds {have}: truncated or altered"
            )
        try:
            return np.array(numpy_helper.to_array(t), order="C")
        except Exception as error:
            raise OnnxLoadError(f"[onnx.load] tensor {t.name!r} cannot be read: {error}") from None

    def external(self, t: onnx.TensorProto, size: int) -> bytes:
        """Data in another file of the model's folder."""
        entries = {_text(e.key): _text(e.value) for e in t.external_data}
        location = entries.get("location", "")
        where = f"[onnx.load] tensor {t.name!r} has its data in {location!r}"
        if self.folder is None:
            raise OnnxLoadError(f"{where}; load the model by its path, beside that file")
        folder = self.folder.resolve()
        named = location and "\0" not in location and not os.path.isabs(location)
        path = Path(os.path.realpath(folder / location)) if named else folder
        if folder not in path.parents:
            raise OnnxLoadError(f"{where}, which is outside of the model's folder")
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", size))
        except ValueError:
            raise OnnxLoadError(f"{where}, with an offset or length that is no number") from None
        if length != size:
            raise OnnxLoadError(f"{where}: its shape needs {size} bytes; the entry has {length}")
        try:
            with open(path, "rb") as file:
                available = os.fstat(file.fileno()).st_size
                if not path.is_file() or offset < 0 or offset + size > available:
                    raise OnnxLoadError(
                        f"{where}, bytes {offset} to {offset + size}; the file has {available}"
                    )
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise OnnxLoadError(f"{where}, which cannot be read: {error.strerror}") from None


def _bits(kind: int, dtype: np.dtype[Any]) -> int:
    """Bits of one element in raw data: some types are packed."""
    name = onnx.TensorProto.DataType.Name(kind)
    for packed, bits in (("INT4", 4), ("FLOAT4", 4), ("INT2", 2)):
        if packed in name:
            return bits
    return dtype.itemsize * 8


def _stored(kind: int, count: int, dtype: np.dtype[Any]) -> int:
    """How many numbers the repeated fields hold for `count` elements."""
    if dtype.kind == "c":
        return 2 * count
    bits = _bits(kind, dtype)
    return (count * bits + 7) // 8 if bits < 8 else count


def _port(v: onnx.ValueInfoProto) -> Port:
    kind = v.type.WhichOneof("value") or ""
    if kind != "tensor_type":
        return Port(_text(v.name), 0, None, kind.removesuffix("_type"))
    t = v.type.tensor_type
    dims: list[int | str | None] | None = None
    if t.HasField("shape"):
        dims = []
        for d in t.shape.dim:
            which = d.WhichOneof("value")
            dims.append(
                _text(d.dim_param) if which == "dim_param" else d.dim_value if which else None
            )
    return Port(_text(v.name), t.elem_type, dims)


# -- functions ------------------------------------------------------------------------------------
def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes, and those of their subgraphs."""
    for n in nodes:
        yield n
        for value in n.attributes.values():
            for g in value if isinstance(value, list) else [value]:
                if isinstance(g, Graph):
                    yield from walk(g.nodes)


def _check_functions(model: Model) -> None:
    """Raises OnnxLoadError for functions that call themselves, and for ones that grow too much."""
    sizes: dict[tuple[str, str], int] = {}
    active: list[tuple[str, str]] = []

    def size(key: tuple[str, str]) -> int:
        if key in active:
            raise OnnxLoadError(
                "[onnx.load] functions call each other in a circle: "
                + " -> ".join(name for _, name in [*active, key])
            )
        if key not in sizes:
            if len(active) > 200:
                raise OnnxLoadError("[onnx.load] functions call each other too deeply")
            active.append(key)
            sizes[key] = total(model.functions[key].nodes)
            active.pop()
        return sizes[key]

    def total(nodes: Sequence[Node]) -> int:
        count = 0
        for n in walk(nodes):
            key = (n.domain, n.op_type)
            count += size(key) if key in model.functions else 1
            if count > MAX_NODES:
                raise OnnxLoadError(f"[onnx.load] the model has more than {MAX_NODES:,} nodes")
        return count

    for key in model.functions:
        size(key)
    total(model.graph.nodes)
