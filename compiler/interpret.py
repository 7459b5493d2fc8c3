"""interpret: runs a graph node by node with the records' references. Slow, and obviously right.

The oracle of `jit(check=True)` and of tests; it compiles nothing and changes none of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.runtime.errors import InternalError


def interpret(graph: Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays of `graph.results()`, in order: outputs, values of writes, values of rebinds.

    arrays: one for each graph input. Results share no memory with inputs or each other.
    """
    values = interpret_all(graph, arrays)
    return [np.array(values[v], order="C", copy=True) for v in graph.results()]


def interpret_all(graph: Graph, arrays: Sequence[np.ndarray]) -> dict[Value, np.ndarray]:
    """The array of every value of the graph."""
    if len(arrays) != len(graph.inputs):
        raise InternalError(f"expected {len(graph.inputs)} arrays; got {len(arrays)}")
    values = {item.value: array for item, array in zip(graph.inputs, arrays, strict=True)}
    with Quiet():
        for node in graph.nodes:
            found = node.op.reference(*(values[v] for v in node.inputs), **node.attr)
            many = found if isinstance(found, tuple) else (found,)
            values.update(zip(node.outputs, many, strict=True))
    return values
