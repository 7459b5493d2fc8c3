"""interpret: runs a graph node by node with the records' references. Slow, and obviously right.

The oracle of `jit(check=True)` and of tests, and what finds the words for a fault that compiled
code flagged; it compiles nothing and changes none of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jitgrad.compiler.fixed_sizes import concrete
from jitgrad.compiler.ir import Graph, Node, Value, inner_nodes, with_line
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import Check
from jitgrad.runtime.errors import InternalError


def interpret(
    graph: Graph, arrays: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The arrays of `graph.results()`, in order: outputs, values of writes, values of rebinds.

    arrays: one for each graph input. dims: the values of symbolic dims. Results share no memory
    with inputs or each other.
    """
    values = interpret_all(graph, arrays, dims)
    return [np.array(values[v], order="C", copy=True) for v in graph.results()]


def interpret_all(
    graph: Graph,
    arrays: Sequence[np.ndarray],
    dims: Mapping[str, int] | None = None,
    disturb: Callable[[np.ndarray], np.ndarray] = lambda array: array,
) -> dict[Value, np.ndarray]:
    """The array of every value of the graph. disturb: what becomes of each before it is used."""
    if len(arrays) != len(graph.inputs):
        raise InternalError(f"expected {len(graph.inputs)} arrays; got {len(arrays)}")
    values = {item.value: disturb(a) for item, a in zip(graph.inputs, arrays, strict=True)}
    with Quiet():
        for node in graph.nodes:
            attrs = {k: concrete(v, dims or {}) for k, v in node.attr.items()}
            found = node.op.reference(*(values[v] for v in node.inputs), **attrs)
            many = found if isinstance(found, tuple) else (found,)
            values.update(zip(node.outputs, map(disturb, many), strict=True))
    return values


def interpret_until(
    graph: Graph,
    arrays: Sequence[np.ndarray],
    found: Callable[[Node, dict[Value, np.ndarray]], bool],
    dims: Mapping[str, int],
) -> Node | None:
    """The first node after which `found` is true of it and the values so far; None if there is
    none, or an op raises. dims: the values of symbolic dims."""
    values = {item.value: array for item, array in zip(graph.inputs, arrays, strict=True)}
    with Quiet():
        for node in graph.nodes:
            try:
                attrs = {k: concrete(v, dims) for k, v in node.attr.items()}
                made = node.op.reference(*(values[v] for v in node.inputs), **attrs)
            except (RuntimeError, ValueError, IndexError):
                return None
            many = made if isinstance(made, tuple) else (made,)
            values.update(zip(node.outputs, many, strict=True))
            if found(node, values):
                return node
    return None


def first_fault(
    graph: Graph, arrays: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> BaseException | None:
    """The error that eager code would have raised: of the first node whose check an element fails.

    Runs only what checked operands need. dims: the values of symbolic dims. None when all hold.
    """
    needed: set[Value] = set()
    useful: set[Node] = set()
    for node in reversed(graph.nodes):
        if any(v in needed for v in node.outputs):
            useful.add(node)
            needed.update(node.inputs)
        if any(inner.op.checked for inner in inner_nodes(node)):
            useful.add(node)
            needed.update(node.inputs)
        needed.update(node.inputs[c.operand] for c in node_checks(node))
    values = {item.value: array for item, array in zip(graph.inputs, arrays, strict=True)}
    known = dims or {}
    with Quiet():
        for node in graph.nodes:
            for c in node_checks(node):
                c = replace(c, low=concrete(c.low, known), high=concrete(c.high, known))
                value = c.first(values[node.inputs[c.operand]])
                if value is not None:
                    return with_line(node.op.failed(c, value, node.attr), node)
            if node in useful:
                attrs = {k: concrete(v, known) for k, v in node.attr.items()}
                try:
                    found = node.op.reference(*(values[v] for v in node.inputs), **attrs)
                except Exception as error:
                    if not node.op.bodies:
                        raise
                    return with_line(error, node)
                many = found if isinstance(found, tuple) else (found,)
                values.update(zip(node.outputs, many, strict=True))
    return None


def unknown_fault(node: Node) -> BaseException:
    """The error of a node of whose elements one failed a check, it is not known which."""
    errors = [
        n.op.failed(c, None, n.attr) for n in (node, *inner_nodes(node)) for c in node_checks(n)
    ]
    if not errors:
        errors = [RuntimeError(f"[{node.op.name}] a function called inside failed")]
    return with_line(type(errors[0])(" or ".join(map(str, errors))), node)


def node_checks(node: Node) -> Sequence[Check]:
    """What a node asks of its operands' elements."""
    return node.op.checks([v.type for v in node.inputs], node.attr) if node.op.checked else ()
