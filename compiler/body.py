"""Body: a graph as an attribute of a node, what a loop or a branch computes; its reference run.

A Body is immutable, compared and hashed by the graph's text without source lines, so nodes that
hold equal graphs are equal. Its graph is pure: inputs, nodes, outputs; no writes and no rebinds.
Symbolic sizes in it are those of the graph around it: it has none of its own, and bodies with sizes
of different envs are not equal. Owns no op: ops/control.py has the records that hold bodies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.fixed_sizes import at_sizes
from jitgrad.compiler.ir import Graph, Node, Value, with_line
from jitgrad.compiler.symbolic import ShapeEnv, Sym
from jitgrad.compiler.text import to_text
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import InternalError


class Body:
    """A pure graph, held by a node.

    Attributes: `graph`, `inputs` and `outputs` (their types); `env`, whose symbolic sizes are in it
    (None: there are none).
    """

    __slots__ = ("_digest", "_runs", "env", "graph", "inputs", "outputs", "text")

    def __init__(self, graph: Graph) -> None:
        if graph.writes or graph.rebinds:
            raise InternalError(f"body {graph.name} has effects")
        self.graph = graph
        self.inputs: list[TensorType] = [i.value.type for i in graph.inputs]
        self.outputs: list[TensorType] = [v.type for v in graph.outputs]
        self.env = _env_of(graph)
        self.text = to_text(graph, names=False)
        self._digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        self._runs: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self.text == other.text and self.env is other.env

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:  # tells bodies apart: passes compare attributes by it
        return f"<Body {self._digest}>"

    def at(self, dims: Mapping[str, int]) -> Body:
        """The graph at given sizes (fixed_sizes.at_sizes)."""
        return self if self.env is None else _at(self, tuple(sorted(dims.items())))

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, by the references of the records. They may share memory with the operands.

        Whoever calls has turned NumPy's warnings off (ops/quiet.py), and put sizes in (`at`).
        """
        if self._runs is None:
            self._runs = _Steps(self.graph)
        steps: _Steps = self._runs
        return steps.run(arrays)


def _env_of(graph: Graph) -> ShapeEnv | None:
    """The env of the first symbolic size in a graph."""
    for item in graph.inputs:
        for d in item.value.type.shape:
            if isinstance(d, Sym):
                return d.env
    for node in graph.nodes:
        stack = [x for _, x in node.attrs]
        stack += [v.type.shape for v in node.outputs]
        while stack:
            x = stack.pop()
            if isinstance(x, tuple):
                stack += x
            elif isinstance(x, (Sym, Body)) and x.env is not None:
                return x.env
    return None


@lru_cache(256)
def _at(body: Body, dims: tuple[tuple[str, int], ...]) -> Body:
    return Body(at_sizes(body.graph, dict(dims)))


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
