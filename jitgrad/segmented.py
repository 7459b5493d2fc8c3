"""Segmented: the calls of one jitted function whose Python runs each time.

Owns which calls run so (`admits`), the modes that are set while one does, and what happens when
the function returns or raises. What such a call computes, and when, is lazy_recorder.py; what it
has computed before is segments.py. Why a call runs so is decided by the recording (recorder.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitgrad.effects import is_module
from jitgrad.lazy_recorder import LazyRecorder, close_call, open_call
from jitgrad.segments import Segments
from jitgrad.state import state
from jitgrad.tensor import Tensor

_MANY = 8
"""Signatures that run in segments, after which all that do not hit run so."""


class Segmented:
    """Calls of a function in segments.

    Attributes:
        reasons: why, for each kind of signature: (reason, line).
        segments: the steps and programs.
        calls: how many calls have run so.
    """

    def __init__(self, function: Callable[..., Any], segments: Segments) -> None:
        self.function = function
        self.segments = segments
        self.reasons: dict[Any, tuple[str, str]] = {}
        self.calls = 0

    def admit(self, signature: Any, reason: str, line: str) -> None:
        """From now on, calls of this signature run in segments."""
        self.reasons[signature] = (reason, line)

    def admits(self, args: Any, kwargs: Any) -> bool:
        """Whether a call that hits no specialisation runs in segments without being recorded."""
        return len(self.reasons) >= _MANY or signature_of(args, kwargs) in self.reasons

    def call(self, args: Any, kwargs: Any) -> Any:
        """Runs the function. Its effects, and an error that it raises, are eager's; an error of an
        op whose data waited comes where the value was wanted."""
        self.calls += 1
        recorder = LazyRecorder(self.segments, Segmented.call.__code__)
        before = (state.recorder, state.lazy, state.abstract)
        state.recorder, state.lazy, state.abstract = recorder, recorder, True
        open_call(recorder)
        try:
            result = self.function(*args, **kwargs)
            recorder.flush("the call ends")
            return result
        except BaseException:
            _finish(recorder)
            raise
        finally:
            close_call(recorder)
            state.recorder, state.lazy, state.abstract = before


def _finish(recorder: LazyRecorder) -> None:
    """Computes what an error of the user's left waiting. (An error in that is not the first.)"""
    try:
        recorder.flush("the call raises")
    except Exception:
        return


def signature_of(args: Any, kwargs: Any) -> Any:
    """What calls that run alike have in common, as far as it is cheap to tell. It need not be
    exact: every call can run in segments."""
    key: list[Any] = [_kind(x) for x in args]
    if kwargs:
        key += [(name, _kind(kwargs[name])) for name in sorted(kwargs)]
    return tuple(key)


def _kind(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (type(x), len(x._type.shape), x._type.dtype, x.requires_grad)
    if x is None or type(x) in (bool, str):
        return (type(x), x)
    return (type(x), x.training) if is_module(x) else type(x)
