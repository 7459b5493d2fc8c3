"""Conversions between dtypes as LLVM instructions.

Owns casts (docs/numerics.md): float to an integer out of range, or NaN, gives what x86-64's
cvttsd2si gives: the minimum of int64 or int32, and for narrower integers the low bits of the int32;
integers wrap; to bool is `!= 0`. And halves: float16 by instructions where the target has them, by
integer code elsewhere; bfloat16 always by integer code. All round to nearest, ties to even, once.
And float32 as a sum of bfloat16 (`parts_of`).
"""

from __future__ import annotations

import struct

import llvmlite.ir as ir

from jitgrad.compiler.codegen.code import BFloat, Literal, vector_of
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import CompileError

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_F32, _F64 = ir.FloatType(), ir.DoubleType()
_WIDE = 16  # lanes of a vector of float32 on processors that convert to bfloat16
_HALVES = (dtypes.float16, dtypes.bfloat16)


def half_bits(value: float, dtype: DType) -> int:
    """The bits of a number rounded to float16 or bfloat16."""
    if dtype is dtypes.float16:
        try:
            return int(struct.unpack("<h", struct.pack("<e", value))[0])
        except OverflowError:
            return 0x7C00 if value > 0 else 0x7C00 - 0x8000
    bits = int(struct.unpack("<i", struct.pack("<f", max(-3.4e38, min(3.4e38, value))))[0])
    if value != value:
        return 0x7FC0
    if abs(value) > 3.395e38:
        return 0x7F80 if value > 0 else 0x7F80 - 0x8000
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def splat(one: ir.Constant, width: int) -> ir.Constant:
    """A constant in every lane."""
    if width == 1:
        return one
    text = f"splat ({one.type} {one.get_reference()})"
    return Literal(ir.VectorType(one.type, width), text)


class _Lanes:
    """Constants and types of the width at hand."""

    def __init__(self, b: ir.IRBuilder, like: ir.Value) -> None:
        self.b = b
        self.n = like.type.count if isinstance(like.type, ir.VectorType) else 1

    def type(self, element: ir.Type) -> ir.Type:
        return vector_of(element, self.n)

    def const(self, element: ir.Type, value: float) -> ir.Constant:
        one = ir.Constant(element, value)
        return splat(one, self.n)


def cast(b: ir.IRBuilder, target: Target, x: ir.Value, source: DType, to: DType) -> ir.Value:
    """x, a value of `source`, converted to `to`."""
    if source is to:
        return x
    if source.is_complex or to.is_complex:
        raise CompileError(f"a cast of {source.name} to {to.name} is not compiled")
    if to in _HALVES:
        if source in _HALVES:
            return narrow(b, target, widen(b, target, x, source), to)
        if source is dtypes.float64:
            return narrow(b, target, _to_odd(b, x), to)
        wide = x if source is dtypes.float32 else cast(b, target, x, source, dtypes.float32)
        return narrow(b, target, wide, to)
    if source in _HALVES:
        return cast(b, target, widen(b, target, x, source), dtypes.float32, to)
    lanes = _Lanes(b, x)
    if to is dtypes.bool_:
        if source.is_floating_point:
            return b.fcmp_unordered("!=", x, lanes.const(_float(source), 0.0))
        return b.icmp_unsigned("!=", x, lanes.const(ir.IntType(source.bits), 0))
    if source.is_floating_point:
        if to.is_floating_point:
            kind = lanes.type(_float(to))
            return b.fpext(x, kind) if to is dtypes.float64 else b.fptrunc(x, kind)
        return _float_to_int(b, lanes, x, source, to)
    if to.is_floating_point:
        signed = source.signed and source is not dtypes.bool_
        return (b.sitofp if signed else b.uitofp)(x, lanes.type(_float(to)))
    kind = lanes.type(ir.IntType(to.bits))
    if to.bits == source.bits:
        return x
    if to.bits < source.bits:
        return b.trunc(x, kind)
    return (b.sext if source.signed and source is not dtypes.bool_ else b.zext)(x, kind)


def _float(dtype: DType) -> ir.Type:
    return _F64 if dtype is dtypes.float64 else _F32


