"""What tensors on a GPU need: kernels of ops, copies. Loaded at the first tensor that is on one."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("interop", "kernels", "mixing"):
        return importlib.import_module(f"jitgrad.gpu.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def computes(graph: Any) -> bool:
    """Whether a graph has a value on a GPU, so that all of it is computed there."""
    return any(i.value.type.device != "cpu" for i in graph.inputs) or any(
        v.type.device != "cpu" for n in graph.nodes for v in n.outputs
    )


def mixed(operands: Any) -> bool:
    """Whether operands are on more than one device."""
    first = operands[0]._type.device if operands else ""
    return any(x._type.device != first for x in operands)
