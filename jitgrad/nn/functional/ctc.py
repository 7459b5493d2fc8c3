"""The connectionist temporal classification loss (Graves et al. 2006): ctc_loss.

The forward recursion in log space, one step after another; derivatives come from its ops. So the
gradient is the true one with respect to log_probs. (PyTorch's has softmax's part added, which is
the same once it has gone through log_softmax.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jitgrad.functions as ops
from jitgrad.casting import wide
from jitgrad.control_flow import scan
from jitgrad.creation import arange, as_tensor, full, placed
from jitgrad.functions.args import expect_range, takes_on_host
from jitgrad.functions.shape import cat, stack
from jitgrad.nn.functional.args import expect_floating, expect_tensors
from jitgrad.nn.functional.reduction import reduce_loss
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import Category
from jitgrad.state import state
from jitgrad.tensor import Tensor

Lengths = Tensor | Sequence[int]

_NEVER = -1e30
"""The log of the probability of what cannot happen: finite, so that no derivative is NaN."""


@wide
@takes_on_host("input_lengths", "target_lengths")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the probability that a sequence of labels, with repeats merged and blanks removed,
    is the target.

    Shapes: log_probs (T, N, C), or (T, C) for one sequence; targets (N, S), or all targets one
    after another in a vector; input_lengths and target_lengths (N), tensors (on any device) or
    ints. The mean is of loss / target length. A target that no sequence gives has the loss infinity
    (0 with zero_infinity) and no gradient. Raises RuntimeError for shapes, lengths and dtypes that
    do not fit.

    Under @jit a vector of targets with lengths in a tensor is compiled for
    targets as long as the vector.
    """
    op = "ctc_loss"
    expect_tensors(op, log_probs=log_probs, targets=targets)
    expect_floating(op, "log_probs", log_probs)
    batched = log_probs.dim() == 3
    if log_probs.dim() not in (2, 3) or targets.dim() not in (1, 2):
        raise RuntimeError(
            f"[{op}] expected log_probs (T, N, C) or (T, C) and targets (N, S) or a vector; got "
            f"{tuple(log_probs.shape)} and {tuple(targets.shape)}"
        )
    probs = log_probs if batched else log_probs.unsqueeze(1)
    steps, count, classes = (int(d) for d in probs.shape)
    if not 0 <= blank < classes:
        raise RuntimeError(f"[{op}] blank must be in label range 0 to {classes - 1}; got {blank}")
    if not steps:
        raise RuntimeError(f"[{op}] expected T of at least 1; got {tuple(log_probs.shape)}")
    where = log_probs._type.device
    times = placed(_lengths(op, "input_lengths", input_lengths, count, steps), where)
    sizes = placed(_lengths(op, "target_lengths", target_lengths, count, None), where)
    labels = _labels(op, targets.long(), target_lengths, sizes)
    wide = probs if probs.dtype.itemsize > 2 else probs.to(dtypes.float32)
    loss = -_log_likelihood(wide, labels, times, sizes, blank).to(log_probs.dtype)
    impossible = loss > -_NEVER / 10
    loss = ops.where(impossible, 0.0 if zero_infinity else math.inf, loss)
    if reduction == "mean":
        loss = loss / sizes.clamp(min=1).to(loss.dtype)
    elif not batched:
        loss = loss.squeeze(0)
    return reduce_loss(op, loss, reduction)


def _lengths(op: str, name: str, lengths: Lengths, count: int, most: int | None) -> Tensor:
    given = lengths if isinstance(lengths, Tensor) else as_tensor(list(lengths))
    if given.numel() and (given.dtype is dtypes.bool_ or given.dtype.category > Category.INT):
        raise RuntimeError(f"[{op}] expected {name} of an integer dtype; got {given._type}")
    made = given.long()
    made = made if made.dim() else made.reshape(1)
    if tuple(made.shape) != (count,):
        raise RuntimeError(
            f"[{op}] expected {name} of shape ({count},), one for each sequence; got "
            f"{tuple(made.shape)}"
        )
    bound = "" if most is None else f" to {most}"
    text = f"[{op}] Expected {name} to have values from 0{bound}; got {{value}}"
    return expect_range(made, 0, most, RuntimeError, text)


