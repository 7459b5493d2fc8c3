"""Window functions of signal processing: hann, hamming, blackman, bartlett, kaiser.

Each takes a length and gives that many weights; periodic (the default) drops the last point of a
symmetric window that is one longer.
"""

from __future__ import annotations

import math
from typing import Any

from jitgrad.creation import arange, ones
from jitgrad.functions.elementwise import generated
from jitgrad.making import makes
from jitgrad.promotion import cast
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.state import defaults
from jitgrad.tensor import Tensor


def _points(name: str, length: int, periodic: bool, dtype: DType | None) -> Tensor | None:
    """Positions in [0, 1] as float64; None for a window of one point or none."""
    dtype = dtypes.of_python(dtype)
    if dtype is not None and not dtype.is_floating_point:
        raise RuntimeError(f"{name} expects floating point dtypes; got {dtype}")
    if length < 0:
        raise RuntimeError(f"{name} requires non-negative window_length; got {length}")
    if length <= 1:
        return None
    return arange(length, dtype=dtypes.float64) / (length if periodic else length - 1)


def _finish(values: Tensor | None, length: int, dtype: DType | None, requires_grad: bool) -> Tensor:
    wanted = dtypes.of_python(dtype) or defaults.dtype
    out = ones(length, dtype=wanted) if values is None else cast(values, wanted)
    return out.requires_grad_() if requires_grad else out


def _cosines(x: Tensor, *weights: float) -> Tensor:
    """The sum of weights[k] * cos(2 pi k x)."""
    total: Any = weights[0]
    for k, w in enumerate(weights[1:], 1):
        total = generated["cos"](x * (2 * math.pi * k)) * w + total
    return total


@makes
def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """1/2 - 1/2 cos(2 pi n / N)."""
    x = _points("hann_window", window_length, periodic, dtype)
    return _finish(None if x is None else _cosines(x, 0.5, -0.5), window_length, dtype,
                   requires_grad)  # fmt: skip


@makes
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: DType | None = None, layout: Any = None, device: Any = None, pin_memory: bool = False,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """alpha - beta cos(2 pi n / N)."""
    x = _points("hamming_window", window_length, periodic, dtype)
    return _finish(None if x is None else _cosines(x, alpha, -beta), window_length, dtype,
                   requires_grad)  # fmt: skip


@makes
def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N), at least 0."""
    x = _points("blackman_window", window_length, periodic, dtype)
    values = None if x is None else _cosines(x, 0.42, -0.5, 0.08)
    return _finish(values, window_length, dtype, requires_grad)


@makes
def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, layout: Any = None,
    device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """A triangle: 1 - |2 n / N - 1|."""
    x = _points("bartlett_window", window_length, periodic, dtype)
    values = None if x is None else 1 - generated["abs"](x * 2 - 1)
    return _finish(values, window_length, dtype, requires_grad)


@makes
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None,
    layout: Any = None, device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """i0(beta sqrt(1 - (2 n / N - 1)^2)) / i0(beta)."""
    x = _points("kaiser_window", window_length, periodic, dtype)
    values = None
    if x is not None:
        inner = x * 2 - 1
        whole = generated["i0"](ones((), dtype=dtypes.float64) * beta)
        values = generated["i0"](generated["sqrt"](1 - inner * inner) * beta) / whole
    return _finish(values, window_length, dtype, requires_grad)