def _float_to_int(
    b: ir.IRBuilder, lanes: _Lanes, x: ir.Value, source: DType, to: DType
) -> ir.Value:
    if to is dtypes.uint64:
        half = lanes.const(_float(source), 2.0**63)
        small = b.fcmp_ordered("<", x, half)
        shifted = b.select(small, x, b.fsub(x, half))
        bits = _guarded(b, lanes, shifted, source, 64)
        return b.select(small, bits, b.xor(bits, lanes.const(_I64, -(2**63))))
    if to.bits == 64 or to is dtypes.uint32:
        bits = _guarded(b, lanes, x, source, 64)
        return bits if to.bits == 64 else b.trunc(bits, lanes.type(_I32))
    bits = _guarded(b, lanes, x, source, 32)
    return bits if to.bits == 32 else b.trunc(bits, lanes.type(ir.IntType(to.bits)))


def _guarded(b: ir.IRBuilder, lanes: _Lanes, x: ir.Value, source: DType, bits: int) -> ir.Value:
    """fptosi where in range, else the minimum integer."""
    element = _float(source)
    low = -(2.0 ** (bits - 1))
    if bits == 32 and source is dtypes.float64:
        above = b.fcmp_ordered(">", x, lanes.const(element, low - 1))
    else:
        above = b.fcmp_ordered(">=", x, lanes.const(element, low))
    inside = b.and_(above, b.fcmp_ordered("<", x, lanes.const(element, -low)))
    safe = b.select(inside, x, lanes.const(element, 0.0))
    kind = ir.IntType(bits)
    return b.select(inside, b.fptosi(safe, lanes.type(kind)), lanes.const(kind, -(2 ** (bits - 1))))


