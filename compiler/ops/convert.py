"""Ops that choose, convert or copy elements without arithmetic: where, cast, clone,
to_device.

Owns their records and jitgrad's casts (`cast_array` on arrays, `cast_expr` in the loop language);
docs/numerics.md states them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.record import (
    Elementwise,
    OnnxContext,
    Sample,
    broadcast_like,
    direct_reference,
    is_half,
    op,
    reduce_like,
    scalar_like,
)
from jitgrad.compiler.types import TensorType, broadcast_shapes
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class Where(Elementwise):
    """a where the bool condition holds, else b: where(cond, a, b). Never multiplies, so NaN in the
    branch that is not taken does not leak, not into the derivative either."""

    name, arity, widens = "where", 3, False
    saves = (0,)
    chooses = True

    def typed(self, types: Sequence[TensorType]) -> Sequence[TensorType]:
        return types[1:]

    def check_dtype(self, dtype: DType) -> None:
        return None

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        if types:
            self.expect(
                types[0].dtype is dtypes.bool_,
                f"expected a bool condition; got {types[0]}; compare it, or use .to(bool)",
                TypeError,
            )
        return super().infer(*types, **attrs)

    def reference(self, cond: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(cond, a, b))

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        if not direct_reference(self, Where):
            return None
        word = _WORDS.get(types[1].dtype.itemsize)
        few = math.prod(map(int, broadcast_shapes(*(t.shape for t in types)))) < _MANY
        return np.where if word is None or few else partial(_where_bits, word)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return select(*x)

    def vjp(
        self, g: Any, out: Any, *operands: Any, needs: Sequence[bool] = (False, True, True),
        **attrs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        cond, a, b = operands
        zero = scalar_like(g, 0)
        ga = reduce_like(self(cond, g, zero), a) if needs[1] else None
        return None, ga, reduce_like(self(cond, zero, g), b) if needs[2] else None

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        _, t0, t1 = tangents
        if t0 is None and t1 is None:
            return None
        zero = scalar_like(out, 0)
        t0, t1 = (zero if t is None else t for t in (t0, t1))
        return broadcast_like(self(operands[0], t0, t1), out)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if ctx.type(inputs[1]).dtype is not dtypes.bool_:
            return ctx.node("Where", inputs)
        cond, a, b = inputs  # ONNX Runtime has no Where of bools
        otherwise = ctx.node("And", [ctx.node("Not", [cond]), b])
        return ctx.node("Or", [ctx.node("And", [cond, a]), otherwise])

    def samples(self) -> Iterable[Sample]:
        cond = np.array([[True, False, True], [False, True, False]])
        yield Sample((cond, examples.uniform((2, 3)), examples.uniform((2, 3), seed=1)))
        yield Sample(
            (cond[:1], examples.uniform((2, 1), dtype=np.float64), np.asarray(3.0)),
            note="broadcast",
        )
        yield Sample(
            (cond[0], np.array([1, np.nan, np.inf], np.float32), np.array([np.nan, 1.0, np.nan],
             np.float32)), note="NaN in both branches", grad=False,
        )  # fmt: skip
        yield Sample(
            (np.asarray(True), examples.uniform((0, 2)), examples.uniform((1, 2))), note="empty"
        )
        some = examples.integers((32, 1, 16), "int64", 0, 2) == 0
        yield Sample(
            (some, examples.strided(examples.uniform((32, 16))), np.asarray(0, np.float32)),
            note="many, strided, a number",
        )
        yield Sample(
            (some, np.asarray(-0.0), examples.uniform((2, 1), dtype=np.float64)), note="many"
        )
        kinds: list[Any] = [*examples.INTS, examples.BOOL, np.float16, dtypes.bfloat16.np]
        for dt in kinds:
            a, b = examples.uniform((2, 3), 0, 5), examples.uniform((2, 3), 0, 5, seed=1)
            yield Sample((cond, a.astype(dt), b.astype(dt)), note=str(dt), grad=False)


_WORDS = {2: np.int16, 4: np.int32, 8: np.int64}
_MANY = 512
"""From so many elements on words are chosen by bits: NumPy branches at each, which takes several
times as long where the condition is hard to foretell."""


def _where_bits(word: Any, cond: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """np.where, with no branch: b ^ ((a ^ b) & (all bits where cond holds))."""
    bits = b.view(word)
    out = np.bitwise_and(np.bitwise_xor(a.view(word), bits), np.negative(cond, dtype=word))
    return np.bitwise_xor(out, bits, out).view(a.dtype)


def cast_array(x: np.ndarray, dtype: DType) -> np.ndarray:
    """x converted to dtype by jitgrad's rules (docs/numerics.md, "Casts"); always a copy."""
    source, target = dtypes.from_numpy(x.dtype), dtype.np
    if dtype is dtypes.bool_:
        return np.asarray(x != 0)
    if source.is_complex and not dtype.is_complex:
        x, source = x.real, source.to_real()
    if source.is_floating_point and dtype.is_integer:
        return _float_to_int(x, dtype)
    if is_half(dtype) and source.itemsize > 2:
        return x.astype(np.float32).astype(target)
    if is_half(source) or is_half(dtype):
        return x.astype(np.float32).astype(target)
    return x.astype(target)


def _float_to_int(x: np.ndarray, dtype: DType) -> np.ndarray:
    wide = _wide(dtype).np
    low = float(np.iinfo(wide).min)
    t = np.trunc(x.astype(np.float64))
    inside = (t >= low) & (t < -low)
    whole = np.where(inside, t, low).astype(wide)
    return whole.astype(dtype.np)


