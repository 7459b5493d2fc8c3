"""vmap: a function of one example becomes one of many.

Owns the public face: in_dims, out_dims, chunks. What happens to each op is in levels.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from jitgrad.functions.shape import cat, movedim
from jitgrad.levels import Level
from jitgrad.pytree import Structure, children_of, flatten, unflatten
from jitgrad.tensor import Tensor

_P = ParamSpec("_P")


def vmap(
    func: Callable[_P, Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[_P, Any]:
    """A function that applies `func` to each example of its arguments, all at once.

    in_dims: along which dim of each argument the examples lie, or None: the same argument for all.
    An int, or a tuple with an entry for each argument (trees of arguments may have trees of dims).
    out_dims: where the examples' dim is in the results. Keyword arguments are not mapped.
    randomness: random operations in func raise ("error"), draw the same numbers for every example
    ("same"), or others ("different"). chunk_size: at most so many examples at a time.

    In func, operations see one example: shapes without the examples' dim. Python's `if`, `.item()`
    and results whose shape depends on values raise RuntimeError. An in-place write of what differs
    from example to example into a tensor that does not raises RuntimeError. Raises ValueError for
    in_dims and out_dims that do not fit.

        per_example = vmap(lambda x, w: x @ w, in_dims=(0, None))(xs, w)
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness}"
        )
    if chunk_size is not None and not chunk_size > 0:
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, dims, structure, size = _inputs(func, in_dims, args)
        if chunk_size is None:
            return _map(func, leaves, dims, structure, size, out_dims, randomness, kwargs)
        parts = []
        for start in range(0, size, chunk_size):
            count = min(chunk_size, size - start)
            own = [
                x if d is None else x.narrow(d, start, count)
                for x, d in zip(leaves, dims, strict=True)
            ]
            parts.append(_map(func, own, dims, structure, count, out_dims, randomness, kwargs))
        return _joined(func, parts, out_dims)

    return mapped


def name_of(func: Callable[..., Any]) -> str:
    """A function's name in messages."""
    if isinstance(func, functools.partial):
        return f"functools.partial({name_of(func.func)}, ...)"
    return getattr(func, "__name__", None) or repr(func)


def dims_of(dims: Any, structure: Structure) -> list[Any] | None:
    """One entry of `dims` for each leaf: an int or None stands for a whole subtree."""
    if dims is None or isinstance(dims, int):
        return [dims] * structure.count
    found = children_of(dims)
    if found is None:
        return [dims] * structure.count
    if structure.kind is None:
        return None
    children, context = found
    kinds = (tuple, list)
    alike = type(dims) is structure.kind or (type(dims) in kinds and structure.kind in kinds)
    if not alike or len(children) != len(structure.children):
        return None
    if isinstance(context, tuple) and context != structure.context:
        if set(context) != set(structure.context or ()):
            return None
        children = [children[context.index(key)] for key in structure.context]
    out: list[Any] = []
    for child, its in zip(children, structure.children, strict=True):
        below = dims_of(child, its)
        if below is None:
            return None
        out.extend(below)
    return out


