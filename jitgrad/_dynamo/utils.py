"""torch._dynamo.utils: names that public code asks."""

from __future__ import annotations

from typing import Any

from jitgrad.missing import missing


def is_compile_supported(device_type: Any) -> bool:
    """Whether functions of tensors on this kind of device can be compiled."""
    return str(device_type).split(":")[0] in ("cpu", "cuda")


__getattr__ = missing(__name__)
