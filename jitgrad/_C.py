"""Names of torch._C that public code asks in passing. There is no extension module: jitgrad is
Python.

Owns answers to questions (what is traced, what is transformed), settings of PyTorch's TorchScript
compiler, which choose nothing, and classes that annotations name. Kernels are not here.
"""

from __future__ import annotations

from typing import Any

from jitgrad import accelerator
from jitgrad.conversions import parse_to
from jitgrad.device import device
from jitgrad.function_modes import get_mode, pop_mode, push_mode
from jitgrad.fx import Node as Node
from jitgrad.fx import Proxy
from jitgrad.missing import missing, names_module
from jitgrad.random import Generator as Generator
from jitgrad.runtime.overriding import PLAIN, AllDisabled, Disabled, enabled, modes
from jitgrad.serialization.reader import PyTorchFileReader as PyTorchFileReader
from jitgrad.state import state
from jitgrad.tensor import Tensor

DisableTorchFunctionSubclass, DisableTorchFunction = Disabled, AllDisabled
_push_on_torch_function_stack, _pop_torch_function_stack = push_mode, pop_mode
_get_function_stack_at = get_mode


def _disabled_torch_function_impl(
    cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """A `__torch_function__` for classes that override nothing."""
    with Disabled():
        return func(*args, **(kwargs or {}))


PLAIN.add(_disabled_torch_function_impl)


def _is_torch_function_enabled() -> bool:
    """Whether classes may override functions here."""
    return enabled()


def _is_torch_function_mode_enabled() -> bool:
    """Whether a TorchFunctionMode is asked here."""
    return bool(modes())


def _len_torch_function_stack() -> int:
    """How many modes are on in this thread."""
    return len(modes())


_TensorMeta = type(Tensor)


def _parse_to(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool, Any]:
    """(device, dtype, non_blocking, memory_format), of the arguments of `to`."""
    asked = parse_to(args, kwargs)
    where = asked.device
    where = where if where is None or isinstance(where, device) else device(where)
    return where, asked.dtype, asked.non_blocking, asked.memory_format


_nn = names_module(f"{__name__}._nn", {"_parse_to": _parse_to}, "Names of torch._C._nn.")


class Graph(Proxy):
    """A graph of TorchScript's: nothing is one."""


class Value(Proxy):
    """A value in a graph of TorchScript's: nothing is one."""


def _are_functorch_transforms_active() -> bool:
    """Whether vmap or a forward mode of func is running."""
    return bool(state.levels)


def _get_tracing_state() -> None:
    """None: TorchScript traces nothing."""


def _log_api_usage_once(event: str) -> None:
    """Nothing is logged."""


def _get_accelerator(check: bool | None = None) -> device:
    """The device beside the CPU, or the CPU."""
    return accelerator.current_accelerator() or device("cpu")


def _get_privateuse1_backend_name() -> str:
    """PyTorch's name for devices of others' making; there are none."""
    return "privateuseone"


def _keep(mode: bool) -> bool:
    """The setting before: kernels are fused always, and there is one way to run."""
    return True


_jit_set_profiling_executor = _jit_set_profiling_mode = _jit_set_texpr_fuser_enabled = _keep
_jit_set_nvfuser_enabled = _jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _keep


def _set_nothing(enabled: bool) -> None:
    """Attention has one implementation."""


_set_math_sdp_allow_fp16_bf16_reduction = _set_nothing

__getattr__: Any = missing(__name__, "jitgrad is Python: there is no extension module")
