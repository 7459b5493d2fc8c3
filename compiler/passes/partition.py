"""Partition: which values of a forward are kept for its backward; others are computed again.

Before: the nodes of a forward, and the values (inputs among them) that its backward reads. After: a
set of values from which all that is read can be computed by cheap nodes. It is a minimum cut
(networkx) of the network whose capacities are what keeping a value costs: the bytes that are
written, held and read. What is dear to compute (products, reductions, sorts, what may raise an
error, a chain of much arithmetic) is an end of the cut, as inputs are.

Values with one reader are contracted into it first, and the cut is made in windows from the end, so
that its time is bounded. Owns no graph: jitgrad/pair.py builds the backward from the answer.

Source: rematerialisation by minimum cut as in He and Yu, "Transcending Runtime-Memory Tradeoffs in
Checkpointing by being Fusion Aware" (MLSys 2023).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jitgrad.compiler.cost import nbytes, weight
from jitgrad.compiler.ir import Node, Value
from jitgrad.compiler.loops import (
    Array,
    Builder,
    Pointwise,
)

WINDOW = 1000
"""Nodes in one cut; networkx takes some 0.06 s for that many."""

INSTRUCTIONS_PER_BYTE = 4
"""Arithmetic on an element that takes as long as to write and read a byte of it."""

_HELD, _IN_MEMORY, _ALONE = 1, 2, 3
"""How often each byte counts: of an input that is held anyway; of a value that is in memory anyway
(a result, an operand of what is dear); of one that is there for the backward only."""

_DEAR = -1


def partition(
    forward: Sequence[Node],
    backward: Sequence[Node],
    wanted: Collection[Value],
    held: Collection[Value],
    results: Collection[Value],
) -> list[Value]:
    """The values to keep: inputs first, the others in the order in which they are made.

    wanted: what the backward reads of the forward. held: inputs that are there when it runs,
    whether they are kept or not. results: values that the forward gives anyway; kept if read.
    """
    nodes = _leading_to(forward, wanted)
    known: dict[Any, int] = {}
    effort = {n: _effort(n, known) for n in nodes}
    dear = [n for n in forward if _effort(n, known) == _DEAR]
    in_memory = {v for n in dear for v in n.inputs if v.node is not None}
    in_memory.update(results)
    # What a product of the backward reads must be in memory then, so computing it saves no trip.
    operands = {v for n in backward if _effort(n, known) == _DEAR for v in n.inputs}
    for v in {*results, *(operands & in_memory)}:
        if v.node in effort:
            effort[v.node] = _DEAR

    def price(v: Value) -> int:
        times = _HELD if v in held else _IN_MEMORY if v in in_memory else _ALONE
        return times * max(nbytes(v.type), 1)

    def origin(v: Value) -> Value:
        """What a view shows, where that is no larger."""
        while v.node is not None and (v.node.op.view or v.node.op.identity):
            base = v.node.inputs[0]
            if nbytes(base.type) > nbytes(v.type):
                break
            v = base
        return v

    reads = {n: tuple(map(origin, n.inputs)) for n in nodes}
    wanted = dict.fromkeys(map(origin, wanted))
    open_ = set(wanted)
    kept: set[Value] = set()
    end = len(nodes)
    while end > 0:
        window = nodes[max(end - WINDOW, 0) : end]
        end -= len(window)
        inside = {v for n in window for v in n.outputs}
        cut = _cut(window, open_, reads, effort, price)
        kept |= cut & inside
        open_ = (cut | open_) - inside  # made before the window, or inputs
    place = {v: k for k, v in enumerate(v for n in nodes for v in n.outputs)}
    first = {v: k for k, v in enumerate(wanted)}
    inputs = sorted(open_, key=lambda v: first.get(v, len(first)))
    return [*inputs, *sorted(kept, key=place.__getitem__)]


def _leading_to(forward: Sequence[Node], wanted: Iterable[Value]) -> list[Node]:
    """The nodes that some wanted value is computed by, in order."""
    needed = set(wanted)
    found = []
    for node in reversed(forward):
        if any(v in needed for v in node.outputs):
            found.append(node)
            needed.update(node.inputs)
    return found[::-1]


def _effort(node: Node, known: dict[Any, int]) -> int:
    """Instructions for each element of the node's result, by its loop definition; _DEAR where it is
    none that others can swallow."""
    op = node.op
    if op.identity or op.view:
        return 0
    if op.host or op.checked or any(v.type.dtype.is_complex for v in node.outputs):
        return _DEAR
    key = (op.name, tuple(v.type for v in node.inputs), node.attrs)
    if key not in known:
        builder = Builder()
        operands = [Array(f"in{i}", v.type.shape, v.type.dtype) for i, v in enumerate(node.inputs)]
        try:
            op.lower(builder, *operands, **node.attr)
        except RuntimeError:  # it has no lowering: compiling will say so
            return _DEAR
        defines = [a.define for a in builder.arrays]
        bodies = [d.body for d in defines if isinstance(d, Pointwise)]
        known[key] = weight(bodies) if len(bodies) == len(defines) else _DEAR
    return known[key]


def _cut(
    nodes: Sequence[Node],
    wanted: Collection[Value],
    reads: dict[Node, tuple[Value, ...]],
    effort: dict[Node, int],
    price: Any,
) -> set[Value]:
    """A minimum cut between what is dear, or made before these nodes, and `wanted`."""
    readers: dict[Value, int] = {}
    reached: list[Node] = []
    needed = set(wanted)
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs) and effort[node] != _DEAR:
            reached.append(node)
            needed.update(reads[node])
            for v in set(reads[node]):
                readers[v] = readers.get(v, 0) + 1
    made: dict[Value, set[Value]] = {}  # value -> the values it is computed from
    total: dict[Value, int] = {}
    inner: set[Value] = set()  # contracted into their only reader
    for node in reversed(reached):
        sources: set[Value] = set()
        work = effort[node]
        size = max(price(v) for v in node.outputs)
        for v in reads[node]:
            if v in made and readers[v] == 1 and v not in wanted and size <= price(v):
                sources |= made[v]
                work += total[v]
                inner.add(v)
            else:
                sources.add(v)
        for v in node.outputs:
            if work <= INSTRUCTIONS_PER_BYTE * v.type.dtype.itemsize:
                made[v], total[v] = sources, work
    if not any(made.get(v) for v in wanted):  # there is no choice; constants are made anew
        return {v for v in wanted if v not in made}
    return _minimum_cut(needed - inner, wanted, made, price)


def _minimum_cut(
    values: Collection[Value],
    wanted: Collection[Value],
    made: dict[Value, set[Value]],
    price: Any,
) -> set[Value]:
    import networkx as nx

    network: Any = nx.DiGraph()
    network.add_nodes_from(("source", "sink"))
    for v in values:  # an edge without a capacity is never cut
        network.add_edge((v, 0), (v, 1), capacity=price(v))
        if v in wanted:
            network.add_edge((v, 1), "sink")
        if v not in made:
            network.add_edge("source", (v, 0))
        for x in made.get(v, ()):
            network.add_edge((x, 1), (v, 0))
    _, (near, _) = nx.minimum_cut(network, "source", "sink")
    return {v for v in values if (v, 0) in near and (v, 1) not in near}
