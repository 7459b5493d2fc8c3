"""Losses. `reduction` is 'mean' (of all elements), 'sum', or 'none' (the loss of each element).

Any other reduction raises ValueError. size_average and reduce are PyTorch's deprecated flags
(reduction.py). Losses by margins are in margin_losses.py, CTC in ctc.py.
"""

from __future__ import annotations

import math
from typing import Any

import jitgrad.functions as ops
from jitgrad import fused
from jitgrad.casting import wide
from jitgrad.compiler.ops.record import OPS
from jitgrad.composites import composite
from jitgrad.creation import ones_like
from jitgrad.dispatch import apply
from jitgrad.functions.args import expect_expandable, expect_range, expect_real
from jitgrad.nn.functional.activations import logsigmoid
from jitgrad.nn.functional.args import expect_dtype, expect_floating, expect_shape, expect_tensors
from jitgrad.nn.functional.reduction import (
    expect_weight,
    legacy_reduction,
    reduce_loss,
    reduce_weighted,
)
from jitgrad.promotion import cast, constant, promote_types
from jitgrad.runtime import dtypes
from jitgrad.runtime.userline import warn
from jitgrad.tape.names import called, naming
from jitgrad.tensor import Tensor


# -- regression ------------------------------------------------------------------------------------
def _difference(op: str, input: Tensor, target: Tensor, floats: bool = True) -> Tensor:
    """input - target; warns where the shapes differ, which is most often a mistake. floats: raises
    NotImplementedError where both are integers."""
    expect_tensors(op, input=input, target=target)
    if tuple(input.shape) != tuple(target.shape):
        warn(
            f"[{op}] input has the shape {tuple(input.shape)} and target {tuple(target.shape)}: "
            "they are broadcast, which is likely not what is meant; make them equal"
        )
    if floats and not (input.is_floating_point() or target.is_floating_point()):
        raise NotImplementedError(
            f"[{op}] expected input or target of a floating dtype; got {input._type} and "
            f"{target._type}; convert them with .float()"
        )
    if dtypes.bool_ in (input.dtype, target.dtype):  # which the operator - refuses
        dtype = promote_types(input.dtype, target.dtype)
        return input.to(dtype) - target.to(dtype)
    return input - target


@wide
@composite
def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(input - target)**2 * weight; the mean is weighted. Shapes broadcast, with a warning."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_real("mse_loss", input, target)
    d = _difference("mse_loss", input, target)
    return called(
        reduce_weighted("mse_loss", d * d, weight, reduction, input.shape), "MseLossBackward0"
    )


@wide
@composite
def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """|input - target| * weight; the mean is weighted. Shapes broadcast, with a warning. Of
    integers there is no mean (RuntimeError)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    for x in (input, target):
        if isinstance(x, Tensor) and x.dtype is dtypes.bool_:
            raise RuntimeError(f"[l1_loss] expected numbers; got {x._type}; use .float()")
    d = _difference("l1_loss", input, target, floats=False).abs()
    return reduce_weighted("l1_loss", d, weight, reduction, input.shape)


@wide
@composite
@naming("SmoothL1LossBackward0")
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """d**2 / (2 * beta) where d = |input - target| < beta, else d - beta / 2 (Girshick 2015).

    Shapes broadcast, with a warning. Raises RuntimeError for a negative beta.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError(f"[smooth_l1_loss] expected beta of at least 0; got {beta}")
    expect_real("smooth_l1_loss", input, target)
    d = _difference("smooth_l1_loss", input, target).abs()
    if beta == 0:
        return reduce_loss("smooth_l1_loss", d, reduction)
    far, near = _split(d, beta)
    loss = ops.where(far, d - 0.5 * beta, 0.5 * near * near / beta)
    return reduce_loss("smooth_l1_loss", loss, reduction)


