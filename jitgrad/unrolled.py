"""Loops of Python's that a recording has unrolled: found in its graph, and told of.

Owns `unrolled_loop` and `warn_of_loop`. A graph does not say that a loop ran; what shows it is a
line of the user's whose op was applied again and again to what it gave before. (That a line has
many nodes shows nothing: one `optimizer.step()` has thousands, side by side.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Any, NamedTuple

from jitgrad.compiler.ir import Graph, Value
from jitgrad.runtime.userline import warn

STEPS = 200
"""From so many steps on a loop is worth a warning: each is compiled by itself."""


class Loop(NamedTuple):
    """The user's line, and how often it ran, each time on what it had made."""

    line: str
    steps: int


def unrolled_loop(graph: Graph) -> Loop | None:
    """The line that ran most often on its own results; None where none did so STEPS times.

    Of each (line, op) with as many nodes, the longest path is counted: work is in the number of
    nodes times the number of such pairs, unless all of them together have none of this length.
    """
    if len(graph.nodes) < STEPS:
        return None
    counts = Counter((n.line, n.op) for n in graph.nodes if n.line)
    pairs = [p for p, n in counts.items() if n >= STEPS and not p[0].endswith("(backward)")]
    if _longest(graph, set(pairs)) < STEPS:
        return None
    found: dict[str, int] = {}
    for pair in pairs:
        found[pair[0]] = max(found.get(pair[0], 0), _longest(graph, {pair}))
    line = max(found, key=lambda x: found[x])
    return Loop(line, found[line]) if found[line] >= STEPS else None


def _longest(graph: Graph, pairs: Set[tuple[str, Any]]) -> int:
    """How many nodes of these (line, op) the path has that has most of them."""
    if not pairs:
        return 0
    depth: dict[Value, int] = {}
    longest = 0
    for node in graph.nodes:
        here = max([depth.get(v, 0) for v in node.inputs], default=0)
        here += (node.line, node.op) in pairs
        if here:
            depth.update(dict.fromkeys(node.outputs, here))
            longest = max(longest, here)
    return longest


def warn_of_loop(name: str, graph: Graph) -> bool:
    """Warns of the loop that a graph shows, if it shows one; whether it did."""
    loop = unrolled_loop(graph)
    if loop is None:
        return False
    warn(
        f"[jit] {name} has a loop that was recorded step by step: {loop.line} ran {loop.steps} "
        f"times, each time on what it had made, and the code of all steps is compiled "
        f"({len(graph.nodes)} operations in all). jitgrad.scan(step, init, xs) or "
        "jitgrad.while_loop records one step, however many there are (docs/jit.md, control flow)"
    )
    return True
