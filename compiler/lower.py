"""Lowering: each node's op record builds its loop definition. Graph -> Program.

Owns the Program: input arrays, definitions in order, results, and the fault sites of checked ops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jitgrad.compiler.compiled import is_complex, may_flag
from jitgrad.compiler.ir import Graph, Node, Value
from jitgrad.compiler.loops import (
    LEAVES,
    Array,
    Builder,
    Pointwise,
    load,
    postorder,
)
from jitgrad.compiler.symbolic import Dim
from jitgrad.runtime.errors import CompileError, InternalError


@dataclass(frozen=True)
class Site:
    """A checked node: where its operands are, and the arrays that its lowering made."""

    node: Node
    operands: list[Array]
    arrays: list[Array]


@dataclass
class Program:
    """Definitions in dependency order.

    Attributes:
        inputs: one Array for each graph input, in order.
        arrays: every defined Array, operands before users.
        results: the Array of each of `graph.results()`, in order.
        writes: (input number, position in results) of the graph's storage writes.
        sites: of checked nodes, whose kernels may flag a fault by the index into this list.
        checks: arrays that are computed only for the faults that they flag (passes/checks.py).
    """

    inputs: list[Array]
    arrays: list[Array]
    results: list[Array]
    writes: list[tuple[int, int]]
    sites: list[Site] = field(default_factory=list)
    checks: list[Array] = field(default_factory=list)

    @property
    def roots(self) -> list[Array]:
        """All that is computed for its own sake."""
        return [*self.results, *self.checks]

    @property
    def fresh(self) -> list[Array]:
        """Results that come out in memory of their own; the others are values of writes."""
        written = {position for _, position in self.writes}
        return [a for i, a in enumerate(self.results) if i not in written]


def _moves(arrays: Sequence[Array]) -> bool:
    """Whether these definitions do no more with complex elements than to read and choose them."""
    for array in arrays:
        if not isinstance(array.define, Pointwise):
            return False
        for e in postorder([array.define.body]):
            if e.op in LEAVES or (e.op == "select" and not e.args[0].dtype.is_complex):
                continue
            if e.dtype.is_complex or any(x.dtype.is_complex for x in e.args):
                return False
    return True


def _lowered(builder: Builder, node: Node, operands: list[Array], number: int) -> Any:
    """The arrays of a node's results."""
    types = [v.type for v in node.outputs]
    if node.op.host or node.op.bodies:
        return builder.call(operands, types, node, number)
    if not is_complex(node):
        return node.op.lower(builder, *operands, **node.attr)
    first = len(builder.arrays)
    try:
        made = node.op.lower(builder, *operands, **node.attr)
        if _moves(builder.arrays[first:]):
            return made
    except (RuntimeError, TypeError):
        pass  # no form in the loop language
    del builder.arrays[first:]
    return builder.call(operands, types, node, number)


def lower(
    graph: Graph,
    strides: Mapping[int, tuple[Dim, ...]] | None = None,
    constants: Collection[int] = (),
) -> Program:
    """Builds the loop definitions of a graph.

    strides: memory strides, in elements, of inputs that are not dense row-major. constants: numbers
    of inputs that seldom change.
    Raises CompileError naming the op and the user's line where an op has no lowering.
    """
    builder = Builder()
    arrays: dict[Value, Array] = {}
    inputs = []
    for i, item in enumerate(graph.inputs):
        t = item.value.type
        memory = (strides or {}).get(i)
        array = Array(f"in{i}", t.shape, t.dtype, strides=memory, constant=i in constants)
        arrays[item.value] = array
        inputs.append(array)
    sites: list[Site] = []
    for number, node in enumerate(graph.nodes):
        builder.line = node.line
        builder.site = len(sites)
        first = len(builder.arrays)
        operands = [arrays[v] for v in node.inputs]
        try:
            made = _lowered(builder, node, operands, number)
        except RuntimeError as e:
            where = f" at {node.line}" if node.line else ""
            raise CompileError(f"{e}{where}; operands {[str(v.type) for v in node.inputs]}") from e
        outputs = made if isinstance(made, tuple) else (made,)
        if may_flag(node):
            sites.append(Site(node, operands, builder.arrays[first:]))
        for value, array in zip(node.outputs, outputs, strict=True):
            if array.dtype is not value.type.dtype or len(array.shape) != value.type.ndim:
                raise InternalError(
                    f"[{node.op.name}] lowered to {array}, but its type is {value.type}"
                )
            arrays[value] = array
    first = len(graph.outputs)
    written = range(first, first + len(graph.writes))
    results: list[Array] = []
    for i, v in enumerate(graph.results()):
        array = arrays[v]
        if i not in written and (array in inputs or array in results):
            # A result has memory of its own: neither an input's nor another result's.
            builder.line = array.line
            array = builder.pointwise(
                array.shape, array.dtype, load(array, builder.axes(array.ndim))
            )
        results.append(array)
    writes = [(w.input, first + i) for i, w in enumerate(graph.writes)]
    return Program(inputs, builder.arrays, results, writes, sites)
