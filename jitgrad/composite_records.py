"""Records of composites (composites.py): what a function composed of ops does for certain types and
arguments, as a graph that was traced once on tensors without data.

Owns `Composite` and how one is found. Its derivative is the graph's, a `Composite` again, which
computes what it needs of the forward pass anew: nothing is saved but operands.

A function has a graph for each choice of sizes that it meets; code, as kernels of one op have it:
for three choices of sizes, then with symbolic dims (`kernels.Family`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from jitgrad.body_recorder import Untraceable, trace
from jitgrad.compiler.compiled import Compiled
from jitgrad.compiler.derive import copy_nodes, needed_nodes, reverse, start
from jitgrad.compiler.graph_tensor import GraphTensor
from jitgrad.compiler.interpret import interpret
from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.one_node import compile_small
from jitgrad.compiler.ops.record import MANY, OPS, Op, apply_like
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.compiler.types import TensorType
from jitgrad.kernels import WORTH, Family, attempt
from jitgrad.layouts import in_order, order_of_memory, outline
from jitgrad.plain import is_plain
from jitgrad.pytree import Structure, flatten, unflatten
from jitgrad.state import state
from jitgrad.tape.node import EVERY
from jitgrad.tape.pieces import PiecesNode
from jitgrad.tensor import Tensor, wrap


class Composite(Op):
    """What a graph computes, as a record: of its inputs' types, without attributes.

    general: one that does the same for many sizes, whose code is run; None: none but itself.
    orders: of each result, the dims from the slowest to the fastest in memory (None: row-major),
        for operands that lie as those did which it was traced for.
    """

    chooses = True
    saves = (EVERY,)
    keeps_layout = None  # `orders` say how results lie

    def __init__(
        self, graph: Graph, orders: Sequence[tuple[int, ...] | None] | None = None,
        general: Composite | None = None,
    ) -> None:  # fmt: skip
        """Registers nothing: it is in no graph."""
        self.name, self.graph, self.general = graph.name, graph, general
        self.orders = orders or [None] * len(graph.outputs)
        self.nout = 1 if len(graph.outputs) == 1 else MANY
        self._types = tuple([v.type for v in graph.outputs])
        self._derivatives: dict[Any, Derivative | None] = {}

    @cached_property
    def compiled(self) -> Compiled | None:
        """Its code; None, after a warning, where there is none."""
        if self.general is not None:
            return self.general.compiled
        types = [item.value.type for item in self.graph.inputs]
        return attempt(self.name, types, lambda: compile_small(self.graph))

    def infer(self, *types: TensorType) -> Any:
        return self._types[0] if self.nout == 1 else self._types

    def reference(self, *arrays: Any) -> Any:
        found = interpret(self.graph, arrays)
        return self.laid(found[0] if self.nout == 1 else tuple(found))

    def laid(self, results: Any) -> Any:
        """Its results as they are to lie in memory: copies, where they were laid otherwise."""
        if self.nout == 1:
            return in_order(results, self.orders[0])
        return tuple(map(in_order, results, self.orders))

    def parts(self, operands: Sequence[Any], like: Any) -> list[Any]:
        """What it computes, by its records, of operands of any kind, and constants as `like` is."""
        have: dict[Value, Any] = {
            item.value: x for item, x in zip(self.graph.inputs, operands, strict=True)
        }
        for node in self.graph.nodes:
            if node.inputs:
                made = node.op(*[have[v] for v in node.inputs], **node.attr)
            else:
                made = apply_like(node.op, like, **node.attr)
            many = (made,) if node.op.nout == 1 else made
            have.update(zip(node.outputs, many, strict=True))
        return [have[v] for v in self.graph.outputs]

    def vjp(self, g: Any, out: Any, *operands: Any, needs: Sequence[bool] = ()) -> tuple[Any, ...]:
        given = (g,) if self.nout == 1 else tuple(g)
        wanted = tuple([not needs or needs[i] for i in range(len(operands))])
        found = self.derivative(wanted, tuple([x is not None for x in given]))
        if found is None:
            return (None,) * len(operands)
        record, reads, places = found
        whole = [*[x for x in given if x is not None], *operands]
        read = [whole[i] for i in reads]
        like = next(x for x in given if x is not None)
        if not read or (isinstance(like, Tensor) and not is_plain()):
            passed: Any = record.parts(read, like)
        else:
            passed = record(*read)
            passed = (passed,) if record.nout == 1 else passed
        return tuple([None if k is None else passed[k] for k in places])

    def derivative(self, *key: tuple[bool, ...]) -> Derivative | None:
        """The gradients of operands from cotangents, key = (those that are wanted, those that are
        given): a record, which of (cotangents given, operands) it takes, and which result each
        gradient is. None: there are none."""
        if key not in self._derivatives:
            found = self._derivative(*key)
            if found is not None and self.general is not None:
                general = self.general.derivative(*key)
                if general is not None and general[1:] == found[1:]:
                    found[0].general = general[0]
            self._derivatives[key] = found
        return self._derivatives[key]

    def _derivative(self, wanted: tuple[bool, ...], given: tuple[bool, ...]) -> Derivative | None:
        graph = Graph(name=f"{self.name}_backward", env=self.graph.env)
        ends = [v for v, here in zip(self.graph.outputs, given, strict=True) if here]
        cotangents = start(graph, ends, "g")
        have = start(graph, [item.value for item in self.graph.inputs], "x")
        copy_nodes(self.graph.nodes, graph, have)
        operands = [item.value for item in self.graph.inputs]
        asked = [v for v, want in zip(operands, wanted, strict=True) if want]
        found = dict(zip(asked, reverse(self.graph.nodes, have, cotangents, asked), strict=True))
        results: list[Value] = []
        places: list[int | None] = []
        taken = {item.value for item in graph.inputs}
        for v in operands:
            gradient = found.get(v)
            places.append(None if gradient is None else len(results))
            if gradient is not None:
                if gradient.value in taken:
                    gradient = OPS["clone"](gradient)
                taken.add(gradient.value)
                results.append(gradient.value)
        if not results:
            return None
        useful = needed_nodes(graph.nodes, results, set())
        graph.nodes = [node for node in graph.nodes if node in useful]
        graph.outputs = results
        read = {v for node in graph.nodes for v in node.inputs}
        reads = [i for i, item in enumerate(graph.inputs) if item.value in read]
        graph.inputs = [graph.inputs[i] for i in reads]
        return Composite(graph), reads, places


Derivative = tuple[Composite, list[int], list[int | None]]


# -- finding them ----------------------------------------------------------------------------------
class Found:
    """How a function runs on tensors of certain types, whose ids are in keys: by `record`, whose
    results have this structure, and whose node on the tape this name. No record: as it is written.
    flat: linear in pieces in its first operand (tape/pieces.py).
    """

    __slots__ = ("flat", "label", "record", "structure", "types")

    def __init__(
        self, types: Sequence[TensorType], record: Any = None, structure: Structure | None = None,
        label: str = "", flat: bool = False,
    ) -> None:  # fmt: skip
        self.types, self.record, self.structure = types, record, structure
        self.label, self.flat = label, flat


_families: dict[Any, Family] = {}
"""By function, dtypes, ranks and other arguments."""


def find(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    operands: Sequence[Tensor],
) -> Found:  # fmt: skip
    """How function(*args, **kwargs) runs; operands: the tensors among the arguments."""
    types = [x._type for x in operands]
    exact = _trace(function, (args, kwargs), types, None)
    if exact is None or _work(exact.record.graph) < WORTH:
        return Found(types)
    leaves, structure = flatten((args, kwargs))
    blank = [wrap(None, x._type) if isinstance(x, Tensor) else x for x in leaves]
    call = partial(_trace, function, unflatten(structure, blank))
    rest = [repr(x) for x in blank if not isinstance(x, Tensor)]
    key = (function, *kwargs, *rest, *[(t.dtype, t.ndim) for t in types])
    family = _families.get(key)
    if family is None:
        family = _families[key] = Family(call, types)
    found = family.find([tuple(map(int, t.shape)) for t in types])
    if found is not None and found.record.graph.env.hints:
        exact.record.general = found.record
    return exact


def _work(graph: Graph) -> Any:
    total = 0
    for node in graph.nodes:
        if not node.op.view:
            given, made = [v.type for v in node.inputs], [v.type for v in node.outputs]
            total += node.op.work(given, made, node.attr)
    return total


def _trace(
    function: Callable[..., Any], arguments: Any, types: Sequence[TensorType], env: ShapeEnv | None
) -> Found | None:
    """What the function does with tensors of these types; None where it cannot be a composite."""
    nodes: list[Any] = []
    orders: list[tuple[int, ...] | None] = []

    def noted(args: Any, kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        orders.extend([order_of_memory(outline(y)) for y in flatten(result)[0]])
        many = result if isinstance(result, tuple) else (result,)
        nodes.extend([y._node for y in many if y._node is not None])
        return result

    before = state.grad_enabled
    state.grad_enabled = True
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            traced = trace(noted, arguments, types)
    except (Untraceable, Exception):  # the user's error comes, with its line, when it is run
        return None
    finally:
        state.grad_enabled = before
    if warned or traced.draws:  # what warns does so in each call
        return None
    if any(x._data is None or x.ndim or x.requires_grad for x in traced.captured):
        return None
    if env is not None:
        traced.body.graph.env = env
    graph = _with_numbers(traced.body.graph, traced.captured, function.__name__.strip("_"))
    if not _is_worth(graph):
        return None
    found = Found(types, Composite(graph, orders), traced.structure)
    if nodes:
        found.flat = nodes[0].kind is PiecesNode
        found.label = nodes[0].op.name if found.flat else nodes[0].name()
    return found


def _with_numbers(traced: Graph, numbers: Sequence[Tensor], name: str) -> Graph:
    """The traced graph with constants of its own for its last inputs, which are these tensors."""
    graph = Graph(name=name, env=traced.env)
    values = [item.value for item in traced.inputs]
    count = len(values) - len(numbers)
    have = start(graph, values[:count], "x")
    for v, x in zip(values[count:], numbers, strict=True):
        attrs = {"shape": (), "value": x.item(), "dtype": x.dtype, "device": "cpu"}
        have[v] = GraphTensor(graph, graph.add_node(OPS["full"], (), attrs)[0], "")
    copy_nodes(traced.nodes, graph, have)
    graph.outputs = [have[v].value for v in traced.outputs]
    return graph


def _is_worth(graph: Graph) -> bool:
    """Whether the graph is a composite: of several ops, its results new and different, all of it
    compiled code."""
    operands = {item.value for item in graph.inputs}
    for v in graph.outputs:
        while v.node is not None and (v.node.op.view or v.node.op.noop):
            v = v.node.inputs[0]
        if v in operands:
            return False
    values = [v for node in graph.nodes for v in (*node.inputs, *node.outputs)]
    if any(v.type.dtype.is_complex or v.type.numel == 0 for v in values):
        return False
    if any(node.op.host or node.op.random for node in graph.nodes):
        return False
    steps = [n for n in graph.nodes if n.inputs and not n.op.view]
    return len(steps) > 1 and len(set(graph.outputs)) == len(graph.outputs)
