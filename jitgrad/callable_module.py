"""Modules that can be called: `jitgrad.jit` is the decorator and, as torch.jit, a namespace.

Owns the one trick that makes it so: a module's class may be replaced by a subclass of ModuleType
(Python's data model, "Customizing module attribute access").
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Calling module `name` calls `function`, from here on."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    sys.modules[name].__class__ = CallableModule
