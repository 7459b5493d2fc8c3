"""One scalar operation of the loop language as LLVM instructions, for one lane or a vector of them.

Owns the meaning of every op and dtype in machine terms (`Ops`); it knows no loops, no memory and
no index arithmetic (`scope.py`). No fast-math flag is ever set: a value does not depend on the
width it was computed with.

Values in registers: bool is i1; integers are iN; float16 and bfloat16 are their bits (i16),
converted to float32 and back around every operation, so that each op rounds to its dtype.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir

from jitgrad.compiler.codegen import convert, scale
from jitgrad.compiler.codegen.code import I1, I8, I64, vector_of
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.loops import (
    ARITHMETIC,
    COMPARE,
    INDEX,
    Expr,
    postorder,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import CompileError, InternalError

_REGISTER: dict[str, ir.Type] = {
    "bool": I1, "uint8": ir.IntType(8), "int8": ir.IntType(8), "int16": ir.IntType(16),
    "int32": ir.IntType(32), "int64": I64, "uint16": ir.IntType(16), "uint32": ir.IntType(32),
    "uint64": I64, "index": I64,
    "float16": ir.IntType(16), "bfloat16": ir.IntType(16),
    "float32": ir.FloatType(), "float64": ir.DoubleType(),
    "complex64": I64, "complex128": ir.IntType(128),  # moved, never computed with
}  # fmt: skip

HALVES = (dtypes.float16, dtypes.bfloat16)


def register_type(dtype: DType) -> ir.Type:
    """The LLVM type of a value in a register, one lane."""
    found = _REGISTER.get(dtype.name)
    if found is None:
        raise CompileError(f"dtype {dtype.name} is not compiled; it runs eagerly")
    return found


def constant(value: Any, dtype: DType, width: int = 1) -> ir.Constant:
    """A number of the dtype, in every lane."""
    if dtype in HALVES:
        value = convert.half_bits(float(value), dtype)
    elif dtype.is_complex:
        number = complex(value)
        parts = struct.pack("<2f" if dtype.itemsize == 8 else "<2d", number.real, number.imag)
        value = int.from_bytes(parts, "little")
    elif dtype is dtypes.float32:
        value = struct.unpack("f", struct.pack("f", value))[0] if abs(value) < 3.5e38 else value
    scalar = register_type(dtype)
    if isinstance(scalar, ir.IntType) and scalar.width > 1:
        value = int(value)
    return convert.splat(ir.Constant(scalar, value), width)


def width_of(value: ir.Value) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def memory_type(dtype: DType) -> ir.Type:
    """The LLVM type of a lane in the arrays that cold code reads and writes: bools are bytes."""
    return I8 if dtype is dtypes.bool_ else register_type(dtype)


def to_memory(b: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """A value (of any width) as it lies in cold code's arrays."""
    return b.zext(value, vector_of(I8, width_of(value))) if dtype is dtypes.bool_ else value


def from_memory(b: ir.IRBuilder, value: ir.Value, dtype: DType) -> ir.Value:
    """A value (of any width) from cold code's arrays."""
    if dtype is not dtypes.bool_:
        return value
    return b.icmp_unsigned("!=", value, ir.Constant(value.type, None))


