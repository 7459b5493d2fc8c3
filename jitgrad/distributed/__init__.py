"""torch.distributed: not there yet (docs/limits.md). What asks says so, and code that asks first
runs in one process."""

from __future__ import annotations

from jitgrad.missing import missing


def is_available() -> bool:
    """Whether several processes can work together."""
    return False


def is_initialized() -> bool:
    """Whether there is a group of processes."""
    return False


def is_torchelastic_launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return False


def is_mpi_available() -> bool:
    """Whether this way to communicate is there."""
    return False


is_nccl_available = is_gloo_available = is_ucc_available = is_xccl_available = is_mpi_available

__getattr__ = missing(
    __name__,
    "several processes are not there yet (docs/limits.md): ask distributed.is_available() first",
)
