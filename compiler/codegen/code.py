"""Typed helpers over llvmlite's builder for code that is written by hand: 64-bit integers, counted
loops, elements and vectors in memory.

Owns no policy: `Code` wraps one IRBuilder. Integers may be given as Python ints everywhere, and
arithmetic on two Python ints stays in Python, so that static sizes become constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeAlias

import llvmlite.ir as ir

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
PTR, VOID = ir.PointerType(), ir.VoidType()

Int: TypeAlias = int | ir.Value

_STORAGE: dict[str, ir.Type] = {
    "bool": I8, "uint8": I8, "int8": I8, "int16": ir.IntType(16), "int32": I32, "int64": I64,
    "uint16": ir.IntType(16), "uint32": I32, "uint64": I64, "float16": ir.IntType(16),
    "bfloat16": ir.IntType(16),
    "float32": ir.FloatType(), "float64": ir.DoubleType(), "index": I64,
    "complex64": I64, "complex128": ir.IntType(128),
}  # fmt: skip


def storage_type(dtype: DType) -> ir.Type:
    """The LLVM type of an element in memory; half floats are their bits."""
    return _STORAGE[dtype.name]


def i64(x: int) -> ir.Constant:
    """A constant of 64 bits."""
    return ir.Constant(I64, x)


def prefetch(b: ir.IRBuilder, address: ir.Value, write: bool, locality: int) -> None:
    """Asks for a line of memory that will be needed soon; locality 3 is L1, 2 is L2."""
    kind = ir.FunctionType(VOID, [PTR, I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    b.call(function, [address, *(ir.Constant(I32, k) for k in (int(write), locality, 1))])


def vector_of(element: ir.Type, width: int) -> ir.Type:
    return element if width == 1 else ir.VectorType(element, width)


class BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


class Literal(ir.Constant):
    """A constant given by its text: llvmlite makes and prints vectors lane by lane, slowly."""

    def __init__(self, kind: ir.Type, text: str) -> None:
        self.type, self.constant, self._text = kind, ir.Undefined, text

    def _get_reference(self) -> str:
        return self._text


def undefined(kind: ir.Type) -> ir.Constant:
    return Literal(kind, "undef")


def integers(element: ir.IntType, values: Sequence[int]) -> ir.Constant:
    """A constant vector of integers."""
    text = ", ".join(f"{element} {v}" for v in values)
    return Literal(ir.VectorType(element, len(values)), f"<{text}>")


@lru_cache(maxsize=256)
def lanes(numbers: tuple[int, ...]) -> ir.Constant:
    """The mask of a shuffle."""
    return ir.Constant(ir.VectorType(I32, len(numbers)), list(numbers))


class Code:
    """Wraps an IRBuilder. Methods take and give i64 values or Python ints."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # -- integers ------------------------------------------------------------------------------
    def value(self, x: Int) -> ir.Value:
        return ir.Constant(I64, x) if isinstance(x, int) else x

    def _op(self, name: str, fold: Callable[[int, int], int], x: Int, y: Int) -> Int:
        if isinstance(x, int) and isinstance(y, int):
            return fold(x, y)
        return getattr(self.b, name)(self.value(x), self.value(y))

    def add(self, x: Int, y: Int) -> Int:
        if isinstance(y, int) and y == 0:
            return x
        if isinstance(x, int) and x == 0:
            return y
        return self._op("add", lambda a, b: a + b, x, y)

    def sub(self, x: Int, y: Int) -> Int:
        if isinstance(y, int) and y == 0:
            return x
        return self._op("sub", lambda a, b: a - b, x, y)

    def mul(self, x: Int, y: Int) -> Int:
        for p, q in ((x, y), (y, x)):
            if isinstance(p, int) and p == 1:
                return q
            if isinstance(p, int) and p == 0:
                return 0
        return self._op("mul", lambda a, b: a * b, x, y)

    def div(self, x: Int, y: Int) -> Int:
        """x // y for x >= 0, y > 0; any number for y = 0, as sizes may be where no loop runs."""
        if isinstance(y, int) and y == 1:
            return x
        return self._op("udiv", lambda a, b: a // b, x, self._divisor(y))

    def rem(self, x: Int, y: Int) -> Int:
        """x % y for x >= 0, y > 0; any number for y = 0."""
        if isinstance(y, int) and y == 1:
            return 0
        return self._op("urem", lambda a, b: a % b, x, self._divisor(y))

    def _divisor(self, y: Int) -> Int:
        """y, or 1 where it is 0: a division by 0 ends the program."""
        return y if isinstance(y, int) else self.max(1, y)

    def ceildiv(self, x: Int, y: int) -> Int:
        return self.div(self.add(x, y - 1), y)

    def less(self, x: Int, y: Int) -> ir.Value:
        return self.b.icmp_signed("<", self.value(x), self.value(y))

    def equal(self, x: Int, y: Int) -> ir.Value:
        return self.b.icmp_signed("==", self.value(x), self.value(y))

    def min(self, x: Int, y: Int) -> Int:
        if isinstance(x, int) and isinstance(y, int):
            return min(x, y)
        return self.b.select(self.less(x, y), self.value(x), self.value(y))

    def max(self, x: Int, y: Int) -> Int:
        if isinstance(x, int) and isinstance(y, int):
            return max(x, y)
        return self.b.select(self.less(x, y), self.value(y), self.value(x))

    # -- control -------------------------------------------------------------------------------
    @contextmanager
    def loop(self, start: Int, stop: Int, step: Int = 1) -> Iterator[ir.Value]:
        """for i in range(start, stop, step), step > 0."""
        b = self.b
        before = b.block
        test = b.append_basic_block("for")
        body = b.append_basic_block("do")
        done = b.append_basic_block("done")
        start_value, stop_value = self.value(start), self.value(stop)
        b.branch(test)
        b.position_at_end(test)
        i = b.phi(I64)
        i.add_incoming(start_value, before)
        b.cbranch(b.icmp_signed("<", i, stop_value), body, done)
        b.position_at_end(body)
        yield i
        i.add_incoming(b.add(i, self.value(step)), b.block)
        b.branch(test)
        b.position_at_end(done)

    # -- memory --------------------------------------------------------------------------------
    def at(self, base: ir.Value, index: Int, element: ir.Type = I8) -> ir.Value:
        """The address of element `index` of an array of `element`."""
        if isinstance(index, int) and index == 0:
            return base
        return self.b.gep(base, [self.value(index)], inbounds=True, source_etype=element)

    def beyond(self, base: ir.Value, index: Int, element: ir.Type = I8) -> ir.Value:
        """Like `at`, for an address that may lie outside the array (to prefetch it)."""
        return self.b.gep(base, [self.value(index)], source_etype=element)

    def load(self, base: ir.Value, index: Int, element: ir.Type, width: int = 1) -> ir.Value:
        """`width` neighbours from element `index` on; aligned as an element is."""
        address = self.at(base, index, element)
        return self.b.load(address, align=alignment(element), typ=vector_of(element, width))

    def store(self, value: ir.Value, base: ir.Value, index: Int, element: ir.Type) -> None:
        self.b.store(value, self.at(base, index, element), align=alignment(element))

    def local(self, element: ir.Type, count: int = 1, align: int = 64) -> ir.Value:
        """Memory on the stack, for the whole of the function."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(element, size=ir.Constant(I64, count))
            slot.align = align
        slot.type = PTR  # llvmlite still gives it the type of its element
        return slot

    # -- vectors -------------------------------------------------------------------------------
    def splat(self, x: ir.Value, width: int) -> ir.Value:
        if width == 1:
            return x
        vt = ir.VectorType(x.type, width)
        first = self.b.insert_element(undefined(vt), x, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined(vt), lanes((0,) * width))

    def shuffle(self, x: ir.Value, y: ir.Value, numbers: Sequence[int]) -> ir.Value:
        return self.b.shuffle_vector(x, y, lanes(tuple(numbers)))

    def transpose(self, rows: Sequence[ir.Value]) -> list[ir.Value]:
        """Vectors of the columns of equally long rows; their number and length powers of two.

        len(rows) interleavings of neighbours at half distance, until a vector is a column.
        """
        width = rows[0].type.count if isinstance(rows[0].type, ir.VectorType) else 1
        if width == 1:
            return [self.join(rows)]
        if len(rows) == 1:
            return [self.b.extract_element(rows[0], ir.Constant(I32, k)) for k in range(width)]
        n = len(rows)
        current = list(rows)
        steps = n.bit_length() - 1
        low = [x for k in range(width // 2) for x in (k, width + k)]
        high = [x for k in range(width // 2, width) for x in (k, width + k)]
        for _ in range(steps):
            half = n // 2
            nxt: list[ir.Value] = []
            for k in range(half):
                nxt.append(self.shuffle(current[k], current[k + half], low))
                nxt.append(self.shuffle(current[k], current[k + half], high))
            current = nxt
        # `current` read as one sequence is the columns, each len(rows) long.
        out = []
        other = undefined(current[0].type)
        for c in range(width):
            first = c * n
            which, lane = divmod(first, width)
            if n == width:
                out.append(current[which])
            else:
                out.append(self.shuffle(current[which], other, range(lane, lane + n)))
        return out

    def interleave(self, rows: Sequence[ir.Value]) -> ir.Value:
        """The elements of a power of two of equally long vectors in turn: a0, b0, .., a1, b1, .."""
        while len(rows) > 1:  # a, c and b, d give a, b, c, d
            half, size = len(rows) // 2, rows[0].type.count
            mask = [n for i in range(size) for n in (i, size + i)]
            rows = [self.shuffle(rows[j], rows[j + half], mask) for j in range(half)]
        return rows[0]

    def side_by_side(self, parts: Sequence[ir.Value]) -> ir.Value:
        """The elements of a power of two of equally long vectors, one vector after the other."""
        while len(parts) > 1:
            many = range(2 * parts[0].type.count)
            parts = [self.shuffle(parts[k], parts[k + 1], many) for k in range(0, len(parts), 2)]
        return parts[0]

    def join(self, scalars: Sequence[ir.Value]) -> ir.Value:
        """A vector of scalars."""
        if len(scalars) == 1:
            return scalars[0]
        v: ir.Value = undefined(ir.VectorType(scalars[0].type, len(scalars)))
        for k, x in enumerate(scalars):
            v = self.b.insert_element(v, x, ir.Constant(I32, k))
        return v


def size_of(element: ir.Type) -> int:
    """Bytes of an element type."""
    if isinstance(element, ir.FloatType):
        return 4
    if isinstance(element, ir.DoubleType):
        return 8
    return int(element.width) // 8


def alignment(element: ir.Type) -> int:
    """Bytes that an element in memory is sure to be aligned to (complex128: those of its parts)."""
    return min(size_of(element), 8)


def is_float(dtype: DType) -> bool:
    return dtype.category is dtypes.Category.FLOAT
