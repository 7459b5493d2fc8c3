"""Memory shared with other libraries: DLPack and the CUDA array interface; pinned memory, streams,
when the host waits, and CUDA graphs; on a driver in host memory."""

from __future__ import annotations

import ctypes
import gc
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from other_driver import driven_by

import jitgrad as torch
from jitgrad.runtime import dlpack
from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.knobs import knobs

only_simulated = pytest.mark.skipif(knobs.cuda != "sim", reason="looks into the simulated driver")


@pytest.fixture
def lazy() -> Iterator[SimulatedDriver]:
    """A driver that does work when it is waited for."""
    with driven_by(SimulatedDriver(lazy=True, devices=2)) as driver:
        yield driver


def values(x: Any) -> list[float]:
    return [float(v) for v in x.cpu().numpy().ravel()]


# -- DLPack ----------------------------------------------------------------------------------------
DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_there_and_back_is_the_same_memory(dtype: str) -> None:
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)).cuda()
    view = x[1:, ::2].T
    assert view.__dlpack_device__() == (2, 0)
    y = torch.from_dlpack(view)
    assert y.data_ptr() == view.data_ptr() and y.stride() == view.stride() == (2, 4)
    assert y.dtype is x.dtype and y.shape == (2, 2) and y.device == "cuda:0"
    y.zero_()
    assert not x[1:, ::2].cpu().any() and bool(x[0, 1].cpu())


def test_what_a_capsule_says() -> None:
    """Read as dlpack.h has it."""
    x = torch.arange(6, dtype=torch.int16).reshape(2, 3).cuda()
    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    place = pointer(capsule, b"dltensor")
    raw = (ctypes.c_uint64 * 7).from_address(place)
    device_words = (ctypes.c_int32 * 3).from_address(place + 8)
    assert raw[0] == x.data_ptr() and list(device_words) == [2, 0, 2]
    kind = (ctypes.c_uint8 * 4).from_address(place + 20)
    assert list(kind) == [0, 16, 1, 0]  # int, 16 bits, one lane
    assert list((ctypes.c_int64 * 2).from_address(raw[3])) == [2, 3]
    assert list((ctypes.c_int64 * 2).from_address(raw[4])) == [3, 1] and raw[5] == 0


def test_memory_lives_as_long_as_anyone_needs_it() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    x = torch.ones(1000, device="cuda")
    capsule = x.__dlpack__()
    del x
    gc.collect()
    assert torch.cuda.memory_allocated() == before + 4096
    y = torch.from_dlpack(capsule)
    del capsule
    gc.collect()
    assert values(y.sum()) == [1000]
    del y
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    unused = torch.ones(1000, device="cuda").__dlpack__()
    del unused
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_a_capsule_is_taken_once_and_wrong_ones_are_refused() -> None:
    x = torch.ones(3, device="cuda")
    capsule = x.__dlpack__()
    torch.from_dlpack(capsule)
    with pytest.raises((ValueError, RuntimeError, BufferError)):
        torch.from_dlpack(capsule)
    with pytest.raises(BufferError, match="require gradient"):
        x.clone().requires_grad_().__dlpack__()
    with pytest.raises(BufferError, match="expected dl_device"):
        x.__dlpack__(dl_device=(1, 0))
    assert values(torch.from_dlpack(torch.ones(2).__dlpack__())) == [1, 1]  # the CPU's, as before


@only_simulated
def test_the_reader_of_dlpack_waits_for_our_stream(lazy: SimulatedDriver) -> None:
    reader = lazy.new_stream(0, 0)
    x = torch.zeros(4, device="cuda")
    x.copy_(torch.ones(4))
    done: list[list[float]] = []
    x.__dlpack__(stream=reader)
    host = np.empty(4, np.float32)
    lazy.copy_out(0, host.ctypes.data, x.data_ptr(), 16, reader)
    lazy._do(reader, lambda: done.append(host.tolist()))
    lazy.run(reader)
    assert not done  # our stream has not copied yet
    lazy.synchronize_stream(0, reader)
    assert done == [[1, 1, 1, 1]]


