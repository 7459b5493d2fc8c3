"""The tape: one Node per differentiable op that was applied, holding what its derivative needs.

Owns Node (and the leaf's AccumulateGrad face), saved tensors and their version check. Running
nodes backwards is engine.py. A node never refers to its own outputs as tensors, so a graph is
freed by reference counting.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from types import CodeType
from typing import Any, ClassVar, NamedTuple

from jitgrad.compiler.ops.record import MANY, OPS
from jitgrad.compiler.types import TensorType
from jitgrad.pending import shown
from jitgrad.runtime.userline import line_of, user_frame
from jitgrad.state import bump_epoch, state
from jitgrad.storage import Storage
from jitgrad.tape.names import name_of
from jitgrad.tensor import Tensor, _new, absent, wrap

next_seq = count(1).__next__
"""A node's number is greater than those of the nodes it leads to."""

RETAIN_ERROR = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you "
    "call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward "
    "through the graph a second time or if you need to access saved tensors after calling backward."
)

Gradients = Sequence["Tensor | None"]


class Node:
    """A function on the tape: gradients of its outputs in, gradients of its operands out.

    Attributes:
        op: the record (or whatever has `name` and `vjp`), with `attrs`.
        edges: for each operand, the Node that made it, the leaf Tensor itself, or None.
        slots: for each operand, which output of its node it is.
        nout, out_types: number and type(s) of the outputs.
        seq: creation number.
        known: what dispatch knows of such applications (dispatch.Kept), None of other nodes.

    Subclasses (autograd.Function, compiled backward) override `run` and `release`.
    """

    __slots__ = (
        "__weakref__", "_code", "_lasti", "attrs", "edges", "hooks", "known", "label", "lasting",
        "nout", "op", "operands", "out_types", "outs", "retains", "seq", "slots",
    )  # fmt: skip

    _code: CodeType | None
    _lasti: int
    label: str  # set by composites alone (names.py)
    lasting: bool  # set where nothing is to be released (lasting.py)
    hooks: dict[int, dict[int, Callable[..., Any]]] | None
    retains: dict[int, weakref.ref[Tensor]] | None
    op: Any
    attrs: dict[str, Any]
    edges: tuple[Node | Tensor | None, ...]
    slots: tuple[int, ...]
    operands: tuple[Any, ...] | None
    outs: tuple[Any, ...] | None
    out_types: Any
    known: Any

    def __init__(
        self,
        op: Any,
        attrs: dict[str, Any],
        edges: tuple[Node | Tensor | None, ...],
        slots: tuple[int, ...],
        out_types: Any,
    ) -> None:
        self.op = op
        self.attrs = attrs
        self.edges = edges
        self.slots = slots
        self.nout = len(out_types) if op.nout == MANY else op.nout
        self.out_types = out_types
        self.seq = next_seq()
        self.operands = ()
        self.outs = ()
        self.known = None
        self.hooks = None
        self.retains = None
        frame = user_frame(2)
        self._code = None if frame is None else frame.f_code
        self._lasti = 0 if frame is None else frame.f_lasti

    # -- what users see --------------------------------------------------------------------------
    @property
    def line(self) -> str:
        """The user's source line that made this node."""
        return line_of(self._code, self._lasti)

    def name(self) -> str:
        """PyTorch's name: "MulBackward0"."""
        label = getattr(self, "label", None)
        return label or name_of(self.op, self.out_types)

    @property
    def kind(self) -> type[Node]:
        """The class that the node was made of."""
        cls = type(self)
        return vars(cls).get("shown_as", cls)

    def shown(self) -> Node:
        """This node as users see it: of a class of its own name, as each of PyTorch's is."""
        if self.kind is type(self):
            made_of: Any = self.kind
            self.__class__ = _face(made_of, self.name().rsplit("::", 1)[-1])
        return self

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes this one passes gradients to, with the number of their output."""
        if state.recorder is not None:
            for e in self.edges:
                if isinstance(e, Node):
                    state.recorder.tape_read(e)
        return tuple(
            (None if e is None else face(e), slot)
            for e, slot in zip(self.edges, self.slots, strict=True)
        )

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """`fn(grad_inputs, grad_outputs)` runs after this node; may return new grad_inputs."""
        return add_hook(self, -1, fn)

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """`fn(grad_outputs)` runs before this node; may return new grad_outputs."""
        return add_hook(self, -2, fn)

    def __repr__(self) -> str:
        return f"<{type(self.shown()).__name__} object at {id(self):#x}>"

    # -- running ---------------------------------------------------------------------------------
    def run(self, grads: Gradients) -> Gradients:
        """The operands' gradients from the outputs' (None: zero)."""
        if self.operands is None or self.outs is None:
            raise RuntimeError(RETAIN_ERROR + f" (node {self.name()}, made at {self.line})")
        op = self.op
        saves = op.saves
        operands: list[Any] = []
        for i, x in enumerate(self.operands):
            kind = type(x)
            if kind is tuple or kind is Packed:
                operands.append(self._unpack(x, i))
            elif saves and (i in saves or EVERY in saves):
                operands.append(absent(x))  # read for gradients that nobody wants
            else:
                operands.append(x)
        if op.nout == 1:
            if self.outs:
                out: Any = self._unpack(self.outs, -1)
            else:
                read = "out" in saves or "out0" in saves
                out = absent(self.out_types) if read else self.out_types
            if op.chooses:
                needs = [edge is not None for edge in self.edges]
                return op.vjp(grads[0], out, *operands, needs=needs, **self.attrs)
            return op.vjp(grads[0], out, *operands, **self.attrs)
        outs = tuple(
            self._unpack(y, -1 - i)
            if type(y) is tuple or type(y) is Packed
            else absent(y)
            if "out" in op.saves or f"out{i}" in op.saves
            else y
            for i, y in enumerate(self.outs)
        )
        if op.sparse:
            needs = [edge is not None for edge in self.edges]
            return op.vjp(tuple(grads), outs, *operands, needs=needs, **self.attrs)
        full = tuple(_zeros(g, t) for g, t in zip(grads, self.out_types, strict=True))
        return op.vjp(full, outs, *operands, **self.attrs)

    def release(self) -> None:
        """Drops what was saved; running this node again raises, if anything was."""
        if getattr(self, "lasting", False):
            return
        outs = self.outs
        for x in self.operands or ():
            if type(x) is tuple or type(x) is Packed:
                break
        else:
            if self.nout != 1:
                if not any(type(y) is tuple or type(y) is Packed for y in outs or ()):
                    return
            elif not outs:
                return
        self.operands = None
        self.outs = None

    @property
    def saved(self) -> list[tuple[str, Tensor]]:
        """What is held for the derivative: ("operand 0", tensor) or ("output 0", tensor)."""
        found: list[tuple[str, Tensor]] = []
        for i, x in enumerate(self.operands or ()):
            if type(x) is tuple or type(x) is Packed:
                found.append((f"operand {i}", self._unpack(x, i)))
        if self.outs:
            outs = (self.outs,) if self.nout == 1 else self.outs
            for i, y in enumerate(outs):
                if type(y) is tuple or type(y) is Packed:
                    found.append((f"output {i}", self._unpack(y, -1 - i)))
        return found

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict for the user's own notes on this node, kept as long as the node."""
        return _metadata.setdefault(self, {})

    def _sequence_nr(self) -> int:
        return self.seq

    # -- saved tensors ---------------------------------------------------------------------------
    def tensors(self) -> Sequence[Tensor]:
        """What the node holds as tensors (with their place on the tape)."""
        return ()

    def pack(self) -> None:
        """Hands what is saved to the pack hook that is in force (saved_tensors_hooks)."""
        operands, outs = self.operands, self.outs
        if operands and any(type(x) is tuple for x in operands):
            self.operands = tuple(
                [
                    Packed(self._unpack(x, i)) if type(x) is tuple else x
                    for i, x in enumerate(operands)
                ]
            )
        if not outs:
            return
        if self.nout == 1:
            self.outs = Packed(saved_tensor(outs))  # type: ignore[assignment]
        else:
            self.outs = tuple([Packed(saved_tensor(y)) if type(y) is tuple else y for y in outs])

    def is_packed(self) -> bool:
        """Whether a pack hook has been given something that is saved."""
        outs: Any = self.outs or ()
        outs = (outs,) if type(outs) is Packed else outs
        return any(type(x) is Packed for x in (*(self.operands or ()), *outs))

    def _unpack(self, saved: Saved | Packed, i: int) -> Tensor:
        """The tensor that was saved: operand i, or output -1 - i, with its place on the tape."""
        if type(saved) is Packed:
            x = saved.unpack()
            data, storage, chain, type_, version = x._data, x._storage, x._chain, x._type, None
        else:
            data, storage, chain, type_, version = saved  # type: ignore[misc]
            if data is None:
                data = saved_data(storage, chain)
        if version is not None and storage.version - storage.hidden != version:
            what = f"operand {i}" if i >= 0 else "its result"
            raise version_error(self, what, type_, version, storage)
        node: Node | None
        if i >= 0:
            edge, slot = self.edges[i], self.slots[i]
            if isinstance(edge, Tensor):
                if edge._storage is storage and (edge._data is data or edge._chain is chain):
                    return edge
                # The leaf has other data by now; a gradient still goes to it.
                node = LeafNode(edge)
            else:
                node = edge
        else:
            node, slot = self, -1 - i
        out: Tensor = _new(Tensor)
        out._data, out._storage, out._chain, out._type = data, storage, chain, type_
        out._node, out._out = node, slot
        out._requires_grad = node is not None
        out._view = None
        if data is None and state.lazy is not None:
            state.lazy.follow(out)
        return out

    def protect(self, storage: Storage, snapshot: Callable[[Tensor], Tensor]) -> None:
        """Replaces saved operands on `storage`, about to be overwritten by this very op's result,
        with copies made by `snapshot`."""
        operands = self.operands
        if not operands or not any(type(x) is tuple and x[1] is storage for x in operands):
            return
        kept = list(operands)
        for i, x in enumerate(operands):
            if type(x) is tuple and x[1] is storage:
                copy = snapshot(self._unpack(x, i))
                kept[i] = (copy._data, copy._storage, copy._chain, copy._type, None)
        self.operands = tuple(kept)


