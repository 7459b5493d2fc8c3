"""Order statistics, histograms and moments: median, quantile, mode, histc, unique, cov, ...

Functions whose result has a size that depends on values (unique, bincount) read the data, so they
end a trace; all others are composed of ops.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.casting import wide
from jitgrad.compiler.ops.record import OPS
from jitgrad.compiler.symbolic import Sym
from jitgrad.composites import composite
from jitgrad.creation import arange, host_tensor, linspace, placed
from jitgrad.dispatch import apply
from jitgrad.functions.args import (
    expect_dtype,
    expect_one_device,
    expect_range,
    expect_real,
    expect_shape,
    one_axis,
)
from jitgrad.functions.reduce import argmax, argsort, sort, sorted_first
from jitgrad.functions.select import positions_of, scatter_add, searchsorted
from jitgrad.functions.shape import separate
from jitgrad.promotion import cast, constant, floating
from jitgrad.return_types import TYPES
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category
from jitgrad.state import state
from jitgrad.tape.names import naming
from jitgrad.tensor import Tensor


# -- order statistics ----------------------------------------------------------------------------
@naming("KthvalueBackward0")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest element (from 1) along `dim`, and its index."""
    if input.dtype is dtypes.bool_:
        raise NotImplementedError(f"[kthvalue] expected numbers; got {input._type}; use .int()")
    axis = one_axis("kthvalue", input.ndim, dim)
    size = input.shape[axis] if input.ndim else 1
    if not 1 <= k <= size:
        raise RuntimeError(f"[kthvalue] selected number k out of range for dimension {dim}: {k}")
    if not input.ndim:
        return TYPES["kthvalue"](*sort(input, axis))
    values, indices = sorted_first(input, axis, False, k)
    at = indices.narrow(axis, k - 1, 1)
    return _dropped("kthvalue", values.narrow(axis, k - 1, 1), at, axis, keepdim)


def _dropped(name: str, values: Tensor, indices: Tensor, axis: int, keepdim: bool) -> Any:
    """The result of function `name`, with or without the reduced dim."""
    if not keepdim:
        values, indices = values.squeeze(axis), indices.squeeze(axis)
    return TYPES[name](values, indices)


@naming("MedianBackward{by_dims}")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all; over a dim: (values, indices). NaN wins."""
    return _median("median", input, dim, keepdim, False)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of what is not NaN; over a dim: (values, indices)."""
    return _median("nanmedian", input, dim, keepdim, True)


def _median(name: str, input: Tensor, dim: int | None, keepdim: bool, skip: bool) -> Any:
    if input.dtype is dtypes.bool_ or input.dtype.is_complex:
        raise NotImplementedError(f"[{name}] expected real numbers; got {input._type}")
    if dim is None:
        flat = input.reshape(-1)
        if flat.shape[0] == 0:
            value = math.nan if input.is_floating_point() else -(2 ** (input.dtype.bits - 1))
            return constant(value, input.dtype).clone()
        if flat.dtype.is_floating_point and flat.requires_grad:
            return _shared(flat, flat.detach().gather(0, _median_index(flat.detach(), 0, skip)))
        return flat.gather(0, _median_index(flat, 0, skip)).reshape(())
    axis = one_axis(name, input.ndim, dim)
    if not input.ndim:
        return TYPES[name](input.clone(), arange(1).reshape(()))
    if input.shape[axis] == 0:
        raise IndexError(
            f"{name}(): Expected reduction dim {axis} to have non-zero size; got {input._type}"
        )
    indices = _median_index(input, axis, skip)
    return _dropped(name, input.gather(axis, indices), indices, axis, keepdim)


def _shared(flat: Tensor, value: Tensor) -> Tensor:
    """value (1), an element of flat, as a scalar whose gradient all that equal it share."""
    other = (flat != value) & ~(flat.isnan() & value.isnan())
    low = value == -math.inf  # the others are made worse than it in the direction that is left
    best = _best(flat.masked_fill(other, -math.inf), "amax")
    return apply(
        OPS["where"], (low.reshape(()), _best(flat.masked_fill(other, math.inf), "amin"), best), {}
    )


def _best(x: Tensor, name: str) -> Tensor:
    return apply(OPS[name], (x,), {"axes": (0,), "keepdim": False, "nans": True})


