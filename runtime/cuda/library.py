"""NVIDIA's driver through ctypes: `find_library`, and `LibraryDriver`, a `Driver`.

Owns the calls of libcuda and the meaning of their error numbers. Nothing is called before the
first device is asked for.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from jitgrad.runtime.cuda.driver import CudaError, DeviceMemoryError, Properties

_NAMES = ("libcuda.so.1", "libcuda.so") if sys.platform != "win32" else ("nvcuda.dll",)
_OLDEST = 12000
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_OUT_OF_MEMORY, _NOT_READY = 2, 600
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_CAPTURE_THREAD = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may use the device
_VIRTUAL_MEMORY = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_LOG = 8192
_PAGE = 2 << 20  # the least: each page is a piece of the driver's memory
_ATTRIBUTES = {
    "multi_processor_count": 16, "major": 75, "minor": 76, "L2_cache_size": 38,
    "max_threads_per_multi_processor": 39, "shared_memory_per_block": 8,
    "regs_per_multiprocessor": 82, "warp_size": 10,
}  # fmt: skip


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _MemoryKind(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int), ("handle_types", c_int), ("location", _Location),
        ("windows", c_void_p), ("flags", ctypes.c_ubyte * 8),
    )  # fmt: skip


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", c_int))


def _on(device: int) -> tuple[_MemoryKind, _Access]:
    """Pinned memory of a device, and that it may read and write it."""
    here = _Location(1, device)
    return _MemoryKind(1, 0, here), _Access(here, 3)


def find_library() -> tuple[LibraryDriver | None, str]:
    """The driver, or None and why there is none."""
    for name in _NAMES:
        try:
            library = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        return None, f"NVIDIA's driver ({_NAMES[0]}) is not installed"
    try:
        found = LibraryDriver(library)
    except CudaError as error:
        return None, str(error)
    return found, ""


class LibraryDriver:
    """libcuda. Every device's primary context is used, as PyTorch and CuPy do."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, c_void_p] = {}
        self._pages: dict[int, int] = {}
        self._modules: dict[tuple[int, str], c_void_p] = {}
        self._call("cuInit", c_uint(0))
        version = c_int()
        self._call("cuDriverGetVersion", byref(version))
        if version.value < _OLDEST:
            raise CudaError(
                f"[cuda] expected a driver for CUDA {_OLDEST // 1000} or newer; it is for CUDA "
                f"{version.value // 1000}.{version.value % 1000 // 10}; update NVIDIA's driver"
            )

    def _call(self, name: str, *args: Any) -> None:
        result = getattr(self._library, name)(*args)
        if result == 0:
            return
        text = c_char_p()
        self._library.cuGetErrorString(result, byref(text))
        message = (text.value or b"unknown error").decode()
        kind = DeviceMemoryError if result == _OUT_OF_MEMORY else CudaError
        raise kind(f"[cuda] CUDA error: {message} ({name}, {result})")

    def use(self, device: int) -> None:
        """Makes a device the driver's current one in this thread."""
        context = self._contexts.get(device)
        if context is None:
            handle = c_int()
            self._call("cuDeviceGet", byref(handle), c_int(device))
            context = c_void_p()
            self._call("cuDevicePrimaryCtxRetain", byref(context), handle)
            self._contexts[device] = context
        self._call("cuCtxSetCurrent", context)

    def device_count(self) -> int:
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        return count.value

    def properties(self, device: int) -> Properties:
        handle = c_int()
        self._call("cuDeviceGet", byref(handle), c_int(device))
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, c_int(256), handle)
        total = c_size_t()
        self._call("cuDeviceTotalMem_v2", byref(total), handle)
        found: dict[str, Any] = {}
        for attribute, number in _ATTRIBUTES.items():
            value = c_int()
            self._call("cuDeviceGetAttribute", byref(value), c_int(number), handle)
            found[attribute] = value.value
        return Properties(name.value.decode(), total_memory=total.value, **found)

    def memory_info(self, device: int) -> tuple[int, int]:
        self.use(device)
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    # -- memory ------------------------------------------------------------------------------------
    def device_of(self, address: int) -> int | None:
        self.use(0)  # any context will do
        ordinal = c_int()
        try:
            self._call(
                "cuPointerGetAttribute", byref(ordinal), c_int(_DEVICE_ORDINAL),
                c_uint64(address),
            )  # fmt: skip
        except CudaError:
            return None
        return ordinal.value if ordinal.value >= 0 else None

    def allocate(self, device: int, nbytes: int) -> int:
        self.use(device)
        address = c_void_p()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return address.value or 0

    def release(self, device: int, address: int) -> None:
        self.use(device)
        self._call("cuMemFree_v2", c_void_p(address))

    def page_size(self, device: int) -> int:
        page = self._pages.get(device)
        if page is None:
            page = self._pages[device] = self._find_page_size(device)
        return page

    def _find_page_size(self, device: int) -> int:
        handle, found, least = c_int(), c_int(), c_size_t()
        self._call("cuDeviceGet", byref(handle), c_int(device))
        self._call("cuDeviceGetAttribute", byref(found), c_int(_VIRTUAL_MEMORY), handle)
        if not found.value:
            return 0
        kind, _ = _on(device)
        self._call("cuMemGetAllocationGranularity", byref(least), byref(kind), c_int(0))
        return max(least.value, _PAGE)

    def reserve(self, device: int, nbytes: int) -> int:
        self.use(device)
        address, page = c_void_p(), self.page_size(device)
        self._call(
            "cuMemAddressReserve", byref(address), c_size_t(nbytes), c_size_t(page), c_void_p(0),
            ctypes.c_ulonglong(0),
        )  # fmt: skip
        return address.value or 0

    def unreserve(self, device: int, address: int, nbytes: int) -> None:
        self.use(device)
        self._call("cuMemAddressFree", c_void_p(address), c_size_t(nbytes))

    def map_pages(self, device: int, address: int, nbytes: int) -> None:
        self.use(device)
        kind, access = _on(device)
        page = self.page_size(device)
        none = ctypes.c_ulonglong(0)
        at = address
        try:
            while at < address + nbytes:
                memory = ctypes.c_ulonglong()
                self._call("cuMemCreate", byref(memory), c_size_t(page), byref(kind), none)
                try:
                    place = c_void_p(at), c_size_t(page), c_size_t(0)
                    self._call("cuMemMap", *place, memory, none)
                    at += page
                finally:  # a page that is mapped keeps its memory
                    self._call("cuMemRelease", memory)
            self._call(
                "cuMemSetAccess", c_void_p(address), c_size_t(nbytes), byref(access), c_size_t(1)
            )
        except CudaError:
            self.unmap_pages(device, address, at - address)
            raise

    def unmap_pages(self, device: int, address: int, nbytes: int) -> None:
        self.use(device)
        page = self.page_size(device)
        for at in range(address, address + nbytes, page):  # as they were mapped
            self._call("cuMemUnmap", c_void_p(at), c_size_t(page))

    def copy_in(self, device: int, to: int, host: int, nbytes: int, stream: int) -> None:
        self.use(device)
        self._call(
            "cuMemcpyHtoDAsync_v2", c_void_p(to), c_void_p(host), c_size_t(nbytes), c_void_p(stream)
        )

    def copy_out(self, device: int, host: int, of: int, nbytes: int, stream: int) -> None:
        self.use(device)
        self._call(
            "cuMemcpyDtoHAsync_v2", c_void_p(host), c_void_p(of), c_size_t(nbytes), c_void_p(stream)
        )

    def copy_within(self, device: int, to: int, of: int, nbytes: int, stream: int) -> None:
        self.use(device)
        self._call(
            "cuMemcpyDtoDAsync_v2", c_void_p(to), c_void_p(of), c_size_t(nbytes), c_void_p(stream)
        )

    def copy_peer(
        self, to_device: int, to: int, of_device: int, of: int, nbytes: int, stream: int
    ) -> None:
        self.use(to_device)
        self.use(of_device)
        self._call(
            "cuMemcpyPeerAsync", c_void_p(to), self._contexts[to_device], c_void_p(of),
            self._contexts[of_device], c_size_t(nbytes), c_void_p(stream),
        )  # fmt: skip

    def fill(self, device: int, to: int, byte: int, nbytes: int, stream: int) -> None:
        self.use(device)
        self._call(
            "cuMemsetD8Async",
            c_void_p(to),
            ctypes.c_ubyte(byte),
            c_size_t(nbytes),
            c_void_p(stream),
        )

    def pin(self, address: int, nbytes: int) -> None:
        self.use(0)
        self._call("cuMemHostRegister_v2", c_void_p(address), c_size_t(nbytes), c_uint(1))

    def unpin(self, address: int) -> None:
        self.use(0)
        self._call("cuMemHostUnregister", c_void_p(address))

    # -- streams and events ------------------------------------------------------------------------
    def new_stream(self, device: int, priority: int) -> int:
        self.use(device)
        stream = c_void_p()
        self._call("cuStreamCreateWithPriority", byref(stream), c_uint(1), c_int(priority))
        return stream.value or 0

    def synchronize_stream(self, device: int, stream: int) -> None:
        self.use(device)
        self._call("cuStreamSynchronize", c_void_p(stream))

    def stream_done(self, device: int, stream: int) -> bool:
        self.use(device)
        return self._ready("cuStreamQuery", c_void_p(stream))

    def _ready(self, name: str, handle: c_void_p) -> bool:
        result = getattr(self._library, name)(handle)
        if result == _NOT_READY:
            return False
        if result:
            self._call(name, handle)
        return True

    def synchronize(self, device: int) -> None:
        self.use(device)
        self._call("cuCtxSynchronize")

    def new_event(self, device: int, timing: bool) -> int:
        self.use(device)
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(0 if timing else 2))
        return event.value or 0

    def release_event(self, device: int, event: int) -> None:
        self.use(device)
        self._call("cuEventDestroy_v2", c_void_p(event))

    def record(self, device: int, event: int, stream: int) -> None:
        self.use(device)
        self._call("cuEventRecord", c_void_p(event), c_void_p(stream))

    def event_done(self, device: int, event: int) -> bool:
        self.use(device)
        return self._ready("cuEventQuery", c_void_p(event))

    def wait(self, device: int, stream: int, event: int) -> None:
        self.use(device)
        self._call("cuStreamWaitEvent", c_void_p(stream), c_void_p(event), c_uint(0))

    def synchronize_event(self, device: int, event: int) -> None:
        self.use(device)
        self._call("cuEventSynchronize", c_void_p(event))

    def elapsed(self, device: int, start: int, end: int) -> float:
        self.use(device)
        milliseconds = c_float()
        self._call("cuEventElapsedTime", byref(milliseconds), c_void_p(start), c_void_p(end))
        return milliseconds.value

    # -- kernels -----------------------------------------------------------------------------------
    def load(self, device: int, code: Any, symbol: str) -> Any:
        """`code` gives the PTX of a kernel and the name of its entry: code(symbol)."""
        self.use(device)
        text, entry = code(symbol)
        module = self._modules.get((device, symbol))
        if module is None:
            module = self._modules[device, symbol] = self._module(text)
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), module, c_char_p(entry.encode()))
        return function

    def _module(self, text: str) -> c_void_p:
        """A module of PTX. The error of one that the driver refuses has what its compiler said."""
        module = c_void_p()
        said = ctypes.create_string_buffer(_LOG)
        options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(said), _LOG)
        try:
            self._call(
                "cuModuleLoadDataEx", byref(module), c_char_p(text.encode()), c_uint(2), options,
                values,
            )  # fmt: skip
        except CudaError as error:
            log = said.value.decode(errors="replace").strip()
            raise type(error)(f"{error}{': ' if log else ''}{log}") from None
        return module

    def launch(
        self, device: int, function: Any, grid: int, block: int, stream: int,
        args: Sequence[tuple[str, int]],
    ) -> None:  # fmt: skip
        self.use(device)
        words = (ctypes.c_uint64 * len(args))(*[word & 2**64 - 1 for _, word in args])
        start = ctypes.addressof(words)
        pointers = (c_void_p * len(args))(*[start + 8 * k for k in range(len(args))])
        self._call(
            "cuLaunchKernel", function, c_uint(grid), c_uint(1), c_uint(1), c_uint(block),
            c_uint(1), c_uint(1), c_uint(0), c_void_p(stream), pointers, None,
        )  # fmt: skip

    # -- graphs ------------------------------------------------------------------------------------
    def begin_capture(self, device: int, stream: int, relaxed: bool = False) -> None:
        self.use(device)
        mode = c_uint(_CAPTURE_RELAXED if relaxed else _CAPTURE_THREAD)
        self._call("cuStreamBeginCapture_v2", c_void_p(stream), mode)

    def end_capture(self, device: int, stream: int) -> int:
        self.use(device)
        noted, ready = c_void_p(), c_void_p()
        self._call("cuStreamEndCapture", c_void_p(stream), byref(noted))
        try:
            self._call("cuGraphInstantiateWithFlags", byref(ready), noted, ctypes.c_ulonglong(0))
        finally:
            self._call("cuGraphDestroy", noted)
        return ready.value or 0

    def launch_graph(self, device: int, graph: int, stream: int) -> None:
        self.use(device)
        self._call("cuGraphLaunch", c_void_p(graph), c_void_p(stream))

    def release_graph(self, device: int, graph: int) -> None:
        self.use(device)
        self._call("cuGraphExecDestroy", c_void_p(graph))
