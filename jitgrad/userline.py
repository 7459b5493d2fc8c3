"""The user's source line: the innermost frame that is in no file of jitgrad.

Cheap enough for every op on the tape: a frame is recognised by its file's name, looked up in a
dict that is filled the first time a file is met.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

from jitgrad import compiler as _compiler
from jitgrad import runtime as _runtime


def _folder(path: str) -> str:
    return str(Path(path).resolve().parent)


_FOLDERS = (
    _folder(__file__),
    *(str(Path(p).resolve()) for p in [*_compiler.__path__, *_runtime.__path__]),
)
_inside: dict[str, bool] = {}


def _classify(filename: str) -> bool:
    path = filename
    if not path.startswith("<"):
        path = str(Path(filename).resolve())
    inside = path.startswith(tuple(f + "/" for f in _FOLDERS)) or filename.startswith("<frozen")
    _inside[filename] = inside
    return inside


def user_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame outside jitgrad, starting `depth` frames up from the caller."""
    frame: FrameType | None = sys._getframe(depth)
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
    for index, position in enumerate(code.co_positions()):
        if index * 2 == lasti and position[0] is not None:
            number = position[0]
            break
    return f"{code.co_filename}:{number}"


def user_line(depth: int = 2) -> str:
    """ "file.py:12" of the user's innermost frame; "" when there is none."""
    frame = user_frame(depth)
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