def _split(d: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Where d >= bound, and d with zeros there: no infinity reaches the derivative of squares."""
    far = d >= bound
    return far, ops.where(far, 0.0, d)


@wide
@composite
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """d**2 / 2 where d = |input - target| < delta, else delta * (d - delta / 2) (Huber 1964);
    times weight, over which the mean is not weighted, as in PyTorch.

    Shapes broadcast, with a warning. Raises RuntimeError unless delta > 0.
    """
    if not delta > 0:
        raise RuntimeError(f"[huber_loss] expected delta above 0; got {delta}")
    if not input.is_floating_point() and target.is_floating_point():
        raise RuntimeError(
            f"[huber_loss] expected a floating input, whose dtype the loss has; got {input._type}"
        )
    expect_real("huber_loss", input, target)
    d = _difference("huber_loss", input, target).abs()
    far, near = _split(d, delta)
    loss = ops.where(far, delta * (d - 0.5 * delta), 0.5 * near * near)
    if weight is not None:
        expect_weight("huber_loss", weight, input.shape)
        loss = loss * weight
    return called(reduce_loss("huber_loss", loss, reduction), "HuberLossBackward0")


# -- two classes, distributions --------------------------------------------------------------------
def _without(shape: Any, dim: int) -> tuple[Any, ...]:
    return tuple(n for k, n in enumerate(shape) if k != dim)


def _expect_same_shape(op: str, input: Tensor, target: Tensor) -> None:
    expect_tensors(op, input=input, target=target)
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"[{op}] expected target of input's shape {tuple(input.shape)}; got "
            f"{tuple(target.shape)}; reshape one"
        )


_FLAT = 1e-12
"""p * (1 - p) below which PyTorch divides binary_cross_entropy's derivative by this instead."""


@wide
@composite
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """-(t log p + (1 - t) log(1 - p)) * weight, the logs at least -100, as in PyTorch.

    The derivative is (p - t) / max(p * (1 - p), 1e-12). Raises ValueError for shapes that differ,
    RuntimeError for probabilities outside [0, 1].
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    op = "binary_cross_entropy"
    _expect_same_shape(op, input, target)
    expect_floating(op, "input", input)
    expect_dtype(op, input.dtype, target=target)
    _expect_factor(op, input, weight=weight)
    input = _expect_probabilities(op, input)
    # Where the derivative is clipped, the loss is a constant plus what has that derivative.
    flat = input * (1 - input) < _FLAT
    p = ops.where(flat, 0.5, input)
    curved = target * ops.log(p) + (1 - target) * ops.log(1 - p)
    fixed = input.detach()
    log_p, log_q = ops.log(fixed).clamp(min=-100), ops.log(1 - fixed).clamp(min=-100)
    clipped = target * log_p + (1 - target) * log_q
    parabola = (input - target.detach()) ** 2 * (0.5 / _FLAT)
    parabola = ops.where(flat, parabola - parabola.detach(), 0.0)
    loss = parabola - ops.where(flat, clipped, curved)
    loss = loss if weight is None else (loss * weight).to(input.dtype)
    return called(reduce_loss(op, loss, reduction), "BinaryCrossEntropyBackward0")


def _expect_factor(op: str, input: Tensor, **factors: Tensor | None) -> None:
    """Raises RuntimeError, naming the argument, for a factor of the loss that is complex or does
    not expand to input's shape."""
    expect_expandable(op, input._type.shape, **factors)
    for name, x in factors.items():
        if x is not None and x.dtype.is_complex:
            raise RuntimeError(f"[{op}] expected real numbers as {name}; got {x._type}")


def _expect_probabilities(op: str, input: Tensor) -> Tensor:
    text = (
        f"[{op}] expected all elements of input to be from 0 to 1 (NaN is not); got {{value}} in "
        f"{input.dtype} {tuple(input.shape)}; use binary_cross_entropy_with_logits for logits"
    )
    return expect_range(input, 0.0, 1.0, RuntimeError, text)


@wide
@composite
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), stable:
    ((1 - t) * x - (1 + (pos_weight - 1) * t) * logsigmoid(x)) * weight.

    weight and pos_weight broadcast. Raises ValueError for shapes of input and target that differ.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    op = "binary_cross_entropy_with_logits"
    _expect_same_shape(op, input, target)
    expect_floating(op, "input", input)
    if not target.is_floating_point():
        raise RuntimeError(
            f"[{op}] expected a floating target, whose dtype the loss has; got {target._type}; "
            "convert it with .to(input.dtype)"
        )
    _expect_factor(op, input, weight=weight, pos_weight=pos_weight)
    log_p = logsigmoid(input)
    if pos_weight is not None:
        log_p = (1 + (pos_weight - 1) * target) * log_p
    loss = (1 - target) * input - log_p
    loss = (loss if weight is None else loss * weight).to(target.dtype)
    return called(reduce_loss(op, loss, reduction), "BinaryCrossEntropyWithLogitsBackward0")


