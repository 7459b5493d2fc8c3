"""Expressions inside hand-written kernels: Expr DAGs to LLVM values, given their leaves.

Owns the walk (`emit`), what lies in memory as opposed to registers, and `Reader`, the leaves at one
point whose axis values are known. What an op means is `emit.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I1, I64, Code, Int, storage_type, vector_of
from jitgrad.compiler.codegen.emit import Ops, constant
from jitgrad.compiler.codegen.frame import Frame
from jitgrad.compiler.index import strides_of
from jitgrad.compiler.loops import Array, Expr
from jitgrad.runtime import abi, dtypes
from jitgrad.runtime.dtypes import DType


def from_storage(code: Code, value: ir.Value, dtype: DType, width: int) -> ir.Value:
    """A value as it is in registers: bools are bytes in memory."""
    if dtype is dtypes.bool_:
        return code.b.trunc(value, vector_of(I1, width))
    return value


def to_storage(code: Code, value: ir.Value, dtype: DType, width: int) -> ir.Value:
    """A value as it is in memory."""
    if dtype is dtypes.bool_:
        return code.b.zext(value, vector_of(storage_type(dtype), width))
    return value


class Reader:
    """The leaves of expressions at one point: the values of its axes, loads by their strides."""

    def __init__(self, frame: Frame, ops: Ops, axes: Mapping[int, Int]) -> None:
        self.frame, self.ops, self.code = frame, ops, frame.code
        self.axes = dict(axes)

    def leaf(self, e: Expr) -> ir.Value | None:
        """The value of e if its arguments are not needed for it, else None."""
        if e.op == "axis":
            return self.code.value(self.axes[e.attr])
        if e.op == "size":
            return self.frame.size(e.attr)
        return None

    def load(self, e: Expr, index: Sequence[ir.Value]) -> ir.Value:
        """The element at these index values."""
        value = self.code.load(
            self.frame.array(e.attr), self.offset(e.attr, index), storage_type(e.dtype)
        )
        return from_storage(self.code, value, e.dtype, 1)

    def offset(self, array: Array, index: Sequence[ir.Value]) -> Int:
        total: Int = 0
        for i, stride in zip(index, strides_of(array), strict=True):
            total = self.code.add(total, self.code.mul(i, self.frame.dim(stride)))
        return total

    def check(self, e: Expr, index: ir.Value, extent: ir.Value) -> ir.Value:
        """index clamped to [0, extent); outside, the site's number goes to the error cell."""
        code, b = self.code, self.code.b
        inside = b.icmp_unsigned("<", index, extent)
        with b.if_then(b.not_(inside), likely=False):
            cell = b.load(
                code.at(self.frame.ctx, abi.CTX_ERROR, I64), align=8, typ=self.frame.ctx.type
            )
            b.atomic_rmw("umin", cell, self.frame.site(e.attr), "monotonic")
        return code.value(code.max(0, code.min(index, code.sub(extent, 1))))


def emit(roots: Sequence[Expr], reader: Reader, width: int = 1) -> list[ir.Value]:
    """The values of roots, each shared node once; `width` lanes where the leaves have them."""
    memo: dict[Expr, ir.Value] = {}
    stack = [(e, False) for e in reversed(roots)]
    reader.ops.builder = reader.code.b
    while stack:
        e, ready = stack.pop()
        if e in memo:
            continue
        if not ready:
            value = constant(e.attr, e.dtype, width) if e.op == "const" else reader.leaf(e)
            if value is not None:
                memo[e] = value
                continue
            stack.append((e, True))
            stack.extend((a, False) for a in reversed(e.args))
            continue
        args = [memo[a] for a in e.args]
        if e.op == "load":
            memo[e] = reader.load(e, args)
        elif e.op == "check":
            memo[e] = reader.check(e, args[0], args[1])
        else:
            memo[e] = reader.ops.apply(e, args)
    return [memo[r] for r in roots]
