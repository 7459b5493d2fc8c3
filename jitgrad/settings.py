"""Settings of the process, by PyTorch's names: threads, precision of products, determinism.

Owns the public functions and what they store (`state.defaults.settings`, which compiled functions
guard). Threads are runtime/threads.py's. Every op is deterministic, whatever was asked for.
"""

from __future__ import annotations

from typing import Any

from jitgrad.device import device as Device
from jitgrad.device import set_default
from jitgrad.runtime import threads
from jitgrad.runtime.errors import OutOfMemoryError as OutOfMemoryError
from jitgrad.state import bump_epoch, defaults, state
from jitgrad.tensor import Tensor


def _store(**values: Any) -> None:
    new = {**defaults.settings, **values}
    if new != defaults.settings:
        defaults.settings = new
        bump_epoch()


# -- threads -------------------------------------------------------------------------------------
_interop: list[int] = []


def get_num_threads() -> int:
    """The number of threads that compiled code runs on."""
    return threads.get_num_threads()


def set_num_threads(num: int) -> None:
    """Sets the number of threads of compiled code, for all calls that begin after this.

    Raises RuntimeError for what is no positive int.
    """
    if isinstance(num, bool) or not isinstance(num, int):
        raise RuntimeError(f"set_num_threads expects an int, but got {type(num).__name__}")
    try:
        threads.set_num_threads(num)
    except ValueError as error:
        raise RuntimeError(f"[set_num_threads] expected a positive integer; {error}") from None


def get_num_interop_threads() -> int:
    """The number that set_num_interop_threads got; at first the number of processors."""
    return _interop[0] if _interop else threads.available_processors()


def set_num_interop_threads(num_interop_threads: int) -> None:
    """Stores a number. Ops do not run beside each other: a kernel uses all threads.

    Raises RuntimeError for what is no positive int.
    """
    if isinstance(num_interop_threads, bool) or not isinstance(num_interop_threads, int):
        raise RuntimeError(
            f"set_num_interop_threads expects an int, but got {type(num_interop_threads).__name__}"
        )
    if num_interop_threads < 1:
        raise RuntimeError(
            f"[set_num_interop_threads] expected a positive integer; got {num_interop_threads}"
        )
    _interop[:] = [num_interop_threads]


THREADS = (get_num_threads, set_num_threads, get_num_interop_threads, set_num_interop_threads)
"""What functions under @jit must not call: threads are no part of what they guard."""


# -- precision and determinism -------------------------------------------------------------------
PRECISIONS = ("highest", "high", "medium")


def get_float32_matmul_precision() -> str:
    """The precision that was asked for: "highest", "high" or "medium"."""
    return defaults.settings["matmul_precision"]


def set_float32_matmul_precision(precision: str) -> None:
    """Says how precise products of float32 matrices must be, at least.

    On processors with AMX compiled functions form them, with "high", as three products of bfloat16,
    for operands that are sums of two; with "medium", as one, on those with AVX512-BF16 too. On GPUs
    both let them use TF32. All else is in full precision, as with "highest": few rows,
    convolutions, eager code, other processors (docs/numerics.md). Raises RuntimeError for another
    word.
    """
    if precision not in PRECISIONS:
        raise RuntimeError(
            f"[set_float32_matmul_precision] expected one of {', '.join(PRECISIONS)}; got "
            f"{precision!r}"
        )
    _store(matmul_precision=precision, cpu_precision=precision)


def set_tf32(value: bool) -> None:
    """backends.cuda.matmul.allow_tf32: the same words, for products on GPUs alone."""
    _store(matmul_precision="high" if value else "highest")


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Stores the mode. All ops are deterministic, in either mode."""
    if not isinstance(mode, bool):
        raise TypeError(
            f"[use_deterministic_algorithms] expected a bool; got {type(mode).__name__}"
        )
    _store(deterministic=mode, warn_only=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """What use_deterministic_algorithms was told."""
    return defaults.settings["deterministic"]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What use_deterministic_algorithms was told."""
    return defaults.settings["warn_only"]


_DEBUG_MODES = ("default", "warn", "error")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """use_deterministic_algorithms by a number or word: 0 default, 1 warn, 2 error.

    Raises TypeError or RuntimeError for another.
    """
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    known: tuple[Any, ...] = _DEBUG_MODES if isinstance(debug_mode, str) else (0, 1, 2)
    if debug_mode not in known:
        raise RuntimeError(
            f"invalid value of debug_mode, expected one of {known}; got {debug_mode!r}"
        )
    number = known.index(debug_mode)
    use_deterministic_algorithms(number > 0, warn_only=number == 1)


def get_deterministic_debug_mode() -> int:
    """0 default, 1 warn, 2 error."""
    if not are_deterministic_algorithms_enabled():
        return 0
    return 1 if is_deterministic_algorithms_warn_only_enabled() else 2


def set_warn_always(b: bool) -> None:
    """Stores whether warnings repeat. Python's warnings filter decides."""
    if not isinstance(b, bool):
        raise TypeError(f"setting_warn_always expects a bool, but got {type(b).__name__}")
    _store(warn_always=b)


def is_warn_always_enabled() -> bool:
    """What set_warn_always was told."""
    return defaults.settings["warn_always"]


def set_flush_denormal(mode: bool) -> bool:
    """False: denormal numbers are computed as IEEE 754 says and cannot be flushed to 0."""
    if not isinstance(mode, bool):
        raise TypeError(f"set_flush_denormal expects a bool, but got {type(mode).__name__}")
    return False


# -- devices -------------------------------------------------------------------------------------
def get_default_device() -> Device:
    """The device that factories make tensors on; the CPU unless it was set."""
    return Device(state.device or "cpu")


def set_default_device(device: Any) -> None:
    """Sets the device that factories and modules make tensors on, in this thread; None: the CPU.

    What computes with tensors stays where they are. Raises RuntimeError for one that is not there.
    """
    set_default(device)


def _assert(condition: Any, message: str) -> None:
    """assert, as a function that tracers may see. Raises AssertionError."""
    if not isinstance(condition, (bool, Tensor)):
        condition = bool(condition)
    assert condition, message


def typename(obj: Any) -> str:
    """The name of an object's type, with its module; of a tensor as PyTorch spells it."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    module = getattr(obj, "__module__", "") or ""
    name = getattr(obj, "__qualname__", "")
    if not name:
        module, name = type(obj).__module__, type(obj).__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"


def compiled_with_cxx11_abi() -> bool:
    """True. There is no C++ in jitgrad."""
    return True


class AcceleratorError(RuntimeError):
    """Raised when a device fails; there is none yet (docs/limits.md)."""
