"""Devices: the driver in use, each device's allocator, current devices and streams.

`driver()` finds NVIDIA's driver, or what JITGRAD_CUDA=sim asks for: the simulator. Without either
there are no devices, and `require` says why. Current devices and streams belong to a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from jitgrad.runtime.cuda.allocator import Allocator
from jitgrad.runtime.cuda.blas import Blas
from jitgrad.runtime.cuda.blas import find as find_blas
from jitgrad.runtime.cuda.driver import CudaError, Driver, Properties
from jitgrad.runtime.cuda.library import find_library
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.errors import NoDeviceError
from jitgrad.runtime.knobs import knobs


class Device:
    """One device: its memory, and functions loaded on it. `initialized` once something used it.

    noting: the lock of who notes launches on `capturing`, and keeps graphs of them.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        self.properties: Properties = driver.properties(index)
        self.allocator = Allocator(
            driver, index, max_split=knobs.cuda_max_split or None, paged=knobs.cuda_pages
        )
        self.functions: dict[Any, Any] = {}
        self._held: deque[tuple[int, Any]] = deque()
        self.noting = threading.RLock()
        self._idle: dict[int, list[int]] = {}  # priority -> streams that were given back
        self._priorities: dict[int, int] = {}  # of the streams that were made here

    def hold(self, x: Any, stream: int) -> None:
        """Keeps something of the host until the work that a stream has now is done."""
        driver, index = self.driver, self.index
        capture = captures().get(index)
        if capture is not None:
            capture.held.append(x)
            return
        while self._held:  # taken out before it is asked: other threads do the same
            oldest = self._held.popleft()
            done = False
            try:
                done = driver.event_done(index, oldest[0])
            finally:
                if not done:
                    self._held.appendleft(oldest)
            if not done:
                break
            driver.release_event(index, oldest[0])
        event = driver.new_event(index, False)
        driver.record(index, event, stream)
        self._held.append((event, x))

    def new_stream(self, priority: int = 0) -> int:
        """A stream: one that was given back, or another one of the driver's."""
        idle = self._idle.setdefault(priority, [])
        try:
            return idle.pop()
        except IndexError:
            stream = self.driver.new_stream(self.index, priority)
            self._priorities[stream] = priority
            return stream

    def priority_of(self, stream: int) -> int:
        """The priority that a stream was asked for with; 0 for those that were not made here."""
        return self._priorities.get(stream, 0)

    def release_stream(self, stream: int, priority: int = 0) -> None:
        """Keeps a stream for the next who wants one. Memory is the allocator's by streams: the
        driver could call another stream so while this one's work still uses some."""
        self._idle.setdefault(priority, []).append(stream)

    @cached_property
    def capturing(self) -> int:
        """The stream on which launches are noted for graphs."""
        return self.new_stream()

    @cached_property
    def blas(self) -> Blas | None:
        """cuBLAS; None where it is not installed, and on the simulator."""
        library = None if self.properties.simulated else find_blas()
        if library is None:
            return None
        self.driver.use(self.index)
        return Blas(library, lambda n, stream: self.allocator.allocate(n, stream, "cuBLAS"))

    def synchronize(self) -> None:
        self.driver.synchronize(self.index)

    def __repr__(self) -> str:
        return f"<cuda:{self.index} {self.properties.name}>"


class _Thread(threading.local):
    """asked: whether somebody asked which device is the current one, or set it. outer: for each
    `enter_stream` the device and its stream, and the entered device's stream, that were current."""

    device = 0
    asked = False

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        self.outer: list[tuple[int, int, int]] = []
        self.captures: dict[int, Any] = {}


_local = _Thread()
_lock = threading.Lock()
_driver: Driver | None = None
_reason = ""
_looked = False
_devices: dict[int, Device] = {}
_watchers: list[Callable[[], None]] = []


