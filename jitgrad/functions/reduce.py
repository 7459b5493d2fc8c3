"""Reductions and scans over dims, with PyTorch's signatures."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

from jitgrad.casting import wide
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym, is_static
from jitgrad.compiler.symbolic import prod as dims_product
from jitgrad.composites import composite
from jitgrad.dispatch import apply, full
from jitgrad.functions.args import all_axes, one_axis
from jitgrad.functions.complex_numbers import squared_size
from jitgrad.functions.shape import laid_as
from jitgrad.promotion import cast, floating
from jitgrad.return_types import TYPES
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category, DType
from jitgrad.tape.lasting import lasting
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


def _reduce(name: str, x: Tensor, axes: tuple[int, ...], keepdim: bool, **more: Any) -> Tensor:
    attrs = {"axes": axes, "keepdim": bool(keepdim), **more}
    return apply(OPS[name], (x,), attrs)


def sum(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum over `dim` (an int, several, or None for all). Bools and integers give int64."""
    axes = all_axes("sum", input.ndim, dim)
    if dtype is not None and dtype.category >= Category.FLOAT:
        input = cast(input, dtype)
        dtype = None
    return _reduce("sum", input, axes, keepdim, **({} if dtype is None else {"dtype": dtype}))


@wide
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The product over `dim`, or of all elements. Bools and integers give int64."""
    axes = all_axes("prod", input.ndim, dim)
    if dtype is not None and dtype.category >= Category.FLOAT:
        input = cast(input, dtype)
        dtype = None
    return _reduce("prod", input, axes, keepdim, **({} if dtype is None else {"dtype": dtype}))


def _count(input: Tensor, axes: tuple[int, ...]) -> Any:
    return dims_product(input._type.shape[k] for k in axes)


@lasting
def mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean over `dim`. Raises RuntimeError for integers, unless `dtype` is floating."""
    if dtype is not None:
        input = cast(input, dtype)
    if input.dtype.category < Category.FLOAT:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {input._type}; convert it first, e.g. with .float()"
        )
    axes = all_axes("mean", input.ndim, dim)
    if input.dtype in (dtypes.float16, dtypes.bfloat16):  # one rounding, at the end
        wide = _reduce("sum", cast(input, dtypes.float32), axes, keepdim)
        out = cast(_over(wide, _count(input, axes)), input.dtype)
    else:
        out = _over(_reduce("sum", input, axes, keepdim), _count(input, axes))
    return called(out, "MeanBackward0" if dim is None else "MeanBackward1")


def _over(total: Tensor, count: Any) -> Tensor:
    return total / (count if isinstance(count, Sym) else operator.index(count))


@naming("VarMeanBackward0")
def var_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> tuple[Tensor, Tensor]:
    """Variance and mean over `dim`. correction: subtracted from the count (1 by default)."""
    if isinstance(dim, bool):  # var(input, unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    if input.dtype.category < Category.FLOAT:
        raise RuntimeError(
            f"std and var only support floating point and complex dtypes; got {input._type}"
        )
    axes = all_axes("var", input.ndim, dim)
    x = cast(input, dtypes.float32) if input.dtype.itemsize == 2 else input
    count = _count(input, axes)
    center = _over(_reduce("sum", x, axes, True), count)
    delta = x - center
    squares = _reduce("sum", squared_size(delta), axes, keepdim)
    variance = squares / _at_least_zero(count - correction, squares.dtype)
    average = center if keepdim else center.reshape(squares.shape)
    return cast(variance, input.dtype.to_real()), cast(average, input.dtype)


def _at_least_zero(count: Any, dtype: DType) -> Any:
    if isinstance(count, Sym):  # it may be less in a call of what is exported
        return full((), count, dtype).clamp(min=0)
    return builtins.max(float(count), 0.0)


@naming("VarBackward0")
def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Tensor:
    """The variance over `dim`: sum((x - mean)**2) / (count - correction)."""
    return var_mean(input, dim, unbiased, keepdim, correction=correction)[0]


