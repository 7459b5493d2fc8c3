"""finfo and iinfo: the limits of dtypes."""

from __future__ import annotations

from jitgrad.runtime.dtypes import DType, of_python
from jitgrad.state import defaults

_FLOATS = {
    # dtype: (bits of the fraction, largest exponent)
    "float16": (10, 15),
    "bfloat16": (7, 127),
    "float32": (23, 127),
    "float64": (52, 1023),
}
_BYTES = {
    # dtype: eps, largest number, smallest one with full precision
    "float8_e4m3fn": (0.125, 448.0, 2.0**-6),
    "float8_e5m2": (0.25, 57344.0, 2.0**-14),
    "float8_e4m3fnuz": (0.125, 240.0, 2.0**-7),
    "float8_e5m2fnuz": (0.125, 57344.0, 2.0**-15),
    "float8_e8m0fnu": (1.0, 2.0**127, 2.0**-127),
}


class finfo:
    """Limits of a floating dtype (the default one if none is named; a complex one's parts').

    Attributes: bits, eps, max, min, tiny (smallest_normal), smallest_normal, resolution, dtype.
    """

    def __init__(self, type: DType | None = None) -> None:
        dtype = (defaults.dtype if type is None else of_python(type)).to_real()
        if not dtype.is_floating_point:
            raise TypeError(f"torch.finfo() requires a floating point input type; got {dtype}")
        self.dtype = dtype.name
        self.bits = dtype.bits
        if dtype.name in _BYTES:
            self.eps, self.max, self.tiny = _BYTES[dtype.name]
            self.smallest_normal = self.tiny
            self.min = self.tiny if dtype.name == "float8_e8m0fnu" else -self.max
            self.resolution = 1.0
            return
        fraction, exponent = _FLOATS[dtype.name]
        self.eps = 2.0**-fraction
        self.max = (2 - 2.0**-fraction) * 2.0**exponent
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0 ** (1 - exponent)
        digits = {"float16": 3, "bfloat16": 2, "float32": 6, "float64": 15}[dtype.name]
        self.resolution = 10.0**-digits

    def __repr__(self) -> str:
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, "
            f"eps={self.eps:g}, smallest_normal={self.tiny:g}, tiny={self.tiny:g}, "
            f"dtype={self.dtype})"
        )


class iinfo:
    """Limits of an integer dtype. Attributes: bits, max, min, dtype."""

    def __init__(self, type: DType) -> None:
        type = of_python(type)
        if not type.is_integer:
            raise TypeError(f"torch.iinfo() requires an integer input type; got {type}")
        self.dtype = type.name
        self.bits = type.bits
        self.max = 2 ** (type.bits - type.signed) - 1
        self.min = -(2 ** (type.bits - 1)) if type.signed else 0

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
