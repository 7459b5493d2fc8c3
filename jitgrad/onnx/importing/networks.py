"""Handlers of ONNX's layers: convolutions, pooling, normalisation, dropout, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.nn import functional as F
from jitgrad.onnx.importing.calls import Call, check_size, handler
from jitgrad.tensor import Tensor

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def spatial(c: Call, rank: int, name: str, default: int) -> list[int]:
    """An attribute with a number for each spatial dim."""
    found = c.attr(name, None)
    out = [default] * rank if found is None else [int(v) for v in found]
    if len(out) != rank:
        raise ValueError(f"attribute {name!r} is {found}; expected {rank} numbers")
    return out


def pads_of(
    c: Call, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Padding before and after each spatial dim."""
    rank, mode = len(kernel), c.attr("auto_pad", "NOTSET")
    c.ignore("pads")
    if mode == "VALID":
        return [(0, 0)] * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = []
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            small, large = total // 2, total - total // 2
            out.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return out
    pads = c.attr("pads", None) or [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise ValueError(f"attribute 'pads' is {pads}; expected {2 * rank} numbers")
    return list(zip(pads[:rank], pads[rank:], strict=True))


def padded(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0) -> Tensor:
    """x with its last dims padded."""
    if all(p == (0, 0) for p in pads):
        return x
    return F.pad(x, [p for pair in reversed(pads) for p in pair], value=value)


@handler("Conv")
def conv(c: Call) -> Tensor:
    return convolve(c, c.tensor(0), c.tensor(1), c.optional(2))


def convolve(c: Call, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Conv of x with w, by the node's attributes."""
    rank = x.ndim - 2
    c.ignore("kernel_shape")  # w has it
    if rank not in _CONV:
        c.unsupported(f"a convolution over {rank} dims")
    stride, dilation = spatial(c, rank, "strides", 1), spatial(c, rank, "dilations", 1)
    pads = pads_of(c, x.shape[2:], w.shape[2:], stride, dilation)
    padding: Any = [low for low, _ in pads]
    if any(low != high or low < 0 for low, high in pads):
        x, padding = padded(x, pads), 0
    return _CONV[rank](x, w, bias, stride, padding, dilation, c.attr("group", 1))


@handler("ConvTranspose")
def conv_transpose(c: Call) -> Tensor:
    x, w = c.tensor(0), c.tensor(1)
    rank = x.ndim - 2
    c.ignore("kernel_shape", "pads")
    if rank not in _TRANSPOSED:
        c.unsupported(f"a convolution over {rank} dims")
    stride, dilation = spatial(c, rank, "strides", 1), spatial(c, rank, "dilations", 1)
    extra = spatial(c, rank, "output_padding", 0)
    kernel, groups = list(w.shape[2:]), c.attr("group", 1)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(x.shape[2:], stride, kernel, dilation, extra, strict=True)
    ]
    wanted, mode = c.attr("output_shape", None), c.attr("auto_pad", "NOTSET")
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is None:
        pads = pads_of(c, full, kernel, stride, dilation)
    else:
        pads = []
        for f, n in zip(full, wanted[-rank:], strict=True):
            total = f - n
            small, large = total // 2, total - total // 2
            pads.append((small, large) if mode == "SAME_UPPER" else (large, small))
    y = _TRANSPOSED[rank](x, w, None, stride, 0, 0, groups, dilation)
    y = padded(y, [(-low, e - high) for (low, high), e in zip(pads, extra, strict=True)])
    return y + c.tensor(2).reshape(-1, *[1] * rank) if c.has(2) else y


@handler("DeformConv")
def deform_conv(c: Call) -> Tensor:
    """Each tap of the kernel reads where its offset says, bilinearly (Dai et al., 2017)."""
    x, w, offset = c.tensor(0), c.tensor(1), c.tensor(2)
    bias, mask = c.optional(3), c.optional(4)
    c.ignore("kernel_shape")
    if x.ndim != 4:
        c.unsupported(f"a convolution over {x.ndim - 2} dims")
    stride, dilation = spatial(c, 2, "strides", 1), spatial(c, 2, "dilations", 1)
    (top, _), (left, _) = pads_of(c, x.shape[2:], w.shape[2:], stride, dilation)
    groups, parts = c.attr("group", 1), c.attr("offset_group", 1)
    n, channels, high, wide = x.shape
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    moved = offset.reshape(n, parts, kh, kw, 2, oh, ow)
    rows = jg.arange(oh).reshape(1, 1, 1, 1, oh, 1) * stride[0] - top
    rows = rows + jg.arange(kh).reshape(1, 1, kh, 1, 1, 1) * dilation[0]
    columns = jg.arange(ow).reshape(1, 1, 1, 1, 1, ow) * stride[1] - left
    columns = columns + jg.arange(kw).reshape(1, 1, 1, kw, 1, 1) * dilation[1]
    y, z = moved[:, :, :, :, 0] + rows, moved[:, :, :, :, 1] + columns
    images = x.reshape(n * parts, channels // parts, high, wide)
    grid = jg.stack([z * 2 / max(wide - 1, 1) - 1, y * 2 / max(high - 1, 1) - 1], -1)
    grid = grid.reshape(n * parts, kh * kw, oh * ow, 2).to(x.dtype)
    taps = F.grid_sample(images, grid, align_corners=True)
    taps = taps.reshape(n, parts, channels // parts, kh * kw, oh * ow)
    if mask is not None:
        taps = taps * mask.reshape(n, parts, 1, kh * kw, oh * ow)
    taps = taps.reshape(n, groups, channels // groups * kh * kw, oh * ow)
    kernel = w.reshape(groups, w.shape[0] // groups, -1)
    out = jg.matmul(kernel, taps).reshape(n, w.shape[0], oh, ow)
    return out if bias is None else out + bias.reshape(-1, 1, 1)


# -- pooling --------------------------------------------------------------------------------------
def windows(
    c: Call, x: Tensor
) -> tuple[list[int], list[int], list[int], list[tuple[int, int]], list[int]]:
    """Kernel, stride, dilation, padding and result sizes of a pooling."""
    rank = x.ndim - 2
    kernel = spatial(c, rank, "kernel_shape", 1)
    stride, dilation = spatial(c, rank, "strides", 1), spatial(c, rank, "dilations", 1)
    if any(v < 1 for v in (*kernel, *stride, *dilation)):
        raise ValueError("expected kernel_shape, strides and dilations of at least 1")
    pads = pads_of(c, x.shape[2:], kernel, stride, dilation)
    sizes = []
    for n, k, s, d, (low, high) in zip(x.shape[2:], kernel, stride, dilation, pads, strict=True):
        room = n + low + high - (k - 1) * d - 1
        count = (-(-room // s) if c.attr("ceil_mode", 0) else room // s) + 1
        if c.attr("ceil_mode", 0) and (count - 1) * s >= n + low:
            count -= 1  # a window must begin inside the input or the padding before it
        sizes.append(count)
    return kernel, stride, dilation, pads, sizes


def unfolded(
    x: Tensor, value: float, kernel: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int], pads: Sequence[tuple[int, int]], sizes: Sequence[int],
) -> Tensor:  # fmt: skip
    """(N, C, *sizes, *kernel): the windows of x, padded with `value`."""
    rank = len(kernel)
    reach = [
        (low, max(high, (count - 1) * s + (k - 1) * d + 1 - n - low))
        for n, k, s, d, (low, high), count in zip(
            x.shape[2:], kernel, stride, dilation, pads, sizes, strict=True
        )
    ]
    y = padded(x, reach, value)
    for k in range(rank):
        first = np.arange(sizes[k])[:, None] * stride[k]
        places = first + np.arange(kernel[k])[None, :] * dilation[k]
        axis = 2 + 2 * k
        flat = jg.from_numpy(places.reshape(-1).astype(np.int64))
        y = jg.index_select(y, axis, flat)
        y = y.reshape((*y.shape[:axis], sizes[k], kernel[k], *y.shape[axis + 1 :]))
    order = [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)]
    return y.permute(order)


@handler("MaxPool")
def max_pool(c: Call) -> Any:
    x = c.tensor()
    rank = x.ndim - 2
    c.ignore("storage_order")
    kernel, stride, dilation, pads, sizes = windows(c, x)
    plain = all(low == high and 2 * low <= k for (low, high), k in zip(pads, kernel, strict=True))
    if c.outputs == 1 and plain and rank in _MAX_POOL and not c.attr("ceil_mode", 0):
        return _MAX_POOL[rank](x, kernel, stride, [low for low, _ in pads], dilation)
    least = float("-inf") if x.is_floating_point() else jg.iinfo(x.dtype).min
    parts = unfolded(x, least, kernel, stride, dilation, pads, sizes)
    parts = parts.reshape((*x.shape[:2], *sizes, math.prod(kernel)))
    values = jg.amax(parts, -1)
    if c.outputs == 1:
        return values
    numbers = jg.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:])
    if c.attr("storage_order", 0):
        numbers = numbers.reshape(list(x.shape[2:])[::-1]).permute(list(range(rank))[::-1])
        numbers = numbers.reshape(1, 1, *x.shape[2:])
    at = unfolded(numbers, 0, kernel, stride, dilation, pads, sizes)
    at = at.reshape((1, 1, *sizes, math.prod(kernel))).expand(parts.shape)
    best = jg.argmax(parts, -1, keepdim=True)
    place = jg.gather(at, -1, best).squeeze(-1)
    images = jg.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * rank)
    return values, place + images * math.prod(x.shape[2:])


@handler("AveragePool", "LpPool")
def average_pool(c: Call) -> Tensor:
    x = c.tensor()
    kernel, stride, dilation, pads, sizes = windows(c, x)
    inner = tuple(range(-len(kernel), 0))
    if c.node.op_type == "LpPool":
        p = c.attr("p", 2)
        parts = unfolded(jg.abs(x) ** p, 0, kernel, stride, dilation, pads, sizes)
        return jg.sum(parts, inner) ** (1.0 / p)
    parts = unfolded(x, 0, kernel, stride, dilation, pads, sizes)
    ones = jg.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if c.attr("count_include_pad", 0):
        ones, pads = padded(ones, pads, 1), [(0, 0)] * len(kernel)
    counts = unfolded(ones, 0, kernel, stride, dilation, pads, sizes)
    return jg.sum(parts, inner) / jg.sum(counts, inner)


@handler("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(c: Call) -> Tensor:
    x = c.tensor()
    inner = tuple(range(2, x.ndim))
    if c.node.op_type == "GlobalMaxPool":
        return jg.amax(x, inner, keepdim=True)
    if c.node.op_type == "GlobalAveragePool":
        return jg.mean(x, inner, keepdim=True)
    p = c.attr("p", 2)
    return jg.sum(jg.abs(x) ** p, inner, keepdim=True) ** (1.0 / p)


@handler("MaxUnpool")
def max_unpool(c: Call) -> Tensor:
    x, places = c.tensor(0), c.tensor(1)
    rank = x.ndim - 2
    kernel, stride = spatial(c, rank, "kernel_shape", 1), spatial(c, rank, "strides", 1)
    pads = c.attr("pads", None) or [0] * (2 * rank)
    inner = [
        (n - 1) * s + k - pads[i] - pads[i + rank]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], stride, kernel, strict=True))
    ]
    shape = (*x.shape[:2], *inner)  # the places count in this one
    out = jg.zeros(math.prod(check_size(shape)), dtype=x.dtype)
    y = out.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)
    if not c.has(2):
        return y
    wanted = c.ints(2)
    return padded(y, [(0, a - b) for a, b in zip(wanted[2:], inner, strict=True)])


