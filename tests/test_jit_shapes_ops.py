"""jit: every record, recorded with symbolic sizes and called with others: eager's results, or its
error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from op_cases import ALL_OPS

from jitgrad.compiler.ops import Op
from jitgrad.compiler.ops.record import Sample
from jitgrad.jit import jit
from jitgrad.tensor import wrap_array

OPS = [op for op in ALL_OPS if not op.random]


def first_sample(op: Op) -> Sample | None:
    """A sample with a dim to grow: the first axis of all operands that are longest there."""
    for s in op.samples():
        arrays = [np.asarray(a) for a in s.args]
        if not any(a.dtype.kind == "c" for a in arrays) and length(arrays) > 1:
            return s
    return None


def length(arrays: Iterable[np.ndarray]) -> int:
    return max((a.shape[0] for a in arrays if a.ndim), default=0)


def outcome(function: Any, arrays: list[np.ndarray]) -> Any:
    try:
        found = function(*(wrap_array(a.copy()) for a in arrays))
    except Exception as error:
        return type(error)
    return [x.detach().numpy() for x in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("op", OPS, ids=lambda op: str(op.name))
def test_other_sizes(op: Op) -> None:
    s = first_sample(op)
    if s is None:
        pytest.skip("no sample has a dim to grow")

    def apply(*xs: Any) -> Any:
        return op(*xs, **s.attrs)

    fast = jit(apply, dynamic=True, fallback="error")
    arrays = [np.ascontiguousarray(a) for a in s.args]
    size = length(arrays)
    for k in (1, 3):
        grown = [
            np.concatenate([a] * k) if a.ndim and a.shape[0] == size else a for a in arrays
        ]  # fmt: skip
        found, wanted = outcome(fast, grown), outcome(apply, grown)
        if isinstance(wanted, type):
            assert found is wanted
            continue
        assert not isinstance(found, type)
        for x, y in zip(found, wanted, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            rtol = 2e-2 if x.dtype.itemsize == 2 else 1e-4
            if x.dtype.kind != "c":
                x, y = x.astype(np.float64), y.astype(np.float64)
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-5)
