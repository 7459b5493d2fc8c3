"""Adadelta (Zeiler 2012)."""

from __future__ import annotations

from typing import Any

from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_lr,
    decayed,
)
from jitgrad.tensor import Tensor


class Adadelta(Optimizer):
    """s = rho*s + (1-rho)*g*g;  d = sqrt(a + eps) / sqrt(s + eps) * g;
    a = rho*a + (1-rho)*d*d;  p -= lr * d.

    State: `step` (0-d float32), `square_avg` (s), `acc_delta` (a).
    """

    def __init__(
        self, params: Params, lr: Any = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0, foreach: bool | None = None, *, capturable: bool = False,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("Adadelta", lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"[Adadelta] invalid rho value: {rho}; expected [0, 1]")
        check_at_least("Adadelta", "eps", eps, 0.0)
        check_at_least("Adadelta", "weight_decay", weight_decay, 0.0)
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "square_avg", "acc_delta")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        rho, eps = h["rho"], h["eps"]
        grad = decayed(grad, p, h["weight_decay"])
        self.advance(state)
        square = state["square_avg"] * rho + grad * grad * (1 - rho)
        square = self.keep(state, "square_avg", square)
        delta = (state["acc_delta"] + eps).sqrt() / (square + eps).sqrt() * grad
        self.keep(state, "acc_delta", state["acc_delta"] * rho + delta * delta * (1 - rho))
        p.sub_(delta * h["lr"])
