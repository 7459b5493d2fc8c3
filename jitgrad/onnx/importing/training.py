"""Handlers of ONNX's optimizers (ai.onnx.preview.training): Momentum, Adagrad, Adam.

Operands: rate, step count, then for all tensors their values, gradients and states, in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jitgrad as jg
from jitgrad.onnx.importing.calls import Call, handler
from jitgrad.tensor import Tensor

_DOMAIN = "ai.onnx.preview.training"


def _each(c: Call, states: int, update: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """update(value, regularised gradient, *states) -> (value, *states), for each tensor."""
    rest = c.tensors()[2:]
    count = len(rest) // (2 + states)
    weight = c.attr("norm_coefficient", 0.0)
    groups = [rest[k * count : (k + 1) * count] for k in range(2 + states)]
    made = [update(x, weight * x + g, *more) for x, g, *more in zip(*groups, strict=True)]
    return tuple(y for group in zip(*made, strict=True) for y in group)


@handler("Momentum", domain=_DOMAIN)
def momentum(c: Call) -> Any:
    """v = alpha v + beta g, where beta is 1 in the first step; x - rate v, or Nesterov's step."""
    rate, step = c.tensor(0), c.tensor(1)
    alpha, mode = c.attr("alpha"), c.attr("mode")
    beta = jg.where(step > 0, jg.full_like(rate, c.attr("beta")), jg.ones_like(rate))
    if mode not in ("standard", "nesterov"):
        c.unsupported(f"mode {mode!r}")

    def update(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        v = alpha * v + beta * g
        return x - rate * (g + alpha * v if mode == "nesterov" else v), v

    return _each(c, 1, update)


@handler("Adagrad", domain=_DOMAIN)
def adagrad(c: Call) -> Any:
    """h = h + g^2; x - rate g / (sqrt(h) + epsilon), the rate divided by 1 + decay times steps."""
    rate = c.tensor(0) / (1 + c.tensor(1) * c.attr("decay_factor", 0.0))
    epsilon = c.attr("epsilon", 1e-6)

    def update(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        h = h + g * g
        return x - rate * g / (h.sqrt() + epsilon), h

    return _each(c, 1, update)


@handler("Adam", domain=_DOMAIN)
def adam(c: Call) -> Any:
    """Kingma and Ba (2015): moments with their bias corrected from the first step on."""
    rate, step = c.tensor(0), c.tensor(1).to(c.tensor(0).dtype)
    alpha, beta = c.attr("alpha", 0.9), c.attr("beta", 0.999)
    epsilon, after = c.attr("epsilon", 1e-6), c.attr("norm_coefficient_post", 0.0)
    corrected = rate * (1 - beta**step).sqrt() / (1 - alpha**step)
    rate = jg.where(step > 0, corrected, rate)

    def update(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * (g * g)
        return (1 - after) * (x - rate * (v / (h.sqrt() + epsilon))), v, h

    return _each(c, 2, update)