@wide
@composite
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """t * (log t - x), x = input in log space; with log_target, t = exp(target).

    reduction 'batchmean' divides the sum by input's first size: the divergence's mean over a batch.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors("kl_div", input=input, target=target)
    for x in (input, target):
        if not x.is_floating_point():
            raise RuntimeError(
                f"[kl_div] expected floating tensors; got {input._type} and {target._type}"
            )
    if log_target:
        loss = ops.exp(target) * (target - input)
    else:
        zero = target == 0  # 0 log 0 is 0
        entropy = ops.where(zero, 0.0, target * ops.log(ops.where(zero, 1.0, target)))
        loss = entropy - target * input
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.dim() else 1)
    return reduce_loss("kl_div", loss, reduction)


@wide
@composite
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False,
    size_average: bool | None = None, eps: float = 1e-8, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """exp(x) - t * x, x = input the log of the rate; without log_input, x - t * log(x + eps).

    `full` adds Stirling's approximation of log(t!) where t > 1: t log t - t + log(2 pi t) / 2.
    """
    op = "poisson_nll_loss"
    reduction = legacy_reduction(size_average, reduce, reduction)
    expect_tensors(op, input=input, target=target)
    if full and target.dtype is dtypes.bool_:
        raise RuntimeError(f"[{op}] expected numbers as target; got {target._type}; use .float()")
    rate = ops.exp(input) if log_input else input
    loss = rate - target * (input if log_input else ops.log(input + eps))
    if full:
        many = target > 1
        t = ops.where(many, target, 1.0)
        stirling = t * ops.log(t) - t + 0.5 * ops.log(2 * math.pi * t)
        loss = loss + ops.where(many, stirling, 0.0)
    return reduce_loss(op, loss, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """(log v + (input - target)**2 / v) / 2, v = max(var, eps); `full` adds log(2 pi) / 2 (Nix and
    Weigend 1994).

    var is a number or a tensor of input's shape, or of that with the last size, or one size, 1.
    v counts as var in the derivative. Raises ValueError for another shape, or a negative var.
    """
    op = "gaussian_nll_loss"
    expect_tensors(op, input=input, target=target)
    v = var if isinstance(var, Tensor) else ones_like(input) * var
    if not v.is_floating_point():
        raise RuntimeError(f"[{op}] expected a floating var; got {v._type}; use .float()")
    text = f"[{op}] expected var of at least 0; got var with negative entries"
    expect_range((v < 0).long(), 0, 0, ValueError, text)  # NaN is not negative
    shape, own = tuple(input.shape), tuple(v.shape)
    if own != shape:
        # The sizes of var where they differ from input's add up to 1: one of them, of size 1.
        one_apart = len(own) == len(shape) and (
            sum(b for a, b in zip(shape, own, strict=True) if a != b) == 1
        )
        if own == shape[:-1]:
            v = v.unsqueeze(-1)
        elif not one_apart:
            raise ValueError(f"[{op}] expected var of input's shape {shape}; got {own}")
    v = ops.where(v < eps, v - v.detach() + eps, v)
    loss = 0.5 * (ops.log(v) + (input - target) ** 2 / v)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduce_loss(op, loss, reduction)


# -- classes ---------------------------------------------------------------------------------------
def _class_dim(op: str, input: Tensor, target: Tensor, weight: Tensor | None) -> int:
    """The dim of input that is over classes: 1, or 0 of a vector."""
    expect_tensors(op, input=input, target=target)
    rank = len(input._type.shape)
    if not rank:
        raise ValueError(f"[{op}] expected input (N, C, ...) or (C); got a 0-d tensor")
    expect_floating(op, "input", input)
    dim = 1 if rank > 1 else 0
    if weight is not None:
        expect_dtype(op, input.dtype, weight=weight)
        expect_shape(op, (input.shape[dim],), weight=weight)
    return dim


def _classes(op: str, input: Tensor, target: Tensor) -> Tensor:
    """The target of class indices, () of (1,) for a vector. Raises ValueError for another number of
    targets than of examples, RuntimeError for other shapes and dtypes that do not fit."""
    sizes, own = input._type.shape, target._type.shape
    expected = (*sizes[:1], *sizes[2:]) if len(sizes) > 1 else ()
    if own != expected and not (own == (1,) and len(sizes) == 1 and sizes != own):
        counts_fit = bool(own) and own[0] == sizes[0] if len(sizes) > 1 else len(own) > 1
        way_out = "pass as many targets as there are examples"
        if own == sizes and op == "cross_entropy":
            counts_fit = True
            way_out = "convert probabilities to input's dtype, or pass classes (.argmax(1))"
        elif [n for n in own if n != 1] == [n for n in expected if n != 1]:
            way_out = f"reshape it to {tuple(expected)}"
        raise (RuntimeError if counts_fit else ValueError)(
            f"[{op}] expected target of shape {tuple(expected)} for input {tuple(input.shape)}; "
            f"got {tuple(target.shape)}; {way_out}"
        )
    if target._type.dtype is dtypes.uint8 and len(own) <= 1:
        target = cast(target, dtypes.int64)
    if target._type.dtype is not dtypes.int64:
        raise RuntimeError(
            f"[{op}] expected class indices of int64 (or uint8, one for each example); got "
            f"{target.dtype} {tuple(target.shape)}; convert them with .long()"
        )
    return target if own == expected else target.reshape(())


def expect_class_range(op: str, target: Tensor, ignore_index: int | None, classes: Any) -> Tensor:
    """The target, with class 0 where it is ignore_index. Raises IndexError, naming the class, for
    one out of range."""
    text = f"[{op}] Target {{value}} is out of bounds: expected classes from 0 to {classes - 1}"
    if ignore_index is not None:
        target = ops.where(target != ignore_index, target, 0)
        text += f", or ignore_index {ignore_index}"
    return expect_range(target, 0, classes - 1, IndexError, text)


def _at_class(
    op: str, x: Tensor, target: Tensor, ignore_index: int, dim: int, negate: bool = False
) -> Tensor:
    """x (or 0 - x) at the target's class along dim; 0 where that is ignore_index."""
    attrs = _class_attrs(op, dim, ignore_index)
    return apply(OPS["select_at"], (x, target), {**attrs, "negate": negate})


