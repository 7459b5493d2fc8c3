"""jvp and jacfwd: derivatives by forward mode (autograd/forward.py pushes the tangents)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

from jitgrad.autograd.forward import Tangents, tangent_of
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
from jitgrad.func.mapping import vmap
from jitgrad.functions.shape import movedim
from jitgrad.pytree import flatten, unflatten
from jitgrad.tensor import Tensor

_P = ParamSpec("_P")

_API = "jvp(f, primals, tangents)"


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """(func(*primals), its derivative along tangents), with aux as a third where has_aux.

    primals, tangents: tuples of tensors or of trees of them, alike in form, shapes and dtypes. In
    one forward run. strict: an output that does not depend on the primals raises RuntimeError
    (else its derivative is zeros). Raises RuntimeError for tangents that do not fit.
    """
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"{_API}: Expected primals to be a tuple. E.g. it should be valid to call f(*primals)."
        )
    xs, form = flatten(primals)
    ts, its = flatten(tangents)
    if form != its:
        raise RuntimeError(
            f"{_API}: Expected primals and tangents to have the same python structure. For "
            "example, if primals is a tuple of 3 tensors, tangents also must be. Got primals with "
            f"structure {form} and tangents with structure {its}"
        )
    return _push(func, form, xs, ts, strict, has_aux)


def _push(
    func: Callable[..., Any], form: Any, xs: list[Any], ts: list[Any], strict: bool, has_aux: bool
) -> tuple[Any, ...]:
    tensor_leaves(xs, _API, "primals")
    tensor_leaves(ts, _API, "tangents")
    level = Tangents()
    starts = [level.start(x, t) for x, t in zip(xs, ts, strict=True)]
    with level.inside():
        output, aux = with_aux(func(*unflatten(form, starts)), has_aux, _API)
    outputs, structure = outputs_of(output, _API)
    along = []
    for y in outputs:
        if strict and level.get(y) is None:
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the "
                "inputs. This is not allowed with strict=True."
            )
        along.append(tangent_of(level, y))
    derivative = unflatten(structure, along)
    return (output, derivative, aux) if has_aux else (output, derivative)


def jacfwd(
    func: Callable[_P, Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
) -> Callable[_P, Any]:
    """A function that gives the Jacobian of func with respect to the chosen arguments.

    Shapes and trees as jacrev's: (*O, *I). One forward run along all directions at a time, by vmap
    (whose `randomness` it is). With has_aux the result is (Jacobian, aux).
    """

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        real_only(flatten(args)[0], "jacfwd", "inputs")
        numbers = checked_argnums(argnums, len(args))
        leaves, form = flatten(chosen(args, numbers))
        leaves = tensor_leaves(leaves, "jacfwd", "the differentiated arguments")

        def partly(own: Any) -> Any:
            return func(*replaced(args, numbers, own), **kwargs)

        structures: list[Any] = []

        def along(*tangents: Tensor) -> Any:
            output, derivative, *aux = _push(
                lambda *own: partly(unflatten(form, list(own))),
                flatten(tuple(leaves))[1],
                leaves,
                list(tangents),
                False,
                has_aux,
            )
            parts, structure = flatten(derivative)
            real_only(flatten(output)[0], "jacfwd", "outputs")
            structures.append(structure)
            return tuple(parts), (aux[0] if has_aux else ())

        columns, aux = vmap(along, 0, (0, None) if has_aux else 0, randomness)(*_basis(leaves))
        structure = structures[0]
        per_output = []
        for rows in columns:  # (N, *O)
            own, at = [], 0
            for x in leaves:
                n = x.numel()
                part = movedim(rows.narrow(0, at, n), 0, -1)
                own.append(part.reshape(*rows._type.shape[1:], *x._type.shape))
                at += n
            per_output.append(unflatten(form, own))
        jacobian = unflatten(structure, per_output)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


def _basis(inputs: list[Tensor]) -> list[Tensor]:
    """For each input, (N, *shape): the unit tangents of all N elements of all inputs."""
    total, at, out = sum(x.numel() for x in inputs), 0, []
    for x in inputs:
        n = x.numel()
        columns = eye(total, dtype=x.dtype, device=x._type.device).narrow(1, at, n)
        out.append(columns.reshape(total, *x._type.shape))
        at += n
    return out
