"""Graph in, machine code out.

The package is also what torch.compiler is to users (`disable`, `is_compiling`, ...). Those names
belong to the layer above, which says here how to get them: `public(name)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

public: Callable[[str], Any] | None = None


def __getattr__(name: str) -> Any:
    if public is None or name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return public(name)
