"""Accumulators of reductions: neutral values, combining, memory for lanes, the tree over lanes.

Owns the two orders of docs/numerics.md in terms of one accumulator each; the loops around them are
in `nest.py`. Everything that fixes bits is a function of the dtype and the logical shape only:

lanes    lane l takes elements l, l + L, ... of the last reduced axis, over the other reduced axes
         in row-major order, for a block of the reduced space; the lanes of a block are combined by
         halves (l with l + L/2, then L/4, ...). Block k goes to lane k mod L of a second set of
         lanes, combined alike.
columns  one after the other, in blocks of 256; blocks in groups of 256; groups one after the other.

A block of the lanes order is 16384 elements of the last axis, or as many whole rows of it as make
no more than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import I32, I64, i64, integers, lanes, undefined, vector_of
from jitgrad.compiler.codegen.emit import Ops, constant, register_type, width_of
from jitgrad.compiler.codegen.function import Function
from jitgrad.compiler.codegen.memory import broadcast
from jitgrad.compiler.codegen.scope import Scope
from jitgrad.compiler.kernels import Reduce
from jitgrad.compiler.symbolic import Dim
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import InternalError

LANE_BLOCK = 16384
COLUMN_BLOCK = 256
OPERATIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def lane_count(dtype: DType) -> int:
    """L: the number of virtual lanes for values of a dtype."""
    return 32 if dtype.itemsize == 8 else 64


def lowest(dtype: DType) -> float:
    """The neutral element of max."""
    if dtype.is_floating_point:
        return -math.inf
    return 0 if not dtype.signed else -(2 ** (dtype.bits - 1))


def highest(dtype: DType) -> float:
    """The neutral element of min."""
    if dtype.is_floating_point:
        return math.inf
    return 2**dtype.bits - 1 if not dtype.signed else 2 ** (dtype.bits - 1) - 1


def neutral(combine: str, dtype: DType) -> float:
    """The value that changes nothing when combined (or +0 for sums, which start from it)."""
    if combine in ("max", "argmax", "argpool"):
        return lowest(dtype)
    if combine in ("min", "argmin"):
        return highest(dtype)
    return {"sum": 0, "prod": 1, "any": 0, "all": 1}[combine]


def _none(index: DType) -> int:
    """The index of a state that has no element."""
    return 2 ** (index.bits - 1) - 1


@dataclass
class Accumulator:
    """How one Reduce combines. A state is a list of values: [value], or [value, index] for arg*.

    index: the dtype of indices.
    """

    combine: str
    dtype: DType
    index: DType = dtypes.int64

    @classmethod
    def of(cls, reduce: Reduce, count: Dim) -> Accumulator:
        """count: how many elements there are to combine."""
        short = isinstance(count, int) and count < _none(dtypes.int32)
        return cls(reduce.combine, reduce.value.dtype, dtypes.int32 if short else dtypes.int64)

    @property
    def is_arg(self) -> bool:
        return self.combine.startswith("arg")

    @property
    def dtypes(self) -> list[DType]:
        return [self.dtype, self.index] if self.is_arg else [self.dtype]

    @property
    def lanes(self) -> int:
        return lane_count(self.dtype)

    def start(self, width: int) -> list[ir.Value]:
        """The state before the first element."""
        state = [constant(neutral(self.combine, self.dtype), self.dtype, width)]
        if self.is_arg:
            state.append(constant(_none(self.index), self.index, width))
        return state

    def element(
        self, scope: Scope, value: ir.Value, first: ir.Value, step: int = 0
    ) -> list[ir.Value]:
        """The state of single elements, of which lane k is number first + k * step."""
        if not self.is_arg:
            return [value]
        b = scope.at_end()
        width = width_of(value)
        kind = register_type(self.index)
        numbers = broadcast(b, b.trunc(first, kind) if kind != I64 else first, width)
        if step and width > 1:
            numbers = b.add(numbers, integers(kind, range(0, width * step, step)))
        return [value, numbers]

    def join(self, ops: Ops, a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """The state of a and b, either of which may have the earlier elements."""
        if not self.is_arg:
            return [ops.arithmetic(OPERATIONS[self.combine], self.dtype, [a[0], b[0]])]
        (x, i), (y, j) = a, b
        build = ops.builder
        same = ops.compare("eq", self.dtype, [x, y])
        earlier = build.and_(same, build.icmp_signed("<", j, i))
        if self.dtype.is_floating_point:
            order = ">" if self.combine == "argpool" else "<"
            nans = build.and_(self._both_nan(ops, x, y), build.icmp_signed(order, j, i))
            earlier = build.or_(earlier, nans)
        return self._take(ops, a, b, build.or_(self._better(ops, x, y), earlier))

    def append(self, ops: Ops, a: list[ir.Value], b: list[ir.Value]) -> list[ir.Value]:
        """The state of a and of b, whose elements all come after a's; either may have none."""
        if not self.is_arg:
            return self.join(ops, a, b)
        none = constant(_none(self.index), self.index, width_of(a[1]))
        empty = ops.builder.icmp_signed("==", a[1], none)
        if self.combine == "argpool" and self.dtype.is_floating_point:
            empty = ops.builder.or_(empty, self._both_nan(ops, a[0], b[0]))
        return self._take(ops, a, b, ops.builder.or_(self._better(ops, a[0], b[0]), empty))

    def _both_nan(self, ops: Ops, x: ir.Value, y: ir.Value) -> ir.Value:
        return ops.builder.and_(*(ops.compare("ne", self.dtype, [v, v]) for v in (x, y)))

    def _better(self, ops: Ops, x: ir.Value, y: ir.Value) -> ir.Value:
        """y wins over x wherever it stands: it is past it, or the only NaN of the two."""
        pair = [y, x] if self.combine == "argmin" else [x, y]
        if not self.dtype.is_floating_point:
            return ops.compare("lt", self.dtype, pair)
        past = ops.builder.not_(ops.compare("le", self.dtype, pair[::-1]))  # or one is a NaN
        return ops.builder.and_(past, ops.compare("eq", self.dtype, [x, x]))

    def _take(
        self, ops: Ops, a: list[ir.Value], b: list[ir.Value], other: ir.Value
    ) -> list[ir.Value]:
        return [ops.builder.select(other, y, x) for x, y in zip(a, b, strict=True)]

    def result(self, ops: Ops, state: list[ir.Value]) -> ir.Value:
        if not self.is_arg or self.index is dtypes.int64:
            return state[-1]
        width = width_of(state[-1])
        return ops.builder.sext(state[-1], vector_of(I64, width))

    # -- lanes in memory -------------------------------------------------------------------------
    def array(self, fn: Function, count: int, width: int = 1) -> list[ir.Value]:
        """Stack memory for `count` states of `width`."""
        return [fn.slot(_cell(d, width), count) for d in self.dtypes]

    def get(
        self, ops: Ops, array: list[ir.Value], at: ir.Value, cell: int, width: int
    ) -> list[ir.Value]:
        """`width` neighbouring lanes from cell `at` on; a cell holds `cell` lanes."""
        out = []
        for d, base in zip(self.dtypes, array, strict=True):
            address = ops.builder.gep(base, [at], source_etype=_cell(d, cell))
            raw = ops.builder.load(address, align=d.itemsize, typ=_cell(d, width))
            out.append(_from_memory(ops, raw, d))
        return out

    def put(
        self, ops: Ops, array: list[ir.Value], at: ir.Value, cell: int, state: list[ir.Value]
    ) -> None:
        for d, base, value in zip(self.dtypes, array, state, strict=True):
            address = ops.builder.gep(base, [at], source_etype=_cell(d, cell))
            if d is dtypes.bool_:
                value = ops.builder.zext(value, _cell(d, width_of(value)))
            ops.builder.store(value, address, align=d.itemsize)

    def clear(self, scope: Scope, array: list[ir.Value], count: int, width: int = 1) -> None:
        """Every cell becomes the start."""
        ops = scope.fn.ops
        scope.at_end()
        if width == 1:
            self.put(ops, array, i64(0), 1, self.start(count))
            return
        with scope.loop(i64(0), i64(count), 1) as (inner, k):
            inner.at_end()
            self.put(ops, array, k, width, self.start(width))

    def add_to(
        self, scope: Scope, array: list[ir.Value], at: ir.Value, cell: int, state: list[ir.Value]
    ) -> None:
        """Cells from `at` on take one more state, of later elements."""
        ops = scope.fn.ops
        scope.at_end()
        width = width_of(state[0])
        old = self.get(ops, array, at, cell, width)
        self.put(ops, array, at, cell, self.append(ops, old, state))

    def tree(
        self, scope: Scope, array: list[ir.Value], count: int, width: int = 1
    ) -> list[ir.Value]:
        """The lanes of an array combined by halves; count is a power of two."""
        ops = scope.fn.ops
        if width == 1:
            scope.at_end()
            state = self.get(ops, array, i64(0), 1, count)
            return self.fold(scope, state)
        half = count // 2
        while half:
            with scope.loop(i64(0), i64(half), 1) as (inner, k):
                b = inner.at_end()
                high = self.get(ops, array, b.add(k, i64(half)), width, width)
                low = self.get(ops, array, k, width, width)
                self.put(ops, array, k, width, self.join(ops, low, high))
            half //= 2
        scope.at_end()
        return self.get(ops, array, i64(0), width, width)

    def fold(self, scope: Scope, state: list[ir.Value]) -> list[ir.Value]:
        """The lanes of vectors combined by halves, to scalars."""
        ops = scope.fn.ops
        b = scope.at_end()
        n = width_of(state[0])
        while n > 1:
            n //= 2
            low = [_part(b, v, 0, n) for v in state]
            high = [_part(b, v, n, n) for v in state]
            state = self.join(ops, low, high)
        return state

    def masked(self, scope: Scope, state: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        """The state with lanes outside the mask at the start."""
        if mask is None:
            return state
        b = scope.at_end()
        start = self.start(width_of(state[0]))
        return [b.select(mask, v, s) for v, s in zip(state, start, strict=True)]


def _cell(dtype: DType, width: int) -> ir.Type:
    element = register_type(dtype)
    return vector_of(ir.IntType(8) if dtype is dtypes.bool_ else element, width)


def _from_memory(ops: Ops, raw: ir.Value, dtype: DType) -> ir.Value:
    if dtype is dtypes.bool_:
        return ops.builder.icmp_unsigned("!=", raw, ir.Constant(raw.type, None))
    return raw


def _part(b: ir.IRBuilder, v: ir.Value, start: int, count: int) -> ir.Value:
    if width_of(v) <= 1:
        raise InternalError("a part of a scalar")
    if count == 1:
        return b.extract_element(v, ir.Constant(I32, start))
    return b.shuffle_vector(v, undefined(v.type), lanes(tuple(range(start, start + count))))
