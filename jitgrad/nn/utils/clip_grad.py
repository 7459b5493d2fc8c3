"""Clipping of gradients, by norm and by value. No branch on values: it works in compiled steps."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import jitgrad.functions as ops
from jitgrad.autograd.modes import no_grad
from jitgrad.creation import zeros
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor

Tensors = Tensor | Iterable[Tensor]


def _list(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _grads(parameters: Tensors) -> list[Tensor]:
    return [p.grad for p in _list(parameters) if p.grad is not None]


@no_grad()
def get_total_norm(
    tensors: Tensors, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all elements as one vector: a 0-d tensor, where the first is; 0 of no tensors.

    norm_type: the p of the p-norm, 'inf' too. Raises RuntimeError with error_if_nonfinite for a
    norm that is infinite or NaN; that looks at a value, so a function under @jit then runs eagerly.
    `foreach` is accepted and changes nothing.
    """
    parts, p = _list(tensors), float(norm_type)
    if not parts:
        return zeros(())
    norms = [ops.norm(x, p).to(parts[0].device) for x in parts]
    total: Tensor = ops.norm(ops.stack(norms), p)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"[get_total_norm] expected a finite norm of order {p} of {len(parts)} tensors; got "
            f"{total.item()}; error_if_nonfinite=False scales by it all the same"
        )
    return total


@no_grad()
def clip_grads_with_norm_(
    parameters: Tensors, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Multiplies each gradient by min(1, max_norm / (total_norm + 1e-6)), in place."""
    grads = _grads(parameters)
    if not grads:
        return
    factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device, grad.dtype))


def clip_grad_norm_(
    parameters: Tensors, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scales the gradients in place so that their norm, as one vector, is at most max_norm.

    Returns the norm before, a 0-d tensor. See get_total_norm for the arguments.
    """
    if isinstance(parameters, types.GeneratorType):
        parameters = list(parameters)
        if not parameters:
            warn("[clip_grad_norm_] the generator of parameters is empty")
    parameters = _list(parameters)
    total = get_total_norm(_grads(parameters), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(parameters, max_norm, total, foreach)
    return total


def clip_grad_norm(*args: Any, **kwargs: Any) -> Tensor:
    """The old name of clip_grad_norm_."""
    warn("[clip_grad_norm] is deprecated; use clip_grad_norm_", FutureWarning)
    return clip_grad_norm_(*args, **kwargs)


@no_grad()
def clip_grad_value_(parameters: Tensors, clip_value: float, foreach: bool | None = None) -> None:
    """Clamps each element of each gradient to [-clip_value, clip_value], in place."""
    for grad in _grads(parameters):
        grad.clamp_(-clip_value, clip_value)
