"""Discrete Fourier transforms: torch.fft's. The records are in compiler/ops/fourier.py.

float32, float64 and complex tensors (bools and integers become the default dtype). `n` or `s` trims
a dim or pads it with zeros first. norm: "backward" (None) divides inverse transforms by the number
of points, "forward" the others, "ortho" both by its square root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.creation import arange
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_tensor, one_axis
from jitgrad.functions.complex_numbers import conj
from jitgrad.functions.shape import roll
from jitgrad.promotion import cast, floating
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.tensor import Tensor

_MODES = ("forward", "ortho", "backward")


def _scale(norm: str | None, inverse: bool, points: int) -> float:
    if norm is not None and norm not in _MODES:
        raise RuntimeError(f'Invalid normalization mode: "{norm}"; expected one of {_MODES}')
    if norm == "ortho":
        return 1 / math.sqrt(points)
    return 1 / points if (norm == "forward") is not inverse else 1.0


def _flipped(norm: str | None) -> str | None:
    """What the other direction calls the same factors."""
    return {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)


def _input(name: str, x: Any) -> Tensor:
    x = expect_tensor(name, x)
    if x.dtype.itemsize == 2 and x.dtype.is_floating_point:
        raise RuntimeError(
            f"[{name}] Unsupported dtype {x.dtype}: expected float32, float64 or complex; got "
            f"{x._type}; convert it, e.g. with .float()"
        )
    return x if x.dtype.category >= Category.FLOAT else cast(x, floating(x.dtype))


def _as_complex(x: Tensor) -> Tensor:
    return cast(x, x.dtype.to_complex())


def _real(name: str, x: Any) -> Tensor:
    x = _input(name, x)
    if x.dtype.is_complex:
        raise RuntimeError(f"{name} expects a real input tensor, but got {x._type}")
    return x


def _sized(x: Tensor, axis: int, n: Any) -> Tensor:
    """x with n elements along an axis: the first ones, or zeros after them."""
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified; got {x._type}")
    size = int(x._type.shape[axis])
    if n < size:
        return x.narrow(axis, 0, n)
    if n > size:
        low = (0,) * x.ndim
        high = tuple(n - size if k == axis else 0 for k in range(x.ndim))
        return apply(OPS["pad"], (x,), {"low": low, "high": high, "interior": low, "value": 0})
    return x


def _axis(name: str, x: Tensor, dim: int) -> int:
    if x.ndim == 0:
        raise IndexError(f"[{name}] Dimension specified as {dim} but tensor has no dimensions")
    return one_axis(name, x.ndim, dim)


def _dims(name: str, x: Tensor, s: Any, dim: Any) -> tuple[list[int], list[int | None]]:
    """The axes of a transform of several dims, and the sizes asked for (None: as it is)."""
    if isinstance(dim, int):
        dim = (dim,)
    if isinstance(s, int):
        s = (s,)
    if dim is not None:
        axes = [one_axis(name, x.ndim, d) for d in dim]
        if len(set(axes)) != len(axes):
            raise RuntimeError(f"[{name}] FFT dims must be unique; got {tuple(dim)}")
        if s is not None and len(s) != len(axes):
            raise RuntimeError(
                f"[{name}] When given, dim and shape arguments must have the same length; got "
                f"{tuple(dim)} and {tuple(s)}"
            )
    elif s is not None:
        if len(s) > x.ndim:
            raise RuntimeError(
                f"[{name}] Got shape with {len(s)} values but input tensor only has {x.ndim} "
                "dimensions."
            )
        axes = list(range(x.ndim - len(s), x.ndim))
    else:
        axes = list(range(x.ndim))
    sizes: list[int | None] = (
        [None] * len(axes) if s is None else [None if n == -1 else n for n in s]
    )
    return axes, sizes


def _points(x: Tensor, axes: Sequence[int]) -> int:
    return math.prod(int(x._type.shape[k]) for k in axes)


def _complex_transform(
    name: str, x: Any, axes: Sequence[int], sizes: Sequence[int | None], norm: str | None,
    inverse: bool,
) -> Tensor:  # fmt: skip
    for k, n in zip(axes, sizes, strict=True):
        if n is not None:
            x = _sized(x, k, n)
    x = _as_complex(x)
    scale = _scale(norm, inverse, max(_points(x, axes), 1))
    attrs = {"axes": tuple(axes), "inverse": inverse, "scale": scale}
    return apply(OPS["fft"], (x,), attrs)


# -- one dim ---------------------------------------------------------------------------------------
def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """sum_j x_j exp(-2 pi i j k / n) along a dim; complex."""
    x = _input("fft", input)
    return _complex_transform("fft", x, [_axis("fft", x, dim)], [n], norm, False)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of fft."""
    x = _input("ifft", input)
    return _complex_transform("ifft", x, [_axis("ifft", x, dim)], [n], norm, True)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 points of fft, of a real tensor: the others are their conjugates."""
    x = _real("rfft", input)
    return _rfftn("rfft", x, [_axis("rfft", x, dim)], [n], norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of rfft: n real points (2 (size - 1) by default)."""
    x = _input("irfft", input)
    return _irfftn("irfft", x, [_axis("irfft", x, dim)], [n], norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """fft of n points: `input` has the first half, the others are their conjugates; real."""
    x = _input("hfft", input)
    return _irfftn("hfft", conj(x), [_axis("hfft", x, dim)], [n], _flipped(norm))


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of hfft: the first n // 2 + 1 points."""
    x = _real("ihfft", input)
    return conj(_rfftn("ihfft", x, [_axis("ihfft", x, dim)], [n], _flipped(norm)))


# -- several dims ----------------------------------------------------------------------------------
def fftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """fft along each of the dims (all by default)."""
    x = _input("fftn", input)
    return _complex_transform("fftn", x, *_dims("fftn", x, s, dim), norm, False)


def ifftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of fftn."""
    x = _input("ifftn", input)
    return _complex_transform("ifftn", x, *_dims("ifftn", x, s, dim), norm, True)


def _rfftn(
    name: str, x: Tensor, axes: list[int], sizes: list[int | None], norm: str | None
) -> Tensor:
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis; got {x._type}")
    for k, n in zip(axes, sizes, strict=True):
        if n is not None:
            x = _sized(x, k, n)
    scale = _scale(norm, False, max(_points(x, axes), 1))
    out = apply(OPS["rfft"], (x,), {"axis": axes[-1], "scale": scale})
    if len(axes) > 1:
        attrs = {"axes": tuple(axes[:-1]), "inverse": False, "scale": 1.0}
        out = apply(OPS["fft"], (out,), attrs)
    return out


def _irfftn(
    name: str, x: Tensor, axes: list[int], sizes: list[int | None], norm: str | None
) -> Tensor:
    if not axes:
        raise RuntimeError(f"{name} must transform at least one axis; got {x._type}")
    x = _as_complex(x)
    last = sizes[-1]
    if last is None:
        last = 2 * (int(x._type.shape[axes[-1]]) - 1)
    if last < 1:
        raise RuntimeError(f"Invalid number of data points ({last}) specified; got {x._type}")
    for k, n in zip(axes, [*sizes[:-1], last // 2 + 1], strict=True):
        if n is not None:
            x = _sized(x, k, n)
    points = max(_points(x, axes[:-1]), 1) * last
    if len(axes) > 1:
        attrs = {"axes": tuple(axes[:-1]), "inverse": True, "scale": 1.0}
        x = apply(OPS["fft"], (x,), attrs)
    attrs = {"axis": axes[-1], "n": last, "scale": _scale(norm, True, points)}
    return apply(OPS["irfft"], (x,), attrs)


def rfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """rfft along the last of the dims, fft along the others."""
    x = _real("rfftn", input)
    return _rfftn("rfftn", x, *_dims("rfftn", x, s, dim), norm)


def irfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of rfftn."""
    x = _input("irfftn", input)
    return _irfftn("irfftn", x, *_dims("irfftn", x, s, dim), norm)


def hfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """hfft along the last of the dims, fft along the others; real."""
    x = _input("hfftn", input)
    return _irfftn("hfftn", conj(x), *_dims("hfftn", x, s, dim), _flipped(norm))


def ihfftn(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """The inverse of hfftn."""
    x = _real("ihfftn", input)
    return conj(_rfftn("ihfftn", x, *_dims("ihfftn", x, s, dim), _flipped(norm)))


def _two(name: str, several: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(
        input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None
    ) -> Tensor:
        return several(input, s, dim, norm)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{several.__name__} along two dims, the last ones by default."
    return function


fft2, ifft2 = _two("fft2", fftn), _two("ifft2", ifftn)
rfft2, irfft2 = _two("rfft2", rfftn), _two("irfft2", irfftn)
hfft2, ihfft2 = _two("hfft2", hfftn), _two("ihfft2", ihfftn)


# -- frequencies -----------------------------------------------------------------------------------
def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """The frequencies of fft's points, of samples d apart: 0, 1, ..., -2, -1 over n d."""
    places = arange(n, dtype=dtypes.int64)
    signed = cast(places - n * cast(places >= (n + 1) // 2, dtypes.int64), floating_or(dtype))
    out = signed / (n * d)
    return out.requires_grad_() if requires_grad else out


def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """The frequencies of rfft's points: 0, 1, ..., n // 2 over n d."""
    out = cast(arange(n // 2 + 1, dtype=dtypes.int64), floating_or(dtype)) / (n * d)
    return out.requires_grad_() if requires_grad else out


def floating_or(dtype: DType | None) -> DType:
    """The dtype; the default one for None. Raises RuntimeError for integers."""
    if dtype is not None and dtype.category < Category.FLOAT:
        raise RuntimeError(f"fftfreq requires a floating point or complex dtype, but got {dtype}")
    return dtype or floating(dtypes.int64)


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The point of frequency 0 moved to the middle of each dim."""
    return _shifted(input, dim, 1)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of fftshift."""
    return _shifted(input, dim, -1)


def _shifted(x: Tensor, dim: Any, sign: int) -> Tensor:
    dims = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    axes = [one_axis("fftshift", x.ndim, d) for d in dims]
    if not axes:
        raise RuntimeError(f"[fftshift] expected at least one dim; got {x._type} and dim {dim}")
    half = [int(x._type.shape[k]) // 2 for k in axes]
    shifts = half if sign > 0 else [-h for h in half]
    return roll(x, tuple(shifts), tuple(axes))
