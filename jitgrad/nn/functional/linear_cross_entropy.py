"""Cross-entropy of a linear map's results: the last layer and the loss in one."""

from __future__ import annotations

from typing import Any

from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.linear import linear
from jitgrad.nn.functional.losses import cross_entropy
from jitgrad.tensor import Tensor


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Tensor:
    """cross_entropy(linear(input, linear_weight, linear_bias), target, ...): input (N, in) or (in),
    linear_weight (C, *, in), linear_bias (C, *), the rest as in cross_entropy.

    Raises RuntimeError for shapes that do not fit. options, which choose how PyTorch cuts the work
    in pieces, must be None: NotImplementedError.
    """
    op = "linear_cross_entropy"
    expect_tensors(op, input=input, linear_weight=linear_weight, target=target)
    if options is not None:
        raise NotImplementedError(f"[{op}] options are not supported (docs/limits.md); pass None")
    shape, inner = tuple(linear_weight.shape[:-1]), tuple(linear_weight.shape[1:-1])
    fits = input.dim() in (1, 2) and linear_weight.dim() >= 2
    fits = fits and input.shape[-1] == linear_weight.shape[-1] and not (inner and input.dim() == 1)
    if not fits or (linear_bias is not None and tuple(linear_bias.shape) != shape):
        bias = None if linear_bias is None else tuple(linear_bias.shape)
        raise RuntimeError(
            f"[{op}] expected input (N, in) or (in), linear_weight (C, *, in), where * needs (N, "
            f"in), and linear_bias (C, *); got {tuple(input.shape)}, {tuple(linear_weight.shape)} "
            f"and {bias}"
        )
    flat = linear_weight.reshape(-1, linear_weight.shape[-1])
    shift = None if linear_bias is None else linear_bias.reshape(-1)
    logits = linear(input, flat, shift).reshape((*input.shape[:-1], *shape))
    if ignore_index is not None and tuple(target.shape) == tuple(logits.shape):
        raise RuntimeError(
            f"[{op}] ignore_index cannot be specified when target contains probabilities"
        )
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction,
        label_smoothing=label_smoothing,
    )  # fmt: skip
