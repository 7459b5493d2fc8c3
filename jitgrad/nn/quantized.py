"""torch.nn.quantized: arithmetic as modules, which quantization could observe.

Owns FloatFunctional, which computes as the functions do. Nothing is quantized yet (docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.functions.shape import cat
from jitgrad.missing import missing
from jitgrad.nn.layers import Identity
from jitgrad.nn.module import Module
from jitgrad.tensor import Tensor


class FloatFunctional(Module):
    """Functions of two tensors, and `cat`, as methods; each result passes
    `activation_post_process`, where an observer may stand."""

    def __init__(self) -> None:
        super().__init__()
        self.activation_post_process: Any = Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Raises RuntimeError: the methods are for use."""
        raise RuntimeError(
            "[FloatFunctional] expected a call of one of its methods, as add(x, y); forward does "
            "nothing"
        )

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y."""
        return self.activation_post_process(x + y)

    def add_scalar(self, x: Tensor, y: float) -> Tensor:
        """x + y; not observed."""
        return x + y

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """x * y."""
        return self.activation_post_process(x * y)

    def mul_scalar(self, x: Tensor, y: float) -> Tensor:
        """x * y; not observed."""
        return x * y

    def cat(self, x: Sequence[Tensor], dim: int = 0) -> Tensor:
        """cat(x, dim)."""
        return self.activation_post_process(cat(x, dim=dim))

    def add_relu(self, x: Tensor, y: Tensor) -> Tensor:
        """relu(x + y)."""
        return self.activation_post_process((x + y).relu())

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """x @ y."""
        return self.activation_post_process(x @ y)


__getattr__ = missing(__name__, "quantization is not there yet (docs/limits.md)")
