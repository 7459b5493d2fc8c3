"""Control flow in the program: a node that holds graphs becomes a kernel that runs their kernels.

Before: a kernel that is a Call of such a node, and a function that compiles its graphs. After: a
Nested, with the workspace that the memory plan is to provide, and the Generated that stands for the
kernel among the others. What its row says is in launch_rows.py, what the row does at run time in
codegen/drivers.py.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.host_call import call_of, operands_of
from jitgrad.compiler.image import CONTROL
from jitgrad.compiler.ir import Graph, Node
from jitgrad.compiler.kernels import Kernel, SpecialKernel
from jitgrad.compiler.loops import Array
from jitgrad.compiler.stages import Nested, Stages
from jitgrad.runtime import dtypes


def is_nested(kernel: Kernel) -> bool:
    """Whether a kernel is control flow."""
    call = call_of(kernel)
    return call is not None and bool(call.node.op.bodies)


def nest(kernel: Kernel, compile_part: Callable[[Graph, str, frozenset[int]], Stages]) -> Nested:
    """Compiles the graphs that the node of a kernel holds.

    compile_part: the stages of a graph; its second argument is the path of the graph's nodes, the
    third the numbers of the inputs that are the same in all steps: what kernels keep of those
    (packed weights, say) is made before the first step.
    """
    call = call_of(kernel)
    assert call is not None and isinstance(kernel, SpecialKernel)
    node: Node = call.node
    arrays = operands_of(kernel)
    operands, results = arrays[: len(node.inputs)], arrays[len(node.inputs) :]
    carries = node.attr.get("carries")
    parts = {}
    for name in node.op.bodies:
        graph = node.attr[name].graph
        same: frozenset[int] = frozenset()
        if carries is not None:
            varying = carries if name == "cond" else carries + node.attr.get("xs", 0)
            same = frozenset(range(varying, len(graph.inputs)))
        parts[name] = compile_part(graph, f"{call.number}/{name}/", same)
    arena = {name: _bytes(f"arena_{name}", part.plan.peak) for name, part in parts.items()}
    made = Nested(node, parts, operands, results, call.site, arena)
    if carries is not None:
        for k, a in enumerate(results[:carries]):
            first, second = (Array(f"carry{k}_{i}", a.shape, a.dtype) for i in (0, 1))
            made.buffers.append((first, second))
    if "cond" in parts:
        made.answer = Array("answer", (1,), dtypes.bool_)
    return made


def generated_of(nested: Nested) -> Generated:
    """What stands for the kernel among those that have code."""
    return Generated(CONTROL, "", [], nested.workspace)


def _bytes(name: str, count: int) -> Array:
    return Array(name, (max(count, 1),), dtypes.uint8)
