"""Cross-entropy of a linear map's results: the last layer and the loss in one; in pieces, so that
the scores of all rows are never in memory together, where LinearCrossEntropyOptions ask for it."""

from __future__ import annotations

from typing import Any

from jitgrad.functions.args import expect_one_device
from jitgrad.functions.elementwise import where
from jitgrad.functions.shape import cat
from jitgrad.nn.functional.args import expect_tensors
from jitgrad.nn.functional.linear import linear
from jitgrad.nn.functional.losses import cross_entropy
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor
from jitgrad.utils.checkpoint import checkpoint


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

    options: a LinearCrossEntropyOptions: rows are taken in pieces, whose scores are computed again
    in backward. Only for targets that are classes (int64), without smoothing, of a vector of
    classes; otherwise they are ignored, with a warning.

    Raises RuntimeError for shapes that do not fit.
    """
    op = "linear_cross_entropy"
    expect_tensors(op, input=input, linear_weight=linear_weight, target=target)
    expect_one_device(op, input, linear_weight, target, linear_bias, weight)
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
    logits_shape = (*input.shape[:-1], *shape)
    if ignore_index is not None and tuple(target.shape) == logits_shape:
        raise RuntimeError(
            f"[{op}] ignore_index cannot be specified when target contains probabilities"
        )
    ignored = -100 if ignore_index is None else ignore_index
    flat = linear_weight.reshape(-1, linear_weight.shape[-1])
    shift = None if linear_bias is None else linear_bias.reshape(-1)

    def loss(rows: Tensor, of: Tensor, how: str) -> Tensor:
        scores = linear(rows, flat, shift).reshape((*rows.shape[:-1], *shape))
        return cross_entropy(
            scores, of, weight, ignore_index=ignored, reduction=how,
            label_smoothing=label_smoothing,
        )  # fmt: skip

    if options is not None and (
        inner
        or reduction not in ("mean", "sum", "none")
        or label_smoothing != 0.0
        or target.dtype is not dtypes.int64
    ):
        warn(
            f"[{op}] options are ignored: pieces need targets that are classes (int64), "
            "label_smoothing=0.0 and linear_weight (C, in)"
        )
        options = None
    count = input.shape[0] if input.dim() == 2 else 1
    size = count
    if options is not None:
        size = options.rows(count, input.shape[-1], shape[0], input.dtype)
    if options is not None and target.shape != input.shape[:-1]:
        raise RuntimeError(
            f"[{op}] expected a target of shape {tuple(input.shape[:-1])}; got "
            f"{tuple(target.shape)}"
        )
    if options is None or input.dim() == 1 or size >= count:
        return loss(input, target, reduction)
    losses = cat(
        [
            checkpoint(loss, input[i : i + size], target[i : i + size], "none", use_reentrant=False)
            for i in range(0, count, size)
        ]
    )
    if reduction != "mean":
        return losses if reduction == "none" else losses.sum()
    kept = target != ignored
    if weight is None:
        return losses.sum() / kept.sum()
    return losses.sum() / (weight[where(kept, target, 0)] * kept).sum()
