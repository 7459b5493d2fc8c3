"""logsumexp, softmax and log_softmax: ops of their own because their stable derivatives need it.

float16 and bfloat16 compute in float32 and round once. Lowering gives several definitions (the
maximum, the sum of exponentials, the result), which fusion makes one kernel of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    axis,
    const,
    load,
    make,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.convert import cast_expr
from jitgrad.compiler.ops.elementwise import compute
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    direct_reference,
    is_half,
    op,
    scalar_like,
)
from jitgrad.compiler.ops.reduce import (
    Axes,
    Reduce,
    keep_dims,
    reduce_samples,
    reduced_read,
    reduced_shape,
)
from jitgrad.compiler.symbolic import Sym
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

_INF = float("inf")


def _compute_dtype(dtype: DType) -> DType:
    return dtypes.float32 if is_half(dtype) else dtype


def _check_float(record: Op, x: TensorType) -> None:
    record.expect(
        x.dtype.is_floating_point,
        f"expected a floating dtype; got {x}; convert with .to(dtype)",
        NotImplementedError,
    )


class Logsumexp(Reduce):
    """log(sum(exp(x))) over axes, without overflow; -inf over no elements."""

    name, onnx_op = "logsumexp", "ReduceLogSumExp"
    saves = (0, "out")

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        _check_float(self, types[0])
        return super().infer(*types, **attrs)

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return 8 * types[0].numel

    def reference(self, x: np.ndarray, axes: Axes, keepdim: bool = False) -> np.ndarray:
        def stable(x: np.ndarray) -> np.ndarray:
            top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
            top = np.where(np.isinf(top), np.zeros((), x.dtype), top).astype(x.dtype)
            total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
            return np.asarray(total.reshape(reduced_shape(x.shape, axes, keepdim)))

        return compute(stable, x)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        acc = _compute_dtype(x.dtype)
        shape = reduced_shape(x.shape, axes, keepdim)
        value, extents, order = reduced_read(x, axes, keepdim)
        if any(not isinstance(d, Sym) and d == 0 for d in extents):
            return b.pointwise(shape, x.dtype, const(-_INF, x.dtype))
        value = cast_expr(value, acc)
        here = b.axes(len(shape))
        extents = extents or (1,)
        top = b.reduction(shape, extents, value, "max", order)
        safe = _finite_or_zero(load(top, here))
        total = b.reduction(shape, extents, make("exp", value - safe), "sum", order)
        result = make("log", load(total, here)) + safe
        return b.pointwise(shape, x.dtype, cast_expr(result, x.dtype))

    def weights(self, out: Any, x: Any, axes: Axes, keepdim: bool) -> Any:
        """d out / d x = exp(x - out): softmax; zero where every element is -inf."""
        out = keep_dims(out, x.shape, axes, keepdim)
        out = op.where(op.eq(out, scalar_like(out, -_INF)), scalar_like(out, 0), out)
        return op.exp(op.sub(x, out))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        g = keep_dims(g, x.shape, axes, keepdim)
        return (op.mul(g, self.weights(out, x, axes, keepdim)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,), (x,) = tangents, operands
        if t is None:
            return None
        axes, keepdim = attrs["axes"], attrs.get("keepdim", False)
        return op.sum(op.mul(t, self.weights(out, x, axes, keepdim)), axes=axes, keepdim=keepdim)

    def samples(self) -> Iterable[Sample]:
        yield from reduce_samples(ints=False, empty=False)
        none = np.zeros((2, 0, 3), np.float32)
        yield Sample((none,), {"axes": (1,), "keepdim": False}, "empty reduced axis", grad=False)
        big = np.array([[1e4, 1e4 + 1, 3.0], [-1e4, -1e4 - 1, -2e4]])
        yield Sample((big,), {"axes": (1,), "keepdim": False}, "large numbers", grad=False)
        low = np.full((2, 3), -np.inf, np.float32)
        yield Sample((low,), {"axes": (1,), "keepdim": False}, "all -inf", grad=False)


def _finite_or_zero(x: Expr) -> Expr:
    return select(make("abs", x).eq(_INF), const(0, x.dtype), x)


class _Softmax(Op):
    """softmax and log_softmax along `axis`."""

    saves = ("out",)
    onnx_op = ""
    formula: ClassVar[Callable[[np.ndarray, int], np.ndarray]]

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        (x,) = types
        if is_half(x.dtype) or x.numel == 0 or not direct_reference(self, _Softmax):
            return None
        formula, k = type(self).formula, attrs["axis"]
        return lambda x: formula(x, k)

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        (x,) = types
        k = attrs["axis"]
        _check_float(self, x)
        self.expect(0 <= k < x.ndim, f"expected axis in [0, {x.ndim}); got {k} for {x}", IndexError)
        return x

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        rows = types[0].numel // max(types[0].shape[attrs["axis"]], 1)
        return 8 * types[0].numel + 300 * rows  # NumPy's reductions take 0.1 ms for 1,000 rows

    def reference(self, x: np.ndarray, axis: int) -> np.ndarray:
        if x.size == 0:
            return x.copy()
        return compute(lambda v: type(self).formula(v, axis), x)

    def parts(self, b: Builder, x: Array, k: int) -> tuple[Expr, Expr]:
        """x less its maximum along axis k, and the sum of its exponentials, at x's index."""
        acc = _compute_dtype(x.dtype)
        shape = tuple(1 if i == k else d for i, d in enumerate(x.shape))
        value, extents, order = reduced_read(x, (k,), True)
        value = cast_expr(value, acc)
        row = b.axes(x.ndim)
        top = b.reduction(shape, extents, value, "max", order)
        total = b.reduction(shape, extents, make("exp", value - load(top, row)), "sum", order)
        at = tuple(axis(i) if i != k else const(0, axis(i).dtype) for i in range(x.ndim))
        centred = cast_expr(load(x, row), acc) - load(top, at)
        return centred, load(total, at)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        centred, total = self.parts(b, x, attrs["axis"])
        return b.pointwise(x.shape, x.dtype, cast_expr(self.result(centred, total), x.dtype))

    def result(self, centred: Expr, total: Expr) -> Expr:
        raise NotImplementedError(self.name)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        return self(*operands, axis=attrs["axis"] + 1)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node(self.onnx_op, inputs, axis=attrs["axis"])

    def samples(self) -> Iterable[Sample]:
        x = examples.uniform((2, 3, 4))
        for k in range(3):
            yield Sample((x,), {"axis": k})
        y = examples.uniform((3, 5), dtype=np.float64)
        yield Sample((examples.strided(y),), {"axis": 0}, "strided")
        yield Sample((x[:0],), {"axis": 1}, "empty")
        yield Sample((x[:, :0],), {"axis": 1}, "empty axis")
        big = np.array([[1e4, 1e4 + 1, 3.0], [-1e4, -1e4 - 1, -2e4], [-np.inf, 0.0, 1.0],
                        [np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0]])  # fmt: skip
        for dt in (np.float32, np.float64, np.float16, dtypes.bfloat16.np):
            yield Sample(
                (big.astype(dt),), {"axis": 1}, f"large and special {np.dtype(dt)}", grad=False
            )


