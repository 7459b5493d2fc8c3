"""torch._dynamo.eval_frame: by whose class programs ask whether a Module is compiled."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing


class _Compiled(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return hasattr(type(instance), "_orig_mod")


class OptimizedModule(metaclass=_Compiled):
    """What `compile(module)` gives is an instance, whatever the class; its `_orig_mod` is
    module."""


__getattr__ = missing(__name__)
