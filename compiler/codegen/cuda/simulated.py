"""The functions of `device.py` for Numba's simulator, where a GPU thread is a thread of Python.

Warps exchange values through shared memory here, and libdevice is NumPy and math. `namespace` binds
the functions to a kernel's globals, since the simulator swaps the name `cuda` there while it runs.
"""

from __future__ import annotations

import math
import threading
import types
from typing import Any

import numpy as np

inf, nan = math.inf, math.nan
NO_INDEX = np.int64(2**63 - 1)
cuda: Any = None  # the simulator's, in the kernel's globals


def _integer(kind: Any) -> Any:
    bits = np.dtype(kind).itemsize * 8

    def convert(x: Any) -> Any:
        if type(x) is int:
            x &= (1 << bits) - 1
            unsigned = np.dtype(kind).kind == "u"
            return kind(x if unsigned or x < 1 << (bits - 1) else x - (1 << bits))
        return kind(x)

    return convert


u8, i8, i16, i32, i64 = map(_integer, (np.uint8, np.int8, np.int16, np.int32, np.int64))
u16, u32, u64 = map(_integer, (np.uint16, np.uint32, np.uint64))
f16, f32, f64, c64, c128 = np.float16, np.float32, np.float64, np.complex64, np.complex128


# -- halves ----------------------------------------------------------------------------------------
def round_f16(x):
    return f32(f16(x))


round_f16_f64 = round_f16


def bits_of_f16(x):
    return f16(x).view(np.int16)


def f16_of_bits(x):
    return f32(x.view(np.float16))


def to_bf16(x):
    bits = int(f32(x).view(np.uint32))
    if x != x:
        return np.uint16((bits | 0x400000) >> 16)
    return np.uint16(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF)


def from_bf16(x):
    return np.uint32(int(x) << 16).view(np.float32)


def round_bf16(x):
    return from_bf16(to_bf16(x))


def round_bf16_f64(x):
    return from_bf16(to_bf16(f32(x)))


bits_of_bf16, bf16_of_bits = to_bf16, from_bf16


# -- numbers ---------------------------------------------------------------------------------------
def minimum(x, y):
    if x != x:
        return x
    return x if x < y else y


def maximum(x, y):
    if x != x:
        return x
    return x if x > y else y


def sigmoid(x):
    one = type(x)(1)
    e = np.exp(-abs(x))
    return (one if x >= 0 else e) / (one + e)


sigmoidf = sigmoid


def float_to_i32(x):
    wide = float(x)
    return np.int32(int(wide)) if -2147483649.0 < wide < 2147483648.0 else np.int32(-(2**31))


def float_to_i64(x):
    wide = float(x)
    return np.int64(int(wide)) if -(2.0**63) <= wide < 2.0**63 else np.int64(-(2**63))


def float_to_u64(x):
    wide = float(x)
    if wide < 2.0**63:
        return u64(int(float_to_i64(wide)))
    return u64(int(float_to_i64(wide - 2.0**63))) ^ np.uint64(1 << 63)


def floordiv(a, b):
    return a if b == 0 else a // b


def mod(a, b):
    return a if b == 0 else a % b


def div_trunc(a, b):
    if b == 0:
        return a
    quotient = a // b
    return quotient + type(a)(1) if a % b != 0 and (a < 0) != (b < 0) else quotient


def quotient(a, b):
    return a // b


def remainder(a, b):
    return a % b


def clamp(index, extent):
    return max(min(index, extent - 1), 0)


def flag(error, site):
    error[0] = min(error[0], site)


def argmax_takes(y, j, x, i):
    if y != y:
        return x == x or j < i
    return y > x or (y == x and j < i)


def argpool_takes(y, j, x, i):
    if y != y:
        return x == x or j > i
    return y > x or (y == x and j < i)


def argmin_takes(y, j, x, i):
    if y != y:
        return x == x or j < i
    return y < x or (y == x and j < i)


# -- softmax ---------------------------------------------------------------------------------------
def online(top, total, x, amount):
    if x > top or x != x:
        return x, amount + total * np.exp(top - x) if top > -inf else amount
    return top, total + amount * np.exp(x - top) if x > -inf else total


# -- wide accesses ---------------------------------------------------------------------------------
def is_aligned(x):
    return x.ctypes.data % 16 == 0


def load2(x, aligned, at):
    return x[at], x[at + 1]


def load4(x, aligned, at):
    return x[at], x[at + 1], x[at + 2], x[at + 3]


def load8(x, aligned, at):
    return (*load4(x, aligned, at), *load4(x, aligned, at + 4))


def store2(x, aligned, at, values):
    for k, value in enumerate(values):
        x[at + k] = value


store4 = store8 = store2


# -- scatters and sorts ----------------------------------------------------------------------------
making = threading.Lock()


def atomic_sum(x, at, value):
    with making:
        x[at] = x[at] + value


def atomic_max(x, at, value):
    with making:
        x[at] = max(x[at], value)


def atomic_min(x, at, value):
    with making:
        x[at] = min(x[at], value)


def digit(key, shift):
    return int(key) >> shift & 15


def key_f32(x):
    if x != x:
        return np.uint32(0xFFFFFFFF)
    bits = int(f32(x + f32(0.0)).view(np.uint32))
    return np.uint32(~bits & 0xFFFFFFFF if bits >> 31 else bits | 1 << 31)


def key_f64(x):
    if x != x:
        return np.uint64(0xFFFFFFFFFFFFFFFF)
    bits = int(f64(x + 0.0).view(np.uint64))
    return np.uint64(~bits & 0xFFFFFFFFFFFFFFFF if bits >> 63 else bits | 1 << 63)