def _class_attrs(op: str, dim: int, ignore_index: int) -> dict[str, Any]:
    """Attributes of records that read scores at a target's class."""
    text = (
        f"[{op}] Target {{value}} is out of bounds: expected classes from 0 to {{last}}, or "
        f"ignore_index {ignore_index}"
    )
    return {"axis": dim, "ignore": int(ignore_index), "text": text}


def _mean_at_class(op: str, log_p: Tensor, target: Tensor, ignore_index: int, dim: int) -> Tensor:
    """The mean of -log_p[target] over the targets that are not ignored."""
    attrs = _class_attrs(op, dim, ignore_index)
    made: Tensor = fused.apply(fused.nll_loss, (log_p, target), attrs)
    return made


def _picked(
    op: str, log_p: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, dim: int
) -> tuple[Tensor, Tensor | None]:
    """(-log_p[target] * weight[target], weight[target]), both 0 where the target is ignored; None
    for weights that are all 1."""
    loss = _at_class(op, log_p, target, ignore_index, dim, negate=True)
    if weight is None:
        return loss, None
    beside = weight.reshape([-1] + [1] * (log_p.dim() - 1 - dim)).expand(log_p.shape)
    counted = _at_class(op, beside, target, ignore_index, dim)
    return loss * counted, counted


