"""Random ops: pure functions of (seed, draw, logical index), by the counter-based Philox-4x32-10.

Owns the generator and its distributions. Source: J. K. Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011. Key = seed (64 bits); counter = (block, draw), 64 bits each; a block
gives four 32-bit words, which consecutive elements (in row-major order) share.

Every formula is written once, in operations that IEEE 754 rounds exactly, and run either on NumPy
arrays (`_NumPy`) or on loop expressions (`_Loop`): eager and compiled code draw the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    const,
    load,
    make,
    select,
)
from jitgrad.compiler.ops.record import Op, Sample
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


class _NumPy:
    """The operations of the formulas on arrays (at least 1-d, so that nothing is a scalar)."""

    @staticmethod
    def const(value: float, dtype: DType) -> Any:
        return dtype.np.type(value)

    @staticmethod
    def cast(x: Any, dtype: DType) -> Any:
        return x.astype(dtype.np)

    @staticmethod
    def bitcast(x: Any, dtype: DType) -> Any:
        return x.view(dtype.np)

    @staticmethod
    def select(c: Any, a: Any, b: Any) -> Any:
        return np.where(c, a, b)

    @staticmethod
    def equal(a: Any, b: Any) -> Any:
        return a == b

    sqrt = staticmethod(np.sqrt)
    floor = staticmethod(np.floor)


class _Loop:
    """The same operations on loop expressions."""

    @staticmethod
    def const(value: float, dtype: DType) -> Expr:
        return const(value, dtype)

    @staticmethod
    def cast(x: Expr, dtype: DType) -> Expr:
        return x.cast(dtype)

    @staticmethod
    def bitcast(x: Expr, dtype: DType) -> Expr:
        return x.bitcast(dtype)

    @staticmethod
    def select(c: Expr, a: Expr, b: Expr) -> Expr:
        return select(c, a, b)

    @staticmethod
    def equal(a: Expr, b: Expr) -> Expr:
        return a.eq(b)

    @staticmethod
    def sqrt(x: Expr) -> Expr:
        return make("sqrt", x)

    @staticmethod
    def floor(x: Expr) -> Expr:
        return make("floor", x)


Ops = type[_NumPy] | type[_Loop]


def _halves(f: Ops, x: Any) -> tuple[Any, Any]:
    """The low and high 32 bits of an int64."""
    bits = f.bitcast(x, dtypes.uint64)
    high = bits >> f.const(32, dtypes.uint64)
    return f.cast(bits, dtypes.uint32), f.cast(high, dtypes.uint32)


def philox(f: Ops, seed: Any, draw: Any, block: Any) -> tuple[Any, Any, Any, Any]:
    """Ten rounds of Philox-4x32 for int64 seed, draw and block number; four uint32 words."""
    k0, k1 = _halves(f, seed)
    c0, c1 = _halves(f, block)
    c2, c3 = _halves(f, draw)
    shift = f.const(32, dtypes.uint64)
    for round_ in range(10):
        p0 = f.cast(c0, dtypes.uint64) * f.const(_M0, dtypes.uint64)
        p1 = f.cast(c2, dtypes.uint64) * f.const(_M1, dtypes.uint64)
        high0, high1 = f.cast(p0 >> shift, dtypes.uint32), f.cast(p1 >> shift, dtypes.uint32)
        c0, c1, c2, c3 = (
            high1 ^ c1 ^ k0, f.cast(p1, dtypes.uint32), high0 ^ c3 ^ k1, f.cast(p0, dtypes.uint32)
        )  # fmt: skip
        if round_ < 9:
            k0 = k0 + f.const(_W0, dtypes.uint32)
            k1 = k1 + f.const(_W1, dtypes.uint32)
    return c0, c1, c2, c3


def fraction53(f: Ops, first: Any, second: Any) -> Any:
    """53 random bits as an int64 in [0, 2^53)."""
    high = f.cast(first, dtypes.int64) << f.const(21, dtypes.int64)
    return high | f.cast(second >> f.const(11, dtypes.uint32), dtypes.int64)


def log_unit(f: Ops, u: Any, terms: int) -> Any:
    """log(u) for float64 u in (0, 1], normal: 2 atanh((m - 1) / (m + 1)) + e log 2, as a series.

    |s| <= 0.1716, so twelve terms reach 2^-56, six 2^-34.
    """
    bits = f.bitcast(u, dtypes.int64)
    shifted = bits + f.const(0x3FF0000000000000 - 0x3FE6A09E667F3BCD, dtypes.int64)
    exponent = (shifted >> f.const(52, dtypes.int64)) - f.const(1023, dtypes.int64)
    m = f.bitcast(bits - (exponent << f.const(52, dtypes.int64)), dtypes.float64)
    one = f.const(1.0, dtypes.float64)
    s = (m - one) / (m + one)
    square = s * s
    series = f.const(1 / (2 * terms - 1), dtypes.float64)
    for k in range(terms - 2, -1, -1):
        series = series * square + f.const(1 / (2 * k + 1), dtypes.float64)
    scaled = f.cast(exponent, dtypes.float64) * f.const(math.log(2.0), dtypes.float64)
    return scaled + f.const(2.0, dtypes.float64) * (s * series)


def cos_turns(f: Ops, v: Any, back: Any, terms: int) -> Any:
    """cos(2 pi (v - back / 4)) for float64 v in [0, 1] and int64 back, 0 or 1: exact reduction to
    an eighth turn, then Taylor: nine terms reach 2^-57, six 2^-33."""

    def number(value: float) -> Any:
        return f.const(value, dtypes.float64)

    quarter = f.floor(v * number(4.0) + number(0.5))
    angle = (v - quarter * number(0.25)) * number(2 * math.pi)
    square = angle * angle
    cosine = sine = number(0.0)
    for k in range(terms, -1, -1):
        term = number((-1) ** k / math.factorial(2 * k))
        cosine = term if k == terms else cosine * square + term
    for k in range(terms - 1, -1, -1):
        term = number((-1) ** k / math.factorial(2 * k + 1))
        sine = term if k == terms - 1 else sine * square + term
    sine = sine * angle
    turn = (f.cast(quarter, dtypes.int64) - back) & f.const(3, dtypes.int64)
    low = f.select(f.equal(turn, f.const(0, dtypes.int64)), cosine, number(0.0) - sine)
    high = f.select(f.equal(turn, f.const(2, dtypes.int64)), number(0.0) - cosine, sine)
    return f.select(turn < f.const(2, dtypes.int64), low, high)


class Random(Op):
    """An op with operands (seed, draw), 0-d int64, and attributes shape, dtype, device.

    A record gives `per_block` (elements that share the words of a block) and `finish`. What
    neighbours share is written in terms of the numbers of their block and pair alone, so that
    kernels compute it once for them (codegen/scope.py).
    """

    random = True
    differentiable = False
    public = False

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        for t in types:
            self.expect(
                t.shape == () and t.dtype is dtypes.int64,
                f"expected seed and draw as 0-d int64 tensors; got {t}",
                TypeError,
            )
        dtype: DType = attrs["dtype"]
        self.check_dtype(dtype)
        return TensorType(tuple(attrs["shape"]), dtype, attrs.get("device", "cpu"))

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 8 * outs[0].numel

    def check_dtype(self, dtype: DType) -> None:
        self.expect(
            dtype.is_floating_point, f"expected a floating dtype; got {dtype}", NotImplementedError
        )

    def per_block(self, dtype: DType) -> int:
        return 2 if dtype is dtypes.float64 else 4

    def finish(self, f: Ops, words: Sequence[Any], lane: Any, pair: Any, dtype: DType) -> Any:
        """The element from its block's words; `lane` is its int64 number within the block, `pair`
        that of its pair of neighbours."""
        raise NotImplementedError(self.name)

    def reference(self, *arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        dtype, shape = attrs["dtype"], tuple(attrs["shape"])
        n = math.prod(shape)
        per = self.per_block(dtype)
        block = np.arange(-(-n // per), dtype=np.int64)
        seed, draw = (np.asarray(x, np.int64).reshape(1) for x in arrays)
        words = philox(_NumPy, seed, draw, block)
        numbers = [np.full(block.shape, k, np.int64) for k in range(per)]
        lanes = [self.finish(_NumPy, words, numbers[k], numbers[k // 2], dtype) for k in range(per)]
        return np.stack(lanes, axis=-1).reshape(-1)[:n].reshape(shape)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        dtype, shape = attrs["dtype"], tuple(attrs["shape"])
        per = self.per_block(dtype)
        flat = b.flat_index(b.axes(len(shape)), shape)
        block, lane = (flat // per).cast(dtypes.int64), (flat % per).cast(dtypes.int64)
        pair = ((flat // 2) % max(1, per // 2)).cast(dtypes.int64)
        seed, draw = (load(x, ()) for x in operands)
        words = philox(_Loop, seed, draw, block)
        return b.pointwise(shape, dtype, self.finish(_Loop, words, lane, pair, dtype))

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        raise RuntimeError(
            f"[{self.name}] expected one seed for the whole batch; got a seed or draw number per "
            "example; draw outside vmap and pass the numbers in"
        )

    def samples(self) -> Iterable[Sample]:
        for dtype in (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16):
            for shape in ((7,), (2, 3), (), (0, 2)):
                yield self.sample(5, 3, shape, dtype)
        yield self.sample(-1, 2**40 + 1, (9,), dtypes.float32)

    def sample(self, seed: int, draw: int, shape: tuple[int, ...], dtype: DType) -> Sample:
        operands = (np.asarray(seed, np.int64), np.asarray(draw, np.int64))
        return Sample(operands, {"shape": shape, "dtype": dtype, "device": "cpu"})


def _choose(f: Ops, lane: Any, values: Sequence[Any]) -> Any:
    """values[lane]."""
    if f is _NumPy:
        return values[int(lane[0])] if lane.size else values[0]
    out = values[-1]
    for k in range(len(values) - 2, -1, -1):
        out = f.select(f.equal(lane, f.const(k, dtypes.int64)), values[k], out)
    return out


class RandomBits(Random):
    """32 random bits, dtype uint32."""

    name = "random_bits"

    def check_dtype(self, dtype: DType) -> None:
        self.expect(dtype is dtypes.uint32, f"expected dtype uint32; got {dtype}", TypeError)

    def per_block(self, dtype: DType) -> int:
        return 4

    def finish(self, f: Ops, words: Sequence[Any], lane: Any, pair: Any, dtype: DType) -> Any:
        return _choose(f, lane, words)

    def samples(self) -> Iterable[Sample]:
        for seed, draw, shape in ((0, 0, (8,)), (1, 2, (2, 3)), (-7, 2**35, ()), (3, 1, (0,))):
            yield self.sample(seed, draw, shape, dtypes.uint32)


_FRACTION_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8, dtypes.float32: 24}


class Uniform(Random):
    """Uniform in [0, 1): a multiple of 2^-24 (float32), 2^-53, 2^-11 (float16), 2^-8 (bfloat16)."""

    name = "uniform"

    def finish(self, f: Ops, words: Sequence[Any], lane: Any, pair: Any, dtype: DType) -> Any:
        if dtype is dtypes.float64:
            first = _choose(f, lane, (words[0], words[2]))
            second = _choose(f, lane, (words[1], words[3]))
            whole = f.cast(fraction53(f, first, second), dtypes.float64)
            return whole * f.const(2.0**-53, dtypes.float64)
        bits = _FRACTION_BITS[dtype]
        kept = _choose(f, lane, words) >> f.const(32 - bits, dtypes.uint32)
        whole = f.cast(f.cast(kept, dtypes.int32), dtypes.float32)
        return f.cast(whole * f.const(2.0**-bits, dtypes.float32), dtype)


class Normal(Random):
    """Standard normal, by Box and Muller (1958) in float64, rounded once to the dtype (its error
    before is 2^-32 of the value, for float64 2^-52).

    Two elements share a pair of uniforms: radius sqrt(-2 log u), angles 2 pi v and that less a
    quarter turn. float32 takes 32 bits for each uniform, float64 53.
    """

    name = "normal"

    def finish(self, f: Ops, words: Sequence[Any], lane: Any, pair: Any, dtype: DType) -> Any:
        one = f.const(1, dtypes.int64)
        if dtype is dtypes.float64:
            first = fraction53(f, words[0], words[1])
            second = fraction53(f, words[2], words[3])
            scale = f.const(2.0**-53, dtypes.float64)
        else:
            first = f.cast(_choose(f, pair, (words[0], words[2])), dtypes.int64)
            second = f.cast(_choose(f, pair, (words[1], words[3])), dtypes.int64)
            scale = f.const(2.0**-32, dtypes.float64)
        u = f.cast(first + one, dtypes.float64) * scale  # (0, 1]
        v = f.cast(second, dtypes.float64) * scale  # [0, 1)
        long = dtype is dtypes.float64
        radius = f.sqrt(f.const(-2.0, dtypes.float64) * log_unit(f, u, 12 if long else 6))
        value = radius * cos_turns(f, v, lane & one, 9 if long else 5)
        if dtype is dtypes.float64:
            return value
        return f.cast(f.cast(value, dtypes.float32), dtype)


random_bits, uniform, normal = RandomBits(), Uniform(), Normal()
