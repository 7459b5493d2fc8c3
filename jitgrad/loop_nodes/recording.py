"""Nodes that hold bodies: when there are such, what operands the bodies of one share, a while loop.

Owns what control_flow.py and ops that are loops of ours have in common. Bodies themselves are
made by body_recorder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.body_recorder import Traced, Untraceable, trace
from jitgrad.compiler.body import Body
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.runtime.userline import is_inside
from jitgrad.state import state
from jitgrad.tensor import Tensor
from jitgrad.values import plain_type


def records(operands: Sequence[Any], *functions: Any) -> bool:
    """Whether a graph is being recorded, and nothing (vmap, forward mode) stands between. In eager
    code, and in a call that runs in segments, Python runs each step, but for functions of ours:
    they are pure, and one op may run as compiled code (jitgrad/kernels.py). On a GPU, which has no
    code for these nodes, Python runs each step too: a graph has the ops of all steps."""
    recorder = state.recorder
    if state.levels or any(isinstance(x, Tensor) and x.is_cuda for x in operands):
        return False
    if recorder is None and (state.anomaly or state.saved_hooks):
        return False  # they listen to each op
    if recorder is None or recorder is state.lazy:
        codes = [getattr(f, "__code__", None) for f in functions]
        return state.draws is None and all(c and is_inside(c.co_filename) for c in codes)
    return hasattr(recorder, "draw_block") and not recorder.reason


def together(given: Sequence[Tensor], traced: Sequence[Traced]) -> tuple[list[Tensor], list[Body]]:
    """Bodies that share their operands: the given ones, then what each captured."""
    captured = [x for t in traced for x in t.captured]
    bodies, n, before = [], len(given), 0
    for t in traced:
        graph = t.body.graph
        after = len(captured) - before - len(t.captured)
        wide = Graph(list(graph.inputs[:n]), graph.nodes, graph.outputs, name="body")
        for k in range(before):
            wide.add_input(plain_type(captured[k]._type), "arg", f"other{k}")
        wide.inputs += graph.inputs[n:]
        for k in range(after):
            x = captured[before + len(t.captured) + k]
            wide.add_input(plain_type(x._type), "arg", f"other{before + k}")
        bodies.append(Body(wide))
        before += len(t.captured)
    return captured, bodies


def recorded_loop(
    test: Callable[..., Any], step: Callable[..., Any], carries: list[Tensor], limit: int | None
) -> list[Tensor]:
    """The last carries of a loop that becomes one node."""
    types = [x._type for x in carries]
    first = trace(lambda *now: [test(*now).reshape(())], carries, types)
    second = trace(step, carries, types)
    if first.draws or second.draws:
        raise Untraceable("draws random numbers, how many is known only when it runs")
    captured, bodies = together(carries, [first, second])
    found = apply(
        OPS["while_loop"], (*carries, *captured),
        {"cond": bodies[0], "body": bodies[1], "carries": len(carries), "limit": limit},
    )  # fmt: skip
    return list(found)
