"""Autocast: in which dtype a public function computes while it is on.

Owns the settings of a thread and the classes of functions; a function says its class by a decorator
(`lower`, `wide`, `widest`, `exempt`) where it is defined. Functions without one compute in the
dtypes they are given. The context manager is amp/autocast_mode.py. Which function is in which class
follows PyTorch's lists for the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from jitgrad.promotion import cast
from jitgrad.runtime import dtypes
from jitgrad.runtime.arguments import CAUGHT, complete, expect_flags, locates
from jitgrad.runtime.dtypes import DType
from jitgrad.runtime.overriding import recover
from jitgrad.state import state
from jitgrad.tensor import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


class Casting(NamedTuple):
    """The settings of autocast.

    lower: the CPU's dtype where autocast is on, else None. cpu, cuda: the dtypes that it would
    have. cuda_on: whether it is on for tensors on GPUs. caching: casts of leaves that require grad
    are kept until the outermost context ends.
    """

    lower: DType | None = None
    cpu: DType = dtypes.bfloat16
    cuda: DType = dtypes.float16
    cuda_on: bool = False
    caching: bool = True


OFF = Casting()


def casting() -> Casting:
    """The settings of this thread."""
    found = state.casting
    return OFF if found is None else found


def set_casting(value: Casting) -> None:
    state.casting = None if value == OFF else value


def lower_dtype(x: Tensor) -> DType | None:
    """The dtype of autocast where x is; None where it is off."""
    return _lower_on(casting(), x.is_cuda)


def _lower_on(settings: Casting, on_gpu: bool) -> DType | None:
    if on_gpu:
        return settings.cuda if settings.cuda_on else None
    return settings.lower


def _lowest(settings: Casting, tensors: list[Tensor]) -> DType:
    assert settings.lower is not None
    return settings.lower


def _float32(settings: Casting, tensors: list[Tensor]) -> DType:
    return dtypes.float32


def _widest(settings: Casting, tensors: list[Tensor]) -> DType:
    wanted = settings.lower
    assert wanted is not None
    for x in tensors:
        wanted = dtypes.promote(wanted, x.dtype)
    return wanted


def _no_cast(settings: Casting, tensors: list[Tensor]) -> None:
    return None


def _decorator(choose: Callable[[Casting, list[Tensor]], DType | None]) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def autocasting(*args: Any, **kwargs: Any) -> Any:
            settings = state.casting
            try:
                if kwargs or len(args) > 2:
                    expect_flags(function, args, kwargs)
                if settings is None or (settings.lower is None and not settings.cuda_on):
                    return function(*args, **kwargs)
                return _run(function, choose, settings, args, kwargs)
            except CAUGHT as error:
                if (made := recover(error, autocasting, args, kwargs)) is not None:
                    return made[0]
                complete(error, function, args, kwargs)
                raise

        autocasting.uncast = function  # type: ignore[attr-defined]
        return locates(autocasting)

    return decorate


def as_given(function: Any) -> Any:
    """A public function in the dtypes it is given: what its in-place form and out= do, which
    autocast leaves alone."""
    return exempt(function.uncast) if hasattr(function, "uncast") else function


lower = _decorator(_lowest)
"""The decorator of functions that compute in autocast's dtype: products and convolutions."""

wide = _decorator(_float32)
"""Of functions that compute in float32: losses, and what needs range or digits."""

widest = _decorator(_widest)
"""Of functions that want one dtype: the widest of their operands'."""

exempt = _decorator(_no_cast)
"""Of functions that compute in the dtypes they are given, and whose parts do, too."""


def wide_in_3d(function: Any) -> Any:
    """The decorator of pooling over n dims (the first argument): as `wide` where n is 3."""
    in_float32 = wide(function)

    @functools.wraps(function)
    def by_dims(n: int, *args: Any, **kwargs: Any) -> Any:
        return (in_float32 if n == 3 else function)(n, *args, **kwargs)

    return by_dims


def _run(
    function: Callable[..., Any], choose: Callable[..., DType | None], settings: Casting,
    args: tuple[Any, ...], kwargs: dict[str, Any],
) -> Any:  # fmt: skip
    """The function on operands of its dtype; autocast is off inside."""
    found: list[Tensor] = []
    _collect((*args, *kwargs.values()), found)
    here = settings._replace(lower=_lower_on(settings, any(x.is_cuda for x in found)))
    dtype = None if here.lower is None else choose(here, found)
    if dtype is not None:
        args = tuple([_converted(x, dtype, here) for x in args])
        kwargs = {k: _converted(x, dtype, here) for k, x in kwargs.items()}
    state.casting = settings._replace(lower=None, cuda_on=False)
    try:
        return function(*args, **kwargs)
    finally:
        state.casting = settings


def _eligible(x: Any) -> bool:
    """Floating tensors; float64 keeps its digits."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not dtypes.float64


def _collect(values: Any, found: list[Tensor]) -> None:
    for x in values:
        if isinstance(x, (list, tuple)):
            _collect(x, found)
        elif _eligible(x):
            found.append(x)


def _converted(x: Any, dtype: DType, settings: Casting) -> Any:
    if isinstance(x, (list, tuple)):
        parts = [_converted(y, dtype, settings) for y in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if not _eligible(x) or x.dtype is dtype:
        return x
    kept = _kept()
    if kept is None or not _keeps(x, dtype, settings):
        return cast(x, dtype)
    # The version: a cast is not used after its source was written in place.
    key = (id(x), x._storage.version, dtype, state.grad_enabled)
    if key not in kept:
        kept[key] = (x, cast(x, dtype))
    return kept[key][1]


def _keeps(x: Tensor, dtype: DType, settings: Casting) -> bool:
    """Whether a cast is kept: of float32 parameters to the lower dtype."""
    return (
        settings.caching
        and dtype is settings.lower
        and x.dtype is dtypes.float32
        and x.requires_grad
        and x.is_leaf
        and x._view is None
    )


def _kept() -> dict[Any, Any] | None:
    """Casts that are kept: the recording's own, while one is made (replay makes them anew)."""
    found: dict[Any, Any] | None = state.casts
    if found is not None and state.recorder is not None:
        found = getattr(state.recorder, "casts", None)
    return found


def forget_casts() -> None:
    """Lets go of all casts that are kept."""
    kept = _kept()
    if kept is not None:
        kept.clear()
