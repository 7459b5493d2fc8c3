"""grad, grad_and_value, vjp, jacrev, hessian: derivatives by the tape.

An argument that is differentiated becomes a tensor on the same storage whose place on the tape is a
StartNode: that is where the gradient is read. The result is on the tape of what surrounds the
transform where it depends on something that is: so these nest, and backward() goes through them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from jitgrad.autograd import engine
from jitgrad.autograd.modes import enable_grad
from jitgrad.creation import eye
from jitgrad.func.arguments import (
    Argnums,
    checked_argnums,
    chosen,
    outputs_of,
    real_only,
    replaced,
    tensor_leaves,
    with_aux,
)
from jitgrad.func.forward import jacfwd
from jitgrad.func.mapping import vmap
from jitgrad.levels import lifted_to_current
from jitgrad.pytree import flatten, tree_map, unflatten
from jitgrad.state import state
from jitgrad.storage import LevelStorage
from jitgrad.tape.node import Node, StartNode, edge_of, zeros_of
from jitgrad.tensor import Tensor

_P = ParamSpec("_P")


class _Pass:
    """A function that is being run to be differentiated: its starts, and what surrounds it."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.taped = state.grad_enabled
        self.starts: list[tuple[StartNode, Tensor]] = []

    def start(self, x: Tensor) -> Tensor:
        """x as the argument that is differentiated. Raises RuntimeError for integers."""
        if not (x.is_floating_point() or x.is_complex()):
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients; "
                f"{self.api} got {x._type}"
            )
        x = lifted_to_current(x)
        edge, slot = edge_of(x) if self.taped else (None, 0)
        out: Tensor = x._alias()
        node = StartNode(x, edge, slot)
        out._node, out._requires_grad = node, True
        self.starts.append((node, out))
        return out

    def foreign(self, outputs: Sequence[Tensor]) -> bool:
        """Whether outputs depend on something on the tape that surrounds the function."""
        if not self.taped:
            return False
        if any(_below_requires_grad(y) for y in outputs):
            return True
        own = {id(node) for node, _ in self.starts}
        seen: set[int] = set()
        stack: list[Any] = [edge_of(y)[0] for y in outputs]
        while stack:
            edge = stack.pop()
            if edge is None or id(edge) in seen:
                continue
            seen.add(id(edge))
            if isinstance(edge, Tensor) or (id(edge) in own and edge.edges):
                return True
            stack.extend(edge.edges)
        return False

    def gradients(
        self, outputs: Sequence[Tensor], seeds: Any, create_graph: bool, retain_graph: bool
    ) -> list[Tensor]:
        """For each start, the gradient of the outputs; zeros where they do not depend on it."""
        pairs = [
            (y, None if seeds is None else seeds[i])
            for i, y in enumerate(outputs)
            if y.requires_grad
        ]
        found: Sequence[Tensor | None] = [None] * len(self.starts)
        if pairs:
            ends = [_at(node, x) for node, x in self.starts]
            found = engine.grad(
                [y for y, _ in pairs], ends, None if seeds is None else [g for _, g in pairs],
                retain_graph, create_graph, allow_unused=True,
            )  # fmt: skip
        return [
            zeros_of(x._type) if g is None else g
            for (_, x), g in zip(self.starts, found, strict=True)
        ]


def _at(node: Node, x: Tensor) -> Tensor:
    """A tensor at the node's place on the tape, whatever has become of x meanwhile."""
    out: Tensor = x._alias()
    out._node, out._requires_grad = node, True
    return out


def _below_requires_grad(y: Tensor) -> bool:
    """Whether a tensor of a vmap is on the tape outside it."""
    storage = y._storage
    while type(storage) is LevelStorage:
        if storage.value.requires_grad:
            return True
        storage = storage.value._storage
    return False


def _outside(x: Any, keep: bool) -> Any:
    """A result as what surrounds the function sees it: off the tape, unless it belongs there."""
    return x._alias() if isinstance(x, Tensor) and not keep and x.requires_grad else x