def _mean_of_counted(
    loss: Tensor, counted: Tensor | None, target: Tensor, ignore_index: int
) -> Tensor:
    """The sum of loss over that of the weights of what counts."""
    total: dict[str, Any] = {"axes": tuple(range(loss.dim())), "keepdim": False}
    summed = apply(OPS["sum"], (loss,), total)
    if counted is None:
        counts = apply(OPS["ne"], (target, constant(ignore_index, dtypes.int64)), {})
        number = apply(OPS["sum"], (counts,), total | {"dtype": loss.dtype})
    else:
        number = apply(OPS["sum"], (counted,), total)
    return apply(OPS["div"], (summed, number), {})


@wide
@naming("NllLossBackward0")
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-input[n, target[n]] * weight[target[n]]: input (N, C, ...) or (C) of log-probabilities,
    target (N, ...) or () of int64, weight (C).

    Targets equal to ignore_index count 0; the mean is weighted by weight[target], NaN if nothing
    counts. Raises ValueError for shapes, RuntimeError for dtypes that do not fit, IndexError for a
    class out of range.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    dim = _class_dim("nll_loss", input, target, weight)
    target = _classes("nll_loss", input, target)
    if weight is None and reduction == "mean":
        return _mean_at_class("nll_loss", input, target, ignore_index, dim)
    loss, counted = _picked("nll_loss", input, target, weight, ignore_index, dim)
    if reduction == "mean":
        return _mean_of_counted(loss, counted, target, ignore_index)
    return reduce_loss("nll_loss", loss, reduction)


@wide
@naming("NllLossBackward0")
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-sum over c of q[c] * weight[c] * log softmax(input)[c]: input (N, C, ...) or (C) of logits.

    target is q itself, of input's shape and floating, or (N, ...) or () of int64 classes: q is 1
    there. label_smoothing e makes q (1 - e) * q + e / C (Szegedy et al. 2016). The mean is over N
    and the further dims for probabilities, weighted by weight[target] for classes, of which those
    equal to ignore_index count 0. Raises as nll_loss does.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    op = "cross_entropy"
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"[{op}] expected label_smoothing from 0 to 1; got {label_smoothing}")
    dim = _class_dim(op, input, target, weight)
    classes = input.shape[dim]
    log_p = apply(OPS["log_softmax"], (input,), {"axis": dim})
    by_class = None
    if weight is not None and (label_smoothing or target.is_floating_point()):
        by_class = weight.reshape([-1] + [1] * (input.dim() - 1 - dim))
    if target.is_floating_point():
        if tuple(target.shape) != tuple(input.shape):
            other = input.dim() > 1 and tuple(target.shape[:1]) != tuple(input.shape[:1])
            raise (ValueError if other else RuntimeError)(
                f"[{op}] expected a target of integers {_without(input.shape, dim)}, or one of "
                f"probabilities {tuple(input.shape)}; got {target._type}; convert it with .long()"
            )
        if ignore_index >= 0:
            raise RuntimeError(
                f"[{op}] ignore_index is not supported for floating targets; got {ignore_index}; "
                "leave it out and set the ignored rows of target to zero"
            )
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        terms = log_p * target
        loss = -(terms if by_class is None else terms * by_class).sum(dim)
        return reduce_loss(op, loss, reduction)
    target = _classes(op, input, target)
    if weight is None and reduction == "mean" and not label_smoothing:
        return _mean_at_class(op, log_p, target, ignore_index, dim)
    loss, counted = _picked(op, log_p, target, weight, ignore_index, dim)
    if label_smoothing:
        smooth = -(log_p if by_class is None else log_p * by_class).sum(dim)
        smooth = ops.where(target != ignore_index, smooth, 0.0)
        loss = loss * (1 - label_smoothing) + smooth * (label_smoothing / classes)
    if reduction == "mean":
        return _mean_of_counted(loss, counted, target, ignore_index)
    return reduce_loss(op, loss, reduction)
