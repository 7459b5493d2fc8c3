"""Complex numbers and their parts: conj, real, imag, complex, view_as_real, view_as_complex.

Derivatives follow PyTorch's convention: the cotangent g of y gives dL = Re(conj(g) dy). So the
cotangent of an operand of a function with a complex derivative d is g conj(d): records of such
functions apply their rule for real numbers to conj(g), and conjugate what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.ops import examples
from jitgrad.compiler.ops.elementwise import Unary
from jitgrad.compiler.ops.record import Elementwise, Op, Sample, op, reduce_like, zeros_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import DType


def example(shape: tuple[int, ...], dtype: str = "complex64", seed: int = 0) -> np.ndarray:
    """Complex numbers drawn as samples are."""
    parts = examples.uniform(shape, seed=seed), examples.uniform(shape, seed=seed + 100)
    return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)


def _samples() -> Iterable[Sample]:
    yield Sample((example((2, 3)),))
    yield Sample((example((), "complex128"),), note="0-d")
    yield Sample((example((0, 2)),), note="empty")
    yield Sample((example((3, 4))[::2, ::-1].T,), note="strided")


class Conj(Unary):
    """The complex conjugate, in memory of its own."""

    name, promotes, public, widens = "conj", "same", False, False
    complex_too = True
    numpy = np.conjugate

    def chain(self, t: Any, out: Any, x: Any) -> Any:
        return op.conj(t)

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        return (op.conj(g),)

    def samples(self) -> Iterable[Sample]:
        return _samples()


class Part(Op):
    """real and imag: a view of one part of complex numbers."""

    view = True

    def infer(self, x: TensorType) -> TensorType:
        self.expect(x.dtype.is_complex, f"expected a complex tensor; got {x}")
        return x.with_dtype(x.dtype.to_real())

    def batch(self, operands: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*operands)

    def samples(self) -> Iterable[Sample]:
        return _samples()


class Real(Part):
    name = "real"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.real

    def vjp(self, g: Any, out: Any, x: Any) -> tuple[Any, ...]:
        return (op.complex(g, zeros_like(g)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any) -> Any:
        return op.real(tangents[0])

    def put(self, base: Any, update: Any) -> Any:
        return op.complex(update, op.imag(base))


class Imag(Part):
    name = "imag"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x.imag

    def vjp(self, g: Any, out: Any, x: Any) -> tuple[Any, ...]:
        return (op.complex(zeros_like(g), g),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any) -> Any:
        return op.imag(tangents[0])

    def put(self, base: Any, update: Any) -> Any:
        return op.complex(op.real(base), update)


class Complex(Elementwise):
    """complex(a, b) = a + i b, of two real operands (float32 or float64)."""

    name, arity, public = "complex", 2, False

    def check_dtype(self, dtype: DType) -> None:
        self.expect(
            dtype.is_floating_point and dtype.itemsize >= 4,
            f"Expected both inputs to be Float or Double tensors but got {dtype}",
        )

    def out_dtype(self, dtype: DType) -> DType:
        return dtype.to_complex()

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(a.shape, b.shape)
        out = np.empty(shape, np.result_type(a.dtype, np.complex64))
        out.real, out.imag = a, b
        return out

    def vjp(self, g: Any, out: Any, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        a, b = operands
        return reduce_like(op.real(g), a), reduce_like(op.imag(g), b)

    def jvp(self, tangents: tuple[Any, ...], out: Any, *operands: Any, **attrs: Any) -> Any:
        a, b = (
            zeros_like(x) if t is None else t for t, x in zip(tangents, operands, strict=True)
        )  # fmt: skip
        return op.complex(a, b)

    def samples(self) -> Iterable[Sample]:
        for shapes, note in ((((2, 3), (2, 3)), ""), (((2, 1), (3,)), "broadcast"),
                             (((), ()), "0-d"), (((0, 2), (1, 2)), "empty")):  # fmt: skip
            yield Sample(
                (examples.uniform(shapes[0]), examples.uniform(shapes[1], seed=1)), note=note
            )


class ViewAsReal(Op):
    """Complex (...) as real and imaginary parts (..., 2); a view."""

    name = "view_as_real"
    view = True

    def infer(self, x: TensorType) -> TensorType:
        self.expect(
            x.dtype.is_complex,
            f"view_as_real is only supported for complex tensors; got {x}",
        )
        return TensorType((*x.shape, 2), x.dtype.to_real(), x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        parts = x.real
        steps = (*x.strides, parts.itemsize)
        return np.lib.stride_tricks.as_strided(parts, (*x.shape, 2), steps, subok=True)

    def vjp(self, g: Any, out: Any, x: Any) -> tuple[Any, ...]:
        return (op.view_as_complex(op.contiguous(g)),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any) -> Any:
        return op.view_as_real(tangents[0])

    def batch(self, operands: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*operands)

    def put(self, base: Any, update: Any) -> Any:
        return op.view_as_complex(op.contiguous(update))

    def samples(self) -> Iterable[Sample]:
        return _samples()


class ViewAsComplex(Op):
    """Parts (..., 2) as complex (...); a view, of a last dim without gaps."""

    name = "view_as_complex"
    view = True

    def infer(self, x: TensorType) -> TensorType:
        self.expect(
            x.dtype.is_floating_point and x.dtype.itemsize >= 4,
            f"view_as_complex is only supported for float and double tensors; got {x}",
        )
        self.expect(x.ndim > 0, "Input tensor must have one or more dimensions")
        self.expect(x.shape[-1] == 2, f"Tensor must have a last dimension of size 2; got {x}")
        return TensorType(x.shape[:-1], x.dtype.to_complex(), x.device)

    def reference(self, x: np.ndarray) -> np.ndarray:
        self.expect(
            x.strides[-1] == x.itemsize or not x.size,
            f"Tensor must have a last dimension with stride 1; got strides (bytes) {x.strides}; "
            "use .contiguous()",
        )
        return x.view(np.result_type(x.dtype, np.complex64))[..., 0]

    def vjp(self, g: Any, out: Any, x: Any) -> tuple[Any, ...]:
        return (op.view_as_real(g),)

    def jvp(self, tangents: tuple[Any, ...], out: Any, x: Any) -> Any:
        return op.view_as_complex(op.contiguous(tangents[0]))

    def batch(self, operands: Sequence[Any], batched: Sequence[bool]) -> Any:
        return self(*operands)

    def put(self, base: Any, update: Any) -> Any:
        return op.view_as_real(update)

    def samples(self) -> Iterable[Sample]:
        for shape in ((2, 3, 2), (2,), (0, 2)):
            yield Sample((examples.uniform(shape),))
        yield Sample((examples.uniform((4, 3, 2), dtype=np.float64)[::2],), note="strided")


conj, real, imag, complex_ = Conj(), Real(), Imag(), Complex()
view_as_real, view_as_complex = ViewAsReal(), ViewAsComplex()