@naming("StdMeanBackward0")
def std_mean(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over `dim`."""
    variance, average = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return _root(variance), average


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Tensor:
    """The standard deviation over `dim`. The gradient of equal numbers is 0."""
    return called(_root(var(input, dim, unbiased, keepdim, correction=correction)), "StdBackward0")


def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The maximum over dims; ties share the gradient. NaN wins."""
    return _reduce("amax", input, _filled("amax", input, dim), keepdim)


def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The minimum over dims; ties share the gradient. NaN wins."""
    return _reduce("amin", input, _filled("amin", input, dim), keepdim)


def _filled(name: str, input: Tensor, dim: Any) -> tuple[int, ...]:
    if dim in ((), [], None) and 0 in [d for d in input._type.shape if not isinstance(d, Sym)]:
        raise RuntimeError(
            f"[{name}] expected at least one element to reduce over all dims; got {input._type}, "
            "and there is no identity; check numel() first"
        )
    return all_axes(name, input.ndim, dim)


@naming("AminmaxBackward0")
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """(min, max) over a dim, or of all."""
    return TYPES["aminmax"](amin(input, () if dim is None else dim, keepdim),
                  amax(input, () if dim is None else dim, keepdim))  # fmt: skip


def _extreme(name: str, input: Tensor, dim: Any, keepdim: bool) -> Any:
    whole, best = ("amax", "argmax") if name == "max" else ("amin", "argmin")
    if dim is None:
        if is_static(input._type.shape) and 0 in input._type.shape:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0; got "
                f"{input._type}; pass dim"
            )
        out = _reduce(whole, input, tuple(range(input.ndim)), False, nans=True)
        return called(out, f"{name.capitalize()}Backward1")
    if isinstance(dim, Tensor):
        return input.maximum(dim) if name == "max" else input.minimum(dim)
    axis = one_axis(name, input.ndim, dim)
    if not input.ndim:
        return TYPES[name](input.clone(), _reduce(best, input, (), False))
    index = _reduce(best, input, (axis,), True)
    # The value at the index: its gradient goes to one element, not shared among ties.
    value = apply(OPS["gather"], (input, index), {"axis": axis})
    if not keepdim:
        value, index = value.squeeze(axis), index.squeeze(axis)
    return TYPES[name](called(value, f"{name.capitalize()}Backward0"), index)


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The maximum of all; over a dim: (values, indices); with another tensor, in the place of dim
    or as `other`: elementwise."""
    return _extreme("max", input, dim if other is None else other, keepdim)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The minimum of all; over a dim: (values, indices); with another tensor, in the place of dim
    or as `other`: elementwise."""
    return _extreme("min", input, dim if other is None else other, keepdim)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index (int64) of the first maximum along `dim`, or in the flattened tensor."""
    return _arg("argmax", input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index (int64) of the first minimum along `dim`, or in the flattened tensor."""
    return _arg("argmin", input, dim, keepdim)


def _arg(name: str, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if input.dtype is dtypes.bool_:
        raise NotImplementedError(f"{name}(): does not support bool input; use .int()")
    axes = tuple(range(input.ndim)) if dim is None else (one_axis(name, input.ndim, dim),)
    return _reduce(name, input, axes if input.ndim else (), keepdim)


def _logical_axes(name: str, input: Tensor, dim: Any) -> tuple[int, ...]:
    """The axes of any and all: unlike for other reductions, an empty tuple is none of them."""
    if isinstance(dim, (tuple, list)) and not dim:
        return ()
    return all_axes(name, input.ndim, dim)


def any(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether any element is nonzero. bool (uint8 for uint8)."""
    out = _reduce("any", input, _logical_axes("any", input, dim), keepdim)
    return cast(out, dtypes.uint8) if input.dtype is dtypes.uint8 else out


def all(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are nonzero. bool (uint8 for uint8)."""
    out = _reduce("all", input, _logical_axes("all", input, dim), keepdim)
    return cast(out, dtypes.uint8) if input.dtype is dtypes.uint8 else out


def count_nonzero(input: Tensor, dim: Any = None, *dims: int) -> Tensor:
    """The number of elements that are not zero, as int64. Dims may come one by one."""
    return sum(input != 0, (dim, *dims) if dims else dim)


def nansum(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The sum, NaN counted as 0. Raises RuntimeError for complex numbers."""
    if input.dtype.is_complex:
        raise RuntimeError(f"nansum(): expected real numbers; got {input._type}")
    if input.dtype.category >= Category.FLOAT:
        input = input.masked_fill(input.isnan(), 0.0)
    return called(sum(input, dim, keepdim, dtype=dtype), "NansumBackward0")


def nanmean(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean of what is not NaN. Raises RuntimeError for integers."""
    if input.dtype.category < Category.FLOAT:
        raise RuntimeError(
            f"nanmean(): expected input of a floating point or complex dtype; got {input._type}"
        )
    total = nansum(input, dim, keepdim, dtype=dtype)
    return total / sum(~input.isnan(), dim, keepdim)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over dims, stable."""
    x = cast(input, floating(input.dtype))
    return _reduce("logsumexp", x, all_axes("logsumexp", x.ndim, dim), keepdim)


def softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`, stable."""
    return _softmax("softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """log(softmax(x)) along `dim`, stable."""
    return _softmax("log_softmax", input, dim, dtype)


def _softmax(name: str, input: Tensor, dim: int, dtype: DType | None) -> Tensor:
    if dtype is not None:
        input = cast(input, dtype)
    if input.dtype.category < Category.FLOAT:
        raise NotImplementedError(
            f'"{name}" not implemented for {input.dtype}; got {input._type}; convert it first, '
            "e.g. with .float(), or pass dtype"
        )
    axis = one_axis(name, input.ndim, dim)
    if not input.ndim:
        return apply(OPS[name], (input.reshape(1),), {"axis": 0}).reshape(())
    return apply(OPS[name], (input,), {"axis": axis})


def _scan(name: str, input: Tensor, dim: int, dtype: DType | None) -> Tensor:
    if dtype is None:
        dtype = dtypes.int64 if input.dtype.category < Category.FLOAT else input.dtype
    x = cast(input, dtype)
    axis = one_axis(name, x.ndim, dim)
    if not x.ndim:
        return x.clone()
    attrs: dict[str, Any] = {"axis": axis}
    if dtype.category is Category.INT and dtype is not dtypes.int64:
        attrs["dtype"] = dtype  # the record's own default is int64
    return apply(OPS[name], (x,), attrs)


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running sums along `dim`. Integers give int64."""
    return _scan("cumsum", input, dim, dtype)


def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running products along `dim`. Integers give int64."""
    return _scan("cumprod", input, dim, dtype)


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """(values, indices) sorted along `dim`; always stable. NaN is greatest."""
    axis = one_axis("sort", input.ndim, dim)
    if not input.ndim:
        values, indices = sort(input.reshape(1), 0, descending)
        return TYPES["sort"](values.reshape(()), indices.reshape(()))
    attrs = {"axis": axis, "descending": bool(descending)}
    values, indices = apply(OPS["sort"], (input,), attrs)
    return TYPES["sort"](laid_as(values, input), laid_as(indices, input))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along `dim`."""
    return sort(input, dim, descending).indices


def msort(input: Tensor) -> Tensor:
    """Values sorted along dim 0."""
    return sort(input, 0).values


def sorted_first(x: Tensor, axis: int, descending: bool, count: int) -> Any:
    """The first `count` (values, indices) of a sort along an axis."""
    attrs = {"axis": axis, "descending": bool(descending), "count": int(count)}
    return apply(OPS["sort"], (x,), attrs)


@naming("TopkBackward0")
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (or smallest) elements along `dim`, in order, and their indices."""
    if input.dtype is dtypes.bool_:
        raise RuntimeError(f"[topk] expected numbers; got {input._type}; use .int()")
    axis = one_axis("topk", input.ndim, dim)
    size = input.shape[axis] if input.ndim else 1
    if not 0 <= k <= size:
        raise RuntimeError(
            f"[topk] selected index k out of range: expected k in [0, {size}] for {input._type}; "
            f"got {k}"
        )
    if not input.ndim:
        return TYPES["topk"](*sort(input, axis, largest))
    return TYPES["topk"](*sorted_first(input, axis, largest, k))


@composite
@naming("LinalgVectorNormBackward0")
def vector_norm(
    input: Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """(sum |x|**ord) ** (1 / ord) over dims; ord may be 0, inf, -inf. The gradient at 0 is 0."""
    if dtype is not None:
        input = cast(input, dtype)
    if input.dtype.category < Category.FLOAT:
        raise RuntimeError(
            "linalg.vector_norm: Expected a floating point or complex tensor as input. Got "
            f"{input.dtype}"
        )
    axes = all_axes("norm", input.ndim, dim)
    if input.dtype.is_complex and ord != 2:
        input = input.abs()
    sizes = [input._type.shape[k] for k in axes]
    if (ord < 0 or ord == math.inf) and 0 in [n for n in sizes if not isinstance(n, Sym)]:
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord} norm of an empty tensor, because the "
            f"operation has no identity; got {input._type}"
        )
    if ord not in (0, 1, 2) and builtins.all(not isinstance(n, Sym) and n == 1 for n in sizes):
        ord = 1  # the size of one element: no power overflows
    if ord == math.inf:
        return _reduce("amax", input.abs(), axes, keepdim, nans=True)
    if ord == -math.inf:
        return _reduce("amin", input.abs(), axes, keepdim, nans=True)
    if ord == 0:  # its derivative is zero, not absent
        return _reduce("sum", input.sign().masked_fill(input != 0, 1.0), axes, keepdim)
    if ord == 1:
        return _reduce("sum", input.abs(), axes, keepdim)
    wide = cast(input, dtypes.float32) if input.dtype.itemsize == 2 else input
    powers = squared_size(wide) if ord == 2 else _powers(wide, float(ord))
    total = _reduce("sum", powers, axes, keepdim)
    return cast(_root(total, float(ord)), input.dtype.to_real())


def _root(x: Tensor, degree: float = 2.0) -> Tensor:
    """x ** (1 / degree). At 0, where the slope is infinite, it counts as 0, as in PyTorch."""
    zero = x == 0
    safe = x.masked_fill(zero, 1.0)
    root = safe.sqrt() if degree == 2 else safe ** (1.0 / degree)
    return root.masked_fill(zero, 0.0)


def _powers(x: Tensor, ord: float) -> Tensor:
    """|x| ** ord. Below 1 the slope at 0 is infinite: it counts as 0, as in PyTorch."""
    if ord >= 1:
        return x.abs() ** ord
    zero = x == 0
    at_zero = 0.0 if ord > 0 else math.inf
    return (x.masked_fill(zero, 1.0).abs() ** ord).masked_fill(zero, at_zero)


def nuclear_norm(x: Tensor, dim: Sequence[int] = (-2, -1), keepdim: bool = False) -> Tensor:
    """The sum of the singular values of the matrices in two dims."""
    rows, columns = (one_axis("nuclear_norm", x.ndim, d) for d in dim)
    values = apply(OPS["svdvals"], (x.movedim((rows, columns), (-2, -1)),), {})
    out = values.sum(-1)
    if keepdim:
        out = out.unsqueeze(-1).unsqueeze(-1).movedim((-2, -1), (rows, columns))
    return out


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The p-norm over dims (2 for "fro"; "nuc", of matrices: the sum of singular values)."""
    if p == "nuc":
        x = input if dtype is None else cast(input, dtype)
        if dim is None and x.ndim != 2 or dim is not None and len(dim) != 2:
            raise RuntimeError(
                "[norm] expected a matrix, or two dims, for the nuclear norm; got "
                f"{x._type} and dim {dim}"
            )
        return nuclear_norm(x, (0, 1) if dim is None else dim, keepdim)
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"[norm] expected p to be a number, 'fro' or 'nuc'; got {p!r}")
    return vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    """Differences of neighbours along `dim`, n times."""
    if n < 0:
        raise RuntimeError(f"order must be non-negative but got {n}")
    if not input.ndim:
        raise RuntimeError("diff expects input to be at least one-dimensional")
    axis = one_axis("diff", input.ndim, dim)
    if n == 0:
        return apply(OPS["clone"], (input,), {})
    parts: Sequence[Tensor] = [t for t in (prepend, input, append) if t is not None]
    if len(parts) > 1:
        input = apply(OPS["concatenate"], tuple(parts), {"axis": axis})
    for _ in range(n):
        size = input.shape[axis]
        if size == 0:
            break
        high, low = input.narrow(axis, 1, size - 1), input.narrow(axis, 0, size - 1)
        input = high ^ low if input.dtype is dtypes.bool_ else high - low
    return input
