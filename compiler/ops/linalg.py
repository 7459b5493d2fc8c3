"""Matrix products. Owns the record `matmul`; 1-d operands and einsum are composites of it.

float16 and bfloat16 accumulate in float32; integers in their own dtype, with wrap-around.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import INDEX, Array, Builder, Expr, axis, const, load
from jitgrad.compiler.ops.examples import integers, strided, uniform
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, align_ranks, op, reduce_like
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
    """matmul(a, b): a (..., M, K) by b (..., K, N) gives (..., M, N); batch dims broadcast."""

    name = "matmul"
    chooses = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.expect(
            a.ndim >= 2 and b.ndim >= 2,
            f"expected operands of at least 2 dims; got {a} and {b}; reshape vectors to matrices",
        )
        device = self.same_device((a, b))
        check_multiply(self, a, b, complex_too=True)
        self.expect(
            a.shape[-1] == b.shape[-2],
            f"mat1 and mat2 shapes cannot be multiplied: expected the last dim of mat1 to equal "
            f"the second to last of mat2; got {a} and {b}",
        )
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError as e:
            raise RuntimeError(
                f"[matmul] expected batch dims that broadcast; got {a} and {b} ({e})"
            ) from None
        return TensorType((*batch, a.shape[-2], b.shape[-1]), a.dtype, device)

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        acc = compute_dtype(a.dtype)
        out = np.matmul(a.astype(acc, copy=False), b.astype(acc, copy=False))
        return out.astype(a.dtype, copy=False)

    def vjp(
        self, g: Any, out: Any, a: Any, b: Any, needs: Sequence[bool] = (True, True)
    ) -> tuple[Any, ...]:
        ga = gb = None
        if needs[0]:
            ga = op.matmul(g, adjoint(b))
        if not needs[1]:
            pass
        elif b.ndim == 2 and a.ndim > 2:  # one product over all rows, not a batch of them summed
            rows = prod(a.shape[:-1])
            flat_a = op.reshape(a, shape=(rows, a.shape[-1]))
            gb = op.matmul(adjoint(flat_a), op.reshape(g, shape=(rows, g.shape[-1])))
        else:
            gb = op.matmul(adjoint(a), g)
        return reduce_like(ga, a), reduce_like(gb, b)

    def batch(self, operands: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*align_ranks(operands, batched))

    def lower(self, b: Builder, x: Array, y: Array) -> Array:
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
        return b.contraction(
            (*batch, x.shape[-2], y.shape[-1]),
            x.dtype,
            batch=roles["batch"],
            m=roles["m"],
            n=roles["n"],
            k=(x.shape[-1],),
            a=load(x, (*reads["a"], axis(rank - 2), axis(rank))).cast(acc),
            b=load(y, (*reads["b"], axis(rank), axis(rank - 1))).cast(acc),
            acc=acc,
        )

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str]) -> Any:
        dtype = ctx.type(inputs[0]).dtype
        if dtype.is_floating_point or dtype.bits > 16:
            return ctx.node("MatMul", inputs)
        wide = ctx.onnx_dtype(dtypes.int32)  # ONNX multiplies no narrow integers
        out = ctx.node("MatMul", [ctx.node("Cast", [x], to=wide) for x in inputs])
        return ctx.node("Cast", [out], to=ctx.onnx_dtype(dtype))

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
        special = np.array([[np.nan, 1.0], [np.inf, 2.0]], np.float32)
        yield Sample((special, uniform((2, 3))), note="NaN and infinity", grad=False)
        for dt in ("int64", "int32", "uint8"):
            yield Sample((integers((3, 4), dt), integers((4, 2), dt, seed=1)), note=dt, grad=False)
        half = uniform((3, 40), dtype=np.float16), uniform((40, 2), dtype=np.float16, seed=1)
        yield Sample(half, note="float16", grad=False)
        brain = tuple(x.astype(dtypes.bfloat16.np) for x in half)
        yield Sample(brain, note="bfloat16", grad=False)


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
        TypeError,
    )


matmul = Matmul()
