"""Element types: names, sizes, categories, NumPy forms, and PyTorch's promotion of dtypes.

Owns `DType` and the table of all dtypes. Promotion between dtypes is here; how Python scalars and
0-d tensors take part is the public layer's business (`jitgrad/promotion.py`).

Source of the promotion rules: PyTorch's documentation, "Tensor Attributes: torch.dtype".
"""

from __future__ import annotations

import builtins
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np


class Category(IntEnum):
    """What kind of number a dtype holds; promotion goes upwards."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    COMPLEX = 3


class DType:
    """An element type. There is one object per dtype: compare with `is` or `==`.

    Attributes: `name`, `itemsize` (bytes), `category`, `signed`, `bits`.
    """

    __slots__ = ("_np", "bits", "category", "itemsize", "name", "signed")

    def __init__(self, name: str, itemsize: int, category: Category, signed: bool = True) -> None:
        self.name = name
        self.itemsize = itemsize
        self.category = category
        self.signed = signed
        self.bits = itemsize * 8 if category is not Category.BOOL else 1
        self._np: np.dtype[Any] | None = None

    @property
    def np(self) -> np.dtype[Any]:
        """The NumPy dtype (bfloat16 comes from ml-dtypes, imported at first use)."""
        if self._np is None:
            if self in ABSENT:
                raise TypeError(
                    f"there are no tensors of {self} yet (docs/limits.md); use one of "
                    f"{', '.join(BY_NAME)}"
                )
            if self.name == "bfloat16":
                import ml_dtypes

                self._np = np.dtype(ml_dtypes.bfloat16)
            else:
                self._np = np.dtype(self.name)
            _from_numpy[self._np] = self
        return self._np

    @property
    def is_floating_point(self) -> bool:
        return self.category is Category.FLOAT

    @property
    def is_complex(self) -> bool:
        return self.category is Category.COMPLEX

    @property
    def is_signed(self) -> bool:
        return self.signed

    @property
    def is_integer(self) -> bool:
        """True for the integer dtypes; False for bool."""
        return self.category is Category.INT

    def to_real(self) -> DType:
        """The dtype of a complex dtype's parts; any other dtype itself."""
        if self.category is not Category.COMPLEX:
            return self
        return float32 if self.itemsize == 8 else float64

    def to_complex(self) -> DType:
        """The complex dtype whose parts are of this dtype (at least float32)."""
        if self.category is Category.COMPLEX:
            return self
        return complex128 if self is float64 else complex64

    def __repr__(self) -> str:
        return f"jitgrad.{self.name}"

    def __reduce__(self) -> str:
        return self.name


bool_ = DType("bool", 1, Category.BOOL, signed=False)
uint8 = DType("uint8", 1, Category.INT, signed=False)
int8 = DType("int8", 1, Category.INT)
int16 = DType("int16", 2, Category.INT)
int32 = DType("int32", 4, Category.INT)
int64 = DType("int64", 8, Category.INT)
uint16 = DType("uint16", 2, Category.INT, signed=False)
uint32 = DType("uint32", 4, Category.INT, signed=False)
uint64 = DType("uint64", 8, Category.INT, signed=False)
float16 = DType("float16", 2, Category.FLOAT)
bfloat16 = DType("bfloat16", 2, Category.FLOAT)
float32 = DType("float32", 4, Category.FLOAT)
float64 = DType("float64", 8, Category.FLOAT)
complex64 = DType("complex64", 8, Category.COMPLEX)
complex128 = DType("complex128", 16, Category.COMPLEX)

ALL: tuple[DType, ...] = (
    bool_, uint8, int8, int16, int32, int64, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
globals()["bool"] = bool_  # so that pickling by name finds it


# Dtypes of PyTorch's that no tensor has here: they can be named and compared.
float8_e4m3fn = DType("float8_e4m3fn", 1, Category.FLOAT)
float8_e5m2 = DType("float8_e5m2", 1, Category.FLOAT)
float8_e4m3fnuz = DType("float8_e4m3fnuz", 1, Category.FLOAT)
float8_e5m2fnuz = DType("float8_e5m2fnuz", 1, Category.FLOAT)
float8_e8m0fnu = DType("float8_e8m0fnu", 1, Category.FLOAT)
complex32 = DType("complex32", 4, Category.COMPLEX)
qint8 = DType("qint8", 1, Category.INT)
quint8 = DType("quint8", 1, Category.INT, signed=False)
qint32 = DType("qint32", 4, Category.INT)
ABSENT: tuple[DType, ...] = (
    float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
    complex32, qint8, quint8, qint32,
)  # fmt: skip

_OF_PYTHON: dict[Any, DType] = {
    builtins.bool: bool_, int: int64, float: float64, complex: complex128,
}  # fmt: skip


def of_python(x: Any) -> Any:
    """The dtype that a type of Python's numbers stands for; anything else itself."""
    return _OF_PYTHON.get(x, x) if type(x) is type else x


_from_numpy: dict[np.dtype[Any], DType] = {np.dtype(d.name): d for d in ALL if d.name != "bfloat16"}


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy dtype. Raises TypeError for one that jitgrad has not."""
    dt = np.dtype(dtype)
    found = _from_numpy.get(dt)
    if found is None:
        found = _from_numpy.get(dt.newbyteorder("=")) if dt.byteorder not in "=|" else None
        if dt.name == "bfloat16":
            found = bfloat16 if bfloat16.np == dt else None
    if found is None or dt.byteorder not in "=|":
        raise TypeError(
            f"NumPy dtype {dt} has no jitgrad dtype; convert the array first, "
            f"e.g. array.astype('float32'). Supported: {', '.join(BY_NAME)}"
        )
    return found


_FLOATS = (float16, bfloat16, float32, float64)


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype that both operands of a binary op are converted to (torch.promote_types)."""
    if a is b:
        return a
    if a.category > b.category:
        a, b = b, a
    if b.category <= Category.INT and not {a, b}.isdisjoint((uint16, uint32, uint64)):
        raise RuntimeError(
            f"[promote_types] expected integers of which none is uint16, uint32 or uint64; got {a} "
            f"and {b}, which have no common dtype; convert one of them with .to(dtype)"
        )
    if a.category < b.category:
        if b.category is Category.COMPLEX and a is float64:
            return complex128
        return b
    if a.category is Category.FLOAT:
        return float32 if {a, b} == {float16, bfloat16} else max(a, b, key=lambda d: d.itemsize)
    if a.category is Category.COMPLEX:
        return complex128
    # Integers: the wider wins; uint8 with int8 needs int16.
    return int16 if a.itemsize == b.itemsize else max(a, b, key=lambda d: d.itemsize)