def test_a_reader_on_the_cpu_is_refused() -> None:
    """By its own words: the exception survives that nobody took the capsule."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    x = torch.ones(3, device="cuda")
    for options in ({}, {"copy": True}, {"device": "cpu"}):
        with pytest.raises((RuntimeError, BufferError)):
            np.from_dlpack(x, **options)
    del x
    assert torch.cuda.memory_allocated() == before


@only_simulated
@pytest.mark.parametrize("options", [{}, {"max_version": (1, 0)}])
def test_a_reader_that_fails_on_the_way_raises_its_own_error(options: dict[str, Any]) -> None:
    """PyTorch without CUDA lets go of the memory while its exception is on its way."""
    pytorch = pytest.importorskip("torch")
    gc.collect()
    before = torch.cuda.memory_allocated()
    capsule = torch.ones(3, device="cuda").__dlpack__(**options)
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        pytorch.utils.dlpack.from_dlpack(capsule)
    del capsule
    assert torch.cuda.memory_allocated() == before


class Giver:
    """A library that gives capsules of dlpack.h's form, in its own words."""

    def __init__(self, version: tuple[int, int] | None = None) -> None:
        self.name = b"dltensor" if version is None else b"dltensor_versioned"
        self.form = dlpack._FORMS[self.name]()
        if version is not None:
            self.form.major, self.form.minor = version
        self.deleted: list[int] = []
        self.form.deleter = dlpack._Deleter(self.deleted.append)

    def capsule(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None,
        **fields: Any,
    ) -> Any:  # fmt: skip
        """Of float32 on cuda:0 unless `fields` of the DLTensor say other things."""
        t = self.form.tensor
        self._sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        t.shape = ctypes.cast(self._sizes, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            self._strides = (ctypes.c_int64 * max(len(strides), 1))(*strides)
            t.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        t.data, t.device_type, t.code, t.bits, t.lanes = address, dlpack.CUDA, 2, 32, 1
        t.ndim = len(shape)
        for field, value in fields.items():
            setattr(t, field, value)
        made = ctypes.pythonapi.PyCapsule_New
        made.restype = ctypes.py_object
        made.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return made(ctypes.addressof(self.form), self.name, None)


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)])
def test_capsules_of_all_versions_are_read(version: tuple[int, int] | None) -> None:
    x, giver = torch.arange(12.0).cuda(), Giver(version)
    y = torch.from_dlpack(giver.capsule(x.data_ptr(), (2, 3), (1, 2), byte_offset=8))
    assert values(y) == [2, 4, 6, 3, 5, 7] and y.data_ptr() == x.data_ptr() + 8
    assert not giver.deleted
    del y
    gc.collect()
    assert giver.deleted == [ctypes.addressof(giver.form)]


HOST = np.zeros(6, np.float32)


@pytest.mark.parametrize(
    ("error", "shape", "strides", "fields"),
    [
        (ValueError, (2, 3), None, {"data": None}),
        (ValueError, (2,), None, {"byte_offset": 3}),
        (ValueError, (2,), None, {"data": HOST.ctypes.data}),
        (ValueError, (1 << 40,), None, {}),
        (ValueError, (2,), (1 << 40,), {}),
        (ValueError, (2,), (1 << 62,), {}),
        (ValueError, (2,), (-1,), {"byte_offset": 8}),
        (ValueError, (-2,), None, {}),
        (ValueError, (2,), None, {"ndim": -1}),
        (ValueError, (1,) * 70, None, {}),
        (ValueError, (2, 3), None, {"data": None, "device_type": 1}),
        (ValueError, (2,), (1 << 62,), {"device_type": 1}),
        (BufferError, (2,), None, {"bits": 1}),
        (BufferError, (2,), None, {"code": 0, "bits": 4}),
        (BufferError, (2,), None, {"code": 9}),
        (BufferError, (2,), None, {"code": 6, "bits": 1, "device_type": 1}),
        (BufferError, (2,), None, {"lanes": 4}),
        (BufferError, (2,), None, {"device_type": 10}),
        (RuntimeError, (2,), None, {"device_id": 99}),
    ],
)
def test_capsules_on_no_memory_of_ours_are_refused(
    error: type, shape: Any, strides: Any, fields: Any
) -> None:
    x = torch.arange(12.0).cuda()
    for version in (None, (1, 0)):
        giver = Giver(version)
        capsule = giver.capsule(x.data_ptr(), shape, strides, **fields)
        with pytest.raises(error):
            torch.from_dlpack(capsule)


