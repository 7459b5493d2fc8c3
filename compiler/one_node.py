"""Small graphs, mostly of one node, that eager code compiles (kernels.py, composite_records.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.compiled import Compiled
from jitgrad.compiler.graph_cache import find_compiled
from jitgrad.compiler.ir import Graph, Input, Node, Value
from jitgrad.compiler.ops.record import Op
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.compiler.types import TensorType


def compile_op(
    op: Op, types: Sequence[TensorType], attrs: dict[str, Any], env: ShapeEnv | None = None
) -> Compiled:
    """An op on operands of these types, compiled; env has their symbolic dims. Raises as
    `compile_graph` does."""
    values = [Value(t, name=f"x{i}") for i, t in enumerate(types)]
    node = Node(op, values, attrs)
    graph = Graph(name=op.name, env=env or ShapeEnv())
    graph.inputs = [Input(v, "arg", v.name) for v in values]
    graph.nodes, graph.outputs = [node], list(node.outputs)
    return compile_small(graph)


def compile_small(graph: Graph) -> Compiled:
    """The graph compiled; what was compiled before imports no pass and no generator."""
    found = find_compiled(graph)
    if found is not None:
        return found
    from jitgrad.compiler.pipeline import compile_graph

    return compile_graph(graph)
