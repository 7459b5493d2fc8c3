"""Derivatives and batches of whole graphs: what the rules of records are to one op.

Each function appends to a graph the nodes of another and of what is derived from them, by the
records' own rules (`vjp`, `jvp`, `batch`) on GraphTensors. Control flow (ops/control.py) derives
its bodies so; the tape of eager code does not come here.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.ir import Graph, Node, Value
from jitgrad.compiler.ops.record import Op, op, zeros_like
from jitgrad.compiler.types import TensorType

Tensors = dict[Value, GraphTensor]
"""What stands, in the graph that is being built, for the values of the graph that is read."""


def is_real(t: TensorType) -> bool:
    """Whether values of the type have derivatives."""
    return t.dtype.is_floating_point or t.dtype.is_complex


def start(graph: Graph, values: Sequence[Value], kind: str) -> Tensors:
    """New inputs of `graph`, "kind0", ..., for these values."""
    return {v: add_input(graph, v.type, f"{kind}{i}") for i, v in enumerate(values)}


def add_input(graph: Graph, type_: TensorType, name: str) -> GraphTensor:
    return GraphTensor(graph, graph.add_input(type_, "arg", name), "")


def copy_nodes(nodes: Sequence[Node], to: Graph, have: Tensors) -> list[Node]:
    """Copies nodes to the graph; adds their results to `have`. Returns the copies."""
    made = []
    for node in nodes:
        outputs = to.add_node(node.op, [have[v].value for v in node.inputs], node.attrs, node.line)
        made.append(to.nodes[-1])
        for v, new in zip(node.outputs, outputs, strict=True):
            have[v] = GraphTensor(to, new, node.line)
    return made


def reverse(
    nodes: Sequence[Node], have: Tensors, cotangents: Tensors, wanted: Sequence[Value]
) -> list[GraphTensor | None]:
    """Runs the nodes backwards: the cotangents of `wanted` from those of some values.

    have: every value of the nodes. wanted: inputs of the nodes' graph. Contributions to one value
    are added in the order of eager code's tape: that of its last reader first. None: no result
    depends on the value.
    """
    active = _depending(nodes, wanted)
    sums = dict(cotangents)
    for node in reversed(nodes):
        given = [sums.pop(v, None) for v in node.outputs]
        if not node.op.differentiable or not any(v in active for v in node.inputs):
            continue
        if all(g is None for g in given):
            continue
        found = _pull(node, given, have, [v in active for v in node.inputs])
        for v, g in zip(node.inputs, found, strict=True):
            if g is not None and v in active:
                known = sums.get(v)
                sums[v] = g if known is None else op.add(known, g)
    return [sums.get(v) for v in wanted]


def _depending(nodes: Sequence[Node], starts: Sequence[Value]) -> set[Value]:
    """The real values that depend on one of these."""
    active = {v for v in starts if is_real(v.type)}
    for node in nodes:
        if node.op.differentiable and any(v in active for v in node.inputs):
            active.update(v for v in node.outputs if is_real(v.type))
    return active


def _pull(
    node: Node, given: list[GraphTensor | None], have: Tensors, needs: list[bool]
) -> tuple[GraphTensor | None, ...]:
    """The record's vjp, as the tape calls it."""
    operands = [have[v] for v in node.inputs]
    outs = tuple(have[v] for v in node.outputs)
    attrs = node.attr
    if node.op.chooses:
        attrs["needs"] = needs
    if node.op.nout == 1:
        return tuple(node.op.vjp(given[0], outs[0], *operands, **attrs))
    full = [
        zeros_like(y) if g is None and is_real(y.value.type) and not node.op.sparse else g
        for g, y in zip(given, outs, strict=True)
    ]
    return tuple(node.op.vjp(tuple(full), outs, *operands, **attrs))


def forward(nodes: Sequence[Node], have: Tensors, tangents: Tensors) -> None:
    """Pushes tangents through the nodes: adds to `tangents` those of their results, where they are
    not zero. have: every value of the nodes."""
    for node in nodes:
        given = tuple(tangents.get(v) for v in node.inputs)
        if not node.op.differentiable or all(t is None for t in given):
            continue
        outs = tuple(have[v] for v in node.outputs)
        operands = [have[v] for v in node.inputs]
        many = node.op.nout > 1
        found = node.op.jvp(given, outs if many else outs[0], *operands, **node.attr)
        for v, t in zip(node.outputs, found if many else (found,), strict=True):
            if t is not None and is_real(v.type):
                tangents[v] = t


def batch(nodes: Sequence[Node], to: Graph, have: Tensors, batched: set[Value]) -> None:
    """Copies nodes, mapped over a new leading axis of the values in `batched`; adds to both."""
    for node in nodes:
        flags = [v in batched for v in node.inputs]
        if not any(flags):
            copy_nodes([node], to, have)
            continue
        if type(node.op).batch is Op.batch or node.op.random:
            raise RuntimeError(
                f"[vmap] {node.op.name} inside control flow has no batching rule; map over the "
                "function with the loop in Python, or move it out"
            )
        found = node.op.batch([have[v] for v in node.inputs], flags, **node.attr)
        for v, y in zip(node.outputs, found if node.op.nout > 1 else (found,), strict=True):
            have[v] = y
            batched.add(v)


def needed_nodes(nodes: Sequence[Node], results: Sequence[Value], stop: set[Value]) -> set[Node]:
    """The nodes that these values are computed by, from the values in `stop` on."""
    needed = {v for v in results if v not in stop}
    useful: set[Node] = set()
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs):
            useful.add(node)
            needed.update(v for v in node.inputs if v not in stop)
    return useful
