"""Matrix products. Owns the record `matmul`; 1-d operands and einsum are composites of it.

float16 and bfloat16 accumulate in float32; integers in their own dtype, with wrap-around.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    load,
)
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Op,
    Sample,
    align_ranks,
    direct_reference,
    is_half,
    op,
    reduce_like,
)
from jitgrad.compiler.ops.regions import accumulator, is_one
from jitgrad.compiler.symbolic import Dim, prod
from jitgrad.compiler.types import TensorType, broadcast_shapes
from jitgrad.runtime import dtypes


class Bilinear(Op):
    """Ops of two operands that are linear in each: the tangent is the op of tangents."""

    saves = (0, 1)

    def jvp(self, tangents: tuple[Any, ...], out: Any, a: Any, b: Any, **attrs: Any) -> Any:
        ta, tb = tangents
        return sum_terms(
            None if ta is None else self(ta, b, **attrs),
            None if tb is None else self(a, tb, **attrs),
        )


class Matmul(Bilinear):
    """matmul(a, b): a (..., M, K) by b (..., K, N) gives (..., M, N); batch dims broadcast.

    transpose_a, transpose_b: that operand's last two dims are swapped first. The derivatives are
    products of this kind again, so nothing is copied to transpose it, and gradients come out in the
    layout of their operands.

    precision, of float32: where that is faster, compiled code may take operands for the sum of two
    bfloat16 ("high"), or for one ("medium"). Recorders add it, from the setting of this name.
    """

    name = "matmul"
    chooses = True
    precise = True

    def with_precision(
        self, types: Sequence[TensorType], attrs: dict[str, Any], precision: str
    ) -> dict[str, Any]:
        if types[0].dtype is not dtypes.float32:
            return attrs
        return {**attrs, "precision": precision}

    def slack(self, attrs: dict[str, Any]) -> float:
        return _SLACK[attrs.get("precision", "highest")]

    def infer(
        self, a: TensorType, b: TensorType, transpose_a: bool = False, transpose_b: bool = False,
        precision: str = "highest",
    ) -> TensorType:  # fmt: skip
        self.expect(
            a.ndim >= 2 and b.ndim >= 2,
            f"expected operands of at least 2 dims; got {a} and {b}; reshape vectors to matrices",
        )
        device = self.same_device((a, b))
        check_multiply(self, a, b, complex_too=True)
        rows, inner = _swapped(a.shape[-2:], transpose_a)
        inner_b, columns = _swapped(b.shape[-2:], transpose_b)
        self.expect(
            inner == inner_b,
            f"mat1 and mat2 shapes cannot be multiplied: expected the "
            f"{'second to last' if transpose_a else 'last'} dim of mat1 to equal the "
            f"{'last' if transpose_b else 'second to last'} of mat2; got {a} and {b}",
        )
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError as e:
            raise RuntimeError(
                f"[matmul] expected batch dims that broadcast; got {a} and {b} ({e})"
            ) from None
        return TensorType((*batch, rows, columns), a.dtype, device)

    def reference(
        self, a: np.ndarray, b: np.ndarray, transpose_a: bool = False, transpose_b: bool = False,
        precision: str = "highest",
    ) -> np.ndarray:  # fmt: skip
        acc = compute_dtype(a.dtype)
        x = a.swapaxes(-1, -2) if transpose_a else a
        y = b.swapaxes(-1, -2) if transpose_b else b
        x, y = x.astype(acc, copy=False), y.astype(acc, copy=False)
        if x.ndim > 2 and y.ndim == 2 and not transpose_a:
            return _rows_times(x, y).astype(a.dtype, copy=False)
        return np.matmul(x, y).astype(a.dtype, copy=False)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        a, b = types
        if not direct_reference(self, Matmul) or is_half(a.dtype):
            return None
        left, right = attrs.get("transpose_a", False), attrs.get("transpose_b", False)
        if a.ndim > 2 and b.ndim == 2 and not left:
            return _rows_times_turned if right else _rows_times
        if not (left or right):
            return np.matmul
        if a.ndim == b.ndim == 2:
            if left:
                return _both_turned if right else _left_turned
            return _right_turned
        return None

    def work(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return types[0].numel * outs[0].shape[-1] // 16

    def products(
        self, types: Sequence[TensorType], outs: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Any:
        return outs[0].numel * types[0].shape[-2 if attrs.get("transpose_a") else -1]

    def vjp(
        self, g: Any, out: Any, a: Any, b: Any, transpose_a: bool = False,
        transpose_b: bool = False, precision: str = "highest",
        needs: Sequence[bool] = (True, True),
    ) -> tuple[Any, ...]:  # fmt: skip
        ga = gb = None
        if needs[0]:
            if transpose_a:
                ga = product(conj(b), g, transpose_b, True, precision)
            else:
                ga = product(g, conj(b), False, not transpose_b, precision)
            ga = reduce_like(ga, a)
        if needs[1]:
            a = conj(a)
            if b.ndim == 2 and a.ndim > 2 and not transpose_a:
                # one product over all rows, not a batch of them summed
                rows = prod(a.shape[:-1])
                a = op.reshape(a, shape=(rows, a.shape[-1]))
                g = op.reshape(g, shape=(rows, g.shape[-1]))
            if transpose_b:
                gb = product(g, a, True, transpose_a, precision)
            else:
                gb = product(a, g, not transpose_a, False, precision)
            gb = reduce_like(gb, b)
        return ga, gb

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], **attrs: Any) -> Any:
        return self(*align_ranks(operands, batched), **attrs)

    def total(
        self, operands: Sequence[Any], batched: Sequence[bool], transpose_a: bool = False,
        transpose_b: bool = False, precision: str = "highest",
    ) -> Any:  # fmt: skip
        """One product, over the new axis and the inner one together."""
        a, b = operands
        if not all(batched) or a.ndim != 3 or b.ndim != 3:
            return None
        if transpose_a:  # (steps, inner, rows): the axes lie side by side
            a = op.reshape(a, shape=(a.shape[0] * a.shape[1], a.shape[2]))
        else:
            a = op.permute(a, axes=(1, 0, 2))
            a = op.reshape(a, shape=(a.shape[0], a.shape[1] * a.shape[2]))
        if transpose_b:
            b = op.permute(b, axes=(1, 0, 2))
            b = op.reshape(b, shape=(b.shape[0], b.shape[1] * b.shape[2]))
        else:
            b = op.reshape(b, shape=(b.shape[0] * b.shape[1], b.shape[2]))
        return product(a, b, transpose_a, transpose_b, precision)

    def lower(
        self, b: Builder, x: Array, y: Array, transpose_a: bool = False, transpose_b: bool = False,
        precision: str = "highest",
    ) -> Array:  # fmt: skip
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        rank = len(batch) + 2
        roles: dict[str, list[int]] = {"batch": [], "m": [], "n": []}
        reads: dict[str, list[Expr]] = {"a": [], "b": []}
        for k in range(len(batch)):
            in_a, size_a = _batch_dim(x, k - len(batch))
            in_b, size_b = _batch_dim(y, k - len(batch))
            varies_a, varies_b = not is_one(size_a), not is_one(size_b)
            # an axis that only one operand has is a free axis of that operand: no batch at all
            role = "batch" if varies_a and varies_b else "n" if varies_b else "m"
            roles[role].append(k)
            if in_a:
                reads["a"].append(axis(k) if varies_a else const(0, INDEX))
            if in_b:
                reads["b"].append(axis(k) if varies_b else const(0, INDEX))
        roles["m"].append(rank - 2)
        roles["n"].append(rank - 1)
        acc = accumulator(x.dtype)
        rows, inner = _swapped(x.shape[-2:], transpose_a)
        columns = y.shape[-2 if transpose_b else -1]
        return b.contraction(
            (*batch, rows, columns),
            x.dtype,
            batch=roles["batch"],
            m=roles["m"],
            n=roles["n"],
            k=(inner,),
            a=load(x, (*reads["a"], *_swapped((axis(rank - 2), axis(rank)), transpose_a))).cast(
                acc
            ),
            b=load(y, (*reads["b"], *_swapped((axis(rank), axis(rank - 1)), transpose_b))).cast(
                acc
            ),
            acc=acc,
            parts=_PARTS[precision],
        )

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], transpose_a: bool = False,
        transpose_b: bool = False, precision: str = "highest",
    ) -> Any:  # fmt: skip
        dtype = ctx.type(inputs[0]).dtype
        narrow = not dtype.is_floating_point and dtype.bits <= 16  # ONNX multiplies none of those
        operands = []
        for x, is_turned in zip(inputs, (transpose_a, transpose_b), strict=True):
            n = ctx.type(x).ndim
            if narrow:
                x = ctx.node("Cast", [x], to=ctx.onnx_dtype(dtypes.int32))
            if is_turned:
                x = ctx.node("Transpose", [x], perm=[*range(n - 2), n - 1, n - 2])
            operands.append(x)
        out = ctx.node("MatMul", operands)
        return ctx.node("Cast", [out], to=ctx.onnx_dtype(dtype)) if narrow else out

    def samples(self) -> Iterable[Sample]:
        yield Sample((uniform((3, 4)), uniform((4, 5), seed=1)))
        yield Sample((uniform((2, 3, 4)), uniform((4, 5), seed=1)), note="batch of a only")
        yield Sample((uniform((3, 4)), uniform((2, 4, 2), seed=1)), note="batch of b only")
        yield Sample((uniform((2, 1, 3, 4)), uniform((5, 4, 2), seed=1)), note="broadcast batch")
        yield Sample((uniform((2, 3, 4)), uniform((2, 4, 3), seed=1)), note="batched")
        yield Sample((uniform((1, 3, 4)), uniform((1, 4, 3), seed=1)), note="batch of 1")
        yield Sample((strided(uniform((3, 4))), uniform((5, 4), seed=1).T), note="strided")
        yield Sample((uniform((3, 0)), uniform((0, 2))), note="nothing to sum: zeros")
        yield Sample((uniform((0, 3)), uniform((3, 2))), note="empty")
        yield Sample((uniform((1, 1)), uniform((1, 1), seed=1)), note="1 by 1")
        left, right = {"transpose_a": True}, {"transpose_b": True}
        yield Sample((uniform((4, 3)), uniform((4, 5), seed=1)), left, "a transposed")
        yield Sample((uniform((3, 4)), uniform((5, 4), seed=1)), right, "b transposed")
        yield Sample((uniform((4, 3)), uniform((5, 4), seed=1)), left | right, "both transposed")
        yield Sample((uniform((2, 4, 3)), uniform((4, 5), seed=1)), left, "batch of a, transposed")
        yield Sample((uniform((2, 3, 4)), uniform((5, 4), seed=1)), right, "batch of a, b turned")
        yield Sample((uniform((2, 3, 4)), uniform((2, 5, 4), seed=1)), right, "batched, b turned")
        yield Sample((uniform((4, 3)), uniform((2, 1, 5, 4), seed=1)), left | right, "batch of b")
        yield Sample((uniform((3, 0)), uniform((2, 0))), right, "nothing to sum, b transposed")
        special = np.array([[np.nan, 1.0], [np.inf, 2.0]], np.float32)
        yield Sample((special, uniform((2, 3))), note="NaN and infinity", grad=False)
        for dt in ("int64", "int32", "uint8"):
            yield Sample((integers((3, 4), dt), integers((4, 2), dt, seed=1)), note=dt, grad=False)
        half = uniform((3, 40), dtype=np.float16), uniform((40, 2), dtype=np.float16, seed=1)
        yield Sample(half, note="float16", grad=False)
        brain = tuple(x.astype(dtypes.bfloat16.np) for x in half)
        yield Sample(brain, note="bfloat16", grad=False)


_PARTS = {"highest": 0, "high": 2, "medium": 1}  # numbers that stand for a float32
_SLACK = {"highest": 0.0, "high": 2.0**-12, "medium": 2.0**-5}


def product(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False,
    precision: str = "highest",
) -> Any:  # fmt: skip
    """The record `matmul`, with the attributes that are not their defaults."""
    attrs: dict[str, Any] = {}
    if transpose_a:
        attrs["transpose_a"] = True
    if transpose_b:
        attrs["transpose_b"] = True
    if precision != "highest":
        attrs["precision"] = precision
    return op.matmul(a, b, **attrs)


def _left_turned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a.T, b)


def _right_turned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a, b.T)


def _both_turned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.matmul(a.T, b.T)


def _rows_times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a (..., K) times b (K, N): one product of all rows, not one for each matrix of a."""
    rows, n = a.shape[:-1], b.shape[1]
    out = np.empty((*rows, n), a.dtype)
    count = math.prod(rows)
    np.matmul(a.reshape(count, a.shape[-1]), b, out.reshape(count, n))
    return out


