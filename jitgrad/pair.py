"""Pair: a compiled forward and a compiled backward, for results that are differentiated outside.

Owns the split of a joint graph in two (`split`), the tape node that runs the compiled backward
(`CompiledNode`), and differentiating through it again (`joint_grads`: the joint graph, op by op on
the tape). The backward itself is recorded in recorder.py, by running the tape abstractly.

What the backward reads of the forward is kept or computed again, whichever is cheaper
(compiler/passes/partition.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.backward_part import Wanted, part_graph, part_of
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.fixed_sizes import concrete
from jitgrad.compiler.ir import Graph, Input, Node, Value
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.passes.partition import partition
from jitgrad.compiler.symbolic import MAX_KNOWN, ShapeEnv
from jitgrad.dispatch import apply
from jitgrad.first_nan import first_nan, is_nan
from jitgrad.sizes import type_at
from jitgrad.sources import Source
from jitgrad.state import state
from jitgrad.tape.node import EVERY, RETAIN_ERROR, Gradients, edge_of, version_error, zeros_of
from jitgrad.tape.node import Node as TapeNode
from jitgrad.tensor import Tensor, intern_type, wrap


@dataclass(eq=False)
class Pair:
    """How to go backwards through a compiled forward.

    Attributes:
        backward: the graph; inputs are the cotangents, then what was kept.
        sources: where the tensors are that get gradients.
        grads: for each of them, which result of the backward is its gradient, or None.
        kept: for each kept value, ("input", i) of the forward graph, or ("result", i).
        out_types: types of the differentiable results.
        inputs, forward, reverse, cotangents, found: the joint graph: values of the forward's
            inputs, its nodes, the backward's nodes, cotangents, and gradients.
        values: the joint graph's values that are kept, as `kept`.
        wanted: the numbers of the forward's inputs that get gradients, as `sources`.
        lasting: what is kept follows from constants alone: nothing is released.
        kept_bytes: of what is kept beside the inputs.
        run: runs the compiled backward on arrays; None until it is compiled.
        make: compiles a part of the backward; given how many of its inputs are cotangents.
        compiled: what make compiled.
    """

    backward: Graph
    sources: list[Source]
    grads: list[int | None]
    kept: list[tuple[str, int]]
    out_types: list[Any]
    inputs: list[Value]
    forward: list[Node]
    reverse: list[Node]
    cotangents: list[Value]
    found: list[Value | None]
    wanted: list[int]
    values: list[Value]
    lasting: bool
    run: Any = None
    make: Any = None
    compiled: list[Any] = field(default_factory=list)
    parts: dict[Any, tuple[Any, list[int | None], list[Any]]] = field(default_factory=dict)
    op: Any = field(default_factory=SimpleNamespace)

    def __post_init__(self) -> None:
        self.op = SimpleNamespace(name="jit", nout=len(self.out_types), saves=())
        alone = [
            v.type for (kind, _), v in zip(self.kept, self.values, strict=True) if kind == "result"
        ]
        self.kept_bytes = sum(map(nbytes, alone))
        self.known: dict[Any, list[Any]] = {}

    def named(self, dims: tuple[int, ...]) -> dict[str, int]:
        """The symbolic sizes of a call, by name."""
        return dict(zip(self.backward.env.hints, dims, strict=True))

    def types_at(self, key: Any, types: Sequence[Any], dims: tuple[int, ...]) -> list[Any]:
        """Types with the sizes of a call. key: says which types they are."""
        found = self.known.get((key, dims))
        if found is None:
            named = self.named(dims)
            found = [type_at(t, named) for t in types]
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            self.known[key, dims] = found
        return found

    def part(self, present: Wanted, wanted: Wanted) -> tuple[Any, list[int | None], list[Any]]:
        """What runs the backward for these cotangents and gradients, which result each gradient
        is, and the results' types. Compiled when it is first needed."""
        found = self.parts.get((present, wanted))
        if found is None:
            if all(present) and all(
                w or i is None for w, i in zip(wanted, self.grads, strict=True)
            ):
                graph, places, run = self.backward, self.grads, self.run
            else:
                asked = [i if w else None for i, w in zip(self.grads, wanted, strict=True)]
                graph, places = part_graph(self.backward, len(present), present, asked)
                run = self.make(graph, sum(present)) if graph.outputs else None
            types = [intern_type(v.type) for v in graph.outputs]  # sizes: see types_at
            found = self.parts[present, wanted] = run, places, types
        return found

    def part_graph(self, present: Wanted, wanted: Wanted) -> tuple[Graph, list[int | None]]:
        """The part of the backward, and which result each gradient is."""
        if all(present) and all(w or i is None for w, i in zip(wanted, self.grads, strict=True)):
            return self.backward, self.grads
        asked = [i if w else None for i, w in zip(self.grads, wanted, strict=True)]
        return part_graph(self.backward, len(present), present, asked)


