"""autograd.Function: derivatives written by the user, on the same tape.

How one runs inside vmap and forward mode is function_levels.py.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.autograd.given import as_gradient
from jitgrad.dispatch import check_inplace, level_of
from jitgrad.pytree import flatten
from jitgrad.state import state
from jitgrad.tape.node import (
    RETAIN_ERROR,
    Gradients,
    LeafNode,
    Node,
    Packed,
    edge_of,
    edges_of,
    save_tensor,
    saved_data,
    version_error,
    zeros_of,
)
from jitgrad.tape.views import rebase
from jitgrad.tensor import Tensor, _new


class FunctionCtx:
    """What `forward` and `backward` of a Function share.

    Attributes:
        needs_input_grad: for each argument, whether backward shall compute its gradient.
        saved_tensors: what save_for_backward was given.
    """

    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads: bool = True

    def __init__(self) -> None:
        self.to_save: tuple[Tensor | None, ...] = ()
        self._for_forward: tuple[Tensor | None, ...] | None = None
        self._non_differentiable: set[int] = set()
        self._dirty: set[int] = set()
        self._node: weakref.ref[FunctionNode] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps inputs, outputs or intermediates for backward; call once, in forward."""
        _check_saved(tensors, "save_for_backward")
        self.to_save = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for jvp, where `saved_tensors` gives them."""
        _check_saved(tensors, "save_for_forward")
        self._for_forward = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """These outputs do not require grad."""
        self._non_differentiable = {id(y) for y in outputs}

    def mark_dirty(self, *inputs: Tensor) -> None:
        """These inputs were changed in place by forward."""
        self._dirty = {id(x) for x in inputs}

    def set_materialize_grads(self, value: bool) -> None:
        """False: gradients of unused outputs arrive as None, not zeros."""
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        if self._for_forward is not None:
            return self._for_forward
        if self._node is None:
            return self.to_save
        node = self._node()
        if node is None:
            raise RuntimeError(RETAIN_ERROR)
        return node.unpack_saved()

    saved_variables = saved_tensors


def _check_saved(tensors: Sequence[Any], name: str) -> None:
    for t in tensors:
        if t is not None and not isinstance(t, Tensor):
            raise TypeError(
                f"{name} can only save variables, but argument is of type {type(t).__name__}"
            )


class FunctionNode(Node):
    """A Function's application: runs its `backward`."""

    __slots__ = ("__dict__", "ctx", "function", "kept")
    ctx: FunctionCtx
    function: type[Function]
    kept: list[Any] | None

    def name(self) -> str:
        return f"{self.function.__name__}Backward"

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What forward saved by `ctx.save_for_backward`."""
        return self.unpack_saved()

    def keep(self, outputs: Sequence[Any]) -> None:
        """Takes over what forward saved. Own outputs are kept without a cycle."""
        mine = {id(y): i for i, y in enumerate(outputs)}
        self.kept = []
        for t in self.ctx.to_save:
            if t is None:
                self.kept.append(None)
            elif state.saved_hooks:
                own = id(t) in mine
                place = (None, mine[id(t)]) if own else edge_of(t)
                self.kept.append((Packed(t._alias() if own else t), (own, place)))
            elif id(t) in mine:
                self.kept.append((save_tensor(t), mine[id(t)]))
            else:
                self.kept.append((save_tensor(t), t))
        self.ctx.to_save = ()

    def tensors(self) -> list[Tensor]:
        held = [entry[1] for entry in self.kept or () if entry is not None]
        held += [x for value in vars(self.ctx).values() for x in flatten(value)[0]]
        return [x for x in held if isinstance(x, Tensor)]

    def unpack_saved(self) -> tuple[Tensor | None, ...]:
        if self.kept is None:
            raise RuntimeError(RETAIN_ERROR)
        found: list[Tensor | None] = []
        for i, entry in enumerate(self.kept):
            if entry is None:
                found.append(None)
                continue
            saved, source = entry
            if type(saved) is Packed:
                found.append(self._unpacked(saved, *source))
                continue
            data, storage, chain, type_, version = saved
            if data is None:
                data = saved_data(storage, chain)
            now = storage.version - storage.hidden
            if now != version:
                raise version_error(self, f"saved tensor {i}", type_, version, storage)
            if isinstance(source, Tensor):
                found.append(source)
                continue
            out: Tensor = _new(Tensor)
            out._data, out._storage, out._chain, out._type = data, storage, chain, type_
            out._node, out._out, out._requires_grad, out._view = self, source, True, None
            found.append(out)
        return tuple(found)

    def _unpacked(self, saved: Packed, own: bool, place: tuple[Any, int]) -> Tensor:
        x = saved.unpack()
        edge, slot = place
        if x is edge:
            return x
        out: Tensor = x._alias()
        if own or edge is not None:
            node = self if own else LeafNode(edge) if isinstance(edge, Tensor) else edge
            out._node, out._out, out._requires_grad = node, slot, True
        return out

    def release(self) -> None:
        self.kept = None

    def run(self, grads: Gradients) -> Gradients:
        types = (self.out_types,) if self.nout == 1 else self.out_types
        full = [
            zeros_of(t) if g is None and self.ctx.materialize_grads and t is not None else g
            for g, t in zip(grads, types, strict=True)
        ]
        found = self.function._derivative()(self.ctx, *full)
        many = found if isinstance(found, (tuple, list)) else (found,)
        count = len(self.ctx.needs_input_grad)
        if len(many) < count or any(g is not None for g in many[count:]):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients "
                f"(expected {count}, got {len(many)})"
            )
        out: list[Tensor | None] = []
        for k, position in enumerate(self.attrs["positions"]):
            g = many[position]
            if g is not None and not isinstance(g, Tensor):
                raise TypeError(
                    f"function {self.name()} returned gradient {position} of type "
                    f"{type(g).__name__}; expected a Tensor or None"
                )
            expected = self.attrs["types"][k]
            if g is not None and self.edges[k] is not None:
                what = f"Function {self.name()} returned an invalid gradient at index {position}"
                g = as_gradient(g, expected, what)
            out.append(g)
        return out


class Function:
    """Base of functions with a hand-written derivative.

        class Cube(Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return g * 3 * x * x

        y = Cube.apply(x)

    forward runs off the tape. backward runs on it under create_graph, so higher derivatives work.
    A separate `setup_context(ctx, inputs, output)` may be given; forward then takes no ctx.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all "
            "static, so you should invoke them on the class itself: use .apply(...)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            "You must implement the forward function for custom autograd.Function."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement the backward method for your custom autograd.Function to use it "
            "with backward mode AD."
        )

    vjp = backward

    generate_vmap_rule = False
    """As PyTorch's; here vmap over a Function without `vmap` works either way."""

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with "
            "forward mode AD."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap staticmethod or "
            "set generate_vmap_rule=True."
        )

    @staticmethod
    def _run_forward(
        cls: Any, ctx: FunctionCtx, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...  # attached by function_levels.py

    @classmethod
    def _derivative(cls) -> Callable[..., Any]:
        """backward, or vjp, its other name. Raises RuntimeError where both are given."""
        if cls.vjp is Function.vjp:
            return cls.backward
        if cls.backward is not Function.backward:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You "
                "should only implement one of them."
            )
        return cls.vjp

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Runs forward and puts the derivative on the tape."""
        ctx = FunctionCtx()
        positions = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        tensors = [args[i] for i in positions]
        level = level_of(tensors)
        if level is not None:  # what lies below a vmap is not on the tape inside it
            args = tuple([level.lift(x) if isinstance(x, Tensor) else x for x in args])
            tensors = [args[i] for i in positions]
        edges, slots = edges_of(tensors)
        wanted = {p for p, e in zip(positions, edges, strict=True) if e is not None}
        taped = state.grad_enabled and bool(wanted)
        ctx.needs_input_grad = tuple(i in wanted for i in range(len(args)))
        result = cls._run_forward(cls, ctx, args, kwargs)
        ctx._for_forward = None
        if not taped:
            return result
        many = result if isinstance(result, tuple) else (result,)
        inputs = {id(x) for x in tensors}
        outputs: list[Any] = []
        for y in many:
            # An input as it is, or a view, becomes an output of this node as a new tensor.
            fresh = not isinstance(y, Tensor) or (id(y) not in inputs and y._view is None)
            if not fresh and id(y) not in ctx._dirty:
                y = y._alias()
            outputs.append(y)
        renamed = {id(a): b for a, b in zip(many, outputs, strict=True)}
        ctx.to_save = tuple(
            renamed.get(id(t), t) if id(t) not in inputs else t for t in ctx.to_save
        )
        types = tuple(
            y._type if isinstance(y, Tensor) and y._type.dtype.category >= 2 else None
            for y in outputs
        )
        attrs = {"positions": tuple(positions), "types": tuple(x._type for x in tensors)}
        node = FunctionNode(
            _Name(cls.__name__, len(outputs)),
            attrs,
            edges,
            slots,
            types if len(types) > 1 else types[0],
        )
        node.ctx, node.function, node.kept = ctx, cls, []
        node.operands, node.outs = (), ()
        ctx._node = weakref.ref(node)  # the node holds ctx: no cycle
        for i, (y, original) in enumerate(zip(outputs, many, strict=True)):
            if types[i] is None or id(original) in ctx._non_differentiable:
                continue
            if id(y) in ctx._dirty:
                _place_written(y, node, i)
            else:
                y._node, y._out, y._requires_grad = node, i, True
        node.keep(outputs)
        return tuple(outputs) if isinstance(result, tuple) else outputs[0]


def _place_written(y: Tensor, node: FunctionNode, i: int) -> None:
    """An input that forward changed in place is output i of the node from here on."""
    check_inplace(y, True)
    if y._base is None:
        y._node, y._out, y._requires_grad = node, i, True
        return
    value: Tensor = y._alias()
    value._node, value._out, value._requires_grad = node, i, True
    rebase(y, value)


class _Name:
    saves: tuple[int | str, ...] = ()

    def __init__(self, name: str, nout: int) -> None:
        self.name, self.nout = name, nout


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `backward`: it runs off the tape, and differentiating its result raises."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        taped = state.grad_enabled and any(isinstance(g, Tensor) and g.requires_grad for g in grads)
        state_before = state.grad_enabled
        state.grad_enabled = False
        try:
            found = backward(ctx, *grads)
        finally:
            state.grad_enabled = state_before
        if not (taped or (state.grad_enabled and _saved_requires_grad(ctx))):
            return found
        many = found if isinstance(found, tuple) else (found,)
        out = tuple(_no_second(g) if isinstance(g, Tensor) else g for g in many)
        return out if isinstance(found, tuple) else out[0]

    return wrapper


def _saved_requires_grad(ctx: FunctionCtx) -> bool:
    return any(ctx.needs_input_grad)


class _OnceNode(Node):
    __slots__ = ()

    def run(self, grads: Gradients) -> Gradients:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def _no_second(g: Tensor) -> Tensor:
    out = g.detach()
    leaf = g.detach().requires_grad_()
    out._node = _OnceNode(_Name("error", 1), {}, (leaf,), (0,), g._type)
    out._out, out._requires_grad = 0, True
    return out
