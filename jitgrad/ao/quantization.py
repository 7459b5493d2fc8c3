"""torch.ao.quantization: the marks that models carry for it. Nothing is quantized yet
(docs/limits.md), so models with marks compute as those without.
"""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing
from jitgrad.nn.module import Module
from jitgrad.tensor import Tensor


class QuantStub(Module):
    """Where a model's input is to be quantized: gives back its input."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()
        if qconfig:
            self.qconfig = qconfig

    def forward(self, x: Tensor) -> Tensor:
        """x."""
        return x


class DeQuantStub(QuantStub):
    """Where a model's result is to be floating again: gives back its input."""


__getattr__ = missing(__name__, "quantization is not there yet (docs/limits.md)")
