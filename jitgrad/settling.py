"""What is left when a recording with symbolic sizes is over: tensors and the tape, with ints.

Owns `settle`. A SymInt that code kept elsewhere is the int that it was (sizes.py), so this is for
types, which are compared and interned, and for what backward reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jitgrad.compiler.types import TensorType
from jitgrad.sizes import has_sizes, hinted, type_of_data
from jitgrad.storage import Storage
from jitgrad.tape.node import Node
from jitgrad.tensor import Tensor, intern_type


def settle(tensors: Iterable[Tensor], first_node: int) -> None:
    """Gives tensors, and nodes of the tape from number `first_node` on that they lead to, sizes
    that are ints."""
    stack: list[Any] = []
    for x in tensors:
        x._type = _type(x._type)
        x._storage.type = _type(x._storage.type)
        x._chain = _chain(x._chain)
        stack.append(x._node)
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if not isinstance(node, Node) or node.seq < first_node or id(node) in seen:
            continue
        seen.add(id(node))
        node.attrs = hinted(node.attrs)
        node.out_types = _all(node.out_types)
        if node.operands is not None:
            node.operands = _all(node.operands)
        if node.outs is not None:
            node.outs = _all(node.outs)
        chain = getattr(node, "chain", None)  # of a write through a view
        if chain is not None:
            node.chain = _chain(chain)  # type: ignore[attr-defined]
        stack.extend(node.edges)


def _type(t: TensorType) -> TensorType:
    return intern_type(type_of_data(t)) if has_sizes(tuple(t.shape)) else t


def _chain(chain: Any) -> Any:
    if not any(has_sizes(tuple(attrs.values())) for _, attrs in chain):
        return chain
    return tuple([(op, hinted(attrs)) for op, attrs in chain])


def _all(x: Any) -> Any:
    """Types, and types and chains of saved tensors."""
    if isinstance(x, TensorType):
        return _type(x)
    if type(x) is not tuple:
        return x
    if len(x) == 5 and isinstance(x[1], Storage):  # tape.node.Saved
        return (x[0], x[1], _chain(x[2]), _type(x[3]), x[4])
    return tuple(map(_all, x))