def test_capsules_that_may_not_be_read_are_refused() -> None:
    x, giver = torch.arange(12.0).cuda(), Giver((1, 0))
    giver.form.flags = 1
    with pytest.raises(ValueError, match="may be written"):
        torch.from_dlpack(giver.capsule(x.data_ptr(), (2,)))
    with pytest.raises(RuntimeError, match=r"major version 1 at most; got 2\.0"):
        newer = Giver((2, 0))
        torch.from_dlpack(newer.capsule(x.data_ptr(), (2,)))
    older = Giver()
    capsule = older.capsule(x.data_ptr(), (2,))
    torch.from_dlpack(capsule)
    for wrong in (capsule, 5, None):
        with pytest.raises(RuntimeError, match="invalid capsule"):
            torch.from_dlpack(wrong)
    device = SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: 2)
    with pytest.raises(TypeError, match="to give"):
        torch.from_dlpack(device)


def test_versions_are_asked_for_and_given() -> None:
    x, asked = torch.arange(3.0).cuda(), []

    class Knows:
        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, **options: Any) -> Any:
            asked.append(options)
            return x.__dlpack__(**options)

    assert torch.from_dlpack(Knows()).data_ptr() == x.data_ptr()
    assert asked == [{"max_version": (1, 0), "stream": 1}]
    for version, name in ((None, '"dltensor"'), ((0, 8), '"dltensor"'), ((1, 1), "_versioned")):
        assert name in repr(x.__dlpack__(max_version=version))
    for wrong in ("x", 5):
        with pytest.raises(TypeError):
            x.__dlpack__(max_version=wrong)


def test_streams_that_dlpack_forbids() -> None:
    x = torch.ones(3, device="cuda")
    for stream in (0, 2, -2):
        with pytest.raises(BufferError, match="unsupported stream on CUDA"):
            x.__dlpack__(stream=stream)
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream="1")


def test_memory_of_a_gpu_is_shared_already() -> None:
    x = torch.ones(3, device="cuda")
    assert x.share_memory_() is x and x.is_shared() and x.untyped_storage().is_shared()


def test_set_takes_memory_of_the_same_device() -> None:
    x = torch.ones(3, device="cuda")
    text = 'storage of a tensor on device "cuda:0" to a storage on different device "cpu"'
    for source in (torch.ones(2), torch.ones(2).untyped_storage(), torch.tensor(1.0)):
        with pytest.raises(RuntimeError, match=text):
            x.set_(source)
    assert x.set_().device == "cuda:0" and x.shape == (0,)


