"""The part of a compiled backward that one run of the tape needs.

A backward is linear in its cotangents: where a result got none, all that depends on it alone is
zero, and nobody need compute it (nor may 0 * inf make a NaN of it); gradients that nobody asked
for are left out. Owns the reduction of the backward's nodes; pair.py runs what is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jitgrad.compiler.ir import Graph, Node, Value
from jitgrad.compiler.ops.record import OPS

Wanted = tuple[bool, ...]


@dataclass(frozen=True)
class Part:
    """What is left of a backward's nodes.

    steps: the nodes to run, in order. same: values that are another's, as what was added to them is
    zero. zero: values that are zero; they are needed as zeros where a step reads them.
    """

    steps: list[Node]
    same: dict[Value, Value]
    zero: Collection[Value]

    def of(self, v: Value) -> Value:
        while v in self.same:
            v = self.same[v]
        return v


def part_of(
    nodes: Sequence[Node],
    cotangents: Sequence[Value],
    absent: Collection[Value],
    results: Sequence[Value],
) -> Part:
    """The part of a backward for cotangents of which some are absent, and for these results."""
    linear = set(cotangents)
    zero = set(absent)
    same: dict[Value, Value] = {}
    steps: list[Node] = []
    for node in nodes:
        carried = [v for v in node.inputs if v in linear]
        if not carried:
            steps.append(node)
            continue
        linear.update(node.outputs)
        if all(v in zero for v in carried):
            zero.update(node.outputs)
            continue
        if node.op is OPS["add"] and any(v in zero for v in node.inputs):  # the tape's sum
            (other,) = [v for v in node.inputs if v not in zero]
            if other.type == node.outputs[0].type:
                same[node.outputs[0]] = other
                continue
        steps.append(node)
    part = Part(steps, same, zero)
    needed = {part.of(v) for v in results if v not in zero}
    useful: list[Node] = []
    for node in reversed(steps):
        if any(v in needed for v in node.outputs):
            useful.append(node)
            needed.update(part.of(v) for v in node.inputs)
    return Part(useful[::-1], same, zero)


def part_graph(
    backward: Graph, count: int, present: Wanted, places: Sequence[int | None]
) -> tuple[Graph, list[int | None]]:
    """The part of a backward, whose first `count` inputs are cotangents, as a graph.

    present: which cotangents there are; the others are no inputs. places: for each gradient, which
    result of `backward` it is (None: none, or not wanted). Returns the places in the new graph.
    """
    cotangents = [item.value for item in backward.inputs[:count]]
    absent = {v for v, there in zip(cotangents, present, strict=True) if not there}
    results = [backward.outputs[i] for i in places if i is not None]
    part = part_of(backward.nodes, cotangents, absent, results)
    graph = Graph(env=backward.env, name=f"{backward.name}_part")
    new: dict[Value, Value] = {}
    for item in backward.inputs:
        if item.value not in absent:
            new[item.value] = graph.add_input(item.value.type, item.kind, item.name)

    def get(v: Value) -> Value:
        v = part.of(v)
        if v in part.zero and v not in new:
            t = v.type
            new[v] = graph.add(
                OPS["full"], shape=t.shape, value=0, dtype=t.dtype, device=t.device
            )  # fmt: skip
        return new[v]

    for node in part.steps:
        outputs = graph.add_node(node.op, [get(v) for v in node.inputs], node.attrs, node.line)
        new.update(zip(node.outputs, outputs, strict=True))
    taken = {item.value for item in graph.inputs}
    moved: list[int | None] = []
    for i in places:
        if i is None or backward.outputs[i] in part.zero:
            moved.append(None)
            continue
        value = get(backward.outputs[i])
        if value in taken:
            value = graph.add(OPS["clone"], value)
        taken.add(value)
        moved.append(len(graph.outputs))
        graph.outputs.append(value)
    return graph, moved
