"""autocast: the context manager, the functions that ask and set, and custom_fwd and custom_bwd.

What it does to functions is casting.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from jitgrad.casting import Casting, casting, forget_casts, set_casting
from jitgrad.runtime import cuda, dtypes
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.userline import warn
from jitgrad.state import state
from jitgrad.tensor import Tensor

_DEVICES = ("cpu", "cuda")
_OTHERS = {  # kinds of devices that are not there: autocast is off; the dtype that it would have
    "ipu": dtypes.float16, "xpu": dtypes.float16, "mps": dtypes.float16, "mtia": dtypes.float16,
    "privateuseone": dtypes.float16,
    "hpu": dtypes.bfloat16, "xla": dtypes.bfloat16, "maia": dtypes.bfloat16,
}  # fmt: skip


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast knows a kind of device: "cpu" and "cuda"."""
    _expect_text(device_type)
    return device_type in _DEVICES


def _expect_text(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(
            f"[autocast] Expected `device_type` of type `str`, got: `{type(device_type)}`"
        )


def _expect_device(device_type: str) -> None:
    _expect_text(device_type)
    if device_type not in _DEVICES:
        raise RuntimeError(
            f"[autocast] User specified an unsupported autocast device_type '{device_type}'; "
            f"expected one of {_DEVICES}"
        )


# -- settings ------------------------------------------------------------------------------------
def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether autocast is on for a kind of device (for CUDA, where none is named)."""
    device = device_type or "cuda"
    if device in _OTHERS:
        return False
    _expect_device(device)
    return casting().lower is not None if device == "cpu" else casting().cuda_on


def set_autocast_enabled(device_type: str | bool, enabled: bool | None = None) -> None:
    """Turns autocast on or off for a kind of device."""
    device, on = ("cuda", device_type) if enabled is None else (device_type, enabled)
    assert isinstance(device, str)
    _expect_device(device)
    settings = casting()
    if device == "cpu":
        set_casting(settings._replace(lower=settings.cpu if on else None))
    else:
        set_casting(settings._replace(cuda_on=bool(on)))


def get_autocast_dtype(device_type: str) -> DType:
    """The dtype that autocast has, or would have: unless set, bfloat16 on the CPU, float16 on
    CUDA."""
    if device_type in _OTHERS:
        return _OTHERS[device_type]
    _expect_device(device_type)
    return casting().cpu if device_type == "cpu" else casting().cuda


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Sets the dtype that autocast has where the context names none."""
    _expect_device(device_type)
    settings = casting()
    if device_type == "cpu":
        on = settings.lower is not None
        set_casting(settings._replace(cpu=dtype, lower=dtype if on else None))
    else:
        set_casting(settings._replace(cuda=dtype))


def is_autocast_cache_enabled() -> bool:
    """Whether casts of parameters are kept until the outermost context ends."""
    return casting().caching


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Turns keeping of casts on or off."""
    set_casting(casting()._replace(caching=bool(enabled)))


def clear_autocast_cache() -> None:
    """Lets go of the casts of parameters that are kept."""
    forget_casts()


def is_autocast_cpu_enabled() -> bool:
    """is_autocast_enabled("cpu")."""
    return is_autocast_enabled("cpu")


def get_autocast_cpu_dtype() -> DType:
    """get_autocast_dtype("cpu")."""
    return get_autocast_dtype("cpu")


def get_autocast_gpu_dtype() -> DType:
    """get_autocast_dtype("cuda")."""
    return get_autocast_dtype("cuda")


# -- the context ---------------------------------------------------------------------------------
class autocast:
    """`with autocast("cpu"):` or `@autocast("cpu")`: products and convolutions compute in dtype
    (bfloat16 by default), losses and some others in float32, all others in the dtypes they are
    given.

    device_type: "cpu" or "cuda": of tensors there; "cuda" warns and does nothing where there is no
    GPU. dtype: bfloat16 or float16; another warns and turns autocast off. cache_enabled: parameters
    are cast once, not at each use, until the outermost context ends. Raises RuntimeError for
    another device_type.
    """

    def __init__(
        self, device_type: str, dtype: DType | None = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        _expect_device(device_type)
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_enabled = (
            is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        )
        if enabled and device_type == "cuda" and not cuda.device.count():
            warn("CUDA is not available. Disabling autocast.")
            enabled = False
        elif enabled and self.fast_dtype not in (dtypes.bfloat16, dtypes.float16):
            kind = device_type.upper()
            warn(
                f"In {kind} autocast, but the target dtype is not supported. Disabling autocast. "
                f"{kind} Autocast only supports dtypes of bfloat16, float16 currently; got "
                f"{self.fast_dtype}."
            )
            enabled = False
        self._enabled = bool(enabled)
        self._outer: list[tuple[Casting, Any, Any]] = []

    def __enter__(self) -> autocast:
        settings = casting()
        self._outer.append((settings, state.casting_run, state.casts))
        if state.casts is None:
            state.casts = {}
        if self.device == "cpu":
            lower = self.fast_dtype if self._enabled else None
            settings = settings._replace(lower=lower, cpu=self.fast_dtype)
        else:
            settings = settings._replace(cuda=self.fast_dtype, cuda_on=self._enabled)
        set_casting(settings._replace(caching=self._cache_enabled))
        return self

    def __exit__(self, *error: object) -> None:
        settings, run, casts = self._outer.pop()
        if casts is None:
            forget_casts()
        state.casts = casts
        set_casting(settings)
        state.casting_run = run

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. Did you "
                "mean to use autocast as a context manager?"
            )

        @functools.wraps(func)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return decorated


# -- autograd functions --------------------------------------------------------------------------
def _cast(value: Any, device_type: str, dtype: DType) -> Any:
    """All floating tensors of the device in value but those of float64, in dtype."""
    if isinstance(value, Tensor):
        eligible = value.is_floating_point() and value.dtype is not dtypes.float64
        return value.to(dtype) if eligible and value.device.type == device_type else value
    if isinstance(value, (str, bytes, np.ndarray)):
        return value
    if isinstance(value, Mapping):
        return {_cast(k, device_type, dtype): _cast(v, device_type, dtype)
                for k, v in value.items()}  # fmt: skip
    if isinstance(value, Iterable):
        parts = (_cast(v, device_type, dtype) for v in value)
        return type(value)(parts) if isinstance(value, (list, tuple)) else parts
    return value


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: DType | None = None
) -> Any:
    """Decorates the forward of an autograd.Function: autocast is as outside. With cast_inputs,
    where autocast is on, floating tensors among the arguments get that dtype, and autocast is off
    inside."""
    _expect_device(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    forward = fwd

    @functools.wraps(forward)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._dtype = get_autocast_dtype(device_type)
        on = is_autocast_enabled(device_type)
        ctx._fwd_used_autocast = on and cast_inputs is None
        if cast_inputs is None or not on:
            return forward(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            given = _cast(args, device_type, cast_inputs)
            named = _cast(kwargs, device_type, cast_inputs)
            return forward(ctx, *given, **named)

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorates the backward of an autograd.Function: autocast is as it was in its forward, which
    custom_fwd decorates."""
    _expect_device(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    backward = bwd

    @functools.wraps(backward)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, enabled=ctx._fwd_used_autocast, dtype=ctx._dtype):
            return backward(ctx, *args, **kwargs)

    return decorated
