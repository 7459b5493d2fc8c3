"""Graphs as text. `parse.parse` reads it back: `parse(to_text(g))` prints the same.

One line for each input and node, results last:

    graph step(n=8) {
      %0: float32[8, 3] = arg "x"
      %1: float32[3] = state "model.bias"
      %2: float32[8, 3] = add(%0, %1)  # train.py:12
      return %2
      write %1 = %2
      rebind "model.bias" "grad" = %2
    }

Attributes stand in braces as name=value. Values are Python literals, dtypes by name with a
leading `:`, symbolic dims as expressions over the names in the graph's header. What sizes must
fulfil comes first: `guard le <n> <2*m> True`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.symbolic import Sym
from jitgrad.runtime.dtypes import DType

if TYPE_CHECKING:
    from jitgrad.compiler.ir import Graph, Value


GUARDS = {"==": "eq", "<": "lt", "<=": "le"}


def to_text(graph: Graph, source: Callable[[str], str] = str, names: bool = True) -> str:
    """The text of a graph. `source` makes of a node's source line what is printed. names=False:
    without names of the graph, of inputs and of owners, and without source lines: equal for graphs
    that compute the same in the same way."""
    label = _quote if names else _no_name
    values: dict[Value, str] = {}

    def name(v: Value) -> str:
        return values.setdefault(v, f"%{len(values)}")

    dims = ", ".join(f"{n}={h}" for n, h in graph.env.hints.items())
    out = [f"graph {graph.name if names else ''}({dims}) {{"]
    guards = [f"  guard {GUARDS[k]} <{a}> <{b}> {outcome}" for k, a, b, outcome in graph.env.guards]
    out += dict.fromkeys(guards)
    for item in graph.inputs:
        out.append(f"  {name(item.value)}: {item.value.type} = {item.kind} {label(item.name)}")
    for node in graph.nodes:
        left = ", ".join(f"{name(v)}: {v.type}" for v in node.outputs)
        args = ", ".join(values.get(v, "%?") for v in node.inputs)
        attrs = ", ".join(f"{k}={attribute(v)}" for k, v in node.attrs)
        braces = f" {{{attrs}}}" if attrs else ""
        line = f"  # {source(node.line)}" if node.line and names else ""
        out.append(f"  {left} = {node.op.name}({args}){braces}{line}")
    out.append("  return " + ", ".join(values.get(v, "%?") for v in graph.outputs))
    for w in graph.writes:
        out.append(f"  write {values[graph.inputs[w.input].value]} = {values.get(w.value, '%?')}")
    for r in graph.rebinds:
        value = "None" if r.value is None else values.get(r.value, "%?")
        out.append(f"  rebind {label(r.owner)} {label(r.key)} = {value}")
    out.append("}")
    return "\n".join(out)


def _no_name(s: str) -> str:
    return '""'


def _quote(s: str) -> str:
    return '"' + s.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def attribute(v: Any) -> str:
    """An attribute's value as text that `parse` reads back to an equal value."""
    if isinstance(v, DType):
        return f":{v.name}"
    if isinstance(v, Sym):
        return f"<{v}>"
    if isinstance(v, tuple):
        return "(" + "".join(f"{attribute(x)}," for x in v) + ")"
    if isinstance(v, str):
        return _quote(v)
    return repr(v)
