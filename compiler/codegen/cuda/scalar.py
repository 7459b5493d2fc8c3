"""One scalar operation of the loop language as Python text that Numba compiles.

Owns the meaning of every op and dtype on the GPU (`Scalar`); it knows no loops and no memory. Math
goes to libdevice, by its own names; everything else that is more than an operator is a function of
`device.py`. Values in registers: bool is a boolean, float16 and bfloat16 are float32 numbers that
are rounded after every operation, an INDEX is a Python int (in Numba: int64).

Numba promotes the sum of two int32 to int64, so results of integer ops are converted back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jitgrad.compiler.loops import (
    ARITHMETIC,
    COMPARE,
    INDEX,
    MATH,
    Expr,
)
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.errors import CompileError, InternalError

HALVES = (dtypes.float16, dtypes.bfloat16)
CONVERT = {
    "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64", "index": "i64", "float16": "f32", "bfloat16": "f32", "float32": "f32",
    "float64": "f64", "complex64": "c64", "complex128": "c128", "bool": "bool",
}  # fmt: skip
"""The function that makes a value of a dtype in a register."""

_LIBDEVICE = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan", "atan2": "atan2", "sinh": "sinh", "cosh": "cosh",
    "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf",
    "erfc": "erfc", "erfcx": "erfcx", "pow": "pow", "rsqrt": "rsqrt", "floor": "floor",
    "ceil": "ceil", "trunc": "trunc", "rint": "rint", "copysign": "copysign", "fma": "fma",
}  # fmt: skip
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "ne": "!=",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>", "floordiv": "//", "mod": "%",
}  # fmt: skip
_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and", "or": "or", "and": "and"}
_BOOL |= {"xor": "!=", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "sub": "!="}


def memory_name(dtype: DType) -> str:
    """The dtype of an array's elements as kernels see them: NumPy's name for it."""
    return {"bool": "uint8", "bfloat16": "uint16"}.get(dtype.name, dtype.name)


def element(text: str, dtype: DType) -> str:
    """`stored`, of the very type of an element of memory."""
    found = stored(text, dtype)
    return found if found != text else f"{CONVERT[dtype.name]}({text})"


def constant(value: complex, dtype: DType) -> str:
    """A number of the dtype."""
    if dtype is INDEX:
        return str(int(value.real))
    if dtype is dtypes.bool_:
        return str(bool(value))
    if dtype.is_complex:
        z = complex(value)
        return f"{CONVERT[dtype.name]}(complex({_float(z.real)}, {_float(z.imag)}))"
    if dtype.is_floating_point:
        number = float(value.real)
        if dtype in HALVES:
            number = float(dtype.np.type(number))
        return f"{CONVERT[dtype.name]}({_float(number)})"
    return f"{CONVERT[dtype.name]}({int(value.real)})"


def _float(x: float) -> str:
    if math.isfinite(x):
        return repr(x)
    return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"


def rounded(text: str, dtype: DType) -> str:
    """A float32 rounded to a half."""
    return f"{'round_f16' if dtype is dtypes.float16 else 'round_bf16'}({text})"


def loaded(text: str, dtype: DType) -> str:
    """What an element of memory is in a register."""
    if dtype is dtypes.bool_:
        return f"({text} != 0)"
    if dtype is dtypes.float16:
        return f"f32({text})"
    return f"from_bf16({text})" if dtype is dtypes.bfloat16 else text


def stored(text: str, dtype: DType) -> str:
    """What a register's value is in memory."""
    if dtype is dtypes.bool_:
        return f"u8({text})"
    if dtype is dtypes.float16:
        return f"f16({text})"
    return f"to_bf16({text})" if dtype is dtypes.bfloat16 else text


def apply(e: Expr, args: Sequence[str]) -> str:
    """The text of e's op on the texts of its arguments, each a name, a call or in parentheses."""
    op = e.op
    if op == "cast":
        return cast(args[0], e.args[0].dtype, e.dtype)
    if op == "bitcast":
        return _bitcast(args[0], e.args[0].dtype, e.dtype)
    if op == "select":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if op in COMPARE:
        return f"({args[0]} {_SYMBOLS[op]} {args[1]})"
    if op in MATH or op in ARITHMETIC:
        return arithmetic(op, e.dtype, args)
    raise InternalError(f"op {op} of {e.dtype.name} reached code generation")


