"""Contractions that cuBLAS does: which, and what it is told of them.

Owns `product_of`, which sees two plain matrices (or batches of them) in a contraction's operands.
Convolutions read windows, so they are our own kernels', as is what is small. The epilogue is a
kernel of its own unless the sums are stored as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jitgrad.compiler.codegen.cuda.special import Flat
from jitgrad.compiler.codegen.kernelcode import Operand, Size
from jitgrad.compiler.codegen.offsets import MARK
from jitgrad.compiler.codegen.schedule import coefficient, constant_of, offset_of
from jitgrad.compiler.index import Poly, Simplifier
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.compiler.loops import Array, Expr, axis
from jitgrad.compiler.symbolic import is_static, prod
from jitgrad.runtime import dtypes
from jitgrad.runtime.cuda.blas import Gemm, Matrix

_DTYPES = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
_LEAST = 16  # of each size


@dataclass(frozen=True)
class Product:
    """A product: its shape, and for each of a, b and c its array and offset: a number of elements,
    and pairs of a size of the launch and its factor."""

    gemm: Gemm
    arrays: tuple[Array, Array, Array]
    offsets: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

    def operands(self) -> list[Operand]:
        """Of its launch: for each matrix its array, the number, and the pairs."""
        found: list[Operand] = []
        for array, (number, pairs) in zip(self.arrays, self.offsets, strict=True):
            found += [array, number]
            for name, factor in pairs:
                found += [Size(name), factor]
        return found

    def pairs(self) -> tuple[int, ...]:
        """How many pairs each matrix has."""
        return tuple(len(pairs) for _, pairs in self.offsets)


_Found = tuple[Matrix, Array, tuple[int, tuple[tuple[str, int], ...]]]


def product_of(kernel: ContractionKernel, least: int, sums: Array | None) -> Product | None:
    """What cuBLAS is told of a kernel of at least so many products; None where it is none for it.
    sums: where they go, in the order (batch, row, column); None: the kernel's only store, as is."""
    c, shape, rank = kernel.contraction, kernel.array.shape, kernel.array.ndim
    if not is_static([*shape, *c.k]) or c.winograd:
        return None
    extents = {k: int(d) for k, d in enumerate([*shape, *c.k])}
    depth = [rank + j for j in range(len(c.k))]
    m, n, k, count = (int(prod(extents[a] for a in group)) for group in (c.m, c.n, depth, c.batch))
    if min(m, n, k) < _LEAST or m * n * k * count < least:
        return None
    see = _Reader(extents)
    a = see.matrix(c.a, c.m, depth, c.batch)
    b = see.matrix(c.b, depth, c.n, c.batch)
    if a is None or b is None or a[0].dtype != b[0].dtype:
        return None
    if c.acc is not (dtypes.float64 if a[0].dtype == "float64" else dtypes.float32):
        return None
    out: _Found
    if sums is not None:
        out = (Matrix(sums.dtype.name, n, 1, m * n), sums, (0, ()))
    else:
        store = kernel.stores[0]
        whole = store.value.op == "load" and store.value.attr is kernel.array
        same = whole and store.value.args == tuple(axis(d) for d in range(rank))
        if len(kernel.stores) > 1 or not same or store.array.dtype is not kernel.array.dtype:
            return None
        found = see.place(store.array, store.index, c.m, c.n, c.batch)
        if found is None or found[0].dtype not in (a[0].dtype, "float32"):
            return None
        out = found
    fast = bool(c.parts) and a[0].dtype == "float32"
    gemm = Gemm(m, n, k, count, a[0], b[0], out[0], fast)
    return Product(gemm, (a[1], b[1], out[1]), (a[2], b[2], out[2]))


class _Reader:
    def __init__(self, extents: dict[int, int]) -> None:
        self.extents = extents
        self.simplifier = Simplifier({**extents})

    def matrix(
        self, e: Expr, rows: Sequence[int], cols: Sequence[int], batch: Sequence[int]
    ) -> _Found | None:
        """The matrix that an operand is: a load of an array, or its cast to float32."""
        while e.op == "cast" and e.dtype is dtypes.float32 and e.args[0].dtype in _DTYPES[:2]:
            e = e.args[0]
        if e.op != "load" or e.dtype not in _DTYPES:
            return None
        return self.place(e.attr, e.args, rows, cols, batch)

    def place(
        self, array: Array, index: Sequence[Expr], rows: Sequence[int], cols: Sequence[int],
        batch: Sequence[int],
    ) -> _Found | None:  # fmt: skip
        flat = Flat({**self.extents}, [])
        poly = self.simplifier.poly(flat.expr(offset_of(array, index)))
        offset = self._offset(poly)
        steps = [self._step(poly, group) for group in (rows, cols, batch)]
        if offset is None or None in steps or array.dtype not in _DTYPES:
            return None
        row, col, apart = (s or 0 for s in steps)
        high = prod(self.extents[a] for a in rows)
        wide = prod(self.extents[a] for a in cols)
        if not (col == 1 and row >= wide) and not (row == 1 and col >= high):
            return None
        return Matrix(array.dtype.name, row, col, apart), array, offset

    def _offset(self, poly: Poly) -> tuple[int, tuple[tuple[str, int], ...]] | None:
        """What no axis changes; None where the index is no sum of steps along axes."""
        number, pairs = 0, []
        for atoms, factor in poly.items():
            if not atoms:
                number = factor
            elif len(atoms) > 1 or atoms[0].op not in ("axis", "size"):
                return None
            elif atoms[0].op == "size":
                if not str(atoms[0].attr).startswith(MARK):
                    return None
                pairs.append((str(atoms[0].attr), factor))
        return number, tuple(pairs)

    def _step(self, poly: Poly, group: Sequence[int]) -> int | None:
        """The step of a group of axes as one; 0 for none, None where they are not one."""
        step, inner = 0, 1
        for a in reversed([a for a in group if self.extents[a] != 1]):
            mine = constant_of(coefficient(poly, axis(a)))
            if mine is None or mine < 0:
                return None
            if inner == 1:
                step = mine
            elif mine != step * inner:
                return None
            inner *= self.extents[a]
        return step
