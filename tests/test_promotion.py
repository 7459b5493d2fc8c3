"""Type promotion: results written out from PyTorch's rules."""

import numpy as np
import pytest

import jitgrad as t

B, U8, I8, I16, I32, I64 = t.bool, t.uint8, t.int8, t.int16, t.int32, t.int64
F16, BF16, F32, F64 = t.float16, t.bfloat16, t.float32, t.float64

# torch.promote_types, upper triangle.
LATTICE = [
    (B, B, B), (B, U8, U8), (B, I8, I8), (B, I64, I64), (B, F16, F16), (B, F32, F32),
    (U8, U8, U8), (U8, I8, I16), (U8, I16, I16), (U8, I32, I32), (U8, I64, I64),
    (U8, F16, F16), (U8, F32, F32), (I8, I16, I16), (I8, I32, I32), (I8, I64, I64),
    (I8, F16, F16), (I16, I32, I32), (I16, BF16, BF16), (I32, I64, I64), (I32, F16, F16),
    (I64, F16, F16), (I64, BF16, BF16), (I64, F32, F32), (I64, F64, F64), (F16, BF16, F32),
    (F16, F32, F32), (F16, F64, F64), (BF16, F32, F32), (F32, F64, F64),
]  # fmt: skip


def vec(dtype):
    return t.ones(2, dtype=dtype)


def zero_d(dtype):
    return t.ones((), dtype=dtype)


@pytest.mark.parametrize("a,b,want", LATTICE)
def test_tensors_with_dims(a, b, want):
    assert t.promote_types(a, b) is want and t.promote_types(b, a) is want
    assert (vec(a) + vec(b)).dtype is want
    assert (vec(b) * vec(a)).dtype is want
    assert t.result_type(vec(a), vec(b)) is want


# (operand with dims, 0-d tensor or number, result of +)
WEAK = [
    (F32, zero_d(F64), F32), (F16, zero_d(F64), F16), (F16, zero_d(BF16), F16),
    (I32, zero_d(I64), I32), (I8, zero_d(I64), I8), (U8, zero_d(I8), U8), (I64, zero_d(F16), F16),
    (I32, zero_d(F64), F64), (B, zero_d(I32), I32), (B, zero_d(F64), F64), (F32, zero_d(I64), F32),
    (F32, 2, F32), (F32, 2.5, F32), (F16, 2.5, F16), (BF16, 3, BF16), (F64, 1.5, F64),
    (I32, 2, I32), (I8, 2, I8), (U8, 2, U8), (I32, 2.5, F32), (I64, 2.5, F32), (B, 2, I64),
    (B, 2.5, F32), (B, True, B), (I8, True, I8), (F32, True, F32), (U8, 0.5, F32),
]  # fmt: skip


@pytest.mark.parametrize("dtype,other,want", WEAK)
def test_zero_d_tensors_and_numbers_are_weak(dtype, other, want):
    assert (vec(dtype) + other).dtype is want
    assert (other + vec(dtype)).dtype is want
    assert t.result_type(vec(dtype), other) is want


# 0-d tensors among themselves follow the lattice; numbers stay weak against them.
@pytest.mark.parametrize(
    "a,b,want",
    [
        (zero_d(F32), zero_d(F64), F64),
        (zero_d(I32), zero_d(I64), I64),
        (zero_d(F16), 1.5, F16),
        (zero_d(I32), 1.5, F32),
        (zero_d(I32), 1, I32),
        (zero_d(B), 1, I64),
        (zero_d(F64), 1, F64),
    ],
)
def test_zero_d_with_zero_d_and_numbers(a, b, want):
    assert (a + b).dtype is want


def test_three_kinds_together():
    # dims: int32; 0-d: float64 wins by category; the number has no say
    assert t.result_type(vec(I32), zero_d(F64)) is F64
    assert t.where(t.tensor([True, False]), vec(F32), 1).dtype is F32
    assert t.where(t.tensor([True, False]), vec(I32), 1.5).dtype is F32


@pytest.mark.parametrize("dtype", [B, U8, I8, I32, I64])
def test_true_division_and_float_functions_of_integers(dtype):
    assert (vec(dtype) / vec(dtype)).dtype is F32
    assert (vec(dtype) / 2).dtype is F32
    assert vec(dtype).exp().dtype is F32
    assert vec(dtype).sqrt().dtype is F32


def test_default_dtype_decides_for_integers():
    t.set_default_dtype(F64)
    try:
        assert (vec(I64) / 2).dtype is F64
        assert (vec(I64) * 2.5).dtype is F64
        assert t.tensor(1.5).dtype is F64
        assert t.zeros(2).dtype is F64
        assert (t.ones(2, dtype=F32) * 2.5).dtype is F32
    finally:
        t.set_default_dtype(F32)


@pytest.mark.parametrize("dtype", [B, U8, I64, F16, F32])
def test_comparisons_give_bool(dtype):
    for result in (vec(dtype) == vec(F32), vec(dtype) < 1.5, vec(dtype) >= vec(I8)):
        assert result.dtype is B


def test_comparison_with_a_float_does_not_truncate_it():
    assert (t.tensor([1, 2]) < 1.5).tolist() == [True, False]
    assert (t.tensor([1, 2]) == 1.5).tolist() == [False, False]


@pytest.mark.parametrize(
    "dtype,want", [(B, I64), (U8, I64), (I32, I64), (F16, F16), (F32, F32), (F64, F64)]
)
def test_sums(dtype, want):
    assert vec(dtype).sum().dtype is want
    assert vec(dtype).prod().dtype is want
    assert vec(dtype).cumsum(0).dtype is want


def test_in_place_keeps_the_dtype_or_raises():
    x = t.ones(2, dtype=F16)
    x += t.ones(2, dtype=F64)
    assert x.dtype is F16
    n = t.tensor([1, 2])
    with pytest.raises(RuntimeError, match="result type jitgrad.float32 can't be cast"):
        n += 0.5
    with pytest.raises(RuntimeError, match="can't be cast"):
        n /= 2
    n += True
    assert n.tolist() == [2, 3]
    f = t.ones(2)
    f += 1
    assert f.dtype is F32


def test_can_cast():
    assert t.can_cast(F64, F32) and t.can_cast(I64, I8) and t.can_cast(I64, F16)
    assert not t.can_cast(F32, I64) and not t.can_cast(I64, B)


@pytest.mark.parametrize("dtype,value", [(I8, 128), (I8, -129), (U8, 256), (I32, 2**31)])
def test_numbers_out_of_range_wrap_as_operands_and_raise_as_values(dtype, value):
    assert (vec(dtype) + value).dtype is dtype
    with pytest.raises(RuntimeError, match="without overflow"):
        t.full((2,), value, dtype=dtype)


def test_negative_numbers_wrap_for_unsigned():
    assert (t.tensor([3], dtype=U8) + (-1)).tolist() == [2]


def test_number_operands_keep_the_sign_of_zero():
    x = t.ones(1)
    assert np.signbit((x * -0.0).numpy())[0]
    assert not np.signbit((x * 0.0).numpy())[0]
    assert np.signbit((x * -0.0).numpy())[0]


def test_float_to_large_numbers_overflow_to_infinity():
    assert (t.ones(1, dtype=F32) * 1e300).item() == float("inf")


def test_bool_arithmetic():
    a, b = t.tensor([True, False]), t.tensor([True, True])
    assert (a + b).tolist() == [True, True] and (a + b).dtype is B
    assert (a * b).tolist() == [True, False]
    with pytest.raises((RuntimeError, TypeError)):
        a - b
