"""Evaluates loop definitions with NumPy: an oracle for lowering that needs no compiler.

`interpret(arrays, inputs, sizes)` computes every Array that a Builder made, in order. Bodies are
evaluated over whole index grids. Strict where generated code must be: an index outside its array,
an integer division by zero, or a scalar op on a dtype that the loop language does not allow is an
error here, in whatever branch of a select it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    COMPARE,
    INDEX,
    Array,
    Call,
    Contraction,
    Expr,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    postorder,
)
from jitgrad.compiler.ops.error_functions import erfcx_reference
from jitgrad.compiler.ops.gamma import in_long
from jitgrad.compiler.ops.reduce import last_nan
from jitgrad.compiler.ops.scan import recurrence
from jitgrad.compiler.symbolic import Dim, evaluate
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


def _each(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    def apply(x: np.ndarray) -> np.ndarray:
        flat = [f(float(v)) for v in x.reshape(-1)]
        return np.array(flat, np.float64).reshape(x.shape).astype(x.dtype)

    return apply


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)


def _truncating_div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return a / b
    assert np.all(b != 0), "integer division by zero"
    q = np.floor_divide(a, b)
    return q + ((q < 0) & (q * b != a)).astype(a.dtype)


def _integral(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert a.dtype.kind in "iu" and np.all(b != 0), "division of floats, or by zero"
        return f(a, b)

    return apply


def _shift(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        assert np.all((b >= 0) & (b < a.dtype.itemsize * 8)), "shift out of range"
        return f(a, b)

    return apply


SCALAR: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs,
    "div": _truncating_div, "floordiv": _integral(np.floor_divide),
    "mod": _integral(np.remainder),
    "min": np.minimum, "max": np.maximum, "fma": _fma, "sqrt": np.sqrt, "floor": np.floor,
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int32)),
    "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "copysign": np.copysign,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "shl": _shift(np.left_shift), "shr": _shift(np.right_shift),
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sigmoid": _sigmoid, "erf": _each(math.erf), "erfc": _each(math.erfc),
    "erfcx": in_long(erfcx_reference),
    "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_ON_BOOL = {"and", "or", "xor", "not", "eq", "ne"}


def _np(dtype: DType) -> np.dtype[Any]:
    return np.dtype(np.int64) if dtype is INDEX else dtype.np


def _is_half(dtype: DType) -> bool:
    return dtype in (dtypes.float16, dtypes.bfloat16)


class Interpreter:
    """Computes arrays in order; `faults` collects the sites of checks that failed."""

    def __init__(self, inputs: Mapping[Array, np.ndarray], sizes: Mapping[str, int]) -> None:
        self.values: dict[Array, np.ndarray] = dict(inputs)
        self.sizes = sizes
        self.faults: list[Any] = []

    def shape(self, dims: Sequence[Dim]) -> tuple[int, ...]:
        return tuple(evaluate(d, self.sizes) for d in dims)

    def run(self, arrays: Sequence[Array]) -> None:
        for array in arrays:
            out = np.asarray(self.define(array))
            assert out.dtype == _np(array.dtype), (array, out.dtype)
            assert out.shape == self.shape(array.shape), (array, out.shape)
            self.values[array] = out

    # -- definitions -------------------------------------------------------------------------
    def define(self, array: Array) -> np.ndarray:
        d = array.define
        shape = self.shape(array.shape)
        if isinstance(d, Pointwise):
            return self.grid(d.body, shape)
        if isinstance(d, Reduction):
            return self.reduce(d, shape)
        if isinstance(d, Contraction):
            return self.contract(d, array, shape)
        if isinstance(d, Scan):
            body = self.grid(d.body, shape)
            ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
            if d.reverse:
                body = np.flip(body, d.along)
            if d.factor is not None:
                factor = self.grid(d.factor, shape)
                factor = np.flip(factor, d.along) if d.reverse else factor
                out = recurrence(factor, body, d.along)
            else:
                out = ufunc[d.combine].accumulate(body, axis=d.along, dtype=body.dtype)
            return np.flip(out, d.along) if d.reverse else out
        if isinstance(d, Scatter):
            return self.scatter(d, shape)
        if isinstance(d, Call):
            operands = [self.values[e.attr] for e in d.operands]
            found = d.node.op.reference(*operands, **d.node.attr)
            return np.asarray(found[d.part] if isinstance(found, tuple) else found)
        assert isinstance(d, Sort)
        return self.sort(d, shape)

    def grid(self, body: Expr, shape: tuple[int, ...]) -> np.ndarray:
        (value,) = self.evaluate([body], shape)
        return value

    def reduce(self, d: Reduction, shape: tuple[int, ...]) -> np.ndarray:
        extents = self.shape(d.extents)
        body = self.grid(d.body, shape + extents).reshape(*shape, math.prod(extents))
        assert body.dtype.itemsize != 2 or body.dtype.kind in "iu", "half accumulators"
        if d.combine == "argpool":
            return np.asarray(last_nan(body, np.argmax(body, axis=-1)), np.int64)
        if d.combine.startswith("arg"):
            return np.asarray(getattr(np, d.combine)(body, axis=-1), np.int64)
        if d.combine in ("max", "min"):
            ufunc = np.maximum if d.combine == "max" else np.minimum
            if body.dtype.kind == "f":
                start = -np.inf if d.combine == "max" else np.inf
                return np.asarray(ufunc.reduce(body, axis=-1, initial=start)).astype(body.dtype)
            return np.asarray(ufunc.reduce(body, axis=-1))
        ufunc = {"sum": np.add, "prod": np.multiply, "any": np.logical_or, "all": np.logical_and}
        assert (d.combine in ("any", "all")) == (body.dtype.kind == "b"), "bool reductions"
        return np.asarray(ufunc[d.combine].reduce(body, axis=-1, dtype=body.dtype))

    def contract(self, d: Contraction, array: Array, shape: tuple[int, ...]) -> np.ndarray:
        assert sorted((*d.batch, *d.m, *d.n)) == list(range(len(shape))), "axes of a contraction"
        for e, foreign in ((d.a, d.n), (d.b, d.m)):
            used = {x.attr for x in postorder([e]) if x.op == "axis"}
            assert not used & set(foreign), "an operand of a contraction reads a foreign axis"
        k = self.shape(d.k)
        a, b = self.evaluate([d.a, d.b], shape + k)
        acc = _np(d.acc)
        product = (a.astype(acc) * b.astype(acc)).reshape(*shape, math.prod(k))
        return np.asarray(product.sum(axis=-1, dtype=acc)).astype(_np(array.dtype))

    def scatter(self, d: Scatter, shape: tuple[int, ...]) -> np.ndarray:
        out = self.grid(d.base, shape).copy()
        extents = self.shape(d.extents)
        rank = len(shape)
        *index, value = self.evaluate([*d.index, d.value], extents, first=rank)
        combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
        for point in itertools.product(*map(range, extents)):
            at = tuple(int(i[point]) for i in index)
            assert all(0 <= i < n for i, n in zip(at, shape, strict=True)), "scatter out of range"
            new = value[point]
            out[at] = new if d.combine == "set" else combine[d.combine](out[at], new)
        return out

    def sort(self, d: Sort, shape: tuple[int, ...]) -> np.ndarray:
        wanted = shape[d.along]
        (extent,) = self.shape((d.extent,))
        shape = (*shape[: d.along], extent, *shape[d.along + 1 :])
        body = np.moveaxis(self.grid(d.body, shape), d.along, -1)
        out = np.empty((*body.shape[:-1], wanted), body.dtype if d.part == 0 else np.int64)
        for row in np.ndindex(*body.shape[:-1]):
            keys = [float(v) if body.dtype.kind not in "iub" else int(v) for v in body[row]]

            def key(i: int, keys: list[Any] = keys) -> tuple[bool, Any]:
                nan = keys[i] != keys[i]
                return (not nan, -keys[i]) if d.descending else (nan, keys[i])

            order = sorted(range(len(keys)), key=lambda i: (key(i)[0], 0 if keys[i] != keys[i]
                                                            else key(i)[1]))[:wanted]  # fmt: skip
            out[row] = body[row][order] if d.part == 0 else order
        return np.moveaxis(out, -1, d.along)

    # -- expressions -------------------------------------------------------------------------
    def evaluate(
        self, roots: Sequence[Expr], shape: tuple[int, ...], first: int = 0
    ) -> list[np.ndarray]:
        """The values of roots for every index of `shape`, whose axes are numbered from `first`."""
        grids = np.indices(shape, np.int64)
        memo: dict[Expr, np.ndarray] = {}
        for e in postorder(roots):
            value = self.node(e, [memo[a] for a in e.args], grids, shape, first)
            assert value.dtype == _np(e.dtype), (e, value.dtype)
            memo[e] = value
        return [np.broadcast_to(memo[r], shape) for r in roots]

    def node(
        self,
        e: Expr,
        args: list[np.ndarray],
        grids: np.ndarray,
        shape: tuple[int, ...],
        first: int,
    ) -> np.ndarray:
        if e.op == "axis":
            assert first <= e.attr < first + len(shape), f"axis {e.attr} of a {len(shape)}-d grid"
            return np.asarray(grids[e.attr - first])
        if e.op == "const":
            return np.array(e.attr, _np(e.dtype))
        if e.op == "size":
            return np.array(self.sizes[e.attr], np.int64)
        if e.op == "load":
            return self.load(e.attr, args, shape)
        if e.op == "select":
            return np.where(*args)
        if e.op == "cast":
            return self.cast(args[0], e.args[0].dtype, e.dtype)
        if e.op == "bitcast":
            return args[0].view(_np(e.dtype))
        if e.op == "check":
            index, extent = args
            if np.any((index < 0) | (index >= extent)) and math.prod(shape):
                self.faults.append(e.attr)
            return np.asarray(np.clip(index, 0, np.maximum(extent - 1, 0)))
        dtype = e.args[0].dtype
        assert dtype is not dtypes.bool_ or e.op in _ON_BOOL, f"{e.op} of bools"
        if _is_half(dtype):
            wide = np.asarray(SCALAR[e.op](*(a.astype(np.float32) for a in args)))
            return wide if e.op in COMPARE else wide.astype(_np(e.dtype))
        return np.asarray(SCALAR[e.op](*args))

    def load(self, array: Array, index: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        data = self.values[array]
        if not math.prod(shape):
            return np.zeros(shape, data.dtype)
        full = [np.broadcast_to(i, shape) for i in index]
        for i, n in zip(full, data.shape, strict=True):
            assert np.all((i >= 0) & (i < n)), f"load of {array} out of range"
        return np.asarray(data[tuple(full)]) if full else data

    def cast(self, x: np.ndarray, source: DType, target: DType) -> np.ndarray:
        if source.is_floating_point and not target.is_floating_point:
            assert target in (dtypes.int32, dtypes.int64, INDEX), f"cast {source} to {target}"
            assert not _is_half(source), f"cast {source} to {target}"
            low = float(np.iinfo(_np(target)).min)
            t = np.trunc(x.astype(np.float64))
            inside = (t >= low) & (t < -low)
            return np.where(inside, t, low).astype(_np(target))
        if _is_half(source) or _is_half(target):
            other = target if _is_half(source) else source
            assert other is dtypes.float32, f"cast {source} to {target}"
        assert target is not dtypes.bool_, "cast to bool: use ne(0)"
        return x.astype(_np(target))


def interpret(
    arrays: Sequence[Array],
    inputs: Mapping[Array, np.ndarray],
    sizes: Mapping[str, int] | None = None,
) -> Interpreter:
    """Runs the definitions; the results are in `.values`, failed checks in `.faults`."""
    interpreter = Interpreter(inputs, sizes or {})
    with np.errstate(all="ignore"):
        interpreter.run(arrays)
    return interpreter