def _labels(op: str, targets: Tensor, given: Lengths, sizes: Tensor) -> Tensor:
    """The targets as (N, S); what is beyond a target's length is any class."""
    if targets.dim() == 2:
        text = (
            f"[{op}] expected targets ({sizes.shape[0]}, S), S at least the largest target "
            f"length; got {tuple(targets.shape)}"
        )
        if targets.shape[0] != sizes.shape[0]:
            raise RuntimeError(text)
        text += " and a length of {value}"
        sizes = expect_range(sizes, None, targets.shape[1], RuntimeError, text)
        return ops.where(arange(int(targets.shape[1])) < sizes.unsqueeze(1), targets, 0)
    total = int(targets.shape[0])
    text = (
        f"[{op}] expected a vector of targets as long as target_lengths add up to; got {total} for "
        "{value}"
    )
    expect_range(sizes.sum(), total, total, RuntimeError, text)
    data = sizes._data  # only for a size of the result that fits
    if not isinstance(given, Tensor):
        longest = max(given, default=0)
    elif state.recorder is None and data is not None:
        longest = int(data.max()) if data.size else 0
    else:
        longest = total
    if not total:
        return full((int(sizes.shape[0]), 0), 0, dtype=dtypes.int64)
    column = arange(longest)
    first = (sizes.cumsum(0) - sizes).unsqueeze(1)
    inside = column < sizes.unsqueeze(1)
    place = ops.where(inside, first + column, 0)
    picked = targets.index_select(0, place.reshape(-1)).reshape(place.shape)
    return ops.where(inside, picked, 0)


def _log_likelihood(
    log_probs: Tensor, labels: Tensor, times: Tensor, sizes: Tensor, blank: int
) -> Tensor:
    """log p(target) of each sequence: log_probs (T, N, C), labels (N, S) -> (N).

    States 0, 2, 4, ... are blanks, 1, 3, 5, ... the labels. A state is reached from itself, from
    the one before, and, a label that differs from the label before, from that label.
    """
    steps, count, _ = (int(d) for d in log_probs.shape)
    size = int(labels.shape[1])
    states = 2 * size + 1
    blanks = full((count, size), blank, dtype=dtypes.int64)
    last_blank = full((count, 1), blank, dtype=dtypes.int64)
    path = cat([stack([blanks, labels], 2).reshape(count, 2 * size), last_blank], 1)
    index = path.unsqueeze(0).expand(steps, count, states)
    emitted = ops.gather(log_probs, 2, index).clamp(min=_NEVER)
    skips = full((count, states), False, dtype=dtypes.bool_)
    if size > 1:
        differs = (labels.narrow(1, 1, size - 1) != labels.narrow(1, 0, size - 1)).unsqueeze(2)
        pairs = cat([differs, ops.logical_and(differs, False)], 2).reshape(count, 2 * size - 2)
        skips = cat([skips.narrow(1, 0, 3), pairs], 1)
    never = full((count, 2), _NEVER, dtype=log_probs.dtype)
    starts = arange(states) < 2
    alpha = ops.where(starts, emitted[0], _NEVER)

    def combine(alpha: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        emission, step = now
        padded = cat([never, alpha], 1)
        before = padded.narrow(1, 1, states)
        skipped = ops.where(skips, padded.narrow(1, 0, states), _NEVER)
        top = ops.maximum(ops.maximum(alpha, before), skipped).detach()
        total = ops.exp(alpha - top) + ops.exp(before - top) + ops.exp(skipped - top)
        moved = top + ops.log(total) + emission
        return ops.where((step < times).unsqueeze(1), moved, alpha), None

    if steps > 1:
        later = (emitted.narrow(0, 1, steps - 1), arange(1, steps))
        alpha, _ = scan(combine, alpha, later)
    last = 2 * sizes.unsqueeze(1)
    at_blank = ops.gather(alpha, 1, last)
    at_label = ops.gather(alpha, 1, (last - 1).clamp(min=0))
    at_label = ops.where(last > 0, at_label, _NEVER)
    top = ops.maximum(at_blank, at_label).detach()
    result = top + ops.log(ops.exp(at_blank - top) + ops.exp(at_label - top))
    # With no time at all, only the empty target is possible.
    nothing = ops.where(sizes == 0, 0.0, _NEVER).to(log_probs.dtype)
    return ops.where(times == 0, nothing, result.squeeze(1))
