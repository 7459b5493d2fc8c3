"""What torch.backends.cpu tells of the processor."""

from __future__ import annotations

from jitgrad.missing import missing


def get_cpu_capability() -> str:
    """ "DEFAULT": kernels are generated for the processor at hand, and no set of them is chosen."""
    return "DEFAULT"


__getattr__ = missing(__name__)
