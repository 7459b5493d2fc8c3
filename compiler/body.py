"""Body: a graph as an attribute of a node, what a loop or a branch computes; its reference run.

A Body is immutable, compared and hashed by the graph's text without source lines, so nodes that
hold equal graphs are equal. Its graph is pure: inputs, nodes, outputs; no writes and no rebinds.
Owns no op: ops/control.py has the records that hold bodies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ir import Graph, Node, Value, with_line
from jitgrad.compiler.text import to_text
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import InternalError


class Body:
    """A pure graph, held by a node. Attributes: `graph`, `inputs` and `outputs` (their types)."""

    __slots__ = ("_digest", "_runs", "graph", "inputs", "outputs", "text")

    def __init__(self, graph: Graph) -> None:
        if graph.writes or graph.rebinds:
            raise InternalError(f"body {graph.name} has effects")
        self.graph = graph
        self.inputs: list[TensorType] = [i.value.type for i in graph.inputs]
        self.outputs: list[TensorType] = [v.type for v in graph.outputs]
        self.text = to_text(graph, names=False)
        self._digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        self._runs: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:  # tells bodies apart: passes compare attributes by it
        return f"<Body {self._digest}>"

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, by the references of the records. They may share memory with the operands.

        Whoever calls has turned NumPy's warnings off (ops/quiet.py).
        """
        if self._runs is None:
            self._runs = _Steps(self.graph)
        steps: _Steps = self._runs
        return steps.run(arrays)


class _Steps:
    """The graph as a list of calls on numbered places."""

    def __init__(self, graph: Graph) -> None:
        place: dict[Value, int] = {}
        for item in graph.inputs:
            place[item.value] = len(place)
        self.calls: list[tuple[Any, tuple[int, ...], dict[str, Any], bool, Node]] = []
        for node in graph.nodes:
            for v in node.outputs:
                place[v] = len(place)
            wheres = tuple(place[v] for v in node.inputs)
            kernel = node.op.kernel([v.type for v in node.inputs], node.attr)
            attrs = {} if kernel else node.attr
            call = kernel or node.op.reference
            self.calls.append((call, wheres, attrs, node.op.nout > 1, node))
        self.outputs = [place[v] for v in graph.outputs]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: list[Any] = list(arrays)
        for kernel, wheres, attrs, many, node in self.calls:
            try:
                found = kernel(*[values[k] for k in wheres], **attrs)
            except Exception as error:
                raise _located(error, node)  # noqa: B904 (the error itself, its text completed)
            if many:
                values.extend(found)
            else:
                values.append(found if type(found) is np.ndarray else np.asarray(found))
        return [values[k] for k in self.outputs]


def _located(error: Exception, node: Node) -> BaseException:
    """The error with the line of the node inside, if it names none yet."""
    named = error.args and isinstance(error.args[0], str) and " (at " in error.args[0]
    return error if named else with_line(error, node)
