"""Whether code that runs now stands in a `try` block of the user's.

An error that depends on values is raised where a segment ends; in a `try` block that would be too
late, so there an operation that may fail ends its segment (lazy_recorder.py). `with` blocks are no
`try` blocks here, though some swallow errors (contextlib.suppress).
"""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType, FrameType

from jitgrad.runtime.userline import is_inside, user_frame


def in_try_block(stop: CodeType) -> bool:
    """Whether the user's line, or one that led to it, is in a try block. stop: the code of the
    function whose callers are not asked."""
    frame: FrameType | None = user_frame(2)
    while frame is not None and frame.f_code is not stop:
        code, at = frame.f_code, frame.f_lasti
        if code.co_exceptiontable and not is_inside(code.co_filename):
            if _is_covered(code, at):
                return True
        frame = frame.f_back
    return False


@lru_cache(4096)
def _is_covered(code: CodeType, at: int) -> bool:
    """Whether a handler other than a `with` statement's gets what an instruction raises: its own,
    or, where that is a `with` statement's, the one that gets what that raises again."""
    bytecode = dis.Bytecode(code)
    names = [(i.offset, i.opname) for i in bytecode]
    entries = list(getattr(bytecode, "exception_entries", ()))
    for _ in entries:
        target = next((e.target for e in entries if e.start <= at < e.end), None)
        if target is None:
            return False
        first = [name for offset, name in names if offset >= target][:2]
        if first[:1] == ["PUSH_EXC_INFO"] and first[1:] != ["WITH_EXCEPT_START"]:
            return True
        at = target
    return False
