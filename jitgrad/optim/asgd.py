"""ASGD: averaged stochastic gradient descent (Polyak and Juditsky 1992)."""

from __future__ import annotations

from typing import Any

from jitgrad.functions import where
from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_lr,
    decayed,
)
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class ASGD(Optimizer):
    """p = (1 - lambd * eta) * p - eta * g;  ax = ax + mu * (p - ax), then
    eta = lr / (1 + lambd * lr * t)**alpha;  mu = 1 / max(1, t - t0).

    State: `step`, `eta` (which begins with lr), `mu` (1) (0-d float32), `ax`: the average.
    """

    SCALARS = ("step", "eta", "mu")

    def __init__(
        self, params: Params, lr: Any = 1e-2, lambd: float = 1e-4, alpha: float = 0.75,
        t0: float = 1e6, weight_decay: float = 0, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("ASGD", lr)
        check_at_least("ASGD", "weight_decay", weight_decay, 0.0)
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize, "differentiable": differentiable,
            "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_scalar(p, state, "eta", h["lr"])
        self.init_scalar(p, state, "mu", 1.0)
        self.init_zeros(state, p, "ax")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, decay = h["lr"], h["lambd"]
        t = self.advance(state)
        grad = decayed(grad, p, h["weight_decay"])
        eta = state["eta"].to(dtypes.float64)
        p.mul_(1 - decay * eta)
        p.sub_(grad * eta)
        mean, mu = state["ax"], state["mu"]
        self.keep(state, "ax", where(mu == 1, p, mean + (p - mean) * mu))
        later = lr / (1 + decay * lr * t) ** h["alpha"]
        self.keep(state, "eta", later.to(state["eta"].dtype))
        self.keep(state, "mu", (1 / (t - h["t0"]).clamp(min=1)).to(mu.dtype))
