"""Functional forms of layers and losses, as torch.nn.functional: plain Python composed of ops.

A composite has no kernel and no derivative of its own: the tape differentiates what it is made
of, and the compiler fuses it.
"""

from jitgrad.nn.functional.activations import (
    celu,
    celu_,
    elu,
    elu_,
    gelu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    hardtanh_,
    leaky_relu,
    leaky_relu_,
    log_softmax,
    logsigmoid,
    mish,
    relu,
    relu6,
    relu_,
    selu,
    selu_,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
    threshold_,
)
from jitgrad.nn.functional.convolution import conv1d, conv2d, conv3d
from jitgrad.nn.functional.linear import dropout, embedding, linear, one_hot
from jitgrad.nn.functional.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from jitgrad.nn.functional.normalization import batch_norm, layer_norm, normalize
from jitgrad.nn.functional.padding import pad
from jitgrad.nn.functional.parametric import glu, gumbel_softmax, prelu, rrelu, rrelu_
from jitgrad.nn.functional.pooling import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)

__all__ = [
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "celu", "celu_", "conv1d", "conv2d", "conv3d",
    "cross_entropy", "dropout", "elu", "elu_", "embedding", "gelu", "glu", "gumbel_softmax",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "hardtanh_", "huber_loss", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "leaky_relu_", "linear", "log_softmax", "logsigmoid",
    "max_pool1d", "max_pool2d", "max_pool3d", "mish", "mse_loss", "nll_loss", "normalize",
    "one_hot", "pad", "prelu", "relu", "relu6", "relu_", "rrelu", "rrelu_", "selu", "selu_",
    "sigmoid", "silu", "smooth_l1_loss", "softmax", "softmin", "softplus", "softshrink", "softsign",
    "tanh", "tanhshrink", "threshold", "threshold_",
]  # fmt: skip