Saved = tuple[Any, Storage, tuple[Any, ...], TensorType, "int | None"]
EVERY = "operands"  # in `saves`: every operand (for ops with any number of them)


def save_tensor(x: Tensor) -> Saved:
    """Data, storage, chain, type and version of a tensor, without its place on the tape."""
    storage = x._storage
    return (x._data, storage, x._chain, x._type, storage.version - storage.hidden)


def saved_tensor(saved: Saved) -> Tensor:
    """What was saved, off the tape."""
    out: Tensor = _new(Tensor)
    out._data, out._storage, out._chain, out._type, _ = saved
    out._node, out._out, out._requires_grad, out._view = None, 0, False, None
    if out._data is None:
        out._data = saved_data(out._storage, out._chain)
    return out


def saved_data(storage: Storage, chain: Any) -> Any:
    """The data of a tensor that was saved without, in a call that runs in segments: it may be there
    by now."""
    return None if storage.array is None else shown(storage.array, chain)


class Packed:
    """What a pack hook made of a saved tensor, with the hook that unpacks it."""

    __slots__ = ("_type", "packed", "unpack_hook")

    def __init__(self, x: Tensor) -> None:
        pack, self.unpack_hook = state.saved_hooks[-1]
        self._type = x._type
        hooks, grad_enabled = state.saved_hooks, state.grad_enabled
        state.saved_hooks, state.grad_enabled = (), False
        try:
            self.packed = _held(pack(x))
        finally:
            state.saved_hooks, state.grad_enabled = hooks, grad_enabled

    def unpack(self) -> Tensor:
        """The saved tensor. Raises TypeError and RuntimeError where the hook gives another."""
        out = self.unpack_hook(_given(self.packed))
        if not isinstance(out, Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(out).__name__}"
            )
        if out._type != self._type:
            raise RuntimeError(
                f"[saved_tensors_hooks] expected the unpack hook to give a tensor of type "
                f"{self._type}, as was packed; got {out._type}"
            )
        return out


def held_by_tape(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Tensors that are alive because the tape of these holds them: what nodes keep as tensors, and
    what owners of hooks on saved tensors (checkpoints) compute with again."""
    seen: set[int] = set()
    stack: list[Any] = [x._node for x in tensors]
    while stack:
        node = stack.pop()
        if node is None or isinstance(node, Tensor) or id(node) in seen:
            continue
        seen.add(id(node))
        stack.extend(node.edges)
        owners = [node]
        for x in (*(node.operands or ()), *((node.outs,) if node.nout == 1 else node.outs or ())):
            owner = getattr(x.unpack_hook, "__self__", None) if type(x) is Packed else None
            if owner is not None and id(owner) not in seen and hasattr(owner, "tensors"):
                seen.add(id(owner))
                owners.append(owner)
        for owner in owners:
            held = owner.tensors()
            stack.extend(t._node for t in held)
            yield from held


def nodes_of(tensors: Iterable[Tensor]) -> set[int]:
    """The ids of all nodes of the tape of these, as far as edges lead."""
    found: set[int] = set()
    stack: list[Any] = [x._node for x in tensors]
    while stack:
        node = stack.pop()
        if node is None or isinstance(node, Tensor) or id(node) in found:
            continue
        found.add(id(node))
        stack.extend(node.edges)
    return found


class Held:
    """A tensor that a pack hook gave, held as nodes hold tensors: off the tape, so without a cycle
    where it is the node's own output."""

    __slots__ = ("saved",)

    def __init__(self, x: Tensor) -> None:
        self.saved = save_tensor(x)


def _held(packed: Any) -> Any:
    if type(packed) is tuple:
        return tuple([_held(p) for p in packed])
    return Held(packed) if type(packed) is Tensor else packed


def _given(packed: Any) -> Any:
    if type(packed) is tuple:
        return tuple([_given(p) for p in packed])
    return saved_tensor(packed.saved) if type(packed) is Held else packed


_metadata: weakref.WeakKeyDictionary[Node, dict[str, Any]] = weakref.WeakKeyDictionary()


def version_error(
    node: Node, what: str, type_: TensorType, expected: int, storage: Any
) -> RuntimeError:
    """The error for a saved tensor that was changed in place before backward."""
    found = storage.version - storage.hidden
    changed = ""
    writer = getattr(storage, "writer", None)
    if writer is not None and writer[0] == storage.version:  # the last write
        _, code, lasti, name = writer
        changed = f" It was changed by {name} at {line_of(code, lasti) or 'an unknown line'}."
    return RuntimeError(
        f"[{node.op.name}] one of the variables needed for gradient computation has been modified "
        f"by an inplace operation: {what}, {type_}, saved by {node.op.name} ({node.name()}) at "
        f"{node.line or 'an unknown line'}, is at version {found}; expected version {expected} "
        f"instead.{changed} Hint: use the out-of-place form of the operation that changed it "
        "(x = x + 1, not x += 1), or change a .clone()."
    )


class _Named:
    """What a Node asks of an op, for nodes that are no op."""

    nout = 1
    saves: tuple[int | str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name


@cache
def _face(cls: type[Node], name: str) -> type[Node]:
    return type(name, (cls,), {"__slots__": (), "shown_as": cls, "__module__": __name__})


def face(edge: Node | Tensor) -> Any:
    """A place of the tape as users see it: a node of its own class, or a leaf's AccumulateGrad."""
    return AccumulateGrad(edge) if isinstance(edge, Tensor) else edge.shown()


class IdentityNode(Node):
    """Passes its gradient on (a copy of a tensor into another; an alias of one)."""

    __slots__ = ()
    _op = _Named("copy")

    def __init__(self, edge: Node | Tensor, slot: int, type_: TensorType) -> None:
        super().__init__(self._op, {}, (edge,), (slot,), type_)

    def run(self, grads: Gradients) -> Gradients:
        return grads


class OverwrittenNode(IdentityNode):
    """A tensor overwritten by values that need no gradient: what it was gets zeros."""

    __slots__ = ()
    _op = _Named("overwrite")

    def run(self, grads: Gradients) -> Gradients:
        return (zeros_of(self.out_types),)


class LeafNode(IdentityNode):
    """An edge to a leaf, for an alias of it."""

    __slots__ = ()
    _op = _Named("leaf")

    def __init__(self, leaf: Tensor) -> None:
        super().__init__(leaf, 0, leaf._type)


class StartNode(Node):
    """Where a function that is differentiated (func.grad, func.vjp) starts: its argument.

    Leads to the argument itself where that requires grad outside, else nowhere.
    """

    __slots__ = ()
    _op = _Named("argument")

    def __init__(self, x: Tensor, edge: Node | Tensor | None, slot: int) -> None:
        super().__init__(
            self._op, {}, () if edge is None else (edge,), () if edge is None else (slot,), x._type
        )

    def run(self, grads: Gradients) -> Gradients:
        return grads


class AccumulateGrad:
    """A leaf as its users' `next_functions` show it: one object for a leaf, while anybody has it.

    Attributes:
        variable: the leaf.
        metadata: a dict for the user's own notes.
    """

    __slots__ = ("__weakref__", "metadata", "variable")
    _made: ClassVar[weakref.WeakValueDictionary[int, AccumulateGrad]] = (
        weakref.WeakValueDictionary()
    )
    next_functions: tuple[Any, ...] = ()
    variable: Tensor
    metadata: dict[str, Any]

    def __new__(cls, variable: Tensor) -> AccumulateGrad:
        made = cls._made.get(id(variable))  # which has the leaf, so no other has its number
        if made is None:
            made = cls._made[id(variable)] = super().__new__(cls)
            made.variable, made.metadata = variable, {}
        return made

    def name(self) -> str:
        """PyTorch's name."""
        return "torch::autograd::AccumulateGrad"

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """`fn(grad_outputs)` runs before the gradient is added to `.grad`; may return another
        tuple of one."""

        def hook(g: Tensor) -> Any:
            changed = fn((g,))
            return changed[0] if isinstance(changed, tuple) else changed

        return self.variable.register_hook(hook)

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """`fn(grad_inputs, grad_outputs)` runs after the gradient was added to `.grad`; there are
        no grad_inputs."""
        arrived: list[Tensor] = []
        before = self.variable.register_hook(arrived.append)
        after = self.variable.register_post_accumulate_grad_hook(lambda _: fn((), (arrived.pop(),)))
        return Handles((before, after))

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {id(self):#x}>"


class GradientEdge(NamedTuple):
    """A place on the tape: output `output_nr` of a node. autograd.grad and backward take it in the
    place of a tensor."""

    node: Any
    output_nr: int


def edge_of(x: Tensor) -> tuple[Node | Tensor | None, int]:
    """Where a gradient of x goes: (node, output), (leaf, 0), or (None, 0)."""
    if x._view is not None:
        x._view.refresh(x)
    if not x._requires_grad:
        return None, 0
    node = x._node
    return (x, 0) if node is None else (node, x._out)


def type_at(edge: Node | Tensor, slot: int) -> TensorType:
    """The type of what is at a place of the tape: an output of a node, or a leaf."""
    if isinstance(edge, Tensor):
        return edge._type
    return edge.out_types if edge.nout == 1 else edge.out_types[slot]


def tensor_at(node: Node, slot: int) -> Tensor:
    """A tensor of the type and the place on the tape of a node's output, without data."""
    out = wrap(None, type_at(node, slot))
    out._node, out._out, out._requires_grad = node, slot, True
    return out


def edges_of(
    operands: Sequence[Tensor],
) -> tuple[tuple[Node | Tensor | None, ...], tuple[int, ...]]:
    """edge_of for every operand."""
    edges: list[Node | Tensor | None] = []
    slots: list[int] = []
    for x in operands:
        edge, slot = edge_of(x)
        edges.append(edge)
        slots.append(slot)
    return tuple(edges), tuple(slots)


def _zeros(g: Tensor | None, type_: TensorType) -> Tensor | None:
    if g is not None or not (type_.dtype.is_floating_point or type_.dtype.is_complex):
        return g
    return zeros_of(type_)


def zeros_of(type_: TensorType) -> Tensor:
    """Zeros of a type, made by the `full` record."""
    attrs = {"shape": tuple(type_.shape), "value": 0, "dtype": type_.dtype,
             "device": str(type_.device)}  # fmt: skip
    return Tensor._bind(OPS["full"], (), attrs)


class RemovableHandle:
    """What registering a hook returns: `remove()` takes the hook out again."""

    _ids = count()

    def __init__(self, hooks: Any) -> None:
        self._hooks = weakref.ref(hooks) if not isinstance(hooks, dict) else (lambda: hooks)
        self.id = next(RemovableHandle._ids)

    def remove(self) -> None:
        hooks = self._hooks()
        if hooks is not None and self.id in hooks:
            del hooks[self.id]
            bump_epoch()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Handles(RemovableHandle):
    """Several handles as one."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        super().__init__({})
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def add_hook(node: Node, slot: int, hook: Callable[..., Any]) -> RemovableHandle:
    """Adds a hook on output `slot` of a node (-1: after the node, -2: before it)."""
    if node.hooks is None:
        node.hooks = {}
    hooks = node.hooks.setdefault(slot, {})
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
