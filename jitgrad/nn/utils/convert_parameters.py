"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.functions.shape import cat
from jitgrad.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All parameters, flattened and joined: (total,)."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Makes slices of a vector (total,) the parameters' data. Raises TypeError for no Tensor."""
    if not isinstance(vec, Tensor):
        raise TypeError(
            f"[vector_to_parameters] expected a Tensor; got {type(vec).__name__}; convert it with "
            "jitgrad.tensor(...)"
        )
    start = 0
    for p in parameters:
        count = p.numel()
        p.data = vec.detach()[start : start + count].view_as(p)
        start += count
