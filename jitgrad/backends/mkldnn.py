"""mkldnn: not there. jitgrad computes with code of its own."""

from __future__ import annotations

from jitgrad.missing import missing

enabled = True
deterministic = False
allow_tf32 = True
fp32_precision = "none"


def is_available() -> bool:
    """Whether the library is there."""
    return False


__getattr__ = missing(__name__)
