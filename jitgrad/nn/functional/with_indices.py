"""The pooling functions in the form that returns indices always, (values, indices)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from jitgrad.nn.functional.adaptive import (
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
)
from jitgrad.nn.functional.pooling import max_pool1d, max_pool2d, max_pool3d
from jitgrad.nn.functional.unpooling import fractional_max_pool2d, fractional_max_pool3d


def _with_indices(pool: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(pool)

    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["return_indices"] = True
        return pool(*bound.args, **bound.kwargs)

    function.__name__ = function.__qualname__ = f"{pool.__name__}_with_indices"
    function.__doc__ = f"(values, indices) of {pool.__name__}, with its arguments."
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


max_pool1d_with_indices = _with_indices(max_pool1d)
max_pool2d_with_indices = _with_indices(max_pool2d)
max_pool3d_with_indices = _with_indices(max_pool3d)
adaptive_max_pool1d_with_indices = _with_indices(adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _with_indices(adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _with_indices(adaptive_max_pool3d)
fractional_max_pool2d_with_indices = _with_indices(fractional_max_pool2d)
fractional_max_pool3d_with_indices = _with_indices(fractional_max_pool3d)
