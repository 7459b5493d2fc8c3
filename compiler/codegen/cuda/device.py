"""Functions that kernels call on a GPU: conversions, Python's division, warps and blocks.

Owns the device side of `scalar.py` and `combine.py`; `simulated.py` has the same functions for
Numba's simulator. It imports numba, so it is imported when the first kernel is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import libdevice

from jitgrad.compiler.codegen.cuda import intrinsics

u8, i8, i16, i32, i64 = np.uint8, np.int8, np.int16, np.int32, np.int64
u16, u32, u64 = np.uint16, np.uint32, np.uint64
f16, f32, f64, c64, c128 = np.float16, np.float32, np.float64, np.complex64, np.complex128
inf, nan = float("inf"), float("nan")
NO_INDEX = np.int64(2**63 - 1)
_ALL = 0xFFFFFFFF

device = cuda.jit(device=True, forceinline=True)


# -- halves ----------------------------------------------------------------------------------------
@device
def round_f16(x):
    return f32(f16(x))


@device
def round_f16_f64(x):
    return f32(f16(x))


@device
def bits_of_f16(x):
    """The bits of a float32 that a float16 can hold."""
    bits = f32(x).view(np.uint32)
    size = bits & u32(0x7FFFFFFF)
    sign = (bits >> u32(16)) & u32(0x8000)
    if x != x:
        return u16(sign | u32(0x7E00))
    if size >= u32(0x47800000):
        return u16(sign | u32(0x7C00))
    if size < u32(0x38800000):  # subnormal: adding 0.5 leaves the multiple of 2^-24 in the low bits
        return u16(sign | u32((abs(f32(x)) + f32(0.5)).view(np.uint32) - u32(0x3F000000)))
    return u16(sign | ((size - u32(0x38000000)) >> u32(13)))


@device
def f16_of_bits(x):
    bits = u32(u16(x))
    size = bits & u32(0x7FFF)
    sign = (bits & u32(0x8000)) << u32(16)
    if size >= u32(0x7C00):
        return u32(sign | u32(0x7F800000) | (size << u32(13))).view(np.float32)
    # The exponent is 112 too small; the product by 2^112 also mends subnormals.
    scaled = (u32(size << u32(13)).view(np.float32) * f32(2.0**112)).view(np.uint32)
    return u32(scaled | sign).view(np.float32)


@device
def to_bf16(x):
    """The bits of a float32 rounded to bfloat16, ties to even; NaN stays quiet."""
    bits = f32(x).view(np.uint32)
    if x != x:
        return u16((bits | u32(0x400000)) >> u32(16))
    return u16((bits + u32(0x7FFF) + ((bits >> u32(16)) & u32(1))) >> u32(16))


@device
def from_bf16(x):
    return u32(u32(x) << u32(16)).view(np.float32)


@device
def round_bf16(x):
    return from_bf16(to_bf16(x))


@device
def round_bf16_f64(x):
    return from_bf16(to_bf16(f32(x)))


@device
def bits_of_bf16(x):
    return to_bf16(x)


@device
def bf16_of_bits(x):
    return from_bf16(x)


# -- numbers ---------------------------------------------------------------------------------------
@device
def minimum(x, y):
    """NaN if either is NaN."""
    if x != x:
        return x
    return x if x < y else y


@device
def maximum(x, y):
    if x != x:
        return x
    return x if x > y else y


@device
def sigmoidf(x):
    e = libdevice.expf(-abs(x))
    return (f32(1.0) if x >= f32(0.0) else e) / (f32(1.0) + e)


@device
def sigmoid(x):
    e = libdevice.exp(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@device
def float_to_i32(x):
    """Toward zero; what does not fit, and NaN, gives the minimum."""
    wide = f64(x)
    if wide > -2147483649.0 and wide < 2147483648.0:
        return i32(i64(wide))
    return i32(-2147483648)


@device
def float_to_i64(x):
    wide = f64(x)
    if wide >= -9223372036854775808.0 and wide < 9223372036854775808.0:
        return i64(wide)
    return i64(-9223372036854775808)


@device
def float_to_u64(x):
    wide = f64(x)
    if wide < 9223372036854775808.0:
        return u64(float_to_i64(wide))
    return u64(float_to_i64(wide - 9223372036854775808.0)) ^ u64(0x8000000000000000)


@device
def floordiv(a, b):
    if b == 0:
        return a
    return a // b


@device
def mod(a, b):
    if b == 0:
        return a
    return a % b


@device
def div_trunc(a, b):
    """Toward zero."""
    if b == 0:
        return a
    quotient = a // b
    if a % b != 0 and ((a < 0) != (b < 0)):
        return quotient + 1
    return quotient


@device
def quotient(a, b):
    """Of numbers that are not negative, by one that is not 0: without Python's cases."""
    return i64(u64(a) // u64(b))


@device
def remainder(a, b):
    return i64(u64(a) % u64(b))


@device
def clamp(index, extent):
    return max(min(index, extent - 1), 0)


@device
def flag(error, site):
    """Notes a fault; of several, one of them."""
    if site < error[0]:
        error[0] = site


# -- argmax and argmin -----------------------------------------------------------------------------
@device
def argmax_takes(y, j, x, i):
    """Whether (y, j) goes before (x, i): larger, NaN first, then the lower index."""
    if y != y:
        return x == x or j < i
    return y > x or (y == x and j < i)


@device
def argpool_takes(y, j, x, i):
    """The same, but of NaNs the one of the higher index."""
    if y != y:
        return x == x or j > i
    return y > x or (y == x and j < i)


@device
def argmin_takes(y, j, x, i):
    if y != y:
        return x == x or j < i
    return y < x or (y == x and j < i)


# -- softmax ---------------------------------------------------------------------------------------
@device
def online(top, total, x, amount):
    """The maximum, and the sum of exp(. - maximum), with `amount` of x more. Infinities add nothing
    here: whoever reads the end knows that the sum is NaN then."""
    if x > top or x != x:
        if top > f32(-inf):
            amount = amount + total * libdevice.expf(top - x)
        return x, amount
    if x > f32(-inf):
        total = total + amount * libdevice.expf(x - top)
    return top, total


# -- wide accesses ---------------------------------------------------------------------------------
is_aligned = intrinsics.is_aligned


def _wide(count: int) -> tuple[Any, Any]:
    """x[at] and its neighbours, read and written: one by one where x is not aligned."""
    load_whole, load_each = intrinsics.wide_load(count), intrinsics.load_each(count)
    store_whole = intrinsics.wide_store(count)

    @device
    def load(x, aligned, at):
        if aligned:
            return load_whole(x, at)
        return load_each(x, at)

    @device
    def store(x, aligned, at, values):
        if aligned:
            store_whole(x, at, values)
        else:
            for k in range(count):
                x[at + k] = values[k]

    return load, store


(load2, store2), (load4, store4), (load8, store8) = map(_wide, (2, 4, 8))


# -- scatters and sorts ----------------------------------------------------------------------------
atomic_sum, atomic_max, atomic_min = (intrinsics.atomic(x) for x in ("add", "max", "min"))


@device
def digit(key, shift):
    """4 bits of a key."""
    return i64((key >> shift) & 15)


@device
def key_f32(x):
    """Bits that sort as the numbers do; NaN last, -0 with 0."""
    if x != x:
        return u32(0xFFFFFFFF)
    bits = f32(x + f32(0.0)).view(np.uint32)
    return u32(~bits) if bits & u32(0x80000000) else u32(bits | u32(0x80000000))


@device
def key_f64(x):
    if x != x:
        return u64(0xFFFFFFFFFFFFFFFF)
    bits = f64(x + 0.0).view(np.uint64)
    top = u64(0x8000000000000000)
    return u64(~bits) if bits & top else u64(bits | top)


# -- tensor cores ----------------------------------------------------------------------------------
_mma_f16, _mma_bf16, _mma_tf32 = map(intrinsics.tensor_core, ("f16", "bf16", "tf32"))


@device
def round_tf32(x):
    """The nearest number of 11 bits, the larger of two; as cvt.rna.tf32.f32."""
    if x != x:
        return x
    return u32((f32(x).view(np.uint32) + u32(0x1000)) & u32(0xFFFFE000)).view(np.float32)


@device
def part_a(tile, at, pitch):
    """A thread's registers of the 16 x 16 elements from tile[at] on, in rows `pitch` apart (PTX
    ISA, "Matrix fragments for mma.m16n8k16")."""
    lane = cuda.threadIdx.x % 32
    first = at + lane // 4 * pitch + lane % 4 * 2
    below = first + 8 * pitch
    return pair(tile, first), pair(tile, below), pair(tile, first + 8), pair(tile, below + 8)


@device
def part_b(tile, at, pitch):
    """A thread's registers of 16 x 8 elements, which lie column by column."""
    lane = cuda.threadIdx.x % 32
    first = at + lane // 4 * pitch + lane % 4 * 2
    return pair(tile, first), pair(tile, first + 8)


@device
def word(tile, at):
    return f32(tile[at]).view(np.uint32)


@device
def words_a(tile, at, pitch):
    """A thread's registers of 16 x 8 elements of 32 bits (mma.m16n8k8)."""
    lane = cuda.threadIdx.x % 32
    first = at + lane // 4 * pitch + lane % 4
    below = first + 8 * pitch
    return word(tile, first), word(tile, below), word(tile, first + 4), word(tile, below + 4)


@device
def words_b(tile, at, pitch):
    """A thread's registers of 8 x 8 elements, which lie column by column."""
    lane = cuda.threadIdx.x % 32
    first = at + lane // 4 * pitch + lane % 4
    return word(tile, first), word(tile, first + 4)


def _mma(instruction: Any) -> Any:
    @device
    def multiply(a, b, sums, n):
        """sums[n : n + 4] take a thread's part of a product."""
        new = instruction(
            a[0], a[1], a[2], a[3], b[0], b[1], sums[n], sums[n + 1], sums[n + 2], sums[n + 3]
        )
        for k in range(4):
            sums[n + k] = new[k]

    return multiply


mma_f16, mma_bf16, mma_tf32 = map(_mma, (_mma_f16, _mma_bf16, _mma_tf32))
pair = intrinsics.pair
copy_async, copies_done = intrinsics.copy_async, intrinsics.copies_done
shared2, shared4 = intrinsics.shared_load(2), intrinsics.shared_load(4)


# -- blocks ----------------------------------------------------------------------------------------
@device
def plus(x, y):
    return x + y


@device
def times(x, y):
    return x * y


@device
def either(x, y):
    return x | y


@device
def both(x, y):
    return x & y


@device
def lower(x, y):
    return min(x, y)


@device
def higher(x, y):
    return max(x, y)


def _warps(combine: Any) -> Any:
    """Combines a value of each thread of a block, for all of them: within warps by shuffles, then
    the warps' results in order. `threads` is a multiple of 32."""

    @device
    def warps(value, shared, threads):
        for mask in (16, 8, 4, 2, 1):
            value = combine(value, cuda.shfl_xor_sync(_ALL, value, mask))
        if threads > 32:
            t = cuda.threadIdx.x
            if t % 32 == 0:
                shared[t // 32] = value
            cuda.syncthreads()
            value = shared[0]
            for k in range(1, threads // 32):
                value = combine(value, shared[k])
            cuda.syncthreads()
        else:  # 0 and -0 are equal, so threads may have found either: all take the first one's
            value = cuda.shfl_sync(_ALL, value, 0)
        return value

    return warps


def _block(combine: Any) -> Any:
    """The same through shared memory alone, by halves: for dtypes that warps do not exchange."""

    @device
    def block(value, shared, threads):
        t = cuda.threadIdx.x
        shared[t] = value
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if t < half:
                shared[t] = combine(shared[t], shared[t + half])
            cuda.syncthreads()
            half //= 2
        found = shared[0]
        cuda.syncthreads()
        return found

    return block


def _block_arg(takes: Any) -> Any:
    @device
    def block(value, index, values, indices, threads):
        t = cuda.threadIdx.x
        values[t] = value
        indices[t] = index
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if t < half and takes(values[t + half], indices[t + half], values[t], indices[t]):
                values[t] = values[t + half]
                indices[t] = indices[t + half]
            cuda.syncthreads()
            half //= 2
        found = indices[0]
        cuda.syncthreads()
        return found

    return block


warps_sum, warps_prod = _warps(plus), _warps(times)
warps_max, warps_min = _warps(maximum), _warps(minimum)
block_sum, block_prod = _block(plus), _block(times)
block_max, block_min = _block(higher), _block(lower)
block_any, block_all = _block(either), _block(both)
block_argmax, block_argmin = _block_arg(argmax_takes), _block_arg(argmin_takes)
block_argpool = _block_arg(argpool_takes)
