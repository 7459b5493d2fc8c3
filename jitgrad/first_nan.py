"""Where a NaN came from: the first op of a recorded graph that makes one of operands without any.

Used by detect_anomaly: compiled code checks gradients natively (the engine records the checks), and
only when one failed is the graph run again, by the references, to say which line began it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad import gpu
from jitgrad.compiler.interpret import interpret_until
from jitgrad.compiler.ir import Graph, Node, Value


def is_nan(x: np.ndarray[Any, Any]) -> bool:
    """Whether some element is NaN."""
    return bool((x != x).any())


def first_nan(graph: Graph, arrays: Sequence[np.ndarray[Any, Any]], dims: Mapping[str, int]) -> str:
    """Which op makes the first NaN, as text, with its line; or which input has one already; or
    "". dims: the values of symbolic sizes."""
    for item, array in zip(graph.inputs, arrays, strict=True):
        if is_nan(array):
            return f"input {item.name!r} has nan values"

    def makes_one(node: Node, values: dict[Value, np.ndarray[Any, Any]]) -> bool:
        return any(is_nan(values[v]) for v in node.outputs)

    found = interpret_until(graph, arrays, makes_one, dims)
    if found is None:
        return ""
    operands = ", ".join(str(v.type) for v in found.inputs)
    return f"the first is made by {found.op.name}({operands}) at {found.line or 'an unknown line'}"


def watch_run(
    graph: Graph, compiled: Any, arrays: Sequence[np.ndarray[Any, Any]], dims: tuple[int, ...]
) -> Any:
    """Runs compiled code that was recorded under detect_anomaly; an error about NaN says, in a
    note, which op made the first one. (A call that fails has written nothing.)"""
    try:
        return compiled.run(arrays, dims)
    except RuntimeError as error:
        if "returned nan values" in str(error):
            named = dict(zip(graph.env.hints, dims, strict=True))
            found = first_nan(graph, gpu.kernels.on_host(graph, arrays), named)
            error.add_note(f"Of the nan values, {found or 'none is seen'}")
        raise
