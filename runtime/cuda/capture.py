"""Graphs of a stream's work: what a thread launches while it captures is noted, to be done again.

Owns `Capture`: the memory of a graph (a pool that nothing else uses while the graph lives), what
the graph reads and must be kept, and the cells in which its kernels flag faults. Values of the host
that eager code hands to kernels (numbers, mostly) are copied once, when they are captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from jitgrad.runtime import abi
from jitgrad.runtime.buffers import address
from jitgrad.runtime.cuda import device as devices
from jitgrad.runtime.cuda.driver import CudaError
from jitgrad.runtime.userline import with_line

_pools = itertools.count(1)


def new_pool() -> int:
    """The number of a pool for graphs; several graphs may use one, if they run one by one."""
    return -next(_pools)


def current(index: int) -> Capture | None:
    """The capture of this thread's work on a device."""
    return devices.captures().get(index)


def refuse(index: int, what: str, why: str) -> None:
    """Raises RuntimeError, with the user's line, while work on the device is captured."""
    if devices.captures() and current(index) is not None:
        text = f"[cuda.graph] expected work that can be captured; got {what}: {why}"
        raise with_line(RuntimeError(text))


def refuse_wait(index: int, what: str) -> None:
    """`refuse`, of what waits for the device's work, or asks whether it is done."""
    refuse(index, what, "captured work runs when the graph is replayed, not before")


def refuse_stream(index: int, stream: int) -> None:
    """`refuse`, of work on another stream of the device than the one that is captured."""
    graph = current(index) if devices.captures() else None
    if graph is not None and graph.stream != stream:
        refuse(index, "work on another stream", "a graph has the work of one stream")


def refuse_second(index: int) -> None:
    """`refuse`, of another capture."""
    refuse(index, "another capture", "there is one capture at a time on a device")


class Capture:
    """What a thread gives to a stream from here until `end`, as a graph. Raises RuntimeError on the
    default stream, and where the device's work is captured already.

    side: a stream of the graph's own, on which none of its work runs: what the work reads of the
    host is written there, once, into memory of that stream. Were it of the graph's pool, an array
    that was freed earlier in the capture might have had it, and each replay would write that again.
    """

    def __init__(self, device: devices.Device, stream: int, pool: int | None = None) -> None:
        if not stream:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        refuse_second(device.index)
        self.device, self.stream = device, stream
        self.pool = new_pool() if pool is None else pool
        self.handle: int | None = None
        self.held: list[Any] = []
        self.cells: list[tuple[Any, Any, Callable[[Any], BaseException | None]]] = []
        self.side = device.new_stream()
        if device.blas is not None:  # its workspace stays for good
            device.driver.use(device.index)
            device.blas.prepare(stream)
        device.allocator.divert(stream, self.pool)
        try:
            device.driver.begin_capture(device.index, stream, relaxed=True)
        except CudaError:
            device.allocator.divert(stream, None)
            device.allocator.release_pool(self.pool)
            raise
        devices.captures()[device.index] = self

    def end(self) -> None:
        """The graph is ready."""
        device = self.device
        del devices.captures()[device.index]
        try:
            self.handle = device.driver.end_capture(device.index, self.stream)
        finally:
            device.allocator.divert(self.stream, None)
            if self.handle is None:  # the driver has given the capture up
                self._let_go()

    def write_now(self, to: int, host: int, nbytes: int) -> None:
        """Copies host memory into the graph's at once; waits for it."""
        driver, index = self.device.driver, self.device.index
        driver.copy_in(index, to, host, nbytes, self.side)
        driver.synchronize_stream(index, self.side)

    def replay(self, stream: int) -> None:
        """Does the work again, on a stream, which is the current one. Where kernels check what they
        read, waits for them, and raises the error of one that found a fault."""
        assert self.handle is not None
        self.device.driver.launch_graph(self.device.index, self.handle, stream)
        for cell, read, error_of in self.cells:
            error = error_of(read(cell))
            if error is not None:
                self._clear()
                raise error

    def _clear(self) -> None:
        """No cell has a fault any more."""
        for cell, _, _ in self.cells:
            fresh = np.array([abi.NO_ERROR], np.int64)
            self.write_now(address(cell), address(fresh), fresh.nbytes)

    def release(self) -> None:
        """Gives the graph and what it kept back."""
        if self.handle is not None:
            self.device.synchronize()
            self.device.driver.release_graph(self.device.index, self.handle)
            self.handle = None
            self._let_go()

    def _let_go(self) -> None:
        self.device.release_stream(self.side)
        self.held.clear()
        self.cells.clear()
        self.device.allocator.release_pool(self.pool)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter is going down, or the driver was changed
            self.release()