def _median_index(x: Tensor, axis: int, skip: bool) -> Tensor:
    """Where the lower median is along axis (kept): of all but NaN if `skip`, else the first NaN."""
    half = (x.shape[axis] - 1) // 2
    if skip and x.is_floating_point():
        count = (~x.isnan()).sum(axis, True)
        return argsort(x, axis).gather(axis, ((count - 1) // 2).clamp(min=0))
    fixed = not isinstance(half, Sym)  # else a count would fix the size
    order = sorted_first(x, axis, False, half + 1)[1] if fixed else argsort(x, axis)
    middle = order.narrow(axis, half, 1)
    if not x.is_floating_point():
        return middle
    nan = x.isnan()
    first = argmax(nan.to(dtypes.int64), axis, True)
    return apply(OPS["where"], (nan.any(axis, True), first, middle), {})


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element along `dim` (the least of them), and an index where it is."""
    axis = one_axis("mode", input.ndim, dim)
    if not input.ndim:
        return TYPES["mode"](input.clone(), arange(1).reshape(()))
    size = input.shape[axis]
    if size == 0:
        raise IndexError(
            f"mode(): Expected reduction dim {axis} to have non-zero size; got {input._type}"
        )
    x = cast(input, dtypes.uint8) if input.dtype is dtypes.bool_ else input
    values, indices = sort(x.detach().movedim(axis, -1), -1)
    place = arange(size).expand(values._type.shape)
    starts = values.narrow(-1, 1, size - 1) != values.narrow(-1, 0, size - 1)
    begin = apply(OPS["where"], (starts, place.narrow(-1, 1, size - 1), constant(0, dtypes.int64)),
                  {})  # fmt: skip
    first = apply(OPS["concatenate"], (place.narrow(-1, 0, 1), begin), {"axis": values.ndim - 1})
    run = place - apply(OPS["cummax"], (first,), {"axis": values.ndim - 1})
    at = indices.gather(-1, argmax(run, -1, True)).movedim(-1, axis)
    return _dropped("mode", input.gather(axis, at), at, axis, keepdim)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@wide
def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:  # fmt: skip
    """The q-th quantiles (q in [0, 1], a number or a vector) over a dim, or of all. NaN wins.

    A vector q gives a leading dim. interpolation between neighbours: "linear", "lower", "higher",
    "midpoint" or "nearest". Raises RuntimeError for other dtypes than float32 and float64.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@wide
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *,
    interpolation: str = "linear",
) -> Tensor:  # fmt: skip
    """quantile of what is not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def _quantile(
    name: str, input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool
) -> Tensor:
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(
            f"{name}() input tensor must be either float or double dtype; got {input._type}"
        )
    if interpolation not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of {', '.join(_INTERPOLATIONS)}; got "
            f"{interpolation!r}"
        )
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        q = constant(q, input.dtype)
    if q.dtype is not input.dtype:
        raise RuntimeError(
            f"{name}() q tensor must be same dtype as the input tensor; got {q._type} and "
            f"{input._type}"
        )
    if q.ndim > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor; got {q._type}")
    text = f"{name}() q values must be in the range [0, 1]; got {{value}}"
    q = expect_range(q, 0.0, 1.0, RuntimeError, text)
    if input.numel() == 0:
        raise RuntimeError(f"{name}() input tensor must be non-empty; got {input._type}")
    rank = input.ndim
    if dim is None:
        x, kept = input.reshape(-1), (1,) * rank
    else:
        axis = one_axis(name, rank, dim)
        x = input.movedim(axis, -1) if rank else input.reshape(1)
        shape: Any = input._type.shape
        kept = tuple(1 if k == axis else d for k, d in enumerate(shape))
    ordered = sort(x, -1).values
    size = ordered.shape[-1]
    nan = x.isnan()
    rows = q.reshape(-1).expand((*x._type.shape[:-1], q.numel()))
    if skip:
        rank_of = rows * ((~nan).sum(-1, True) - 1).clamp(min=0)
    else:
        rank_of = apply(
            OPS["where"], (nan.any(-1, True), constant(size - 1, q.dtype), rows * (size - 1)), {}
        )
    if interpolation == "lower":
        rank_of = rank_of.floor()
    elif interpolation == "higher":
        rank_of = rank_of.ceil()
    elif interpolation == "nearest":
        rank_of = rank_of.round()
    below = rank_of.floor().detach()
    out = ordered.gather(-1, cast(below, dtypes.int64))
    if interpolation in ("linear", "midpoint"):
        above = ordered.gather(-1, cast(rank_of.ceil().detach(), dtypes.int64))
        weight = constant(0.5, q.dtype) if interpolation == "midpoint" else rank_of - below
        out = out.lerp(above, weight.expand(out._type.shape))
    out = out.movedim(-1, 0)
    if q.ndim == 0:
        out = out.squeeze(0)
        return out.reshape(kept) if keepdim else out
    return out.reshape((q.numel(), *kept)) if keepdim else out


# -- histograms and distinct elements --------------------------------------------------------------
@composite
def histc(input: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """How many elements fall into each of `bins` equal parts of [min, max] (the elements' own range
    when both are 0). The last part includes its upper end; what is outside does not count."""
    if bins <= 0:
        raise RuntimeError(f"torch.histc(): bins must be > 0, but got {bins}")
    if not input.is_floating_point():
        raise NotImplementedError(
            f"[histc] expected a floating tensor; got {input._type}; use .float()"
        )
    if not isinstance(min, Tensor) and not isinstance(max, Tensor) and min > max:
        raise RuntimeError(f"torch.histc: max must be larger than min; got min={min}, max={max}")
    x = input.detach().reshape(-1)
    low, high = _range(x, min, max, 1)
    inside = (x >= low) & (x <= high)
    place = ((x - low) / (high - low) * bins).floor().clamp(0, bins - 1)
    place = cast(apply(OPS["where"], (inside, place, constant(0, x.dtype)), {}), dtypes.int64)
    return scatter_add(input.new_zeros(bins), 0, place, cast(inside, x.dtype))


def _range(x: Tensor, low: Any, high: Any, margin: float) -> tuple[Tensor, Tensor]:
    """The bounds as 0-d tensors: the elements' own where both are 0; where they are equal, moved
    apart by `margin` each."""
    if not isinstance(low, Tensor) and low == high == 0:
        if x.numel():
            low, high = x.amin(), x.amax()
        else:
            low, high = constant(0, x.dtype), constant(1, x.dtype)
    else:
        low, high = (constant(v, x.dtype) if not isinstance(v, Tensor) else v for v in (low, high))
    same = low == high
    return (
        apply(OPS["where"], (same, low - margin, low), {}),
        apply(OPS["where"], (same, high + margin, high), {}),
    )


def histogram(
    input: Tensor, bins: Any = 100, *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Any:  # fmt: skip
    """(counts, edges) of elements between ascending edges: those of `bins` where it is a vector,
    else that number of equal parts of `range` (of the elements' own by default).

    weight: what each element counts; density: counts over their sum and the widths of the parts.
    """
    if not input.is_floating_point():
        raise NotImplementedError(f"[histogram] expected a floating tensor; got {input._type}")
    x = input.detach().reshape(-1)
    _expect_weight("histogram", input, weight, input._type.shape)
    edges, place, inside = _buckets("histogram", x, bins, range)
    counts = cast(inside, x.dtype)
    if weight is not None:
        counts = counts * weight.detach().reshape(-1)
    hist = scatter_add(x.new_zeros(edges.shape[0] - 1), 0, place, counts)
    if density:
        hist = hist / (hist.sum() * (edges[1:] - edges[:-1]))
    return TYPES["histogram"](hist, separate(edges, bins) if isinstance(bins, Tensor) else edges)


def _expect_weight(name: str, input: Tensor, weight: Tensor | None, shape: Sequence[Any]) -> None:
    """Raises RuntimeError unless the weight is of input's dtype and of the shape."""
    expect_dtype(name, input.dtype, weight=weight)
    expect_shape(name, shape, weight=weight)


def _buckets(name: str, x: Tensor, bins: Any, given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(edges, the part that each element falls into, whether it falls into any)."""
    if isinstance(bins, Tensor):
        expect_dtype(name, x.dtype, bins=bins)
        edges = bins
    else:
        if bins <= 0:
            raise RuntimeError(f"torch.{name}(): bins must be > 0, but got {bins}")
        least, most = given or (0, 0)
        low, high = _range(x, least, most, 0.5)
        step = linspace(0, 1, bins + 1, dtype=dtypes.float64)
        edges = cast(cast(low, dtypes.float64) * (1 - step) + cast(high, dtypes.float64) * step,
                     x.dtype)  # fmt: skip
    count = edges.shape[0] - 1
    inside = (x >= edges[0]) & (x <= edges[-1])
    place = (searchsorted(edges.contiguous(), x, right=True) - 1).clamp(0, count - 1)
    return edges, place, inside


def histogramdd(
    input: Tensor, bins: Any, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Any:  # fmt: skip
    """histogram of points (..., D) in D dims: `bins` is a number, one for each dim, or the edges
    of each; `range` the lower and upper bound of each dim, one after the other."""
    if input.ndim < 2 or not input.is_floating_point():
        raise RuntimeError(
            f"torch.histogramdd: input tensor should have at least 2 dimensions, and a floating "
            f"dtype; got {input._type}"
        )
    _expect_weight("histogramdd", input, weight, input._type.shape[:-1])
    dims = operator.index(input.shape[-1])
    points = input.detach().reshape(-1, dims)
    if isinstance(bins, int):
        bins = [bins] * dims
    if len(bins) != dims or (range is not None and len(range) != 2 * dims):
        raise RuntimeError(
            f"torch.histogramdd: expected bins for each of {dims} dims, and twice as many bounds; "
            f"got {len(bins)} and range={range}"
        )
    sizes, all_edges = [], []
    flat: Any = 0
    every: Any = True
    for k, part in enumerate(bins):
        bounds = None if range is None else (range[2 * k], range[2 * k + 1])
        edges, place, inside = _buckets("histogramdd", points[:, k], part, bounds)
        count = operator.index(edges.shape[0]) - 1
        flat, every = place + flat * count, inside & every
        sizes.append(count)
        all_edges.append(edges)
    counts = cast(every, points.dtype)
    if weight is not None:
        counts = counts * weight.detach().reshape(-1)
    hist = scatter_add(points.new_zeros(math.prod(sizes)), 0, flat, counts).reshape(sizes)
    if density:
        hist = hist / hist.sum()
        for k, edges in enumerate(all_edges):
            width = (edges[1:] - edges[:-1]).reshape((-1,) + (1,) * (dims - 1 - k))
            hist = hist / width
    return TYPES["histogramdd"](hist, tuple(all_edges))


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each integer from 0 on occurs in a vector, or the sum of weights there (in their
    dtype if floating, else float64). Under jit Python looks at the largest."""
    if input.dtype.category is not Category.INT or input.ndim != 1:
        kind = RuntimeError if input.dtype.category is Category.INT else NotImplementedError
        raise kind(f"bincount only supports 1-d non-negative integral inputs; got {input._type}")
    expect_one_device("bincount", input, weights)
    if state.recorder is not None and state.lazy is None and not state.levels:
        return _counted(input, weights, minlength)
    array = input._array("bincount")
    if array.size and array.min() < 0:
        first = array[array < 0][0]
        raise RuntimeError(f"bincount only supports 1-d non-negative integral inputs; got {first}")
    if weights is None:
        counts = host_tensor(np.bincount(array, None, minlength).astype(np.int64))
        return placed(counts, input._type.device)
    if weights.numel() != input.numel():
        raise RuntimeError(
            f"weights should be 1-d and have the same length as input; got {weights._type}"
        )
    sums = np.bincount(array, weights._array("bincount").astype(np.float64), minlength)
    out = placed(host_tensor(sums.astype(np.float64)), input._type.device)
    return cast(out, weights.dtype) if weights.dtype is dtypes.float32 else out


def _counted(input: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    """bincount by ops. Python looks at the largest number."""
    text = "bincount only supports 1-d non-negative integral inputs; got {value}"
    numbers = expect_range(cast(input, dtypes.int64), 0, 2**63 - 1, RuntimeError, text)
    if weights is None:
        values = numbers.new_ones(numbers.shape)
    else:
        values = cast(weights.detach(), dtypes.float64)
    size = int(numbers.max()) + 1 if input.numel() else 0
    out = scatter_add(values.new_zeros(max(size, minlength)), 0, numbers, values)
    floats = weights is not None and weights.dtype is dtypes.float32
    return cast(out, dtypes.float32) if floats else out


def _expect_distinct(name: str, input: Tensor, dim: int | None) -> None:
    """Raises NotImplementedError for complex numbers, RuntimeError for slices without elements."""
    expect_real(name, input)
    if dim is not None:
        axis = one_axis(name, input.ndim, dim)
        if 0 in [n for k, n in enumerate(input.shape) if k != axis] and input.shape[axis]:
            raise RuntimeError(
                f"[{name}] expected slices with elements; got {input._type} and dim {dim}"
            )


def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """The distinct elements (slices along dim), ascending; with the place of each element among
    them, and how often each occurs, where asked. NaN is distinct from NaN. Under jit Python looks
    at how many there are; slices along dim end a trace."""
    _expect_distinct("unique", input, dim)
    if state.recorder is not None and state.lazy is None and not state.levels and dim is None:
        flat = input.reshape(-1)
        ordered, order = sort(flat)
        found, places, lengths = _runs(ordered)
        places = places.new_zeros(places.shape).scatter(0, order, places)
        return _asked(found, places.reshape(input.shape), lengths, return_inverse, return_counts)
    array = input._array("unique")
    axis = None if dim is None else one_axis("unique", input.ndim, dim)
    keys = array.astype(np.float32) if input.dtype is dtypes.bfloat16 else array
    values, inverse, counts = np.unique(
        keys, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    shape = array.shape if axis is None else (array.shape[axis],)
    return _distinct(input, values, inverse.reshape(shape), counts, return_inverse, return_counts)


def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (slices along dim) without those equal to the one before. Under jit Python looks
    at how many there are; slices along dim end a trace."""
    _expect_distinct("unique_consecutive", input, dim)
    if state.recorder is not None and state.lazy is None and not state.levels and dim is None:
        found, places, lengths = _runs(input.reshape(-1))
        return _asked(found, places.reshape(input.shape), lengths, return_inverse, return_counts)
    array = input._array("unique_consecutive")
    axis = None if dim is None else one_axis("unique_consecutive", input.ndim, dim)
    rows = array.reshape(-1) if axis is None else np.moveaxis(array, axis, 0)
    flat = rows.reshape(rows.shape[0], math.prod(rows.shape[1:]))
    new = np.ones(len(flat), bool)
    new[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(new)
    values = rows[starts] if axis is None else np.moveaxis(rows[starts], 0, axis)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(starts, len(flat)))
    inverse = inverse.reshape(array.shape) if axis is None else inverse
    return _distinct(input, values, inverse, counts, return_inverse, return_counts)


def _runs(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a vector: the first of each run of equal elements, the number of its run for each element,
    and how long each run is."""
    flat = flat.detach()
    size = operator.index(flat.shape[0])
    new = flat.new_ones(size, dtype=dtypes.bool_)
    if size > 1:
        new[1:] = flat[1:] != flat[:-1]
    starts = positions_of(new)
    ends = starts.new_full(starts.shape, size)
    ends[:-1] = starts[1:]
    return flat[starts], new.cumsum(0) - 1, ends - starts


def _asked(values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool) -> Any:
    """What unique returns."""
    out = [values, *([inverse] if with_inverse else []), *([counts] if with_counts else [])]
    return out[0] if len(out) == 1 else tuple(out)


def _distinct(
    input: Tensor, values: Any, inverse: Any, counts: Any, with_inverse: bool, with_counts: bool
) -> Any:
    kinds: Any = (input.dtype.np, np.int64, np.int64)
    arrays = zip((values, inverse, counts), kinds, strict=True)
    found, places, lengths = [
        placed(host_tensor(np.array(x, t, order="C")), input._type.device) for x, t in arrays
    ]
    return _asked(found, places, lengths, with_inverse, with_counts)


# -- moments ---------------------------------------------------------------------------------------
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The covariance matrix of variables in rows, observations in columns (a vector is one row).

    fweights: how often each observation counts (integers); aweights: its relative weight.
    Divided by (sum of weights - correction * sum(w * aweights) / sum of weights).
    """
    if input.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    if input.dtype is dtypes.bool_:
        raise RuntimeError("cov(): bool dtype is not supported for input; use .float()")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    x = cast(x, floating(x.dtype))
    count = x.shape[1]
    weights = None
    for given, name in ((fweights, "fweights"), (aweights, "aweights")):
        if given is None:
            continue
        if given.ndim > 1 or given.numel() != count:
            raise RuntimeError(
                f"cov(): expected {name} to have one or fewer dimensions and {count} elements; got "
                f"{given._type}"
            )
        if name == "fweights" and given.dtype.category is not Category.INT:
            raise RuntimeError(
                f"cov(): expected fweights to have integral dtype; got {given._type}"
            )
        if name == "aweights" and not given.is_floating_point():
            raise RuntimeError(f"cov(): expected aweights of a floating dtype; got {given._type}")
        text = f"cov(): {name} cannot be negative; got {{value}}"
        given = expect_range(given, 0, None, RuntimeError, text)
        weights = given if weights is None else weights * given
    if weights is None:
        center = x - x.sum(1, True) / count
        total: Any = max(count - correction, 0)
        out = center @ center.T / total
    else:
        w = weights
        total = w.sum()
        center = x - (x * w).sum(1, True) / total
        if aweights is None:
            norm = total - correction
        else:
            norm = total - correction * (w * aweights).sum() / total
        out = (center * w) @ center.T / norm.clamp(min=0)
    return out.squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """The correlation coefficients of variables in rows: covariances over standard deviations,
    within [-1, 1]."""
    if input.ndim > 2:
        raise RuntimeError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with "
            f"{input.ndim} dimensions"
        )
    c = cov(input)
    if c.ndim == 0:
        return c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation.unsqueeze(-1) / deviation.unsqueeze(0)).clamp(-1, 1)
