"""NVIDIA's driver through ctypes, on a stand-in for libcuda: what its functions are given, what its
error numbers mean, and what is said where there is none or an old one."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from other_driver import driven_by

from jitgrad.runtime.cuda import device, library
from jitgrad.runtime.cuda.driver import CudaError, DeviceMemoryError


class FakeCuda:
    """Answers as libcuda does; `calls` has what it was asked. `status`: {function: error}."""

    def __init__(self, version: int = 12040) -> None:
        self.version = version
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.status: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append((name, args))
            if self.status.get(name):
                return self.status[name]
            if name == "cuDriverGetVersion":
                args[0]._obj.value = self.version
            elif name == "cuGetErrorString":
                args[1]._obj.value = b"out of memory" if args[0] == 2 else b"some error"
            elif name == "cuDeviceGetCount":
                args[0]._obj.value = 2
            elif args and hasattr(args[0], "_obj") and hasattr(args[0]._obj, "value"):
                args[0]._obj.value = 0x1000 + len(self.calls)  # a handle or an address
            return 0

        return call

    def given(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args in self.calls if called == name]


def test_without_a_driver_everything_says_why() -> None:
    with driven_by(None, "NVIDIA's driver (libcuda.so.1) is not installed"):
        with pytest.raises(RuntimeError, match=r"\[x\] expected a CUDA device; there is none: "
                           r"NVIDIA's driver \(libcuda.so.1\) is not installed"):  # fmt: skip
            device.require("x")
        assert device.count() == 0


def test_an_old_driver_is_refused_with_its_version() -> None:
    with pytest.raises(CudaError, match=r"driver for CUDA 12 or newer; it is for CUDA 11.8; upd"):
        library.LibraryDriver(FakeCuda(11080))
    assert library.LibraryDriver(FakeCuda(12000)).device_count() == 2


def test_running_out_of_memory_is_told_from_other_errors() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    assert driver.allocate(0, 4096) > 0x1000
    fake.status = {"cuMemAlloc_v2": 2}
    with pytest.raises(DeviceMemoryError, match="CUDA error: out of memory"):
        driver.allocate(0, 4096)
    fake.status = {"cuMemAlloc_v2": 999}
    with pytest.raises(CudaError, match=r"some error \(cuMemAlloc_v2, 999\)") as found:
        driver.allocate(0, 4096)
    assert not isinstance(found.value, DeviceMemoryError)


def test_a_launch_passes_each_argument_as_a_word() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    words = [("*float32", 0x7F0012345678), ("int64", -3), ("size", 10)]
    seen: list[list[int]] = []

    def launch(*args: Any) -> int:
        pointers = args[9]
        seen.append([ctypes.c_int64.from_address(pointers[k]).value for k in range(3)])
        shape = [x.value for x in args[1:8]]
        assert shape == [7, 1, 1, 256, 1, 1, 0] and args[8].value == 5
        return 0

    fake.cuLaunchKernel = launch  # type: ignore[attr-defined]
    driver.launch(1, ctypes.c_void_p(9), 7, 256, 5, words)
    assert seen == [[0x7F0012345678, -3, 10]]
    assert fake.given("cuDeviceGet")[-1][1].value == 1  # the device was made current before


def test_a_module_is_loaded_once_for_each_device() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    for index in (0, 0, 1):
        driver.load(index, lambda symbol: (".version 8.0", f"{symbol}_entry"), "k")
    assert len(fake.given("cuModuleLoadDataEx")) == 2
    assert fake.given("cuModuleGetFunction")[0][2].value == b"k_entry"


def test_what_the_driver_says_of_ptx_that_it_refuses_is_told() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)

    def load(module: Any, text: Any, count: Any, options: Any, values: Any) -> int:
        # CU_JIT_ERROR_LOG_BUFFER and CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES of cuda.h
        assert count.value == 2 and list(options) == [5, 6] and text.value == b".version 8.0"
        log = b"ptxas application error: line 3: no such instruction"
        assert values[1] > len(log)
        ctypes.memmove(values[0], log, len(log))
        return 218

    fake.cuModuleLoadDataEx = load  # type: ignore[attr-defined]
    with pytest.raises(CudaError, match=r"\(cuModuleLoadDataEx, 218\): ptxas.*: no such instruct"):
        driver.load(0, lambda symbol: (".version 8.0", symbol), "k")


def test_graphs_are_noted_made_ready_and_launched() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    driver.begin_capture(0, 77)
    graph = driver.end_capture(0, 77)
    driver.launch_graph(0, graph, 5)
    driver.release_graph(0, graph)
    names = [name for name, _ in fake.calls if "Graph" in name or "Capture" in name]
    assert names == [
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy",
    ]  # fmt: skip
    (begun,), (launched,) = fake.given("cuStreamBeginCapture_v2"), fake.given("cuGraphLaunch")
    assert begun[0].value == 77 and begun[1].value == 1  # thread-local
    driver.begin_capture(0, 78, relaxed=True)
    assert fake.given("cuStreamBeginCapture_v2")[-1][1].value == 2
    assert launched[0].value == graph and launched[1].value == 5
    fake.status = {"cuGraphInstantiateWithFlags": 700}
    driver.begin_capture(0, 77)
    with pytest.raises(CudaError, match="cuGraphInstantiateWithFlags"):
        driver.end_capture(0, 77)
    assert len(fake.given("cuGraphDestroy")) == 2  # not leaked


def test_a_copy_between_devices_names_both_contexts() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    driver.copy_peer(1, 0x5000, 0, 0x6000, 99, 7)
    ((to, there, of, here, size, stream),) = fake.given("cuMemcpyPeerAsync")
    assert (to.value, of.value, size.value, stream.value) == (0x5000, 0x6000, 99, 7)
    assert (there, here) == (driver._contexts[1], driver._contexts[0])
    assert fake.given("cuCtxSetCurrent")[-1][0] == here  # whose stream it is


def test_queries_that_are_not_ready() -> None:
    fake = FakeCuda()
    driver = library.LibraryDriver(fake)
    fake.status = {"cuStreamQuery": 600, "cuEventQuery": 600}
    assert not driver.stream_done(0, 5) and not driver.event_done(0, 6)
    fake.status = {}
    assert driver.stream_done(0, 5) and driver.event_done(0, 6)
    fake.status = {"cuEventQuery": 719}
    with pytest.raises(CudaError, match="cuEventQuery, 719"):
        driver.event_done(0, 6)


class FakePages(FakeCuda):
    """Virtual memory as cuda.h says of it; `left` pages of the device are left."""

    def __init__(self, supported: int = 1, granularity: int = 1 << 16, left: int = 100) -> None:
        super().__init__()
        self.supported, self.granularity, self.left = supported, granularity, left
        self.memory: dict[int, int] = {}  # handle -> bytes
        self.mapped: dict[int, list[int]] = {}  # address -> bytes, handle, access

    def cuDeviceGetAttribute(self, value: Any, number: Any, device: Any) -> int:
        value._obj.value = self.supported if number.value == 102 else 7
        return 0

    def cuMemGetAllocationGranularity(self, least: Any, kind: Any, option: Any) -> int:
        assert option.value == 0
        least._obj.value = self.granularity
        return 0

    def cuMemAddressReserve(self, at: Any, size: Any, align: Any, hint: Any, flags: Any) -> int:
        assert not size.value % align.value and hint.value is None and flags.value == 0
        at._obj.value = 1 << 40
        return 0

    def cuMemCreate(self, handle: Any, size: Any, kind: Any, flags: Any) -> int:
        # CUmemAllocationProp: pinned, no handle types, {device, number}, null, no flags
        given = bytes(kind._obj)
        assert given == bytes.fromhex("01000000000000000100000001000000" + "00" * 16)
        if len(self.memory) + len(self.mapped) >= self.left:
            return 2
        handle._obj.value = 2**40 + len(self.calls)  # more than 32 bits
        self.memory[handle._obj.value] = size.value
        self.calls.append(("cuMemCreate", ()))
        return 0

    def cuMemMap(self, at: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        assert self.memory[handle.value] == size.value and offset.value == 0 == flags.value
        assert at.value not in self.mapped
        self.mapped[at.value] = [size.value, handle.value, 0]
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        del self.memory[handle.value]
        return 0

    def cuMemSetAccess(self, at: Any, size: Any, access: Any, count: Any) -> int:
        assert bytes(access._obj) == bytes.fromhex("010000000100000003000000") and count.value == 1
        inside = [a for a in self.mapped if at.value <= a < at.value + size.value]
        assert sum(self.mapped[a][0] for a in inside) == size.value
        for a in inside:
            self.mapped[a][2] = 3
        return 0

    def cuMemUnmap(self, at: Any, size: Any) -> int:
        assert self.mapped.pop(at.value)[0] == size.value
        return 0


def test_pages_are_made_mapped_and_given_back() -> None:
    fake, page = FakePages(), 2 << 20
    driver = library.LibraryDriver(fake)
    assert driver.page_size(1) == page
    start = driver.reserve(1, 64 * page)
    driver.map_pages(1, start + page, 3 * page)
    assert sorted(fake.mapped) == [start + k * page for k in (1, 2, 3)] and not fake.memory
    assert all(size == page and access == 3 for size, _, access in fake.mapped.values())
    driver.unmap_pages(1, start + 2 * page, page)
    assert sorted(fake.mapped) == [start + k * page for k in (1, 3)]
    driver.unreserve(1, start, 64 * page)
    ((freed, size),) = fake.given("cuMemAddressFree")
    assert freed.value == start and size.value == 64 * page


def test_where_memory_ends_no_page_is_mapped() -> None:
    fake, page = FakePages(left=2), 2 << 20
    driver = library.LibraryDriver(fake)
    start = driver.reserve(1, 64 * page)
    with pytest.raises(DeviceMemoryError, match="cuMemCreate"):
        driver.map_pages(1, start, 3 * page)
    assert not fake.mapped and not fake.memory


def test_page_sizes_are_the_devices() -> None:
    assert library.LibraryDriver(FakePages(supported=0)).page_size(0) == 0
    assert library.LibraryDriver(FakePages(granularity=32 << 20)).page_size(0) == 32 << 20


@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="needs numba-cuda")
def test_the_tests_of_the_simulator_run_on_what_looks_like_a_gpu() -> None:
    """`pytest -m gpu tests/cuda`, in a process of its own, with blocks of 256 threads."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": str(here)}
    environment.pop("JITGRAD_CUDA", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "standin_gpu"]
    names = "the_device or softmax_is_one or epilogue_is_one or grids_are or counted"
    done = subprocess.run(
        [*command, "-m", "gpu", "-k", names, str(here / "cuda")],
        cwd=here.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"(\d+) passed(?:, 1 skipped)?, \d+ deselected", done.stdout)
    assert done.returncode == 0 and found and int(found[1]) >= 9, done.stdout[-2000:]