# -- contractions ----------------------------------------------------------------------------------
def copy_async(tile, place, x, at):
    tile[place] = x[at]


def copies_done():
    pass


def shared2(x, at):
    return x[at], x[at + 1]


def shared4(x, at):
    return x[at], x[at + 1], x[at + 2], x[at + 3]


def part_a(tile, at, pitch):
    """Stands for registers: the elements are read when they are multiplied."""
    return tile, at, pitch


part_b = words_a = words_b = part_a


def round_tf32(x):
    if x != x:
        return x
    return np.uint32(int(f32(x).view(np.uint32)) + 0x1000 & 0xFFFFE000).view(np.float32)


def mma(a, b, sums, n, number, depth=16):
    (x, at, pitch), (y, start, _) = a, b
    lane = cuda.threadIdx.x % 32
    for k in range(4):
        row = at + (lane // 4 + k // 2 * 8) * pitch
        column = start + (lane % 4 * 2 + k % 2) * pitch
        total = float(sums[n + k])
        for i in range(depth):
            total += float(number(x[row + i])) * float(number(y[column + i]))
        sums[n + k] = f32(total)


def mma_f16(a, b, sums, n):
    mma(a, b, sums, n, f32)


def mma_bf16(a, b, sums, n):
    mma(a, b, sums, n, from_bf16)


def mma_tf32(a, b, sums, n):
    mma(a, b, sums, n, f32, 8)


# -- blocks ----------------------------------------------------------------------------------------
def shared_array(number, count, dtype, alignment):
    """The shared array `number` of a kernel: one for all threads of a block."""
    with making:
        kept = vars(cuda.shared).setdefault("kept", {})
        if number not in kept:
            kept[number] = np.empty(count, dtype)
        return kept[number]


def gathered(value, threads):
    """The values of all threads, in all of them."""
    shared = shared_array("gathered", threads, object, 0)
    shared[cuda.threadIdx.x] = value
    cuda.syncthreads()
    found = [shared[k] for k in range(threads)]
    cuda.syncthreads()
    return found


def combined(value, shared, threads, combine):
    first, *rest = gathered(value, threads)
    for x in rest:
        first = combine(first, x)
    return first


def block_sum(value, shared, threads):
    return combined(value, shared, threads, lambda x, y: x + y)


def block_prod(value, shared, threads):
    return combined(value, shared, threads, lambda x, y: x * y)


def block_max(value, shared, threads):
    return combined(value, shared, threads, maximum)


def block_min(value, shared, threads):
    return combined(value, shared, threads, minimum)


def block_any(value, shared, threads):
    return combined(value, shared, threads, lambda x, y: x | y)


def block_all(value, shared, threads):
    return combined(value, shared, threads, lambda x, y: x & y)


warps_sum, warps_prod, warps_max, warps_min = block_sum, block_prod, block_max, block_min


def best(value, index, values, indices, threads, takes):
    pairs = zip(gathered(value, threads), gathered(index, threads), strict=True)
    x, i = next(pairs)
    for y, j in pairs:
        if takes(y, j, x, i):
            x, i = y, j
    return i


def block_argmax(value, index, values, indices, threads):
    return best(value, index, values, indices, threads, argmax_takes)


def block_argpool(value, index, values, indices, threads):
    return best(value, index, values, indices, threads, argpool_takes)


def block_argmin(value, index, values, indices, threads):
    return best(value, index, values, indices, threads, argmin_takes)


# -- libdevice -------------------------------------------------------------------------------------
def _erfcx(x: float) -> float:
    """exp(x^2) erfc(x); above 3 by its continued fraction."""
    if not x >= 3.0:
        try:
            return math.exp(x * x) * math.erfc(x)
        except OverflowError:
            return inf
    if x == inf:
        return 0.0
    below = x
    for k in range(80, 0, -1):
        below = x + k / 2 / below
    return 1.0 / math.sqrt(math.pi) / below


def _pow(x: Any, y: Any) -> Any:
    """Of arrays: NumPy's power of scalars takes (-inf) ** 0.5 for a square root."""
    return np.power(np.array([x]), np.array([y]))[0]


_MATH: dict[str, Any] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": _pow, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "copysign": np.copysign,
    "erf": lambda x: type(x)(math.erf(x)), "erfc": lambda x: type(x)(math.erfc(x)),
    "erfcx": lambda x: type(x)(_erfcx(float(x))),
    "rsqrt": lambda x: type(x)(1) / np.sqrt(x),
}  # fmt: skip


def _fma(x: Any, y: Any, z: Any) -> Any:
    return type(x)(np.longdouble(x) * np.longdouble(y) + np.longdouble(z))


libdevice = types.SimpleNamespace(
    **_MATH,
    **{f"{name}f": f for name, f in _MATH.items()},
    fma=_fma, fmaf=_fma, fsqrt_rn=np.sqrt, dsqrt_rn=np.sqrt,
)  # fmt: skip


def namespace(simulator: Any) -> dict[str, Any]:
    """Globals for a kernel: these functions, and `cuda`, the simulator's module."""
    found: dict[str, Any] = {"np": np, "cuda": simulator, "libdevice": libdevice}
    for name, value in globals().items():
        if isinstance(value, types.FunctionType) and value.__module__ == __name__:
            value = types.FunctionType(
                value.__code__, found, value.__name__, value.__defaults__, value.__closure__
            )
        if not name.startswith("_") and name not in ("cuda", "namespace", "libdevice"):
            found.setdefault(name, value)
    return found
