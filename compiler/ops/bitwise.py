"""Ops on the bits of integers and bools: and, or, xor, shifts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    const,
    make,
    select,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Sample,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class Bitwise(Binary):
    """Integers and bools, bit by bit."""

    promotes = "int"
    differentiable = False

    def samples(self) -> Iterable[Sample]:
        return examples.binary(floats=False, bools=True)


class BitwiseAnd(Bitwise):
    name, node, onnx_op, onnx_bool = "bitwise_and", "and", "BitwiseAnd", "And"
    numpy = np.bitwise_and


class BitwiseOr(Bitwise):
    name, node, onnx_op, onnx_bool = "bitwise_or", "or", "BitwiseOr", "Or"
    numpy = np.bitwise_or


class BitwiseXor(Bitwise):
    name, node, onnx_op, onnx_bool = "bitwise_xor", "xor", "BitwiseXor", "Xor"
    numpy = np.bitwise_xor


class _Shift(Bitwise):
    """A shift by a number of bits outside [0, width) shifts everything out (torch, NumPy)."""

    def check_dtype(self, dtype: DType) -> None:
        super().check_dtype(dtype)
        self.expect(
            dtype is not dtypes.bool_, "expected an integer dtype; got bool; use .to(dtype)"
        )

    def outside(self, value: Expr) -> Expr:
        """The result when the shift is outside the width."""
        return const(0, value.dtype)

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        value, shift = x
        width = value.dtype.itemsize * 8
        inside = shift < width
        if value.dtype.signed:
            inside = make("and", inside, shift >= 0)
        safe = select(inside, shift, const(0, shift.dtype))
        return select(inside, make(self.node, value, safe), self.outside(value))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        # BitShift shifts unsigned integers, by less than their width
        (a, b), dtype = inputs, ctx.type(inputs[0]).dtype
        zero = ctx.constant(np.array(0, dtype.np))
        inside = ctx.node("Less", [b, ctx.constant(np.array(dtype.bits, dtype.np))])
        if dtype.signed:
            inside = ctx.node("And", [inside, ctx.node("GreaterOrEqual", [b, zero])])
        arithmetic = dtype.signed and self.node == "shr"
        farthest = ctx.constant(np.array(dtype.bits - 1 if arithmetic else 0, dtype.np))
        far = ctx.node("Where", [inside, b, farthest])
        if arithmetic:  # of a negative number: not (not a >> far)
            negative, ones = ctx.node("Less", [a, zero]), ctx.constant(np.array(-1, dtype.np))
            a = ctx.node("Where", [negative, ctx.node("Sub", [ones, a]), a])
        wide = ctx.onnx_dtype(dtypes.uint64 if dtype.bits == 64 else dtypes.uint32)
        shifted = [ctx.node("Cast", [v], to=wide) for v in (a, far)]
        direction = "LEFT" if self.node == "shl" else "RIGHT"
        out = ctx.node("BitShift", shifted, direction=direction)
        out = ctx.node("Cast", [out], to=ctx.onnx_dtype(dtype))
        if arithmetic:
            return ctx.node("Where", [negative, ctx.node("Sub", [ones, out]), out])
        return ctx.node("Where", [inside, out, zero])

    def samples(self) -> Iterable[Sample]:
        yield from examples.binary(floats=False)
        shifts = np.arange(9, dtype=np.int64)[None, :]
        yield Sample((examples.integers((4, 1), np.int64), shifts), grad=False)


class LeftShift(_Shift):
    name, node = "bitwise_left_shift", "shl"

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        inside = (b >= 0) & (b < a.dtype.itemsize * 8)
        out = np.left_shift(a, np.where(inside, b, 0).astype(a.dtype))
        return np.where(inside, out, 0).astype(a.dtype)


class RightShift(_Shift):
    """Arithmetic for signed dtypes."""

    name, node = "bitwise_right_shift", "shr"

    def outside(self, value: Expr) -> Expr:
        return make("shr", value, const(value.dtype.bits - 1, value.dtype)) if (
            value.dtype.signed
        ) else const(0, value.dtype)  # fmt: skip

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < width)
        if a.dtype.kind == "u":
            out = np.right_shift(a, np.where(inside, b, 0).astype(a.dtype))
            return np.where(inside, out, 0).astype(a.dtype)
        return np.asarray(np.right_shift(a, np.where(inside, b, width - 1).astype(a.dtype)))


bitwise_and, bitwise_or, bitwise_xor = BitwiseAnd(), BitwiseOr(), BitwiseXor()
bitwise_left_shift, bitwise_right_shift = LeftShift(), RightShift()
