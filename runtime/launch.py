"""Runs a compiled program: from ndarrays to one native call.

Owns `Executable` (launch table, constants, error sites), its frames (what one call in flight needs)
and the arenas that calls borrow. It does not own kernels or their order (the compiler), the meaning
of the words (`compiler/codegen/pool.py`), or threads (`runtime/threads.py`).

A warm call allocates nothing: it takes a frame from the executable's idle list, an arena from the
list that all executables share, lets `jg_py_call` store the arrays' addresses and run the table,
and puts both back. Each concurrent call has a frame of its own, so calls never wait for each other
here. `list.pop` and `list.append` are atomic, so the lists need no lock. Calls of small programs
(`caller`) share one frame instead, which says itself whether it is free.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitgrad.runtime import abi, buffers, threads
from jitgrad.runtime.errors import InternalError

# Idle frames and arenas kept for the next calls; more concurrent calls than that allocate anew.
_MAX_IDLE_FRAMES = 8
_MAX_IDLE_ARENAS = 4

# Frames have arenas of their own up to so many bytes: borrowing one takes as long as a program.
_OWN_ARENA = 2**14

_COMMIT_KERNEL = -1


class Launch(NamedTuple):
    """One row of the launch table.

    kernel: index into the executable's kernels.
    args: int64 words for the kernel: slots of its arrays, then whatever its code expects.
    total: items of its outer parallel space; -s-1 is the value of symbolic size s at run time.
    grain: items of a block. Blocks begin at multiples of it on any number of threads.
    last_of_wave: whether later rows may depend on this one. Rows of one wave are independent.
    """

    kernel: int
    args: Sequence[int]
    total: int
    grain: int
    last_of_wave: bool = True


# A row that ends the run if an error has been flagged; state is overwritten only after it.
COMMIT = Launch(_COMMIT_KERNEL, (), 0, 1)


class ArenaPlan(NamedTuple):
    """Where temporaries lie: {slot: byte offset} in an arena of `nbytes` bytes."""

    offsets: Mapping[int, int]
    nbytes: int


NO_ARENA = ArenaPlan({}, 0)


class Arena:
    """Memory for temporaries; a call has it for itself while it runs."""

    __slots__ = ("memory", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.memory = buffers.empty(nbytes)
        self.address = buffers.address(self.memory)
        self.nbytes = nbytes
        buffers.statistics.add(self.memory, nbytes, "arena")


# Shared by all executables: a program of many compiled functions needs the largest arena, not the
# sum. The last one used is the first to go out again, so it is warm in cache.
_idle_arenas: list[Arena] = []
buffers.held.append(_idle_arenas)


def _take_arena(nbytes: int) -> Arena:
    try:
        arena = _idle_arenas.pop()
    except IndexError:
        return Arena(nbytes)
    if arena.nbytes >= nbytes:
        return arena
    del arena  # too small for this program; free it before the larger one is made
    return Arena(nbytes)


def _give_arena(arena: Arena) -> None:
    if len(_idle_arenas) < _MAX_IDLE_ARENAS:
        _idle_arenas.append(arena)


class _Frame:
    """What one call in flight owns: Ctx, error cell, sizes, pointer table, scratch.

    All are parts of one int64 array, `words`. Its address goes to native code, so it never moves.
    """

    __slots__ = (
        "words", "ctx", "cell", "sizes", "bufs", "varying", "call", "native_args", "once_args",
        "pool", "scratch", "sizes_now", "plan", "arena_address", "arena", "call_words",
    )  # fmt: skip

    def __init__(self, program: Executable) -> None:
        native = threads.native()
        self.pool = threads.pool() if program.parallel else None
        nthreads = self.pool.nthreads if self.pool else 1

        n_words = abi.CTX_WORDS + 1 + program.n_sizes + abi.CALL_WORDS + program.n_buffers
        self.words = buffers.empty(n_words * 8).view(np.int64)
        self.words[:] = 0
        ends = np.cumsum([abi.CTX_WORDS, 1, program.n_sizes, abi.CALL_WORDS])
        self.ctx, self.cell, self.sizes, call_words, self.bufs = np.split(self.words, ends)
        self.call_words = call_words

        self.cell[0] = abi.NO_ERROR
        self.ctx[abi.CTX_POOL] = self.pool.address if self.pool else 0
        self.ctx[abi.CTX_ERROR] = buffers.address(self.cell)
        self.ctx[abi.CTX_SIZES] = buffers.address(self.sizes)
        self.ctx[abi.CTX_THREADS] = nthreads
        self.ctx[abi.CTX_TABLE] = buffers.address(program.table)

        for slot, constant in program.constants.items():
            self.bufs[slot] = buffers.address(constant)
        self.scratch = []
        for slot, nbytes in program.scratch.items():
            memory = buffers.empty(nbytes * nthreads)
            buffers.statistics.add(memory, memory.nbytes, "scratch")
            self.scratch.append(memory)
            self.bufs[slot] = buffers.address(memory)
        self.plan: ArenaPlan | None = None
        self.arena_address = 0
        self.sizes_now: tuple[int, ...] = ()
        self.arena: Arena | None = None

        call_words[abi.CALL_CTX] = buffers.address(self.ctx)
        call_words[abi.CALL_BUFS] = buffers.address(self.bufs)
        for slot, memory in program.kept.items():
            self.bufs[slot] = buffers.address(memory)
        first = buffers.address(program.table)
        call_words[abi.CALL_TABLE] = first + 8 * abi.ROW_WORDS * program.n_once
        call_words[abi.CALL_NROWS] = program.n_main - program.n_once
        call_words[abi.CALL_NARGS] = program.n_varying
        self.varying = (ctypes.c_int64 * program.n_varying).from_address(buffers.address(self.bufs))
        self.native_args = tuple(
            ctypes.c_void_p(int(call_words[word]))
            for word in (abi.CALL_CTX, abi.CALL_BUFS, abi.CALL_TABLE)
        ) + (ctypes.c_int64(program.n_main - program.n_once),)
        self.once_args = (
            *self.native_args[:2], ctypes.c_void_p(first), ctypes.c_int64(program.n_once)
        )  # fmt: skip
        self.call: Callable[..., int] | None = None
        if native.bind is not None:
            threads.fill_call_words(call_words, program.release_gil)
            self.call = native.bind(call_words)
        if program.plain:
            self.set_sizes(program, ())
            assert self.plan is not None
            if self.plan.nbytes:
                self.arena = Arena(self.plan.nbytes)
                self.use_arena(self.arena)

    def release(self) -> None:
        """After a call that failed, and whose error was read: the frame can be called again."""
        self.cell[0] = abi.NO_ERROR
        self.call_words[abi.CALL_BUSY] = 0

    def set_sizes(self, program: Executable, sizes: Sequence[int]) -> None:
        """Stores the symbolic sizes and plans the arena for them, if they differ from before."""
        sizes = tuple(sizes)
        if sizes != self.sizes_now or self.plan is None:
            if len(sizes) != program.n_sizes:
                raise InternalError(f"expected {program.n_sizes} sizes, got {len(sizes)}")
            self.sizes[:] = sizes
            self.plan = program.arena(sizes) if callable(program.arena) else program.arena
            self.sizes_now = sizes
            self.arena_address = 0

    def use_arena(self, arena: Arena) -> None:
        """Points the temporaries' slots into `arena`."""
        assert self.plan is not None
        for slot, offset in self.plan.offsets.items():
            self.bufs[slot] = arena.address + offset
        self.arena_address = arena.address


