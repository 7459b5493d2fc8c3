"""torch.distributed: several processes are not there yet (docs/limits.md).

Code that asks first (`is_available`, `is_initialized`) runs in one process. What needs a group of
processes raises what PyTorch raises before there is one.
"""

from __future__ import annotations

from typing import Any, NoReturn

from jitgrad.missing import missing, names_module
from jitgrad.tensor import Tensor


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


class ProcessGroup:
    """A group of processes: making one raises RuntimeError."""

    WORLD = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        init_process_group()


group = ProcessGroup


class ReduceOp:
    """How the values of processes are put together."""

    SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = (
        "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR",
    )  # fmt: skip


def init_process_group(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises RuntimeError: there is one process."""
    raise RuntimeError(
        "[init_process_group] several processes are not there yet (docs/limits.md); run in one, "
        "and ask distributed.is_available() first"
    )


def _needs_group(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises ValueError: there is no group of processes."""
    raise ValueError(
        "Default process group has not been initialized: several processes are not there yet "
        "(docs/limits.md); ask distributed.is_initialized() first"
    )


get_rank = get_world_size = get_backend = get_process_group_ranks = _needs_group
barrier = monitored_barrier = new_group = destroy_process_group = _needs_group
broadcast = all_reduce = reduce = all_gather = all_gather_into_tensor = gather = _needs_group
scatter = reduce_scatter = reduce_scatter_tensor = all_to_all = all_to_all_single = _needs_group
send = recv = isend = irecv = batch_isend_irecv = _needs_group
all_gather_object = gather_object = scatter_object_list = broadcast_object_list = _needs_group

_COLLECTIVES = """all_gather all_reduce all_to_all all_to_all_single broadcast gather reduce
    reduce_scatter scatter"""
_functions = dict.fromkeys(_COLLECTIVES.split(), _needs_group)
_functional = names_module(
    f"{__name__}.nn.functional", dict(_functions), "Names of torch.distributed.nn.functional."
)
nn = names_module(
    f"{__name__}.nn",
    {**_functions, "functional": _functional, "ReduceOp": ReduceOp, "group": group},
    "Names of torch.distributed.nn.",
)


class DeviceMesh:
    """Processes in a grid: making one raises RuntimeError."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        init_process_group()


class DTensor(Tensor):
    """A tensor in parts on several processes: making one raises RuntimeError."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        init_process_group()


tensor = names_module(
    f"{__name__}.tensor", {"DTensor": DTensor, "DeviceMesh": DeviceMesh},
    "Names of torch.distributed.tensor.",
)  # fmt: skip
_tensor = names_module(f"{__name__}._tensor", {"DTensor": DTensor}, "An older path of tensor.")
device_mesh = names_module(
    f"{__name__}.device_mesh", {"DeviceMesh": DeviceMesh}, "Names of torch.distributed.device_mesh."
)

__getattr__ = missing(
    __name__,
    "several processes are not there yet (docs/limits.md): ask distributed.is_available() first",
)
