"""Stochastic gradient descent with momentum, Nesterov momentum and weight decay."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import full_like
from jitgrad.functions import where
from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_lr,
    check_modes,
    decayed,
    decrease,
    has,
)
from jitgrad.tensor import Tensor


class SGD(Optimizer):
    """g = grad + weight_decay * p;  v = momentum * v + (1 - dampening) * g;  p -= lr * v.

    The first v is g. nesterov: p -= lr * (g + momentum * v) (Sutskever et al. 2013). State:
    `momentum_buffer`, where momentum is not 0.
    """

    SCALARS = ()

    def __init__(
        self, params: Params, lr: Any = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: Any = 0, nesterov: bool = False, *, maximize: bool = False,
        foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_lr("SGD", lr)
        check_at_least("SGD", "momentum", momentum, 0.0)
        check_at_least("SGD", "weight_decay", weight_decay, 0.0)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("[SGD] Nesterov momentum requires a momentum and zero dampening")
        check_modes("SGD", foreach, fused, differentiable)
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def has_state(self, h: Hyper) -> bool:
        return has(h["momentum"])

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        # The first v is g: -0.0 is what changes no sum. (Gradients do not go through the first v.)
        if not has(h["dampening"]) and not h["differentiable"]:
            self.init_state(state, "momentum_buffer", full_like(p, -0.0))

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        grad = decayed(grad, p, h["weight_decay"])
        if has(h["momentum"]):
            v = state.get("momentum_buffer")
            if v is None:
                v = self.init_state(state, "momentum_buffer", grad.detach().clone())
            else:
                new = v * h["momentum"] + grad * (1 - h["dampening"])
                v = self.keep(state, "momentum_buffer", new)
            grad = grad + v * h["momentum"] if h["nesterov"] else v
        decrease(p, grad * h["lr"])

    def skipped_begin(self, skip: Tensor, new: State, h: Hyper) -> None:
        # The buffer begins with 0 in place of the next step's g: the same only without dampening.
        if has(h["dampening"]):
            raise RuntimeError(
                "[SGD] expected a momentum buffer where GradScaler may skip a step in a compiled "
                f"function with dampening={h['dampening']!r}; take the first step outside of jit"
            )
        v = new["momentum_buffer"]
        v.copy_(where(skip, 0.0, v))
