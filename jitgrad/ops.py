"""torch.ops: `ops.namespace.name` is the operator that library registered under that name.

PyTorch's own namespaces (aten, prim) are empty: their operators are public functions here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from jitgrad.library import REGISTERED


class Namespace(ModuleType):
    """The operators of a namespace."""

    def __init__(self, space: str) -> None:
        super().__init__(f"{__name__}.{space}")
        self._space = space

    def __getattr__(self, name: str) -> Any:
        found = REGISTERED.get(self._space, {}).get(name)
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' {self._space!r} object has no attribute {name!r}; "
                "library.custom_op registers operators, and PyTorch's own are functions here"
            )
        return found

    def __dir__(self) -> list[str]:
        return sorted(REGISTERED.get(self._space, {}))


def load_library(path: str) -> NoReturn:
    """Raises OSError: libraries of PyTorch's operators cannot be loaded."""
    raise OSError(
        f"[load_library] expected operators in Python (library.custom_op); got the library {path}, "
        "which is made for PyTorch"
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = Namespace(name)
    globals()[name] = made
    return made
