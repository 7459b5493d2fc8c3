"""Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import zeros, zeros_like
from jitgrad.optim.optimizer import Optimizer, Params, check_at_least
from jitgrad.optim.sgd import has
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class Adam(Optimizer):
    """m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;
    p -= lr / (1 - b1**t) * m / (sqrt(v / (1 - b2**t)) + eps).

    weight_decay adds weight_decay * p to g, or with decoupled_weight_decay shrinks p by
    lr * weight_decay first. amsgrad uses the largest v so far. State per parameter: `step` (0-d
    float32), `exp_avg`, `exp_avg_sq`, `max_exp_avg_sq`. Bias corrections are computed in float64.
    """

    def __init__(
        self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        for key, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            check_at_least(name, key, value, 0.0)
        for i, b in enumerate(betas):
            if not 0.0 <= b < 1.0:
                raise ValueError(f"[{name}] invalid beta parameter at index {i}: {b}")
        if differentiable:
            raise ValueError(f"[{name}] differentiable=True is not supported (docs/limits.md)")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "foreach": foreach, "maximize": maximize,
            "capturable": capturable, "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Tensor, grad: Tensor, state: dict[str, Any], h: dict[str, Any]) -> None:
        if "step" not in state:
            self.init_state(state, "step", zeros((), dtype=dtypes.float32))
            self.init_state(state, "exp_avg", zeros_like(p))
            self.init_state(state, "exp_avg_sq", zeros_like(p))
            if h["amsgrad"]:
                self.init_state(state, "max_exp_avg_sq", zeros_like(p))
        lr, (beta1, beta2) = h["lr"], h["betas"]
        if has(h["weight_decay"]):
            if h["decoupled_weight_decay"]:
                p.mul_(1 - lr * h["weight_decay"])
            else:
                grad = grad + p * h["weight_decay"]
        step, m, v = state["step"], state["exp_avg"], state["exp_avg_sq"]
        step.add_(1)
        m.mul_(beta1).add_(grad * (1 - beta1))
        v.mul_(beta2).add_(grad * grad * (1 - beta2))
        second = v
        if h["amsgrad"]:
            second = state["max_exp_avg_sq"]
            second.copy_(second.maximum(v))
        t = step.to(dtypes.float64)
        step_size = lr / (1 - beta1**t)
        scale = (1 - beta2**t).sqrt()
        p.sub_(m / (second.sqrt() / scale + h["eps"]) * step_size)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    def __init__(
        self, params: Params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
        maximize: bool = False, foreach: bool | None = None, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused,
            decoupled_weight_decay=True,
        )  # fmt: skip
