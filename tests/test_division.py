"""Division of integers and remainders of floats in kernels: every shortcut and its ends.

Kernels divide integers by floats where these are exact, and take one step of long division where
one is enough; NumPy is the reference.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.ops.quiet import Quiet

NAMES = ("floor_divide", "remainder", "fmod")


def compiled(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    f = jg.jit(lambda x, y: getattr(jg, name)(x, y), fallback="error")
    x, y = jg.from_numpy(a), jg.from_numpy(b)
    f(x, y)  # the first call is eager
    return f(x, y).numpy()


def pairs(values: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Every value with every other one, and as many in another order, so that lanes mix."""
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    order = rng.permutation(len(a))
    return np.concatenate([a, a[order]]), np.concatenate([b, b[order]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers(name: str, dtype: str) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    edges = [0, 1, 2, 3, 7, 10, info.max, info.max - 1, info.min, info.min + 1, info.max // 2]
    if info.bits == 64:
        for k in (31, 50, 51, 52, 53, 62):
            edges += [2**k - 1, 2**k, 2**k + 1]
    if info.min < 0:
        edges += [-e for e in edges if e != info.min]
    some = rng.integers(info.min, info.max, 20, dtype=dtype, endpoint=True)
    a, b = pairs(np.concatenate([np.array(edges, dtype), some]), rng)
    keep = b != 0
    a, b = a[keep], b[keep]
    with Quiet():
        wanted = {"floor_divide": np.floor_divide, "remainder": np.remainder, "fmod": np.fmod}
        np.testing.assert_array_equal(compiled(name, a, b), wanted[name](a, b))


@pytest.mark.parametrize("name", ["remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats(name: str, dtype: str) -> None:
    info, rng = np.finfo(dtype), np.random.default_rng(1)
    edges = [0.0, 1.0, 0.1, 3.0, math.inf, math.nan, info.max, info.tiny, info.smallest_subnormal,
             2.0**27, 2.0**28, 2.0**50 + 1, 1e30, 1e-30]  # fmt: skip
    sizes = np.exp(rng.uniform(math.log(info.tiny), math.log(info.max), 20))
    values = np.array([*edges, *sizes, *rng.uniform(0, 10, 10)], dtype)
    a, b = pairs(np.concatenate([values, -values]), rng)
    with Quiet():
        wanted = np.fmod(a, b)
        if name == "remainder":
            moved = (wanted != 0) & (np.signbit(wanted) != np.signbit(b))
            wanted = np.where(moved, wanted + b, wanted)
    found = compiled(name, a, b)
    both_nan = np.isnan(found) & np.isnan(wanted)
    np.testing.assert_array_equal(found[~both_nan], wanted[~both_nan])
    assert np.array_equal(np.signbit(found[~both_nan]), np.signbit(wanted[~both_nan]))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_gcd(dtype: str) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(2)
    fibonacci = [0, 1]
    while fibonacci[-1] + fibonacci[-2] <= info.max:  # they take the most steps
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    values = [*fibonacci, *rng.integers(info.min, info.max, 30), info.max, info.min, info.min + 1]
    a, b = pairs(np.array(values, dtype), rng)
    np.testing.assert_array_equal(compiled("gcd", a, b), np.gcd(a, b))