@handler("Col2Im")
def col2im(c: Call) -> Tensor:
    x = c.tensor(0)
    image, block = check_size(c.ints(1)), c.ints(2)
    rank = len(image)
    stride, dilation = spatial(c, rank, "strides", 1), spatial(c, rank, "dilations", 1)
    pads = pads_of(c, image, block, stride, dilation)
    wide = [n + low + high for n, (low, high) in zip(image, pads, strict=True)]
    flat = np.zeros([1] * (2 * rank), np.int64)
    for k in range(rank):
        count = (wide[k] - (block[k] - 1) * dilation[k] - 1) // stride[k] + 1
        tap = np.arange(block[k])[:, None] * dilation[k] + np.arange(count)[None] * stride[k]
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = tap.shape
        flat = flat * wide[k] + tap.reshape(shape)
    n, channels = x.shape[0], x.shape[1] // math.prod(block)
    values = x.reshape(n * channels, -1)
    places = jg.from_numpy(np.ascontiguousarray(flat.reshape(1, -1))).expand(values.shape)
    out = jg.zeros((n * channels, math.prod(wide)), dtype=x.dtype).scatter_add(1, places, values)
    y = out.reshape(n, channels, *wide)
    return padded(y, [(-low, -high) for low, high in pads])


# -- normalisation --------------------------------------------------------------------------------
@handler("BatchNormalization")
def batch_norm(c: Call) -> Any:
    x, scale, bias, mean, var = (c.tensor(i) for i in range(5))
    eps, momentum = c.attr("epsilon", 1e-5), c.attr("momentum", 0.9)
    if c.opset < 14:
        c.ignore("spatial", "is_test")
        if c.attr("spatial", 1) != 1:
            c.unsupported("spatial = 0")
    if not c.attr("training_mode", 0):
        y = F.batch_norm(x, mean, var, scale, bias, False, 0.0, eps)
        return (y, *[mean, var][: c.outputs - 1]) if c.outputs > 1 else y
    axes = tuple(k for k in range(x.ndim) if k != 1)
    now, spread = jg.mean(x, axes), jg.var(x, axes, unbiased=False)
    shape = (1, -1, *[1] * (x.ndim - 2))
    y = (x - now.reshape(shape)) / jg.sqrt(spread.reshape(shape) + eps)
    y = y * scale.reshape(shape) + bias.reshape(shape)
    running = [a * momentum + b * (1 - momentum) for a, b in ((mean, now), (var, spread))]
    return y, *running


