"""Vectors in memory: contiguous, reversed, strided and gathered elements, with or without a mask.

Owns `Access` and the small vector constants that go with it; which element is meant is the
business of `scope.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import (
    I1,
    I32,
    I64,
    PTR,
    VOID,
    Literal,
    alignment,
    integers,
    lanes,
    size_of,
    undefined,
)
from jitgrad.compiler.codegen.emit import constant, mangle, width_of
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import INDEX


class Access:
    """Elements base[at + lane * stride], or base[at[lane]] where stride is None."""

    def __init__(
        self,
        base: ir.Value,
        kind: ir.Type,
        at: ir.Value,
        width: int,
        stride: int | None,
        mask: ir.Value | None,
        inside: bool = True,
    ) -> None:
        """inside: every address lies in the array, masked or not."""
        self.base, self.kind, self.at = base, kind, at
        self.width, self.stride, self.mask = width, stride, mask
        self.inside = inside

    def pointer(self, b: ir.IRBuilder, back: int = 0) -> ir.Value:
        at = b.sub(self.at, ir.Constant(I64, back)) if back else self.at
        return b.gep(self.base, [at], inbounds=self.inside, source_etype=self.kind)

    def _pointers(self, b: ir.IRBuilder) -> ir.Value:
        at = self.at
        if self.stride is not None:
            steps = integers(I64, [k * self.stride for k in range(self.width)])
            at = b.add(broadcast(b, at, self.width), steps)
        base = broadcast(b, self.base, self.width)
        at = b.mul(at, constant(size_of(self.kind), INDEX, self.width))
        words = b.add(b.ptrtoint(base, at.type), at)
        return b.inttoptr(words, ir.VectorType(PTR, self.width))

    def _all(self) -> ir.Value:
        if self.mask is not None:
            return self.mask
        return Literal(ir.VectorType(I1, self.width), "splat (i1 true)")

    def load(self, b: ir.IRBuilder, kind: ir.Type) -> ir.Value:
        vector = ir.VectorType(kind, self.width)
        zero = ir.Constant(vector, None)
        if self.stride in (1, -1):
            back = 0 if self.stride == 1 else self.width - 1
            if self.mask is None:
                raw = b.load(self.pointer(b, back), align=alignment(kind), typ=vector)
                return raw if self.stride == 1 else _reverse(b, raw)
            mask = self.mask if self.stride == 1 else _reverse(b, self.mask)
            raw = self._masked(b, self.pointer(b, back), mask, vector)
            return raw if self.stride == 1 else _reverse(b, raw)
        if self.stride == 2:
            return self._every_second(b, vector)
        pointers = self._pointers(b)
        mask = self._all()
        name = f"llvm.masked.gather.{mangle(vector)}.v{self.width}p0"
        f = _intrinsic(b, name, vector, [pointers.type, mask.type, vector])
        return _masked_call(b, f, [pointers, mask, zero], 0, alignment(kind))

    def _masked(
        self, b: ir.IRBuilder, at: ir.Value, mask: ir.Value, vector: ir.VectorType
    ) -> ir.Value:
        """Neighbours from `at` on where the mask is set, else 0."""
        name = f"llvm.masked.load.{mangle(vector)}.p0"
        f = _intrinsic(b, name, vector, [PTR, mask.type, vector])
        zero = ir.Constant(vector, None)
        return _masked_call(b, f, [at, mask, zero], 0, alignment(self.kind))

    def _every_second(self, b: ir.IRBuilder, vector: ir.VectorType) -> ir.Value:
        """Elements 0, 2, .., 2 (n - 1), from two loads that meet: [0, n) and [n - 1, 2 n - 1)."""
        n, align = self.width, alignment(self.kind)
        if self.mask is None:
            low = b.load(self.pointer(b), align=align, typ=vector)
            high = b.load(self.pointer(b, 1 - n), align=align, typ=vector)
        else:  # n: a lane of `none`
            none = ir.Constant(self.mask.type, None)
            masks = [
                b.shuffle_vector(
                    self.mask,
                    none,
                    lanes(tuple(e // 2 if e % 2 == 0 else n for e in range(first, first + n))),
                )
                for first in (0, n - 1)
            ]
            low = self._masked(b, self.pointer(b), masks[0], vector)
            high = self._masked(b, self.pointer(b, 1 - n), masks[1], vector)
        return b.shuffle_vector(
            low, high, lanes(tuple(2 * k if 2 * k < n else 2 * k + 1 for k in range(n)))
        )

    def store(self, b: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> None:
        if self.stride in (1, -1):
            back = 0 if self.stride == 1 else self.width - 1
            mask = self.mask
            if self.stride == -1:
                value = _reverse(b, value)
                mask = None if mask is None else _reverse(b, mask)
            if mask is None:
                b.store(value, self.pointer(b, back), align=alignment(kind))
                return
            name = f"llvm.masked.store.{mangle(value.type)}.p0"
            f = _intrinsic(b, name, VOID, [value.type, PTR, mask.type])
            _masked_call(b, f, [value, self.pointer(b, back), mask], 1, alignment(kind))
            return
        pointers = self._pointers(b)
        mask = self._all()
        name = f"llvm.masked.scatter.{mangle(value.type)}.v{self.width}p0"
        f = _intrinsic(b, name, VOID, [value.type, pointers.type, mask.type])
        _masked_call(b, f, [value, pointers, mask], 1, alignment(kind))


def masks_pay(target: Target, itemsizes: Iterable[int]) -> bool:
    """Whether masked accesses to elements of these sizes are single instructions."""
    least = 1 if target.has_small_masks else 4
    return target.has_masks and all(size >= least for size in itemsizes)


def first_lanes(b: ir.IRBuilder, count: ir.Value, width: int) -> ir.Value:
    """The mask of the lanes below `count`."""
    return b.icmp_signed("<", iota(width), broadcast(b, count, width))


def _masked_call(
    b: ir.IRBuilder, f: ir.Function, args: list[ir.Value], pointer: int, align: int
) -> ir.Value:
    """A masked memory intrinsic; its alignment is an attribute of the pointer argument."""
    call = b.call(f, args, arg_attrs={pointer: ()})
    call.arg_attributes[pointer].align = align
    return call


def _intrinsic(b: ir.IRBuilder, name: str, result: ir.Type, params: list[ir.Type]) -> ir.Function:
    known = b.module.globals.get(name)
    return known or ir.Function(b.module, ir.FunctionType(result, params), name)


def broadcast(b: ir.IRBuilder, x: ir.Value, width: int) -> ir.Value:
    """x in every lane."""
    if width == 1 or width_of(x) == width:
        return x
    vt = ir.VectorType(x.type, width)
    first = b.insert_element(undefined(vt), x, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined(vt), lanes((0,) * width))


def iota(width: int, step: int = 1) -> ir.Constant:
    """0, step, ..., (width - 1) * step as i64 lanes."""
    return integers(I64, range(0, width * step, step))


def repeat(b: ir.IRBuilder, x: ir.Value, count: int) -> ir.Value:
    """Every lane of x `count` times."""
    order = tuple(k // count for k in range(x.type.count * count))
    return b.shuffle_vector(x, undefined(x.type), lanes(order))


def every(b: ir.IRBuilder, x: ir.Value, count: int) -> ir.Value:
    """Every count-th lane of x, from the first on."""
    return b.shuffle_vector(x, undefined(x.type), lanes(tuple(range(0, x.type.count, count))))


def _reverse(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    n = x.type.count
    return b.shuffle_vector(x, undefined(x.type), lanes(tuple(range(n - 1, -1, -1))))
