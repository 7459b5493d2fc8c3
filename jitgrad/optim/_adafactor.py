"""Adafactor: second moments by rows and columns (Shazeer and Stern 2018)."""

from __future__ import annotations

import math
from typing import Any

from jitgrad.creation import zeros_like
from jitgrad.info import finfo
from jitgrad.optim.adam import shrink
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


class Adafactor(Optimizer):
    """w = t**beta2_decay; of matrices r += w * (mean of g*g over columns - r), c += w * (mean over
    rows - c), V = r c / mean(r); of vectors V += w * (g*g - V);  U = g / sqrt(V);
    p -= max(eps[1], rms(p)) * min(lr, 1 / sqrt(t)) * U / max(1, rms(U) / d).

    eps[0] (None: the dtype's epsilon) bounds mean(r) and sqrt(V) from below. State: `step` (0-d
    float32), `row_var` and `col_var`, or `variance`.
    """

    by_element = False

    def __init__(
        self, params: Params, lr: Any = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0,
        *, foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        check_lr("Adafactor", lr)
        if not beta2_decay <= 0.0:
            raise ValueError(f"[Adafactor] beta2_decay should be <= 0 but is: {beta2_decay}")
        if eps[0] is not None:
            check_at_least("Adafactor", "epsilon1", eps[0], 0.0)
        check_at_least("Adafactor", "epsilon2", eps[1], 0.0)
        check_at_least("Adafactor", "clipping threshold d", d, 1.0)
        check_at_least("Adafactor", "weight_decay", weight_decay, 0.0)
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d,
            "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def begin(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        self.init_scalar(p, state, "step")
        if grad.ndim > 1:
            *batch, rows, columns = grad.shape
            self.init_state(state, "row_var", grad.new_zeros(*batch, rows, 1))
            self.init_state(state, "col_var", grad.new_zeros(*batch, 1, columns))
        else:
            self.init_state(state, "variance", zeros_like(grad))

    def update(self, p: Tensor, grad: Tensor, state: State, h: Hyper) -> None:
        lr, (eps1, eps2) = h["lr"], h["eps"]
        eps1 = finfo(p.dtype).eps if eps1 is None else eps1
        t = self.advance(state)
        weight = t ** h["beta2_decay"]
        rate = (1 / t.sqrt()).minimum(lr) * _rms(p).clamp(min=eps2)
        shrink(p, lr, h["weight_decay"])

        def average(key: str, value: Tensor) -> Tensor:
            return self.keep(state, key, state[key] + (value - state[key]) * weight)

        square = grad * grad
        if grad.ndim > 1:
            rows = average("row_var", square.mean(-1, keepdim=True))
            columns = average("col_var", square.mean(-2, keepdim=True))
            variance = rows * columns / rows.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            variance = average("variance", square)
        step = variance.clamp(min=eps1 * eps1).rsqrt() * grad
        p.sub_(step * (rate / (_rms(step) / h["d"]).clamp(min=1.0)))


def _rms(x: Tensor) -> Tensor:
    """The root of the mean square, as 0-d float64."""
    return x.norm(2).to(dtypes.float64) / math.sqrt(x.numel())