@handler("InstanceNormalization")
def instance_norm(c: Call) -> Tensor:
    x = c.tensor(0)
    return F.instance_norm(x, weight=c.tensor(1), bias=c.tensor(2), eps=c.attr("epsilon", 1e-5))


@handler("GroupNormalization")
def group_norm(c: Call) -> Tensor:
    c.ignore("stash_type")
    x, scale, bias = c.tensor(0), c.tensor(1), c.tensor(2)
    groups = c.attr("num_groups")
    if c.opset < 21:  # one scale for each group
        each = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, groups, scale, bias, c.attr("epsilon", 1e-5))


@handler("LayerNormalization", "RMSNormalization")
def layer_norm(c: Call) -> Any:
    c.ignore("stash_type")  # halves are normalised in float32
    x, scale = c.tensor(0), c.tensor(1)
    axis, eps = c.attr("axis", -1), c.attr("epsilon", 1e-5)
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.to(jg.float32) if x.dtype in (jg.float16, jg.bfloat16) else x
    if c.node.op_type == "RMSNormalization":
        inverse = jg.rsqrt(jg.mean(wide * wide, axes, keepdim=True) + eps)
        return (wide * inverse).to(x.dtype) * scale
    mean = jg.mean(wide, axes, keepdim=True)
    inverse = jg.rsqrt(jg.var(wide, axes, unbiased=False, keepdim=True) + eps)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    y = y + c.tensor(2) if c.has(2) else y
    return (y, mean, inverse) if c.outputs > 1 else y


