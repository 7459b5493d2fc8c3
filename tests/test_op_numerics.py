"""What docs/numerics.md states and the record-driven harness cannot know: exact values.

Integer division and its faults, casts out of range, the exact remainder, Philox's known answers,
NaN rules of derivatives, bits of random numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loop_interpreter import Interpreter, interpret

from jitgrad.compiler.loops import Array, Builder
from jitgrad.compiler.ops import op
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.random import _NumPy, philox
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import BY_NAME, from_numpy


def lowered(record: Any, *args: np.ndarray, **attrs: Any) -> tuple[np.ndarray, Interpreter]:
    """The result of a record's loop definitions, and the interpreter that ran them."""
    operands = [Array(f"in{i}", a.shape, from_numpy(a.dtype)) for i, a in enumerate(args)]
    b = Builder()
    b.site = 7
    out = record.lower(b, *operands, **attrs)
    done = interpret(b.arrays, dict(zip(operands, args, strict=True)))
    return done.values[out], done


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integer_division_by_zero(name: str, dtype: str) -> None:
    """Eager raises PyTorch's error; a kernel flags the node's site and does not trap."""
    record = getattr(op, name)
    a, b = np.array([5, 7], dtype), np.array([1, 0], dtype)
    with pytest.raises(RuntimeError, match=rf"\[{name}\] ZeroDivisionError: expected integer div"):
        record.reference(a, b)
    _, done = lowered(record, a, b)
    assert done.faults == [7]


def test_integer_division_rounds_down_and_wraps() -> None:
    a, b = np.array([7, -7, 7, -7, -128], np.int8), np.array([2, 2, -2, -2, -1], np.int8)
    for name, wanted in (
        ("floor_divide", [3, -4, -4, 3, -128]),
        ("remainder", [1, 1, -1, -1, 0]),
        ("fmod", [1, -1, 1, -1, 0]),
    ):
        record = getattr(op, name)
        with Quiet():
            np.testing.assert_array_equal(record.reference(a, b), wanted)
        np.testing.assert_array_equal(lowered(record, a, b)[0], wanted)


_MIN32, _MIN64 = -(2**31), -(2**63)
CASTS = [
    ("float32", "int32", [1.9, -1.9, 2.0**31, -(2.0**31), math.nan, math.inf, -math.inf],
     [1, -1, _MIN32, _MIN32, _MIN32, _MIN32, _MIN32]),
    ("float64", "int64", [2.0**62, 2.0**63, -1e300, math.nan], [2**62, _MIN64, _MIN64, _MIN64]),
    ("float32", "uint8", [300.7, -1.0, 255.9, 2.0**31, math.nan], [44, 255, 255, 0, 0]),
    ("float32", "int8", [200.0, -129.0, 127.9], [-56, 127, 127]),
    ("float64", "float16", [65519.0, 65520.0, 1e-8], [65504.0, math.inf, 0.0]),
    ("float32", "bool", [0.0, -0.0, math.nan, 0.1], [False, False, True, True]),
    ("int64", "int8", [128, 255, -129], [-128, -1, 127]),
    ("int64", "float16", [2049, 70000], [2048.0, math.inf]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "values", "wanted"), CASTS)
def test_casts(source: str, target: str, values: list[float], wanted: list[Any]) -> None:
    x = np.array(values, source)
    with Quiet():
        found = op.cast.reference(x, dtype=BY_NAME[target])
    np.testing.assert_array_equal(found, np.array(wanted, target))
    np.testing.assert_array_equal(lowered(op.cast, x, dtype=BY_NAME[target])[0], found)


any_float = st.floats(allow_nan=False, allow_infinity=False)
any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    both_nan = np.isnan(found) & np.isnan(wanted)
    np.testing.assert_array_equal(np.where(both_nan, 0, found), np.where(both_nan, 0, wanted))
    assert np.all(both_nan | (np.signbit(found) == np.signbit(wanted)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(any_float, any_float), min_size=1, max_size=20))
def test_fmod_is_exact_float64(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(c) for c in zip(*pairs, strict=True))
    with Quiet():
        _assert_same_bits(lowered(op.fmod, a, b)[0], np.fmod(a, b))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(any_float32, any_float32), min_size=1, max_size=20))
def test_fmod_is_exact_float32(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(c, np.float32) for c in zip(*pairs, strict=True))
    with Quiet():
        _assert_same_bits(lowered(op.fmod, a, b)[0], np.fmod(a, b))


@settings(max_examples=100, deadline=None)
@given(any_float, any_float)
def test_floor_divide_is_pythons(a: float, b: float) -> None:
    """Where Python's // is defined and finite."""
    if b == 0 or not math.isfinite(a / b if abs(b) > 1e-300 else math.inf):
        return
    with Quiet():
        found = op.floor_divide.reference(np.array([a]), np.array([b]))
    assert found[0] == a // b


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        (0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_known_answers(word: int, wanted: tuple[int, ...]) -> None:
    """Random123's kat_vectors for philox4x32 with 10 rounds: all bits zero, all bits one."""
    x = np.array([word], np.int64)
    assert tuple(int(w[0]) for w in philox(_NumPy, x, x, x)) == wanted


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_random_numbers_are_the_same_lowered(dtype: dtypes.DType) -> None:
    """uniform and normal have the same bits in the reference and in the loop definitions."""
    seed, draw = np.array(12345), np.array(6)
    for record in (op.uniform, op.normal):
        attrs = {"shape": (3, 333), "dtype": dtype, "device": "cpu"}
        with Quiet():
            wanted = record.reference(seed, draw, **attrs)
        _assert_same_bits(lowered(record, seed, draw, **attrs)[0], wanted)


def test_random_numbers_do_not_depend_on_the_size() -> None:
    seed, draw = np.array(1), np.array(2)
    long, short = (
        op.normal.reference(seed, draw, shape=(n,), dtype=dtypes.float32) for n in (1001, 10)
    )
    np.testing.assert_array_equal(long[:10], short)


def test_distributions() -> None:
    """Moments within five standard errors; the range of uniform."""
    seed, draw, n = np.array(3), np.array(0), 200_000
    attrs = {"shape": (n,), "device": "cpu"}
    for dtype in (dtypes.float32, dtypes.float64):
        x = op.normal.reference(seed, draw, dtype=dtype, **attrs).astype(np.float64)
        for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs(np.mean(x**power) - moment) < 5 * math.sqrt(variance / n)
        u = op.uniform.reference(seed, draw, dtype=dtype, **attrs).astype(np.float64)
        assert u.min() >= 0 and u.max() < 1
        assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
        assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / math.sqrt(n)


def test_sums_of_halves_accumulate_in_float32() -> None:
    x = np.full(5000, 1.0, np.float16)
    x[0] = 2048
    out = op.sum.reference(x, axes=(0,))
    assert out.dtype == np.float16 and out == np.float16(7047)  # float16 adds would stop at 2048
    assert lowered(op.sum, x, axes=(0,))[0] == out


def test_results_over_nothing() -> None:
    x = np.zeros((0, 3), np.float32)
    for record, wanted in ((op.sum, 0), (op.prod, 1), (op.any, False), (op.all, True)):
        np.testing.assert_array_equal(record.reference(x, axes=(0,)), np.full(3, wanted))
    for record in (op.amax, op.argmin):
        with pytest.raises(IndexError, match=r"expected reduced dims of at least one element"):
            record.infer(TensorType((0, 3), dtypes.float32), axes=(0,), keepdim=False)
