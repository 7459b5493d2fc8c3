"""Initialisation of parameters in place, as torch.nn.init. Every function returns its tensor.

Formulas: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming).
"""

from __future__ import annotations

import math

from jitgrad.autograd.modes import no_grad
from jitgrad.creation import randn_like
from jitgrad.functions import where
from jitgrad.tensor import Tensor

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0,
    "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain for a nonlinearity; `param` is leaky_relu's negative slope."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"[calculate_gain] expected nonlinearity to be 'leaky_relu' or one of "
            f"{sorted(_GAINS)}; got {nonlinearity!r}"
        )
    return _GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *kernel)."""
    if tensor.dim() < 2:
        raise ValueError(
            "[init] expected a tensor of at least 2 dims, for fan in and fan out; got "
            f"{tuple(tensor.shape)}"
        )
    receptive = math.prod(tensor.shape[2:])
    return int(tensor.shape[1]) * receptive, int(tensor.shape[0]) * receptive


def _fan(tensor: Tensor, mode: str) -> int:
    """The fan of the mode; 1 for an empty tensor, which there is nothing to fill in."""
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"[init] mode must be 'fan_in' or 'fan_out'; got {mode!r}")
    return _fans(tensor)[mode == "fan_out"] or 1


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fills with U(a, b)."""
    tensor.uniform_(a, b)
    return tensor


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fills with N(mean, std**2)."""
    tensor.normal_(mean, std)
    return tensor


@no_grad()
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """Fills with N(mean, std**2) restricted to [a, b]: draws outside are drawn again.

    Raises ValueError when [a, b] has less than 1 % of the distribution (redrawing would not end).
    """
    inside = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)
    if not inside >= 0.01:
        raise ValueError(
            f"[trunc_normal_] expected [a, b] to hold at least 1 % of N(mean, std**2); got a={a}, "
            f"b={b}, mean={mean}, std={std}; use uniform_ for so narrow a range"
        )
    tensor.normal_(mean, std)
    outside = (tensor < a) | (tensor > b)
    while outside.any():
        tensor.copy_(where(outside, randn_like(tensor) * std + mean, tensor))
        outside = (tensor < a) | (tensor > b)
    return tensor


def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills with val."""
    tensor.fill_(val)
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    """Fills with 0."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fills with 1."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out))."""
    bound = gain * math.sqrt(6.0 / (sum(_fans(tensor)) or 1))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """N(0, std**2) with std = gain * sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (sum(_fans(tensor)) or 1)))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """U(-b, b) with b = gain * sqrt(3 / fan)."""
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / _fan(tensor, mode))
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """N(0, std**2) with std = gain / sqrt(fan)."""
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)))


def uniform_fan_in_bias_(bias: Tensor, weight: Tensor) -> Tensor:
    """U(-b, b) with b = 1 / sqrt(fan_in of weight): the bias of Linear and convolutions."""
    fan_in = _fans(weight)[0]
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return uniform_(bias, -bound, bound)
