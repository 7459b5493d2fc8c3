"""Comparisons (eq, ne, lt, le, gt, ge) and logical connectives, elementwise; result bool.

Bools compare as 0 and 1; a truth value is an element that is not 0 (NaN is true).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.loops import (
    Builder,
    Expr,
    make,
)
from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.arithmetic import Binary
from jitgrad.compiler.ops.record import (
    OnnxContext,
    Sample,
)
from jitgrad.runtime import dtypes


class Comparison(Binary):
    """Result bool. Comparisons with NaN are false, but ne is true."""

    promotes = "bool"
    differentiable = False

    def samples(self) -> Iterable[Sample]:
        return examples.binary(bools=True)


class Eq(Comparison):
    name, node, onnx_op, onnx_bool = "eq", "eq", "Equal", "Equal"
    complex_too = True
    exact = True
    numpy = np.equal


class Ne(Comparison):
    name, node = "ne", "ne"
    complex_too = True
    exact = True
    numpy = np.not_equal

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        return ctx.node("Not", [ctx.node("Equal", inputs)])


class _Order(Comparison):
    """Less or greater. Bools compare as 0 and 1."""

    swaps = False

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        if x[0].dtype is dtypes.bool_:
            x = tuple(v.cast(dtypes.uint8) for v in x)
        return make(self.node, *(reversed(x) if self.swaps else x))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        if ctx.type(inputs[0]).dtype is dtypes.bool_:
            number = ctx.onnx_dtype(dtypes.uint8)
            inputs = [ctx.node("Cast", [i], to=number) for i in inputs]
        return ctx.node(self.onnx_op, inputs)


class Lt(_Order):
    name, node, onnx_op = "lt", "lt", "Less"
    exact = True
    numpy = np.less


class Le(_Order):
    name, node, onnx_op = "le", "le", "LessOrEqual"
    exact = True
    numpy = np.less_equal


class Gt(_Order):
    name, node, swaps, onnx_op = "gt", "lt", True, "Greater"
    exact = True
    numpy = np.greater


class Ge(_Order):
    name, node, swaps, onnx_op = "ge", "le", True, "GreaterOrEqual"
    exact = True
    numpy = np.greater_equal


class Logical(Comparison):
    """Of truth values: an element is true when it is not 0 (NaN is true)."""

    complex_too = True

    def scalar(self, b: Builder, *x: Expr, **attrs: Any) -> Expr:
        return make(self.node, *(v if v.dtype is dtypes.bool_ else v.ne(0) for v in x))

    def onnx(self, ctx: OnnxContext, inputs: Sequence[str], **attrs: Any) -> Any:
        number = ctx.onnx_dtype(dtypes.bool_)
        truths = [
            i if ctx.type(i).dtype is dtypes.bool_ else ctx.node("Cast", [i], to=number)
            for i in inputs
        ]
        return ctx.node(self.onnx_bool, truths)


class LogicalAnd(Logical):
    name, node, onnx_bool = "logical_and", "and", "And"
    numpy = np.logical_and


class LogicalOr(Logical):
    name, node, onnx_bool = "logical_or", "or", "Or"
    numpy = np.logical_or


class LogicalXor(Logical):
    name, node, onnx_bool = "logical_xor", "xor", "Xor"
    numpy = np.logical_xor


eq, ne, lt, le, gt, ge = Eq(), Ne(), Lt(), Le(), Gt(), Ge()
logical_and, logical_or, logical_xor = LogicalAnd(), LogicalOr(), LogicalXor()
