"""x * 2^n of floats as LLVM instructions, n a whole number held in a float, rounded once.

One instruction where the target has it (AVX-512's scalef); else two products with powers of two,
made from the bits of n: the first is exact, so both forms give the same bits.
"""

from __future__ import annotations

import llvmlite.ir as ir

from jitgrad.compiler.codegen import convert
from jitgrad.compiler.codegen.code import I32, I64, lanes, undefined
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


def scale(b: ir.IRBuilder, target: Target, dtype: DType, x: ir.Value, n: ir.Value) -> ir.Value:
    """x * 2^n, |n| at most twice the largest exponent of a normal number."""
    width = x.type.count if isinstance(x.type, ir.VectorType) else 1
    if not target.has_scale:
        return _by_products(b, dtype, x, n, width)
    least, most = 16 // dtype.itemsize, 64 // dtype.itemsize
    room = least
    while room < min(width, most):
        room *= 2
    if width < room:
        pads = [k if k < width else 0 for k in range(room)]
        return _part(b, _instruction(b, dtype, _part(b, x, pads), _part(b, n, pads)), width)
    if width == room:
        return _instruction(b, dtype, x, n)
    whole = undefined(x.type)
    for start in range(0, width, most):
        part = list(range(start, min(start + most, width)))
        n_part, x_part = _part(b, n, part), _part(b, x, part)
        done = scale(b, target, dtype, x_part, n_part)
        spread = [k - start if k in part else 0 for k in range(width)]
        chosen = [width + k if k in part else k for k in range(width)]
        whole = b.shuffle_vector(whole, _part(b, done, spread), lanes(tuple(chosen)))
    return whole


def _part(b: ir.IRBuilder, x: ir.Value, numbers: list[int] | int) -> ir.Value:
    """The lanes of x with these numbers (or so many from the first on); of a scalar, copies."""
    if numbers == 1:
        return b.extract_element(x, ir.Constant(I32, 0))
    if isinstance(numbers, int):
        numbers = list(range(numbers))
    if not isinstance(x.type, ir.VectorType):
        x = b.insert_element(undefined(ir.VectorType(x.type, len(numbers))), x, I32(0))
    return b.shuffle_vector(x, undefined(x.type), lanes(tuple(numbers)))


def _instruction(b: ir.IRBuilder, dtype: DType, x: ir.Value, n: ir.Value) -> ir.Value:
    """vscalefps or vscalefpd of a whole register."""
    kind = x.type
    bits = 8 * dtype.itemsize * kind.count
    mask = ir.IntType(max(8, kind.count))
    name = f"llvm.x86.avx512.mask.scalef.p{'s' if dtype is dtypes.float32 else 'd'}.{bits}"
    extra = [I32] if bits == 512 else []
    f = b.module.globals.get(name) or ir.Function(
        b.module, ir.FunctionType(kind, [kind, kind, kind, mask, *extra]), name
    )
    current = [I32(4)] if extra else []  # the rounding mode in force
    return b.call(f, [x, n, ir.Constant(kind, None), mask(-1), *current])


def _by_products(b: ir.IRBuilder, dtype: DType, x: ir.Value, n: ir.Value, width: int) -> ir.Value:
    single = dtype is dtypes.float32
    word, fraction, bias = (I32, 23, 127) if single else (I64, 52, 1023)
    kind = word if width == 1 else ir.VectorType(word, width)

    def number(value: float) -> ir.Value:
        return convert.splat(
            ir.Constant(ir.FloatType() if single else ir.DoubleType(), value), width
        )

    def whole(value: int) -> ir.Value:
        return convert.splat(ir.Constant(word, value), width)

    def integer(v: ir.Value) -> ir.Value:
        """The integer next to a float: adding `big` makes its last place 1."""
        big = 1.5 * 2.0**fraction
        bits = b.bitcast(b.fadd(v, number(big)), kind)
        return b.sub(bits, whole(0x4B400000 if single else 0x4338000000000000))

    def power(k: ir.Value) -> ir.Value:
        return b.bitcast(b.shl(b.add(k, whole(bias)), whole(fraction)), x.type)

    half = integer(b.fmul(n, number(0.5)))
    return b.fmul(b.fmul(x, power(half)), power(b.sub(integer(n), half)))
