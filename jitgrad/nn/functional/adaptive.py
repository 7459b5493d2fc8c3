"""Adaptive pooling: as many windows as the output has elements, which cover the input evenly.

Window i of m over a dim of size n reads elements floor(i n / m) up to, but not including,
ceil((i + 1) n / m).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.casting import wide_in_3d
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.symbolic import Sym, is_static, prod
from jitgrad.creation import arange, tensor
from jitgrad.functions.shape import cat, slice_along
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.tables import Array, Table, resampled, table
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor

Size = int | None
Sizes = int | None | Sequence[Size]


def _windows(n: int, m: int) -> tuple[Array, Array]:
    """(first element, number of elements) of each of m windows."""
    i = np.arange(m)
    first = i * n // m
    return first, -(-(i + 1) * n // m) - first


@functools.lru_cache(maxsize=256)
def _mean_table(n: int, m: int) -> Table:
    first, count = _windows(n, m)
    taps = np.arange(count.max(initial=1))
    inside = taps < count[:, None]
    places = np.where(inside, first[:, None] + taps, -1)
    return table(n, places, inside / count[:, None])


@functools.lru_cache(maxsize=256)
def _window_table(n: int, m: int) -> Array:
    """The elements of each window, (m, k); shorter ones repeat their last."""
    first, count = _windows(n, m)
    return first[:, None] + np.minimum(np.arange(count.max(initial=1)), count[:, None] - 1)


def _checked(n: int, op: str, input: Tensor, output_size: Sizes, batch_only: bool) -> list[int]:
    """The output's sizes, None replaced by the input's. Raises for what does not fit."""
    expect_tensors(op, input=input)
    several = isinstance(output_size, (tuple, list))
    if input.dim() not in (n + 1, n + 2):
        kind = ValueError if several and n > 1 and input.dim() <= n else RuntimeError
        raise kind(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims; got "
            f"{tuple(input.shape)}"
        )
    spatial = input.shape[input.dim() - n :]
    sizes: list[Any] = list(output_size) if several else [output_size] * n  # type: ignore[arg-type]
    if len(sizes) != n:
        raise RuntimeError(f"[{op}] expected output_size of {n} sizes; got {output_size}")
    try:
        wanted = [
            d if s is None and n > 1 else operator.index(s)
            for s, d in zip(sizes, spatial, strict=True)
        ]
    except TypeError:
        raise TypeError(f"[{op}] expected output_size of ints; got {output_size!r}") from None
    if any(s < 0 for s in wanted):
        raise RuntimeError(f"[{op}] expected sizes of at least 0; got {tuple(wanted)}")
    if any(d == 0 for d in (spatial if batch_only else input.shape[input.dim() - n - 1 :])):
        raise RuntimeError(
            f"[{op}] expected an input with no empty dim but the batch; got {tuple(input.shape)}"
        )
    if not input.is_floating_point():
        raise NotImplementedError(
            f"[{op}] is not implemented for {input.dtype}; got {tuple(input.shape)}; convert it "
            "with .float()"
        )
    return wanted


@wide_in_3d
def adaptive_avg_pool(n: int, input: Tensor, output_size: Sizes) -> Tensor:
    """adaptive_avg_pool1d, 2d or 3d, by the number n of spatial dims."""
    op = f"adaptive_avg_pool{n}d"
    sizes = _checked(n, op, input, output_size, batch_only=True)
    lead = input.dim() - n
    if all(not isinstance(s, Sym) and s == 1 for s in sizes):
        return input.mean(tuple(range(lead, input.dim())), keepdim=True)
    if not is_static(input.shape[lead:]):
        x = input.to(dtypes.float32) if input.dtype.itemsize == 2 else input
        x = _of_windows(x, lead, sizes, lambda part, dim: part.mean(dim, keepdim=True))
        return x.to(input.dtype)
    spatial = [int(d) for d in input.shape[lead:]]
    if all(s and d % s == 0 for d, s in zip(spatial, sizes, strict=True)):
        kernel = tuple(d // s for d, s in zip(spatial, sizes, strict=True))
        out: Tensor = OPS["avg_pool"](
            input, kernel=kernel, stride=kernel, padding=(0,) * n, ceil_mode=False,
            count_include_pad=True, divisor_override=None,
        )  # fmt: skip
        return out
    x = input.to(dtypes.float32) if input.dtype.itemsize == 2 else input
    for k in range(n - 1, -1, -1):
        if spatial[k] != sizes[k]:
            x = resampled(x, lead + k, _mean_table(spatial[k], sizes[k]))
    return x.to(input.dtype)


@wide_in_3d
def adaptive_max_pool(n: int, input: Tensor, output_size: Sizes, return_indices: bool) -> Any:
    """adaptive_max_pool1d, 2d or 3d, by the number n of spatial dims."""
    op = f"adaptive_max_pool{n}d"
    sizes = _checked(n, op, input, output_size, batch_only=False)
    lead = input.dim() - n
    if all(not isinstance(s, Sym) and s == 1 for s in sizes) and any(
        isinstance(d, Sym) for d in input.shape[lead:]
    ):
        values, places = _best(input.flatten(lead), lead)  # whatever the size
        shape = (*input.shape[:lead], *sizes)
        values, places = values.reshape(shape), places.reshape(shape)
        return (values, places) if return_indices else values
    if not is_static(input.shape[lead:]):
        values, places = _largest_of_any_size(input, lead, sizes)
        values = input.clone() if values is input else values
        return (values, places) if return_indices else values
    spatial = [int(d) for d in input.shape[lead:]]
    if all(s and d % s == 0 for d, s in zip(spatial, sizes, strict=True)):
        kernel = tuple(d // s for d, s in zip(spatial, sizes, strict=True))
        one = (1,) * n
        values, places = OPS["max_pool"](
            input, kernel=kernel, stride=kernel, padding=(0,) * n, dilation=one, ceil_mode=False
        )
    else:
        places = _largest(input.detach(), n, spatial, sizes)
        where = places.reshape((*input.shape[:lead], math.prod(sizes)))
        values = input.flatten(lead).gather(-1, where).reshape(tuple(places.shape))
    return (values, places) if return_indices else values


def _of_windows(x: Tensor, lead: int, sizes: Sequence[int], reduced: Any) -> Tensor:
    """x of any size with its dims from `lead` on reduced, the last one first, window by window."""
    for dim in range(x.dim() - 1, lead - 1, -1):
        n, m = x.shape[dim], sizes[dim - lead]
        if isinstance(m, Sym):  # it is n: None was given
            continue
        parts = [reduced(slice_along(x, dim, *bound), dim) for bound in _bounds(n, m)]
        x = cat(parts, dim) if parts else slice_along(x, dim, 0, 0)
    return x


def _bounds(n: Any, m: int) -> list[tuple[Any, Any]]:
    """The first element of each of m windows, and the one past its last."""
    return [(i * n // m, ((i + 1) * n + m - 1) // m) for i in range(m)]


def _best(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest along dim, which is kept, and where it is."""
    at = OPS["argpool"](x, axes=(dim,), keepdim=True)
    return x.gather(dim, at), at


