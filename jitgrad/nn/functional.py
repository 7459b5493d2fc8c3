"""Functional forms of layers and losses, as torch.nn.functional: plain Python composed of ops.

A composite has no kernel and no derivative of its own: the tape differentiates what it is made
of, and the compiler fuses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.compiler.ops import OPS
from jitgrad.creation import arange, ones_like, rand_like, zeros_like
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor

IntOrInts = int | Sequence[int]


def _each(value: IntOrInts, n: int, op: str, name: str) -> tuple[int, ...]:
    """An int repeated n times, or n ints."""
    out = (value,) * n if isinstance(value, int) else tuple(value)
    if len(out) == 1:
        out = out * n
    if len(out) != n:
        raise RuntimeError(f"[{op}] expected {name} to be an int or {n} ints; got {value!r}")
    return out


def _reduce(loss: Tensor, reduction: str, op: str) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"[{op}] reduction must be 'none', 'mean' or 'sum'; got {reduction!r}")


# -- activations -----------------------------------------------------------------------------------
def _into(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input.copy_(result) if inplace else result


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return _into(input, ops.relu(input), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return _into(input, input.clamp(0, 6), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _into(input, ops.where(input > 0, input, input * negative_slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x for x > 0, else alpha * (exp(x) - 1)."""
    low = input.clamp(max=0)
    return _into(input, ops.where(input > 0, input, alpha * ops.expm1(low)), inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return _into(input, scale * elu(input, alpha), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), Phi the normal distribution's; or its tanh form (Hendrycks and Gimpel 2016)."""
    if approximate == "none":
        return input * 0.5 * (1.0 + ops.erf(input * math.sqrt(0.5)))
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (input + 0.044715 * input * input * input)
        return input * 0.5 * (1.0 + ops.tanh(inner))
    raise RuntimeError(f"[gelu] approximate must be 'none' or 'tanh'; got {approximate!r}")


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return _into(input, input * ops.sigmoid(input), inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is past the threshold."""
    scaled = input * beta
    soft = ops.log1p(ops.exp(scaled.clamp(max=threshold))) / beta
    return ops.where(scaled > threshold, input, soft)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|))."""
    return input.clamp(max=0) - ops.log1p(ops.exp(-input.abs()))


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    return _into(input, input * ops.tanh(softplus(input)), inplace)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    return _into(input, input.clamp(min_val, max_val), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return _into(input, (input + 3).clamp(0, 6) / 6, inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return _into(input, input * ((input + 3).clamp(0, 6) / 6), inplace)


def sigmoid(input: Tensor) -> Tensor:
    return ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    return ops.tanh(input)


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(x) / sum(exp(x)) along dim."""
    return ops.softmax(input, _softmax_dim(input, dim), dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    return ops.log_softmax(input, _softmax_dim(input, dim), dtype=dtype)


def _softmax_dim(input: Tensor, dim: int | None) -> int:
    return (0 if input.dim() in (0, 1, 3) else 1) if dim is None else dim


# -- layers ----------------------------------------------------------------------------------------
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. x: (..., in), weight: (out, in), bias: (out)."""
    if weight.dim() == 2 and (input.dim() < 1 or input.shape[-1] != weight.shape[1]):
        raise RuntimeError(
            f"[linear] expected input (..., {weight.shape[1]}) for weight {tuple(weight.shape)}; "
            f"got input {tuple(input.shape)}"
        )
    out = ops.matmul(input, weight.t() if weight.dim() == 2 else weight)
    return out if bias is None else out + bias


def _conv(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: IntOrInts,
    padding: IntOrInts | str,
    dilation: IntOrInts,
    groups: int,
) -> Tensor:
    op = f"conv{n}d"
    unbatched = input.dim() == n + 1
    if input.dim() not in (n + 1, n + 2) or weight.dim() != n + 2:
        raise RuntimeError(
            f"[{op}] expected input of {n + 1} (unbatched) or {n + 2} dims and weight of {n + 2}; "
            f"got input {tuple(input.shape)}, weight {tuple(weight.shape)}"
        )
    strides, dilations = _each(stride, n, op, "stride"), _each(dilation, n, op, "dilation")
    x = input.unsqueeze(0) if unbatched else input
    if isinstance(padding, str):
        x, pads = _pad_by_name(op, x, weight, padding, strides, dilations)
    else:
        pads = _each(padding, n, op, "padding")
    attrs = {"stride": strides, "padding": pads, "dilation": dilations, "groups": int(groups)}
    out: Tensor = OPS["conv"](x, weight, **attrs)
    if bias is not None:
        out = out + bias.reshape((1, -1) + (1,) * n)
    return out.squeeze(0) if unbatched else out


def _pad_by_name(
    op: str,
    x: Tensor,
    weight: Tensor,
    padding: str,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Tensor, tuple[int, ...]]:
    n = len(stride)
    if padding == "valid":
        return x, (0,) * n
    if padding != "same":
        raise RuntimeError(f"[{op}] padding must be ints, 'valid' or 'same'; got {padding!r}")
    if any(s != 1 for s in stride):
        raise RuntimeError(f"[{op}] padding='same' is not supported for strided convolutions")
    total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if all(t % 2 == 0 for t in total):
        return x, tuple(t // 2 for t in total)
    sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
    return pad(x, sides), (0,) * n


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of (N, C, L) with (O, C/groups, K); see conv2d."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution (cross-correlation) of input (N, C, H, W) with weight (O, C/groups, KH, KW).

    Output (N, O, OH, OW), OH = (H + 2*padding - dilation*(KH-1) - 1) // stride + 1.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: IntOrInts = 1,
    padding: IntOrInts | str = 0, dilation: IntOrInts = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of (N, C, D, H, W) with (O, C/groups, KD, KH, KW); see conv2d."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _pool_input(n: int, op: str, input: Tensor) -> tuple[Tensor, bool]:
    if input.dim() not in (n + 1, n + 2):
        raise RuntimeError(f"[{op}] expected {n + 1} or {n + 2} dims; got {tuple(input.shape)}")
    return (input.unsqueeze(0), True) if input.dim() == n + 1 else (input, False)


def _max_pool(
    n: int, input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None, padding: IntOrInts,
    dilation: IntOrInts, ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    op = f"max_pool{n}d"
    x, unbatched = _pool_input(n, op, input)
    kernel = _each(kernel_size, n, op, "kernel_size")
    attrs = {
        "kernel": kernel,
        "stride": kernel if stride is None or stride == [] else _each(stride, n, op, "stride"),
        "padding": _each(padding, n, op, "padding"),
        "dilation": _each(dilation, n, op, "dilation"),
        "ceil_mode": bool(ceil_mode),
    }
    values, indices = OPS["max_pool"](x, **attrs)
    if unbatched:
        values, indices = values.squeeze(0), indices.squeeze(0)
    return (values, indices) if return_indices else values


def max_pool1d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, dilation: IntOrInts = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """The maximum over windows of (N, C, H, W); stride defaults to kernel_size."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    n: int, input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None, padding: IntOrInts,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    op = f"avg_pool{n}d"
    x, unbatched = _pool_input(n, op, input)
    kernel = _each(kernel_size, n, op, "kernel_size")
    attrs = {
        "kernel": kernel,
        "stride": kernel if stride is None or stride == [] else _each(stride, n, op, "stride"),
        "padding": _each(padding, n, op, "padding"),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad),
        "divisor_override": divisor_override,
    }
    out: Tensor = OPS["avg_pool"](x, **attrs)
    return out.squeeze(0) if unbatched else out


def avg_pool1d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor, kernel_size: IntOrInts, stride: IntOrInts | None = None,
    padding: IntOrInts = 0, ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean over windows of (N, C, H, W)."""
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises (N, C, ...) over all but C (Ioffe and Szegedy 2015).

    Training uses the batch's statistics (biased variance) and moves the running ones (unbiased
    variance) in place; else the running ones are used.
    """
    if input.dim() < 2:
        raise ValueError(f"[batch_norm] expected at least 2 dims; got {tuple(input.shape)}")
    dims = (0, *range(2, input.dim()))
    shape = (1, -1) + (1,) * (input.dim() - 2)
    if training:
        count = math.prod(int(input.shape[d]) for d in dims)
        if count <= 1:
            raise ValueError(
                "[batch_norm] expected more than 1 value per channel when training; got input "
                f"{tuple(input.shape)}"
            )
        mean = input.mean(dims, keepdim=True)
        centred = input - mean
        var = (centred * centred).mean(dims, keepdim=True)
        if running_mean is not None and running_var is not None:
            with no_grad():
                new_mean = mean.detach().reshape(-1)
                new_var = var.detach().reshape(-1) * (count / (count - 1))
                running_mean.mul_(1 - momentum).add_(new_mean, alpha=momentum)
                running_var.mul_(1 - momentum).add_(new_var, alpha=momentum)
    else:
        if running_mean is None or running_var is None:
            raise ValueError("[batch_norm] expected running statistics when not training")
        centred = input - running_mean.reshape(shape)
        var = running_var.reshape(shape)
    out = centred * ops.rsqrt(var + eps)
    if weight is not None:
        out = out * weight.reshape(shape)
    return out if bias is None else out + bias.reshape(shape)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises over the last dims, `normalized_shape` (Ba, Kiros and Hinton 2016)."""
    shape = tuple(normalized_shape)
    if tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(
            f"[layer_norm] expected input (..., {', '.join(map(str, shape))}); "
            f"got {tuple(input.shape)}"
        )
    dims = tuple(range(-len(shape), 0))
    mean = input.mean(dims, keepdim=True)
    centred = input - mean
    var = (centred * centred).mean(dims, keepdim=True)
    out = centred * ops.rsqrt(var + eps)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zeroes elements with probability p and scales the others by 1 / (1 - p)."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"[dropout] expected a probability from 0 to 1; got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _into(input, input * 0.0, inplace)
    dtype = input.dtype if input.dtype in (dtypes.float32, dtypes.float64) else dtypes.float32
    keep = rand_like(input.detach(), dtype=dtype) >= p
    return _into(input, ops.where(keep, input * (1.0 / (1.0 - p)), zeros_like(input)), inplace)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight (V, D) by index: input (*) of int64 -> (*, D).

    Rows of padding_idx get no gradient. Raises IndexError for an index out of range.
    """
    if input.dtype not in (dtypes.int64, dtypes.int32):
        raise RuntimeError(f"[embedding] expected int64 or int32 indices; got {input.dtype}")
    rows = weight.index_select(0, input.reshape(-1)).reshape((*input.shape, *weight.shape[1:]))
    if padding_idx is None:
        return rows
    pad_row = padding_idx if padding_idx >= 0 else int(weight.shape[0]) + padding_idx
    return ops.where((input == pad_row).unsqueeze(-1), rows.detach(), rows)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 (*) -> int64 (*, num_classes), 1 at the given index."""
    if tensor.dtype is not dtypes.int64:
        raise RuntimeError(f"[one_hot] expected int64; got {tensor.dtype}")
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    classes = arange(num_classes)
    return (tensor.unsqueeze(-1) == classes).to(dtypes.int64)


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pads the last dims: (last low, last high, second to last low, ...), with `value`."""
    if mode != "constant":
        raise ValueError(
            f"[pad] mode must be 'constant'; got {mode!r}; the other modes are not there yet "
            "(docs/limits.md)"
        )
    return ops.pad_constant(input, pad, 0.0 if value is None else value)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(norm(x, p, dim), eps)."""
    return input / ops.norm(input, p, dim, keepdim=True).clamp(min=eps)


# -- losses ----------------------------------------------------------------------------------------
def _same_shape(op: str, input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"[{op}] expected target of input's shape {tuple(input.shape)}; "
            f"got {tuple(target.shape)}"
        )


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)**2; shapes broadcast."""
    d = input - target
    return _reduce(d * d, reduction, "mse_loss")


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    return _reduce((input - target).abs(), reduction, "l1_loss")


def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    d = (input - target).abs()
    if beta == 0:
        return _reduce(d, reduction, "smooth_l1_loss")
    loss = ops.where(d < beta, 0.5 * d * d / beta, d - 0.5 * beta)
    return _reduce(loss, reduction, "smooth_l1_loss")


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    d = (input - target).abs()
    loss = ops.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))
    return _reduce(loss, reduction, "huber_loss")


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log p + (1 - t) log(1 - p)), logs clamped at -100 as PyTorch does."""
    _same_shape("binary_cross_entropy", input, target)
    one_minus = 1 - input
    log_p, log_q = ops.log(input).clamp(min=-100), ops.log(one_minus).clamp(min=-100)
    loss = -(target * log_p + (1 - target) * log_q)
    loss = loss if weight is None else loss * weight
    return _reduce(loss, reduction, "binary_cross_entropy")


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of sigmoid(input), stable: max(-x, 0) + log(1 + exp(-|x|)) + ..."""
    _same_shape("binary_cross_entropy_with_logits", input, target)
    if pos_weight is None:
        loss = (1 - target) * input - logsigmoid(input)
    else:
        loss = (1 - target) * input - (1 + (pos_weight - 1) * target) * logsigmoid(input)
    loss = loss if weight is None else loss * weight
    return _reduce(loss, reduction, "binary_cross_entropy_with_logits")


def _check_targets(op: str, input: Tensor, target: Tensor) -> None:
    expected = (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()
    if tuple(target.shape) != tuple(expected):
        raise ValueError(
            f"[{op}] expected target {tuple(expected)} for input {tuple(input.shape)}; "
            f"got {tuple(target.shape)}"
        )
    if target.dtype is not dtypes.int64:
        raise RuntimeError(
            f"[{op}] expected class indices of int64; got {target.dtype}; use target.long()"
        )


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-input[n, target[n]]: input (N, C, ...) of log-probabilities, target (N, ...) of int64.

    The mean is over targets that are not ignore_index, weighted by weight[target]. Raises
    IndexError for a class out of range.
    """
    _check_targets("nll_loss", input, target)
    dim = 1 if input.dim() > 1 else 0
    ignored = target == ignore_index
    safe = ops.where(ignored, zeros_like(target), target)
    picked = -ops.gather(input, dim, safe.unsqueeze(dim)).squeeze(dim)
    weights = None
    if weight is not None:
        weights = weight.index_select(0, safe.reshape(-1)).reshape(target.shape)
        picked = picked * weights
    loss = ops.where(ignored, zeros_like(picked), picked)
    if reduction != "mean":
        return _reduce(loss, reduction, "nll_loss")
    counted = ops.logical_not(ignored).to(loss.dtype)
    return loss.sum() / (counted if weights is None else counted * weights).sum()


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(input) against class indices or class probabilities.

    input (N, C, ...); target (N, ...) of int64, or (N, C, ...) of probabilities.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"[cross_entropy] label_smoothing is from 0 to 1; got {label_smoothing}")
    dim = 1 if input.dim() > 1 else 0
    log_p = ops.log_softmax(input, dim)
    classes = int(input.shape[dim])
    if target.is_floating_point():
        _same_shape("cross_entropy", input, target)
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        terms = log_p * target
        if weight is not None:
            terms = terms * weight.reshape((1, -1) + (1,) * (input.dim() - 2))
        loss = -terms.sum(dim)
        if reduction == "mean":
            return loss.sum() / (math.prod(int(d) for d in loss.shape) or 1)
        return _reduce(loss, reduction, "cross_entropy")
    if not label_smoothing:
        return nll_loss(log_p, target, weight, ignore_index, reduction)
    nll = nll_loss(log_p, target, weight, ignore_index, reduction)
    ignored = target == ignore_index
    scaled = log_p if weight is None else log_p * weight.reshape(
        (1, -1) + (1,) * (input.dim() - 2) if input.dim() > 1 else (-1,)
    )  # fmt: skip
    smooth = -scaled.sum(dim)
    smooth = ops.where(ignored, zeros_like(smooth), smooth)
    if reduction == "mean":
        safe = ops.where(ignored, zeros_like(target), target)
        counted = ops.logical_not(ignored).to(smooth.dtype)
        if weight is not None:
            counted = counted * weight.index_select(0, safe.reshape(-1)).reshape(target.shape)
        smooth = smooth.sum() / counted.sum()
    else:
        smooth = _reduce(smooth, reduction, "cross_entropy")
    return (1 - label_smoothing) * nll + (label_smoothing / classes) * smooth


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target * (log target - input), input in log space."""
    if log_target:
        loss = ops.exp(target) * (target - input)
    else:
        positive = target > 0
        safe = ops.where(positive, target, ones_like(target))
        loss = ops.where(positive, target * ops.log(safe), zeros_like(target)) - target * input
    if reduction == "batchmean":
        return loss.sum() / int(input.shape[0])
    return _reduce(loss, reduction, "kl_div")
