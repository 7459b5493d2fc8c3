"""Adamax: Adam with the infinity norm (Kingma and Ba 2015, section 7)."""

from __future__ import annotations

from typing import Any

from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_betas,
    check_lr,
    decayed,
)
from jitgrad.tensor import Tensor


class Adamax(Optimizer):
    """m = b1*m + (1-b1)*g;  u = max(b2*u, |g| + eps);  p -= lr / (1 - b1**t) * m / u.

    State: `step` (0-d float32), `exp_avg`, `exp_inf`.
    """

    def __init__(
        self, params: Params, lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("Adamax", lr)
        check_at_least("Adamax", "eps", eps, 0.0)
        check_betas("Adamax", betas)
        check_at_least("Adamax", "weight_decay", weight_decay, 0.0)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "exp_avg", "exp_inf")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        beta1, beta2 = h["betas"]
        grad = decayed(grad, p, h["weight_decay"])
        t = self.advance(state)
        m = self.keep(state, "exp_avg", state["exp_avg"] * beta1 + grad * (1 - beta1))
        largest = (state["exp_inf"] * beta2).maximum(grad.abs() + h["eps"])
        u = self.keep(state, "exp_inf", largest)
        p.sub_(m / u * (h["lr"] / (1 - beta1**t)))
