"""Maxima, means and p-norms over windows. Owns argument checks; the ops are in compiler/ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import jitgrad.functions as ops
from jitgrad.casting import wide_in_3d
from jitgrad.compiler.ops import OPS
from jitgrad.creation import tensor
from jitgrad.nn.functional.args import IntOrInts, expect_tensors, per_dim
from jitgrad.nn.functional.tables import picked, table
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor

Ints = tuple[int, ...]


def _batched(n: int, op: str, input: Tensor) -> Tensor:
    expect_tensors(op, input=input)
    if input.dim() not in (n + 1, n + 2):
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims; got "
            f"{tuple(input.shape)}"
        )
    if 0 in input.shape[-n - 1 :]:
        raise RuntimeError(
            f"[{op}] expected input with no empty dim but the batch; got {tuple(input.shape)}"
        )
    return input.unsqueeze(0) if input.dim() == n + 1 else input


def _window(
    n: int, op: str, kernel_size: IntOrInts, stride: Any, padding: IntOrInts
) -> dict[str, Any]:
    """The attributes that all poolings have; no stride is the kernel's size."""
    kernel = per_dim(kernel_size, n, op, "kernel_size")
    no_stride = stride is None or (isinstance(stride, (list, tuple)) and not stride)
    return {
        "kernel": kernel,
        "stride": kernel if no_stride else per_dim(stride, n, op, "stride"),
        "padding": per_dim(padding, n, op, "padding"),
    }


@wide_in_3d
def max_pool(
    n: int, input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """max_pool1d, max_pool2d or max_pool3d, by the number n of spatial dims."""
    op = f"max_pool{n}d"
    x = _batched(n, op, input)
    attrs = _window(n, op, kernel_size, stride, padding)
    attrs["dilation"] = per_dim(dilation, n, op, "dilation")
    values, indices = OPS["max_pool"](x, **attrs, ceil_mode=bool(ceil_mode))
    if input.dim() == n + 1:
        values, indices = values.squeeze(0), indices.squeeze(0)
    return (values, indices) if return_indices else values


def max_pool1d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The maximum over windows of (N, C, L) or (C, L); see max_pool2d."""
    return max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The maximum over windows of (N, C, H, W) or (C, H, W); NaN wins.

    stride defaults to kernel_size. Outside there is -infinity; padding is at most half the kernel.
    ceil_mode rounds the output size up. With return_indices also int64 indices into H * W, of the
    first maximum. Raises RuntimeError for sizes that do not fit.
    """
    return max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The maximum over windows of (N, C, D, H, W) or (C, D, H, W); see max_pool2d."""
    return max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@wide_in_3d
def avg_pool(
    n: int, input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """avg_pool1d, avg_pool2d or avg_pool3d, by the number n of spatial dims."""
    op = f"avg_pool{n}d"
    x = _batched(n, op, input)
    if divisor_override == 0:
        raise RuntimeError(f"[{op}] expected divisor_override not to be 0; got 0; pass None")
    attrs = _window(n, op, kernel_size, stride, padding)
    attrs["ceil_mode"], include = bool(ceil_mode), bool(count_include_pad)
    if x.dtype is dtypes.int64:
        out = _whole_average(x, include, divisor_override, **attrs)
    else:
        out = OPS["avg_pool"](
            x, **attrs, count_include_pad=include, divisor_override=divisor_override
        )
    return out.squeeze(0) if input.dim() == n + 1 else out


def _whole_average(
    x: Tensor, include: bool, divisor: int | None, kernel: Ints, stride: Ints, padding: Ints,
    ceil_mode: bool,
) -> Tensor:  # fmt: skip
    """avg_pool of int64: exact sums, divided toward zero."""
    n, one = len(kernel), (1,) * len(kernel)
    shape = OPS["avg_pool"].check(x._type, kernel, stride, padding, one, ceil_mode)  # type: ignore[attr-defined]
    counts = np.ones(one, np.int64)
    for i in range(n):
        size, dim = int(x.shape[2 + i]), 2 + i
        start = np.arange(int(shape[dim])) * stride[i] - padding[i]
        places = start[:, None] + np.arange(kernel[i])
        real = (places >= 0) & (places < size)
        x = picked(x, dim, table(size, np.where(real, places, -1))).sum(dim)
        covered = (places < size + padding[i] if include else real).sum(1)
        counts = counts * covered.reshape([-1 if k == i else 1 for k in range(n)])
    by = tensor(counts) if divisor is None else divisor
    return x.div(by, rounding_mode="trunc")


def avg_pool1d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean over windows of (N, C, L) or (C, L); see avg_pool2d."""
    return avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean over windows of (N, C, H, W) or (C, H, W).

    stride defaults to kernel_size. Padding is zeros, which count in the mean unless
    count_include_pad is False; divisor_override divides by that instead. Raises RuntimeError for
    sizes that do not fit.
    """
    return avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean over windows of (N, C, D, H, W) or (C, D, H, W); see avg_pool2d."""
    return avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def lp_pool(
    n: int, input: Tensor, norm_type: float, kernel_size: IntOrInts,
    stride: IntOrInts | None = None, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """lp_pool1d, lp_pool2d or lp_pool3d, by the number n of spatial dims."""
    op = f"lp_pool{n}d"
    expect_tensors(op, input=input)
    if norm_type == 0:
        raise ZeroDivisionError(f"[{op}] expected norm_type not to be 0; got {norm_type}")
    if abs(norm_type) == math.inf:
        top = max_pool(n, abs(input) if norm_type > 0 else -abs(input), kernel_size, stride, 0, 1,
                       ceil_mode)  # fmt: skip
        return top if norm_type > 0 else -top
    area = math.prod(per_dim(kernel_size, n, op, "kernel_size"))
    total = avg_pool(n, input**norm_type, kernel_size, stride, 0, ceil_mode)
    # sign * relu(abs) is the sum itself, but has the derivative 0 where it is 0
    total = total.sign() * ops.relu(total.abs()) * area
    return total ** (1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """(sum of x^p)^(1/p) over windows of (N, C, L) or (C, L); see lp_pool2d."""
    return lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """(sum of x^p)^(1/p), p = norm_type, over windows of (N, C, H, W) or (C, H, W).

    stride defaults to kernel_size. A sum of 0 has the derivative 0; a negative one (odd p) gives
    NaN. p = infinity is the maximum of abs(x). Raises ZeroDivisionError for p = 0.
    """
    return lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """(sum of x^p)^(1/p) over windows of (N, C, D, H, W) or (C, D, H, W); see lp_pool2d."""
    return lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
