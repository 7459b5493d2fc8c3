"""What the records that read and write at positions share: checks, sums in order, constants.

Owns no record; those are in along_axis.py and indexing.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.ops.record import (
    Check,
    Op,
    apply_like,
    op,
)
from jitgrad.compiler.ops.regions import accumulator
from jitgrad.compiler.symbolic import Dim, prod
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


# Up to this many writes to a place are lowered to tests in each element instead of a Scatter.
UNROLL = 8


def check_sum(record: Op, base: TensorType) -> None:
    record.expect(
        base.dtype is not dtypes.bool_,
        f"expected a number dtype to add up; got {base}; convert it with .to(dtype)",
        NotImplementedError,
    )


def expect_positions(record: Op, index: TensorType) -> None:
    record.expect(
        index.dtype is dtypes.int64,
        f"expected an index of dtype int64; got {index}; convert it with .to(jitgrad.int64)",
        TypeError,
    )


def verify(record: Op, check: Check, index: np.ndarray) -> None:
    """Raises the record's error with the first index that is not as asked."""
    value = check.first(index)
    if value is not None:
        raise record.failed(check, value, {})


def out_of_bounds(record: Op, check: Check, value: Any, kind: type[Exception]) -> Exception:
    """PyTorch's words for a position outside its dim."""
    what = "an index" if value is None else f"index {value}"
    return kind(
        f"[{record.name}] {what} is out of bounds for dimension {check.dim} with size "
        f"{check.high + 1}"
    )


def add_at(base: np.ndarray, key: tuple[Any, ...], values: np.ndarray) -> np.ndarray:
    """base with values added at key, one after another, in the accumulator's dtype."""
    acc = accumulator(dtypes.from_numpy(base.dtype)).np
    out = np.array(base, acc)
    np.add.at(out, key, values.astype(acc, copy=False))
    return out.astype(base.dtype, copy=False)


def full(like: Any, shape: Shape, value: int, dtype: DType) -> Any:
    return apply_like(op.full, like, shape=shape, value=value, dtype=dtype, device=str(like.device))


def zeros_of(like: Any, x: Any, dtype: DType | None = None) -> Any:
    """Zeros of x's shape, of which only the type may be known; applied the way `like` is."""
    return full(like, tuple(x.shape), 0, dtype or x.dtype)


def numbers(x: Any) -> Any:
    """int64 of x's shape: each element's number in row-major order."""
    n = prod(x.shape)
    flat = apply_like(
        op.iota, x, shape=(n,), dtype=dtypes.int64, device=str(x.device), start=0, step=1
    )
    return op.reshape(flat, shape=tuple(x.shape))
