"""A simulator that shows what Numba's does not: races, barriers that some threads do not reach,
accesses outside of arrays, wide ones at odd places, shared memory read before it is written.

Threads of a block run one after the other from barrier to barrier, and every access is noted. Two
threads of a block that touch one element between two barriers, of which one writes, are a race
whatever the order in which they ran; so are two blocks in one launch. Asynchronous copies arrive
when the thread waits for them, no earlier. `checking` puts it in the place of Numba's simulator;
as a plugin it does so for a whole run: `pytest tests/cuda -p checked_gpu` (JITGRAD_CUDA=sim, with
tests/ on PYTHONPATH).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from other_driver import driven_by

from jitgrad.compiler.codegen.cuda import load, simulated
from jitgrad.compiler.cost import nbytes
from jitgrad.compiler.cuda_compiled import CudaCompiled
from jitgrad.compiler.symbolic import is_static
from jitgrad.runtime.buffers import address
from jitgrad.runtime.cuda import arrays as device_arrays
from jitgrad.runtime.cuda.simulator import SimulatedDriver

_MANY = -1
_KINDS = ("read", "written", "updated")
_READ, _WRITE, _ATOMIC = range(3)


class GpuFault(AssertionError):
    """What a kernel must not do."""


def _note(table: dict[Any, list[Any]], where: Any, kind: int, me: int) -> str | None:
    """Notes an access by thread or block `me`; what another one did that does not go with it."""
    seen = table.setdefault(where, [None, None, None])
    for other, holder in enumerate(seen):
        if holder not in (None, me) and (kind, other) not in ((_READ, _READ), (_ATOMIC, _ATOMIC)):
            return _KINDS[other]
    seen[kind] = me if seen[kind] in (None, me) else _MANY
    return None


class _Launch:
    """A launch: who runs, and what was touched by whom. blocks: of elements in the device's memory.
    threads: of all elements, since the last barrier."""

    def __init__(self, symbol: str, grid: int, size: int) -> None:
        self.symbol, self.grid, self.size = symbol, grid, size
        self.block = self.thread = 0
        self.blocks: dict[Any, list[Any]] = {}
        self.threads: dict[Any, list[Any]] = {}
        self.shared: dict[Any, Watched] = {}
        self.coming: list[list[tuple[Watched, int, Any]]] = []
        self.wait: Callable[[], None] = lambda: None

    def fault(self, what: str) -> GpuFault:
        return GpuFault(f"{self.symbol}, block {self.block}, thread {self.thread}: {what}")

    def touch(self, x: Watched, at: int, kind: int) -> None:
        where = (x.place, at) if x.inside else x.place + at * x.data.itemsize
        before = _note(self.threads, where, kind, self.thread)
        if before is not None:
            raise self.fault(f"{x.name}[{at}] is {_KINDS[kind]}, which another thread has {before}")
        if not x.inside:
            before = _note(self.blocks, where, kind, self.block)
            if before is not None:
                raise self.fault(
                    f"{x.name}[{at}] is {_KINDS[kind]}, which another block has {before}"
                )


class Watched:
    """An array whose accesses are noted. inside: in shared memory, of which `known` elements were
    written. limit: elements that it has."""

    def __init__(
        self, launch: _Launch, name: str, data: np.ndarray[Any, Any], place: Any, limit: int,
        inside: bool,
    ) -> None:  # fmt: skip
        self.launch, self.name, self.data, self.place = launch, name, data, place
        self.limit, self.inside, self.dtype = limit, inside, data.dtype
        self.known: set[int] = set()

    def __getitem__(self, at: Any) -> Any:
        at = self.touch(at, _READ)
        if self.inside and at not in self.known:
            raise self.launch.fault(f"{self.name}[{at}] is read, which nobody has written")
        return self.data[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        at = self.touch(at, _WRITE)
        self.known.add(at)
        self.data[at] = value

    def touch(self, at: Any, kind: int) -> int:
        at = int(at)
        if not 0 <= at < self.limit:
            raise self.launch.fault(f"{self.name}[{at}] is outside of {self.limit} elements")
        self.launch.touch(self, at, kind)
        return at


def _functions(launch: _Launch) -> dict[str, Any]:
    """What kernels call that is not the simulator's."""

    def shared_array(number: Any, count: int, dtype: Any, alignment: int) -> Watched:
        if number not in launch.shared:
            data = np.empty(count, dtype)
            launch.shared[number] = Watched(launch, f"shared{number}", data, number, count, True)
        return launch.shared[number]

    def flag(error: Watched, site: int) -> None:  # one of several sites stays: any will do
        error.data[0] = min(error.data[0], site)

    def is_aligned(x: Watched) -> bool:
        return x.place % 16 == 0

    def aligned(x: Watched, at: int, count: int) -> None:
        start = (0 if x.inside else x.place) + int(at) * x.data.itemsize
        if start % (count * x.data.itemsize):
            raise launch.fault(f"{count} elements from {x.name}[{at}] on are not aligned")

    def load(count: int) -> Any:
        def load_all(x: Watched, whole: bool, at: int) -> tuple[Any, ...]:
            if whole:
                aligned(x, at, count)
            return tuple(x[at + k] for k in range(count))

        return load_all

    def store(x: Watched, whole: bool, at: int, values: tuple[Any, ...]) -> None:
        if whole:
            aligned(x, at, len(values))
        for k, value in enumerate(values):
            x[at + k] = value

    def atomic(combine: Callable[[Any, Any], Any]) -> Any:
        def update(x: Watched, at: Any, value: Any) -> None:
            at = x.touch(at, _ATOMIC)
            x.data[at] = combine(x.data[at], value)

        return update

    def copy_async(tile: Watched, place: Any, x: Watched, at: Any) -> None:
        place = tile.touch(place, _WRITE)
        tile.known.discard(place)
        launch.coming[launch.thread].append((tile, place, x[at]))

    def copies_done() -> None:
        for tile, place, value in launch.coming[launch.thread]:
            tile[place] = value
        launch.coming[launch.thread].clear()

    return {
        "shared_array": shared_array, "flag": flag, "is_aligned": is_aligned,
        **{f"load{n}": load(n) for n in (2, 4, 8)},
        **{f"shared{n}": lambda x, at, n=n: load(n)(x, True, at) for n in (2, 4)},
        **{f"store{n}": store for n in (2, 4, 8)},
        "atomic_sum": atomic(lambda x, y: x + y), "atomic_max": atomic(max),
        "atomic_min": atomic(min), "copy_async": copy_async, "copies_done": copies_done,
    }  # fmt: skip


class _Index:
    """threadIdx and its like: `x` is asked of the launch."""

    def __init__(self, of: Callable[[], int]) -> None:
        self._of = of

    @property
    def x(self) -> int:
        return self._of()


def _module(launch: _Launch) -> Any:
    """numba.cuda, as far as kernels use it."""
    return SimpleNamespace(
        threadIdx=_Index(lambda: launch.thread), blockIdx=_Index(lambda: launch.block),
        gridDim=_Index(lambda: launch.grid), blockDim=_Index(lambda: launch.size),
        grid=lambda _: launch.block * launch.size + launch.thread,
        gridsize=lambda _: launch.grid * launch.size, syncthreads=lambda: launch.wait(),
        local=SimpleNamespace(array=lambda count, dtype: np.empty(count, dtype)),
    )  # fmt: skip


class _Turns:
    """The threads of a block, of which one runs at a time until it waits or ends."""

    def __init__(self, launch: _Launch, work: Callable[[], None]) -> None:
        self.launch, self.work = launch, work
        self.turn = [threading.Semaphore(0) for _ in range(launch.size)]
        self.back = threading.Semaphore(0)
        self.ended = [False] * launch.size
        self.error: BaseException | None = None
        launch.wait = self._wait

    def run(self) -> None:
        threads = [threading.Thread(target=self._one, args=(t,)) for t in range(self.launch.size)]
        for thread in threads:
            thread.start()
        while not all(self.ended):
            for t in (t for t, ended in enumerate(self.ended) if not ended):
                self.launch.thread = t
                self.turn[t].release()
                self.back.acquire()
            if self.error is None and any(self.ended) and not all(self.ended):
                self.error = self.launch.fault("some threads wait for others that have ended")
            self.launch.threads.clear()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _one(self, t: int) -> None:
        self.turn[t].acquire()
        try:
            if self.error is None:
                with np.errstate(all="ignore"):
                    self.work()
        except BaseException as error:
            self.error = self.error or error
        self.ended[t] = True
        self.back.release()

    def _wait(self) -> None:
        t = self.launch.thread
        self.back.release()
        self.turn[t].acquire()
        if self.error is not None:
            raise self.error


