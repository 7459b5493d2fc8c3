"""How much a program's results depend on rounding.

Owns `noisy`: inside it, every op whose compiled form may round otherwise than its reference gives
results off by a few units in the last place, at random. The spread of a result over several such
runs says how far eager and compiled may be apart; what no noise reaches must be equal to the bit.
Ops that choose, move, compare or round exactly (add, mul, sqrt, ...) get none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import OPS, Elementwise
from jitgrad.dispatch import plans
from jitgrad.runtime.dtypes import Category, from_numpy

EXACT = frozenset([
    "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "bitwise_and",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "cast", "ceil", "clone", "concatenate", "contiguous", "copysign", "diagonal",
    "diagonal_update", "div",
    "eq", "expand", "flip", "floor", "floor_divide", "fmod", "full", "gather", "ge", "gt",
    "index", "iota", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "max_pool", "maximum", "minimum", "mul", "ne", "neg",
    "normal", "pad", "permute", "random_bits", "reciprocal", "relu", "remainder", "reshape",
    "round", "scatter", "sign", "slice", "slice_update", "sort", "sqrt", "sub", "trunc",
    "unfold", "uniform", "where",
])  # fmt: skip
"""No noise: one bit pattern is right. The results of all other ops are off by a few ulp of the
result, by what the record states, or by a few ulp of the operands where results may be near 0."""

SUMS = frozenset(
    [
        "avg_pool",
        "avg_pool_grad",
        "conv",
        "conv_input_grad",
        "conv_weight_grad",
        "cumsum",
        "fold",
        "index_put",
        "matmul",
        "max_pool_grad",
        "scatter_add",
        "sum",
    ]
)
"""Off by a few ulp of the sum of the terms' magnitudes."""

PRODUCTS = frozenset({"conv", "conv_input_grad", "conv_weight_grad", "matmul"})
"""They may take bfloat16 below the normal range for zero (docs/numerics.md, narrow operands)."""

COMPLEX_POWERS = frozenset({"mul", "reciprocal", "sqrt"})
"""Eager powers of complex numbers are made of these for some exponents, which compiled code may not
know (docs/numerics.md, complex numbers)."""

NEAR_ZERO = frozenset({"logsumexp", "log_softmax"})
ULPS = 6.0


class Noise:
    """The source of noise: off until entered. `used` says whether an inexact op ran."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.used = False
        self.silent = False


def _wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _magnitude(name: str, reference: Any, args: Any, attrs: Any, result: Any) -> Any:
    wide = np.abs(_wide(result))
    if name in SUMS:
        size = [np.abs(a) if from_numpy(a.dtype).category >= Category.FLOAT else a for a in args]
        return np.abs(_wide(reference(*size, **attrs))) + _flushed(name, args)
    if name in NEAR_ZERO and args[0].size:
        x = np.abs(_wide(args[0]))
        return np.maximum(wide, np.max(x[np.isfinite(x)], initial=1.0))
    return wide if stated(name)[1] else np.maximum(wide, 1.0)


def _flushed(name: str, args: Any) -> float:
    """A magnitude whose noise covers what is lost where factors below the normal range are zero."""
    if name not in PRODUCTS or all(from_numpy(a.dtype).name != "bfloat16" for a in args):
        return 0.0
    wide = [np.abs(_wide(a)) for a in args]
    largest = max(float(np.max(w[np.isfinite(w)], initial=1.0)) for w in wide)
    return 2.0**-126 * largest * max(w.size for w in wide) * 2.0**8  # in units of 2^-8 of it


@cache
def stated(name: str) -> tuple[float, bool]:
    """What the record's `accuracy` says: units by which results may be off (at least ULPS), and
    whether they are units of the last place of the result, or of max(1, |result|)."""
    record = OPS[name]
    cases = list(record.accuracy()) if isinstance(record, Elementwise) else []
    return max([ULPS, *(c.bound for c in cases)]), all(c.relative for c in cases)


_now: list[Noise] = []
"""The noise that is on: the last one."""
_plans: dict[Any, Any] = {}
"""Plans of eager code with noise. They are kept, as those without it are: programs have much in
common, and a plan is as much work as many applications of it."""


def _wrapped(name: str) -> Any:
    def noisy_reference(*args: Any, **attrs: Any) -> Any:
        reference = type(OPS[name]).reference.__get__(OPS[name])
        result = reference(*args, **attrs)
        if from_numpy(result.dtype).category < Category.FLOAT:
            return result
        if name in COMPLEX_POWERS and result.dtype.kind != "c":
            return result
        noise = _now[-1]
        noise.used = True
        if noise.silent:
            return result
        parts = 2 if result.dtype.kind == "c" else 1
        size = result.dtype.itemsize // parts
        eps = {2: 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}[size]
        if from_numpy(result.dtype).name == "bfloat16":
            eps = 2.0**-7
        ulps = stated(name)[0] if size > 2 else 1.0
        off = noise.rng.uniform(0.5, 1.0, (parts, *result.shape))
        off *= noise.rng.choice([-1.0, 1.0], off.shape) * ulps * eps
        factor = off[0] + 1j * off[1] if parts == 2 else off[0]
        with Quiet():
            scale = _magnitude(name, reference, args, attrs, result)
            moved = _wide(result) + factor * scale
            return np.asarray(np.where(np.isfinite(moved), moved, result)).astype(result.dtype)

    return noisy_reference


@cache
def _wrappers() -> dict[str, Any]:
    # Records without a loop form are called by compiled code: the same function, the same bits.
    return {n: _wrapped(n) for n in sorted(set(OPS) - EXACT | COMPLEX_POWERS) if not OPS[n].host}


@contextmanager
def noisy(seed: int | None) -> Iterator[Noise]:
    """Adds noise of this seed to inexact ops; with None only notes whether any ran."""
    noise = Noise()
    noise.silent = seed is None
    noise.rng = np.random.default_rng(seed)
    _now.append(noise)
    try:
        with _replaced(_wrappers(), _plans):
            yield noise
    finally:
        _now.pop()


def _ordered(name: str) -> Any:
    def ordered_reference(*args: Any, **attrs: Any) -> Any:
        result = type(OPS[name]).reference.__get__(OPS[name])(*args, **attrs)
        if isinstance(result, tuple):
            return tuple(np.asarray(x, order="C") for x in result)
        return np.asarray(result, order="C")

    return ordered_reference


@cache
def _orderers() -> dict[str, Any]:
    return {n: _ordered(n) for n in sorted(OPS) if not OPS[n].view}


_ordered_plans: dict[Any, Any] = {}


@contextmanager
def row_major() -> Iterator[None]:
    """Results of operations in row-major order, as they are in segments (docs/jit.md, Layouts)."""
    with _replaced(_orderers(), _ordered_plans):
        yield


@contextmanager
def _replaced(references: dict[str, Any], kept: dict[Any, Any]) -> Iterator[None]:
    """Other references in these records, with plans of eager code of their own, which are kept."""
    for name, reference in references.items():
        OPS[name].reference = reference  # type: ignore[method-assign]
    plain = _exchange(kept)
    try:
        yield
    finally:
        kept.clear()
        kept.update(_exchange(plain))
        for name in references:
            del OPS[name].reference


def _exchange(others: dict[Any, Any]) -> dict[Any, Any]:
    """Puts these plans in place; returns those that were there."""
    before = dict(plans)
    plans.clear()
    plans.update(others)
    return before
