"""The functions of the public namespace, by kind. Here by name are those that nn, optim and utils
call as functions (most are called as methods), and all that are made from op records.
"""

from __future__ import annotations

from typing import Any

from jitgrad.functions.elementwise import generated, where
from jitgrad.functions.linalg import matmul
from jitgrad.functions.reduce import log_softmax, norm, softmax
from jitgrad.functions.select import gather
from jitgrad.functions.shape import pad_constant, stack

globals().update(generated)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"jitgrad.functions has no function {name!r}")


__all__ = [
    "gather", "log_softmax", "matmul", "norm", "pad_constant", "softmax", "stack", "where",
    *sorted(generated),
]  # fmt: skip