@handler("LRN")
def lrn(c: Call) -> Tensor:
    x, size = c.tensor(), c.attr("size")
    alpha, beta, bias = c.attr("alpha", 1e-4), c.attr("beta", 0.75), c.attr("bias", 1.0)
    low = (size - 1) // 2
    square = padded((x * x).movedim(1, -1), [(low, size - 1 - low)])
    total = square.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (bias + alpha / size * total) ** beta


@handler("MeanVarianceNormalization")
def mean_variance(c: Call) -> Tensor:
    x, axes = c.tensor(), tuple(c.attr("axes", [0, 2, 3]))
    centred = x - jg.mean(x, axes, keepdim=True)
    return centred / (jg.sqrt(jg.mean(centred * centred, axes, keepdim=True)) + 1e-9)


@handler("Dropout", folds=False)
def dropout(c: Call) -> Any:
    c.ignore("seed", "ratio", "is_test")  # draws are of jitgrad's generator
    x = c.tensor(0)
    training = c.has(2) and bool(c.array(2).reshape(()))
    ratio = 0.5
    if c.has(1):
        ratio = float(c.array(1).reshape(()))
    elif c.opset < 12:
        ratio = c.attr("ratio", 0.5)
    if c.opset < 7:
        training = not c.attr("is_test", 0)
    if not training or ratio == 0:
        mask = jg.ones(x.shape, dtype=jg.bool)
        return (x, mask if c.opset >= 10 else mask.to(x.dtype)) if c.outputs > 1 else x
    mask = jg.rand(x.shape) >= ratio
    y = x * mask.to(x.dtype) / (1 - ratio)
    return (y, mask) if c.outputs > 1 else y
