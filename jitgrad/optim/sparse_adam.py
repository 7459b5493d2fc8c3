"""SparseAdam: not here, for there are no sparse gradients."""

from __future__ import annotations

from typing import Any

from jitgrad.optim.optimizer import Optimizer, Params


class SparseAdam(Optimizer):
    """Adam for sparse gradients. Raises RuntimeError: gradients are dense; use Adam."""

    def __init__(
        self, params: Params, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, maximize: bool = False,
    ) -> None:  # fmt: skip
        raise RuntimeError(
            "[SparseAdam] SparseAdam does not support dense gradients, and jitgrad has no sparse "
            "ones (docs/limits.md); use Adam"
        )