# -- the CUDA array interface ----------------------------------------------------------------------
def test_cuda_array_interface() -> None:
    x = torch.arange(12.0).reshape(3, 4).cuda()
    assert x.__cuda_array_interface__ == {
        "shape": (3, 4), "typestr": "<f4", "data": (x.data_ptr(), False), "strides": None,
        "stream": 1, "version": 3,
    }  # fmt: skip
    t = x.T
    assert t.__cuda_array_interface__["strides"] == (4, 16)
    other = SimpleNamespace(__cuda_array_interface__=t.__cuda_array_interface__)
    y = torch.as_tensor(other, device="cuda")
    assert y.data_ptr() == x.data_ptr() and y.stride() == (1, 4)
    y += 1
    assert values(x) == list(range(1, 13))
    with pytest.raises(AttributeError, match="on non-CUDA tensor type"):
        _ = torch.ones(2).__cuda_array_interface__
    assert not hasattr(torch.ones(2), "__cuda_array_interface__")
    with pytest.raises(RuntimeError, match="requires grad"):
        _ = x.clone().requires_grad_().__cuda_array_interface__
    with pytest.raises(TypeError, match="bfloat16"):
        _ = x.bfloat16().__cuda_array_interface__
    fixed = SimpleNamespace(
        __cuda_array_interface__={**x.__cuda_array_interface__, "data": (x.data_ptr(), True)}
    )
    with pytest.raises(ValueError, match="may be written"):
        torch.as_tensor(fixed)
    for wrong, text in (
        ({"data": (0, False)}, "null pointer"), ({"stream": 0}, "other than 0"),
        ({"strides": (4,)}, "expected strides"),
    ):  # fmt: skip
        given = SimpleNamespace(__cuda_array_interface__={**x.__cuda_array_interface__, **wrong})
        with pytest.raises(ValueError, match=text):
            torch.as_tensor(given)
    empty = {**x.__cuda_array_interface__, "shape": (0, 4), "data": (0, False)}
    assert torch.as_tensor(SimpleNamespace(__cuda_array_interface__=empty)).shape == (0, 4)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("version", 0), ("version", "3"), ("version", None), ("version", True), ("shape", None),
        ("shape", "6"), ("shape", 6.0), ("shape", True), ("shape", (2.0, 3)), ("shape", (-1, 3)),
        ("typestr", 3), ("typestr", "|O"), ("typestr", "nonsense"), ("data", 4096), ("data", None),
        ("data", (4096,)), ("data", ("4096", False)), ("data", (-4096, False)),
        ("strides", (-12, 4)), ("strides", 4), ("strides", (12.0, 4)), ("stream", "1"),
        ("stream", -1),
    ],
)  # fmt: skip
def test_interfaces_with_malformed_fields_are_refused(field: str, wrong: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3).cuda()
    given = SimpleNamespace(__cuda_array_interface__={**x.__cuda_array_interface__, field: wrong})
    with pytest.raises(ValueError, match=rf"\[as_tensor\] .*{field}"):
        torch.as_tensor(given)


@pytest.mark.parametrize("wrong", [None, 3, "x", ()])
def test_interfaces_that_are_no_dict_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"\[as_tensor\] .*as a dict"):
        torch.as_tensor(SimpleNamespace(__cuda_array_interface__=wrong))


def test_interfaces_on_memory_of_no_device_are_refused() -> None:
    x, host = torch.arange(6.0).cuda(), np.arange(6, dtype=np.float32)
    for place in (4096, host.ctypes.data):
        changed = {**x.__cuda_array_interface__, "data": (place, False)}
        with pytest.raises(ValueError, match=r"\[as_tensor\] expected data on a device"):
            torch.as_tensor(SimpleNamespace(__cuda_array_interface__=changed))
    more = {**x.__cuda_array_interface__, "shape": (1 << 40,)}  # it ends elsewhere
    with pytest.raises(ValueError, match=r"\[as_tensor\] expected data on a device"):
        torch.as_tensor(SimpleNamespace(__cuda_array_interface__=more))


@pytest.mark.parametrize("wrong", [3, None, "stream", torch.ones(1)])
def test_what_is_no_stream_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"\[record_stream\] expected a jitgrad.cuda.Stream"):
        torch.ones(3).cuda().record_stream(wrong)


# -- pinned memory ---------------------------------------------------------------------------------
def test_pinned_memory() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    y = x.pin_memory()
    assert y.is_pinned() and not x.is_pinned() and y[1:].is_pinned() and y.pin_memory() is y
    assert torch.equal(x, y) and torch.equal(y.to("cuda", non_blocking=True).cpu(), x)
    with pytest.raises(RuntimeError, match="cannot pin"):
        x.cuda().pin_memory()


