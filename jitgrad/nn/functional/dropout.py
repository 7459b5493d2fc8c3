"""Dropout: of elements, of channels, and the forms that keep mean and variance (alpha).

All draw from the default generator when training, else return the input. Each raises ValueError
unless 0 <= p <= 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jitgrad.functions as ops
from jitgrad import fused
from jitgrad.creation import rand
from jitgrad.functions.shape import laid_as
from jitgrad.nn.functional.args import expect_tensors, into
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tape.names import naming
from jitgrad.tensor import Tensor

_SATURATION = 1.7580993408473766
"""Minus the value that selu tends to at minus infinity: its scale times its alpha."""


def expect_probability(op: str, p: float) -> None:
    """Raises ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(
            f"[{op}] dropout probability has to be between 0 and 1, but got {p}; pass the share "
            "of elements to drop"
        )


def kept(input: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    """Bools of the shape, True with probability 1 - p."""
    dtype = input.dtype if input.dtype in (dtypes.float32, dtypes.float64) else dtypes.float32
    return rand(tuple(shape), dtype=dtype) >= p


def _dropped(
    op: str, input: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]
) -> Tensor:
    expect_tensors(op, input=input)
    expect_probability(op, p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return into(input, input * 0, inplace)
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise NotImplementedError(
            f"[{op}] expected floating-point numbers, which it scales; got {input._type}; use "
            "input.float()"
        )
    keep = kept(input, p, shape)
    scaled: Tensor = fused.apply(fused.dropout, (keep, input), {"scale": 1.0 / (1.0 - p)})
    return into(input, laid_as(scaled, input), inplace)


def _channels(op: str, input: Tensor, batched: bool = True) -> list[int]:
    """The shape of a mask with one element for each channel of each sample."""
    lead = 2 if batched else 1
    if input.dim() < 2:
        raise RuntimeError(
            f"[{op}] Feature dropout requires at least 2 dimensions in the input; got "
            f"{tuple(input.shape)}"
        )
    return [*input.shape[:lead], *[1] * (input.dim() - lead)]


@naming("MulBackward0")
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """When training: zeroes elements with probability p, divides the others by 1 - p (Srivastava
    et al. 2014). Else the input."""
    return _dropped("dropout", input, p, training, inplace, getattr(input, "shape", ()))


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """dropout of whole channels of (N, C, L) or (C, L) (Tompson et al. 2015).

    Raises RuntimeError for another rank.
    """
    expect_tensors("dropout1d", input=input)
    expect_probability("dropout1d", p)
    if input.dim() not in (2, 3):
        raise RuntimeError(
            f"[dropout1d] Expected 2D or 3D input, but received a {input.dim()}D input; expected "
            "(N, C, L) or (C, L)"
        )
    shape = _channels("dropout1d", input, input.dim() == 3)
    return _dropped("dropout1d", input, p, training, inplace, shape)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """dropout of whole channels of (N, C, H, W); of (N, C, L), too, with a warning, as in PyTorch.

    Raises RuntimeError for fewer than 2 dims.
    """
    expect_tensors("dropout2d", input=input)
    expect_probability("dropout2d", p)
    if input.dim() != 4:
        warn(
            f"[dropout2d] expected input (N, C, H, W); got {tuple(input.shape)}, whose dim 1 is "
            "taken for the channels, as PyTorch does; use dropout1d for (N, C, L)"
        )
    shape = _channels("dropout2d", input)
    return _dropped("dropout2d", input, p, training, inplace, shape)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """dropout of whole channels of (N, C, D, H, W) or (C, D, H, W). Other ranks: a warning."""
    expect_tensors("dropout3d", input=input)
    expect_probability("dropout3d", p)
    if input.dim() not in (4, 5):
        warn(
            f"[dropout3d] expected input (N, C, D, H, W) or (C, D, H, W); got "
            f"{tuple(input.shape)}, whose dim 0 is taken for the channels, as PyTorch does"
        )
    shape = _channels("dropout3d", input, input.dim() == 5)
    return _dropped("dropout3d", input, p, training, inplace, shape)


def feature_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """dropout of whole channels of (N, C, ...). Raises RuntimeError for fewer than 2 dims."""
    expect_tensors("feature_dropout", input=input)
    expect_probability("feature_dropout", p)
    shape = _channels("feature_dropout", input)
    return _dropped("feature_dropout", input, p, training, inplace, shape)


def _alpha(
    op: str, input: Tensor, p: float, training: bool, inplace: bool, shape: Sequence[int]
) -> Tensor:
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return into(input, input * 0.0, inplace)
    keep = kept(input, p, shape)
    scale = 1.0 / math.sqrt((_SATURATION**2 * p + 1) * (1 - p))
    shift = _SATURATION * scale * p
    result = ops.where(keep, input * scale + shift, shift - _SATURATION * scale)
    return into(input, result.to(input.dtype), inplace)


def alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Sets elements to selu's saturation value with probability p; then scales and shifts so that
    mean 0 and variance 1 stay (Klambauer et al. 2017)."""
    expect_tensors("alpha_dropout", input=input)
    expect_probability("alpha_dropout", p)
    return _alpha("alpha_dropout", input, p, training, inplace, input.shape)


def feature_alpha_dropout(
    input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """alpha_dropout of whole channels of (N, C, ...). Raises RuntimeError for fewer than 2 dims."""
    expect_tensors("feature_alpha_dropout", input=input)
    expect_probability("feature_alpha_dropout", p)
    if not training or p == 0.0:
        return input
    shape = _channels("feature_alpha_dropout", input)
    return _alpha("feature_alpha_dropout", input, p, training, inplace, shape)
