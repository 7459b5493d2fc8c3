"""torch.cuda: devices, their streams and memory, and random numbers.

Devices are those of NVIDIA's driver, or with JITGRAD_CUDA=sim Numba's simulator. Without one, what
asks about devices says that there are none; what prepares or cleans up (seeding, emptying caches)
has nothing to do and does nothing; what needs a device, waiting for it too, raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from jitgrad import random
from jitgrad.conversions import CUDA_TENSOR_TYPES as _TENSOR_TYPES
from jitgrad.cuda import amp as amp
from jitgrad.cuda.graphs import CUDAGraph as CUDAGraph
from jitgrad.cuda.graphs import graph as graph
from jitgrad.cuda.graphs import graph_pool_handle as graph_pool_handle
from jitgrad.cuda.graphs import is_current_stream_capturing as is_current_stream_capturing
from jitgrad.cuda.memory import empty_cache as empty_cache
from jitgrad.cuda.memory import index_of as _index_of
from jitgrad.cuda.memory import max_memory_allocated as max_memory_allocated
from jitgrad.cuda.memory import max_memory_cached as max_memory_cached
from jitgrad.cuda.memory import max_memory_reserved as max_memory_reserved
from jitgrad.cuda.memory import mem_get_info as mem_get_info
from jitgrad.cuda.memory import memory_allocated as memory_allocated
from jitgrad.cuda.memory import memory_cached as memory_cached
from jitgrad.cuda.memory import memory_reserved as memory_reserved
from jitgrad.cuda.memory import memory_snapshot as memory_snapshot
from jitgrad.cuda.memory import memory_stats as memory_stats
from jitgrad.cuda.memory import memory_summary as memory_summary
from jitgrad.cuda.memory import reset_accumulated_memory_stats as reset_accumulated_memory_stats
from jitgrad.cuda.memory import reset_max_memory_allocated as reset_max_memory_allocated
from jitgrad.cuda.memory import reset_max_memory_cached as reset_max_memory_cached
from jitgrad.cuda.memory import reset_peak_memory_stats as reset_peak_memory_stats
from jitgrad.cuda.memory import set_per_process_memory_fraction as set_per_process_memory_fraction
from jitgrad.cuda.streams import Event as Event
from jitgrad.cuda.streams import ExternalStream as ExternalStream
from jitgrad.cuda.streams import Stream as Stream
from jitgrad.cuda.streams import StreamContext as StreamContext
from jitgrad.cuda.streams import current_stream as current_stream
from jitgrad.cuda.streams import default_stream as default_stream
from jitgrad.cuda.streams import set_stream as set_stream
from jitgrad.cuda.streams import stream as stream
from jitgrad.missing import no_such
from jitgrad.runtime import cuda as _runtime
from jitgrad.runtime.errors import NoDeviceError
from jitgrad.settings import OutOfMemoryError as OutOfMemoryError

has_half = False


def _no_device(what: str) -> NoDeviceError:
    return NoDeviceError(
        f"[cuda.{what}] expected a CUDA device; there is none: {_runtime.device.reason()}; ask "
        "cuda.is_available() first, or use device='cpu'"
    )


def is_available() -> bool:
    """Whether there is a device that can be used."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether a device is in use."""
    return bool(_runtime.device.initialized())


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether a device computes in bfloat16: all do, in float32."""
    return is_available()


def is_tf32_supported() -> bool:
    """Whether products may use TF32 (set_float32_matmul_precision): from sm_80 on."""
    return is_available() and get_device_capability() >= (8, 0)


def device_count() -> int:
    """The number of devices."""
    return int(_runtime.device.count())


def get_arch_list() -> list[str]:
    """The architectures that there is code for: those of the devices, as code is made for them."""
    found = {get_device_properties(k).arch for k in range(device_count())}
    return sorted(found)


def init() -> None:
    """Makes the current device ready. Raises RuntimeError where there is none."""
    _runtime.device.device(None, "cuda.init")


def synchronize(device: Any = None) -> None:
    """Waits for all work on a device. Raises RuntimeError where there is none, and while work on it
    is captured."""
    _runtime.device.require("cuda.synchronize")
    if is_initialized():
        there = _runtime.device.device(_index_of(device), "cuda.synchronize")
        _runtime.capture.refuse_wait(there.index, "cuda.synchronize")
        there.synchronize()


def ipc_collect() -> None:
    """Nothing: no memory is shared."""


# -- devices ---------------------------------------------------------------------------------------
def current_device() -> int:
    """The number of this thread's current device."""
    _runtime.device.require("cuda.current_device")
    return int(_runtime.device.current())


def set_device(device: Any) -> None:
    """Makes a device the current one; nothing for a negative number."""
    if isinstance(device, int) and device < 0:
        return
    _runtime.device.require("cuda.set_device")
    _runtime.device.set_current(_index_of(device))


def device(device: Any) -> AbstractContextManager[None]:
    """Within it, another device is current; nothing for None or a negative number."""
    if device is None or (isinstance(device, int) and device < 0):
        return nullcontext()
    _runtime.device.require("cuda.device")
    return _current(_index_of(device))


@contextmanager
def _current(index: int) -> Iterator[None]:
    before = _runtime.device.current()
    _runtime.device.set_current(index)
    try:
        yield
    finally:
        _runtime.device.set_current(before)


def get_device_properties(device: Any = None) -> Any:
    """Name, capability, memory and multiprocessors of a device."""
    _runtime.device.require("cuda.get_device_properties")
    return _runtime.device.device(_index_of(device)).properties


def get_device_name(device: Any = None) -> str:
    """What the device is called."""
    _runtime.device.require("cuda.get_device_name")
    return str(get_device_properties(device).name)


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability: (9, 0), say."""
    _runtime.device.require("cuda.get_device_capability")
    found = get_device_properties(device)
    return found.major, found.minor


# -- random numbers: a device draws the CPU's, from the one generator ------------------------------
def manual_seed(seed: int) -> None:
    """Seeds the generator, which devices share with the CPU; nothing without a device."""
    if is_available():
        random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """manual_seed: all devices share one generator."""
    manual_seed(seed)


def seed() -> None:
    """Seeds the generator by chance; nothing without a device."""
    if is_available():
        random.seed()


def seed_all() -> None:
    """seed: all devices share one generator."""
    seed()


def initial_seed() -> int:
    """The seed of the generator, which devices share with the CPU. Raises RuntimeError without a
    device."""
    if not is_available():
        raise _no_device("initial_seed")
    return random.initial_seed()


def get_rng_state(device: Any = "cuda") -> Any:
    """The generator's state."""
    if not is_available():
        raise _no_device("get_rng_state")
    return random.get_rng_state()


def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
    """Sets the generator's state."""
    if not is_available():
        raise _no_device("set_rng_state")
    random.set_rng_state(new_state)


def get_rng_state_all() -> list[Any]:
    """The state for each device: the generator's."""
    return [random.get_rng_state()] * device_count()


def set_rng_state_all(new_states: Any) -> None:
    """Sets the states of all devices. Raises RuntimeError where there are more than devices."""
    states = list(new_states)
    if len(states) > device_count():
        raise _no_device("set_rng_state_all")
    for state in states[:1]:
        random.set_rng_state(state)


def __getattr__(name: str) -> Any:
    if name in _TENSOR_TYPES:
        return _TENSOR_TYPES[name]
    if name == "default_generators":  # one for each device: the generator that they share
        return (random.default_generator,) * device_count()
    raise no_such(__name__, name)
