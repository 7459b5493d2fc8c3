"""torch.overrides: `__torch_function__` is not there, so no object overrides anything.

Tensor refuses subclasses that define it (tensor.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.missing import missing
from jitgrad.tensor import Tensor


def has_torch_function(relevant_args: Any) -> bool:
    """False."""
    return False


def has_torch_function_unary(obj: Any) -> bool:
    """False."""
    return False


def has_torch_function_variadic(*args: Any) -> bool:
    """False."""
    return False


def is_tensor_like(inp: Any) -> bool:
    """Whether inp is a Tensor (or says that it overrides functions)."""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Any, *args: Any, **kwargs: Any
) -> Any:
    """Raises TypeError: nothing overrides functions."""
    kinds = ", ".join(sorted({type(a).__name__ for a in relevant_args}))
    raise TypeError(
        f"no implementation found for {getattr(public_api, '__name__', public_api)!r} on types "
        f"that implement __torch_function__: {kinds}; it is not there yet (docs/limits.md)"
    )


__getattr__ = missing(__name__, "__torch_function__ is not there yet (docs/limits.md)")
