"""A step's new gradients in the memory of those that they replace.

Owns `lender`: of a compiled call that ends with new tensors in `.grad` slots, the results that are
written into the memory of the old ones, where nobody else can reach it. So a training step holds
one set of gradients, not two. Which results may be so, compiled code says (`late`: written after
the last point at which the call can fail); whether memory is reached by somebody else, the counts
of references do: of the tensor, its storage, its array and what that stands on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import getrefcount
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.compiler.types import TensorType
from jitgrad.runtime.buffers import empty_array, is_leased
from jitgrad.runtime.dtypes import float32
from jitgrad.tensor import Tensor, wrap

LEAST = 1 << 16
"""Bytes of a gradient whose memory is worth asking for."""

Array = np.ndarray[Any, Any]


def _reach(owner: Any) -> tuple[int, int, int, int]:
    """How many references there are to what leads to the memory of a slot's tensor."""
    grad = owner._grad
    storage, data = grad._storage, grad._data
    base = 0 if data.base is None else getrefcount(data.base)
    return getrefcount(grad), getrefcount(storage), getrefcount(data), base


@lru_cache(maxsize=2)
def _alone(leased: bool) -> tuple[int, int, int, int]:
    """What `_reach` finds where only the slot has the tensor."""
    array = empty_array((1 << 20 if leased else 1,), np.float32)
    owner = SimpleNamespace(_grad=wrap(array, TensorType(array.shape, float32)))
    del array
    return _reach(owner)


def _memory(owner: Any, wanted: TensorType) -> Array | None:
    """The array of the tensor in a slot, if it is of this type and nobody else can reach it."""
    if type(owner._grad) is not Tensor or owner._grad._type != wanted:
        return None
    data: Array | None = owner._grad._data
    if data is None or owner._grad._storage.array is not data:
        return None
    leased = is_leased(data)
    if not (leased or data.flags.owndata) or not data.flags.carray:
        return None
    del data
    return owner._grad._data if _reach(owner) == _alone(leased) else None


def lender(
    compiled: Any, run: Callable[..., Any], places: Sequence[int], types: Sequence[TensorType]
) -> Any:
    """`lend(arrays, owners)`: as run(arrays), for code whose results number `places` go into the
    `.grad` of `owners`; None where there is no memory to be had.

    compiled: the code that `run` runs, perhaps among other things. types: of all results.
    """
    late = [k for k, place in enumerate(places) if place in set(compiled.late)]
    if not late or getattr(run, "__wrapped__", run) != compiled.run:
        return None

    def lend(arrays: Sequence[Array], owners: Sequence[Any]) -> Any:
        results: list[Any] = [None] * len(types)
        for k in late:
            results[places[k]] = _memory(owners[k], types[places[k]])
        for i, make in enumerate(compiled.makers):
            if results[i] is None:
                results[i] = make()
        return run(arrays, None, results)

    return lend
