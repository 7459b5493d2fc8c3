"""RAdam: Adam with a rectified adaptive rate (Liu et al. 2020)."""

from __future__ import annotations

from typing import Any

from jitgrad.functions import where
from jitgrad.optim.adam import moments, shrink
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


class RAdam(Optimizer):
    """Adam's m and v;  R = 2 / (1 - b2) - 1;  r = R - 2 * t * b2**t / (1 - b2**t);
    where r > 5, p -= lr * m / (1 - b1**t) * rect * sqrt(1 - b2**t) / (sqrt(v) + eps), with
    rect = sqrt((r - 4) * (r - 2) * R / ((R - 4) * (R - 2) * r)); else p -= lr * m / (1 - b1**t).

    State: `step` (0-d float32), `exp_avg`, `exp_avg_sq`.
    """

    def __init__(
        self, params: Params, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("RAdam", lr)
        check_at_least("RAdam", "eps", eps, 0.0)
        check_betas("RAdam", betas)
        check_at_least("RAdam", "weight_decay", weight_decay, 0.0)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, (beta1, beta2) = h["lr"], h["betas"]
        if h["decoupled_weight_decay"]:
            shrink(p, lr, h["weight_decay"])
        else:
            grad = decayed(grad, p, h["weight_decay"])
        t = self.advance(state)
        m, v = moments(self, grad, state, beta1, beta2)
        correction = 1 - beta2**t
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * t * beta2**t / correction
        rectified = length > 5.0
        # A length that is not used is made harmless, so that its square root is no NaN.
        r = where(rectified, length, 6.0)
        rect = ((r - 4) * (r - 2) * longest / ((longest - 4) * (longest - 2) * r)).sqrt()
        mean = m / (1 - beta1**t) * lr
        adaptive = mean * (rect * correction.sqrt()) / (v.sqrt() + h["eps"])
        p.sub_(where(rectified, adaptive, mean))