def driver() -> Driver | None:
    """The driver; None where there is none (`reason` says why)."""
    global _driver, _reason, _looked
    with _lock:
        if not _looked:
            _looked = True
            if knobs.cuda == "sim":
                _driver = SimulatedDriver()
            elif knobs.cuda == "off":
                _reason = "JITGRAD_CUDA=off"
            else:
                _driver, _reason = find_library()
    return _driver


def use_driver(new: Driver | None, reason: str = "") -> None:
    """Puts another driver in place, for tests; forgets all devices."""
    global _driver, _reason, _looked
    with _lock:
        _driver, _reason, _looked = new, reason, True
        _devices.clear()
        _local.device = 0
        _local.streams, _local.captures, _local.outer = {}, {}, []
    for forget in _watchers:
        forget()


def watch(forget: Callable[[], None]) -> None:
    """Calls `forget` whenever another driver is put in place: code is loaded on devices that are no
    more."""
    _watchers.append(forget)


def reason() -> str:
    """Why there is no driver."""
    driver()
    return _reason


def count() -> int:
    """The number of devices."""
    found = driver()
    return 0 if found is None else found.device_count()


def require(what: str) -> Driver:
    """The driver. Raises NoDeviceError where there is no device."""
    found = driver()
    if found is None or not found.device_count():
        raise NoDeviceError(
            f"[{what}] expected a CUDA device; there is none: {_reason or 'no device is visible'}; "
            "ask cuda.is_available() first, or use device='cpu'"
        )
    return found


def device(index: int | None = None, what: str = "cuda") -> Device:
    """The device of a number (None: the current one). Raises RuntimeError where there is none."""
    number = current() if index is None else index
    found = _devices.get(number)
    if found is not None:
        return found
    here = require(what)
    if not 0 <= number < here.device_count():
        raise RuntimeError(
            f"[{what}] expected a device below {here.device_count()}; got cuda:{number} (CUDA "
            "error: invalid device ordinal)"
        )
    with _lock:
        return _devices.setdefault(number, Device(here, number))


def current() -> int:
    """The number of the thread's current device."""
    _local.asked = True
    return _local.device


def unasked() -> int:
    """`current`, for who does not ask for the user's code (a guard)."""
    return _local.device


def forget_asked() -> bool:
    """Whether the current device was asked for, or set, in this thread since this was called."""
    asked, _local.asked = _local.asked, False
    return asked


def set_current(index: int) -> None:
    device(index)
    _local.asked, _local.device = True, index


def captures() -> dict[int, Any]:
    """Of each device whose work this thread captures, the Capture (capture.py)."""
    return _local.captures


def initialized() -> bool:
    """Whether any device has been used."""
    return bool(_devices)


def current_stream(index: int) -> int:
    """The thread's current stream on a device; 0 is the default stream."""
    return _local.streams.get(index, 0)


def set_stream(index: int, stream: int) -> None:
    _local.streams[index] = stream


def enter_stream(index: int, stream: int) -> None:
    """Work of this thread goes to a stream of a device, which is the current one, until
    `leave_stream`; what was entered last is left first."""
    before = current()
    _local.outer.append((before, current_stream(before), current_stream(index)))
    set_current(index)
    set_stream(index, stream)


def leave_stream(index: int) -> None:
    """The devices and streams are current that were when `enter_stream` was called."""
    before, mine, theirs = _local.outer.pop()
    set_stream(index, theirs)
    set_stream(before, mine)
    set_current(before)


@contextmanager
def on_stream(index: int, stream: int) -> Iterator[None]:
    """Work of this thread on the device goes to a stream."""
    before = current_stream(index)
    set_stream(index, stream)
    try:
        yield
    finally:
        set_stream(index, before)


__all__ = [
    "CudaError", "Device", "captures", "count", "current", "current_stream", "device", "driver",
    "enter_stream", "forget_asked", "initialized", "leave_stream", "on_stream", "reason", "require",
    "set_current", "set_stream", "unasked", "use_driver", "watch",
]  # fmt: skip
