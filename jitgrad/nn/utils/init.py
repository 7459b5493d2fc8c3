"""Modules made without initial values."""

from __future__ import annotations

import inspect
from typing import Any

from jitgrad.making import empty
from jitgrad.nn.module import Module
from jitgrad.random import get_rng_state, set_rng_state
from jitgrad.state import abstract_mode
from jitgrad.tensor import Tensor


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """module_cls(*args, **kwargs) with parameters and buffers that hold anything.

    Nothing is drawn and computed. Raises RuntimeError unless it is a Module class that takes a
    device.
    """
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"[skip_init] expected a Module class; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError(f"[skip_init] expected a class that takes a device; got {module_cls}")
    draws = get_rng_state()
    with abstract_mode():
        module = module_cls(*args, **kwargs)
    set_rng_state(draws)
    return module._apply(_allocated)


def _allocated(x: Tensor) -> Tensor:
    return empty(*x.shape, dtype=x.dtype, device=x.device)
