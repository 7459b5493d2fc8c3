"""Puts the native runtime (pool.py) into this process, once, before anything compiled runs."""

from __future__ import annotations

import hashlib
import sys

from jitgrad.compiler.codegen.kernelcode import Generated
from jitgrad.compiler.codegen.objects import Library, load_objects
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.stamp import source_stamp
from jitgrad.runtime import cache, threads

_libraries: dict[Target, tuple[Library, str]] = {}


def install(target: Target) -> None:
    """Compiles (or finds cached) and installs the runtime module for the host."""
    if threads.installed():
        return
    library, key = _runtime(target)

    def address(symbol: str) -> int:
        return library.address(key, symbol)

    threads.install(
        address("jg_run"),
        address("jg_pool_create"),
        address("jg_pool_destroy"),
        py_call=address("jg_py_call"),
        owner=library,
    )


def driver(symbol: str, target: Target) -> int:
    """The address of jg_loop or jg_branch. (An artifact's runtime, if that was installed first, is
    not asked: it may be of an older version.)"""
    library, key = _runtime(target)
    return library.address(key, symbol)


def _runtime(target: Target) -> tuple[Library, str]:
    """The module and the key of its object; made once."""
    found = _libraries.get(target)
    if found is not None:
        return found
    which = f"runtime|{source_stamp()}|{target}"
    known = cache.get(which)  # the key of the module that this source generates
    library = None if known is None else load_objects([known.decode()], target)
    if known is None or library is None:
        key, library = _generate(target)
        cache.put(which, key.encode())
    else:
        key = known.decode()
    return _libraries.setdefault(target, (library, key))


def _generate(target: Target) -> tuple[str, Library]:
    from jitgrad.compiler.codegen.pool import ALLOWED_SYMBOLS, emit_runtime

    with_threads = sys.platform != "win32"  # the pool needs pthreads; without, runs are serial
    text = str(emit_runtime(target.triple, with_threads, python=True))
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    code = Generated(key, text, [], may_call=ALLOWED_SYMBOLS)
    return key, Library.build([code], target)
