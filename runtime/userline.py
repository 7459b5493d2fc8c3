"""The user's source line: the innermost frame that is in no file of jitgrad.

Owns what is asked of it: the line itself, warnings that point at it (`warn`), and errors that name
it (`with_line`, `add_line`). Cheap enough for every op on the tape: a frame is
recognised by its file's name, looked up in a dict that is filled the first time a file is met.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from importlib.util import find_spec
from os.path import dirname, realpath
from sys import _getframe
from types import CodeType, FrameType, TracebackType
from typing import TypeVar

import numpy as np

_PACKAGE = __name__.split(".", maxsplit=1)[0]


def _folders() -> tuple[str, ...]:
    """The package's folders: an editable install has the compiler and the runtime beside it."""
    found: list[str] = []
    for name in (_PACKAGE, f"{_PACKAGE}.compiler", f"{_PACKAGE}.runtime"):
        spec = find_spec(name)
        places = None if spec is None else spec.submodule_search_locations
        found += [realpath(p) for p in places or ()]
    return tuple(found)


_FUNCTIONS = tuple(
    f"{_PACKAGE}.{part}" for part in ("functions.", "nn.", "linalg", "fft", "special")
)
"""The modules that public functions are in."""
FOLDERS = _folders()
_OURS = tuple([f + "/" for f in FOLDERS])
# Files of Python's and of NumPy's lie between a user's line and ours.
_PASSED = (contextlib.__file__, functools.__file__)
_NUMPY = dirname(realpath(np.__file__)) + "/"
_inside: dict[str, bool] = {}


@functools.cache
def resolved(filename: str) -> str:
    """The path of a source file without links. (The package's own files are none: asking the
    system for each part of each path takes as long as reading what some of them say.)"""
    if filename.startswith(_OURS) and "/.." not in filename:
        return filename
    return realpath(filename)


def _classify(filename: str) -> bool:
    path = filename
    if not path.startswith("<"):
        path = resolved(filename)
    inside = (
        path.startswith((_NUMPY, *_OURS))
        or filename.startswith(("<frozen", "<replay of "))
        or filename in _PASSED
    )
    _inside[filename] = inside
    return inside


def is_inside(filename: str) -> bool:
    """Whether a file's code lies between a user's line and ours, or is ours."""
    try:
        return _inside[filename]
    except KeyError:
        return _classify(filename)


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside jitgrad, starting `depth` frames up from the caller."""
    frame: FrameType | None = _getframe(depth)
    while frame is not None:
        name = frame.f_code.co_filename
        try:
            inside = _inside[name]
        except KeyError:
            inside = _classify(name)
        if not inside:
            return frame
        frame = frame.f_back
    return None


def line_of(code: CodeType | None, lasti: int) -> str:
    """ "file.py:12" for an instruction of a code object; "" where it is not known."""
    if code is None:
        return ""
    number = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            number = number if line is None else line
            break
    return f"{code.co_filename}:{number}"


def user_line(depth: int = 2) -> str:
    """ "file.py:12" of the user's innermost frame; "" when there is none."""
    frame = user_frame(depth)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def called_by_user(depth: int = 2) -> str:
    """The public function of the package through which the user's innermost frame got here: of a
    module its class; "" where it was none (an operator on a size)."""
    frame: FrameType | None = _getframe(depth)
    name = ""
    while frame is not None and is_inside(frame.f_code.co_filename):
        code = frame.f_code
        here = frame.f_globals.get("__name__", "")
        public = code.co_name == code.co_qualname and not code.co_name.startswith(("_", "<"))
        if code.co_name == "forward" and "self" in frame.f_locals:
            return type(frame.f_locals["self"]).__name__
        if public and here.startswith(_FUNCTIONS):
            name = code.co_name
        frame = frame.f_back
    return name


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """warnings.warn at the user's line, however deep in jitgrad the call is."""
    frame = user_frame(2)
    if frame is None:  # a thread of jitgrad's own
        warnings.warn(message, category, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno,
        names.get("__name__", "__main__"),  # Python drops warnings of module None
        names.setdefault("__warningregistry__", {}),
    )  # fmt: skip


# -- errors ----------------------------------------------------------------------------------------
LOCATED = (RuntimeError, ValueError, TypeError, IndexError)
"""The kinds of error that get the user's line."""

E = TypeVar("E", bound=Exception)


def with_line(error: E, depth: int = 3) -> E:
    """The same error, its text now ending with the user's file and line."""
    line = user_line(depth)
    if line and error.args and isinstance(error.args[0], str) and line not in error.args[0]:
        error.args = (f"{error.args[0]} (at {line})", *error.args[1:])
    return error


def add_line(error: Exception) -> None:
    """Ends the text of an error of jitgrad's with the user's file and line, where it has none yet.
    Called where a public function or a module catches it.

    The line is the innermost one that led to the error, be it outside of what caught it or inside
    (a forward method of the user's). An error that the user's code raised is left alone.
    """
    if len(error.args) != 1 or type(error.args[0]) is not str:
        return
    text = error.args[0]
    if text.endswith(")") and " (at " in text:
        return
    line, ours = "", True
    step: TracebackType | None = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        ours = _inside.get(code.co_filename) or _classify(code.co_filename)
        if not ours:
            line = f"{code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    if ours:
        line = line or user_line(3)
        if line:
            error.args = (f"{text} (at {line})",)
