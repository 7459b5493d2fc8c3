"""Ops on numbers as discrete things: gcd of integers, the next floating number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    const,
    make,
    rare,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.record import Sample, zeros_like
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

# Steps that Euclid's algorithm needs at most (consecutive Fibonacci numbers), by bits.
_STEPS = {8: 12, 16: 24, 32: 47, 64: 92}
_USUAL_STEPS = 22


def _unsigned(x: Expr) -> Expr:
    return x.cast(dtypes.int64).bitcast(dtypes.uint64)


class Gcd(Binary):
    """The greatest common divisor of integers, not negative; gcd(0, 0) is 0."""

    name, promotes = "gcd", "int"
    exact = True
    differentiable = False

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_, "expected an integer dtype; got bool; use .to(dtype)"
        )

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(np.gcd(a, b))

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        high, low = (make("abs", v) if v.dtype.signed else v for v in x)
        a, d = high, low
        for _ in range(_STEPS[high.dtype.bits]):
            ended = low.eq(0)
            rest = high % select(ended, const(1, low.dtype), low)
            high, low = select(ended, high, low), select(ended, low, rest)
        exact = make("abs", high) if high.dtype.signed else high
        if a.dtype.bits < 32:
            return exact
        # Nearly all need fewer steps, in floats (as compiler/math.py divides long integers).
        limit = const(1 << (51 if a.dtype.bits == 64 else 31), dtypes.uint64)
        inside = (_unsigned(a) < limit) & (_unsigned(d) < limit)
        r, m = (v.cast(dtypes.float64) for v in (a, d))
        for _ in range(_USUAL_STEPS):
            q = make("trunc", r / select(m.eq(0.0), 1.0, m))
            r, m = select(m.eq(0.0), r, m), select(m.eq(0.0), m, r - q * m)
        return rare(~inside | m.ne(0.0), exact, r.cast(a.dtype))

    def samples(self) -> Iterable[Sample]:
        a = np.array([[12, 18, 0, 7, -24], [89, 55, -13, 1, 0]])
        b = np.array([[18, 12, 5, 0, 36], [55, 34, 39, 10, 0]])
        for dt in ("int8", "int16", "int32", "int64"):
            yield Sample((a.astype(dt), b.astype(dt)), note=dt)
        yield Sample((abs(a).astype("uint8"), abs(b).astype("uint8")), note="uint8")
        yield Sample((a, b[0]), note="broadcast")
        yield Sample((a[:, :0], b[:, :0]), note="empty")
        long = np.array([7540113804746346429, -4660046610375530309, 2**62])
        yield Sample((long, np.array([4660046610375530309, 7540113804746346429, 2**40])))


_BITS = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class Nextafter(Binary):
    """The floating number next to a in the direction of b; b where they are equal."""

    name, promotes = "nextafter", "same"
    exact, widens = True, False

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype.is_floating_point,
            f"expected a floating dtype; got {dtype}; use .float()",
            NotImplementedError,
        )

    def partials(self, t0: Any, t1: Any, out: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return t0, None if t1 is None else zeros_like(t1)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        bits = _BITS[a.dtype.itemsize].np
        wide_a, wide_b = (v.astype(np.float64) for v in (a, b))
        step = np.where((wide_a < wide_b) == (wide_a > 0), 1, -1).astype(bits)
        moved = (np.ascontiguousarray(a).view(bits) + step).view(a.dtype).reshape(a.shape)
        least = np.array(1, bits).view(a.dtype)
        out = np.where(wide_a == 0, np.copysign(least, b), moved)
        out = np.where(wide_a == wide_b, b, out)
        return np.where(np.isnan(wide_a) | np.isnan(wide_b), np.array(np.nan, a.dtype), out)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        start, target = x
        bits = _BITS[start.dtype.itemsize]
        one = const(1, bits)
        step = select((start < target).eq(start > 0.0), one, const(-1, bits))
        moved = (start.bitcast(bits) + step).bitcast(start.dtype)
        sign = target.bitcast(bits) & const(-(2 ** (bits.bits - 1)), bits)
        least = (sign | one).bitcast(start.dtype)
        out = select(start.eq(0.0), least, moved)
        out = select(start.eq(target), target, out)
        return select(start.ne(start) | target.ne(target), const(np.nan, start.dtype), out)

    def samples(self) -> Iterable[Sample]:
        return examples.binary(ints=False)


gcd, nextafter = Gcd(), Nextafter()
