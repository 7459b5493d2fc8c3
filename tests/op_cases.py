"""The samples of all op records as pytest cases, and how results are compared.

Owns no test: tests/test_ops.py and tests/test_op_derivatives.py are driven by this.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad.compiler.ops.control  # noqa: F401 (for its records)
from jitgrad.compiler.ops import OPS, Op
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import Sample
from jitgrad.runtime.dtypes import from_numpy

ALL_OPS = list(OPS.values())


def cases(only_grad: bool = False) -> list[Any]:
    out = []
    for op in ALL_OPS:
        if only_grad and not op.differentiable:
            continue
        for i, s in enumerate(op.samples()):
            if only_grad and not (s.grad and any(is_float(a) for a in s.args)):
                continue
            out.append(pytest.param(op, s, id=f"{op.name}-{i}-{s.note}".rstrip("-")))
    return out


def is_float(a: np.ndarray) -> bool:
    return from_numpy(a.dtype).is_floating_point


def outputs(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def run(op: Op, s: Sample, args: tuple[np.ndarray, ...] | None = None) -> tuple[np.ndarray, ...]:
    with Quiet():
        return outputs(op.reference(*(s.args if args is None else args), **s.attrs))


def ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance in units of the last place; NaN is 0 from NaN, and far from all else."""
    width = {2: np.int16, 4: np.int32, 8: np.int64}[a.dtype.itemsize]

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = np.array(x, order="C").view(width).astype(np.float64)
        return np.where(bits < 0, float(np.iinfo(width).min) - bits, bits)

    nan_a, nan_b = np.isnan(a.astype(np.float64)), np.isnan(b.astype(np.float64))
    distance = np.abs(ordered(a) - ordered(b))
    return np.where(nan_a & nan_b, 0.0, np.where(nan_a != nan_b, np.inf, distance))


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Equal, but floats may differ by 4 ulp, or by sums in another order (of the largest value)."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if not is_float(wanted):
        np.testing.assert_array_equal(found, wanted)
        return
    if not wanted.size:
        return
    far = ulps(found, wanted) > 4
    if far.any():
        wide, exact = found.astype(np.float64), wanted.astype(np.float64)
        eps = {2: 1e-2, 4: 1.2e-7, 8: 2.3e-16}[wanted.dtype.itemsize]
        scale = np.max(np.abs(exact[np.isfinite(exact)]), initial=0.0)
        np.testing.assert_allclose(wide[far], exact[far], rtol=32 * eps, atol=16 * eps * scale)