@only_simulated
def test_no_page_is_pinned_twice() -> None:
    """The simulated driver refuses it, as cuMemHostRegister does."""
    kept = [torch.full((3,), float(k)).pin_memory() for k in range(40)]
    kept += [torch.zeros(n, dtype=torch.uint8).pin_memory() for n in (0, 4095, 4096, 4097)]
    driver: Any = device.driver()
    assert [x.tolist() for x in kept[:40]] == [[float(k)] * 3 for k in range(40)]
    assert all(
        x.is_pinned() and driver._is_pinned(x.data_ptr(), x.nbytes) for x in kept if x.nbytes
    )
    count = len(driver._pinned)
    del kept
    gc.collect()
    assert len(driver._pinned) == count - 44


def test_loaders_pin_their_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6.0), torch.arange(6))
    loader = torch.utils.data.DataLoader(data, batch_size=3, pin_memory=True)
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        assert torch.equal(x.cuda(non_blocking=True).cpu(), y.float())
    named = torch.utils.data.DataLoader(
        [{"x": torch.ones(2), "name": "a"}] * 2, batch_size=2, pin_memory=True
    )
    (batch,) = named
    assert batch["x"].is_pinned() and batch["name"] == ["a", "a"]


@only_simulated
def test_copies_of_pinned_memory_wait_unless_they_need_not(lazy: SimulatedDriver) -> None:
    pinned = torch.ones(4).pin_memory()
    waits = lazy.waits
    x = pinned.to("cuda", non_blocking=True)
    assert lazy.waits == waits
    pinned.fill_(7)  # what the caller must not do: the copy has not run yet
    assert values(x) == [7, 7, 7, 7]
    waits = lazy.waits
    y = pinned.to("cuda")
    assert lazy.waits == waits + 1
    pinned.fill_(3)
    assert values(y) == [7, 7, 7, 7]
    z = torch.full((4,), 5.0).to("cuda")  # not pinned: the driver has taken it
    assert values(z) == [5, 5, 5, 5]
    temporary = torch.full((4,), 9.0).pin_memory().cuda(non_blocking=True)
    gc.collect()  # the pinned memory is kept until it was read
    assert values(temporary) == [9, 9, 9, 9]


@only_simulated
def test_copies_to_the_host_need_not_wait(lazy: SimulatedDriver) -> None:
    x = torch.arange(6.0).reshape(2, 3).cuda() * 2
    waits = lazy.waits
    y = x.to("cpu", non_blocking=True)
    z = x.T.to("cpu", non_blocking=True)
    into, plain = torch.zeros(2, 3).pin_memory(), torch.zeros(2, 3)
    assert into.copy_(x, non_blocking=True) is into and into._version == 1
    assert lazy.waits == waits and y.is_pinned() and z.is_pinned()
    del x
    torch.cuda.synchronize()
    want = [[0, 2, 4], [6, 8, 10]]
    assert y.tolist() == want == into.tolist() and z.T.tolist() == want
    waits = lazy.waits
    plain.copy_(y.cuda(), non_blocking=True)  # not pinned: this waits
    assert lazy.waits > waits and plain.tolist() == want


@only_simulated
def test_copies_between_devices_do_not_pass_the_host() -> None:
    with driven_by(SimulatedDriver(1 << 28, lazy=True, devices=2)) as driver:
        x = torch.arange(6.0).reshape(2, 3).to("cuda:0") + 1
        waits, copies = driver.waits, driver.peer_copies
        y = x.to("cuda:1")
        z = x.T.to("cuda:1")
        into = torch.zeros(3, 2, device="cuda:1")
        into.copy_(x.T)
        into.T[:, :1].copy_(x[:, 1:2])
        assert driver.waits == waits and driver.peer_copies == copies + 4
        x.fill_(0)  # after the copies: they read what was there
        assert y.device == "cuda:1" and y.tolist() == [[1, 2, 3], [4, 5, 6]]
        assert z.tolist() == y.T.tolist()
        assert into.tolist() == [[2, 5], [2, 5], [3, 6]]


