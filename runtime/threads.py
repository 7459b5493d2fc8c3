"""The one thread pool of this process, and the native functions that use it.

Owns when the pool is made, how large it is, and what happens to it on fork() and at exit. How it
works inside is `compiler/codegen/pool.py`. Whoever loads the runtime module (the compiler, or the
loader of an artifact) calls `install` with its addresses; nothing here imports LLVM.

A pool lives as long as someone holds its `Pool` object: the current one here, and every frame of
`runtime/launch.py` that has its address in a Ctx. So changing the number of threads never pulls a
pool from under a running call. After fork() the child has the parent's memory but none of its
threads: it forgets the pool without touching it, and makes its own when it first needs one.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.runtime import abi, buffers
from jitgrad.runtime.errors import InternalError
from jitgrad.runtime.knobs import knobs

# Below this many threads nothing is wrong, above it someone mistook the argument for something.
_MAX_THREADS = 4096

# Programs that move so many bytes take long enough to let other Python threads run meanwhile (some
# 50 ns a call).
WORTH_RELEASING = 2**16

_Address = ctypes.c_void_p


class Native:
    """The native functions of an installed runtime module.

    Attributes: `run(ctx, bufs, table, nrows) -> int`, addresses as ints;
    `bind(words) -> function`, see `make_bind`, or None where only ctypes can call.
    """

    def __init__(
        self, run: int, pool_create: int, pool_destroy: int, py_call: int, owner: Any
    ) -> None:
        if not (run and pool_create and pool_destroy):
            raise InternalError("threads.install: an address of the runtime module is 0")
        run_type = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address, _Address, ctypes.c_int64)
        self.run = run_type(run)
        self.pool_create = ctypes.CFUNCTYPE(_Address, ctypes.c_int64)(pool_create)
        # Joining threads may take a while, and a pool may die inside a finalizer.
        self.pool_destroy = ctypes.CFUNCTYPE(None, _Address)(pool_destroy)
        self.bind = make_bind(py_call) if py_call and buffers.LAYOUT_HOLDS else None
        self.owner = owner
        if owner is not None:
            # Never unloaded: pool threads execute this module until the process ends, so its
            # owner must outlive even the teardown of Python's modules.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Pool:
    """Native threads. `address` is 0 if there are none (one thread, or none to be had)."""

    def __init__(self, native: Native, nthreads: int) -> None:
        self._native, self._pid, self.nthreads = native, os.getpid(), nthreads
        self.address = (native.pool_create(nthreads) or 0) if nthreads > 1 else 0

    def __del__(self, _getpid: Callable[[], int] = os.getpid) -> None:
        address = getattr(self, "address", 0)
        if address and _getpid() == self._pid:
            self.address = 0
            self._native.pool_destroy(address)


_lock = threading.Lock()
_native: Native | None = None
_nthreads: int | None = None

# The pool in force, or None until it is needed. Frames compare theirs with it at every launch.
current: Pool | None = None


def install(
    run: int, pool_create: int, pool_destroy: int, *, py_call: int = 0, owner: Any = None
) -> None:
    """Makes a loaded runtime module the one that runs compiled code in this process.

    run, pool_create, pool_destroy: addresses of jg_run, jg_pool_create and jg_pool_destroy.
    py_call: the address of jg_py_call, where the module has it; calls are then faster.
    owner: what keeps the module's memory alive; it is never released.

    The first module stays: later calls do nothing, so loaders need not ask.
    """
    global _native
    with _lock:
        if _native is None:
            _native = Native(run, pool_create, pool_destroy, py_call, owner)


def installed() -> bool:
    """Whether there is a runtime module already."""
    return _native is not None


def native() -> Native:
    """The installed runtime module. Raises InternalError if nobody has installed one."""
    if _native is None:
        raise InternalError("no runtime module: call threads.install before running kernels")
    return _native


def available_processors() -> int:
    """How many processors this process may use: its affinity and its control group's quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _cgroup_processors()
    return max(1, count if quota is None else min(count, quota))


def _cgroup_processors() -> int | None:
    """The CPU quota of the control group, in whole processors (rounded up), if there is one."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:  # version 2: "max 100000" or "150000 100000"
            quota, period = file.read().split()
        if quota == "max":
            return None
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:  # version 1: -1 is no quota
            limit = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
            return -(-limit // int(file.read())) if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def get_num_threads() -> int:
    """The number of threads that compiled code runs on, the caller included."""
    if _nthreads is not None:
        return _nthreads
    return knobs.num_threads or available_processors()


def set_num_threads(n: int) -> None:
    """Sets the number of threads of compiled code; 1 runs everything on the caller.

    Calls that are running keep the threads they have. Raises TypeError or ValueError for what is
    no positive number.
    """
    global _nthreads, current
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"set_num_threads expected an int, got {type(n).__name__}")
    if not 1 <= n <= _MAX_THREADS:
        raise ValueError(f"set_num_threads expected 1 to {_MAX_THREADS}, got {n}")
    with _lock:
        _nthreads = n
        if current is not None and current.nthreads != n:
            current = None


def pool() -> Pool:
    """The pool in force; made if there is none."""
    global current
    with _lock:
        if current is None:
            current = Pool(native(), get_num_threads())
        return current


def _after_fork_in_child() -> None:
    global _lock, current
    _lock = threading.Lock()  # another thread of the parent may have held it
    current = None  # Pool.__del__ sees the process id and leaves the parent's pool alone


def _at_exit() -> None:
    """Ends the threads while their code is surely mapped. Calls after this run serially."""
    global _nthreads, current
    with _lock:
        _nthreads = 1
        current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


# --- a Python function out of machine code --------------------------------------------------------


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80


def make_bind(py_call: int) -> Callable[[Any], Callable[..., int]]:
    """Returns bind(words): a built-in function that runs jg_py_call with `words` as its self.

    words: int64 ndarray of at least abi.CALL_WORDS elements; the function keeps it alive. Calling
    the result with ndarrays stores their addresses in bufs and runs the launch table.
    """
    definition = _MethodDef(b"jg_py_call", py_call, _METH_FASTCALL, None)
    # Functions made from it point at it for as long as they live.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    new = ctypes.PYFUNCTYPE(ctypes.py_object, _Address, ctypes.py_object, _Address)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    definition_address = ctypes.addressof(definition)
    return lambda words: new(definition_address, words, None)


def _function_address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def fill_call_words(words: np.ndarray[Any, np.dtype[np.int64]], release_gil: bool) -> None:
    """Writes those words of jg_py_call's self that say how to speak to Python."""
    words[abi.CALL_TYPE] = id(np.ndarray)
    words[abi.CALL_SAVE] = _function_address("PyEval_SaveThread") if release_gil else 0
    words[abi.CALL_RESTORE] = _function_address("PyEval_RestoreThread")
    words[abi.CALL_FROM_LONG] = _function_address("PyLong_FromLong")
