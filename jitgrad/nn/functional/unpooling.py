"""Max unpooling, which puts values back where max pooling found them; and fractional max pooling,
whose windows are drawn at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jitgrad.functions as ops
from jitgrad.autograd.modes import is_grad_enabled
from jitgrad.casting import wide
from jitgrad.creation import rand, tensor
from jitgrad.functions.select import expect_positions
from jitgrad.nn.functional.args import (
    IntOrInts,
    expect_dtype,
    expect_floating,
    expect_tensors,
    per_dim,
)
from jitgrad.runtime import dtypes
from jitgrad.state import state
from jitgrad.tensor import Tensor


# -- unpooling -------------------------------------------------------------------------------------
def _unpooled_sizes(
    n: int, op: str, input: Tensor, kernel_size: IntOrInts, stride: Any, padding: IntOrInts,
    output_size: Sequence[int] | None,
) -> tuple[int, ...]:  # fmt: skip
    kernel = per_dim(kernel_size, n, op, "kernel_size")
    step = kernel if stride is None else per_dim(stride, n, op, "stride")
    pads = per_dim(padding, n, op, "padding")
    spatial = input.shape[input.dim() - n :]
    default = tuple(
        (q - 1) * s + k - 2 * p for q, s, k, p in zip(spatial, step, kernel, pads, strict=True)
    )
    if output_size is None:
        return default
    wanted = tuple(int(d) for d in output_size)
    if len(wanted) == n + 2:
        wanted = wanted[2:]
    if len(wanted) != n or any(
        not d - s < w < d + s for d, s, w in zip(default, step, wanted, strict=True)
    ):
        raise ValueError(
            f"[{op}] expected output_size of {n} (or {n + 2}) sizes less than a stride from "
            f"{default}; got {tuple(output_size)} for input {tuple(input.shape)}"
        )
    return wanted


@wide
def max_unpool(
    n: int, input: Tensor, indices: Tensor, kernel_size: IntOrInts,
    stride: IntOrInts | None = None, padding: IntOrInts = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_unpool1d, 2d or 3d, by the number n of spatial dims."""
    op = f"max_unpool{n}d"
    expect_tensors(op, input=input, indices=indices)
    expect_floating(op, "input", input)
    if input.dim() not in (n + 1, n + 2):
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims; got "
            f"{tuple(input.shape)}"
        )
    if indices.dtype is not dtypes.int64 or tuple(indices.shape) != tuple(input.shape):
        raise RuntimeError(
            f"[{op}] expected int64 indices of input's shape {tuple(input.shape)}; got "
            f"{indices.dtype} {tuple(indices.shape)}; pass what max_pool{n}d returned"
        )
    sizes = _unpooled_sizes(n, op, input, kernel_size, stride, padding, output_size)
    lead = tuple(input.shape[: input.dim() - n])
    flat, count = indices.flatten(len(lead)), math.prod(sizes)
    where = expect_positions(op, flat, len(lead), count, RuntimeError)
    values = input.flatten(len(lead))
    out = input.new_zeros((*lead, math.prod(sizes))).scatter(-1, where, values.detach())
    if state.levels or (input.requires_grad and is_grad_enabled()):
        # Of several values for one place the last is there, and all get its gradient, as PyTorch's
        # do: zeros, each with the derivative 1 by its value, are added where values are.
        zeros = ops.where(values.isfinite(), values - values.detach(), 0.0)
        out = out.scatter_add(-1, where, zeros)
    return out.reshape((*lead, *sizes))


def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_pool1d partly undone, for (N, C, L) or (C, L); see max_unpool2d."""
    return max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_pool2d partly undone: (N, C, H, W) or (C, H, W) at its indices, zeros elsewhere.

    The sizes are (H - 1) * stride - 2 * padding + kernel_size unless output_size says which of
    those that pool to H. Of several values for one place the last counts; all get its gradient.
    Raises ValueError for an output_size that does not pool to the input's, IndexError for indices
    outside, RuntimeError for dtypes and shapes.
    """
    return max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """max_pool3d partly undone, for (N, C, D, H, W) or (C, D, H, W); see max_unpool2d."""
    return max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