def _largest_of_any_size(x: Tensor, lead: int, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest of each window, and where in x's spatial dims, flattened, the first such (or the
    last NaN) is: dim by dim, the last one first."""
    spatial = x.shape[lead:]
    places = arange(prod(spatial), device=x.device).reshape(spatial).expand(x.shape)
    for dim in range(x.dim() - 1, lead - 1, -1):
        n, m = x.shape[dim], sizes[dim - lead]
        if isinstance(m, Sym):  # it is n: None was given
            continue
        best = [slice_along(x, dim, 0, 0)], [slice_along(places, dim, 0, 0)]
        for bound in _bounds(n, m):
            value, at = _best(slice_along(x, dim, *bound), dim)
            best[0].append(value)
            best[1].append(slice_along(places, dim, *bound).gather(dim, at))
        x, places = cat(best[0], dim), cat(best[1], dim)
    return x, places


def _largest(x: Tensor, n: int, spatial: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Where in x's spatial dims, flattened, the maximum of each window is: the first, or the last
    NaN."""
    lead = x.dim() - n
    tables = [_window_table(d, s) for d, s in zip(spatial, sizes, strict=True)]
    for k, t in enumerate(tables):  # (*lead, m, k, m, k, ...)
        x = x.index_select(lead + 2 * k, tensor(t.reshape(-1))).unflatten(lead + 2 * k, t.shape)
    order = [lead + 2 * k + j for j in (0, 1) for k in range(n)]
    x = x.permute((*range(lead), *order)).flatten(lead + n)
    best = OPS["argpool"](x, axes=(x.dim() - 1,), keepdim=False)
    numbers = np.zeros((), np.int64)
    for k, t in enumerate(tables):  # (m, m, ..., k, k, ...): the place of each window's elements
        shape = [1] * (2 * n)
        shape[k], shape[n + k] = t.shape
        numbers = numbers * spatial[k] + t.reshape(shape)
    row = np.arange(math.prod(sizes)).reshape(tuple(sizes)) * math.prod(numbers.shape[n:])
    return tensor(numbers.reshape(-1))[best + tensor(row)]


def adaptive_avg_pool1d(input: Tensor, output_size: int | Sequence[int]) -> Tensor:
    """Means of (N, C, L) or (C, L) over output_size windows; see adaptive_avg_pool2d."""
    return adaptive_avg_pool(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """Means of (N, C, H, W) or (C, H, W) over as many windows as output_size says.

    One int stands for both dims, None for the input's size. Raises RuntimeError for sizes that do
    not fit, NotImplementedError for dtypes that are not floating.
    """
    return called(adaptive_avg_pool(2, input, output_size), "AdaptiveAvgPool2DBackward0")


def adaptive_avg_pool3d(input: Tensor, output_size: Sizes) -> Tensor:
    """Means of (N, C, D, H, W) or (C, D, H, W) over windows; see adaptive_avg_pool2d."""
    return called(adaptive_avg_pool(3, input, output_size), "AdaptiveAvgPool3DBackward0")


def adaptive_max_pool1d(
    input: Tensor, output_size: int | Sequence[int], return_indices: bool = False
) -> Any:
    """Maxima of (N, C, L) or (C, L) over output_size windows; see adaptive_max_pool2d."""
    return adaptive_max_pool(1, input, output_size, return_indices)


@naming("AdaptiveMaxPool2DBackward0")
def adaptive_max_pool2d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """Maxima of (N, C, H, W) or (C, H, W) over as many windows as output_size says.

    With return_indices also the int64 indices, into H * W, of the first maximum of each. Sizes and
    errors as adaptive_avg_pool2d's.
    """
    return adaptive_max_pool(2, input, output_size, return_indices)


@naming("AdaptiveMaxPool3DBackward0")
def adaptive_max_pool3d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """Maxima of (N, C, D, H, W) or (C, D, H, W) over windows; see adaptive_max_pool2d."""
    return adaptive_max_pool(3, input, output_size, return_indices)
