"""Type promotion: which dtype the operands of an op have, by PyTorch's rules.

Owns how tensors with dimensions, 0-d tensors and Python numbers take part (they have a say in that
order, unless a later one is of a higher category: bool < integer < float < complex), and turns
numbers into 0-d tensors. The lattice of dtypes itself is runtime/dtypes.py.

Source of the rules: PyTorch's documentation, "Tensor Attributes", and torch.result_type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.dispatch import apply, full
from jitgrad.hostscalar import HostScalar, is_lifted, is_told
from jitgrad.info import finfo
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.state import defaults, state
from jitgrad.tensor import Tensor, static_type, wrap

_FLOAT = Category.FLOAT
NUMBERS = (int, float, complex, HostScalar, Sym, np.generic)
Number = Any


def _number_dtype(value: Any) -> DType:
    """The dtype that stands for a Python number; its category is what counts."""
    if isinstance(value, (bool, np.bool_)):
        return dtypes.bool_
    if isinstance(value, (int, Sym, np.integer)):
        return dtypes.int64
    if isinstance(value, (float, HostScalar, np.floating)):
        return defaults.dtype
    if not isinstance(value, NUMBERS):
        raise TypeError(
            f"expected a Tensor or a number; got {type(value).__name__} "
            f"{value!r:.60}; convert it with jitgrad.tensor(...)"
        )
    return dtypes.complex128 if defaults.dtype is dtypes.float64 else dtypes.complex64


def result_type(*operands: Any) -> DType:
    """The dtype of an arithmetic op on these tensors and numbers (torch.result_type)."""
    dims = zeros = numbers = None
    for x in operands:
        if isinstance(x, Tensor):
            dtype = x._type.dtype
            # A lifted host number is a 0-d tensor that ranks as a number.
            if x._type.shape:
                dims = dtype if dims is None else dtypes.promote(dims, dtype)
            else:
                zeros = dtype if zeros is None else dtypes.promote(zeros, dtype)
        else:
            dtype = _number_dtype(x)
            numbers = dtype if numbers is None else dtypes.promote(numbers, dtype)
    return _combine(_combine(dims, zeros), numbers)


def _combine(high: DType | None, low: DType | None) -> Any:
    """`low` has a say only if its category is higher (a weak complex keeps high's precision)."""
    if high is None or low is None:
        return high or low
    if low.category > high.category:
        if low.category is Category.COMPLEX and high.category is Category.FLOAT:
            return dtypes.complex128 if high is dtypes.float64 else dtypes.complex64
        return low
    return high


def promote_types(type1: DType, type2: DType) -> DType:
    """The dtype that tensors (with dimensions) of two dtypes are converted to."""
    type1, type2 = dtypes.of_python(type1), dtypes.of_python(type2)
    for x in (type1, type2):
        if not isinstance(x, DType):
            raise TypeError(f"promote_types(): expected dtypes; got {type(x).__name__}")
    return dtypes.promote(type1, type2)


def can_cast(from_: DType, to: DType) -> bool:
    """Whether an in-place op may turn a result of one dtype into another (never to a lower
    category)."""
    from_, to = dtypes.of_python(from_), dtypes.of_python(to)
    return bool(from_.category <= to.category)


def floating(dtype: DType) -> DType:
    """The dtype itself if floating or complex, else the default dtype."""
    return dtype if dtype.category >= Category.FLOAT else defaults.dtype


def cast(x: Tensor, dtype: DType) -> Tensor:
    """x in this dtype: x itself where it has it already."""
    if x._type.dtype is dtype:
        return x
    return apply(OPS["cast"], (x,), {"dtype": dtype})


_constants: dict[Any, Tensor] = {}


def check_number(value: Any, dtype: DType) -> None:
    """Raises RuntimeError for a number that the integer dtype cannot hold. Of a lifted number, the
    recorded function depends on its being in range."""
    if dtype.category is not Category.INT or isinstance(value, bool):
        return
    floating = isinstance(value.value if is_lifted(value) else value, float)
    if is_lifted(value) and (not is_told(value) or (not floating and dtype.bits == 64)):
        return  # made of sizes; or an element of a tensor of ints, all of which fit
    low = -(2 ** (dtype.bits - 1)) if dtype.signed else -(2**dtype.bits) + 1
    if floating and not dtype.signed:  # of these, ints below 0 wrap
        low = 0
    high = 2 ** (dtype.bits - 1) - 1 if dtype.signed else 2**dtype.bits - 1
    if value != value or not low <= value <= high:
        raise RuntimeError(
            f"value cannot be converted to type {dtype.name} without overflow; got {value}; use a "
            "tensor of a wider dtype"
        )


def plain_number(value: Any, dtype: DType) -> Any:
    """A Python number as `dtype` holds it: bool, int (wrapped if unsigned), float (or lifted)
    or complex. Raises RuntimeError for what it cannot hold: integers out of range, and complex
    numbers with an imaginary part in a real dtype."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bytes)):
        raise TypeError(f"expected a Tensor or a number; got {type(value).__name__} {value!r}")
    if is_lifted(value) and dtype.category >= Category.FLOAT:
        return value
    _expect_64_bits(value)
    if isinstance(value, complex) and dtype.category in (Category.INT, Category.FLOAT):
        if value.imag:
            raise RuntimeError(
                f"value cannot be converted to type {dtype.name} without overflow; got {value}; "
                "use a complex dtype"
            )
        value = value.real
    if dtype.category is Category.INT:
        check_number(value, dtype)
        value = int(value)
        return value % (2**dtype.bits) if not dtype.signed else value
    if dtype.category is Category.BOOL:
        return bool(value)
    if dtype.category is Category.FLOAT:
        return float(value)
    return complex(value)


def _expect_64_bits(value: Any) -> None:
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise OverflowError(f"int too big to convert: expected one of 64 bits; got {value}")


def expect_fits(value: Any, dtype: DType, halves: bool = True) -> None:
    """Raises RuntimeError for a number that overflows in a tensor of this dtype, as PyTorch does
    where numbers are stored (arithmetic gives inf). Infinite ones fit into floats. halves: float16
    and bfloat16 count; not where PyTorch assigns (x[0] = value, where)."""
    _expect_64_bits(value)
    kind = dtype.category
    if kind is Category.BOOL or isinstance(value, Sym):
        return
    if is_lifted(value) and (
        kind is Category.INT or value.seen or dtype.bits == 64 or not is_told(value)
    ):
        return  # `constant` asks for ints; what item() gave is not looked at for this
    if kind is Category.INT:
        if isinstance(value, float):
            check_number(value, dtype)
        return
    if dtype.bits == 16 and not halves:
        return
    largest = finfo(dtype).max
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    if any(largest < abs(x) != math.inf for x in parts):
        raise RuntimeError(
            f"value cannot be converted to type {dtype.name} without overflow; got {value}; use "
            "inf, or a wider dtype"
        )


def stored(value: Any, dtype: DType, halves: bool = True) -> Tensor:
    """A number that is stored as it is, as a 0-d tensor. Raises RuntimeError for one that does not
    fit (expect_fits)."""
    expect_fits(value, dtype, halves)
    if dtype.is_integer and isinstance(value, float) and not is_lifted(value):
        value = int(value)
    return constant(value, dtype)


def constant(value: Any, dtype: DType) -> Tensor:
    """A Python number (or lifted host number) as a 0-d tensor of `dtype`."""
    if isinstance(value, HostScalar):
        check_number(value, dtype)
        return cast(value.lift(), dtype)
    if isinstance(value, Sym):
        if dtype.is_floating_point or (
            dtype.category is Category.INT and (dtype.signed or value >= 0)
        ):
            check_number(value, dtype)
            return full((), value, dtype)
        value = operator.index(value)
    modes = state.__dict__
    if (modes["recorder"] is not None or modes["abstract"]) and modes["lazy"] is None:
        return full((), plain_number(value, dtype), dtype)
    # 0.0 and -0.0 are equal keys, so zeros are told apart by their text.
    key = (value or repr(value), type(value), dtype)
    found = _constants.get(key)
    if found is None:
        value = plain_number(value, dtype)
        with np.errstate(all="ignore"):
            array = np.array(value).astype(dtype.np)
        array.flags.writeable = False
        found = wrap(array, static_type((), dtype))
        if len(_constants) >= 1024:
            _constants.clear()
        _constants[key] = found
    return found


def to_operand(x: Any, dtype: DType) -> Tensor:
    """A tensor or number as an operand of this dtype."""
    return cast(x, dtype) if isinstance(x, Tensor) else constant(x, dtype)


def wrapping_operand(x: Any, dtype: DType) -> Tensor:
    """A tensor or number as an operand of this dtype; integers wrap.

    Raises OverflowError for an integer beyond 64 bits."""
    if isinstance(x, Tensor):
        return cast(x, dtype)
    if dtype.category is Category.INT:
        if isinstance(x, Sym):
            return cast(constant(x, dtypes.int64), dtype)
        if isinstance(x, (int, np.integer)):
            return constant(_wrapped(int(x), dtype), dtype)
    return constant(x, dtype)


def _wrapped(value: int, dtype: DType) -> int:
    _expect_64_bits(value)
    value %= 2**dtype.bits
    return value - 2**dtype.bits if dtype.signed and value >= 2 ** (dtype.bits - 1) else value


def expect_operands(name: str, operands: Sequence[Any]) -> None:
    """Raises TypeError for an operand that is neither tensor nor number."""
    for x in operands:
        if not isinstance(x, (Tensor, *NUMBERS)):
            raise TypeError(
                f"[{name}] expected tensors or numbers; got {type(x).__name__}; convert it with "
                "jitgrad.tensor(...)"
            )


def operand_dtype(promotes: str, operands: Sequence[Any]) -> DType:
    """The dtype an elementwise record gets its operands in; `promotes` as the record says."""
    dtype = result_type(*operands)
    return floating(dtype) if promotes == "float" else dtype


def elementwise(op: Any, *operands: Any, **attrs: Any) -> Any:
    """Applies an elementwise record, its operands promoted first."""
    if len(operands) == 2:
        a, b = operands
        if isinstance(a, Tensor):
            dtype = a._type.dtype
            if isinstance(b, Tensor):
                if dtype is b._type.dtype and (op.promotes != "float" or dtype.category >= 2):
                    return apply(op, operands, attrs)
            elif dtype.category == _FLOAT and (type(b) is float or type(b) is int):
                return apply(op, (a, constant(b, dtype)), attrs)
        elif isinstance(b, Tensor) and (type(a) is float or type(a) is int):
            dtype = b._type.dtype
            if dtype.category == _FLOAT:
                return apply(op, (constant(a, dtype), b), attrs)
    elif len(operands) == 1 and isinstance(operands[0], Tensor):
        x = operands[0]
        if op.promotes == "float" and x._type.dtype.category < 2:
            x = cast(x, defaults.dtype)
        return apply(op, (x,), attrs)
    expect_operands(op.name, operands)
    dtype = operand_dtype(op.promotes, operands)
    return apply(op, tuple([wrapping_operand(x, dtype) for x in operands]), attrs)


Tensor._constant = staticmethod(constant)  # type: ignore[method-assign]
