"""RMSprop (Tieleman and Hinton 2012; centered: Graves 2013)."""

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
    has,
)
from jitgrad.tensor import Tensor


class RMSprop(Optimizer):
    """s = alpha*s + (1-alpha)*g*g;  p -= lr * g / (sqrt(s) + eps).

    centered: s - a*a in place of s, with a the running mean of g. With momentum
    v = momentum*v + g / (sqrt(s) + eps);  p -= lr * v. State: `step` (0-d float32), `square_avg`,
    `momentum_buffer`, `grad_avg`.
    """

    def __init__(
        self, params: Params, lr: Any = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0, momentum: float = 0, centered: bool = False,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("RMSprop", lr)
        for name, value in (
            ("eps", eps), ("momentum", momentum), ("weight_decay", weight_decay), ("alpha", alpha),
        ):  # fmt: skip
            check_at_least("RMSprop", name, value, 0.0)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "square_avg")
        if has(h["momentum"]):
            self.init_zeros(state, p, "momentum_buffer")
        if h["centered"]:
            self.init_zeros(state, p, "grad_avg")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        alpha = h["alpha"]
        grad = decayed(grad, p, h["weight_decay"])
        self.advance(state)
        square = state["square_avg"] * alpha + grad * grad * (1 - alpha)
        square = self.keep(state, "square_avg", square)
        if h["centered"]:
            mean = self.keep(state, "grad_avg", state["grad_avg"] * alpha + grad * (1 - alpha))
            square = square - mean * mean
        step = grad / (square.sqrt() + h["eps"])
        if has(h["momentum"]):
            step = self.keep(
                state, "momentum_buffer", state["momentum_buffer"] * h["momentum"] + step
            )
        p.sub_(step * h["lr"])