def _inputs(
    func: Callable[..., Any], in_dims: Any, args: tuple[Any, ...]
) -> tuple[list[Any], list[int | None], Structure, int]:
    """Leaves of the arguments, the dim of examples of each, their structure, and how many."""
    name = name_of(func)
    where = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): "
    if not isinstance(in_dims, (int, tuple, list)):
        raise ValueError(
            f"{where}expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({name})(<inputs>): got no inputs. Maybe you forgot to add inputs, or you are "
            "trying to vmap over a function with no inputs. The latter is unsupported."
        )
    leaves, structure = flatten(args)
    dims = dims_of(tuple(in_dims) if isinstance(in_dims, list) else in_dims, structure)
    if dims is None:
        raise ValueError(
            f"{where}in_dims is not compatible with the structure of `inputs`, {structure}."
        )
    sizes = []
    for i, (x, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(d, int) or isinstance(d, bool):
            raise ValueError(
                f"{where}Got in_dim={d} for an input but in_dim must be either an integer "
                "dimension or None."
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{where}Got in_dim={d} for an input but the input is of type {type(x)}. We cannot "
                "vmap over non-Tensor arguments, please use None as the respective in_dim"
            )
        if not -x.ndim <= d < x.ndim:
            raise ValueError(
                f"{where}Got in_dim={d} for some input, but that input is a Tensor of "
                f"dimensionality {x.ndim} so expected in_dim to satisfy -{x.ndim} <= in_dim < "
                f"{x.ndim}."
            )
        dims[i] = d % x.ndim
        sizes.append(x._type.shape[dims[i]])
    if not sizes:
        raise ValueError("vmap: Expected at least one Tensor to vmap over")
    if any(s != sizes[0] for s in sizes):
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{sizes} for the mapped dimension"
        )
    return leaves, dims, structure, sizes[0]


def _map(
    func: Callable[..., Any],
    leaves: Sequence[Any],
    dims: Sequence[int | None],
    structure: Structure,
    size: int,
    out_dims: Any,
    randomness: str,
    kwargs: dict[str, Any],
) -> Any:
    fronts = [
        x if d is None or d == 0 else movedim(x, d, 0) for x, d in zip(leaves, dims, strict=True)
    ]
    level = Level(size, randomness)
    with level.inside():
        args = [x if d is None else level.batch(x) for x, d in zip(fronts, dims, strict=True)]
        result = func(*unflatten(structure, args), **kwargs)
        found, form = flatten(result)
        places = _out_dims(func, out_dims, result, form)
        with level.outside():
            outputs = [_output(func, level, y, d) for y, d in zip(found, places, strict=True)]
    return unflatten(form, outputs)


def _out_dims(func: Callable[..., Any], out_dims: Any, result: Any, form: Structure) -> list[Any]:
    """The dim of examples of each result."""
    where = f"vmap({name_of(func)}, ..., out_dims={out_dims})"
    for d in flatten(out_dims)[0]:
        if d is not None and not isinstance(d, int):
            raise ValueError(
                f"{where}: `out_dims` must be an int, None or a python collection of ints "
                "representing where in the outputs the vmapped dimension should appear."
            )
    if form.kind is None and isinstance(out_dims, (tuple, list)) and len(out_dims) == 1:
        return list(out_dims)
    places = dims_of(out_dims, form)
    if places is None:
        raise ValueError(
            f"{where}(<inputs>): out_dims is not compatible with the structure of `outputs`, "
            f"{form}."
        )
    return places


def _output(func: Callable[..., Any], level: Level, y: Any, d: int | None) -> Any:
    name = name_of(func)
    if d is None:
        if isinstance(y, Tensor):
            below, batched = level.below_of(y)
            if batched:
                raise ValueError(
                    f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is "
                    "None"
                )
            return below
        return y
    if not isinstance(y, Tensor):
        raise ValueError(
            f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(y)}. Did you "
            "mean to set out_dims= to None for output?"
        )
    out = level.widened(y)
    if not -out.ndim <= d < out.ndim:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-out.ndim}, {out.ndim - 1}], "
            f"but got {d}): the out_dim of a result of type {out._type} of vmap({name})"
        )
    return out if d == 0 or d == -out.ndim else movedim(out, 0, d)


def _joined(func: Callable[..., Any], parts: Sequence[Any], out_dims: Any) -> Any:
    """The chunks' results put together along their dims of examples."""
    first, form = flatten(parts[0])
    places = _out_dims(func, out_dims, parts[0], form)
    columns = zip(*[flatten(p)[0] for p in parts], strict=True)
    joined = [
        column[0] if d is None else cat(list(column), d)
        for column, d in zip(columns, places, strict=True)
    ]
    del first
    return unflatten(form, joined)