@only_simulated
def test_memory_used_on_another_stream_is_not_reused_before(lazy: SimulatedDriver) -> None:
    side = torch.cuda.Stream()
    x = torch.ones(1000).cuda()
    place = x.data_ptr()
    lazy._do(side.cuda_stream, lambda: None)
    x.record_stream(side)
    del x
    assert torch.ones(1000).cuda().data_ptr() != place
    side.synchronize()
    assert torch.ones(1000).cuda().data_ptr() == place


@only_simulated
def test_streams_are_kept_for_the_next(lazy: SimulatedDriver) -> None:
    """So the stream that is current is one, whoever has let go of its object; and the allocator
    does not take new work for that of a stream which is no more."""
    torch.cuda.set_stream(torch.cuda.Stream())
    try:
        gc.collect()
        current = torch.cuda.current_stream()
        x = torch.ones(3).cuda() + 1
        assert values(x) == [2, 2, 2] and current != torch.cuda.default_stream()
        assert torch.cuda.Stream().cuda_stream == current.cuda_stream  # nobody has it
        two = torch.cuda.Stream(), torch.cuda.Stream()
        assert two[0] != two[1] and torch.cuda.Stream(priority=-1) not in two
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())


# -- when the host waits ---------------------------------------------------------------------------
@only_simulated
def test_the_host_waits_only_where_values_are_read() -> None:
    driver: Any = device.driver()
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(6, 4).cuda(), torch.randn(6, 2).cuda()

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.jit(step, fallback="error")
    for run in (step, compiled):
        for _ in range(3):
            run(x, y)
        before = driver.waits
        for _ in range(3):
            loss = run(x, y)
        assert driver.waits == before
        float(loss)
        loss.cpu()
        loss.tolist()
        repr(loss)
        assert driver.waits == before + 4


@only_simulated
def test_a_graph_with_an_index_to_check_waits_once() -> None:
    driver: Any = device.driver()
    table = torch.randn(5, 3).cuda()
    f = torch.jit(lambda i: table[i] * 2, fallback="error")
    i = torch.tensor([1, 2]).cuda()
    for _ in range(3):
        f(i)
    before = driver.waits
    f(i)
    assert driver.waits == before + 1


# -- CUDA graphs -----------------------------------------------------------------------------------
@only_simulated
def test_a_compiled_function_is_replayed_as_one_graph() -> None:
    driver: Any = device.driver()

    def f(x: Any, w: Any) -> Any:
        y = torch.softmax(x @ w, -1)
        return y.sum(0), y.cumsum(0)

    def counts(run: Any, x: Any, w: Any) -> list[int]:
        found = []
        for _ in range(8):
            before = driver.launches
            run(x, w)  # its results are dropped: the next call gets their memory
            found.append(driver.launches - before)
        return found

    x, w = torch.randn(5, 4).cuda(), torch.randn(4, 6).cuda()
    plain = torch.jit(f, fallback="error")
    replayed = torch.compile(f, mode="reduce-overhead", fullgraph=True)
    kernels = counts(plain, x, w)[-1]
    assert kernels >= 3 and counts(replayed, x, w)[-3:] == [1, 1, 1]
    assert counts(torch.jit(f, cuda_graphs=True), x, w)[-1] == 1
    for _ in range(4):
        x.copy_(torch.randn(5, 4))  # the graph reads what is in the memory now
        for got, want in zip(replayed(x, w), plain(x, w), strict=True):
            assert torch.equal(got.cpu(), want.cpu())
    kept = [replayed(x, w) for _ in range(4)]  # results that are kept are others each time
    assert len({y.data_ptr() for y, _ in kept}) == 4
    x.add_(1)
    for y, _ in kept[1:]:
        assert torch.equal(y.cpu(), kept[0][0].cpu())