class Executable:
    """A compiled program that can be called, by many threads at once.

    kernels: addresses of the kernels' code.
    launches: the rows, in order; see `Launch` and `COMMIT`.
    n_buffers: slots of the pointer table. Slots 0 .. n_varying - 1 are the arrays that come with
        each call (inputs, captured arrays, outputs); every other slot is bound here once, by
        `arena`, `scratch` or `constants`.
    arena: temporaries: a plan, or a function from the symbolic sizes to one.
    scratch: {slot: bytes for each thread}, multiples of 128. Worker w's part is at w * bytes.
    constants: {slot: array}; kept alive.
    n_sizes: how many symbolic sizes each call brings.
    n_once: how many of the rows `prepare` runs, and calls do not. kept: {slot: bytes} of what they
        write, which stays.
    n_main: behind which row a call ends; the others are run by rows of control flow. None: all.
    loose: slots that rows of control flow bind.
    sites: {site number: makes the exception}; for the numbers that kernels flag.
    owners: kept alive: whatever owns the kernels' code.
    release_gil: whether other Python threads may run meanwhile. False saves some 50 ns, for
        programs that take microseconds.

    Raises InternalError if the parts do not fit each other.
    """

    def __init__(
        self,
        kernels: Sequence[int],
        launches: Sequence[Launch],
        *,
        n_buffers: int,
        n_varying: int,
        arena: ArenaPlan | Callable[[tuple[int, ...]], ArenaPlan] = NO_ARENA,
        scratch: Mapping[int, int] | None = None,
        constants: Mapping[int, NDArray[Any]] | None = None,
        n_sizes: int = 0,
        n_once: int = 0,
        kept: Mapping[int, int] | None = None,
        n_main: int | None = None,
        loose: Sequence[int] = (),
        sites: Mapping[int, Callable[[], BaseException]] | None = None,
        owners: Sequence[object] = (),
        release_gil: bool = True,
    ) -> None:
        self.kernels, self.launches = tuple(kernels), tuple(launches)
        self.n_buffers, self.n_varying, self.n_sizes = n_buffers, n_varying, n_sizes
        self.arena, self.scratch = arena, dict(scratch or {})
        self.constants, self.sites = dict(constants or {}), dict(sites or {})
        self.owners, self.release_gil = tuple(owners), release_gil
        self.n_once = n_once
        self.kept = {slot: buffers.empty(nbytes) for slot, nbytes in (kept or {}).items()}
        for memory in self.kept.values():
            buffers.statistics.add(memory, memory.nbytes, "kept")
        self.n_main, self.loose = len(launches) if n_main is None else n_main, tuple(loose)
        self._check()
        self.parallel = _can_be_parallel(self.launches)
        self.table, self._args = _build_table(self.kernels, self.launches)
        # Whether all that a call needs, but the arrays, is the frame's.
        self.plain = n_sizes == 0 and isinstance(arena, ArenaPlan) and arena.nbytes <= _OWN_ARENA
        self._idle: list[_Frame] = []

    def run(self, arrays: Sequence[NDArray[Any]], sizes: Sequence[int] = ()) -> None:
        """Runs the program on `arrays`, for the varying slots in order.

        Kernels trust the arrays' dtypes, shapes and strides: whoever calls has checked them.
        Raises what `sites` makes of an error that a kernel flagged.
        """
        frame = self._take_frame()
        if frame.call is None:
            self._run(frame, _addresses(arrays), sizes)
            return
        if self.plain:
            code = frame.call(*arrays)
        else:
            frame.set_sizes(self, sizes)
            arena = _take_arena(frame.plan.nbytes)  # type: ignore[union-attr]
            if arena.address != frame.arena_address:
                frame.use_arena(arena)
            code = frame.call(*arrays)
            _give_arena(arena)
        self._ended(frame, code, arrays, sizes)

    def _ended(
        self, frame: _Frame, code: int, arrays: Sequence[NDArray[Any]], sizes: Sequence[int] = ()
    ) -> None:
        if code == 0:
            if len(self._idle) < _MAX_IDLE_FRAMES:
                self._idle.append(frame)
        elif code < 0:  # a subclass of ndarray, or a wrong number of them: nothing has run
            self._run(frame, _addresses(arrays), sizes)
        else:
            self._raise(frame)

    def caller(
        self,
        makers: Sequence[Callable[[], NDArray[Any]]],
        slow: Callable[[Sequence[NDArray[Any]], list[NDArray[Any]]], None],
    ) -> Callable[..., list[NDArray[Any]]]:
        """A function (arrays, dims=None, results=None) that runs the program on the arrays it is
        given and on `results`, or on those that `makers` make, and returns these: as `run` for
        programs without symbolic sizes, with less Python. `dims` it does not read.

        slow(arrays, results): runs the program, too, and raises its errors. It is called for what
        is not the common case: a frame that serves another call, arrays of a subclass, and where a
        kernel has flagged an error (such a call has written no state).
        """
        if not self.plain or threads.native().bind is None:

            def borrow(
                arrays: Sequence[NDArray[Any]], dims: Any = None, results: Any = None
            ) -> list[NDArray[Any]]:
                if results is None:
                    results = [make() for make in makers]
                slow(arrays, results)
                return results

            return borrow

        def renew() -> _Frame:
            namespace["frame"] = frame = _Frame(self)
            return frame

        def failed(frame: _Frame, code: int, arrays: Any, results: list[NDArray[Any]]) -> None:
            if code > 0:
                frame.release()
            slow(arrays, results)

        namespace: dict[str, Any] = {
            "frame": None, "renew": renew, "failed": failed, "threads": threads,
            **{f"make{i}": make for i, make in enumerate(makers)},
        }  # fmt: skip
        exec(
            compile(self._caller_source(len(makers)), "<call of compiled code>", "exec"), namespace
        )
        return namespace["call"]

    def _caller_source(self, n_results: int) -> str:
        """The Python of `caller` where one frame serves all calls that do not overlap."""
        n = self.n_varying - n_results
        given = "".join(f"a{i}, " for i in range(n))
        made = "".join(f"r{i}, " for i in range(n_results))
        stale = "now is None or now.pool is not threads.current" if self.parallel else "now is None"
        lines = [
            "def call(arrays, dims=None, results=None):",
            "    if results is None:",
            *(f"        r{i} = make{i}()" for i in range(n_results)),
            f"        results = [{made}]",
            f"    else: [{made}] = results",
            f"    [{given}] = arrays",
            "    now = frame",
            f"    if {stale}: now = renew()",
            f"    code = now.call({given}{made})",
            "    if code: failed(now, code, arrays, results)",
            "    return results",
        ]
        return "\n".join(lines)

    def run_pointers(self, pointers: Sequence[int], sizes: Sequence[int] = ()) -> None:
        """Like `run`, from addresses; the caller keeps the memory alive. 1 to 2 us slower."""
        self._run(self._take_frame(), pointers, sizes)

    def prepare(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Makes what is kept between calls, of `arrays`, for the first varying slots in order."""
        frame = self._take_frame()
        for i, address in enumerate(_addresses(arrays)):
            frame.varying[i] = address
        threads.native().run(*frame.once_args)
        self._idle.append(frame)

    def _run(self, frame: _Frame, pointers: Sequence[int], sizes: Sequence[int]) -> None:
        if len(pointers) != self.n_varying:
            raise InternalError(f"expected {self.n_varying} arrays, got {len(pointers)}")
        frame.varying[:] = list(pointers)
        if self.plain:
            code = threads.native().run(*frame.native_args)
        else:
            frame.set_sizes(self, sizes)
            arena = _take_arena(frame.plan.nbytes)  # type: ignore[union-attr]
            if arena.address != frame.arena_address:
                frame.use_arena(arena)
            code = threads.native().run(*frame.native_args)
            _give_arena(arena)
        if code:
            self._raise(frame)
        self._idle.append(frame)

    def _take_frame(self) -> _Frame:
        """An idle frame that fits the pool in force, or a new one."""
        try:
            frame = self._idle.pop()
        except IndexError:
            return _Frame(self)
        if self.parallel and frame.pool is not threads.current:
            self._idle.clear()  # made before a fork, or for another number of threads
            return _Frame(self)
        return frame

    def _raise(self, frame: _Frame) -> None:
        site = int(frame.cell[0])
        frame.release()
        self._idle.append(frame)
        make = self.sites.get(site)
        if make is None:
            raise InternalError(f"a kernel flagged error site {site}, which has no message")
        raise make()

    def _check(self) -> None:
        for index, address in enumerate(self.kernels):
            if not address:
                raise InternalError(f"kernel {index} has no address")
        for index, launch in enumerate(self.launches):
            if launch.kernel == _COMMIT_KERNEL:
                continue
            if not 0 <= launch.kernel < len(self.kernels):
                raise InternalError(f"launch {index} names kernel {launch.kernel}")
            if launch.grain < 1:
                raise InternalError(f"launch {index} has grain {launch.grain}")
            if launch.total < -self.n_sizes:
                raise InternalError(f"launch {index} names size {-launch.total - 1}")
        bound = list(range(self.n_varying)) + list(self.scratch) + list(self.constants)
        bound += [*self.loose, *self.kept]
        if isinstance(self.arena, ArenaPlan):
            bound += list(self.arena.offsets)
            if sorted(bound) != list(range(self.n_buffers)):
                raise InternalError(
                    f"{self.n_buffers} slots, of which these are bound: {sorted(bound)}"
                )
        for slot, nbytes in self.scratch.items():
            if nbytes % buffers.ALIGNMENT:
                raise InternalError(f"scratch slot {slot}: {nbytes} bytes, not a multiple of 128")


def _addresses(arrays: Sequence[NDArray[Any]]) -> list[int]:
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a compiled program expected an ndarray, got {type(array).__name__}")
    return [buffers.address(array) for array in arrays]


def _can_be_parallel(launches: Sequence[Launch]) -> bool:
    """Whether some wave can have two blocks; else no call ever needs threads."""
    blocks = 0
    for launch in launches:
        if launch.kernel == _COMMIT_KERNEL:
            blocks = 0
            continue
        blocks += 2 if launch.total < 0 else -(-launch.total // launch.grain)
        if blocks > 1:
            return True
        if launch.last_of_wave:
            blocks = 0
    return False


def _build_table(
    kernels: Sequence[int], launches: Sequence[Launch]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The launch table, and the args that it points at."""
    args = np.array([word for launch in launches for word in launch.args] + [0], np.int64)
    table = np.zeros((len(launches), abi.ROW_WORDS), np.int64)
    position = buffers.address(args)
    for row, launch in zip(table, launches, strict=True):
        row[abi.ROW_LAST] = 1
        row[abi.ROW_GRAIN] = launch.grain
        if launch.kernel == _COMMIT_KERNEL:
            continue
        row[abi.ROW_KERNEL] = kernels[launch.kernel]
        row[abi.ROW_ARGS] = position
        row[abi.ROW_TOTAL] = launch.total
        row[abi.ROW_LAST] = launch.last_of_wave
        position += 8 * len(launch.args)
    return table, args
