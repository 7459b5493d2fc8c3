"""Stochastic gradient descent with momentum, Nesterov momentum and weight decay."""

from __future__ import annotations

from typing import Any

from jitgrad.optim.optimizer import Optimizer, Params, check_at_least
from jitgrad.tensor import Tensor


class SGD(Optimizer):
    """g = grad + weight_decay * p;  v = momentum * v + (1 - dampening) * g;  p -= lr * v.

    The first v is g. nesterov: p -= lr * (g + momentum * v) (Sutskever et al. 2013).
    """

    def __init__(
        self, params: Params, lr: float = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            check_at_least("SGD", name, value, 0.0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        if differentiable:
            raise ValueError("[SGD] differentiable=True is not supported (docs/limits.md)")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], h: dict[str, Any]) -> None:
        group = h
        if has(group["weight_decay"]):
            grad = grad + p * group["weight_decay"]
        if has(group["momentum"]):
            v = state.get("momentum_buffer")
            if v is None:
                v = self.init_state(state, "momentum_buffer", grad.detach().clone())
            else:
                v.mul_(group["momentum"]).add_(grad * (1 - group["dampening"]))
            grad = grad + v * group["momentum"] if group["nesterov"] else v
        p.sub_(grad * group["lr"])


def has(value: Any) -> bool:
    """Whether a hyper-parameter is not zero. (Of a lifted one: it is part of the guard.)"""
    return bool(value != 0)
