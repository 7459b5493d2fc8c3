"""Adagrad (Duchi, Hazan and Singer 2011)."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import full_like
from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_lr,
    check_modes,
    decayed,
    parts_of,
)
from jitgrad.tensor import Tensor


class Adagrad(Optimizer):
    """s = s + g*g;  p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps).

    State, made with the optimizer: `step` (0-d float32), `sum`, which begins with
    initial_accumulator_value.
    """

    def __init__(
        self, params: Params, lr: Any = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        check_lr("Adagrad", lr)
        for name, value in (
            ("lr_decay", lr_decay), ("weight_decay", weight_decay), ("eps", eps),
            ("initial_accumulator_value", initial_accumulator_value),
        ):  # fmt: skip
            check_at_least("Adagrad", name, value, 0.0)
        check_modes("Adagrad", foreach, fused, differentiable)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                parts = parts_of(p)
                self.begin(parts, parts, self.state[p], group)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        value = self.defaults["initial_accumulator_value"]
        self.init_state(state, "sum", full_like(p, value))

    def share_memory(self) -> None:
        """Moves the sums into shared memory."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"].share_memory_()

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        grad = decayed(grad, p, h["weight_decay"])
        t = self.advance(state)
        total = self.keep(state, "sum", state["sum"] + grad * grad)
        p.sub_(grad / (total.sqrt() + h["eps"]) * (h["lr"] / (1 + (t - 1) * h["lr_decay"])))
