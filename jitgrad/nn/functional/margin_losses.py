"""Losses that ask for a margin between scores or distances. See losses.py for `reduction`."""

from __future__ import annotations

from collections.abc import Callable

import jitgrad.functions as ops
from jitgrad.casting import wide
from jitgrad.creation import arange
from jitgrad.functions.args import expect_expandable
from jitgrad.functions.distance import pairwise_distance
from jitgrad.functions.select import one_hot
from jitgrad.functions.shape import laid_as
from jitgrad.nn.functional.activations import logsigmoid
from jitgrad.nn.functional.args import expect_dtype, expect_floating, expect_shape, expect_tensors
from jitgrad.nn.functional.losses import expect_class_range
from jitgrad.nn.functional.reduction import expect_reduction, legacy_reduction, reduce_loss
from jitgrad.runtime import dtypes
from jitgrad.tape.names import called
from jitgrad.tensor import Tensor

Distance = Callable[[Tensor, Tensor], Tensor]


# -- two classes, 1 and -1 -------------------------------------------------------------------------
@wide
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """log(1 + exp(-target * input)), target 1 or -1; computed without overflow."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors("soft_margin_loss", input=input, target=target)
    expect_expandable("soft_margin_loss", input._type.shape, target=target)
    if not input.is_floating_point():
        raise RuntimeError(f"[soft_margin_loss] expected a floating input; got {input._type}")
    loss = laid_as(-logsigmoid(target * input).to(input.dtype), input)
    return called(reduce_loss("soft_margin_loss", loss, reduction), "SoftMarginLossBackward0")


@wide
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """input where target is 1, max(0, margin - input) where it is -1 (both for other targets)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors("hinge_embedding_loss", input=input, target=target)
    apart = ops.where(target != 1, (margin - input).clamp(min=0), 0.0)
    together = ops.where(target != -1, input, 0.0)
    return reduce_loss("hinge_embedding_loss", (apart + together).to(input.dtype), reduction)


@wide
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, -target * (input1 - input2) + margin): target 1 if input1 shall be larger, else -1.

    Raises RuntimeError for different ranks.
    """
    op = "margin_ranking_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors(op, input1=input1, input2=input2, target=target)
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            f"[{op}] expected tensors of the same rank; got input1 {tuple(input1.shape)}, input2 "
            f"{tuple(input2.shape)}, target {tuple(target.shape)}"
        )
    margin = float(margin) if type(margin) is int else margin  # of integers, the loss is floating
    loss = (-target * (input1 - input2) + margin).clamp(min=0)
    return reduce_loss(op, loss, reduction)


@wide
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """1 - cos where target is 1, max(0, cos - margin) where it is -1, cos the cosine of input1 and
    input2: (N, D) with target (N), or (D) with target ().

    Raises RuntimeError for other shapes.
    """
    op = "cosine_embedding_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors(op, input1=input1, input2=input2, target=target)
    rank = target.dim() + 1
    if rank > 2 or input1.dim() != rank or input2.dim() != rank:
        raise RuntimeError(
            f"[{op}] expected inputs (N, D) with target (N), or (D) with (); got "
            f"{tuple(input1.shape)}, {tuple(input2.shape)} and target {tuple(target.shape)}"
        )
    squares = ((input1 * input1).sum(-1) + 1e-12) * ((input2 * input2).sum(-1) + 1e-12)
    cosine = (input1 * input2).sum(-1) / squares.sqrt()
    together = ops.where(target == 1, 1 - cosine, 0.0)
    apart = ops.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return reduce_loss(op, together + apart, reduction)


def _above(x: Tensor) -> Tensor:
    """max(x, 0), but 0 of NaN: PyTorch's losses over several classes add what is above 0."""
    return ops.where(x > 0, x, 0.0)


# -- several classes -------------------------------------------------------------------------------
def _rows(op: str, input: Tensor) -> tuple[Tensor, bool]:
    """Input as (N, C), and whether it was a batch; () and (C) are one row."""
    expect_floating(op, "input", input)
    if input.dim() > 2 or (input.dim() and input.shape[-1] == 0):
        raise RuntimeError(
            f"[{op}] expected input (N, C) or (C) with C of at least 1; got {tuple(input.shape)}"
        )
    return (input, True) if input.dim() == 2 else (input.reshape(1, -1), False)


