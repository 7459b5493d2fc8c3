"""Arguments that layers and losses share: an int for each dim, reductions, shapes that match."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jitgrad.functions.args import expect_dtype as expect_dtype
from jitgrad.functions.args import expect_floating as expect_floating
from jitgrad.functions.args import expect_shape as expect_shape
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.tensor import Tensor

IntOrInts = int | Sequence[int]


def per_dim(value: IntOrInts, n: int, op: str, name: str) -> tuple[int, ...]:
    """An int repeated n times, or n ints (one int in a sequence is repeated, too).

    Raises TypeError for what is no int, RuntimeError for another number of them.
    """
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    try:
        out = tuple([operator.index(v) for v in items])
    except TypeError:
        raise TypeError(
            f"[{op}] expected {name} to be an int or {n} ints; got {value!r}; pass whole numbers"
        ) from None
    if len(out) == 1:
        out = out * n
    if len(out) != n:
        raise RuntimeError(
            f"[{op}] expected {name} to be an int or {n} ints; got {value!r}; pass one int for "
            "each spatial dim"
        )
    return out


def expect_tensors(op: str, **tensors: Any) -> None:
    """Raises TypeError, naming the argument, unless all are Tensors."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(
                f"[{op}] expected {name} to be a Tensor; got {type(x).__name__}; convert it with "
                "jitgrad.tensor(...)"
            )


def expect_same_or_wide(op: str, dtype: DType, **tensors: Tensor | None) -> None:
    """expect_dtype, where tensors beside a 16-bit input may be of float32."""
    for name, x in tensors.items():
        if x is not None and not (dtype.itemsize == 2 and x.dtype is dtypes.float32):
            expect_dtype(op, dtype, **{name: x})


def into(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    """The result; with `inplace`, written into input, which is returned."""
    return input.copy_(result) if inplace else result
