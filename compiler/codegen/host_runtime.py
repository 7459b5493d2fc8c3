"""Puts the native runtime (pool.py) into this process, once, before anything compiled runs."""

from __future__ import annotations

import hashlib
import sys

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import Library
from jitgrad.compiler.codegen.pool import ALLOWED_SYMBOLS, emit_runtime
from jitgrad.compiler.codegen.target import Target
from jitgrad.runtime import threads


def install(target: Target) -> None:
    """Compiles (or finds cached) and installs the runtime module for the host."""
    if threads.installed():
        return
    with_threads = sys.platform != "win32"  # the pool needs pthreads; without, runs are serial
    text = str(emit_runtime(target.triple, with_threads, python=True))
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    code = Generated(key, text, [], may_call=ALLOWED_SYMBOLS)
    library = Library.build([code], target)

    def address(symbol: str) -> int:
        return library.address(code.key, symbol)

    threads.install(
        address("jg_run"),
        address("jg_pool_create"),
        address("jg_pool_destroy"),
        py_call=address("jg_py_call"),
        owner=library,
    )
