"""Arrays in a device's memory: shape, strides, dtype and address, without access to the elements.

A `DeviceArray` is an ndarray whose address is a device's (addresses of devices and of the host
never overlap), so that views are made as of any other array. The elements are not the host's to
read: what would read them raises InternalError. `to_device` and `to_host` copy.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from jitgrad.runtime import dlpack
from jitgrad.runtime.buffers import address as address_of
from jitgrad.runtime.buffers import empty_array
from jitgrad.runtime.cuda import capture, pinned
from jitgrad.runtime.cuda import device as devices
from jitgrad.runtime.errors import InternalError


class _Memory:
    """Memory of a device's allocator; freed with the last array on it."""

    __slots__ = ("address", "device", "stream")

    def __init__(self, nbytes: int, device: devices.Device, tag: str) -> None:
        self.device, self.stream = device, devices.current_stream(device.index)
        self.address = device.allocator.allocate(nbytes, self.stream, tag)

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter is going down, or the driver was changed
            self.device.allocator.free(self.address)


class _Foreign:
    """Memory of another library; `owner` keeps it."""

    __slots__ = ("address", "device", "owner", "stream")

    def __init__(self, address: int, device: devices.Device, owner: Any) -> None:
        self.address, self.device, self.owner = address, device, owner
        self.stream = devices.current_stream(device.index)