def split(
    forward: Sequence[Node],
    reverse: Sequence[Node],
    cotangents: Sequence[Value],
    found: Sequence[Value | None],
    held: Collection[Value],
    results: Collection[Value],
    name: str,
    env: ShapeEnv,
) -> tuple[Graph, list[Value], list[int | None]]:
    """The backward as a graph of its own, from the nodes that came after the forward's.

    held: the forward's inputs that it does not write. results: values that it gives.
    Returns the graph, the forward's values that are its inputs after the cotangents, and for each
    gradient the number of the result that it is.
    """
    graph = Graph(name=name, env=env)
    new: dict[Value, Value] = {}
    for i, v in enumerate(cotangents):
        new[v] = graph.add_input(v.type, "arg", f"cotangent{i}")
    useful = _useful(reverse, [v for v in found if v is not None])
    reverse = [node for node in reverse if node in useful]
    made = {v for node in reverse for v in node.outputs}.union(cotangents)
    read = dict.fromkeys(v for node in reverse for v in node.inputs if v not in made)
    read.update(dict.fromkeys(v for v in found if v is not None and v not in made))
    saved = saved_values(read)
    results = saved.intersection(results)
    kept = partition(forward, reverse, read, saved.intersection(held), results)
    for i, v in enumerate(kept):
        new[v] = graph.add_input(v.type, "arg", f"kept{i + 1}")

    def get(v: Value) -> Value:
        """The backward's value for one of the joint graph, computed again where it is not kept."""
        stack = [v]
        while stack:
            x = stack[-1]
            if x in new:
                stack.pop()
                continue
            assert x.node is not None
            waiting = [y for y in x.node.inputs if y not in new]
            if waiting:
                stack.extend(waiting)
            elif x.node.op.identity:  # the forward has checked it
                new[x] = new[x.node.inputs[0]]
            else:
                inputs = [new[y] for y in x.node.inputs]
                again = graph.add_node(x.node.op, inputs, x.node.attrs, x.node.line)
                new.update(zip(x.node.outputs, again, strict=True))
        return new[v]

    for node in reverse:
        outputs = graph.add_node(node.op, [get(v) for v in node.inputs], node.attrs, node.line)
        new.update(zip(node.outputs, outputs, strict=True))
    places: list[int | None] = []
    taken = {item.value for item in graph.inputs}
    for result in found:
        if result is None:
            places.append(None)
            continue
        value = get(result)
        if value in taken:
            value = graph.add(OPS["clone"], value)
        taken.add(value)
        places.append(len(graph.outputs))
        graph.outputs.append(value)
    return graph, kept, places


@contextmanager
def without_hooks(tensors: Iterable[Tensor | None]) -> Iterator[None]:
    """Inside, no hook on these tensors' gradients runs, nor are gradients retained: when a compiled
    node's gradients arrive there, they will."""
    held: list[tuple[Any, dict[str, Any]]] = []
    for x in tensors:
        edge = None if x is None else edge_of(x)[0]
        names = ("_hooks", "_post_hooks") if isinstance(edge, Tensor) else ("hooks", "retains")
        if edge is not None:
            held.append((edge, {name: getattr(edge, name) for name in names}))
    for edge, found in held:
        for name in found:
            setattr(edge, name, None)
    try:
        yield
    finally:
        for edge, found in reversed(held):
            for name, value in found.items():
                setattr(edge, name, value)


def follow_from(values: Iterable[Value], constants: set[Value]) -> bool:
    """Whether values are computed from these inputs alone."""
    stack, seen = list(values), set(constants)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            if v.node is None:
                return False
            stack.extend(v.node.inputs)
    return True


def saved_values(read: Iterable[Value]) -> set[Value]:
    """What eager code would have saved: what the backward reads, and what views of it show.

    Others may be changed in place before backward, so they must not be kept as they are.
    """
    found: set[Value] = set()
    for v in read:
        found.add(v)
        while v.node is not None and (v.node.op.view or v.node.op.identity):
            v = v.node.inputs[0]
            found.add(v)
    return found


def _useful(nodes: Sequence[Node], results: Sequence[Value]) -> set[Node]:
    useful: set[Node] = set()
    needed = set(results)
    for node in reversed(nodes):
        if any(v in needed for v in node.outputs):
            useful.add(node)
            needed.update(node.inputs)
    return useful


Kept = tuple[Any, Any, int]
"""An array, the storage whose version is checked (or None), and the version it had."""


def keep(array: np.ndarray[Any, Any], owner: Tensor | None) -> Kept:
    """What a CompiledNode holds of a kept value."""
    if owner is None:
        return array, None, 0
    storage = owner._storage
    return array, storage, storage.version - storage.hidden


_OVERWRITTEN = SimpleNamespace(version=0, hidden=0)


def overwritten(array: np.ndarray[Any, Any]) -> Kept:
    """Of an input that the forward itself wrote: it cannot be run again."""
    return array, _OVERWRITTEN, -1


class CompiledNode(TapeNode):
    """The tape node of a compiled forward: runs the compiled backward."""

    __slots__ = ("dims", "given", "kept", "pair")

    def __init__(
        self, pair: Pair, tensors: Sequence[Tensor], kept: list[Kept], given: list[Kept],
        *dims: tuple[int, ...],
    ) -> None:  # fmt: skip
        edges, slots = [], []
        for x in tensors:
            edge, slot = edge_of(x)
            edges.append(edge)
            slots.append(slot)
        self.dims = dims
        types = pair.types_at("results", pair.out_types, *(dims or ((),)))
        super().__init__(
            pair.op, {}, tuple(edges), tuple(slots), types[0] if len(types) == 1 else tuple(types)
        )
        self.pair = pair
        self.kept: list[Kept] | None = kept
        self.given: list[Kept] | None = given

    def release(self) -> None:
        if not self.pair.lasting:
            self.kept = self.given = None

    def run(self, grads: Gradients) -> Gradients:
        if self.kept is None or self.given is None:
            raise RuntimeError(RETAIN_ERROR + f" (node {self.name()}, made at {self.line})")
        pair = self.pair
        wanted = self._wanted()
        if state.grad_enabled or state.levels:  # examples or tangents among the cotangents
            return joint_grads(self, grads, wanted)
        present = tuple([g is not None for g in grads])
        run, places, types = pair.part(present, wanted)
        arrays = [_dense(g._data) for g in grads if g is not None]
        arrays += self._arrays(self.kept, pair.values)
        if state.anomaly and state.check_nan and run is not None:
            results = self._run_watched(run, arrays, present, wanted)
        else:
            results = run(arrays, *self.dims) if run is not None else []
        if self.dims:
            types = pair.types_at((present, wanted), types, *self.dims)
        return [None if i is None else wrap(results[i], types[i]) for i in places]

    def _run_watched(self, run: Any, arrays: Any, present: Wanted, wanted: Wanted) -> Any:
        """Runs the backward; a NaN in a gradient is an error that names the op that made the first
        one, in the forward or else in the backward (detect_anomaly)."""
        try:
            results = run(arrays, *self.dims)
        except RuntimeError as error:
            if "returned nan values" in str(error):
                error.add_note(f"Of the nan values, {self._first_nan(arrays, present, wanted)}")
            raise
        if any(map(is_nan, results)):
            raise RuntimeError(
                f"Function '{self.name()}' returned nan values; "
                f"{self._first_nan(arrays, present, wanted)} (in a compiled function that was "
                f"called at {self.line})"
            )
        return results

    def _first_nan(self, arrays: Any, present: Wanted, wanted: Wanted) -> str:
        pair = self.pair
        sizes = pair.named(self.dims[0] if self.dims else ())
        if self.given is not None and not any(version < 0 for _, _, version in self.given):
            forward = Graph([Input(v, "arg", v.name) for v in pair.inputs], list(pair.forward))
            found = first_nan(forward, [array for array, _, _ in self.given], sizes)
            if found:
                return found
        found = first_nan(pair.part_graph(present, wanted)[0], arrays, sizes)
        return found or "no op makes one when it runs by itself"

    def _wanted(self) -> Wanted:
        """Which gradients the run of the tape asks for."""
        targets = state.backward.targets
        return tuple([e is not None and id(e) in targets for e in self.edges])

    def _arrays(self, kept: Sequence[Kept], values: Sequence[Value]) -> list[Any]:
        for (_, storage, version), v in zip(kept, values, strict=True):
            if storage is not None and storage.version - storage.hidden != version:
                node, what = _saver(self.pair, v)
                raise version_error(node or self, what, v.type, version, storage)
        return [array for array, _, _ in kept]


