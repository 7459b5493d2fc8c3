"""torch.cuda without a device: there is none yet (docs/limits.md).

What asks about devices says that there are none; what prepares or cleans up (seeding, emptying
caches, waiting) has nothing to do and does nothing; what needs a device raises RuntimeError.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jitgrad.cuda import amp as amp
from jitgrad.missing import no_such
from jitgrad.settings import OutOfMemoryError as OutOfMemoryError

has_half = False
default_generators: tuple[Any, ...] = ()


def _no_device(what: str) -> RuntimeError:
    return RuntimeError(
        f"[cuda.{what}] expected a CUDA device; there is none: the GPU back end is not built yet "
        "(docs/limits.md); ask cuda.is_available() first, or use device='cpu'"
    )


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return False


def is_initialized() -> bool:
    """Whether a device is in use."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the device computes in bfloat16: there is none."""
    return False


def is_tf32_supported() -> bool:
    """Whether the device has TF32: there is none."""
    return False


def device_count() -> int:
    """The number of devices."""
    return 0


def get_arch_list() -> list[str]:
    """The architectures that there is code for."""
    return []


def is_current_stream_capturing() -> bool:
    """Whether a stream is being captured."""
    return False


# -- nothing to do ---------------------------------------------------------------------------------
def init() -> None:
    """Raises RuntimeError: there is no device."""
    raise _no_device("init")


def manual_seed(seed: int) -> None:
    """Nothing: there is no device to seed."""


def manual_seed_all(seed: int) -> None:
    """Nothing: there is no device to seed."""


def seed() -> None:
    """Nothing: there is no device to seed."""


def seed_all() -> None:
    """Nothing: there is no device to seed."""


def get_rng_state_all() -> list[Any]:
    """The states of all devices: none."""
    return []


def set_rng_state_all(new_states: Any) -> None:
    """Sets the states of all devices. Raises RuntimeError where there are any to set."""
    if list(new_states):
        raise _no_device("set_rng_state_all")


def empty_cache() -> None:
    """Nothing: there is no cache."""


def synchronize(device: Any = None) -> None:
    """Nothing: there is nothing to wait for."""


def ipc_collect() -> None:
    """Nothing: no memory is shared."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """Nothing: no memory is used."""


def reset_max_memory_allocated(device: Any = None) -> None:
    """Nothing: no memory is used."""


def reset_max_memory_cached(device: Any = None) -> None:
    """Nothing: no memory is used."""


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing: no memory is used."""


def memory_allocated(device: Any = None) -> int:
    """Bytes in use: 0."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated
memory_cached = max_memory_cached = memory_allocated


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Figures of the allocator: none."""
    return {}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the allocator's figures: empty."""
    return ""


# -- what needs a device ---------------------------------------------------------------------------
def set_device(device: Any) -> None:
    """Nothing for a negative number. Raises RuntimeError for any other: there is no device."""
    if isinstance(device, int) and device < 0:
        return
    raise _no_device("set_device")


def device(device: Any) -> AbstractContextManager[None]:
    """A context for None or a negative number. Raises RuntimeError for any other."""
    if device is None or (isinstance(device, int) and device < 0):
        return nullcontext()
    raise _no_device("device")


def stream(stream: Any) -> AbstractContextManager[None]:
    """A context for None. Raises RuntimeError for anything else: there are no streams."""
    if stream is None:
        return nullcontext()
    raise _no_device("stream")


def current_device() -> int:
    """Raises RuntimeError: there is no device."""
    raise _no_device("current_device")


def current_stream(device: Any = None) -> Any:
    """Raises RuntimeError: there is no device."""
    raise _no_device("current_stream")


default_stream = current_stream


def get_device_name(device: Any = None) -> str:
    """Raises RuntimeError: there is no device."""
    raise _no_device("get_device_name")


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Raises RuntimeError: there is no device."""
    raise _no_device("get_device_capability")


def get_device_properties(device: Any = None) -> Any:
    """Raises RuntimeError: there is no device."""
    raise _no_device("get_device_properties")


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Raises RuntimeError: there is no device."""
    raise _no_device("mem_get_info")


def get_rng_state(device: Any = "cuda") -> Any:
    """Raises RuntimeError: there is no device."""
    raise _no_device("get_rng_state")


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Raises RuntimeError: there is no device."""
    raise _no_device("set_rng_state")


class Stream:
    """A queue of a device. Raises RuntimeError: there is no device."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _no_device(cls.__name__)


class Event(Stream):
    """A mark in a stream. Raises RuntimeError: there is no device."""


class CUDAGraph(Stream):
    """A recorded launch list. Raises RuntimeError: there is no device."""


class _NoTensor(type):
    """The class of cuda.FloatTensor and its kin: no tensor is one, and none can be made."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return False

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _no_device(cls.__name__)


_TYPED = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_TENSORS = {f"{n}Tensor": _NoTensor(f"{n}Tensor", (), {"__module__": __name__}) for n in _TYPED}


def __getattr__(name: str) -> Any:
    if name in _TENSORS:
        return _TENSORS[name]
    raise no_such(__name__, name)