def _wide(dtype: DType) -> DType:
    """The integer dtype that floats convert to on the way to `dtype`."""
    return dtypes.int64 if dtype.itemsize * 2 > 8 or dtype is dtypes.uint32 else dtypes.int32


def cast_expr(x: Expr, dtype: DType) -> Expr:
    """The same conversion in the loop language: only float32/float64 -> int32/int64 and float32 <->
    half conversions reach the code generators, the rest is composed of them."""
    source = x.dtype
    if source is dtype:
        return x
    if dtype is dtypes.bool_:
        return x.ne(0)
    if is_half(source):
        return cast_expr(x.cast(dtypes.float32), dtype)
    if is_half(dtype):
        return x.cast(dtypes.float32).cast(dtype)
    if source.is_floating_point and dtype.is_integer:
        return x.cast(_wide(dtype)).cast(dtype)
    return x.cast(dtype)


class Cast(Elementwise):
    """Converts to `dtype`. Floats to integers round toward zero; complex numbers lose their
    imaginary part (bool: whether they are not 0)."""

    name, public, widens, noop = "cast", False, False, True
    exact = True

    def check_dtype(self, dtype: DType) -> None:
        return None

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        dtype: DType = attrs["dtype"]
        return super().infer(*types).with_dtype(dtype)

    def reference(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        return cast_array(x, dtype)

    def kernel(
        self, types: Sequence[TensorType], attrs: dict[str, Any]
    ) -> Callable[..., Any] | None:
        source, dtype = types[0].dtype, attrs["dtype"]
        if not direct_reference(self, Cast) or is_half(source) or is_half(dtype):
            return None
        if source.category > dtype.category or dtype.category > dtypes.Category.FLOAT:
            return None
        target = dtype.np
        return lambda x: x.astype(target)

    def lower(self, b: Builder, *operands: Array, **attrs: Any) -> Array:
        (x,) = operands
        dtype: DType = attrs["dtype"]
        return b.pointwise(x.shape, dtype, cast_expr(b.broadcast_read(x, x.ndim), dtype))

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        (x,) = operands
        return (self(g, dtype=x.dtype) if x.dtype.category >= dtypes.Category.FLOAT else None,)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        (t,) = tangents
        if t is None or attrs["dtype"].category < dtypes.Category.FLOAT:
            return None
        return self(t, **attrs)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Cast", inputs, to=ctx.onnx_dtype(attrs["dtype"]))

    def samples(self) -> Iterable[Sample]:
        floats = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
        ints = tuple(dtypes.from_numpy(dt) for dt in (examples.BOOL, *examples.INTS))
        yield Sample((examples.uniform((2, 3)),), {"dtype": dtypes.float64})
        yield Sample((examples.uniform((0, 3)),), {"dtype": dtypes.float64}, "empty")
        yield Sample((examples.strided(examples.uniform((3, 2))),), {"dtype": dtypes.int64},
                     "strided", grad=False)  # fmt: skip
        edges = np.array([300.7, -300.7, 2.0**31, -(2.0**31), 2.0**31 - 1, 2.0**63, -(2.0**63),
                          2.0**40 + 3, 65520.0, 1e-8, 1.0009765625])  # fmt: skip
        for target in (*floats, *ints):
            for source in (dtypes.float16, dtypes.float32, dtypes.float64):
                x = examples.specials(source.np)
                yield Sample((x,), {"dtype": target}, f"{source} to {target}", grad=False)
            for wide in (np.float32, np.float64):
                yield Sample((edges.astype(wide),), {"dtype": target}, "edges", grad=False)
            for kind in ints:
                x = examples.specials(kind.np)
                yield Sample((x,), {"dtype": target}, f"{kind} to {target}", grad=False)


class Clone(Elementwise):
    """A copy: an identity that keeps the result's memory apart from the operand's."""

    name, public, widens = "clone", False, False
    effort = 0
    noop = True

    def check_dtype(self, dtype: DType) -> None:
        return None

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.copy(order="K")

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return x[0]

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return (g,)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        return tangents[0]

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Identity", inputs)

    def samples(self) -> Iterable[Sample]:
        return examples.unary(ints=True)


class Contiguous(Clone):
    """A copy whose elements lie in row-major order."""

    name = "contiguous"
    keeps_layout = False

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.copy()


class ToDevice(Clone):
    """to_device(x; device, non_blocking): a copy on another device, of which the host does not wait
    for the end if non_blocking (pinned memory). The gradient goes back to x's."""

    name = "to_device"
    noop = False
    keeps_layout = None  # its copy may be still under way

    def infer(self, *types: TensorType, **attrs: Any) -> TensorType:
        (x,) = types
        return TensorType(x.shape, x.dtype, str(attrs["device"]))

    def reference(
        self, x: np.ndarray, *, device: str = "cpu", non_blocking: bool = False
    ) -> np.ndarray:
        return x.copy()

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return (op.to_device(g, device=str(operands[0].device)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        return op.to_device(tangents[0], **attrs)

    def samples(self) -> Iterable[Sample]:
        for sample in examples.unary(ints=True):
            yield replace(sample, attrs={"device": "cpu"})


where, cast, clone, to_device = Where(), Cast(), Clone(), ToDevice()
contiguous = Contiguous()
