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

A graph that nodes hold (ops/control.py) stands, with a name, in front of the first of them:

      @0 = graph body() {
        %0: float32[] = arg "carry0"
        return %0
      }
      %3: float32[] = scan(%1) {body=@0, carries=1, length=4, reverse=False, xs=0}

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
    from jitgrad.compiler.ir import Graph, Node, Value


GUARDS = {"==": "eq", "<": "lt", "<=": "le"}


def to_text(graph: Graph, source: Callable[[str], str] = str, names: bool = True) -> str:
    """The text of a graph. `source` makes of a node's source line what is printed. names=False:
    without names of the graph, of inputs and of owners, without source lines and what sizes were:
    equal for graphs that compute the same in the same way."""
    return "\n".join(_Writer(graph, source if names else None).lines)


class _Writer:
    """Writes one graph; the graphs that its nodes hold stand in front of the first such node."""

    def __init__(self, graph: Graph, source: Callable[[str], str] | None, indent: str = "") -> None:
        """source None: without names and source lines."""
        label = _no_name if source is None else _quote
        name = "" if source is None else graph.name
        self.names: dict[Value, str] = {}
        self.bodies: dict[Any, str] = {}
        self.source, self.indent = source, indent
        hints = graph.env.hints.items()
        dims = ", ".join(f"{n}={h}" if source is not None else n for n, h in hints)
        self.lines = [f"graph {name}({dims}) {{"]
        known = graph.env.guards
        guards = [f"guard {GUARDS[g.kind]} <{g.a}> <{g.b}> {g.outcome}" for g in known]
        for guard in dict.fromkeys(guards):
            self._put(guard)
        for item in graph.inputs:
            kind = f"{item.kind} {label(item.name)}"
            self._put(f"{self._name(item.value)}: {item.value.type} = {kind}")
        for node in graph.nodes:
            self._node(node)
        names = self.names
        self._put("return " + ", ".join(names.get(v, "%?") for v in graph.outputs))
        for w in graph.writes:
            self._put(f"write {names[graph.inputs[w.input].value]} = {names.get(w.value, '%?')}")
        for r in graph.rebinds:
            value = "None" if r.value is None else names.get(r.value, "%?")
            self._put(f"rebind {label(r.owner)} {label(r.key)} = {value}")
        self.lines.append(f"{indent}}}")

    def _put(self, line: str) -> None:
        self.lines.append(f"{self.indent}  {line}")

    def _name(self, v: Value) -> str:
        return self.names.setdefault(v, f"%{len(self.names)}")

    def _node(self, node: Node) -> None:
        for name in node.op.bodies:
            self._body(node.attr[name])
        left = ", ".join(f"{self._name(v)}: {v.type}" for v in node.outputs)
        args = ", ".join(self.names.get(v, "%?") for v in node.inputs)
        held = node.op.bodies
        attrs = ", ".join(
            f"{k}={self.bodies[v] if k in held else attribute(v)}" for k, v in node.attrs
        )
        braces = f" {{{attrs}}}" if attrs else ""
        line = self.source(node.line) if self.source and node.line else ""
        comment = f"  # {line}" if line else ""
        self._put(f"{left} = {node.op.name}({args}){braces}{comment}")

    def _body(self, body: Any) -> None:
        if body in self.bodies:
            return
        inner = _Writer(body.graph, self.source, self.indent + "  ")
        self.bodies[body] = name = f"@{len(self.bodies)}"
        self._put(f"{name} = {inner.lines[0]}")
        self.lines += inner.lines[1:]


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
