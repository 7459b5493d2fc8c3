"""Functions linear in pieces (relu, max_pool, x ** 1): second derivatives are zero, not absent.

Their gradient says by which piece an operand lies in, and so depends on it without varying with it.
On a tape that is differentiated again (create_graph) it leads to the operand, with zeros, as
PyTorch's does. Records say so by `flat`; functions composed of ops, by `in_pieces`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jitgrad.state import state
from jitgrad.tape.node import Gradients, IdentityNode, Node, _Named, edge_of, type_at, zeros_of
from jitgrad.tensor import Tensor


class _Flat(_Named):
    flat = True


_flat = cache(_Flat)


class PiecesNode(IdentityNode):
    """The result of a function of x that is linear in pieces: leads to what it was composed of, and
    to x, which gets nothing from the first derivative."""

    __slots__ = ()

    def __init__(self, y: Tensor, x: Tensor, name: str) -> None:
        (edge, slot), (x_edge, x_slot) = edge_of(y), edge_of(x)
        Node.__init__(self, _flat(name), {}, (edge, x_edge), (slot, x_slot), y._type)

    def run(self, grads: Gradients) -> Gradients:
        return (grads[0], None)


class FlatNode(IdentityNode):
    """A gradient that tells by which piece x lies in: x gets zeros."""

    __slots__ = ()
    _op = _Named("flat")

    def __init__(self, g: Tensor, edge: Node | Tensor, slot: int) -> None:
        own, own_slot = edge_of(g)
        Node.__init__(self, self._op, {}, (own, edge), (own_slot, slot), g._type)

    def run(self, grads: Gradients) -> Gradients:
        edge = self.edges[1]
        assert edge is not None
        return (grads[0], zeros_of(type_at(edge, self.slots[1])))


def in_pieces(y: Tensor, x: Tensor, name: str) -> Tensor:
    """y, just made of x by ops; its grad_fn is called by the name from here on."""
    if y._requires_grad and y._node is not None and not state.levels and x.requires_grad:
        y._node, y._out = PiecesNode(y, x, name), 0
    return y


def connect(node: Node, passed: list[Any]) -> None:
    """Gradients that a node of a function linear in pieces passes on lead to its operand, too."""
    edge, slot = node.edges[-1], node.slots[-1]
    if edge is None or state.levels:
        return
    for k, g in enumerate(passed):
        if g is not None:
            out: Tensor = g._alias()
            out._node, out._out, out._requires_grad = FlatNode(g, edge, slot), 0, True
            passed[k] = out
