"""Writer: the nodes, constants and names of one ONNX graph, while records add to it.

Owns what `Op.onnx` builds with (the protocol `OnnxContext` of compiler/ops/record.py): unique
names, constants stored once, symbolic sizes computed by nodes. Which graph is written, and to which
file, is exporter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.symbolic import Dim, Func, Sym
from jitgrad.compiler.types import TensorType
from jitgrad.onnx.opsets import adapt, check_node
from jitgrad.onnx.types import number_of
from jitgrad.runtime.dtypes import DType

Inline = Callable[["Writer", Graph, Sequence[str]], list[str]]
_FUNCS = {"max": "Max", "min": "Min"}


class Writer:
    """Collects one graph.

    Attributes:
        constants, nodes: protos, in order; constants go first.
        domains: the domains of the nodes, besides ONNX's own.
        captured: names that nodes of subgraphs read.
    """

    def __init__(self, opset: int, inline: Inline) -> None:
        self.opset = opset
        self._inline = inline
        self.captured: set[str] = set()
        self._inside = False
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.NodeProto] = []
        self.domains: dict[str, int] = {}
        self._types: dict[str, TensorType] = {}
        self._taken: set[str] = set()
        self._constants: dict[Any, str] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._dims: dict[str, tuple[str, int]] = {}
        self._sizes: dict[str, str] = {}
        self._prefix, self._line = "", ""

    # -- names and types -----------------------------------------------------------------------
    def declare(self, name: str, type: TensorType) -> str:
        """A value of this very name that exists beside the nodes: an input or a weight."""
        self._taken.add(name)
        self._types[name] = type
        return name

    def declare_dims(self, name: str, type: TensorType) -> None:
        """Remembers which symbolic dims an input shows by themselves."""
        for k, d in enumerate(type.shape):
            if isinstance(d, Sym):
                self._dims.setdefault(str(d), (name, k))

    def at(self, prefix: str, line: str) -> None:
        """What is added from here on comes from this op, at the user's line."""
        self._prefix, self._line = prefix, line

    def typed(self, name: str, type: TensorType) -> None:
        """Says of what type a value is that nodes made."""
        self._types[name] = type

    def _new(self, base: str) -> str:
        name, n = base, 1
        while name in self._taken:
            name, n = f"{base}_{n}", n + 1
        self._taken.add(name)
        return name

    # -- OnnxContext ---------------------------------------------------------------------------
    def node(
        self, op_type: str, inputs: Sequence[str], outputs: int = 1, domain: str = "",
        version: int = 1, **attributes: Any,
    ) -> Any:  # fmt: skip
        """Adds a node; returns its output's name (a tuple of names when outputs > 1).

        domain, version: of an op that is not ONNX's own, and of its domain's opset.
        """
        given = list(inputs)
        if domain:
            self.domains[domain] = max(version, self.domains.get(domain, 0))
        else:
            op_type, given, attributes = adapt(op_type, given, attributes, self.opset, self._arrays)
            types = [self._types.get(n) for n in given]
            check_node(op_type, types, attributes, self.opset)
        names = [self._new(f"{self._prefix or op_type}_{len(self.nodes)}") for _ in range(outputs)]
        if self._inside:
            self.captured.update(given)
        node = helper.make_node(
            op_type, given, names, name=names[0], doc_string=self._line or None,
            domain=domain or None, **attributes,
        )  # fmt: skip
        self.nodes.append(node)
        return tuple(names) if outputs > 1 else names[0]

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """A Constant node (initializers are the weights); equal small ones are one."""
        dense = np.array(array, order="C")
        key: Any = (dense.dtype.name, dense.shape, dense.tobytes())
        if dense.nbytes > 4096:
            key = object()
        if key not in self._constants:
            name = self._new(f"constant_{len(self._constants)}")
            value = numpy_helper.from_array(dense, name)
            self.constants.append(helper.make_node("Constant", [], [name], name=name, value=value))
            self._constants[key] = name
            self._arrays[name] = dense
        return self._constants[key]

    def shape(self, dims: Sequence[Dim]) -> str:
        """An int64 vector of these dims: a constant, computed where some are symbolic."""
        if not any(isinstance(d, Sym) for d in dims):
            return self.constant(np.array([int(d) for d in dims], np.int64))
        parts = [self._size(d) for d in dims]
        return parts[0] if len(parts) == 1 else str(self.node("Concat", parts, axis=0))

    def inline(self, graph: Graph, inputs: Sequence[str]) -> list[str]:
        """Adds the nodes of a graph on these values; returns the names of its outputs."""
        before = self._prefix, self._line
        found = self._inline(self, graph, inputs)
        self._prefix, self._line = before
        return found

    def subgraph(
        self, types: Sequence[TensorType], outputs: Sequence[TensorType],
        build: Callable[[Writer, list[str]], Sequence[str]],
    ) -> onnx.GraphProto:  # fmt: skip
        """A graph for an attribute, with inputs and outputs of these types, of what `build(writer,
        names of the inputs)` adds; its outputs are the names that it returns. It may read values
        around it."""
        inner = Writer(self.opset, self._inline)
        inner._inside, inner.captured, inner.domains = True, self.captured, self.domains
        inner._taken, inner._prefix, inner._line = self._taken, self._prefix, self._line
        inner._types, inner._arrays = dict(self._types), dict(self._arrays)
        inner._constants, inner._dims = dict(self._constants), dict(self._dims)
        inner._sizes = dict(self._sizes)
        names = [inner.declare(inner._new(f"{self._prefix}_in"), t) for t in types]
        results: list[str] = []
        for name in build(inner, names):
            made = any(name in node.output for node in inner.nodes)
            if not made or name in results:
                name = inner.node("Identity", [name])
            results.append(name)
        return helper.make_graph(
            [*inner.constants, *inner.nodes],
            f"{self._prefix}_body",
            [value_info(n, t) for n, t in zip(names, types, strict=True)],
            [value_info(n, t) for n, t in zip(results, outputs, strict=True)],
        )

    def type(self, name: str) -> TensorType:
        """The type of an operand of the op that is being exported."""
        return self._types[name]

    def onnx_dtype(self, dtype: DType) -> int:
        """ONNX's number of a dtype."""
        return number_of(dtype)

    # -- symbolic sizes ------------------------------------------------------------------------
    def _size(self, d: Dim) -> str:
        """A vector of one element that holds the size."""
        if not isinstance(d, Sym):
            return self.constant(np.array([d], np.int64))
        known = self._sizes.get(str(d))
        if known is None:
            known = self._sizes[str(d)] = self._compute(d)
        return known

    def _compute(self, d: Sym) -> str:
        total = ""
        for factors, coefficient in d.key:
            product = ""
            if coefficient != 1 or not factors:
                product = self.constant(np.array([coefficient], np.int64))
            for atom in factors:
                size = self._call(atom) if isinstance(atom, Func) else self._named(atom)
                product = self.node("Mul", [product, size]) if product else size
            total = self.node("Add", [total, product]) if total else product
        return total

    def _named(self, name: str) -> str:
        known = self._sizes.get(name)
        if known is None:
            source, axis = self._dims[name]
            known = self.node("Shape", [source], start=axis, end=axis + 1)
            self._sizes[name] = known
        return known

    def _call(self, f: Func) -> str:
        operands = [self._size(f.a), self._size(f.b)]
        if f.name in ("mod", "floordiv"):
            rest = str(self.node("Mod", operands))  # rounds down, as Python does; Div does not
            if f.name == "mod":
                return rest
            return str(self.node("Div", [self.node("Sub", [operands[0], rest]), operands[1]]))
        return str(self.node(_FUNCS[f.name], operands))


def value_info(name: str, t: TensorType) -> onnx.ValueInfoProto:
    """The declaration of an input or output."""
    dims = [str(d) if isinstance(d, Sym) else d for d in t.shape]
    return helper.make_tensor_value_info(name, number_of(t.dtype), dims)
