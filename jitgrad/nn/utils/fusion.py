"""Folding a batch norm, in evaluation, into the layer in front of it."""

from __future__ import annotations

import copy
from typing import Any

from jitgrad.creation import ones_like, zeros_like
from jitgrad.nn.module import Module
from jitgrad.nn.parameter import Parameter
from jitgrad.tensor import Tensor

Fused = tuple[Parameter, Parameter]


def _fused(
    weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, Tensor, float, Any, Any],
    shape: list[int],
) -> Fused:  # fmt: skip
    """weight scaled along the dim that is -1 in `shape`; the bias that then gives batch norm."""
    mean, var, eps, scale, shift = norm
    bias_dtype = weight.dtype if bias is None else bias.dtype
    bias = zeros_like(mean) if bias is None else bias
    factor = (var + eps).rsqrt() * (ones_like(mean) if scale is None else scale)
    new_bias = (bias - mean) * factor + (zeros_like(mean) if shift is None else shift)
    made = (weight * factor.reshape(shape)).to(weight.dtype), new_bias.to(bias_dtype)
    return Parameter(made[0], weight.requires_grad), Parameter(made[1], bias.requires_grad)


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None, transpose: bool = False,
) -> Fused:  # fmt: skip
    """Weight and bias of a convolution (out, in, ...) followed by a batch norm over out.

    transpose: the weight is a transposed convolution's, (in, out, ...).
    """
    shape = [1, -1] if transpose else [-1, 1]
    norm = (bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    return _fused(conv_w, conv_b, norm, shape + [1] * (conv_w.dim() - 2))


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor, bn_b: Tensor,
) -> Fused:  # fmt: skip
    """Weight and bias of a Linear (out, in) followed by a batch norm over out."""
    return _fused(linear_w, linear_b, (bn_rm, bn_rv, bn_eps, bn_w, bn_b), [-1, 1])


def _expect(name: str, layer: Module, bn: Any) -> None:
    if layer.training or bn.training:
        raise AssertionError(f"[{name}] expected both modules in evaluation; call .eval() on them")
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError(f"[{name}] expected a batch norm with running statistics; got {bn}")


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of conv that does what conv and then bn do. Raises AssertionError in training."""
    _expect("fuse_conv_bn_eval", conv, bn)
    fused = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
        transpose,
    )  # fmt: skip
    return fused


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of linear that does what linear and then bn do.

    Raises AssertionError in training, and where bn's features are neither one nor linear's.
    """
    _expect("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (1, linear.out_features):
        raise AssertionError(
            f"[fuse_linear_bn_eval] expected a batch norm of 1 or {linear.out_features} features; "
            f"got {bn.num_features}"
        )
    fused = copy.deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused
