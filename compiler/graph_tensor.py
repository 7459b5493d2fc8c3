"""GraphTensor: a graph value with the face that records call, so that their rules build nodes.

Derivatives and batching rules of records are written with calls of other records; given
GraphTensors, those calls append nodes to the graph of their operands. Owns nothing else.
"""

from __future__ import annotations

from typing import Any

from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym, plain


class GraphTensor:
    """A value of `graph`; what is computed with it becomes nodes there, of source line `line`."""

    __slots__ = ("graph", "line", "value")

    def __init__(self, graph: Graph, value: Value, line: str) -> None:
        self.graph, self.value, self.line = graph, value, line

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.value.type.shape

    @property
    def dtype(self) -> Any:
        return self.value.type.dtype

    @property
    def device(self) -> str:
        return self.value.type.device

    @property
    def ndim(self) -> int:
        return len(self.value.type.shape)

    def _bind(self, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        add = self.graph.add_node
        inputs = []
        for x in operands:
            if not isinstance(x, GraphTensor):
                number = {"shape": (), "value": x, "dtype": self.dtype, "device": self.device}
                x = GraphTensor(self.graph, add(OPS["full"], (), number)[0], self.line)
            inputs.append(x.value)
        made = [
            GraphTensor(self.graph, v, self.line)
            for v in add(op, inputs, plain_attrs(attrs), self.line)
        ]
        return made[0] if op.nout == 1 else tuple(made)


def plain_dims(x: Any) -> Any:
    """A value of an attribute with plain Syms, and tuples for lists, in it."""
    if isinstance(x, Sym):
        return plain(x)
    if type(x) is tuple and not any(isinstance(y, (Sym, tuple, list)) for y in x):
        return x
    return tuple(map(plain_dims, x)) if isinstance(x, (tuple, list)) else x


def plain_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes with plain tuples, strs and Syms in place of subclasses and lists."""
    out = {}
    for name, value in attrs.items():
        if isinstance(value, (tuple, list, Sym)):
            value = plain_dims(value)
        elif isinstance(value, str) and type(value) is not str:
            value = str.__str__(value)
        out[name] = value
    return out
