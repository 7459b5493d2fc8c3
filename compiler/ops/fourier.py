"""Discrete Fourier transforms: ops without a loop form (`Op.host`), over numpy.fft.

All are linear, and none divides by the number of points: `scale` is the factor of the sum. float32
and complex64 stay in single precision. Padding, trimming and normalisations: the public layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops.complex_parts import example
from jitgrad.compiler.ops.examples import uniform
from jitgrad.compiler.ops.record import Op, Sample, apply_like, op, scalar_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes

Axes = tuple[int, ...]


class Transform(Op):
    """Base: an op that is linear in its operand."""

    host = True

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any, **attrs: Any) -> Any:
        return None if tangents[0] is None else self(tangents[0], **attrs)

    def expect_points(self, x: TensorType, axis: int) -> None:
        size = x.shape[axis]
        self.expect(
            not isinstance(size, int) or size > 0,
            f"Invalid number of data points ({size}) specified; got {x} along dim {axis}",
        )


def _scaled(x: np.ndarray, scale: float) -> np.ndarray:
    return x if scale == 1 else x * x.real.dtype.type(scale)


class FFT(Transform):
    """fft(x; axes, inverse, scale): out[k] = scale sum_j x[j] exp(-2 pi i j k / n) along each axis
    (the sign + when inverse), of complex x."""

    name = "fft"

    def infer(self, x: TensorType, *, axes: Axes, inverse: bool, scale: float) -> TensorType:
        self.expect(x.dtype.is_complex, f"expected a complex tensor; got {x}")
        for k in axes:
            self.expect_points(x, k)
        return x

    def reference(self, x: np.ndarray, *, axes: Axes, inverse: bool, scale: float) -> np.ndarray:
        if not x.size or not axes:
            return _scaled(x.copy(), scale)
        if inverse:
            found = np.fft.ifftn(x, axes=axes, norm="forward")
        else:
            found = np.fft.fftn(x, axes=axes)
        return np.asarray(_scaled(found, scale), x.dtype)

    def vjp(
        self, g: Any, out: Any, x: Any, *, axes: Axes, inverse: bool, scale: float
    ) -> tuple[Any, ...]:
        return (op.fft(g, axes=axes, inverse=not inverse, scale=scale),)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axes: Axes, **attrs: Any
    ) -> Any:
        return self(*operands, axes=tuple(k + 1 for k in axes), **attrs)

    def samples(self) -> Iterable[Sample]:
        for axes, inverse in (((0,), False), ((1,), True), ((0, 1), False), ((), True)):
            yield Sample((example((3, 4)),), {"axes": axes, "inverse": inverse, "scale": 0.5})
        yield Sample(
            (example((0, 4), "complex128"),), {"axes": (1,), "inverse": False, "scale": 1.0},
            "empty",
        )  # fmt: skip


class RFFT(Transform):
    """rfft(x; axis, scale): the first n // 2 + 1 points of the transform of real x."""

    name = "rfft"

    def infer(self, x: TensorType, *, axis: int, scale: float) -> TensorType:
        self.expect(
            x.dtype in (dtypes.float32, dtypes.float64),
            f"expected float32 or float64; got {x}",
        )
        self.expect_points(x, axis)
        shape = list(x.shape)
        shape[axis] = shape[axis] // 2 + 1
        return x.with_shape(tuple(shape)).with_dtype(x.dtype.to_complex())

    def reference(self, x: np.ndarray, *, axis: int, scale: float) -> np.ndarray:
        wide = np.result_type(x.dtype, np.complex64)
        return np.asarray(_scaled(np.fft.rfft(x, axis=axis), scale), wide)

    def vjp(self, g: Any, out: Any, x: Any, *, axis: int, scale: float) -> tuple[Any, ...]:
        none = tuple(0 for _ in g.shape)
        high = tuple(
            x.shape[axis] - d if k == axis else 0 for k, d in enumerate(g.shape)
        )  # fmt: skip
        whole = op.pad(g, low=none, high=high, interior=none, value=0)
        return (op.real(op.fft(whole, axes=(axis,), inverse=True, scale=scale)),)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int, **attrs: Any
    ) -> Any:
        return self(*operands, axis=axis + 1, **attrs)

    def samples(self) -> Iterable[Sample]:
        for shape, axis in (((3, 4), 0), ((3, 4), 1), ((5,), 0), ((1, 2), 0)):
            yield Sample((uniform(shape),), {"axis": axis, "scale": 0.5})
        yield Sample((uniform((0, 4), dtype=np.float64),), {"axis": 1, "scale": 1.0}, "empty")


class IRFFT(Transform):
    """irfft(x; axis, n, scale): n real points, from the first n // 2 + 1 of a transform (the
    imaginary parts of the first, and for even n of the last, are not read)."""

    name = "irfft"

    def infer(self, x: TensorType, *, axis: int, n: int, scale: float) -> TensorType:
        self.expect(x.dtype.is_complex, f"expected a complex tensor; got {x}")
        self.expect(n > 0, f"Invalid number of data points ({n}) specified")
        self.expect(
            x.shape[axis] == n // 2 + 1,
            f"expected {n // 2 + 1} points along dim {axis} for {n} real ones; got {x}",
        )
        shape = list(x.shape)
        shape[axis] = n
        return x.with_shape(tuple(shape)).with_dtype(x.dtype.to_real())

    def reference(self, x: np.ndarray, *, axis: int, n: int, scale: float) -> np.ndarray:
        found = np.fft.irfft(x, n, axis=axis, norm="forward")
        return np.asarray(_scaled(found, scale), x.real.dtype)

    def vjp(self, g: Any, out: Any, x: Any, *, axis: int, n: int, scale: float) -> tuple[Any, ...]:
        half = op.rfft(g, axis=axis, scale=scale)
        place = apply_like(
            op.iota, g, shape=(n // 2 + 1,), dtype=dtypes.int64, start=0, step=1,
            device=str(g.device),
        )  # fmt: skip
        once = op.eq(place, scalar_like(place, 0))
        if n % 2 == 0:
            once = op.logical_or(once, op.eq(place, scalar_like(place, n // 2)))
        weight = op.where(once, scalar_like(half, 1), scalar_like(half, 2))
        shape = tuple(n // 2 + 1 if k == axis else 1 for k in range(half.ndim))
        return (op.mul(half, op.reshape(weight, shape=shape)),)

    def batch(
        self, operands: Sequence[Any], batched: Sequence[bool], *, axis: int, **attrs: Any
    ) -> Any:
        return self(*operands, axis=axis + 1, **attrs)

    def samples(self) -> Iterable[Sample]:
        for shape, axis, n in (((3, 4), 0, 4), ((3, 4), 1, 7), ((3,), 0, 5), ((1, 2), 0, 1)):
            yield Sample((example(shape),), {"axis": axis, "n": n, "scale": 0.5})


fft, rfft, irfft = FFT(), RFFT(), IRFFT()
