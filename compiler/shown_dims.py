"""The values of a graph's symbolic dims, as the arrays of a call show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.compiler.ir import Graph
from jitgrad.compiler.passes.fix_sizes import decided
from jitgrad.compiler.symbolic import Sym, evaluate
from jitgrad.runtime.errors import InternalError


class ShownDims:
    """Where each dim of the graph's env can be read; those that guards decide follow from others,
    since no input may have them as they were recorded (passes/fix_sizes.py)."""

    def __init__(self, graph: Graph) -> None:
        self._names = graph.env.hints
        self._where: dict[str, tuple[int, int]] = {}
        for i, item in enumerate(graph.inputs):
            for k, d in enumerate(item.value.type.shape):
                if isinstance(d, Sym) and str(d) in self._names:
                    self._where.setdefault(str(d), (i, k))
        self._decided = decided(graph.env)

    def of(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """The values, in the order of the env. Raises InternalError where one is the size of no
        input, and does not follow from others."""
        shown = {name: int(arrays[i].shape[k]) for name, (i, k) in self._where.items()}
        for name, dim in self._decided.items():
            if name not in shown and (not isinstance(dim, Sym) or dim.names() <= shown.keys()):
                shown[name] = evaluate(dim, shown)
        hidden = [name for name in self._names if name not in shown]
        if hidden:
            raise InternalError(f"no input shows the dims {hidden} by themselves")
        return tuple([shown[name] for name in self._names])