def _to_odd(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """float64 to float32, rounded to odd, so that a second rounding is as good as one."""
    lanes = _Lanes(b, x)
    near = b.fptrunc(x, lanes.type(_F32))
    back = b.fpext(near, lanes.type(_F64))
    bits = b.bitcast(near, lanes.type(_I32))
    size, back_size = (
        b.and_(b.bitcast(v, lanes.type(_I64)), lanes.const(_I64, 2**63 - 1)) for v in (x, back)
    )
    away = b.icmp_unsigned(">", back_size, size)
    number = b.fcmp_ordered("ord", x, x)
    inexact = b.and_(number, b.icmp_unsigned("!=", back_size, size))
    one, zero = lanes.const(_I32, 1), lanes.const(_I32, 0)
    bits = b.sub(bits, b.select(b.and_(inexact, away), one, zero))
    bits = b.or_(bits, b.select(inexact, one, zero))
    return b.bitcast(bits, lanes.type(_F32))


def widen(b: ir.IRBuilder, target: Target, bits: ir.Value, dtype: DType) -> ir.Value:
    """float32 of the bits of a half; exact."""
    lanes = _Lanes(b, bits)
    if dtype is dtypes.bfloat16:
        wide = b.shl(b.zext(bits, lanes.type(_I32)), lanes.const(_I32, 16))
        return b.bitcast(wide, lanes.type(_F32))
    if target.has_half:
        return b.fpext(b.bitcast(bits, lanes.type(ir.HalfType())), lanes.type(_F32))
    wide = b.zext(bits, lanes.type(_I32))
    size = b.and_(wide, lanes.const(_I32, 0x7FFF))
    sign = b.shl(b.and_(wide, lanes.const(_I32, 0x8000)), lanes.const(_I32, 16))
    # Exponent and fraction in place, 112 too small; the product by 2^112 also mends subnormals.
    small = b.bitcast(b.shl(size, lanes.const(_I32, 13)), lanes.type(_F32))
    scaled = b.bitcast(b.fmul(small, lanes.const(_F32, 2.0**112)), lanes.type(_I32))
    special = b.or_(b.shl(size, lanes.const(_I32, 13)), lanes.const(_I32, 0x7F800000))
    finite = b.icmp_unsigned("<", size, lanes.const(_I32, 0x7C00))
    return b.bitcast(b.or_(b.select(finite, scaled, special), sign), lanes.type(_F32))


def _apart(b: ir.IRBuilder, lanes: _Lanes, x: ir.Value) -> ir.Value:
    """x, float32, which LLVM may not join with what made it: where it knows that a rounding from
    float64 is exact, it makes one of that and the next, for which processors have no instruction.
    """
    name = f"llvm.arithmetic.fence.{'' if lanes.n == 1 else f'v{lanes.n}'}f32"
    fence = b.module.globals.get(name)
    if fence is None:
        fence = ir.Function(b.module, ir.FunctionType(x.type, [x.type]), name)
    return b.call(fence, [x])


def narrow(b: ir.IRBuilder, target: Target, x: ir.Value, dtype: DType) -> ir.Value:
    """The bits of float32 x rounded to a half."""
    lanes = _Lanes(b, x)
    if dtype is dtypes.float16 and target.has_half:
        if isinstance(x, ir.CastInstr) and x.opname == "fptrunc":
            x = _apart(b, lanes, x)
        return b.bitcast(b.fptrunc(x, lanes.type(ir.HalfType())), lanes.type(_I16))
    bits = b.bitcast(x, lanes.type(_I32))
    nan = b.fcmp_unordered("uno", x, x)
    if dtype is dtypes.bfloat16:
        lsb = b.and_(b.lshr(bits, lanes.const(_I32, 16)), lanes.const(_I32, 1))
        near = b.add(bits, b.add(lsb, lanes.const(_I32, 0x7FFF)))
        quiet = b.or_(bits, lanes.const(_I32, 0x400000))
        chosen = b.lshr(b.select(nan, quiet, near), lanes.const(_I32, 16))
        return b.trunc(chosen, lanes.type(_I16))
    size = b.and_(bits, lanes.const(_I32, 0x7FFFFFFF))
    sign = b.lshr(b.and_(bits, lanes.const(_I32, -(2**31))), lanes.const(_I32, 16))
    # Normal: round the 13 bits that go, carry into the exponent, rebias by 112.
    lsb = b.and_(b.lshr(size, lanes.const(_I32, 13)), lanes.const(_I32, 1))
    near = b.add(size, b.add(lsb, lanes.const(_I32, 0xFFF)))
    normal = b.lshr(b.sub(near, lanes.const(_I32, 112 << 23)), lanes.const(_I32, 13))
    # Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
    shifted = b.fadd(b.bitcast(size, lanes.type(_F32)), lanes.const(_F32, 0.5))
    below = b.sub(b.bitcast(shifted, lanes.type(_I32)), lanes.const(_I32, 0x3F000000))
    finite = b.select(b.icmp_unsigned("<", size, lanes.const(_I32, 113 << 23)), below, normal)
    infinite = b.select(nan, lanes.const(_I32, 0x7E00), lanes.const(_I32, 0x7C00))
    large = b.icmp_unsigned(">=", size, lanes.const(_I32, 0x477FF000))  # rounds past 65504
    chosen = b.or_(b.select(large, infinite, finite), sign)
    return b.trunc(chosen, lanes.type(_I16))


def parts_of(b: ir.IRBuilder, target: Target, x: ir.Value, count: int) -> list[ir.Value]:
    """The bits of one or two bfloat16 whose sum is nearly float32 x: the nearest one, and the one
    that is nearest to what is left; of numbers whose nearest one is infinite, those towards zero.
    Numbers below the normal range are 0. Of an infinity, or of no number, the first part alone
    means something."""
    lanes = _Lanes(b, x)
    words = lanes.type(_I32)
    size = b.and_(b.bitcast(x, words), lanes.const(_I32, 0x7FFFFFFF))
    least = lanes.const(_I32, 0x7F7F8000)  # from here to infinity
    over = b.icmp_unsigned("<", b.sub(size, least), lanes.const(_I32, 0x8000))

    def rounded(x: ir.Value) -> ir.Value:
        bits = b.lshr(b.bitcast(x, words), lanes.const(_I32, 16))
        return b.select(over, b.trunc(bits, lanes.type(_I16)), _nearest_bfloat(b, target, x))

    high = rounded(x)
    if count == 1:
        return [high]
    return [high, rounded(b.fsub(x, widen(b, target, high, dtypes.bfloat16)))]


def _nearest_bfloat(b: ir.IRBuilder, target: Target, x: ir.Value) -> ir.Value:
    """The bits of the nearest bfloat16 to float32 x, or a zero for numbers below the normal range:
    what vcvtneps2bf16 gives."""
    lanes = _Lanes(b, x)
    if target.has_bfloat_dot and lanes.n == _WIDE:
        name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
        function = b.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(lanes.type(BFloat()), [x.type])
            function = ir.Function(b.module, kind, name)
        return b.bitcast(b.call(function, [x]), lanes.type(_I16))
    bits = b.bitcast(x, lanes.type(_I32))
    size = b.and_(bits, lanes.const(_I32, 0x7FFFFFFF))
    sign = b.and_(bits, lanes.const(_I32, -(2**31)))
    small = b.icmp_unsigned("<", size, lanes.const(_I32, 0x00800000))
    flushed = b.bitcast(b.select(small, sign, bits), x.type)
    return narrow(b, target, flushed, dtypes.bfloat16)
