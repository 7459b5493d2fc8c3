"""Views of memory under other terms: as_strided (any shape and steps), bitcast (another dtype).

Owns their records. Both show the bytes of their operand anew, so their reference returns a NumPy
view and `put` writes through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    const,
    dim,
    load,
    select,
)
from jitgrad.compiler.ops.examples import integers, uniform
from jitgrad.compiler.ops.placing import full, zeros_of
from jitgrad.compiler.ops.record import OnnxContext, Op, Sample, apply_like, op
from jitgrad.compiler.ops.regions import is_empty, zero_filled
from jitgrad.compiler.symbolic import Dim, hint, is_static, prod
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

Shape = tuple[Dim, ...]


class AsStrided(Op):
    """as_strided(x; size, stride, offset): out[i, j, ...] = x[offset + i s0 + j s1 + ...] of a
    vector x; a view. Elements may be shown more than once: their cotangents add up."""

    name = "as_strided"
    view = True

    def infer(self, x: TensorType, *, size: Shape, stride: Shape, offset: Dim) -> TensorType:
        self.expect(x.ndim == 1, f"expected a vector; got {x}")
        self.expect(
            len(size) == len(stride),
            "mismatch in length of strides and shape: expected as many strides as sizes; got size "
            f"{tuple(size)} and stride {tuple(stride)}",
        )
        self.expect(
            all(s >= 0 for s in stride) and offset >= 0,
            "Negative strides are not supported at the moment, nor negative offsets; got stride "
            f"{tuple(stride)}, offset {offset}",
        )
        last = offset
        for n, s in zip(size, stride, strict=True):
            last = last + (n - 1) * s
        self.expect(
            any(hint(n) == 0 for n in size) or last < x.shape[0],
            f"setStorage: sizes {tuple(size)}, strides {tuple(stride)}, storage offset {offset} "
            f"are out of bounds for storage of {x.shape[0]} elements",
        )
        return x.with_shape(tuple(size))

    def reference(
        self, x: np.ndarray, *, size: Sequence[int], stride: Sequence[int], offset: int
    ) -> np.ndarray:
        size = tuple(map(int, size))
        if 0 in size:
            return x[:0].reshape(size)
        if x.flags.c_contiguous and type(x) is np.ndarray:  # NumPy knows at once whose memory it is
            bits = x.view(np.uint16) if x.dtype.kind == "V" or x.dtype.name == "bfloat16" else x
            steps = tuple(int(s) * x.itemsize for s in stride)
            start = int(offset) * x.itemsize
            return np.ndarray(size, bits.dtype, bits, start, steps).view(x.dtype)
        steps = tuple(int(s) * x.strides[0] for s in stride)
        part = x[int(offset) :]
        return np.lib.stride_tricks.as_strided(part, size, steps, subok=True)

    def vjp(
        self, g: Any, out: Any, x: Any, *, size: Shape, stride: Shape, offset: Dim
    ) -> tuple[Any, ...]:
        if is_empty(size):
            return (zeros_of(g, x),)
        places = _places(g, size, stride, offset)
        flat = op.reshape(g, shape=places.shape)
        return (op.index_put(zeros_of(g, x), flat, places, dims=(0,), accumulate=True),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return None if tangents[0] is None else op.as_strided(tangents[0], **attrs)

    def onnx(
        self, ctx: OnnxContext, inputs: Sequence[str], *, size: Shape, stride: Shape, offset: Dim
    ) -> Any:
        if not is_static((*size, *stride, offset)):
            raise RuntimeError("no ONNX form for symbolic sizes; export with fixed sizes")
        places = np.array(hint(offset), np.int64)
        for n, s in zip(size, stride, strict=True):
            places = places[..., None] + np.arange(hint(n)) * hint(s)
        return ctx.node("Gather", [inputs[0], ctx.constant(places)], axis=0)

    def batch(
        self,
        operands: Sequence[Any],
        batched: Sequence[bool],
        *,
        size: Shape,
        stride: Shape,
        offset: Dim,
    ) -> Any:
        (x,) = operands
        rows, n = x.shape
        flat = op.reshape(x, shape=(rows * n,))
        return op.as_strided(flat, size=(rows, *size), stride=(n, *stride), offset=offset)

    def lower(self, b: Builder, x: Array, *, size: Shape, stride: Shape, offset: Dim) -> Array:
        if is_empty(size):
            return zero_filled(b, size, x.dtype)
        place: Expr = dim(offset)
        for k, s in enumerate(stride):
            place = place + axis(k) * dim(s)
        return b.pointwise(size, x.dtype, load(x, [place]))

    def put(self, base: Any, update: Any, *, size: Shape, stride: Shape, offset: Dim) -> Any:
        if is_empty(size):
            return base
        reach = 0
        for s, n in sorted((int(s), int(n)) for s, n in zip(stride, size, strict=True) if n != 1):
            if s <= reach:
                raise RuntimeError(
                    "[as_strided] unsupported operation: more than one element of the written-to "
                    f"tensor may refer to one memory location, with size {tuple(size)} and stride "
                    f"{tuple(stride)}; write to a clone() of it"
                )
            reach += s * (n - 1)
        places = _places(base, size, stride, offset)
        flat = op.reshape(update, shape=places.shape)
        return op.index_put(base, flat, places, dims=(0,), accumulate=False)

    def samples(self) -> Iterable[Sample]:
        x = uniform((12,))
        yield Sample((x,), {"size": (3, 2), "stride": (4, 1), "offset": 1})
        yield Sample((x,), {"size": (2, 3, 2), "stride": (1, 2, 3), "offset": 0}, "overlapping")
        yield Sample((x,), {"size": (4, 5), "stride": (0, 1), "offset": 2}, "a step of 0")
        yield Sample((x,), {"size": (), "stride": (), "offset": 7}, "0-d")
        yield Sample((x,), {"size": (3, 0), "stride": (1, 1), "offset": 0}, "empty")
        yield Sample((x[:0],), {"size": (0,), "stride": (1,), "offset": 0}, "of an empty vector")
        yield Sample((uniform((20,))[::2],), {"size": (2, 2), "stride": (5, 3), "offset": 0})
        yield Sample((integers((6,), "int64"),), {"size": (3,), "stride": (2,), "offset": 0})
        half = uniform((6,)).astype(dtypes.bfloat16.np)
        yield Sample((half,), {"size": (2, 2), "stride": (2, 1), "offset": 1}, "bfloat16", False)


def _places(like: Any, size: Shape, stride: Shape, offset: Dim) -> Any:
    """int64 vector: where each element of the view lies, in row-major order."""
    total = full(like, (1,) * len(size), 0, dtypes.int64)
    for k, (n, s) in enumerate(zip(size, stride, strict=True)):
        line = apply_like(
            op.iota, like, shape=(n,), dtype=dtypes.int64, device=str(like.device), start=0, step=1
        )
        shape = tuple(n if j == k else 1 for j in range(len(size)))
        total = op.add(total, op.reshape(op.mul(line, int(s)), shape=shape))
    total = op.add(total, int(offset))
    return op.reshape(total, shape=(prod(size),))


_INTEGER = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class Bitcast(Op):
    """bitcast(x; dtype): the bytes of x read as another dtype; a view (torch.Tensor.view(dtype)).

    Between sizes, the last dim grows or shrinks by their ratio; bytes lie as on little-endian
    machines. Not differentiable.
    """

    name = "bitcast"
    view = True
    noop = True
    differentiable = False

    def infer(self, x: TensorType, *, dtype: DType) -> TensorType:
        a, b = x.dtype.itemsize, dtype.itemsize
        if a == b:
            return x.with_dtype(dtype)
        self.expect(
            x.ndim > 0,
            f"self.dim() cannot be 0 to view {x.dtype} as {dtype} (different element sizes); got "
            f"{x}; reshape it to (1,) first",
        )
        last = x.shape[-1]
        if a > b:
            last = last * (a // b)
        else:
            self.expect(
                last % (b // a) == 0,
                f"self.size(-1) must be divisible by {b // a} to view {x.dtype} as {dtype} "
                f"(different element sizes), but got {last}",
            )
            last = last // (b // a)
        return TensorType((*x.shape[:-1], last), dtype, x.device)

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], *, dtype: DType) -> Any:
        if ctx.type(inputs[0]).dtype.itemsize != dtype.itemsize:
            raise RuntimeError("ONNX reads bits as another dtype of the same size only")
        return ctx.node("BitCast", inputs, to=ctx.onnx_dtype(dtype))

    def reference(self, x: np.ndarray, *, dtype: DType) -> np.ndarray:
        try:
            return x.view(dtype.np)
        except ValueError as error:
            raise RuntimeError(
                f"[view] expected a last dim without gaps, to read it as {dtype}; got shape "
                f"{x.shape} with byte strides {x.strides}; use .contiguous() ({error})"
            ) from None

    def batch(self, operands: Sequence[Any], batched: Sequence[bool], *, dtype: DType) -> Any:
        return op.bitcast(operands[0], dtype=dtype)

    def lower(self, b: Builder, x: Array, *, dtype: DType) -> Array:
        a, size = x.dtype.itemsize, dtype.itemsize
        shape = self.infer(TensorType(x.shape, x.dtype), dtype=dtype).shape
        at = b.axes(len(shape))
        if a == size:
            return b.pointwise(shape, dtype, _from_bits(_bits(load(x, at)), dtype))
        *lead, last = at
        if a > size:
            count = a // size
            whole = _bits(load(x, [*lead, last // count]))
            shift = (last % count).cast(whole.dtype) * (8 * size)
            part = (whole >> shift).cast(_INTEGER[size])
            return b.pointwise(shape, dtype, _from_bits(part, dtype))
        count = size // a
        total: Expr | None = None
        for k in range(count):
            part = _bits(load(x, [*lead, last * count + const(k, INDEX)]))
            part = (part.cast(_INTEGER[size]) & (2 ** (8 * a) - 1)) << (8 * a * k)
            total = part if total is None else total | part
        assert total is not None
        return b.pointwise(shape, dtype, _from_bits(total, dtype))

    def put(self, base: Any, update: Any, *, dtype: DType) -> Any:
        return op.bitcast(update, dtype=base.dtype)

    def samples(self) -> Iterable[Sample]:
        x = uniform((2, 4))
        yield Sample((x,), {"dtype": dtypes.int32})
        yield Sample((x,), {"dtype": dtypes.uint8}, "to smaller elements")
        yield Sample((x,), {"dtype": dtypes.int64}, "to larger elements")
        yield Sample((integers((3, 8), "uint8", 0, 120),), {"dtype": dtypes.float64}, "from bytes")
        yield Sample((uniform((2, 4)).astype(np.float16),), {"dtype": dtypes.int16}, "float16")
        yield Sample((integers((3, 2), "int16", 0, 90),), {"dtype": dtypes.bfloat16}, "bfloat16")
        yield Sample((uniform(()),), {"dtype": dtypes.int32}, "0-d")
        yield Sample((uniform((0, 2)),), {"dtype": dtypes.float64}, "empty")
        yield Sample((np.array([True, False]),), {"dtype": dtypes.uint8}, "from bool")
        yield Sample((np.array([0, 1], np.uint8),), {"dtype": dtypes.bool_}, "to bool")


def _bits(x: Expr) -> Expr:
    if x.dtype is dtypes.bool_:
        return select(x, const(1, dtypes.int8), const(0, dtypes.int8))
    return x.bitcast(_INTEGER[x.dtype.itemsize])


def _from_bits(x: Expr, dtype: DType) -> Expr:
    return x.ne(0) if dtype is dtypes.bool_ else x.bitcast(dtype)


as_strided = AsStrided()
bitcast = Bitcast()
