"""The `reduction` of losses: 'mean', 'sum' or 'none', and the two flags that it replaced."""

from __future__ import annotations

from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction; where one of the deprecated flags is given, what they say, with a warning.

    reduce False is 'none'; else size_average False is 'sum'; else 'mean'.
    """
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        meant = "none"
    else:
        meant = "mean" if size_average is None or size_average else "sum"
    warn(
        f"size_average and reduce args will be deprecated, please use reduction={meant!r} instead."
    )
    return meant


def expect_reduction(op: str, reduction: str) -> None:
    """Raises ValueError for what is no reduction."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(
            f"[{op}] expected reduction to be 'none', 'mean' or 'sum'; got {reduction!r}"
        )


def reduce_loss(op: str, loss: Tensor, reduction: str) -> Tensor:
    """The mean, the sum, or the loss itself. Raises ValueError for another reduction."""
    expect_reduction(op, reduction)
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def reduce_weighted(
    op: str, loss: Tensor, weight: Tensor | None, reduction: str, shape: tuple[int, ...]
) -> Tensor:
    """reduce_loss of loss * weight, the mean weighted. Raises ValueError for a weight that is not
    of input's shape."""
    if weight is None:
        return reduce_loss(op, loss, reduction)
    expect_weight(op, weight, shape)
    if reduction == "mean":
        return (loss * weight).sum() / weight.sum()
    return reduce_loss(op, loss * weight, reduction)


def expect_weight(op: str, weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the weight is of the shape."""
    if tuple(weight.shape) != tuple(shape):
        raise ValueError(
            f"[{op}] expected weight of input's shape {tuple(shape)}; got {tuple(weight.shape)}"
        )
