"""What the transforms share: choosing arguments by number, and checking results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.pytree import flatten
from jitgrad.tensor import Tensor

Argnums = int | tuple[int, ...]


def checked_argnums(argnums: Argnums, count: int) -> Argnums:
    """argnums, non-negative. Raises RuntimeError for what numbers no argument."""
    if isinstance(argnums, bool) or not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    if isinstance(argnums, int):
        if not -count <= argnums < count:
            raise RuntimeError(f"Got argnum={argnums}, but only {count} positional inputs")
        return argnums % count
    if not argnums:
        raise RuntimeError("argnums must be non-empty")
    found = []
    for k in argnums:
        if not isinstance(k, int):
            raise RuntimeError(f"argnum must be int, got: {type(k)}")
        found.append(checked_argnums(k, count))
    if len(set(found)) != len(found):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return tuple(found)  # type: ignore[arg-type]


def chosen(args: Sequence[Any], argnums: Argnums) -> Any:
    """The argument, or the tuple of them."""
    if isinstance(argnums, int):
        return args[argnums]
    return tuple(args[k] for k in argnums)


def replaced(args: Sequence[Any], argnums: Argnums, new: Any) -> tuple[Any, ...]:
    """The arguments with the chosen ones replaced."""
    out = list(args)
    if isinstance(argnums, int):
        out[argnums] = new
    else:
        for k, x in zip(argnums, new, strict=True):
            out[k] = x
    return tuple(out)


def tensor_leaves(leaves: Sequence[Any], api: str, what: str) -> list[Tensor]:
    """The leaves. Raises RuntimeError where one is no tensor, or there is none."""
    if not leaves:
        raise RuntimeError(f"{api}: Expected {what} to contain at least one Tensor.")
    for x in leaves:
        if not isinstance(x, Tensor):
            raise RuntimeError(f"{api}: Expected {what} to only contain Tensors, got {type(x)}")
    return list(leaves)


def with_aux(result: Any, has_aux: bool, api: str) -> tuple[Any, Any]:
    """(output, aux) of a function's result; aux None where there is none."""
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise RuntimeError(
            f"{api}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    return result


def outputs_of(result: Any, api: str) -> tuple[list[Tensor], Any]:
    """The tensors that a function returned, and their structure. Raises RuntimeError for others."""
    leaves, structure = flatten(result)
    if not leaves or (len(leaves) == 1 and leaves[0] is None):
        raise RuntimeError(
            f"{api}: Expected f to be a function that has non-empty output (got output = {result})"
        )
    for y in leaves:
        if not isinstance(y, Tensor):
            raise RuntimeError(
                f"{api}: expected f(*primals) to return only tensors, got unsupported type "
                f"{type(y)}"
            )
    return leaves, structure


def real_only(leaves: Sequence[Any], api: str, what: str) -> None:
    """Raises RuntimeError where a tensor is complex."""
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.is_complex():
            raise RuntimeError(
                f"{api}: Expected all {what} to be real but received complex tensor at flattened "
                f"input idx: {i}"
            )


Function = Callable[..., Any]
