"""On which GPU a graph runs: the one that its values lie on.

Compiled code launches all kernels of a graph on one device, whose memory alone they read and write.
"""

from __future__ import annotations

from jitgrad.compiler.ir import Graph, all_nodes
from jitgrad.runtime.errors import CompileError


def gpu_of(graph: Graph) -> str | None:
    """The GPU ("cuda:1") that values of a graph, and of the graphs that it holds, lie on; None
    where all are on the CPU. Inputs that nothing uses count where there are no others.

    Raises CompileError, with the user's line, where values lie on more than one GPU.
    """
    first = ""
    for node in all_nodes(graph):
        for v in (*node.inputs, *node.outputs):
            first = first or _gpu(v.type.device)
            if first and _gpu(v.type.device) not in ("", first):
                raise _several(f"[{node.op.name}] ", first, v.type.device, node.line)
    for v in graph.results():
        first = first or _gpu(v.type.device)
        if first and _gpu(v.type.device) not in ("", first):
            raise _several("", first, v.type.device, "")
    unused = [_gpu(i.value.type.device) for i in graph.inputs]
    return first or next(filter(None, unused), None)


def _gpu(device: str) -> str:
    return "" if device == "cpu" else device


def _several(what: str, first: str, other: str, line: str) -> CompileError:
    where = f" (at {line})" if line else ""
    return CompileError(
        f"{what}expected the tensors of a compiled function on one GPU; got some on {first} and "
        f"some on {other}{where}; compile what runs on each GPU as a function of its own, and copy "
        "between the calls"
    )
