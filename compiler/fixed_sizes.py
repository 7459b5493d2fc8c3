"""A graph with symbolic dims at given sizes: the graph that recording at those sizes would give.

Also `concrete`, an attribute at given sizes, as references take it. Sizes 0 and 1 need graphs of
their own: code for symbolic dims counts on sizes of at least 2 (nothing broadcasts, nothing is
empty).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitgrad.compiler.ir import Graph, Value, Write
from jitgrad.compiler.symbolic import Sym, evaluate
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.errors import CompileError


def at_sizes(graph: Graph, dims: Mapping[str, int]) -> Graph:
    """The graph with all dims replaced by their sizes; no slots.

    Raises what an op raises that does not take these sizes, and CompileError where one gives
    another shape at them than its symbolic shape says (an op that treats a size of 1 as one to
    broadcast, say); with the user's line.
    """

    def fixed(t: TensorType) -> TensorType:
        return t.with_shape(tuple(int(concrete(d, dims)) for d in t.shape))

    out = Graph(name=graph.name)
    new: dict[Value, Value] = {}
    for item in graph.inputs:
        new[item.value] = out.add_input(fixed(item.value.type), item.kind, item.name)
    for node in graph.nodes:
        attrs: dict[str, Any] = {k: concrete(v, dims) for k, v in node.attrs}
        where = f" (at {node.line})" if node.line else ""
        try:
            made = out.add_node(node.op, [new[v] for v in node.inputs], attrs, node.line)
        except (RuntimeError, ValueError, IndexError) as error:
            raise type(error)(f"{error}{where}") from None
        for v, w in zip(node.outputs, made, strict=True):
            if w.type != fixed(v.type):
                sizes = ", ".join(f"{k} = {n}" for k, n in dims.items())
                raise CompileError(
                    f"[{node.op.name}] expected {fixed(v.type)} where {sizes}; got {w.type}{where}"
                )
            new[v] = w
    out.outputs = [new[v] for v in graph.outputs]
    out.writes = [Write(w.input, new[w.value]) for w in graph.writes]
    return out


def concrete(x: Any, dims: Mapping[str, int]) -> Any:
    """An attribute with the values of symbolic dims put in; in graphs that nodes hold as well
    (Body.at), of which CompileError is raised as by `at_sizes`."""
    if isinstance(x, tuple):
        return tuple([concrete(y, dims) for y in x])
    if isinstance(x, Sym):
        return evaluate(x, dims)
    return x.at(dims) if getattr(x, "env", None) is not None else x
