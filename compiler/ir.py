"""The tensor IR: Value, Node, Graph and its effects. What it is, not how it prints or passes.

A Graph is SSA, purely functional and typed: nodes in topological order, each applying one op
record to values with static attributes. Mutation exists only at the edge: `writes` (this input's
storage holds that value at the end) and `rebinds` (this owner's slot holds that value or None).
Nodes are immutable and typed by their op's infer when they are made. Printing and parsing are in
text.py, whole-graph checks in verify.py, passes in passes/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.compiler.text import to_text
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import InternalError

if TYPE_CHECKING:
    from jitgrad.compiler.ops.record import Op

Attrs = tuple[tuple[str, Any], ...]


class Value:
    """One tensor of a graph. Compared by identity. `node` is None for graph inputs."""

    __slots__ = ("index", "line", "name", "node", "type")

    def __init__(
        self,
        type: TensorType,
        node: Node | None = None,
        index: int = 0,
        line: str = "",
        name: str = "",
    ) -> None:
        self.type = type
        self.node = node
        self.index = index
        self.line = line
        self.name = name

    def __repr__(self) -> str:
        origin = f"{self.node.op.name}.{self.index}" if self.node else self.name or "input"
        return f"<Value {origin}: {self.type}>"


class Node:
    """An op applied to values. `attrs` are static, hashable, sorted by name.

    `line` is the user's source line ("file.py:12") that recorded it. types: of its outputs, where
    they were inferred already.
    """

    __slots__ = ("attrs", "inputs", "line", "op", "outputs")

    def __init__(
        self,
        op: Op,
        inputs: Sequence[Value],
        attrs: dict[str, Any] | Attrs,
        line: str = "",
        types: Sequence[TensorType] | None = None,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.attrs: Attrs = tuple(sorted(dict(attrs).items()))
        self.line = line
        if types is None:
            found = op.infer(*(v.type for v in inputs), **dict(self.attrs))
            types = found if isinstance(found, tuple) else (found,)
        self.outputs = tuple(Value(t, self, i, line) for i, t in enumerate(types))

    @property
    def attr(self) -> dict[str, Any]:
        return dict(self.attrs)

    def __repr__(self) -> str:
        return f"<Node {self.op.name}({', '.join(str(v.type) for v in self.inputs)})>"


@dataclass(frozen=True)
class Input:
    """A graph input. `kind`: "arg" (caller's tensor), "state" (captured), "scalar" (host number).

    `name` is how users know it ("x", "model.conv.weight", "lr"); unique in its graph.
    """

    value: Value
    kind: str
    name: str


@dataclass(frozen=True)
class Write:
    """At the end the storage of input number `input` holds `value` (of the input's type)."""

    input: int
    value: Value


@dataclass(frozen=True)
class Rebind:
    """At the end slot `key` of `owner` holds `value` (None: the slot is set to None).

    `owner` is an opaque name that the public layer resolves ("model.conv.weight", "state:3").
    """

    owner: str
    key: str
    value: Value | None


@dataclass
class Graph:
    """A program on tensors. See the module's docstring for what its parts mean."""

    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    rebinds: list[Rebind] = field(default_factory=list)
    env: ShapeEnv = field(default_factory=ShapeEnv)
    name: str = "graph"

    def add_input(self, type: TensorType, kind: str, name: str) -> Value:
        value = Value(type, name=name)
        self.inputs.append(Input(value, kind, name))
        return value

    def add(self, op: Op, *inputs: Value, line: str = "", **attrs: Any) -> Value:
        """Appends a node of a one-output op and returns its value."""
        outputs = self.add_node(op, inputs, attrs, line)
        if len(outputs) != 1:
            raise InternalError(f"{op.name} has {len(outputs)} outputs; use add_node")
        return outputs[0]

    def add_node(
        self,
        op: Op,
        inputs: Sequence[Value],
        attrs: dict[str, Any] | Attrs,
        line: str = "",
        types: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        node = Node(op, inputs, attrs, line, types)
        self.nodes.append(node)
        return node.outputs

    def results(self) -> list[Value]:
        """All values that must exist at the end: outputs, then writes, then rebinds."""
        rebinds = [r.value for r in self.rebinds if r.value is not None]
        return [*self.outputs, *(w.value for w in self.writes), *rebinds]

    def with_(self, nodes: Iterable[Node], replace: dict[Value, Value]) -> Graph:
        """A copy with these nodes, and results mapped through `replace`."""

        def get(v: Value) -> Value:
            return replace.get(v, v)

        return Graph(
            list(self.inputs),
            list(nodes),
            [get(v) for v in self.outputs],
            [Write(w.input, get(w.value)) for w in self.writes],
            [Rebind(r.owner, r.key, None if r.value is None else get(r.value))
             for r in self.rebinds],
            self.env,
            self.name,
        )  # fmt: skip

    def users(self) -> dict[Value, list[Node]]:
        """For each value, the nodes that read it, in order (a node once per operand place)."""
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for v in node.inputs:
                users.setdefault(v, []).append(node)
        return users

    def __str__(self) -> str:
        return to_text(self)


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the graphs that they hold."""
    for node in graph.nodes:
        yield node
        yield from inner_nodes(node)


def inner_nodes(node: Node) -> Iterator[Node]:
    """The nodes of the graphs that a node holds, at any depth."""
    for name in node.op.bodies:
        yield from all_nodes(node.attr[name].graph)


def with_line(error: BaseException, node: Node) -> BaseException:
    """The error, its text now ending with the user's line."""
    if node.line and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} (at {node.line})", *error.args[1:])
    return error


def node_at(graph: Graph, path: str) -> tuple[Node, Node]:
    """A node by its number, after the numbers of the nodes that it lies in and the names of their
    graphs ("3/body/7"); and the outermost of these, the node of `graph` itself."""
    *around, number = path.split("/")
    outer: Node | None = None
    for at, name in zip(around[::2], around[1::2], strict=True):
        node = graph.nodes[int(at)]
        outer = outer or node
        graph = node.attr[name].graph
    found = graph.nodes[int(number)]
    if found.op.bodies:
        raise InternalError(f"{found} is no call")
    return found, outer or found