class DeviceArray(np.ndarray[Any, Any]):
    """An ndarray on a device. `device_index` says on which, `memory` is what it stands on."""

    device_index: int
    memory: _Memory | _Foreign | None

    def __array_finalize__(self, parent: Any) -> None:
        self.device_index = getattr(parent, "device_index", -1)
        self.memory = getattr(parent, "memory", None)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise InternalError(
            f"the elements of an array on cuda:{self.device_index} were to be read by the host; it "
            "must be copied first"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._refuse()

    def __array_function__(self, func: Any, kinds: Any, args: Any, kwargs: Any) -> Any:
        if func in _TO_SUBCLASS:
            kwargs = {**kwargs, "subok": True}
        elif func not in _MOVES:
            return self._refuse()
        return super().__array_function__(func, kinds, args, kwargs)

    def reshape(self, *shape: Any, **more: Any) -> Any:
        """A view; InternalError where only a copy has the shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        try:
            return super().reshape(tuple(sizes), copy=False)
        except ValueError:
            return self._refuse()

    def __getitem__(self, key: Any) -> Any:
        """A view, of a single element too."""
        parts = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(k, (int, slice, type(None), type(Ellipsis))) for k in parts):
            return self._refuse()
        return super().__getitem__(parts if Ellipsis in parts else (*parts, Ellipsis))

    def copy(self, order: Any = "C") -> Any:
        """A dense copy on the device."""
        return duplicate(self) if dense(self) else strided_copy(self)

    def item(self, *args: Any) -> Any:
        """An element as a Python number: waits for the device."""
        return host_copy(self).item(*args)

    tolist = tobytes = astype = fill = dot = flatten = ravel = _refuse
    sum = max = min = any = all = mean = take = repeat = nonzero = sort = _refuse
    __float__ = __int__ = __bool__ = __index__ = __complex__ = __setitem__ = _refuse

    def __repr__(self) -> str:
        return f"<DeviceArray cuda:{self.device_index} {self.dtype}{list(self.shape)}>"

    __str__ = __repr__

    def __deepcopy__(self, memo: dict[int, Any] | None) -> DeviceArray:
        return self.copy()

    def __reduce__(self) -> Any:
        return self._refuse()


_TO_SUBCLASS = {np.broadcast_to, np.lib.stride_tricks.sliding_window_view}
_MOVES = {
    np.transpose, np.swapaxes, np.moveaxis, np.expand_dims, np.squeeze, np.shape, np.ndim,
    np.may_share_memory, np.shares_memory, np.diagonal,
}  # fmt: skip
"""Functions of NumPy that only make views."""


@functools.lru_cache(1024)
def _bytes_type(nbytes: int) -> Any:
    return ctypes.c_char * nbytes


def new(
    shape: Sequence[int], dtype: np.dtype[Any], device: devices.Device, tag: str = ""
) -> DeviceArray:
    """An array of uninitialised device memory, dense row-major."""
    shape = tuple(shape)
    nbytes = max(math.prod(shape) * dtype.itemsize, 1)
    memory = _Memory(nbytes, device, tag or f"{dtype}{list(shape)}")
    place = _bytes_type(nbytes).from_address(memory.address)
    place.owner = memory
    made: DeviceArray = np.ndarray.__new__(DeviceArray, shape, dtype, place)
    made.device_index, made.memory = device.index, memory
    return made


def foreign(
    op: str, address: int, shape: Sequence[int], strides: Sequence[int] | None,
    dtype: np.dtype[Any], owner: Any, index: int | None = None,
) -> DeviceArray:  # fmt: skip
    """An array on another library's memory; strides in bytes, None for a dense one. `index`: the
    device that the memory is said to be on; None for the one that it is on, and for the current one
    where there are no elements. Raises ValueError for memory that is not a device's or another's,
    negative strides, and elements that lie between others."""
    shape = tuple(shape)
    said = devices.device(index, op)
    if not math.prod(shape):
        return new(shape, dtype, said)
    if address % dtype.itemsize or any(s % dtype.itemsize or s < 0 for s in strides or ()):
        raise ValueError(
            f"[{op}] expected an address and strides of whole elements of {dtype.itemsize} bytes, "
            f"forwards; got {address:#x} and strides {strides} in bytes"
        )
    low, high = dlpack.span(op, address, shape, strides, dtype)
    found = {said.driver.device_of(at) for at in (low, high - 1)}
    if None in found or len(found) > 1 or index not in (None, *found):
        name = "a device" if index is None else f"cuda:{index}"
        raise ValueError(
            f"[{op}] expected data on {name}; {high - low} bytes at {address:#x} are not its memory"
        )
    device = devices.device(found.pop(), op)
    memory = _Foreign(address, device, owner)
    place = _bytes_type(high - low).from_address(low)
    place.owner = memory
    made: DeviceArray = np.ndarray.__new__(DeviceArray, shape, dtype, place, 0, strides)
    made.device_index, made.memory = device.index, memory
    return made


def used_on(x: DeviceArray, stream: int) -> None:
    """x's memory is used by work on a stream: it is reused after that work."""
    if isinstance(x.memory, _Memory):
        x.memory.device.allocator.used_on(x.memory.address, stream)


def on_device(x: Any) -> bool:
    return isinstance(x, DeviceArray)


def device_of(x: DeviceArray) -> devices.Device:
    return devices.device(x.device_index)


def dense(x: np.ndarray[Any, Any]) -> bool:
    return bool(x.flags.c_contiguous)


def to_device(
    x: np.ndarray[Any, Any], device: devices.Device, tag: str = "", non_blocking: bool = False
) -> DeviceArray:
    """A copy of a host array, made on the current stream. Pinned memory is read while the host goes
    on if that is asked for, else this waits for it."""
    source = np.ascontiguousarray(x)
    later = non_blocking and pinned.is_pinned(source)
    if not later:
        capture.refuse(
            device.index, "a copy from the host", "it would be made once, not at each replay; copy "
            "from pinned memory with non_blocking=True, or before"
        )  # fmt: skip
    made = new(x.shape, x.dtype, device, tag)
    if x.size:
        stream = devices.current_stream(device.index)
        device.driver.copy_in(
            device.index, address_of(made), address_of(source), source.nbytes, stream
        )
        if later:
            device.hold(source, stream)
        elif pinned.is_pinned(source):
            device.driver.synchronize_stream(device.index, stream)
    return made


def to_kernel(x: np.ndarray[Any, Any], device: devices.Device, tag: str = "") -> DeviceArray:
    """A copy of what a kernel reads of the host's; in a graph that is captured, as it is now, in
    memory that none of the graph's own work has."""
    graph = capture.current(device.index)
    if graph is None:
        return to_device(x, device, tag)
    source = np.ascontiguousarray(x)
    with devices.on_stream(device.index, graph.side):
        made = new(x.shape, x.dtype, device, tag)
    graph.held.append(made)
    if x.size:
        graph.write_now(address_of(made), address_of(source), source.nbytes)
    return made


def to_host(x: DeviceArray) -> np.ndarray[Any, Any]:
    """A copy of a dense device array, after all work on the current stream."""
    if not dense(x):
        raise InternalError(f"expected a dense array to copy to the host; got {x.strides}")
    capture.refuse(x.device_index, "a look at values", "there are none before the graph runs")
    made = empty_array(x.shape, x.dtype)
    if x.size:
        device = device_of(x)
        stream = devices.current_stream(device.index)
        device.driver.copy_out(device.index, address_of(made), address_of(x), x.nbytes, stream)
        device.driver.synchronize_stream(device.index, stream)
    return made


def to_pinned(x: DeviceArray, into: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """A copy of a dense device array in pinned host memory (a dense array `into` in it, if given),
    of which the host does not wait for the end: until the current stream has been waited for, what
    it holds is not known."""
    if not dense(x):
        raise InternalError(f"expected a dense array to copy to the host; got {x.strides}")
    made = pinned.empty(x.shape, x.dtype) if into is None else into
    if x.size:
        device = device_of(x)
        stream = devices.current_stream(device.index)
        device.driver.copy_out(device.index, address_of(made), address_of(x), x.nbytes, stream)
        device.hold(made, stream)
    return made


def to_peer(x: DeviceArray, device: devices.Device, into: DeviceArray | None = None) -> DeviceArray:
    """A copy of a dense array on another device (in a dense array `into` there, if given). It is
    made on the current stream of x's device, between what the current streams of both were given
    before and what they are given next."""
    if not dense(x):
        raise InternalError(f"expected a dense array to copy; got {x.strides}")
    made = new(x.shape, x.dtype, device) if into is None else into
    if x.size:
        source, driver = device_of(x), device.driver
        for end in (source, device):
            capture.refuse(
                end.index, "a copy between devices", "a graph has the work of one device"
            )
        mine, theirs = (devices.current_stream(d.index) for d in (source, device))
        _after(source.index, mine, device.index, theirs, driver)
        driver.copy_peer(
            device.index, address_of(made), source.index, address_of(x), x.nbytes, mine
        )
        _after(device.index, theirs, source.index, mine, driver)
    return made


def _after(device: int, stream: int, other: int, before: int, driver: Any) -> None:
    """What comes on a stream of a device waits for what a stream of another one has now."""
    event = driver.new_event(other, False)
    driver.record(other, event, before)
    driver.wait(device, stream, event)
    driver.release_event(other, event)


def duplicate(x: DeviceArray) -> DeviceArray:
    """A copy of a dense array on its device."""
    if not dense(x):
        raise InternalError(f"expected a dense array to copy; got {x.strides}")
    device = device_of(x)
    made = new(x.shape, x.dtype, device)
    if x.size:
        stream = devices.current_stream(device.index)
        device.driver.copy_within(device.index, address_of(made), address_of(x), x.nbytes, stream)
    return made


def _copy_by_host(x: DeviceArray) -> DeviceArray:
    return to_device(host_copy(x), device_of(x))


strided_copy: Callable[[DeviceArray], DeviceArray] = _copy_by_host
"""A dense copy on the device of an array that is not dense. Kernels are not made here: who makes
them puts one in the place of the way by the host (jitgrad/gpu/kernels.py)."""


def host_copy(x: DeviceArray) -> np.ndarray[Any, Any]:
    """A dense host array with the elements of a device array of any strides."""
    if not x.size or dense(x):
        return to_host(x)
    flat, start = span(x)
    whole = to_host(flat)
    view = np.lib.stride_tricks.as_strided(whole[start:], x.shape, x.strides)
    return np.ascontiguousarray(view)


def span(x: DeviceArray) -> tuple[DeviceArray, int]:
    """The dense flat array of all memory from an array's first element to its last, and where its
    element (0, ..., 0) is in it: for copies of arrays that are no dense ones."""
    low = high = 0
    for size, stride in zip(x.shape, x.strides, strict=True):
        reach = (size - 1) * stride
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    count = (high - low) // x.itemsize + 1
    start = tuple(
        size - 1 if stride < 0 else 0 for size, stride in zip(x.shape, x.strides, strict=True)
    )
    first = x[tuple(slice(k, k + 1) for k in start)]
    flat: Any = np.lib.stride_tricks.as_strided(first, (count,), (x.itemsize,), subok=True)
    return flat, -low // x.itemsize
