"""Initialisation of parameters in place, as torch.nn.init. Every function returns its tensor.

Formulas: Glorot and Bengio 2010 (xavier), He et al. 2015 (kaiming). `generator` is where draws come
from (default: the default generator).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.autograd.modes import no_grad
from jitgrad.creation import empty, empty_like, from_numpy, randperm
from jitgrad.creation import eye as _identity
from jitgrad.functions import where
from jitgrad.missing import missing
from jitgrad.random import Generator
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0,
    "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain for a nonlinearity; `param` is leaky_relu's negative slope."""
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or not isinstance(param, (int, float, type(None))):
            raise ValueError(f"[calculate_gain] negative_slope {param!r} not a valid number")
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"[calculate_gain] expected nonlinearity to be 'leaky_relu' or one of "
            f"{sorted(_GAINS)}; got {nonlinearity!r}"
        )
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, *kernel)."""
    if tensor.dim() < 2:
        raise ValueError(
            "[init] expected a tensor of at least 2 dims, for fan in and fan out; got "
            f"{tuple(tensor.shape)}"
        )
    receptive = math.prod(tensor.shape[2:])
    return int(tensor.shape[1]) * receptive, int(tensor.shape[0]) * receptive


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """The fan of the mode; 1 for an empty tensor, which there is nothing to fill in."""
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"[init] mode must be 'fan_in' or 'fan_out'; got {mode!r}")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"] or 1


@no_grad()
def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills with U(a, b)."""
    tensor.uniform_(a, b, generator=generator)
    return tensor


@no_grad()
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills with N(mean, std**2)."""
    tensor.normal_(mean, std, generator=generator)
    return tensor


@no_grad()
def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fills with N(mean, std**2) restricted to [a, b]: draws outside are drawn again.

    Raises ValueError when [a, b] has less than 1 % of the distribution (redrawing would not end).
    """
    inside = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)
    if not inside >= 0.01:
        raise ValueError(
            f"[trunc_normal_] expected [a, b] to hold at least 1 % of N(mean, std**2); got a={a}, "
            f"b={b}, mean={mean}, std={std}; use uniform_ for so narrow a range"
        )
    tensor.normal_(mean, std, generator=generator)
    outside = (tensor < a) | (tensor > b)
    while outside.any():
        again = empty_like(tensor).normal_(mean, std, generator=generator)
        tensor.copy_(where(outside, again, tensor))
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


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """U(-a, a) with a = gain * sqrt(6 / (fan_in + fan_out))."""
    bound = gain * math.sqrt(6.0 / (sum(_calculate_fan_in_and_fan_out(tensor)) or 1))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """N(0, std**2) with std = gain * sqrt(2 / (fan_in + fan_out))."""
    std = gain * math.sqrt(2.0 / (sum(_calculate_fan_in_and_fan_out(tensor)) or 1))
    return normal_(tensor, 0.0, std, generator)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """U(-b, b) with b = gain * sqrt(3 / fan)."""
    fan = _calculate_correct_fan(tensor, mode)
    bound = calculate_gain(nonlinearity, a) * math.sqrt(3.0 / fan)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """N(0, std**2) with std = gain / sqrt(fan)."""
    std = calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))
    return normal_(tensor, 0.0, std, generator)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Fills a matrix with the identity. Raises ValueError for another rank."""
    if tensor.dim() != 2:
        raise ValueError(
            f"[eye_] Only tensors with 2 dimensions are supported; got {tuple(tensor.shape)}"
        )
    tensor.copy_(_identity(*tensor.shape))
    return tensor


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fills a convolution's weight (out, in, *kernel) so that it passes its input on: 1 in the
    middle of kernel [k, k], for each group; 0 elsewhere.

    Raises ValueError for another rank than 3 to 5, or groups that do not divide out.
    """
    if tensor.dim() not in (3, 4, 5):
        raise ValueError(
            "[dirac_] Only tensors with 3, 4, or 5 dimensions are supported; got "
            f"{tuple(tensor.shape)}"
        )
    out, channels, *kernel = tensor.shape
    if out % groups:
        raise ValueError(f"[dirac_] dim 0 must be divisible by groups; got {out} and {groups}")
    tensor.zero_()
    middle = tuple(k // 2 for k in kernel)
    for first in range(0, out, out // groups):
        for k in range(min(out // groups, channels)):
            tensor[(first + k, k, *middle)] = 1
    return tensor


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills with gain times a random matrix of orthonormal rows (or columns, if there are more
    rows), of the tensor seen as (out, rest) (Saxe, McClelland and Ganguli 2014).

    The signs of R's diagonal make Q uniformly distributed (Mezzadri 2007). Raises ValueError for
    fewer than 2 dims.
    """
    if tensor.dim() < 2:
        raise ValueError(
            "[orthogonal_] Only tensors with 2 or more dimensions are supported; got "
            f"{tuple(tensor.shape)}"
        )
    if tensor.numel() == 0:
        return tensor
    if tensor.dtype.category < dtypes.Category.FLOAT:
        raise NotImplementedError(
            f"[orthogonal_] expected a floating tensor to fill; got {tensor._type}"
        )
    rows = int(tensor.shape[0])
    columns = tensor.numel() // rows
    drawn = empty(max(rows, columns), min(rows, columns), dtype=dtypes.float64)
    q, r = np.linalg.qr(drawn.normal_(generator=generator).numpy())
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    q = np.ascontiguousarray(q.T if rows < columns else q) * gain
    tensor.copy_(from_numpy(q.reshape(tuple(tensor.shape))))
    return tensor


@no_grad()
def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Fills a matrix with N(0, std**2), and a share `sparsity` of each column with 0 (Martens
    2010). Raises ValueError for another rank."""
    if tensor.dim() != 2:
        raise ValueError(
            f"[sparse_] Only tensors with 2 dimensions are supported; got {tuple(tensor.shape)}"
        )
    rows, columns = (int(d) for d in tensor.shape)
    tensor.normal_(0, std, generator=generator)
    for k in range(columns):
        tensor[randperm(rows, generator=generator)[: math.ceil(sparsity * rows)], k] = 0
    return tensor


def uniform_fan_in_bias_(bias: Tensor, weight: Tensor) -> Tensor:
    """U(-b, b) with b = 1 / sqrt(fan_in of weight): the bias of Linear and convolutions."""
    fan_in = _calculate_fan_in_and_fan_out(weight)[0]
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    return uniform_(bias, -bound, bound)


# -- old names -------------------------------------------------------------------------------------
def _deprecated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function by its old name, without `_`."""
    new, old = function.__name__, function.__name__[:-1]

    def deprecated(*args: Any, **kwargs: Any) -> Tensor:
        warn(f"`nn.init.{old}` is now deprecated in favor of `nn.init.{new}`.", FutureWarning)
        return function(*args, **kwargs)

    deprecated.__name__ = deprecated.__qualname__ = old
    deprecated.__doc__ = f"The deprecated name of `{new}`."
    return deprecated


uniform, normal, constant = _deprecated(uniform_), _deprecated(normal_), _deprecated(constant_)
eye, dirac, sparse = _deprecated(eye_), _deprecated(dirac_), _deprecated(sparse_)
xavier_uniform, xavier_normal = _deprecated(xavier_uniform_), _deprecated(xavier_normal_)
kaiming_uniform, kaiming_normal = _deprecated(kaiming_uniform_), _deprecated(kaiming_normal_)
orthogonal = _deprecated(orthogonal_)

__getattr__ = missing(__name__)
