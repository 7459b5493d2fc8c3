"""Simplification of the tensor graph: no-ops, algebra, constants, common subexpressions, dead code.

Before: any verified graph. After: an equal graph, bit for bit, in which no two nodes compute the
same thing, no node is a no-op by its record (`Op.noop`), and every node is needed by a result or
may raise an error (`Op.checks`).
Ops whose record says `exact` are folded when all operands are constants.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.body import Body
from jitgrad.compiler.interpret import node_checks
from jitgrad.compiler.ir import Graph, Node, Value, inner_nodes
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.passes.rules import Pattern, Rule, constant, match_node, rules_by_op

_RULES: dict[str, list[Rule]] = rules_by_op()


def simplify(graph: Graph, calls: bool = False) -> Graph:
    """One forward sweep over the nodes, then dead-code removal. calls: records that say `inlined`
    stay as they are, instead of the graphs that they hold."""
    replace: dict[Value, Value] = {}
    seen: dict[Any, Node] = {}
    nodes: list[Node] = []

    def emit(node: Node) -> tuple[Value, ...]:
        """Appends a node, or finds its equal."""
        key = (node.op.name, node.inputs, _exact_key(node.attrs))
        if not node.op.random:
            found = seen.get(key)
            if found is not None:
                return found.outputs
            seen[key] = node
        nodes.append(node)
        return node.outputs

    def build(pattern: Pattern, bound: dict[str, Value], line: str) -> Value:
        if isinstance(pattern, str):
            return bound[pattern]
        assert isinstance(pattern, tuple)
        inputs = [build(p, bound, line) for p in pattern[1]]
        return emit(Node(OPS[pattern[0]], inputs, {}, line))[0]

    def visit(among: list[Node]) -> None:
        for old in among:
            inputs = tuple(replace.get(v, v) for v in old.inputs)
            if old.op.inlined and not calls:
                called: Graph = old.attr[old.op.bodies[0]].graph
                replace.update(zip((i.value for i in called.inputs), inputs, strict=True))
                visit(called.nodes)
                found = (replace.get(v, v) for v in called.outputs)
                replace.update(zip(old.outputs, found, strict=True))
                continue
            node = old if inputs == old.inputs else Node(old.op, inputs, old.attrs, old.line)
            if node.op.bodies:
                node = _with_bodies(node, calls)
            outputs = _noop(node) or _fold(node, emit)
            if outputs is None:
                for rule in _RULES.get(node.op.name, ()):
                    bound: dict[str, Value] = {}
                    if match_node(rule.pattern, node, bound):
                        new = build(rule.replacement, bound, node.line)
                        if new.type == node.outputs[0].type:
                            outputs = (new,)
                            break
            if outputs is None:
                outputs = emit(node)
            for before, after in zip(old.outputs, outputs, strict=True):
                if before is not after:
                    replace[before] = after

    visit(graph.nodes)
    return remove_dead(graph.with_(nodes, replace))


def _exact_key(attrs: Any) -> Any:
    """Attributes as a key that tells 0.0 from -0.0 and 1 from True."""
    return repr(attrs)


def _noop(node: Node) -> tuple[Value, ...] | None:
    if node.op.noop and len(node.outputs) == 1 and node.inputs:
        if node.inputs[0].type == node.outputs[0].type:
            return (node.inputs[0],)
    return None


def _fold(node: Node, emit: Any) -> tuple[Value, ...] | None:
    """A constant in place of an exact op of constants."""
    if not node.op.exact or not node.inputs or len(node.outputs) != 1:
        return None
    values = [constant(v) for v in node.inputs]
    if any(v is None for v in values):
        return None
    arrays = [np.full((), c, v.type.dtype.np) for c, v in zip(values, node.inputs, strict=True)]
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(node.op.reference(*arrays, **node.attr))
    except (ArithmeticError, RuntimeError):  # a division by zero stays where it is, to be raised
        return None
    t = node.outputs[0].type
    attrs = {"shape": t.shape, "value": result.item(), "dtype": t.dtype, "device": t.device}
    made: tuple[Value, ...] = emit(Node(OPS["full"], (), attrs, node.line))
    return made if made[0].type == t else None


@lru_cache(512)
def simplified_body(body: Body, calls: bool = False) -> Body:
    """A graph that a node holds, simplified."""
    return Body(simplify(body.graph, calls))


def _with_bodies(node: Node, calls: bool) -> Node:
    """A node whose graphs are simplified."""
    bodies = {name: simplified_body(node.attr[name], calls) for name in node.op.bodies}
    if all(bodies[name] == node.attr[name] for name in bodies):
        return node
    return Node(node.op, node.inputs, {**node.attr, **bodies}, node.line)


def _slim(node: Node, live: set[Value], replace: dict[Value, Value]) -> Node:
    """A node of control flow that computes only what is read."""
    found = node.op.slim(node.attr, [v in live for v in node.outputs])
    if found is None:
        return node
    attrs, operands, results = found
    new = Node(node.op, [node.inputs[k] for k in operands], attrs, node.line)
    replace.update(zip([node.outputs[k] for k in results], new.outputs, strict=True))
    return new


def remove_dead(graph: Graph) -> Graph:
    """Without the nodes that no result needs and that raise no error."""
    live: set[Value] = set(graph.results())
    kept: list[Node] = []
    replace: dict[Value, Value] = {}
    for node in reversed(graph.nodes):
        if any(v in live for v in node.outputs) or may_fault(node):
            if node.op.bodies:
                node = _slim(node, live, replace)
            kept.append(node)
            live.update(node.inputs)
    kept.reverse()
    return graph.with_(_renamed(kept, replace) if replace else kept, replace)


def _renamed(nodes: list[Node], replace: dict[Value, Value]) -> list[Node]:
    """Nodes that read what stands for values; adds their own results to `replace`."""
    out = []
    for node in nodes:
        if any(v in replace for v in node.inputs):
            inputs = [replace.get(v, v) for v in node.inputs]
            new = Node(node.op, inputs, node.attrs, node.line)
            for v, w in zip(node.outputs, new.outputs, strict=True):
                replace[v] = w
            for v, w in list(replace.items()) if node.op.bodies else ():
                if w in node.outputs:  # a slim node that was renamed in its turn
                    replace[v] = new.outputs[node.outputs.index(w)]
            node = new
        out.append(node)
    return out


def may_fault(node: Node) -> bool:
    """Whether some element of an operand may fail a check, or the reference that is called may
    raise."""
    if node.op.host and node.op.checked:
        return True
    if any(may_fault(n) for n in inner_nodes(node)):
        return True
    for check in node_checks(node):
        x = node.inputs[check.operand]
        value = constant(x)
        if value is None or check.first(np.full((), value, x.type.dtype.np)) is not None:
            return True
    return False
