"""Convolution of images, signals and volumes, and its transpose. Owns argument checks, named
padding, output padding and the bias.

The ops `conv` and `conv_input_grad` (compiler/ops/conv.py) do the rest, for any number of spatial
dims: a transposed convolution is what conv sends back to its input.
"""

from __future__ import annotations

from jitgrad.casting import lower
from jitgrad.compiler.ops import OPS
from jitgrad.nn.functional.args import IntOrInts, expect_dtype, expect_tensors, per_dim
from jitgrad.nn.functional.padding import pad
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor


@lower
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
    _check(op, n, input, weight)
    _check_bias(op, input, bias, weight, weight.shape[0])
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
    return _finish(n, out, bias, unbatched)


def _finish(n: int, out: Tensor, bias: Tensor | None, unbatched: bool) -> Tensor:
    if bias is not None:
        out = out + bias.reshape((1, -1) + (1,) * n)
    return out.squeeze(0) if unbatched else called(out, "ConvolutionBackward0")


@lower
def transposed_convolution(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrInts = 1,
    padding: IntOrInts = 0,
    output_padding: IntOrInts = 0,
    groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:
    """conv_transpose1d, 2d or 3d, by the number n of spatial dims."""
    op = f"conv_transpose{n}d"
    _check(op, n, input, weight)
    groups = int(groups)
    if groups <= 0 or weight.shape[0] % groups:
        raise RuntimeError(
            f"[{op}] expected groups > 0 that divides dim 0 of weight; got groups={groups}, weight "
            f"{tuple(weight.shape)}"
        )
    channels = input.shape[input.dim() - n - 1]
    if channels != weight.shape[0]:
        raise RuntimeError(
            f"[{op}] expected input of {weight.shape[0]} channels for weight "
            f"{tuple(weight.shape)}; got {channels} in input {tuple(input.shape)}"
        )
    _check_bias(op, input, bias, weight, weight.shape[1] * groups)
    s = per_dim(stride, n, op, "stride")
    d = per_dim(dilation, n, op, "dilation")
    pads = per_dim(padding, n, op, "padding")
    extra = per_dim(output_padding, n, op, "output_padding")
    if min(*s, *d) <= 0:
        raise RuntimeError(f"[{op}] expected stride and dilation above 0; got {s} and {d}")
    if any(not 0 <= e < max(a, b) for e, a, b in zip(extra, s, d, strict=True)):
        raise RuntimeError(
            f"[{op}] expected output_padding of at least 0 and less than stride or dilation; got "
            f"output_padding {extra}, stride {s}, dilation {d}"
        )
    unbatched = input.dim() == n + 1
    x = input.unsqueeze(0) if unbatched else input
    shape = tuple(
        (q - 1) * a - 2 * p + b * (k - 1) + e + 1
        for q, a, p, b, k, e in zip(x.shape[2:], s, pads, d, weight.shape[2:], extra, strict=True)
    )
    if any(isinstance(size, int) and size <= 0 for size in shape):
        raise RuntimeError(
            f"[{op}] expected an output with sizes above 0; got {shape} for input "
            f"{tuple(input.shape)}, weight {tuple(weight.shape)}, padding {pads}"
        )
    # Output padding of a stride or more is room for more windows, which see zeros.
    more = [e // a for e, a in zip(extra, s, strict=True)]
    if any(more):
        x = pad(x, [side for m in reversed(more) for side in (0, m)])
    attrs = {"stride": s, "padding": pads, "dilation": d, "groups": groups}
    out: Tensor = OPS["conv_input_grad"](x, weight, shape=shape, **attrs)
    return _finish(n, out, bias, unbatched)


def _check(op: str, n: int, input: Tensor, weight: Tensor) -> None:
    expect_tensors(op, input=input, weight=weight)
    spatial = (*input._type.shape[input.dim() - n :], *weight._type.shape[2:])
    if 0 in [q for q in spatial if isinstance(q, int)]:
        raise RuntimeError(
            f"[{op}] expected an input and a kernel with no empty spatial dim; got input "
            f"{tuple(input.shape)}, weight {tuple(weight.shape)}"
        )
    if input.dim() not in (n + 1, n + 2) or weight.dim() != n + 2:
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims and weight of {n + 2}; "
            f"got input {tuple(input.shape)}, weight {tuple(weight.shape)}"
        )
    expect_dtype(op, input.dtype, weight=weight)


def _check_bias(op: str, input: Tensor, bias: Tensor | None, weight: Tensor, channels: int) -> None:
    expect_dtype(op, input.dtype, bias=bias)
    if bias is not None and tuple(bias.shape) != (channels,):
        raise RuntimeError(
            f"[{op}] expected bias of shape {(channels,)} for weight "
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
        raise RuntimeError(
            f"[{op}] expected padding to be ints, 'valid' or 'same'; got {padding!r}"
        )
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


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution of (N, C, L) or (C, L) with (C, O/groups, K); see conv_transpose2d."""
    return transposed_convolution(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """The transpose of conv2d in its input: (N, C, H, W) or (C, H, W) with (C, O/groups, KH, KW).

    Output (N, O, OH, OW), OH = (H-1)*stride - 2*padding + dilation*(KH-1) + output_padding + 1.
    All tensors are of one dtype. Raises RuntimeError for shapes or dtypes that do not fit, an
    output_padding that is neither less than stride nor than dilation, or channels that groups does
    not divide.
    """
    return transposed_convolution(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts = 0, output_padding: IntOrInts = 0, groups: int = 1,
    dilation: IntOrInts = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution of (N, C, D, H, W) or (C, D, H, W) with (C, O/groups, KD, KH, KW); see
    conv_transpose2d."""
    return transposed_convolution(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )
