"""Gradient modes: no_grad, enable_grad, set_grad_enabled, inference_mode, detect_anomaly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jitgrad.runtime.userline import warn
from jitgrad.state import state

Function = TypeVar("Function", bound=Callable[..., Any])


class _Mode:
    """Sets a field of `state` for a block; also decorates functions and generators."""

    def __init__(self, **fields: bool) -> None:
        self._fields = fields
        self._before: list[dict[str, bool]] = []

    def __enter__(self) -> Any:
        self._before.append({name: getattr(state, name) for name in self._fields})
        for name, value in self._fields.items():
            setattr(state, name, value)
        return self

    def __exit__(self, *exc: object) -> None:
        for name, value in self._before.pop().items():
            setattr(state, name, value)

    def _fresh(self) -> _Mode:
        return _Mode(**self._fields)

    def __call__(self, function: Function) -> Function:
        if inspect.isclass(function):
            raise TypeError(f"[{type(self).__name__}] expected a function; got a class")
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **kwargs: Any) -> Any:
                inner = function(*args, **kwargs)
                sent: Any = None
                try:
                    while True:
                        with self._fresh():
                            try:
                                item = inner.send(sent)
                            except StopIteration as stop:
                                return stop.value
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            with self._fresh():
                                sent = None
                                item = inner.throw(error)
                            sent = yield item
                finally:
                    inner.close()

            return generator  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_Mode):
    """`with no_grad():` or `@no_grad()`: nothing is put on the tape."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if orig_func is None:
            return mode
        _Mode.__init__(mode, grad_enabled=False)
        return mode(orig_func)

    def __init__(self, orig_func: Callable[..., Any] | None = None) -> None:
        super().__init__(grad_enabled=False)


class enable_grad(_Mode):
    """The opposite of no_grad, inside it."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        mode = super().__new__(cls)
        if orig_func is None:
            return mode
        _Mode.__init__(mode, grad_enabled=True)
        return mode(orig_func)

    def __init__(self, orig_func: Callable[..., Any] | None = None) -> None:
        super().__init__(grad_enabled=True)


class set_grad_enabled(_Mode):
    """Turns the tape on or off, at once; as a context manager, for a block."""

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(
                "set_grad_enabled(): argument 'enabled' (position 1) must be bool, not "
                f"{type(mode).__name__}"
            )
        super().__init__(grad_enabled=mode)
        self._outer = state.grad_enabled
        state.grad_enabled = mode

    def __enter__(self) -> Any:
        super().__enter__()
        self._before[-1]["grad_enabled"] = self._outer
        return self

    def __call__(self, function: Function) -> Function:
        state.grad_enabled = self._outer
        return super().__call__(function)


class inference_mode(_Mode):
    """As no_grad. (Tensors made inside may be used on the tape later: docs/differences.md.)"""

    def __new__(cls, mode: Any = True) -> Any:
        made = super().__new__(cls)
        if isinstance(mode, bool):
            return made
        _Mode.__init__(made, grad_enabled=False, inference=True)
        return made(mode)

    def __init__(self, mode: Any = True) -> None:
        if mode:
            super().__init__(grad_enabled=False, inference=True)
        else:
            super().__init__(inference=False, grad_enabled=True)


class detect_anomaly(_Mode):
    """For finding errors in backward: an error there, and (check_nan) the first gradient that has a
    NaN, name the line of the forward operation. Jitted functions run as written. Slow.
    """

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(anomaly=True, check_nan=check_nan)
        warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging."
        )


class set_detect_anomaly(_Mode):
    """Turns detect_anomaly on or off, at once; as a context manager, for a block."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__(anomaly=bool(mode), check_nan=bool(check_nan))
        self._outer = {"anomaly": state.anomaly, "check_nan": state.check_nan}
        state.anomaly, state.check_nan = bool(mode), bool(check_nan)

    def __enter__(self) -> Any:
        super().__enter__()
        self._before[-1].update(self._outer)
        return self


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """Turns detect_anomaly on or off in this thread."""
    state.anomaly, state.check_nan = bool(mode), bool(check_nan)


def is_anomaly_enabled() -> bool:
    """Whether detect_anomaly is in force."""
    return state.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Whether detect_anomaly looks for NaN."""
    return state.check_nan


def is_grad_enabled() -> bool:
    """Whether ops are put on the tape now."""
    return state.grad_enabled


def is_inference_mode_enabled() -> bool:
    return state.inference
