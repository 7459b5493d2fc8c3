"""The words that compiled code and its callers share, by name. The meaning is told in full in
`compiler/codegen/pool.py`, which emits the code; `runtime/launch.py` fills the words in.

All words are int64. Owns numbers only.
"""

from __future__ import annotations

# Ctx, what every kernel gets first.
CTX_POOL, CTX_ERROR, CTX_SIZES, CTX_THREADS, CTX_TABLE = 0, 1, 2, 3, 4
CTX_WORDS = 8

# The error cell's value while no kernel has flagged an error; else the smallest site number.
NO_ERROR = 2**63 - 1

# A row of a launch table.
ROW_KERNEL, ROW_ARGS, ROW_TOTAL, ROW_GRAIN, ROW_LAST, ROW_RESERVED = 0, 1, 2, 3, 4, 5
ROW_WORDS = 6

# The array that is `self` of jg_py_call.
CALL_CTX, CALL_BUFS, CALL_TABLE, CALL_NROWS, CALL_NARGS = 0, 1, 2, 3, 4
CALL_TYPE, CALL_SAVE, CALL_RESTORE, CALL_FROM_LONG, CALL_BUSY = 5, 6, 7, 8, 9
CALL_WORDS = 10

# What jg_py_call answers when nothing has run: these are no arrays that it takes, or its words
# serve another call.
CALL_REFUSED, CALL_TAKEN = -1, -2

# Byte offsets inside a Python object and an ndarray that jg_py_call relies on (64-bit CPython with
# a GIL); `runtime/threads.py` checks them before it allows jg_py_call.
PY_TYPE_OFFSET, PY_DATA_OFFSET = 8, 16
