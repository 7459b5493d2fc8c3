"""NAdam: Adam with Nesterov momentum (Dozat 2016)."""

from __future__ import annotations

from typing import Any

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
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class NAdam(Optimizer):
    """Adam's m and v;  mu(t) = b1 * (1 - 0.96**(t * momentum_decay) / 2);  P = product of mu;
    p -= lr * (g * (1 - mu(t)) / (1 - P(t)) + m * mu(t+1) / (1 - P(t+1)))
    / (sqrt(v / (1 - b2**t)) + eps).

    State: `step`, `mu_product` (0-d float32), `exp_avg`, `exp_avg_sq`.
    """

    SCALARS = ("step", "mu_product")

    def __init__(
        self, params: Params, lr: Any = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("NAdam", lr)
        check_at_least("NAdam", "eps", eps, 0.0)
        check_betas("NAdam", betas)
        check_at_least("NAdam", "weight_decay", weight_decay, 0.0)
        check_at_least("NAdam", "momentum_decay", momentum_decay, 0.0)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize, "foreach": foreach, "capturable": capturable,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_scalar(p, state, "mu_product", 1.0)
        self.init_zeros(state, p, "exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, (beta1, beta2) = h["lr"], h["betas"]
        if h["decoupled_weight_decay"]:
            shrink(p, lr, h["weight_decay"])
        else:
            grad = decayed(grad, p, h["weight_decay"])
        t = self.advance(state)

        def mu(t: Tensor) -> Tensor:
            factor: Tensor = beta1 * (1 - 0.5 * 0.96 ** (t * h["momentum_decay"]))
            return factor

        now, following = mu(t), mu(t + 1)
        product = state["mu_product"]
        product = self.keep(state, "mu_product", product * now.to(product.dtype))
        product = product.to(dtypes.float64)
        m, v = moments(self, grad, state, beta1, beta2)
        denominator = (v / (1 - beta2**t)).sqrt() + h["eps"]
        p.sub_(grad * (lr * (1 - now) / (1 - product)) / denominator)
        p.sub_(m * (lr * following / (1 - product * following)) / denominator)