class Ops:
    """Emits ops at wherever `builder` stands. All arguments of one op have the same width."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.builder: ir.IRBuilder = ir.IRBuilder()

    # -- entry ---------------------------------------------------------------------------------
    def apply(self, e: Expr, args: list[ir.Value]) -> ir.Value:
        """The value of e's op on the values of its arguments."""
        op = e.op
        if op == "cast":
            return convert.cast(self.builder, self.target, args[0], e.args[0].dtype, e.dtype)
        if op == "bitcast":
            to = vector_of(register_type(e.dtype), width_of(args[0]))
            return args[0] if to == args[0].type else self.builder.bitcast(args[0], to)
        if op == "select":
            return self.builder.select(args[0], args[1], args[2])
        if op in COMPARE:
            return self.compare(op, e.args[0].dtype, args)
        if op in ARITHMETIC:
            if e.dtype is INDEX and op in ("floordiv", "mod") and all(map(_not_negative, e.args)):
                return self._divide_index(op, e.args[1], *args)
            return self.arithmetic(op, e.dtype, args)
        raise InternalError(f"op {op} of {e.dtype.name} reached code generation")

    def arithmetic(self, op: str, dtype: DType, args: list[ir.Value]) -> ir.Value:
        """An op of loops.ARITHMETIC on values of `dtype`."""
        if dtype in HALVES:
            if op in ("neg", "abs", "copysign"):
                return self._half_sign(op, args)
            wide = [self.widen(a, dtype) for a in args]
            return self.narrow(self.arithmetic(op, dtypes.float32, wide), dtype)
        if dtype.is_floating_point:
            return self._float(op, dtype, args)
        return self._integer(op, dtype, args)

    def widen(self, value: ir.Value, dtype: DType) -> ir.Value:
        """float32 of a half."""
        return convert.widen(self.builder, self.target, value, dtype)

    def narrow(self, value: ir.Value, dtype: DType) -> ir.Value:
        """A half of a float32, to nearest even."""
        return convert.narrow(self.builder, self.target, value, dtype)

    def compare(self, op: str, dtype: DType, args: list[ir.Value]) -> ir.Value:
        a, b = args
        if dtype in HALVES:
            a, b = self.widen(a, dtype), self.widen(b, dtype)
        sign = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}[op]
        if dtype.is_floating_point:
            if op == "ne":
                return self.builder.fcmp_unordered(sign, a, b)
            return self.builder.fcmp_ordered(sign, a, b)
        if dtype.signed and dtype is not dtypes.bool_:
            return self.builder.icmp_signed(sign, a, b)
        return self.builder.icmp_unsigned(sign, a, b)

    # -- families ------------------------------------------------------------------------------
    def _half_sign(self, op: str, args: list[ir.Value]) -> ir.Value:
        b = self.builder
        sign = ir.Constant(ir.IntType(16), -0x8000)
        rest = ir.Constant(ir.IntType(16), 0x7FFF)
        width = width_of(args[0])
        if width > 1:
            sign, rest = convert.splat(sign, width), convert.splat(rest, width)
        if op == "neg":
            return b.xor(args[0], sign)
        size = b.and_(args[0], rest)
        return size if op == "abs" else b.or_(size, b.and_(args[1], sign))

    def _float(self, op: str, dtype: DType, args: list[ir.Value]) -> ir.Value:
        b = self.builder
        simple: dict[str, Callable[..., ir.Value]] = {
            "add": b.fadd, "sub": b.fsub, "mul": b.fmul, "div": b.fdiv,
        }  # fmt: skip
        if op in simple:
            return simple[op](*args)
        if op == "neg":
            return b.fneg(args[0])
        if op in ("abs", "sqrt", "copysign"):
            return self.intrinsic({"abs": "fabs"}.get(op, op), args)
        if op in ("min", "max"):
            x, y = args
            sign = "<" if op == "min" else ">"
            better = b.select(b.fcmp_ordered(sign, x, y), x, y)  # y where either is NaN
            return b.select(b.fcmp_unordered("uno", x, x), x, better)
        if op == "fma":
            if self.target.has_fma:
                return self.intrinsic("fma", args)
            return b.fadd(b.fmul(args[0], args[1]), args[2])
        if op == "ldexp":
            return scale.scale(b, self.target, dtype, *args)
        if op in ("floor", "ceil", "trunc", "rint"):
            if self.target.has_rounding:
                return self.intrinsic(op, args)
            return self._round(op, dtype, args[0])
        raise InternalError(f"{op} of {dtype.name}")

    def _round(self, op: str, dtype: DType, x: ir.Value) -> ir.Value:
        """Rounding to integers where there is no instruction: |x| + 2^p - 2^p, then corrected."""
        b, n = self.builder, width_of(x)
        big = constant(2.0**23 if dtype is dtypes.float32 else 2.0**52, dtype, n)
        size = self.intrinsic("fabs", [x])
        near = b.fsub(b.fadd(size, big), big)
        near = b.select(b.fcmp_ordered("<", size, big), near, size)
        one, zero = constant(1.0, dtype, n), constant(0.0, dtype, n)
        if op == "trunc":
            near = b.fsub(near, b.select(b.fcmp_ordered(">", near, size), one, zero))
        near = self.intrinsic("copysign", [near, x])
        if op == "floor":
            near = b.fsub(near, b.select(b.fcmp_ordered(">", near, x), one, zero))
        elif op == "ceil":
            near = b.fadd(near, b.select(b.fcmp_ordered("<", near, x), one, zero))
        near = self.intrinsic("copysign", [near, x])
        return b.select(b.fcmp_unordered("uno", x, x), x, near)

    def _integer(self, op: str, dtype: DType, args: list[ir.Value]) -> ir.Value:
        b = self.builder
        a = args[0]
        if dtype is dtypes.bool_:
            op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(op, op)
        shift = b.ashr if dtype.signed else b.lshr
        simple: dict[str, Callable[..., ir.Value]] = {
            "add": b.add, "sub": b.sub, "mul": b.mul, "and": b.and_, "or": b.or_, "xor": b.xor,
            "shl": b.shl, "shr": shift, "not": b.not_, "neg": b.neg,
        }  # fmt: skip
        if op in simple:
            return simple[op](*args)
        if op in ("floor", "ceil", "trunc", "rint") or (op == "abs" and not dtype.signed):
            return a
        if op == "abs":
            return b.select(b.icmp_signed("<", a, constant(0, dtype, width_of(a))), b.neg(a), a)
        if op in ("min", "max"):
            less = (b.icmp_signed if dtype.signed else b.icmp_unsigned)("<", *args)
            return b.select(less, *(args if op == "min" else args[::-1]))
        if op in ("div", "floordiv", "mod"):
            return self._divide(op, dtype, a, args[1])
        raise InternalError(f"{op} of {dtype.name}")

    def _divide_index(self, op: str, by: Expr, a: ir.Value, d: ir.Value) -> ir.Value:
        """Of what is not negative. A size may be 0 outside of the loops that it leaves no steps."""
        b, n = self.builder, width_of(a)
        if by.op != "const":
            none = b.icmp_unsigned("==", d, constant(0, INDEX, n))
            d = b.select(none, constant(1, INDEX, n), d)
        return b.udiv(a, d) if op == "floordiv" else b.urem(a, d)

    def _divide(self, op: str, dtype: DType, a: ir.Value, d: ir.Value) -> ir.Value:
        """Never traps: the divisors 0 (whose result the IR discards) and -1 divide by 1 instead."""
        b, n = self.builder, width_of(a)
        one, zero = constant(1, dtype, n), constant(0, dtype, n)
        if not dtype.signed:
            d = b.select(b.icmp_unsigned("==", d, zero), one, d)
            if n > 1 and dtype.bits <= 32:
                q = self._quotient(dtype, a, d)
                return b.sub(a, b.mul(q, d)) if op == "mod" else q
            return b.urem(a, d) if op == "mod" else b.udiv(a, d)
        minus = b.icmp_signed("==", d, constant(-1, dtype, n))
        safe = b.select(b.icmp_unsigned("<=", b.add(d, one), one), one, d)
        if n > 1 and dtype is not INDEX and dtype.bits <= 32:
            q = self._quotient(dtype, a, safe)
            r = b.sub(a, b.mul(q, safe))
        else:
            q, r = b.sdiv(a, safe), b.srem(a, safe)
        if op == "div":
            return b.select(minus, b.neg(a), q)
        off = b.and_(
            b.icmp_signed("!=", r, zero), b.icmp_signed("<", b.xor(r, safe), zero)
        )  # the signs of remainder and divisor differ
        if op == "mod":
            return b.select(off, b.add(r, safe), r)
        return b.select(minus, b.neg(a), b.select(off, b.sub(q, one), q))

    def _quotient(self, dtype: DType, a: ir.Value, d: ir.Value) -> ir.Value:
        """a / d toward zero, by vectors of floats: few processors divide vectors of integers.

        The ratio of integers below 2^16 is never nearer to the next integer than float32 can tell,
        nor that of integers below 2^32 for float64.
        """
        b, n = self.builder, width_of(a)
        small = dtype.bits < 32
        whole = vector_of(ir.IntType(32), n)
        real = vector_of(ir.FloatType() if small else ir.DoubleType(), n)
        if small:  # as signed 32-bit integers, whatever they are
            a, d = ((b.sext if dtype.signed else b.zext)(x, whole) for x in (a, d))
        plain = small or dtype.signed
        x, y = ((b.sitofp if plain else b.uitofp)(v, real) for v in (a, d))
        q = (b.fptosi if plain else b.fptoui)(b.fdiv(x, y), whole)
        return b.trunc(q, vector_of(register_type(dtype), n)) if small else q

    def intrinsic(self, name: str, args: list[ir.Value]) -> ir.Value:
        """A call of llvm.<name> on the type of its first argument."""
        kind = args[0].type
        module = self.builder.module
        full = f"llvm.{name}.{mangle(kind)}"
        function = module.globals.get(full)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * len(args)), full)
        return self.builder.call(function, args)


def mangle(kind: ir.Type) -> str:
    """A type as it appears in the name of an overloaded intrinsic."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{mangle(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {"float": "f32", "double": "f64", "half": "f16"}.get(str(kind), "p0")


_NOT_NEGATIVE_OPS = {"add", "mul", "floordiv", "mod", "min", "max"}


def _not_negative(e: Expr) -> bool:
    """True when an INDEX expression is proved not negative by its form."""
    known: dict[Expr, bool] = {}
    for s in postorder([e]):
        if s.op == "const":
            known[s] = s.dtype is INDEX and s.attr >= 0
        elif s.op in ("axis", "size", "check"):
            known[s] = True
        elif s.dtype is INDEX and s.op in _NOT_NEGATIVE_OPS:
            known[s] = all(known[a] for a in s.args)
        else:
            known[s] = False
    return known[e]