def _softmax(x: np.ndarray, k: int) -> np.ndarray:
    e = np.exp(x - np.maximum.reduce(x, k, keepdims=True))
    return np.divide(e, np.add.reduce(e, k, keepdims=True), e)


def _log_softmax(x: np.ndarray, k: int) -> np.ndarray:
    centred = x - np.maximum.reduce(x, k, keepdims=True)
    total = np.add.reduce(np.exp(centred), k, keepdims=True)
    return np.subtract(centred, np.log(total), centred)


class Softmax(_Softmax):
    """exp(x) / sum(exp(x)) along `axis`."""

    name, onnx_op = "softmax", "Softmax"
    formula = _softmax

    def result(self, centred: Expr, total: Expr) -> Expr:
        return make("exp", centred) * (1.0 / total)  # one division a row

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        product = op.mul(g, out)
        total = op.sum(product, axes=(attrs["axis"],), keepdim=True)
        return (op.sub(product, op.mul(out, total)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        return None if t is None else self.vjp(t, out, *operands, **attrs)[0]  # symmetric


class LogSoftmax(_Softmax):
    """x - logsumexp(x) along `axis`."""

    name, onnx_op = "log_softmax", "LogSoftmax"
    formula = _log_softmax

    def result(self, centred: Expr, total: Expr) -> Expr:
        return centred - make("log", total)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        total = op.sum(g, axes=(attrs["axis"],), keepdim=True)
        return (op.sub(g, op.mul(op.exp(out), total)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        if t is None:
            return None
        mean = op.sum(op.mul(op.exp(out), t), axes=(attrs["axis"],), keepdim=True)
        return op.sub(t, mean)


logsumexp, softmax, log_softmax = Logsumexp(), Softmax(), LogSoftmax()
