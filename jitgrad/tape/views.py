"""How the tape follows in-place writes through views.

Owns `ViewInfo` (what a tensor made by a view op knows of its base) and the node of a write through
a view. As in PyTorch: after a write through any view, or to the base, the base's node says what was
written, and the node of every other view is derived from the base again when it is next asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.sizes import infer
from jitgrad.tape.node import Gradients, Node, edge_of, zeros_of
from jitgrad.tensor import Tensor, _new

Chain = Sequence[tuple[Any, dict[str, Any]]]


class ViewInfo:
    """The base of a view, as the tape sees it.

    Attributes:
        base: the tensor that this is a view of (no view itself).
        version: the storage's version that the view's node speaks of.
        hidden: in-place writes are not seen by the tape (the base came from `.data`).
        tracked: False when the view was made in no_grad mode.
    """

    __slots__ = ("_base", "hidden", "tracked", "version")

    def __init__(self, base: Tensor | None, version: int, hidden: bool, tracked: bool) -> None:
        self._base = base
        self.version = version
        self.hidden = hidden
        self.tracked = tracked

    @property
    def base(self) -> Tensor | None:
        base = self._base
        if base is not None and base._was is not None:  # it became a view itself, in place
            base = self._base = base._was
        return base

    def detached(self) -> ViewInfo:
        return ViewInfo(None, self.version, self.hidden, True)

    def refresh(self, view: Tensor) -> None:
        """Derives the view's node from its base when the storage was written since."""
        base = self.base
        if base is None:
            return
        storage = view._storage
        version = storage.version - storage.hidden
        if version == self.version:
            return
        self.version = version
        if base._storage is not storage or not self.tracked:
            return
        if not base._requires_grad:
            return
        view._node = node_of_view(base, relative_chain(view))
        view._out = 0
        view._requires_grad = True


def relative_chain(view: Tensor) -> Chain:
    """The view ops from the view's base (not the storage's root) to it."""
    assert view._view is not None and view._view.base is not None
    return view._chain[len(view._view.base._chain) :]


def node_of_view(base: Tensor, chain: Chain) -> Node:
    """Nodes of view ops applied to `base`, without running them."""
    edge, slot = edge_of(base)
    type_ = base._type
    for op, attrs in chain:
        out_type = infer(op, type_, **attrs)
        node = Node(op, attrs, (edge,), (slot,), out_type)
        node.operands = (type_,)
        edge, slot, type_ = node, 0, out_type
    assert isinstance(edge, Node)
    return edge


def put_chain(base: Any, chain: Chain, update: Any) -> Any:
    """`base` with the region that `chain` shows replaced by `update`, made of records."""
    steps = [base]
    for op, attrs in chain[:-1]:
        steps.append(op(steps[-1], **attrs))
    for (op, attrs), step in zip(reversed(chain), reversed(steps), strict=True):
        update = op.put(step, update, **attrs)
    return update


class _CopySlices:
    name = "copy_slices"
    nout = 1
    saves = ()


class CopySlicesNode(Node):
    """The base after a write through a view of it: operands (base before, value)."""

    __slots__ = ("chain",)
    _op = _CopySlices()

    def __init__(self, base: Tensor, view: Tensor, value: Tensor) -> None:
        base_edge, base_slot = edge_of(base)
        value_edge, value_slot = edge_of(value)
        super().__init__(self._op, {}, (base_edge, value_edge), (base_slot, value_slot), base._type)
        self.chain = relative_chain(view)

    def run(self, grads: Gradients) -> Gradients:
        g = grads[0]
        part: Any = g
        for op, attrs in self.chain:
            part = op(part, **attrs)
        before = None
        if self.edges[0] is not None:
            before = put_chain(g, self.chain, zeros_of(part._type))
        return before, part if self.edges[1] is not None else None


def rebase(view: Tensor, value: Tensor) -> None:
    """After `view` was overwritten by `value`: the base's node says so, the view follows it."""
    info = view._view
    assert info is not None and info.base is not None
    base = info.base
    node = CopySlicesNode(base, view, value)
    base._node, base._out, base._requires_grad = node, 0, True
    info.version = -1
    info.refresh(view)


def new_view(x: Tensor, data: Any, type_: Any, step: tuple[Any, dict[str, Any]]) -> Tensor:
    """A tensor that shares x's storage, one view op further down its chain."""
    out: Tensor = _new(Tensor)
    out._data = data
    out._type = type_
    out._storage = x._storage
    out._chain = (*x._chain, step)
    out._node = None
    out._out = 0
    out._requires_grad = False
    out._view = None
    return out
