"""torch.nn.utils.stateless, the old place of torch.func.functional_call."""

from __future__ import annotations

from typing import Any

from jitgrad.func import stateless
from jitgrad.nn.module import Module
from jitgrad.runtime.userline import warn
from jitgrad.tensor import Tensor


def functional_call(
    module: Module, parameters_and_buffers: dict[str, Tensor], args: Any = None,
    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False,
) -> Any:  # fmt: skip
    """func.functional_call, which replaces it."""
    warn(
        "[functional_call] nn.utils.stateless is deprecated; use func.functional_call",
        FutureWarning,
    )
    return stateless.functional_call(
        module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict
    )
