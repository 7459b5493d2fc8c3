"""Rprop: resilient backpropagation (Riedmiller and Braun 1993)."""

from __future__ import annotations

from typing import Any

from jitgrad.creation import full_like
from jitgrad.functions import where
from jitgrad.optim.optimizer import Hyper, Optimizer, Params, State, check_lr
from jitgrad.tensor import Tensor


class Rprop(Optimizer):
    """Each element has a step size, which begins with lr. It grows by etas[1] where g has the sign
    of the last g, and shrinks by etas[0] where the sign changed; there g counts as 0. Step sizes
    stay between step_sizes[0] and step_sizes[1];  p -= sign(g) * step_size.

    State: `step` (0-d float32), `prev` (the last g), `step_size`.
    """

    def __init__(
        self, params: Params, lr: Any = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False,
        foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        check_lr("Rprop", lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(
                f"[Rprop] invalid eta values: {etas[0]}, {etas[1]}; expected 0 < etas[0] < 1 and "
                "1 < etas[1]"
            )
        defaults = {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        self.init_zeros(state, p, "prev")
        self.init_state(state, "step_size", full_like(grad, h["lr"]))

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        shrink, grow = h["etas"]
        self.advance(state)
        sign = (grad * state["prev"]).sign()
        turned = sign < 0
        factor = where(sign > 0, grow, where(turned, shrink, where(sign == 0, 1.0, sign)))
        size = (state["step_size"] * factor).clamp(*h["step_sizes"])
        size = self.keep(state, "step_size", size)
        grad = where(turned, 0.0, grad)
        p.sub_(grad.sign() * size)
        self.keep(state, "prev", grad)
