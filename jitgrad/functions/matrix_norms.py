"""Norms and condition numbers of matrices, and the products of vectors: torch.linalg's."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.compiler.ops.record import OPS
from jitgrad.dispatch import apply
from jitgrad.functions import linalg, shape
from jitgrad.functions.args import one_axis
from jitgrad.functions.complex_numbers import conj
from jitgrad.functions.decompositions import factored, matrix
from jitgrad.functions.elementwise import where
from jitgrad.functions.reduce import nuclear_norm, vector_norm
from jitgrad.functions.solvers import inv_ex
from jitgrad.promotion import cast, result_type
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.tensor import Tensor

_ORDERS = (2, -2, 1, -1, math.inf, -math.inf)


def matrix_norm(
    input: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """The norm of matrices: "fro", "nuc" (the sum of singular values), 2 and -2 (the largest and
    smallest of them), 1, -1, inf, -inf (extreme sums of columns and of rows). Always real."""
    name = "linalg.matrix_norm"
    if input.ndim < 2:
        raise RuntimeError(
            f"{name}: The input tensor A must have at least 2 dimensions; got {input._type}"
        )
    if len(dim) != 2:
        raise RuntimeError(f"{name}: dim must be a 2-tuple. Got {dim}")
    a = _converted(name, input, dtype)
    rows, columns = (one_axis(name, a.ndim, d) for d in dim)
    if rows == columns:
        raise RuntimeError(f"{name}: dims must be different. Got ({dim[0]}, {dim[1]})")
    if ord == "fro":
        return vector_norm(a, 2, (rows, columns), keepdim)
    factored(name, a) if ord in ("nuc", 2, -2) else None
    if ord == "nuc":
        return nuclear_norm(a, (rows, columns), keepdim)
    if isinstance(ord, str) or ord not in _ORDERS:
        raise RuntimeError(
            f"{name}: Order {ord} not supported; expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        )
    if ord in (1, 2, math.inf) and 0 in [a._type.shape[k] for k in (rows, columns)]:
        return vector_norm(a, 1, (rows, columns), keepdim)  # zeros
    if ord in (2, -2):
        s = apply(OPS["svdvals"], (a.movedim((rows, columns), (-2, -1)),), {})
        out = s.amax(-1) if ord > 0 else s.amin(-1)
        if keepdim:
            out = out.unsqueeze(-1).unsqueeze(-1).movedim((-2, -1), (rows, columns))
        return out
    summed, kept = (rows, columns) if ord in (1, -1) else (columns, rows)
    total = vector_norm(a, 1, summed, True)
    best = total.amax(kept, True) if ord > 0 else total.amin(kept, True)
    return best if keepdim else best.squeeze((rows, columns))


def _converted(name: str, x: Tensor, dtype: DType | None) -> Tensor:
    if x.dtype.category < Category.FLOAT:
        raise NotImplementedError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x._type}"
        )
    if dtype is None:
        return x
    if dtype.category < Category.FLOAT:
        raise RuntimeError(f"{name}: dtype should be floating point or complex. Got {dtype}")
    if x.dtype.is_complex and not dtype.is_complex:
        raise RuntimeError(
            f"{name}: the dtype of the input ({x.dtype}) should be convertible without narrowing "
            f"to the specified dtype ({dtype})"
        )
    return cast(x, dtype)


def norm(
    input: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *,
    dtype: DType | None = None,
) -> Tensor:  # fmt: skip
    """vector_norm or matrix_norm: a matrix's where `dim` names two dims (or A has two) and ord is
    given, else a vector's, of all elements where neither is given."""
    if isinstance(dim, int):
        dim = (dim,)
    if ord is None:
        return vector_norm(_converted("linalg.norm", input, dtype), 2, dim, keepdim)
    if dim is not None and len(dim) not in (1, 2):
        raise RuntimeError(
            f"linalg.norm: If dim is specified, it must be of length 1 or 2. Got {dim}"
        )
    if dim is None and input.ndim not in (1, 2):
        raise RuntimeError(
            "linalg.norm: If dim is not specified but ord is, the input must be 1D or 2D. Got "
            f"{input._type}"
        )
    if isinstance(ord, str) or (len(dim) if dim is not None else input.ndim) == 2:
        return matrix_norm(input, ord, (0, 1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(_converted("linalg.norm", input, dtype), ord, dim, keepdim)


def cond(input: Tensor, p: Any = None) -> Tensor:
    """The condition number of matrices in a matrix norm (2 where none is given): the ratio of
    extreme singular values, or norm(A) norm(A^-1); infinite for a singular matrix."""
    a = matrix("linalg.cond", input)
    if p is None or p in (2, -2):
        s = apply(OPS["svdvals"], (a,), {})
        if not s._type.shape[-1]:
            return s.new_zeros(s._type.shape[:-1])
        first, last = s.select(-1, 0), s.select(-1, -1)
        return last / first if p == -2 else first / last
    matrix("linalg.cond", a, True)
    if not a._type.shape[-1]:
        return a.new_zeros(a._type.shape[:-2], dtype=a.dtype.to_real())
    if p == "nuc":  # as singular values give it; raises nothing
        s = apply(OPS["svdvals"], (a,), {})
        return s.sum(-1) * s.reciprocal().sum(-1)
    inverse, info = inv_ex(a)
    singular = info != 0
    safe = where(singular.unsqueeze(-1).unsqueeze(-1), a, inverse)
    product = matrix_norm(a, p) * matrix_norm(safe, p)
    return where(singular, math.inf, product)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonal of matrices, a view."""
    return shape.diagonal_view(A, offset, dim1, dim2)


def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product along a dim of size 3; other dims broadcast."""
    return linalg.vector_product(input, other, dim)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The sum of conj(x) * y along a dim."""
    if x.dtype is not y.dtype:
        raise RuntimeError(
            f"linalg.vecdot: Expected x and y to have the same dtype; got {x._type} and {y._type}"
        )
    product = conj(x) * y
    return cast(product.sum(dim), result_type(x, y))


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers x**0 ... x**(N - 1) of the elements of vectors (..., n), in a last dim of size N."""
    if x.dtype is dtypes.bool_:
        raise RuntimeError(f"linalg.vander: expected numbers; got {x._type}; use .int()")
    if x.ndim == 0 and N is None:
        raise RuntimeError(f"linalg.vander: expected N, or at least one dim; got {x._type}")
    count = int(x._type.shape[-1]) if N is None else N
    if count <= 1:
        raise RuntimeError(f"linalg.vander: N must be greater than 1; got {N}")
    x = x if x.ndim else x.reshape(1)
    wide = x.unsqueeze(-1) * x.new_ones(1, dtype=x.dtype)
    steps = wide.expand(*x._type.shape, count - 1).cumprod(-1)
    return shape.cat([steps.new_ones(*x._type.shape, 1), steps], -1)
