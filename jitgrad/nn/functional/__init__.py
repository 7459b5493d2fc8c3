"""Functional forms of layers and losses, as torch.nn.functional: plain Python composed of ops.

A composite has no kernel and no derivative of its own: the tape differentiates what it is made
of, and the compiler fuses it.
"""

from jitgrad.nn.functional.activations import (
    elu,
    gelu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
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
    "binary_cross_entropy_with_logits", "conv1d", "conv2d", "conv3d", "cross_entropy", "dropout",
    "elu", "embedding", "gelu", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid", "max_pool1d",
    "max_pool2d", "max_pool3d", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad",
    "relu", "relu6", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "tanh",
]  # fmt: skip