def _saver(pair: Pair, v: Value) -> tuple[Any, str]:
    """The op whose derivative reads a value of the forward, as a tape node has it (None: it is not
    known), and what the value is to it."""
    known = f" ({v.name})" if v.node is None and v.name else ""
    for n in pair.forward:
        where = None
        for i, x in enumerate(n.inputs):
            while x is not v and x.node is not None and x.node.op.view:  # part of it is read
                x = x.node.inputs[0]
            if x is v and (i in n.op.saves or EVERY in n.op.saves):
                where = f"operand {i}{known}"
        if where is None and v in n.outputs:
            i = n.outputs.index(v)
            if "out" in n.op.saves or f"out{i}" in n.op.saves:
                where = "its result"
        if where is not None:
            types = tuple([y.type for y in n.outputs])
            face: Any = SimpleNamespace(
                op=n.op, line=n.line, out_types=types[0] if n.op.nout == 1 else types
            )
            face.name = partial(TapeNode.name, face)
            return face, where
    made = f"the result of {v.node.op.name} at {v.node.line}" if v.node is not None else v.name
    return None, made or "a value"


def _dense(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.flags.c_contiguous else np.array(array, order="C")


def joint_grads(node: CompiledNode, grads: Gradients, wanted: Wanted) -> Gradients:
    """The gradients, on the tape: forward and backward run again, op by op."""
    pair = node.pair
    assert node.given is not None
    arrays = node._arrays(node.given, pair.inputs)
    values: dict[Value, Tensor] = {}
    sizes = pair.named(node.dims[0] if node.dims else ())
    for v, array in zip(pair.inputs, arrays, strict=True):
        values[v] = wrap(array, type_at(v.type, sizes))
    for i, edge, slot in zip(pair.wanted, node.edges, node.slots, strict=True):
        x = values[pair.inputs[i]]
        x._requires_grad = edge is not None
        if isinstance(edge, Tensor):
            values[pair.inputs[i]] = edge
        elif edge is not None:
            x._node, x._out = edge, slot
    absent = {v for v, g in zip(pair.cotangents, grads, strict=True) if g is None}
    results = [v for v, w in zip(pair.found, wanted, strict=True) if v is not None and w]
    part = part_of(pair.reverse, pair.cotangents, absent, results)
    values.update((v, g) for v, g in zip(pair.cotangents, grads, strict=True) if g is not None)

    def get(v: Value) -> Tensor:
        v = part.of(v)
        if v in part.zero and v not in values:
            values[v] = zeros_of(type_at(v.type, sizes))
        return values[v]

    for n in (*pair.forward, *part.steps):
        attrs = {k: concrete(v, sizes) for k, v in n.attrs}
        made = apply(n.op, tuple([get(v) for v in n.inputs]), attrs)
        values.update(zip(n.outputs, made if n.op.nout > 1 else (made,), strict=True))
    return [
        None if v is None or not w or v in part.zero else get(v)
        for v, w in zip(pair.found, wanted, strict=True)
    ]


def attach(t: Tensor, node: CompiledNode, slot: int) -> Tensor:
    """The tensor, now result `slot` of the node."""
    t._node, t._out, t._requires_grad = node, slot, True
    return t


class SpentNode(TapeNode):
    """The node of a result whose graph backward() freed inside the compiled function."""

    __slots__ = ()

    def run(self, grads: Gradients) -> Gradients:
        raise RuntimeError(RETAIN_ERROR + " (backward() ran inside the function under @jit)")


def spent(t: Tensor) -> Tensor:
    """The tensor, on the tape as eager code leaves it after backward()."""
    leaf = wrap(None, t._type)  # something to want a gradient, so that the node would run
    leaf._requires_grad = True
    op = SimpleNamespace(name="jit", nout=1, saves=())
    return attach(t, SpentNode(op, {}, (leaf,), (0,), t._type), 0)  # type: ignore[arg-type]
