"""graph_report: which user lines hold graphs alive, and how much they keep.

For memory that grows: a loss kept in a list keeps its whole graph, with all that backward needs.
"""

from __future__ import annotations

import gc
import types
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jitgrad.tape.node import Held, Node, Packed
from jitgrad.tensor import Tensor


@dataclass
class GraphLine:
    """The graphs whose last operation is on one line.

    Attributes:
        line: "file.py:12".
        graphs: how many tensors there are with such a graph that leads to no other.
        nodes, bytes: of all of them together: operations, and memory that only they keep.
        holders: what refers to these tensors: "list of 50", "attribute of Trainer", ...
    """

    line: str
    graphs: int
    nodes: int
    bytes: int
    holders: dict[str, int] = field(default_factory=dict)


class GraphReport(list[GraphLine]):
    """The lines, those that keep most first. Prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no graphs are alive"
        rows = [("graphs", "nodes", "bytes", "line", "held by")]
        for r in self:
            held = ", ".join(f"{n} x {what}" for what, n in r.holders.items()) or "only its line"
            rows.append((str(r.graphs), str(r.nodes), f"{r.bytes:,}", r.line, held))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            "  ".join(
                text.rjust(w) if i < 3 else text.ljust(w)
                for i, (text, w) in enumerate(zip(row, [*widths, 0], strict=True))
            ).rstrip()
            for row in rows
        )

    __repr__ = __str__


def graph_report() -> GraphReport:
    """The graphs that are alive now, by the user's line that made their last operation.

    A graph is alive as long as a tensor at its end is: one that requires grad and was computed. The
    usual cause of memory that grows is `losses.append(loss)`; append loss.item() or loss.detach().
    Looks at every object of the process: for debugging.
    """
    objects = gc.get_objects()
    nodes = [x for x in objects if isinstance(x, Node)]
    tensors: dict[int, list[Tensor]] = {}
    for x in _tensors(objects):
        if x._node is not None:
            tensors.setdefault(id(x._node), []).append(x)
    inner = {id(e) for n in nodes for e in n.edges if isinstance(e, Node)}
    rows: dict[str, GraphLine] = {}
    counted: set[int] = set()
    for node in sorted(nodes, key=lambda n: -n.seq):
        if id(node) in inner:
            continue
        row = rows.setdefault(node.line or "unknown", GraphLine(node.line or "unknown", 0, 0, 0))
        row.graphs += 1
        _count(node, row, counted)
        holders = Counter(row.holders)
        for x in tensors.get(id(node), ()):
            holders.update(_holders(x, [objects, tensors, tensors[id(node)]]))
        row.holders = dict(holders)
    del objects, nodes
    return GraphReport(sorted(rows.values(), key=lambda r: -r.bytes))


def _tensors(objects: list[Any]) -> list[Tensor]:
    return [x for x in objects if isinstance(x, Tensor)]


def _count(node: Node, row: GraphLine, counted: set[int]) -> None:
    """Adds a graph's nodes and bytes to the row; what another graph has too counts once."""
    stack = [node]
    while stack:
        n = stack.pop()
        if id(n) in counted:
            continue
        counted.add(id(n))
        row.nodes += 1
        leaves = {id(e._storage) for e in n.edges if isinstance(e, Tensor)}
        for storage in _storages(n):
            if id(storage) not in counted and id(storage) not in leaves:
                counted.add(id(storage))
                row.bytes += storage.nbytes()
        stack.extend(e for e in n.edges if isinstance(e, Node))


def _storages(node: Node) -> list[Any]:
    """The storages that a node's saved tensors lie on."""
    found: list[Any] = []
    outs = (node.outs,) if node.nout == 1 else node.outs or ()
    saved: list[Any] = [*(node.operands or ()), *outs]
    saved += [entry[0] for entry in getattr(node, "kept", None) or () if entry is not None]
    for x in saved:
        if type(x) is tuple and len(x) == 5:
            found.append(x[1])
        elif type(x) is Packed:
            parts = x.packed if type(x.packed) is tuple else (x.packed,)
            found += [p.saved[1] for p in parts if type(p) is Held]
    return found


def _holders(x: Tensor, own: list[Any]) -> list[str]:
    """What refers to a tensor, in words; locals of running functions and our own lists left out."""
    ours = {id(o) for o in own}
    found = []
    for holder in gc.get_referrers(x):
        if id(holder) in ours or isinstance(holder, (types.FrameType, Node)):
            continue
        if isinstance(holder, dict):
            found.append(_dict_name(holder, x))
        elif isinstance(holder, (list, tuple, set)):
            found.append(f"{type(holder).__name__} of {len(holder)}")
        elif isinstance(holder, types.CellType):
            found.append("a closure")
        elif not type(holder).__module__.startswith("jitgrad."):
            found.append(f"attribute of {type(holder).__name__}")
    return found


def _dict_name(holder: dict[Any, Any], x: Tensor) -> str:
    keys = [key for key, value in holder.items() if value is x]
    name = str(keys[0]) if keys else "?"
    if "__name__" in holder and "__builtins__" in holder:
        return f"global {name} of {holder['__name__']}"
    for owner in gc.get_referrers(holder):
        if getattr(owner, "__dict__", None) is holder:
            return f"attribute {name} of {type(owner).__name__}"
    return f"dict of {len(holder)}"


__all__ = ["GraphLine", "GraphReport", "graph_report"]
