"""Adam (Kingma and Ba 2015; AMSGrad: Reddi et al. 2018)."""

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
    check_modes,
    decayed,
    decrease,
    has,
)
from jitgrad.tensor import Tensor


class Adam(Optimizer):
    """m = b1*m + (1-b1)*g;  v = b2*v + (1-b2)*g*g;
    p -= lr / (1 - b1**t) * m / (sqrt(v / (1 - b2**t)) + eps).

    weight_decay adds weight_decay * p to g, or with decoupled_weight_decay shrinks p by
    lr * weight_decay first. amsgrad uses the largest v so far. State per parameter: `step` (0-d
    float32), `exp_avg`, `exp_avg_sq`, `max_exp_avg_sq`. Bias corrections are computed in float64.
    """

    def __init__(
        self, params: Params, lr: Any = 1e-3, betas: tuple[Any, Any] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: Any = 0, amsgrad: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        check_lr(name, lr)
        check_at_least(name, "eps", eps, 0.0)
        check_betas(name, betas)
        check_at_least(name, "weight_decay", weight_decay, 0.0)
        tensors = [isinstance(b, Tensor) for b in betas]
        if any(tensors) != all(tensors) or not (any(tensors) or _floats(betas)):
            raise ValueError(f"[{name}] betas must be either both floats or both Tensors")
        if foreach and not capturable and (isinstance(lr, Tensor) or any(tensors)):
            raise ValueError(
                f"[{name}] lr or betas as a Tensor are not supported for capturable=False and "
                "foreach=True; leave foreach out"
            )
        for i, b in enumerate(betas):
            if isinstance(b, Tensor) and b.numel() != 1:
                raise ValueError(f"[{name}] Tensor betas[{i}] must be 1-element; got {b._type}")
        check_modes(name, foreach, fused, differentiable)
        held = tuple([b.squeeze() if isinstance(b, Tensor) else b for b in betas])
        defaults = {
            "lr": lr, "betas": held, "eps": eps, "weight_decay": weight_decay,
            "amsgrad": amsgrad, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "differentiable": differentiable, "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "exp_avg", "exp_avg_sq")
        if h["amsgrad"]:
            self.init_zeros(state, p, "max_exp_avg_sq")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, (beta1, beta2) = h["lr"], h["betas"]
        if h["decoupled_weight_decay"]:
            shrink(p, lr, h["weight_decay"])
        else:
            grad = decayed(grad, p, h["weight_decay"])
        t = self.count(state)
        m, v = moments(self, grad, state, beta1, beta2)
        if h["amsgrad"]:
            v = self.keep(state, "max_exp_avg_sq", state["max_exp_avg_sq"].maximum(v))

        def corrections(t: Tensor) -> tuple[Tensor, Tensor]:
            return lr / (1 - beta1**t), 1 / (1 - beta2**t).sqrt()

        step_size, scale = self.by_count(t, p, h, corrections)
        decrease(p, m / (v.sqrt() * scale + h["eps"]) * step_size)


def _floats(betas: Any) -> bool:
    return all(isinstance(b, float) for b in betas)


def shrink(p: Tensor, lr: Any, weight_decay: Any) -> None:
    """Decoupled weight decay: p *= 1 - lr * weight_decay."""
    if has(weight_decay):
        p.mul_(1 - lr * weight_decay)


def moments(
    optimizer: Optimizer, grad: Tensor, state: State, beta1: Any, beta2: Any
) -> tuple[Tensor, Tensor]:
    """The running means `exp_avg` of g and `exp_avg_sq` of g*g, now with this g."""
    m = optimizer.keep(state, "exp_avg", state["exp_avg"] * beta1 + grad * (1 - beta1))
    square = state["exp_avg_sq"] * beta2 + grad * grad * (1 - beta2)
    return m, optimizer.keep(state, "exp_avg_sq", square)
