"""Flags of CUDA's libraries. There are none: they are kept and choose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from jitgrad.missing import missing
from jitgrad.settings import get_float32_matmul_precision, set_tf32


class _Matmul:
    """Flags of products. allow_tf32 changes what get_float32_matmul_precision says, as PyTorch's
    does, and no product on the CPU."""

    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True
    allow_fp16_accumulation = False
    fp32_precision = "none"

    @property
    def allow_tf32(self) -> bool:
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        set_tf32(value)


class _Choices:
    """Which ways of computing attention may be chosen from. There is one."""

    flash = math = mem_efficient = cudnn = True


matmul = _Matmul()
cufft_plan_cache = SimpleNamespace(size=0, max_size=0)
_choices = _Choices()


def is_built() -> bool:
    """Whether there is code for CUDA."""
    return False


@contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Within it, the flags of attention are these; there is one way to compute it."""
    before = dict(vars(_choices))
    vars(_choices).update(
        flash=bool(enable_flash), math=bool(enable_math), mem_efficient=bool(enable_mem_efficient),
        cudnn=bool(enable_cudnn),
    )  # fmt: skip
    try:
        yield {}
    finally:
        vars(_choices).clear()
        vars(_choices).update(before)


def flash_sdp_enabled() -> bool:
    """What enable_flash_sdp was told."""
    return _choices.flash


def enable_flash_sdp(enabled: bool) -> None:
    """Kept; there is one way to compute attention."""
    _choices.flash = bool(enabled)


def math_sdp_enabled() -> bool:
    """What enable_math_sdp was told."""
    return _choices.math


def enable_math_sdp(enabled: bool) -> None:
    """Kept; there is one way to compute attention."""
    _choices.math = bool(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """What enable_mem_efficient_sdp was told."""
    return _choices.mem_efficient


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Kept; there is one way to compute attention."""
    _choices.mem_efficient = bool(enabled)


def cudnn_sdp_enabled() -> bool:
    """What enable_cudnn_sdp was told."""
    return _choices.cudnn


def enable_cudnn_sdp(enabled: bool) -> None:
    """Kept; there is one way to compute attention."""
    _choices.cudnn = bool(enabled)


SDP_FLAGS = (
    flash_sdp_enabled, math_sdp_enabled, mem_efficient_sdp_enabled, cudnn_sdp_enabled
)  # fmt: skip
"""What tells a flag, which may be another one at the next call."""


def is_flash_attention_available() -> bool:
    """Whether there is a flash attention for CUDA."""
    return False


__getattr__ = missing(__name__)
