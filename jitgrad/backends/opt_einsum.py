"""opt_einsum, which orders the products of einsum in PyTorch: not used."""

from __future__ import annotations

from jitgrad.missing import missing

enabled = False
strategy: str | None = None


def is_available() -> bool:
    """Whether the library is used."""
    return False


def get_opt_einsum() -> None:
    """The library: None."""
    return None


__getattr__ = missing(__name__)
