"""ONNX's numbers of element types (TensorProto.DataType) and ours."""

from __future__ import annotations

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

NUMBERS: dict[str, int] = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14,
    "complex128": 15, "bfloat16": 16,
}  # fmt: skip
DTYPES: dict[int, DType] = {
    number: dtypes.bool_ if name == "bool" else getattr(dtypes, name)
    for name, number in NUMBERS.items()
    if hasattr(dtypes, "bool_" if name == "bool" else name)
}
TEXT: dict[str, str] = {
    "float32": "tensor(float)", "float64": "tensor(double)",
}  # fmt: skip


def number_of(dtype: DType) -> int:
    """ONNX's number of a dtype."""
    return NUMBERS[dtype.name]


def text_of(dtype: DType) -> str:
    """How ONNX's op schemas spell tensors of a dtype: "tensor(float)"."""
    return TEXT.get(dtype.name, f"tensor({dtype.name})")