class _Checked:
    """A kernel; `kernel[grid, block](*args)` runs it. limits: bytes of the arrays that begin at an
    address, where they are known."""

    def __init__(self, text: str, symbol: str, limits: dict[int, int]) -> None:
        self.symbol, self.limits = symbol, limits
        numbers = itertools.count()
        self.text = re.sub(
            r"cuda\.shared\.array\(", lambda _: f"shared_array({next(numbers)}, ", text
        )
        (self.names,) = re.findall(rf"def {symbol}\((.*)\):", text)

    def __getitem__(self, configuration: tuple[int, int]) -> Callable[..., None]:
        return lambda *args: self._run(*configuration, args)

    def _run(self, grid: int, size: int, given: tuple[Any, ...]) -> None:
        launch = _Launch(self.symbol, grid, size)
        names = simulated.namespace(_module(launch))
        names.update(_functions(launch))
        inner = load._run(self.text, self.symbol, names)
        args = [
            self._watched(launch, name, a) if isinstance(a, np.ndarray) else a
            for name, a in zip(self.names.split(", "), given, strict=True)
        ]
        for launch.block in range(grid):
            launch.shared.clear()
            launch.coming = [[] for _ in range(size)]
            _Turns(launch, lambda: inner(*args)).run()

    def _watched(self, launch: _Launch, name: str, x: np.ndarray[Any, Any]) -> Watched:
        place = address(x)
        limit = self.limits.get(place, x.nbytes) // x.itemsize
        return Watched(launch, name, x, place, limit, False)


@contextmanager
def checking() -> Iterator[None]:
    """Kernels are checked, on a simulated device of their own."""
    limits: dict[int, int] = {}
    plain, launch, new = load.simulated_kernel, CudaCompiled._launch, device_arrays.new
    inside: list[CudaCompiled] = []

    def noting_arrays(self: CudaCompiled, arrays: list[Any], *rest: Any) -> None:
        limits.clear()
        for x in arrays:
            _limit(limits, address(x), _bytes(x))
        inside.append(self)
        try:
            launch(self, arrays, *rest)
        finally:
            inside.pop()

    def noting_the_arena(shape: Any, dtype: Any, on: Any, tag: str = "") -> Any:
        made = new(shape, dtype, on, tag)
        if tag.startswith("arena of"):
            base = address(made) + 255 & -256
            for array, offset in inside[-1].stages.plan.offsets.items():
                if is_static(array.shape):
                    _limit(limits, base + offset, nbytes(array))
        return made

    load.simulated_kernel = lambda text, symbol, _: _Checked(text, symbol, limits)
    CudaCompiled._launch, device_arrays.new = noting_arrays, noting_the_arena  # type: ignore[method-assign]
    try:
        with driven_by(SimulatedDriver()):
            yield
    finally:
        load.simulated_kernel = plain
        CudaCompiled._launch, device_arrays.new = launch, new  # type: ignore[method-assign]


def _limit(limits: dict[int, int], place: int, size: int) -> None:
    limits[place] = max(limits.get(place, 0), size)


def _bytes(x: np.ndarray[Any, Any]) -> int:
    """From an array's first element to the end of its last."""
    steps = zip(x.shape, x.strides, strict=True)
    return sum((n - 1) * s for n, s in steps if s > 0) + x.itemsize if x.size else 0


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    checking().__enter__()
