"""The modes of the current thread, the default dtype, and the epoch that guards watch.

Owns the variables only. `dispatch.py` acts on the modes; `autograd/modes.py` has the public
context managers.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType


class State(threading.local):
    """`state`: the modes of this thread.

    Attributes:
        grad_enabled: ops are put on the tape.
        inference: inside inference_mode().
        abstract: ops are inferred only; results have no data.
        recorder: what is told of every op, write, rebind and raw read; or None.
        lazy: the recorder of a call that runs in segments (lazy_recorder.py), also where `recorder`
            is a level's; or None.
        anomaly, check_nan: errors in backward name the line of the forward operation
            (detect_anomaly), and gradients are checked for NaN.
        saved_hooks: pairs (pack, unpack) for what nodes save (autograd/graph.py), the last counts.
        hooks_forbidden: the message of disable_saved_tensors_hooks; "" outside of it.
        draws: what numbers random draws instead of their generator, or None (random.DrawLog).
        backward: the run of the tape that is going on, or None (autograd/engine.py).
        casting: autocast's settings (casting.py), None where they are the defaults.
        device: the device that factories make tensors on (set_default_device); None: the CPU.
        casting_run: the run of the tape (`backward`) in which autocast was set: derivatives
            know nothing of an autocast that is outside of theirs.
        casts: casts of parameters that are kept inside autocast contexts; None outside of them.
        watcher: the profile function (sys.setprofile) that watches the code of a recorded call;
            CASTS where there is none and autocast is on for GPUs, which asks whose part an op is;
            or None. It rests while ops are applied, in which no code of the user's runs
            (dispatch.py).
        tracer: the trace function (sys.settrace) that notes the lines of a recorded call, or None;
            it rests with the watcher.
        levels: the vmaps and forward modes that are being run, innermost last (levels.py).

    All are in each thread's __dict__, so that code that reads many gets it once (an attribute of a
    thread-local object costs ten times a dict's item).
    """

    grad_enabled: bool
    inference: bool
    abstract: bool
    recorder: Any
    lazy: Any
    anomaly: bool
    check_nan: bool
    saved_hooks: tuple[Any, ...]
    hooks_forbidden: str
    draws: Any
    backward: Any
    casting: Any
    casting_run: Any
    device: str | None
    casts: Any
    watcher: Any
    tracer: Any
    levels: tuple[Any, ...]

    def __init__(self) -> None:  # runs in each thread
        self.grad_enabled = True
        self.inference = False
        self.abstract = False
        self.recorder = None
        self.lazy = None
        self.anomaly = False
        self.check_nan = True
        self.saved_hooks = ()
        self.hooks_forbidden = ""
        self.draws = None
        self.backward = None
        self.casting = None
        self.casting_run = None
        self.device = None
        self.casts = None
        self.watcher = None
        self.tracer = None
        self.levels = ()


state = State()

CASTS = object()
"""What `state.watcher` is while autocast is on for GPUs, outside of recorded calls."""

epoch: list[int] = [0]
"""Grows whenever something that guards of compiled functions saw may have changed:
`.data` or requires_grad of a tensor is set, an attribute of a Module is set."""


def bump_epoch() -> None:
    epoch[0] += 1


class Defaults:
    """Process-wide defaults; `dtype` is what floats become (set_default_dtype), `settings` what is
    stored for whoever asks (settings.py), in a dict that is replaced, never changed. Compiled
    functions guard both; of the settings only cpu_precision changes the numbers of ops."""

    dtype: DType = dtypes.float32
    settings: dict[str, Any] = {
        "matmul_precision": "highest", "cpu_precision": "highest", "deterministic": False,
        "warn_only": False, "warn_always": False,
    }  # fmt: skip


defaults = Defaults()


def set_default_dtype(d: DType) -> None:
    """Sets the dtype that Python floats become. Raises TypeError unless it is floating."""
    if not isinstance(d, DType) or not d.is_floating_point:
        raise TypeError(
            f"[set_default_dtype] expected a floating dtype; got {d!r}; use e.g. jitgrad.float32"
        )
    defaults.dtype = d
    bump_epoch()


def get_default_dtype() -> DType:
    """The dtype that Python floats become; float32 unless it was set."""
    return defaults.dtype


def unwatched(function: Any, *args: Any) -> Any:
    """function(*args), not seen by the profile function that watches a recorded call."""
    modes = state.__dict__
    watcher = modes["watcher"]
    watches = watcher is not None and sys.getprofile() is watcher
    tracer = modes["tracer"]
    modes["watcher"] = None
    if watches:
        sys.setprofile(None)
    if tracer is not None:
        traces = sys.gettrace() is tracer
        if traces:
            sys.settrace(None)
    try:
        return function(*args)
    finally:
        modes["watcher"] = watcher
        if tracer is not None and traces:
            sys.settrace(tracer)
        if watches:
            sys.setprofile(watcher)


def is_ours(x: Any) -> bool:
    """Whether we wrote a class or a function (or NumPy did). Not what else names it so: a wrapper
    of the user's has the name of what it wraps."""
    names = getattr(x, "__globals__", None)
    module = getattr(x, "__module__", None) if names is None else names.get("__name__")
    return (module or "numpy").partition(".")[0] in ("jitgrad", "numpy")  # a ufunc has none


@contextmanager
def recording(recorder: Any) -> Iterator[Any]:
    """Reports every op, write, rebind and raw read of this thread to `recorder`."""
    before = (state.recorder, state.lazy)
    state.recorder, state.lazy = recorder, None
    try:
        yield recorder
    finally:
        state.recorder, state.lazy = before


@contextmanager
def abstract_mode(on: bool = True) -> Iterator[None]:
    """Inside, ops are inferred but not run: results have types and no data."""
    before = state.abstract
    state.abstract = on
    try:
        yield
    finally:
        state.abstract = before
