"""A simulated GPU whose memory the host cannot touch: a read of it by the host ends the process.

The simulator's memory is this machine's, so code that reads a device's array on the host gives
right numbers there and a fault on a GPU. Here pages are unreadable but while the driver works: such
code ends with a fault here, too, and faulthandler prints where. For tests; conftest.py of
tests/cuda puts it in the place of the simulator.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jitgrad.runtime.cuda.simulator import SimulatedDriver

_OPEN = mmap.PROT_READ | mmap.PROT_WRITE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class GuardedDriver(SimulatedDriver):
    """In host memory, which is readable while work is done."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._depth = 0

    def _protect(self, address: int, nbytes: int, how: int) -> None:
        if _mprotect(address, nbytes, how):
            raise OSError(ctypes.get_errno(), "mprotect")

    @contextmanager
    def open(self) -> Iterator[None]:
        """The memory may be read and written."""
        with self._lock:
            if not self._depth:
                for at in self._mapped:
                    self._protect(at, self.page, _OPEN)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    for at in self._mapped:
                        self._protect(at, self.page, 0)

    def map_pages(self, device: int, address: int, nbytes: int) -> None:
        super().map_pages(device, address, nbytes)
        with self._lock:
            if not self._depth:
                self._protect(address, nbytes, 0)

    def unmap_pages(self, device: int, address: int, nbytes: int) -> None:
        self._protect(address, nbytes, _OPEN)
        super().unmap_pages(device, address, nbytes)

    def _do(self, stream: int, work: Callable[[], object]) -> None:
        def opened() -> None:
            with self.open():
                work()

        super()._do(stream, opened)

    def copy_in(self, device: int, to: int, host: int, nbytes: int, stream: int) -> None:
        with self.open():
            super().copy_in(device, to, host, nbytes, stream)