@wide
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """sum over c != y of max(0, margin - x[y] + x[c])**p * weight[y] / C: input (N, C) or (C),
    target y (N) or () of int64, weight (C), p 1 or 2.

    Raises ValueError for another p, RuntimeError for shapes and dtypes, IndexError for a class out
    of range.
    """
    op = "multi_margin_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_reduction(op, reduction)
    expect_tensors(op, input=input, target=target)
    if p not in (1, 2):
        raise ValueError(f"[{op}] only p == 1 and p == 2 supported; got {p}")
    rows, batch = _rows(op, input)
    classes = rows.shape[1]
    if weight is not None:
        if weight.dim() != 1:
            raise ValueError(f"[{op}] weight must be one-dimensional; got {tuple(weight.shape)}")
        expect_dtype(op, input.dtype, weight=weight)
        expect_shape(op, (classes,), weight=weight)
    if target.dim() > 1 or target.numel() != rows.shape[0]:
        raise RuntimeError(
            f"[{op}] inconsistent target size {tuple(target.shape)} for input "
            f"{tuple(input.shape)}; expected one class for each row"
        )
    _expect_long(op, target)
    y = expect_class_range(op, target, None, classes).reshape(-1, 1)
    violation = _above(margin - ops.gather(rows, 1, y) + rows)
    terms = violation if p == 1 else violation * violation
    terms = ops.where(arange(classes) == y, 0.0, terms)
    if weight is not None:
        terms = terms * weight.index_select(0, y.reshape(-1)).unsqueeze(-1)
    loss = terms.sum(1) / classes
    return called(
        reduce_loss(op, loss if batch and target.dim() else loss.reshape(()), reduction),
        "MultiMarginLossBackward0",
    )


def _expect_long(op: str, target: Tensor) -> None:
    if target.dtype is not dtypes.int64:
        raise RuntimeError(
            f"[{op}] expected classes of int64; got {target.dtype} {tuple(target.shape)}; convert "
            "them with .long()"
        )


@wide
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """sum over labels y and all c that are no label of max(0, 1 - x[y] + x[c]) / C: input (N, C) or
    (C); target of its shape, int64: the labels of a row, up to the first -1.

    Raises RuntimeError for shapes and dtypes that do not fit, IndexError for a class out of range.
    """
    op = "multilabel_margin_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_reduction(op, reduction)
    expect_tensors(op, input=input, target=target)
    rows, batch = _rows(op, input)
    if tuple(target.shape) != tuple(input.shape):
        raise RuntimeError(
            f"[{op}] inconsistent target size {tuple(target.shape)} for input {tuple(input.shape)}"
        )
    _expect_long(op, target)
    labels = expect_class_range(op, target, -1, rows.shape[1]).reshape(rows.shape)
    counted = (target >= 0).reshape(rows.shape).to(dtypes.int64).cumprod(1) > 0  # before a -1
    labels = ops.where(counted, labels, 0)
    named = (one_hot(labels, int(rows.shape[1])) * counted.unsqueeze(-1)).sum(1) > 0
    scores = ops.gather(rows, 1, labels).unsqueeze(-1)  # (N, labels, 1)
    violation = _above(1 - scores + rows.unsqueeze(1))
    used = ops.logical_and(counted.unsqueeze(-1), ops.logical_not(named).unsqueeze(1))
    loss = ops.where(used, violation, 0.0).sum((1, 2)) / rows.shape[1]
    return reduce_loss(op, loss if batch else loss.reshape(()), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over the last dim of -(t * logsigmoid(x) + (1 - t) * logsigmoid(-x)) * weight."""
    op = "multilabel_soft_margin_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors(op, input=input, target=target)
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    axis = max(input.dim() - 1, 0)  # of input, whatever target broadcasts to, as PyTorch
    return reduce_loss(op, loss.sum(axis) / input.shape[-1], reduction)


# -- triplets --------------------------------------------------------------------------------------
@wide
def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2,
    eps: float = 1e-6, swap: bool = False, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the pairwise p-norm distance
    over the last dim.

    swap takes d(positive, negative) where it is the smaller one (Balntas et al. 2016). Raises
    RuntimeError for different ranks, ValueError unless margin > 0.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _triplet("triplet_margin_loss", (anchor, positive, negative), distance, margin, swap,
                    reduction)  # fmt: skip


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Distance | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """triplet_margin_loss with another distance (default: pairwise_distance)."""
    return _triplet(
        "triplet_margin_with_distance_loss", (anchor, positive, negative),
        distance_function or pairwise_distance, margin, swap, reduction,
    )  # fmt: skip


def _triplet(
    op: str, triplet: tuple[Tensor, Tensor, Tensor], distance: Distance, margin: float, swap: bool,
    reduction: str,
) -> Tensor:  # fmt: skip
    anchor, positive, negative = triplet
    expect_tensors(op, anchor=anchor, positive=positive, negative=negative)
    if margin <= 0:
        raise ValueError(f"[{op}] margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            f"[{op}] expected tensors of the same rank; got anchor {tuple(anchor.shape)}, positive "
            f"{tuple(positive.shape)}, negative {tuple(negative.shape)}"
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduce_loss(op, (margin + near - far).clamp(min=0), reduction)
