"""Muon: momentum with orthogonal updates, for matrices (Jordan et al. 2024)."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.casting import exempt
from jitgrad.optim.optimizer import (
    Hyper,
    Optimizer,
    Params,
    State,
    check_at_least,
    check_lr,
)
from jitgrad.runtime import dtypes
from jitgrad.tensor import Tensor


class Muon(Optimizer):
    """v = momentum*v + (1-momentum)*g;  p = (1 - lr*weight_decay) * p - rate * orthogonal(v).

    nesterov: orthogonal(momentum*v + (1-momentum)*g). orthogonal(G) is near U V^T of G = U S V^T:
    ns_steps steps of Newton and Schulz, X = a X + (b A + c A A) X with A = X X^T, in bfloat16 from
    X = G / max(|G|, eps). The rate is lr * sqrt(max(1, rows / columns)) (adjust_lr_fn None or
    "original") or 0.2 * lr * sqrt(max(rows, columns)) ("match_rms_adamw"; Liu et al. 2025). State:
    `momentum_buffer`. Raises ValueError for parameters that are no matrices.
    """

    by_element = False

    SCALARS = ()

    def __init__(
        self, params: Params, lr: Any = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        check_lr("Muon", lr)
        check_at_least("Muon", "momentum", momentum, 0.0)
        check_at_least("Muon", "weight decay", weight_decay, 0.0)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(
                f"[Muon] Adjust learning rate function {adjust_lr_fn} is not supported"
            )
        defaults = {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(
                        "[Muon] Muon only supports 2D parameters whereas we found a parameter with "
                        f"size: {tuple(p.shape)}; give it to another optimizer"
                    )

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_zeros(state, grad, "momentum_buffer")

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, momentum = h["lr"], h["momentum"]
        v = state["momentum_buffer"]
        v = self.keep(state, "momentum_buffer", v * momentum + grad * (1 - momentum))
        step = grad * (1 - momentum) + v * momentum if h["nesterov"] else v
        step = _orthogonal(step, h["ns_coefficients"], h["ns_steps"], h["eps"])
        rows, columns = p.shape
        ratio = math.sqrt(max(1, rows / columns))
        if h["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        p.mul_(1 - lr * h["weight_decay"])
        p.sub_(step.to(p.dtype) * (lr * ratio))


@exempt
def _orthogonal(g: Tensor, coefficients: tuple[Any, Any, Any], steps: int, eps: Any) -> Tensor:
    if steps >= 100:
        raise ValueError(f"[Muon] expected ns_steps below 100; got {steps}")
    if len(coefficients) != 3:
        raise ValueError(f"[Muon] expected three ns_coefficients; got {len(coefficients)}")
    a, b, c = coefficients
    low = dtypes.bfloat16
    wide = g.shape[0] <= g.shape[1]
    x = g.to(low) if wide else g.to(low).T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        # Products of bfloat16 matrices, summed and combined in float32, rounded once.
        x32 = x.to(dtypes.float32)
        gram = (x32 @ x32.T).to(low).to(dtypes.float32)
        mixed = (gram * b + gram @ gram * c).to(low).to(dtypes.float32)
        x = (x32 * a + mixed @ x32).to(low)
    return x if wide else x.T
