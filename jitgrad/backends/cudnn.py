"""Flags of cuDNN. There is none: they are kept and choose nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitgrad.missing import missing

enabled = True
benchmark = False
benchmark_limit: int | None = 10
deterministic = False
allow_tf32 = True
fp32_precision = "none"


def is_available() -> bool:
    """Whether the library is there."""
    return False


def version() -> int | None:
    """The library's version: None."""
    return None


def is_acceptable(tensor: Any) -> bool:
    """Whether the library can compute with a tensor."""
    return False


_FLAGS = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")


def set_flags(
    _enabled: bool | None = None, _benchmark: bool | None = None,
    _benchmark_limit: int | None = None, _deterministic: bool | None = None,
    _allow_tf32: bool | None = None, _fp32_precision: str = "none",
) -> tuple[Any, ...]:  # fmt: skip
    """Sets the flags that are given. Returns those from before."""
    module = globals()
    before = tuple(module[name] for name in _FLAGS)
    given = (_enabled, _benchmark, _benchmark_limit, _deterministic, _allow_tf32)
    module.update({n: v for n, v in zip(_FLAGS, given, strict=True) if v is not None})
    return before


@contextmanager
def flags(
    enabled: bool = False, benchmark: bool = False, benchmark_limit: int | None = 10,
    deterministic: bool = False, allow_tf32: bool = True, fp32_precision: str = "none",
) -> Iterator[None]:  # fmt: skip
    """Sets the flags for a block of code."""
    before = set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
    try:
        yield
    finally:
        set_flags(*before)


__getattr__ = missing(__name__)