# -- fractional pooling ----------------------------------------------------------------------------
@wide
def fractional_max_pool(
    n: int, input: Tensor, kernel_size: IntOrInts, output_size: IntOrInts | None = None,
    output_ratio: Any = None, return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """fractional_max_pool2d or 3d, by the number n of spatial dims."""
    op = f"fractional_max_pool{n}d"
    expect_tensors(op, input=input)
    if input.dim() not in (n + 1, n + 2) or 0 in input.shape[-n - 1 :]:
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims, empty in the batch at "
            f"most; got {tuple(input.shape)}"
        )
    if not input.is_floating_point():
        raise NotImplementedError(f"[{op}] is not implemented for {input.dtype}; convert it")
    kernel = per_dim(kernel_size, n, op, "kernel_size")
    x = input if input.dim() == n + 2 else input.unsqueeze(0)
    spatial = [int(d) for d in x.shape[2:]]
    if output_size is not None:
        sizes = per_dim(output_size, n, op, "output_size")
    elif output_ratio is not None:
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else [output_ratio] * n
        sizes = tuple(int(d * r) for d, r in zip(spatial, ratios, strict=True))
    else:
        raise ValueError(f"[{op}] expected an output_size or an output_ratio; got neither")
    if any(q < 1 or q + k - 1 > d for q, k, d in zip(sizes, kernel, spatial, strict=True)):
        raise RuntimeError(
            f"[{op}] expected output sizes of at least 1 and at most input - kernel_size + 1; got "
            f"{sizes} for input {tuple(input.shape)}, kernel_size {kernel}"
        )
    lead = (int(x.shape[0]), int(x.shape[1]))
    samples = _random_samples
    if samples is None:
        samples = rand(*lead, n, dtype=x.dtype)
    expect_dtype(op, x.dtype, _random_samples=samples)
    if samples.dim() != 3 or samples.shape[0] < lead[0] or (
        tuple(samples.shape[1:]) != (lead[1], n)
    ):  # fmt: skip
        raise RuntimeError(
            f"[{op}] expected _random_samples of shape {(*lead, n)}; got {tuple(samples.shape)}"
        )
    numbers = _window_elements(samples[: lead[0]], spatial, sizes, kernel)
    flat = x.flatten(2)
    seen = flat.detach().gather(2, numbers.flatten(2)).reshape(tuple(numbers.shape))
    places = numbers.gather(3, seen.argmax(3, keepdim=True)).squeeze(3)
    values = flat.gather(2, places).reshape((*lead, *sizes))
    places = places.reshape((*lead, *sizes))
    if input.dim() == n + 1:
        values, places = values.squeeze(0), places.squeeze(0)
    return (values, places) if return_indices else values


def _window_elements(
    samples: Tensor, spatial: Sequence[int], sizes: Sequence[int], kernel: Sequence[int]
) -> Tensor:
    """The row-major numbers of the elements of each window, (N, C, windows, elements of one).

    Along a dim, window i of q starts at floor((i + u) a) - floor(u a), a = (n - k) / (q - 1), with
    u drawn from [0, 1); the last starts at n - k.
    """
    n = len(sizes)
    numbers: Any = 0
    for k, (d, q, width) in enumerate(zip(spatial, sizes, kernel, strict=True)):
        # PyTorch's samples are in the order of the dims in 3 dims, in the other one in 2
        u = samples[:, :, n - 1 - k if n == 2 else k].unsqueeze(2)
        step = (d - width) / (q - 1) if q > 1 else 0.0
        ordinal = tensor(np.arange(q), dtype=samples.dtype)
        start = ((ordinal + u) * step).floor() - (u * step).floor()
        last = tensor(np.arange(q) == q - 1)
        start = start.masked_fill(last, d - width).to(dtypes.int64)
        shape = [1] * (2 * n)
        shape[n + k] = width
        inner = tensor(np.arange(width).reshape(shape))
        at = [1] * (2 * n)
        at[k] = q
        numbers = numbers * d + (start.reshape((*start.shape[:2], *at)) + inner)
    lead = tuple(samples.shape[:2])
    out: Tensor = numbers.reshape((*lead, math.prod(sizes), math.prod(kernel)))
    return out


def fractional_max_pool2d(
    input: Tensor, kernel_size: IntOrInts, output_size: IntOrInts | None = None,
    output_ratio: Any = None, return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """Maxima of (N, C, H, W) or (C, H, W) over windows whose distances are drawn at random, so that
    there are output_size (or output_ratio of H and W) of them (Graham 2015).

    _random_samples (N, C, 2), in [0, 1), replaces the draw. With return_indices also the int64
    indices into H * W. Raises ValueError without a size, RuntimeError where windows do not fit.
    """
    return fractional_max_pool(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def fractional_max_pool3d(
    input: Tensor, kernel_size: IntOrInts, output_size: IntOrInts | None = None,
    output_ratio: Any = None, return_indices: bool = False, _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """fractional_max_pool2d of (N, C, D, H, W) or (C, D, H, W); samples are (N, C, 3)."""
    return fractional_max_pool(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )
