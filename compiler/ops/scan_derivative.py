"""The derivative of `scan` (ops/control.py) by reversing its loop: as a scan over another body.

A step of the reversed loop gets the cotangents of the carries and of this step's results, and what
the step reads of the forward's values. Those are there without being computed again where they are
operands, stacked results of the forward, or the same at each step; what else is `missing`, and a
forward that gives it as further results (`saving`) has to run.

The cotangent of an operand that each step reads whole (a weight) is a sum over steps. Where the
record of what is added says how (`Op.total`: a product of matrices, a sum), the factors of all
steps come out stacked and the sum is one op after the loop; else it is carried through the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jitgrad.compiler.body import Body
from jitgrad.compiler.derive import (
    Tensors,
    add_input,
    copy_nodes,
    is_real,
    needed_nodes,
    reverse,
    start,
)
from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.ir import Graph, Node, Value
from jitgrad.compiler.ops.record import op, zeros_like

Flags = tuple[bool, ...]
Source = tuple[Any, ...]
"""Where the values of all steps are, stacked: ("x", operand), ("out", result of the forward), ("y",
result of the reversed scan), or ("moved", node, source), what a node makes of them."""


@dataclass
class Reversed:
    """How to run a scan backwards. All numbers are positions among the forward's carries, xs,
    consts or stacked results (ys).

    Attributes:
        body: of the reversed scan. Its carries are the cotangents of `carries`, then the sums of
            `sums`; its xs are the cotangents of the ys `seeds`, then the forward's `xs` and `ys`;
            its consts are the forward's `consts`.
        grads: for each forward x, the result of the reversed scan that is its cotangent, or None.
        totals: (const, recipe) for cotangents summed after the loop.
        missing: values of the forward's body that are read and nowhere to be had (by number: its
            inputs, then what its nodes give); where there are any, the rest says nothing.
    """

    body: Any = None
    carries: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    xs: list[int] = field(default_factory=list)
    ys: list[int] = field(default_factory=list)
    consts: list[int] = field(default_factory=list)
    grads: list[int | None] = field(default_factory=list)
    totals: list[tuple[int, Any]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)


def saving(body: Body, numbers: Sequence[int]) -> Body:
    """The body with these of its values as further results of each step."""
    graph = body.graph
    all_values = [i.value for i in graph.inputs] + [v for n in graph.nodes for v in n.outputs]
    values = [all_values[k] for k in numbers]
    wider = Graph(list(graph.inputs), graph.nodes, [*graph.outputs, *values], name=graph.name)
    return Body(wider)


@lru_cache(256)
def reversed_scan(body: Body, carries: int, xs: int, seeded: Flags, needs: Flags) -> Reversed:
    """The reversed scan, for cotangents of the ys `seeded`, of the operands that `needs` says."""
    return _Reversal(body, carries, xs, seeded, needs).made


class _Reversal:
    def __init__(self, body: Body, carries: int, xs: int, seeded: Flags, needs: Flags) -> None:
        graph = body.graph
        inputs = [i.value for i in graph.inputs]
        self.carry, self.x, self.const = (
            inputs[:carries], inputs[carries : carries + xs], inputs[carries + xs :]
        )  # fmt: skip
        self.made = made = Reversed()
        made.carries = [i for i, v in enumerate(self.carry) if is_real(v.type)]
        made.seeds = [j for j, has in enumerate(seeded) if has]
        self.ys = graph.outputs[carries:]
        want_x = [i for i, v in enumerate(self.x) if needs[carries + i] and is_real(v.type)]
        want_c = [
            i for i, v in enumerate(self.const) if needs[carries + xs + i] and is_real(v.type)
        ]
        # The joint graph: cotangents, the forward's inputs and nodes, and what undoes them.
        self.joint = joint = Graph(name="joint")
        ends = [graph.outputs[i] for i in made.carries] + [self.ys[j] for j in made.seeds]
        given = [add_input(joint, v.type, f"g{k}") for k, v in enumerate(ends)]
        self.have: Tensors = start(joint, inputs, "in")
        self.copies = copy_nodes(graph.nodes, joint, self.have)
        self.forward = len(joint.nodes)
        self.of = {t.value: v for v, t in self.have.items()}
        cotangents: Tensors = {}
        for v, g in zip(ends, given, strict=True):
            cotangents[v] = op.add(cotangents[v], g) if v in cotangents else g
        wanted = [self.carry[i] for i in made.carries]
        wanted += [self.x[i] for i in want_x] + [self.const[i] for i in want_c]
        found = reverse(graph.nodes, self.have, cotangents, wanted)
        self.given = given
        n, m = len(made.carries), len(made.carries) + len(want_x)
        back = [zeros_like(given[k]) if g is None else g for k, g in enumerate(found[:n])]
        by_x = dict(zip(want_x, found[n:m], strict=True))
        by_const = dict(zip(want_c, found[m:], strict=True))
        self._same_each_step()
        self._results(back, by_x, by_const)

    def _same_each_step(self) -> None:
        """Values of the joint graph that are the same at each step."""
        fixed = {self.have[v].value for v in self.const}
        for node in self.joint.nodes[: self.forward]:
            if all(v in fixed for v in node.inputs) and not node.op.random:
                fixed.update(node.outputs)
        self.fixed = fixed

    # -- results ---------------------------------------------------------------------------------
    def _results(
        self, back: list[GraphTensor], by_x: dict[int, Any], by_const: dict[int, Any]
    ) -> None:
        made = self.made
        self.stacked: dict[Value, int] = {}  # value -> which y of the reversed scan it is
        made.grads = [
            None if by_x.get(i) is None else self._stack(by_x[i].value) for i in range(len(self.x))
        ]
        sums = []
        for i, g in by_const.items():
            if g is None:
                continue
            recipe = self._recipe(g.value)
            if recipe is not None:
                made.totals.append((i, recipe))
            else:
                made.sums.append(i)
                sums.append(g)
        totals = [add_input(self.joint, g.value.type, f"sum{k}") for k, g in enumerate(sums)]
        ends = [g.value for g in back]
        ends += [op.add(t, g).value for t, g in zip(totals, sums, strict=True)]
        ends += list(self.stacked)
        self._cut(ends, totals)

    def _stack(self, v: Value) -> int:
        return self.stacked.setdefault(v, len(self.stacked))

    def _recipe(self, v: Value) -> Any:
        """How the sum of v over the steps is computed of stacked values; None: by adding."""
        node = v.node
        if node is None:
            return None
        if node.op is op.add:  # what `reverse` adds up
            left, right = (self._recipe(x) for x in node.inputs)
            return None if left is None or right is None else ("add", left, right)
        if node.op.linear:
            inner = self._recipe(node.inputs[0])
            return None if inner is None else ("linear", node, inner)
        if any(x in self.fixed for x in node.inputs) or not _says_total(node):
            return None
        return ("total", node, [self._source(x) for x in node.inputs])

    def _source(self, v: Value) -> Source:
        if v.node is not None and v.node.op.linear:
            return ("moved", v.node, self._source(v.node.inputs[0]))
        inner = self.of.get(v)
        if inner in self.x:
            return ("x", self.x.index(inner))
        if inner in self.ys:
            return ("out", self.ys.index(inner))
        return ("y", self._stack(v))

    # -- the cut ---------------------------------------------------------------------------------
    def _cut(self, ends: list[Value], totals: list[GraphTensor]) -> None:
        """Makes the body, or finds what is missing for it."""
        made, nodes = self.made, self.joint.nodes
        numbers = {v: k for k, v in enumerate(self.have)}  # inputs first, then what nodes give
        begin = {t.value for t in (*self.given, *totals)}
        stop = set(begin)
        again: set[Node] = set()  # nodes of the forward that are computed again
        reads: set[Value] = set()
        backward = needed_nodes(nodes[self.forward :], ends, begin)
        stack = [v for node in backward for v in node.inputs] + list(ends)
        while stack:
            v = stack.pop()
            if v in stop:
                continue
            if v.node is not None and v.node in backward:
                continue
            stop.add(v)
            inner = self.of[v]
            if v.node is None and inner not in self.carry:
                reads.add(v)
            elif v.node is not None and (v in self.fixed or _is_free(v.node)):
                again.add(v.node)
                stack += v.node.inputs
            elif inner in self.ys:
                reads.add(v)
            else:
                made.missing.append(numbers[inner])
        if made.missing:
            made.missing.sort()
            return
        self._build(ends, totals, [n for n in nodes if n in again or n in backward], reads)

    def _build(
        self, ends: list[Value], totals: list[GraphTensor], nodes: list[Node], reads: set[Value]
    ) -> None:
        made, out = self.made, Graph(name="body")
        n = len(made.carries)
        of: Tensors = {}

        def take(values: Sequence[Value], kind: str) -> None:
            for v in values:
                of[v] = add_input(out, v.type, f"{kind}{len(out.inputs)}")

        take([t.value for t in (*self.given[:n], *totals)], "carry")
        take([t.value for t in self.given[n:]], "x")
        by_input = [self.have[v].value for v in self.x]
        made.xs = [i for i, v in enumerate(by_input) if v in reads]
        take([by_input[i] for i in made.xs], "x")
        taken: set[Value] = set()
        for j, v in enumerate(self.ys):
            value = self.have[v].value
            own = value.node is not None or v in self.carry
            if own and value in reads and value not in taken:
                taken.add(value)
                made.ys.append(j)
                take([value], "x")
        by_const = [self.have[v].value for v in self.const]
        made.consts = [i for i, v in enumerate(by_const) if v in reads]
        take([by_const[i] for i in made.consts], "const")
        copy_nodes(nodes, out, of)
        out.outputs = [of[v].value for v in ends]
        made.body = Body(out)


def _is_free(node: Node) -> bool:
    """Whether a value costs nothing to make again: a view, a constant, what was checked."""
    return node.op.view or node.op.identity or (not node.inputs and not node.op.random)


def _says_total(node: Node) -> bool:
    """Whether the record knows how its results add up over steps."""
    batched = [True] * len(node.inputs)
    graph = Graph()
    operands = [
        add_input(graph, v.type.with_shape((2, *v.type.shape)), f"x{k}")
        for k, v in enumerate(node.inputs)
    ]
    return node.op.total(operands, batched, **node.attr) is not None


def total(recipe: Any, sources: dict[str, Sequence[Any]]) -> Any:
    """The sum over steps that a recipe describes, of tensors by kind of source."""
    kind, *rest = recipe
    if kind == "add":
        return op.add(total(rest[0], sources), total(rest[1], sources))
    node = rest[0]
    if kind == "linear":
        return node.op(total(rest[1], sources), **node.attr)
    found = [_stacked(s, sources) for s in rest[1]]
    return node.op.total(found, [True] * len(found), **node.attr)


def _stacked(source: Source, sources: dict[str, Sequence[Any]]) -> Any:
    if source[0] == "moved":
        _, node, inner = source
        return node.op.batch([_stacked(inner, sources)], [True], **node.attr)
    kind, k = source
    return sources[kind][k]