@only_simulated
def test_graphs_on_a_training_step_and_at_commit_points() -> None:
    def train(**options: Any) -> list[float]:
        torch.manual_seed(0)
        table = torch.nn.Embedding(7, 4).cuda()
        head = torch.nn.Linear(4, 7).cuda()
        optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.5)
        i = torch.tensor([1, 2, 3, 1]).cuda()

        @torch.jit(fallback="error", **options)
        def step(i: Any) -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(head(table(i)), i)
            loss.backward()
            optimizer.step()
            return loss

        return [float(step(i)) for _ in range(8)]

    assert train(cuda_graphs=True) == train()


# -- several devices -------------------------------------------------------------------------------
@only_simulated
def test_several_devices(lazy: SimulatedDriver) -> None:
    assert torch.cuda.device_count() == 2
    x = torch.ones(3, device="cuda:1")
    assert x.device == "cuda:1" and x.get_device() == 1
    with torch.cuda.device(1):
        assert torch.ones(2).cuda().device == "cuda:1"
    assert torch.ones(2).cuda().device == "cuda:0"
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(3, device="cuda:0")
    there = x.to("cuda:0")
    assert there.device == "cuda:0" and values(there) == [1, 1, 1]
    assert torch.cuda.memory_allocated(1) == 512
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


@only_simulated
def test_gradients_on_several_devices_are_clipped_together(lazy: SimulatedDriver) -> None:
    ps = [torch.ones(2, device=d, requires_grad=True) for d in ("cuda:0", "cuda:1", "cpu")]
    for p in ps:
        p.grad = torch.full((2,), 3.0, device=p.device)
    norm = torch.nn.utils.clip_grad_norm_(ps, 1.0)
    assert norm.device == "cuda:0" and abs(float(norm) - 54**0.5) < 1e-5
    for p in ps:
        assert p.grad is not None and p.grad.device == p.device
        assert abs(float(p.grad[0]) - 3 / 54**0.5) < 1e-5


@only_simulated
def test_files_say_where_tensors_were(lazy: SimulatedDriver) -> None:
    buffer = io.BytesIO()
    x = torch.arange(4.0, device="cuda:1")
    torch.save([x, x[1:], torch.ones(2, device="cuda:0"), torch.zeros(1)], buffer)
    told: list[str] = []

    def keeps(storage: Any, where: str) -> Any:
        told.append(where)
        return storage

    for rule, expected in (
        (None, ["cpu"] * 4), ("cuda:1", ["cuda:1"] * 4),
        ({"cuda:1": "cuda:0"}, ["cuda:0", "cuda:0", "cuda:0", "cpu"]),
        ({"cuda:0": "cuda:1"}, ["cuda:1", "cuda:1", "cuda:1", "cpu"]),
        (lambda storage, where: storage.cuda(0), ["cuda:0"] * 4),
        (lambda storage, where: None, ["cuda:1", "cuda:1", "cuda:0", "cpu"]),
        (keeps, ["cpu"] * 4),
    ):  # fmt: skip
        buffer.seek(0)
        back = torch.load(buffer, map_location=rule)
        assert [str(y.device) for y in back] == expected
        assert values(back[0]) == [0, 1, 2, 3] and values(back[1]) == [1, 2, 3]
        assert back[0]._storage is back[1]._storage
    assert told == ["cuda:1", "cuda:0", "cpu"]
    for wrong, error in (({"cuda:1": "cuda:7"}, RuntimeError), (lambda *_: "cuda:0", TypeError)):
        buffer.seek(0)
        with pytest.raises(error):
            torch.load(buffer, map_location=wrong)


@only_simulated
def test_events_are_of_one_device(lazy: SimulatedDriver) -> None:
    first, second = (torch.cuda.Stream(device=k) for k in (0, 1))
    event, other = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    event.record(first)
    with pytest.raises(RuntimeError, match="does not match recording stream"):
        event.record(second)
    event.record(first)
    other.record(second)
    with pytest.raises(RuntimeError, match="events of one device"):
        event.elapsed_time(other)