def _rows_times_turned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _rows_times(a, b.T)


def _swapped(pair: Sequence[Any], swap: bool) -> tuple[Any, Any]:
    first, second = pair
    return (second, first) if swap else (first, second)


def _batch_dim(x: Array, k: int) -> tuple[bool, Dim]:
    """Whether x has the batch dim that is k-th from the last batch dim, and its size."""
    n = x.ndim - 2
    return (True, x.shape[n + k]) if n + k >= 0 else (False, 1)


def transpose(x: Any) -> Any:
    """x with its last two dims swapped."""
    return op.permute(x, axes=(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def conj(x: Any) -> Any:
    """The complex conjugate; x itself where it is real."""
    return op.conj(x) if x.dtype.is_complex else x


def adjoint(x: Any) -> Any:
    """The conjugate transpose of the last two dims."""
    return conj(transpose(x))


def sum_terms(*terms: Any) -> Any:
    """The sum of the tangents that are there; None when there is none."""
    out: Any = None
    for t in terms:
        if t is not None:
            out = t if out is None else op.add(out, t)
    return out


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The NumPy dtype in which references multiply and add."""
    return accumulator(dtypes.from_numpy(dtype)).np


def check_multiply(record: Op, a: TensorType, b: TensorType, complex_too: bool = False) -> None:
    """Raises unless both operands have one dtype that products are defined for."""
    record.expect(
        a.dtype is b.dtype,
        f"expected operands to have the same dtype; got {a} and {b}; convert one with .to(dtype)",
    )
    record.expect(
        a.dtype is not dtypes.bool_ and (complex_too or not a.dtype.is_complex),
        f"expected a {'' if complex_too else 'real '}number dtype; got {a} and {b}; convert them "
        "with .to(dtype)",
        NotImplementedError,
    )


matmul = Matmul()
