"""Convolution of images, signals and volumes. Owns argument checks, named padding and the bias.

The op `conv` (compiler/ops/conv.py) does the rest, for any number of spatial dims.
"""

from __future__ import annotations

from jitgrad.compiler.ops import OPS
from jitgrad.nn.functional.args import IntOrInts, expect_dtype, expect_tensors, per_dim
from jitgrad.nn.functional.padding import pad
from jitgrad.tensor import Tensor


def convolution(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts | str = 0,
    dilation: IntOrInts = 1,
    groups: int = 1,
) -> Tensor:
    """conv1d, conv2d or conv3d, by the number n of spatial dims."""
    op = f"conv{n}d"
    _check(op, n, input, weight, bias)
    unbatched = input.dim() == n + 1
    strides = per_dim(stride, n, op, "stride")
    dilations = per_dim(dilation, n, op, "dilation")
    x = input.unsqueeze(0) if unbatched else input
    if isinstance(padding, str):
        x, pads = _pad_by_name(op, x, weight, padding, strides, dilations)
    else:
        pads = per_dim(padding, n, op, "padding")
    attrs = {"stride": strides, "padding": pads, "dilation": dilations, "groups": int(groups)}
    out: Tensor = OPS["conv"](x, weight, **attrs)
    if bias is not None:
        out = out + bias.reshape((1, -1) + (1,) * n)
    return out.squeeze(0) if unbatched else out


def _check(op: str, n: int, input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    expect_tensors(op, input=input, weight=weight)
    if input.dim() not in (n + 1, n + 2) or weight.dim() != n + 2:
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims and weight of {n + 2}; "
            f"got input {tuple(input.shape)}, weight {tuple(weight.shape)}"
        )
    expect_dtype(op, input.dtype, weight=weight, bias=bias)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise RuntimeError(
            f"[{op}] expected bias of shape {(weight.shape[0],)} for weight "
            f"{tuple(weight.shape)}; got {tuple(bias.shape)}"
        )


def _pad_by_name(
    op: str,
    x: Tensor,
    weight: Tensor,
    padding: str,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Tensor, tuple[int, ...]]:
    """x, padded where the two sides differ, and the padding that is left to the op."""
    n = len(stride)
    if padding == "valid":
        return x, (0,) * n
    if padding != "same":
        raise ValueError(f"[{op}] expected padding to be ints, 'valid' or 'same'; got {padding!r}")
    if any(s != 1 for s in stride):
        raise RuntimeError(
            f"[{op}] padding='same' is not supported for strided convolutions; got stride "
            f"{stride}; pass the padding as ints"
        )
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if all(t % 2 == 0 for t in total):
        return x, tuple(t // 2 for t in total)
    sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
    return pad(x, sides), (0,) * n


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of (N, C, L) or (C, L) with weight (O, C/groups, K); see conv2d."""
    return convolution(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution (cross-correlation) of (N, C, H, W) or (C, H, W) with (O, C/groups, KH, KW).

    Output (N, O, OH, OW), OH = (H + 2*padding - dilation*(KH-1) - 1) // stride + 1. padding 'same'
    keeps H and W (stride 1 only), 'valid' is 0. All tensors are of one floating dtype.
    Raises RuntimeError for shapes or dtypes that do not fit, a kernel larger than the padded input,
    or channels that groups does not divide.
    """
    return convolution(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of (N, C, D, H, W) or (C, D, H, W) with (O, C/groups, KD, KH, KW); see conv2d."""
    return convolution(3, input, weight, bias, stride, padding, dilation, groups)