def grad_and_value(
    func: Callable[_P, Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[_P, Any]:
    """A function that gives (gradient of func, func's value).

    func returns a 0-d tensor; with has_aux a tuple (that, anything), and the result is
    (gradient, (value, anything)). argnums: the argument to differentiate, a tree of tensors, or a
    tuple of numbers. The gradient has the form of the argument (a tuple for a tuple of numbers).

    Raises RuntimeError for results that are no 0-d tensors, and arguments that are not floating.
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        api = "grad_and_value(f)(*args)"
        numbers = checked_argnums(argnums, len(args))
        this = _Pass(api)
        with enable_grad():
            leaves, structure = flatten(chosen(args, numbers))
            leaves = tensor_leaves(leaves, api, "the differentiated arguments")
            own = unflatten(structure, [this.start(x) for x in leaves])
            result = func(*replaced(args, numbers, own), **kwargs)
            output, aux = with_aux(result, has_aux, api)
            if not isinstance(output, Tensor):
                raise RuntimeError(
                    f"{api}: Expected f(*args) to return a Tensor, got {type(output)}"
                )
            if output.ndim != 0:
                raise RuntimeError(
                    f"{api}: Expected f(*args) to return a scalar Tensor, got tensor with "
                    f"{output.ndim} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
                )
            keep = this.foreign([output])
            found = this.gradients([output], None, keep, keep)
        gradient = unflatten(structure, [_outside(g, keep) for g in found])
        value = _outside(output, keep)
        if not has_aux:
            return gradient, value
        keep_aux = keep or this.foreign([a for a in flatten(aux)[0] if isinstance(a, Tensor)])
        return gradient, (value, tree_map(lambda a: _outside(a, keep_aux), aux))

    return wrapped


def grad(func: Callable[_P, Any], argnums: Argnums = 0, has_aux: bool = False) -> Callable[_P, Any]:
    """A function that gives the gradient of func, which returns a 0-d tensor.

    Arguments and errors as grad_and_value's; with has_aux the result is (gradient, aux).

        slope = grad(lambda x: x.sin())(x)          # cos(x)
        bend = grad(grad(lambda x: x.sin()))(x)     # -sin(x)
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        gradient, value = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(func(*primals), vjp_fn), or (output, vjp_fn, aux) with has_aux.

    vjp_fn(cotangents) takes a tree of the output's form, and gives the products of cotangents and
    Jacobian: a tuple with an entry for each primal. It may be called again, also inside vmap.

    Raises RuntimeError for primals and outputs that are no floating tensors, and for cotangents of
    another form.
    """
    output, pull, aux = _vjp(func, primals, tuple(range(len(primals))), has_aux)

    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        return pull(cotangents, retain_graph, create_graph)

    return (output, vjp_fn, aux) if has_aux else (output, vjp_fn)


def _vjp(
    func: Callable[..., Any], primals: tuple[Any, ...], argnums: Argnums, has_aux: bool
) -> tuple[Any, Callable[..., Any], Any]:
    api = "vjp(f, *primals)"
    numbers = checked_argnums(argnums, len(primals)) if primals else ()
    this = _Pass(api)
    with enable_grad():
        leaves, form = flatten(chosen(primals, numbers))
        leaves = tensor_leaves(leaves, api, "primals")
        own = unflatten(form, [this.start(x) for x in leaves])
        output, aux = with_aux(func(*replaced(primals, numbers, own)), has_aux, api)
        outputs, structure = outputs_of(output, api)
        for y in outputs:
            if not (y.is_floating_point() or y.is_complex()):
                raise RuntimeError(
                    "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got "
                    f"Tensor with dtype {y.dtype}"
                )
        keep = this.foreign(outputs)

    def pull(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds, its = flatten(cotangents)
        if its != structure:
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of "
                f"outputs to the function. cotangents: {its}, primal output: {structure}"
            )
        seeds = tensor_leaves(seeds, api, "cotangents")
        wanted = state.grad_enabled if create_graph is None else create_graph
        graph = wanted and (keep or any(g.requires_grad or _below_requires_grad(g) for g in seeds))
        found = this.gradients(outputs, seeds, graph, retain_graph)
        return unflatten(form, [_outside(g, graph) for g in found])

    shown = unflatten(structure, [_outside(y, keep) for y in outputs])
    aux = tree_map(lambda a: _outside(a, keep), aux) if has_aux else None
    return shown, pull, aux


def jacrev(
    func: Callable[_P, Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[_P, Any]:
    """A function that gives the Jacobian of func with respect to the chosen arguments.

    For an output of shape (*O) and an argument of shape (*I) it has shape (*O, *I); trees of
    outputs give trees, with the argument's tree at each leaf. One backward over all rows at a time
    (chunk_size: over so many), by vmap. With has_aux the result is (Jacobian, aux).
    """
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        real_only(flatten(args)[0], "jacrev", "inputs")
        numbers = checked_argnums(argnums, len(args))
        output, pull, aux = _vjp(functools.partial(func, **kwargs), args, numbers, has_aux)
        outputs, structure = outputs_of(output, "jacrev(f, *primals)")
        real_only(outputs, "jacrev", "outputs")
        form = flatten(chosen(args, numbers))[1]
        rows = vmap(lambda seeds: pull(unflatten(structure, seeds)), chunk_size=chunk_size)(
            _basis(outputs)
        )
        columns = [_rows_to_jacobian(x, outputs) for x in flatten(rows)[0]]
        per_output = [unflatten(form, list(parts)) for parts in zip(*columns, strict=True)]
        jacobian = unflatten(structure, per_output)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


def _basis(outputs: Sequence[Tensor]) -> list[Tensor]:
    """For each output, (N, *shape): the unit cotangents of all N elements of all outputs."""
    sizes = [y.numel() for y in outputs]
    total, at, out = sum(sizes), 0, []
    for y, n in zip(outputs, sizes, strict=True):
        columns = eye(total, dtype=y.dtype, device=y._type.device).narrow(1, at, n)
        out.append(columns.reshape(total, *y._type.shape))
        at += n
    return out


def _rows_to_jacobian(rows: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    """(N, *I) cut into (*O, *I) for each output."""
    at, out = 0, []
    for y in outputs:
        n = y.numel()
        own = rows.narrow(0, at, n)
        out.append(own.reshape(*y._type.shape, *rows._type.shape[1:]))
        at += n
    return out


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), jvp_fn): jvp_fn(*tangents) is the derivative of func along the tangents.

    func runs once; its linear part is kept as a graph, the derivative of vjp_fn with respect to the
    cotangents, so jvp_fn runs none of func again.

    Raises RuntimeError for tangents of another form or shape than the primals.
    """
    leaves, form = flatten(primals)
    output, pull, _ = _vjp(func, primals, tuple(range(len(primals))), False)
    outputs, structure = outputs_of(output, "linearize(f, *primals)")
    with enable_grad():
        cotangents = [zeros_of(y._type).requires_grad_() for y in outputs]
        rows = flatten(pull(unflatten(structure, cotangents), True, True))[0]

    def jvp_fn(*tangents: Any) -> Any:
        ts, its = flatten(tangents)
        if its != form:
            raise RuntimeError(
                "linearize: Expected the tangents to have the same structure as the primals, "
                f"{form}; got {its}"
            )
        for x, t in zip(leaves, tensor_leaves(ts, "jvp_fn", "tangents"), strict=True):
            if x._type.shape != t._type.shape or x._type.dtype is not t._type.dtype:
                raise RuntimeError(
                    f"linearize: Expected tangents of the primals' types; got {t._type} for "
                    f"{x._type}"
                )
        pairs = [(g, t) for g, t in zip(rows, ts, strict=True) if g.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(outputs)
        if pairs:
            found = engine.grad(
                [g for g, _ in pairs], cotangents, [t for _, t in pairs], True,
                state.grad_enabled and any(t.requires_grad for _, t in pairs), allow_unused=True,
            )  # fmt: skip
        parts = [zeros_of(y._type) if d is None else d for y, d in zip(outputs, found, strict=True)]
        return unflatten(structure, parts)

    return output, jvp_fn


def hessian(func: Callable[_P, Any], argnums: Argnums = 0) -> Callable[_P, Any]:
    """A function that gives the Hessian of func: jacfwd of jacrev.

    For an output of shape (*O) and an argument of shape (*I), (*O, *I, *I).
    """
    return jacfwd(jacrev(func, argnums), argnums)
