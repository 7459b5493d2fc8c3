"""Sizes that guards decide are written one way everywhere: s0 as 33, s1 as 2*s0.

Before: a recorded graph, in which such sizes stand as they were when they were recorded: symbolic
before the guard, and in what came from there. After: the same graph, where equal sizes are equal by
form, as passes compare them. The dims of its env stay, and each call passes their values.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from jitgrad.compiler.body import Body
from jitgrad.compiler.ir import Graph, Input, Node, Value
from jitgrad.compiler.symbolic import Dim, ShapeEnv, Sym, substitute
from jitgrad.compiler.types import TensorType


def fix_sizes(graph: Graph) -> Graph:
    """The graph with the sizes that its env's guards decide put in."""
    known = decided(graph.env)
    return _with(graph, known) if known else graph


def decided(env: ShapeEnv) -> dict[str, Dim]:
    """Dims, by name, as the guards say that they are: numbers, or sums of other dims."""
    known: dict[str, Dim] = {}
    for g in env.guards:
        if g.kind != "==" or not g.outcome:
            continue
        name, value = _solved(substitute(g.a - g.b, known), env)
        if name:
            known = {k: substitute(d, {name: value}) for k, d in known.items()}
            known[name] = value
    return known


def _solved(difference: Dim, env: ShapeEnv) -> tuple[str, Dim]:
    """A dim, and what it is where the difference is 0; "" where that is not told."""
    if not isinstance(difference, Sym):
        return "", 0
    divisor = gcd(*difference.terms.values())
    terms = {m: c // divisor for m, c in difference.terms.items()}
    for m, c in terms.items():
        if len(m) == 1 and isinstance(m[0], str) and abs(c) == 1:
            rest = Sym({k: -c * v for k, v in terms.items() if k != m}, env)
            if m[0] not in rest.names():
                return m[0], substitute(rest, {})
    return "", 0


def _with(graph: Graph, known: dict[str, Dim]) -> Graph:
    replace: dict[Value, Value] = {}
    inputs = []
    for item in graph.inputs:
        new = Value(_type(item.value.type, known), line=item.value.line, name=item.value.name)
        replace[item.value] = new
        inputs.append(Input(new, item.kind, item.name))
    nodes = []
    for node in graph.nodes:
        attrs = {name: substituted(value, known) for name, value in node.attrs}
        types = [_type(v.type, known) for v in node.outputs]
        made = Node(node.op, [replace[v] for v in node.inputs], attrs, node.line, types)
        nodes.append(made)
        replace.update(zip(node.outputs, made.outputs, strict=True))
    out = graph.with_(nodes, replace)
    out.inputs = inputs
    return out


def _type(t: TensorType, known: dict[str, Dim]) -> TensorType:
    return t.with_shape(tuple([substitute(d, known) for d in t.shape]))


def substituted(x: Any, known: dict[str, Dim]) -> Any:
    """A value of an attribute with others, or numbers, in the place of dims."""
    if isinstance(x, tuple):
        return tuple([substituted(y, known) for y in x])
    if isinstance(x, Body):
        return Body(_with(x.graph, known))
    return substitute(x, known) if isinstance(x, Sym) else x
