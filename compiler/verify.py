"""The verifier: what must hold of every Graph, before and after every pass.

Operands are defined before they are used; each node's types are those its op infers; results are
values of the graph; writes name inputs of the same type; input names are unique; attributes are
hashable and print. Raises InternalError, naming the pass: a broken graph is our bug.
"""

from __future__ import annotations

from jitgrad.compiler.ir import Graph, Value
from jitgrad.runtime.errors import InternalError


def verify(graph: Graph, after: str = "") -> None:
    """Checks a whole graph. `after` names the pass that made it."""
    where = f" after {after}" if after else ""

    def fail(message: str) -> InternalError:
        return InternalError(f"graph {graph.name}{where}: {message}")

    known: set[Value] = {i.value for i in graph.inputs}
    if len(known) != len(graph.inputs):
        raise fail("a value is an input twice")
    names = [i.name for i in graph.inputs]
    if len(set(names)) != len(names):
        raise fail(f"input names are not unique: {sorted(n for n in names if names.count(n) > 1)}")
    for node in graph.nodes:
        for v in node.inputs:
            if v not in known:
                raise fail(f"{node} reads {v}, which is not defined before it")
        try:
            hash(node.attrs)
        except TypeError:
            raise fail(f"{node} has an attribute that is not hashable: {node.attrs}") from None
        types = node.op.infer(*(v.type for v in node.inputs), **node.attr)
        inferred = types if isinstance(types, tuple) else (types,)
        if tuple(v.type for v in node.outputs) != tuple(inferred):
            raise fail(f"{node} has outputs {node.outputs}, but infers {inferred}")
        known.update(node.outputs)
    for v in graph.results():
        if v not in known:
            raise fail(f"result {v} is not defined")
    for w in graph.writes:
        if not 0 <= w.input < len(graph.inputs):
            raise fail(f"write to input {w.input}, of {len(graph.inputs)}")
        target = graph.inputs[w.input].value
        if w.value.type != target.type:
            raise fail(f"write of {w.value.type} to an input of {target.type}")
    if len({w.input for w in graph.writes}) != len(graph.writes):
        raise fail("an input is written twice")
