"""Example arrays for the samples of op records: ordinary ones and the awkward ones.

Owns no op. Everything is drawn from fixed seeds, so that samples are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from jitgrad.compiler.ops.record import Sample
from jitgrad.runtime import dtypes

FLOATS: tuple[np.dtype[Any], ...] = (np.dtype("float32"), np.dtype("float64"))
INTS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(n) for n in ("int64", "int32", "int16", "int8", "uint8")
)
BOOL: np.dtype[Any] = np.dtype("bool")


def uniform(
    shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, dtype: Any = np.float32,
    seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Floats in [low, high)."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.dtype(dtype))


def integers(
    shape: tuple[int, ...], dtype: Any, low: int = -9, high: int = 10, seed: int = 0
) -> np.ndarray:
    """Integers (or bools) in [low, high), not below 0 for unsigned dtypes."""
    dt = np.dtype(dtype)
    if dt == BOOL:
        return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    low = max(low, 0) if dt.kind == "u" else low
    return np.random.default_rng(seed).integers(low, high, shape).astype(dt)


def specials(dtype: Any) -> np.ndarray:
    """NaN, infinities, signed zeros, the smallest and largest numbers, and a few plain ones."""
    dt = np.dtype(dtype)
    if dt == BOOL:
        return np.array([False, True])
    if dt.kind in "iu":
        info = np.iinfo(dt)
        plain = [0, 1, 2, 3, 7, info.max - 1, info.max, info.min, info.min + 1]
        return np.array(plain + ([-1, -2, -7] if dt.kind == "i" else []), dt)
    if dt.itemsize == 2:
        few = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 100.0]
        return np.array(few, np.float32).astype(dt)
    info_f = np.finfo(dt)
    return np.array(
        [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25,
         info_f.tiny, info_f.smallest_subnormal, info_f.max, info_f.min, 1e10, -1e10],
        dt,
    )  # fmt: skip


def strided(x: np.ndarray) -> np.ndarray:
    """The same numbers in a layout that is not contiguous: transposed, and backwards in dim 0."""
    wide = np.zeros((*x.shape[::-1], 2), x.dtype)
    view = wide[..., 0].T[::-1] if x.ndim else wide[..., 0].T
    view[...] = x
    return view


def unary(
    low: float = -2.0, high: float = 2.0, ints: bool = False, floats: bool = True
) -> Iterator[Sample]:
    """Samples of an op of one operand whose smooth domain contains [low, high]."""
    if floats:
        yield Sample((uniform((3, 4), low, high),))
        yield Sample((uniform((), low, high, np.float64, 1),), note="0-d")
        yield Sample((uniform((0, 3), low, high),), note="empty")
        yield Sample((strided(uniform((3, 5), low, high, np.float64, 2)),), note="strided")
        yield Sample((uniform((2, 3, 2), low, high, np.float16, 3),), note="float16", grad=False)
        half = uniform((2, 5), low, high).astype(dtypes.bfloat16.np)
        yield Sample((half,), note="bfloat16", grad=False)
        for dt in FLOATS:
            yield Sample((specials(dt),), note=f"special {dt}", grad=False)
    if ints:
        yield Sample((integers((2, 3), np.int64),), note="integers", grad=False)
        for dt in (BOOL, *INTS) if not floats else INTS:
            yield Sample((specials(dt),), note=f"extremes {dt}", grad=False)


def binary(
    low: float = -2.0,
    high: float = 2.0,
    low2: float | None = None,
    high2: float | None = None,
    ints: bool = True,
    bools: bool = False,
    floats: bool = True,
    zero_divisor: bool = True,
) -> Iterator[Sample]:
    """Samples of an op of two operands (the second in [low2, high2] if given)."""
    low2, high2 = low if low2 is None else low2, high if high2 is None else high2

    def pair(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
        return uniform(a, low, high, dtype, 3), uniform(b, low2, high2, dtype, 4)

    if floats:
        yield Sample(pair((3, 4), (3, 4), np.float32))
        yield Sample(pair((3, 1), (1, 4), np.float64), note="broadcast")
        yield Sample(pair((), (2, 3), np.float32), note="0-d and 2-d")
        yield Sample(pair((), (), np.float64), note="0-d")
        yield Sample(pair((2, 3), (3,), np.float64), note="broadcast rank")
        yield Sample(pair((0, 3), (1, 3), np.float32), note="empty")
        yield Sample(
            tuple(strided(x) for x in pair((3, 5), (3, 5), np.float64)), note="strided"
        )  # fmt: skip
        yield Sample(pair((2, 3), (2, 3), np.float16), note="float16", grad=False)
        half = tuple(x.astype(dtypes.bfloat16.np) for x in pair((5,), (5,), np.float32))
        yield Sample(half, note="bfloat16", grad=False)
        for dt in FLOATS:
            s = specials(dt)
            yield Sample((s[:, None], s[None, :]), note=f"special {dt}", grad=False)
    kinds = (INTS if ints else ()) + ((BOOL,) if bools else ())
    for dt in kinds:
        s = specials(dt)
        t = s if zero_divisor or dt == BOOL else s[s != 0]
        yield Sample((s[:, None], t[None, :]), note=f"extremes {dt}", grad=False)
