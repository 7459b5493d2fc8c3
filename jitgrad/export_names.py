"""What an exported function's state is called, and numbers that follow from it.

Owns the names: tensors by the path of the Module that holds them, an optimizer's state after the
parameter that it belongs to ("model.fc1.weight.exp_avg"), its settings after the optimizer
("optimizer.lr"). And `number_node`: a number that the function computes of settings is computed in
the graph, so that it follows when a setting is replaced from outside.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from jitgrad.compiler.ir import Graph, Value
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.compiler.types import TensorType
from jitgrad.effects import is_module
from jitgrad.hostscalar import HostScalar, is_lifted
from jitgrad.recorder import Entry, Trace
from jitgrad.runtime.dtypes import float64
from jitgrad.sources import Captured, Grad, Number, Seed
from jitgrad.tensor import Tensor

_OPS = {"floordiv": "floor_divide", "mod": "remainder"}


class StateNames:
    """Attributes: `paths`, what tensors and Modules are called, by id."""

    def __init__(self, paths: Mapping[int, str], settings: Mapping[Any, str] | None = None) -> None:
        self.paths, self._settings = dict(paths), dict(settings or {})

    @classmethod
    def of_function(cls, function: Any) -> StateNames:
        """Of the Modules, tensors and optimizers that a function reaches by a name of its own."""
        paths: dict[int, str] = {}
        settings: dict[Any, str] = {}
        named = _named_values(function).items()
        for name, value in sorted(named, key=lambda kv: not is_module(kv[1])):  # Modules first
            if is_module(value):
                for path, x in value.state_dict(keep_vars=True).items():
                    paths.setdefault(id(x), f"{name}.{path}")
            if isinstance(value, Tensor):
                paths.setdefault(id(value), name)
            groups = getattr(value, "param_groups", None)
            if isinstance(groups, list) and all(isinstance(g, dict) for g in groups):
                for k, group in enumerate(groups):
                    prefix = name if len(groups) == 1 else f"{name}.{k}"
                    for key, x in dict.items(group):
                        settings.setdefault((id(group), key), f"{prefix}.{key}")
                        for i in range(len(x) if isinstance(x, tuple) else 0):
                            settings.setdefault((id(x), i), f"{prefix}.{key}.{i}")
        return cls(paths, settings)

    def of(self, e: Entry, trace: Trace) -> str:
        """A Module's own path for its tensors; else how the function reaches it."""
        if isinstance(e.source, Seed):
            return "random.seed"
        if isinstance(e.source, Number) and e.source.scalar.expr is None:
            return self.setting(e.source.scalar)
        if isinstance(e.source, Captured):
            item = e.source.item
            if id(item.now) in self.paths:
                return self.paths[id(item.now)]
            owner = item.parent.key if item.parent is not None else None
            if isinstance(owner, Tensor):  # what an optimizer keeps for a parameter
                known = self.paths.get(id(owner)) or _name_of(owner, trace)
                if known:
                    return f"{known}.{item.key}"
        if isinstance(e.source, Grad) and id(e.source.owner.item.now) in self.paths:  # type: ignore[union-attr]
            return f"{self.paths[id(e.source.owner.item.now)]}.grad"  # type: ignore[union-attr]
        return plain_path(next(i.name for i in trace.graph.inputs if i.value is e.value))

    def setting(self, scalar: HostScalar) -> str:
        """A number that is read from an optimizer's group: "optimizer.lr"."""
        return self._settings.get(scalar.name, str(scalar.name[1]))


def plain_path(name: str) -> str:
    """ "model.params['0.weight']" as "model.params.0.weight"."""
    return re.sub(r"\['([\w.]+)'\]", r".\1", name)


def _name_of(tensor: Tensor, trace: Trace) -> str:
    """How the function reaches a tensor that it captures; "" where it does not."""
    for e in trace.entries:
        if isinstance(e.source, Captured) and e.source.item.now is tensor:
            return plain_path(str(e.source.item.name))
    return ""


def _named_values(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        names = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):  # an object that is called
        names = None
    if names is not None:
        found = {**names.globals, **names.nonlocals}
    owner = getattr(function, "__self__", None if inspect.isroutine(function) else function)
    if owner is not None and not is_module(owner) and not inspect.ismodule(owner):
        found = {**getattr(owner, "__dict__", {}), **found}
    return found


def number_node(graph: Graph, scalar: HostScalar, leaf: Callable[[HostScalar], Value]) -> Value:
    """The value of a number that is an expression, or a size, in double; `leaf` gives that of a
    setting."""
    done: dict[int, Value] = {}
    stack: list[Any] = [scalar]
    while stack:
        node = stack[-1]
        if not is_lifted(node):
            done[id(node)] = _constant(graph, float(node))
        elif node.expr is None and node.name[0] == "size":
            done[id(node)] = _constant(graph, node.name[1])
        elif node.expr is None:
            done[id(node)] = leaf(node)
        if id(node) in done:
            stack.pop()
            continue
        op, operands = node.expr
        waiting = [x for x in operands if id(x) not in done]
        if waiting:
            stack.extend(waiting)
            continue
        done[id(node)] = graph.add(OPS[_OPS.get(op, op)], *[done[id(x)] for x in operands])
        stack.pop()
    return done[id(scalar)]


def _constant(graph: Graph, number: float | Sym) -> Value:
    t = TensorType((), float64)
    attrs = {"shape": (), "value": number, "dtype": float64, "device": t.device}
    return graph.add_node(OPS["full"], (), attrs)[0]