def arithmetic(op: str, dtype: DType, args: Sequence[str]) -> str:
    """An op of loops.ARITHMETIC or MATH on values of `dtype`."""
    if dtype in HALVES:
        text = _of_floats(op, "f", args)
        return text if op in ("neg", "abs", "copysign", "min", "max") else rounded(text, dtype)
    if dtype.is_floating_point:
        return _of_floats(op, "f" if dtype is dtypes.float32 else "", args)
    if dtype.is_complex:
        raise CompileError(f"complex numbers ({op} of {dtype.name}) are not compiled")
    return _of_integers(op, dtype, args)


def _of_floats(op: str, suffix: str, args: Sequence[str]) -> str:
    if op in ("add", "sub", "mul", "div"):
        return f"({args[0]} {_SYMBOLS[op]} {args[1]})"
    if op == "neg":
        return f"(-{args[0]})"
    if op == "abs":
        return f"abs({args[0]})"
    if op in ("min", "max"):
        return f"{op}imum({args[0]}, {args[1]})"
    if op == "sqrt":
        return f"libdevice.{'fsqrt_rn' if suffix else 'dsqrt_rn'}({args[0]})"
    if op == "sigmoid":
        return f"sigmoid{suffix}({args[0]})"
    return f"libdevice.{_LIBDEVICE[op]}{suffix}({', '.join(args)})"


def _of_integers(op: str, dtype: DType, args: Sequence[str]) -> str:
    index = dtype is INDEX
    if dtype is dtypes.bool_:
        if op == "not":
            return f"(not {args[0]})"
        if op in ("neg", "abs", "floor", "ceil", "trunc", "rint"):
            return args[0]
        return f"({args[0]} {_BOOL[op]} {args[1]})"
    if op in ("floor", "ceil", "trunc", "rint"):
        return args[0]
    if op in ("div", "floordiv", "mod") and not index:
        text = f"{'div_trunc' if op == 'div' else op}({args[0]}, {args[1]})"
    elif op in ("neg", "not"):
        text = f"({'-' if op == 'neg' else '~'}{args[0]})"
    elif op == "abs":
        text = f"abs({args[0]})" if dtype.signed else args[0]
    elif op in ("min", "max"):
        return f"{op}({args[0]}, {args[1]})"
    else:
        text = f"({args[0]} {_SYMBOLS[op]} {args[1]})"
    return text if index else f"{CONVERT[dtype.name]}({text})"


def cast(text: str, source: DType, to: DType) -> str:
    """A value of `source` converted to `to` (docs/numerics.md, Casts)."""
    if source is to:
        return text
    if source.is_complex or to.is_complex:
        raise CompileError(f"a cast of {source.name} to {to.name} is not compiled")
    if to in HALVES:
        if source is dtypes.float64:
            return f"{'round_f16_f64' if to is dtypes.float16 else 'round_bf16_f64'}({text})"
        return rounded(text if source in HALVES else cast(text, source, dtypes.float32), to)
    if source in HALVES:
        source = dtypes.float32
        if to is source:
            return text
    if to is dtypes.bool_:
        zero = constant(0, source)
        return f"({text} != {zero})"
    if source.is_floating_point and not to.is_floating_point:
        if to is dtypes.uint64:
            return f"float_to_u64({text})"
        if to.bits == 64 or to is dtypes.uint32:
            wide = f"float_to_i64({text})"
        else:
            wide = f"float_to_i32({text})"
        name = CONVERT[to.name]
        return wide if wide.startswith(f"float_to_{name}(") else f"{name}({wide})"
    return f"{CONVERT[to.name]}({text})"


def _bitcast(text: str, source: DType, to: DType) -> str:
    if source.is_complex or to.is_complex:
        raise CompileError(f"a bitcast of {source.name} to {to.name} is not compiled")
    if source in HALVES:
        text = f"bits_of_{'f16' if source is dtypes.float16 else 'bf16'}({text})"
        return text if to in HALVES and source is to else f"{CONVERT[to.name]}({text})"
    if to in HALVES:
        return f"{'f16' if to is dtypes.float16 else 'bf16'}_of_bits(u16({text}))"
    if dtypes.bool_ in (source, to):
        return cast(text, source, to)
    if not source.is_floating_point and not to.is_floating_point:
        return f"{CONVERT[to.name]}({text})"
    return f"{text}.view(np.{to.name})"
