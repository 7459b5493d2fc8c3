"""Scatter that combines what meets at one place by product, maximum or minimum.

Owns scatter_prod, scatter_amax and scatter_amin, with gather's semantics of an index, as scatter
and scatter_add (along_axis.py). Products multiply in row-major order of the index (float16 and
bfloat16 in float32, rounded once). NaN wins in the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from jitgrad.compiler.ops.along_axis import Scatter, along, grow, in_dim
from jitgrad.compiler.ops.examples import FLOATS, integers, specials
from jitgrad.compiler.ops.placing import check_sum, verify
from jitgrad.compiler.ops.record import Sample, op, same_shape, scalar_like, zeros_like
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes


class _ScatterReduce(Scatter):
    saves = (0, 1, 2, "out")
    ufunc: ClassVar[np.ufunc]

    def infer(
        self, base: TensorType, index: TensorType, src: TensorType, *, axis: int
    ) -> TensorType:
        check_sum(self, base)
        return super().infer(base, index, src, axis=axis)

    def reference(
        self, base: np.ndarray, index: np.ndarray, src: np.ndarray, *, axis: int
    ) -> np.ndarray:
        verify(self, in_dim(base.shape, axis), index)
        wide = self.wide(dtypes.from_numpy(base.dtype)).np
        part = src[tuple(slice(n) for n in index.shape)].astype(wide, copy=False)
        out = np.array(base, wide)
        self.ufunc.at(out, along(index, axis), part)
        return out.astype(base.dtype, copy=False)

    def samples(self) -> Iterable[Sample]:
        yield from super().samples()
        for dt in FLOATS:
            s = specials(dt)
            index = np.arange(s.size, dtype=np.int64) % 4
            yield Sample((s[:4], index, s[::-1].copy()), {"axis": 0}, f"special {dt}", grad=False)
        half = integers((2, 12), "float16", -3, 4)
        wide = integers((2, 12), "int64", 0, 3)
        yield Sample((half[:, :3], wide, half), {"axis": 1}, "float16", grad=False)


def _cropped(src: Any, index: Any) -> Any:
    if same_shape(src.shape, index.shape):
        return src
    rank = src.ndim
    return op.slice(src, starts=(0,) * rank, stops=tuple(index.shape), steps=(1,) * rank)


class _ScatterExtreme(_ScatterReduce):
    """Ties share the cotangent evenly."""

    def shares(self, out: Any, base: Any, index: Any, src: Any, axis: int) -> tuple[Any, ...]:
        """(whether base's element is at the result, whether src's is, how many are)."""
        of_base = op.eq(base, out)
        of_src = op.eq(src, op.gather(out, index, axis=axis))
        many = op.scatter_add(
            op.cast(of_base, dtype=out.dtype), index, op.cast(of_src, dtype=out.dtype), axis=axis
        )
        return of_base, of_src, op.maximum(many, 1.0)

    def vjp(
        self, g: Any, out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> tuple[Any, ...]:
        of_base, of_src, many = self.shares(out, base, index, _cropped(src, index), axis)
        share, zero = op.div(g, many), scalar_like(g, 0)
        g_src = op.where(of_src, op.gather(share, index, axis=axis), zero)
        return op.where(of_base, share, zero), None, grow(g_src, src)

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_src = zeros_like(src) if tangents[2] is None else tangents[2]
        of_base, of_src, many = self.shares(out, base, index, _cropped(src, index), axis)
        zero = scalar_like(out, 0)
        t_base = op.where(of_base, t_base, zero)
        t_src = op.where(of_src, _cropped(t_src, index), zero)
        return op.div(op.scatter_add(t_base, index, t_src, axis=axis), many)


class ScatterAmax(_ScatterExtreme):
    """scatter_amax(base, index, src; axis): each place keeps the maximum of what meets there."""

    name, combine, ufunc = "scatter_amax", "max", np.maximum


class ScatterAmin(_ScatterExtreme):
    """scatter_amin(base, index, src; axis): each place keeps the minimum of what meets there."""

    name, combine, ufunc = "scatter_amin", "min", np.minimum


class ScatterProd(_ScatterReduce):
    """scatter_prod(base, index, src; axis): each place becomes the product of what meets there.

    The derivative by a zero is the product of the rest, by any other factor the product over it: so
    first derivatives are right whatever is 0, second ones where nothing is.
    """

    name, combine, ufunc = "scatter_prod", "prod", np.multiply

    def slopes(self, base: Any, index: Any, src: Any, axis: int) -> tuple[Any, Any]:
        """The derivatives of the product at a place by base's element and by src's."""
        zero, one = scalar_like(base, 0), scalar_like(base, 1)
        none_base, none_src = op.eq(base, zero), op.eq(src, zero)
        safe_base, safe_src = op.where(none_base, one, base), op.where(none_src, one, src)
        count = op.scatter_add(
            op.cast(none_base, dtype=base.dtype),
            index,
            op.cast(none_src, dtype=base.dtype),
            axis=axis,
        )
        rest = op.scatter_prod(safe_base, index, safe_src, axis=axis)
        without = op.where(op.eq(count, zero), rest, zero)  # where nothing is 0
        single = op.where(op.eq(count, one), rest, zero)  # where one factor is
        of_base = op.where(none_base, single, op.div(without, safe_base))
        of_src = op.where(
            none_src,
            op.gather(single, index, axis=axis),
            op.div(op.gather(without, index, axis=axis), safe_src),
        )
        return of_base, of_src

    def vjp(
        self, g: Any, out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> tuple[Any, ...]:
        of_base, of_src = self.slopes(base, index, _cropped(src, index), axis)
        g_src = op.mul(op.gather(g, index, axis=axis), of_src)
        return op.mul(g, of_base), None, grow(g_src, src)

    def jvp(
        self, tangents: tuple[Any, ...], out: Any, base: Any, index: Any, src: Any, *, axis: int
    ) -> Any:
        t_base = zeros_like(base) if tangents[0] is None else tangents[0]
        t_src = zeros_like(src) if tangents[2] is None else tangents[2]
        of_base, of_src = self.slopes(base, index, _cropped(src, index), axis)
        t_src = op.mul(_cropped(t_src, index), of_src)
        return op.scatter_add(op.mul(t_base, of_base), index, t_src, axis=axis)


scatter_amax, scatter_amin, scatter_prod = ScatterAmax(), ScatterAmin(), ScatterProd()
