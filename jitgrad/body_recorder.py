"""BodyRecorder: a function of tensors becomes a graph that a node of control flow can hold.

The function runs once, on stand-ins without data. Tensors that it reaches from outside (closures,
globals, attributes) become further inputs, `captured`, so that they get gradients and are read
afresh. Owns what dispatch's reports become in such a graph; what it cannot be (a function that
writes to what it did not make, or looks at values) is Untraceable. Recording a whole call, with its
effects, is recorder.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.body import Body
from jitgrad.compiler.derive import is_real
from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.ir import Graph, Input, Value
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.types import TensorType
from jitgrad.dispatch import full
from jitgrad.layouts import set_layout
from jitgrad.pytree import Structure, flatten, unflatten
from jitgrad.random import draw_tensors
from jitgrad.relay import Relay
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import user_line
from jitgrad.state import abstract_mode, recording, state
from jitgrad.storage import Storage
from jitgrad.tape.node import (
    IdentityNode,
    LeafNode,
    Node,
    OverwrittenNode,
    StartNode,
    next_seq,
)
from jitgrad.tape.pieces import PiecesNode
from jitgrad.tape.views import CopySlicesNode, put_chain
from jitgrad.tensor import Tensor, intern_type, static_type, wrap
from jitgrad.values import is_part, plain_attrs, plain_type

_PLAIN_NODES = (
    Node, IdentityNode, OverwrittenNode, CopySlicesNode, LeafNode, PiecesNode, StartNode,
)  # fmt: skip


class Untraceable(BaseException):
    """A function cannot be a graph, for `reason`. No user code is to catch it."""

    def __init__(self, reason: str, line: str = "") -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line or user_line(3)


class Traced:
    """What a function became.

    Attributes:
        body: inputs are the stand-ins, then `captured`, then seeds and draw numbers of `draws`,
            which the results' draw numbers, one for each, answer at the end of the outputs.
        structure: of what the function returned; its leaves are the body's first outputs.
        draws: (generator, draws in one run).
    """

    def __init__(
        self, body: Body, structure: Structure, captured: list[Tensor], draws: list[tuple[Any, int]]
    ) -> None:
        self.body, self.structure, self.captured, self.draws = body, structure, captured, draws


def trace(function: Any, args: Any, types: Sequence[TensorType]) -> Traced:
    """Runs function(*args), the tensors among the leaves replaced by stand-ins of these types,
    which lie in memory as the tensors, or (of types of fewer dims) as slices of them.

    Raises Untraceable, and what the function raises.
    """
    leaves, structure = flatten(args)
    recorder = BodyRecorder(state.recorder)
    kinds = iter(enumerate(types))
    given = [recorder.stand_in(x, *next(kinds)) if isinstance(x, Tensor) else x for x in leaves]
    draws = state.draws
    if draws is not None:
        raise Untraceable("runs where random draws are noted to be drawn again (checkpoint)")
    with recording(recorder), abstract_mode():
        result = function(*unflatten(structure, given))
        outs, shape = flatten(result)
        values = [recorder.result(y) for y in outs]
    return recorder.finish(values, shape)


class BodyRecorder(Relay):
    """Dispatch's recorder (see dispatch.py for the protocol) while a body is traced."""

    def __init__(self, outer: Any) -> None:
        super().__init__(outer)
        self.graph = Graph(name="body")
        self.reason = ""
        self.captured: list[Tensor] = []
        self.taped = state.grad_enabled
        self._values: dict[Storage, Value] = {}
        self._counts: dict[Storage, int] = {}
        self._views: dict[Any, tuple[int, Any, Value]] = {}
        self._found: dict[Storage, list[tuple[Tensor, Value]]] = {}  # captured, by storage
        self._late: list[Value] = []  # inputs, in the order in which they were met
        self._live: set[Value] = set()  # values that gradients may go through
        self._seeds: dict[Any, tuple[Tensor, Value]] = {}
        self._counters: dict[Any, Value] = {}
        self._count: dict[Any, int] = {}
        self._keep: list[Any] = []
        self.first_node = next_seq()

    def stand_in(self, of: Tensor, number: int, type_: TensorType) -> Tensor:
        """A tensor without data, an input of the graph."""
        value = self.graph.add_input(plain_type(type_), "arg", f"in{number}")
        x = wrap(None, intern_type(type_))
        set_layout(x, of)
        self._values[x._storage] = value
        self._keep.append(x)
        if is_real(type_):
            self._live.add(value)
            if self.taped:  # no leaf: to Python it is what a step before has computed
                x._node, x._requires_grad = IdentityNode(_leaf(type_), 0, x._type), True
        return x

    # -- values ----------------------------------------------------------------------------------
    def value_of(self, x: Tensor, line: str) -> Value:
        """The graph value of a tensor now; cut off from gradients where the tensor is."""
        value = self._plain_value(x, line)
        local = x._storage in self._values
        cut = not x.requires_grad or (local and x._node is None)  # detached, maybe a leaf since
        if self.taped and cut and value in self._live:
            value = self._add(OPS["detach"], [value], {}, line)[0]
        return value

    def _plain_value(self, x: Tensor, line: str) -> Value:
        storage = x._storage
        if storage in self._values:
            value, chain = self._values[storage], x._chain
        else:
            value, chain = self._capture(x)
        count = self._counts.get(storage, 0)
        for n, (op, attrs) in enumerate(chain):
            key = (storage, value, tuple(map(id, chain[: n + 1])))
            cached = self._views.get(key)
            if cached is None or cached[0] != count:
                made = self._add(op, [value], plain_attrs(attrs), line)[0]
                cached = self._views[key] = (count, chain, made)
            value = cached[2]
        return value

    def _capture(self, x: Tensor) -> tuple[Value, Any]:
        """The input for a tensor from outside, and the view ops from it to x."""
        found = self._found.setdefault(x._storage, [])
        for tensor, value in found:
            same = tensor is x or x._node is not None or not x.requires_grad
            if (
                same
                and (tensor.requires_grad or not x.requires_grad)
                and is_part(x._chain, tensor._chain)
            ):
                return value, x._chain[len(tensor._chain) :]
        value = Value(plain_type(x._type), name=f"captured{len(self.captured)}")
        self._late.append(value)
        self.captured.append(x)
        found.append((x, value))
        if x.requires_grad:
            self._live.add(value)
        return value, ()

    def _add(self, op: Any, inputs: Sequence[Value], attrs: Any, line: str) -> tuple[Value, ...]:
        outputs = self.graph.add_node(op, inputs, attrs, line)
        if op.differentiable and any(v in self._live for v in inputs):
            self._live.update(v for v in outputs if is_real(v.type))
        return outputs

    def result(self, y: Any) -> Value:
        """The graph value of what the function returned."""
        line = user_line()
        if not isinstance(y, Tensor):
            if not isinstance(y, (bool, int, float, complex)):
                raise TypeError(
                    f"[control flow] expected functions to return tensors, in tuples, lists or "
                    f"dicts; got {type(y).__name__}"
                )
            kind = dtypes.bool_ if isinstance(y, bool) else dtypes.int64
            y = full((), y, kind) if isinstance(y, int) else full((), y, dtypes.float32)
        self._refuse_own_derivatives(y)
        return self.value_of(y, line)

    def _refuse_own_derivatives(self, y: Tensor) -> None:
        """The graph's gradients come from its ops: other nodes of the tape would be passed over."""
        stack: list[Any] = [y._node]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if not isinstance(node, Node) or id(node) in seen or node.seq < self.first_node:
                continue
            seen.add(id(node))
            if node.kind not in _PLAIN_NODES or node.hooks:
                raise Untraceable(f"has a derivative of its own ({node.name()}) or a hook inside")
            stack.extend(node.edges)

    def finish(self, outputs: Sequence[Value], structure: Structure) -> Traced:
        graph = self.graph
        for k, value in enumerate(self._late):
            value.name = f"captured{k}"
            graph.inputs.append(_input(value))
        ends = list(outputs)
        draws = []
        for generator, (_, seed) in self._seeds.items():
            first, count = self._counters[generator], self._count[generator]
            graph.inputs += [_input(seed), _input(first)]
            draws.append((generator, count))
            more = GraphTensor(graph, first, "")
            ends.append(OPS["add"](more, count).value)
        graph.outputs = ends
        return Traced(Body(graph), structure, self.captured, draws)

    # -- the protocol ----------------------------------------------------------------------------
    def op(self, op: Any, operands: Any, attrs: dict[str, Any], outputs: Any, line: str) -> None:
        if op.view and outputs[0]._storage is operands[0]._storage:
            self._plain_value(operands[0], line)  # captures what the view is of
            return  # the view is derived from the storage's value whenever it is read
        values = self._add(op, [self.value_of(x, line) for x in operands], plain_attrs(attrs), line)
        for y, v in zip(outputs, values, strict=True):
            self._values[y._storage] = v
            self._keep.append(y._storage)

    def refuse_write(self, target: Tensor) -> None:
        """Before anything is written, be it a place on the tape."""
        value = self._values.get(target._storage)
        if value is None or value.node is None:
            raise Untraceable("writes in place to a tensor that it did not make", user_line(2))

    def write(self, target: Tensor, value: Tensor, line: str) -> None:
        storage = target._storage
        new = self.value_of(value, line)
        if target._chain:
            old = GraphTensor(self.graph, self._values[storage], line)
            new = put_chain(old, target._chain, GraphTensor(self.graph, new, line)).value
        if target.requires_grad or value.requires_grad:
            self._live.add(new)
        self._values[storage] = new
        self._counts[storage] = self._counts.get(storage, 0) + 1

    def draw(self, generator: Any) -> tuple[Tensor, Tensor]:
        kind = static_type((), dtypes.int64)
        if generator not in self._seeds:
            seed = Value(plain_type(kind), name="seed")
            self._seeds[generator] = (wrap(None, kind), seed)
            self._values[self._seeds[generator][0]._storage] = seed
            self._counters[generator] = Value(plain_type(kind), name="draw")
            self._count[generator] = 0
        first = GraphTensor(self.graph, self._counters[generator], "")
        number = wrap(None, kind)
        taken = self._count[generator]
        self._values[number._storage] = OPS["add"](first, taken).value if taken else first.value
        self._keep.append(number)
        self._count[generator] += 1
        return self._seeds[generator][0], number

    def draw_block(self, generator: Any, count: int) -> tuple[Tensor, Tensor]:
        """Seed and first of `count` draws, one after another."""
        seed, number = self.draw(generator)
        self._count[generator] += count - 1
        return seed, number

    def rebind(self, owner: Any, key: Any, value: Any) -> None:
        mine = isinstance(owner, Tensor) and owner._storage in self._values
        if not (mine and key in ("requires_grad", "grad")):
            raise Untraceable(f"sets {key!r} of an object that it did not make")

    def raw_read(self, x: Any, what: str) -> None:
        raise Untraceable(f"reads a tensor's value in Python ({what})")

    def memory_read(self, asked: Any, what: str) -> None:
        raise Untraceable(f"asks where a tensor lies in memory ({what})")

    def tape_read(self, node: Any) -> None:
        if node.seq < self.first_node:
            raise Untraceable("asks for the grad_fn of a tensor that it did not make")

    def constant(self, tensor: Tensor, source: Any) -> None:
        if self.outer is not None:
            with recording(self.outer):
                super().constant(tensor, source)

    def give_up(self, reason: str, line: str = "") -> None:
        raise Untraceable(reason, line)

    def begin_before(self, state_of: Any, make: Any) -> None:
        """State begins where it is asked for: see rebind."""

    def postpone(self) -> None:
        raise Untraceable("makes its state in the first call")


def _leaf(type_: TensorType) -> Tensor:
    leaf = wrap(None, intern_type(type_))
    leaf._requires_grad = True
    return leaf


def _input(value: Value) -> Input:
    return Input(value, "arg", value.name)


def draw_block(generator: Any, count: int) -> tuple[Tensor, Tensor]:
    """Seed and number of the first of `count` draws, of the recorder or of the generator."""
    if state.recorder is not None:
        return state.recorder.draw_block(generator, count)
    return draw_tensors(generator._seed, generator.advance(count))
