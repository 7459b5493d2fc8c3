"""Two GPUs: compiled functions keep to one, what depends on the current one is guarded, streams
bring their device, captures keep to one stream, GradScaler works on each. The driver refuses what
names another device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from other_driver import driven_by

import jitgrad as torch
from jitgrad import nn
from jitgrad.runtime.cuda import arrays, device
from jitgrad.runtime.cuda.driver import CudaError
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.errors import CompileError, FallbackWarning
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="needs two devices")


@pytest.fixture(autouse=True, params=[False, True], ids=["at_once", "lazy"])
def driver(request: Any) -> Iterator[SimulatedDriver]:
    with driven_by(SimulatedDriver(1 << 28, lazy=request.param, devices=2)) as made:
        yield made


def test_the_driver_refuses_memory_and_streams_of_another_device(driver: SimulatedDriver) -> None:
    here = arrays.new((4,), torch.ones(4).numpy().dtype, device.device(0))
    there = arrays.new((4,), here.dtype, device.device(1))
    mine, other = (x.__array_interface__["data"][0] for x in (here, there))
    for call in (
        lambda: driver.copy_within(0, mine, other, 16, 0),
        lambda: driver.copy_within(0, other, mine, 16, 0),
        lambda: driver.copy_in(0, other, mine, 16, 0),
        lambda: driver.copy_out(0, mine, other, 16, 0),
        lambda: driver.fill(0, other, 0, 16, 0),
        lambda: driver.launch(0, None, 1, 1, 0, [("*float32", other)]),
    ):
        with pytest.raises(CudaError, match="is not of device 0"):
            call()
    with pytest.raises(CudaError, match="stream .* is not of device 0"):
        driver.fill(0, mine, 0, 16, driver.new_stream(1, 0))


# -- compiled functions ----------------------------------------------------------------------------
ACROSS: dict[str, Any] = {
    "apart": lambda a, b: ((a * 2).sum(), b * 3),
    "copied": lambda a, b: (a * 2).to("cuda:1").sin() + b,
    "by the host": lambda a, b: ((a * 2).cpu().to("cuda:1"),),
    "made there": lambda a, b: (a * 2, torch.ones(3, device="cuda:1") * 2),
    "written": lambda a, b: (a.add_(1), b.mul_(2)),
    "written across": lambda a, b: b.copy_(a * 2),
    "drawn": lambda a, b: (a * 2, torch.rand(3, device="cuda:1")),
}  # fmt: skip


def _given() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(3.0, device="cuda:0"), torch.arange(3.0, device="cuda:1")


def _places(x: Any, driver: SimulatedDriver) -> list[Any]:
    results = x if isinstance(x, tuple) else (x,)
    assert [driver.device_of(r.data_ptr()) for r in results] == [r.device.index for r in results]
    return [(str(r.device), r.tolist()) for r in results]


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}], ids=["plain", "graphs"])
@pytest.mark.parametrize("name", ACROSS)
def test_functions_over_two_gpus_run_eagerly_there(
    name: str, options: Any, driver: SimulatedDriver
) -> None:
    f = ACROSS[name]
    args, given = _given(), _given()
    jitted = torch.jit(f, **options)
    torch.manual_seed(0)
    expected = [_places(f(*args), driver) for _ in range(3)]
    torch.manual_seed(0)
    with pytest.warns(FallbackWarning, match=r"on one GPU; got some on cuda:\d and some on cuda"):
        got = [_places(jitted(*given), driver)]
    got += [_places(jitted(*given), driver) for _ in range(2)]
    assert got == expected
    assert [x.tolist() for x in given] == [x.tolist() for x in args]
    with pytest.raises(CompileError, match=r"on one GPU; .*test_two_gpus\.py:\d+"):
        torch.jit(f, fallback="error", **options)(*_given())


def test_state_of_another_gpu_and_branches(driver: SimulatedDriver) -> None:
    w = torch.arange(3.0, device="cuda:1")

    def f(a: Any) -> Any:
        if a.sum() > 1:
            return a.to("cuda:1") * w
        return a * 2

    with pytest.warns(FallbackWarning, match="on one GPU"):
        jitted = torch.jit(f)
        for k in (1.0, 0.0, 1.0, 0.0, 1.0):
            a = torch.arange(3.0, device="cuda:0") * k
            assert _places(jitted(a), driver) == _places(f(a), driver)


def test_segments_over_two_gpus(driver: SimulatedDriver) -> None:
    seen: list[str] = []

    def f(a: Any, b: Any) -> Any:
        c = (a * 2).to("cuda:1") + b
        seen.append(str(c.tolist()))
        return c.sin(), a + 1

    with pytest.warns(FallbackWarning, match="on one GPU"):
        jitted = torch.jit(f)
        got = [_places(jitted(*_given()), driver) for _ in range(4)]
    assert got == [_places(f(*_given()), driver)] * 4 and len(set(seen)) == 1


@pytest.mark.parametrize("places", [("cuda:0", "cuda:1"), ("cuda:1", "cuda:1"), ("cuda:1", "cpu")])
def test_models_over_two_devices_train(places: tuple[str, str]) -> None:
    def losses(first: str, second: str) -> tuple[list[float], int]:
        torch.manual_seed(0)
        a = nn.Linear(6, 8).to(first)
        b = nn.Sequential(nn.ReLU(), nn.Linear(8, 3)).to(second)
        optimizer = torch.optim.Adam([*a.parameters(), *b.parameters()], lr=0.1)
        x, y = torch.randn(8, 6).to(first), torch.randint(0, 3, (8,)).to(second)

        @torch.jit(fallback="silent")
        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(b(a(x).to(second)), y)
            loss.backward()
            optimizer.step()
            return loss

        return [step(x, y).item() for _ in range(4)], step.stats.hits

    got, hits = losses(*places)
    assert got == pytest.approx(losses("cpu", "cpu")[0], rel=1e-5)
    assert hits == (0 if places == ("cuda:0", "cuda:1") else 3)


def test_results_on_the_tape_of_another_gpu() -> None:
    a = torch.arange(3.0, device="cuda:0", requires_grad=True)
    jitted = torch.jit(lambda a: (a * a).to("cuda:1").sum(), fallback="silent")
    for _ in range(3):
        (grad,) = torch.autograd.grad(jitted(a), a)
        assert grad.device == "cuda:0" and grad.tolist() == [0, 2, 4]


def test_lowering_for_two_gpus_is_refused() -> None:
    specs = [torch.TensorSpec((3,), device=f"cuda:{k}") for k in range(2)]
    lowered = torch.jit(lambda a, b: (a * 2, b * 3)).lower(*specs)
    with pytest.raises(CompileError, match="on one GPU"):
        lowered.ptx()


def test_what_is_not_used_chooses_no_gpu(driver: SimulatedDriver) -> None:
    f = torch.jit(lambda a, b: b * 2, fallback="error")
    for _ in range(3):
        assert _places(f(*_given()), driver) == [("cuda:1", [0.0, 2.0, 4.0])]


# -- the current device ----------------------------------------------------------------------------
def _in_context(x: Any) -> Any:
    with torch.cuda.device(1):
        return torch.ones(2, device="cuda") + x.cuda()


def _by_branch(x: Any) -> Any:
    return torch.ones(2, device="cuda") if x.sum() > 1 else x


CURRENT: dict[str, Any] = {
    "current_device": lambda x: x * (torch.cuda.current_device() + 1),
    "current_stream": lambda x: x * (torch.cuda.current_stream().device_index + 1),
    "factory": lambda x: torch.ones(2, device="cuda"),
    "cuda": lambda x: x.cuda() * 2,
    "to": lambda x: x.to("cuda") * 2,
    "branch": _by_branch,
    "context": _in_context,
    "memory": lambda x: x * torch.cuda.memory_allocated(),
    "capturing": lambda x: x * torch.cuda.is_current_stream_capturing(),
}  # fmt: skip


@pytest.mark.parametrize("name", CURRENT)
def test_what_asks_for_the_current_device_is_guarded(name: str, driver: SimulatedDriver) -> None:
    f, x = CURRENT[name], torch.ones(2)
    jitted = torch.jit(f)
    kept = []
    for k in (0, 0, 1, 1, 0, 1):
        with torch.cuda.device(k):
            got, expected = jitted(x), f(x)
            assert got.device == expected.device and got.tolist() == expected.tolist()
        kept.append(torch.ones(200, device="cuda"))  # memory_allocated changes
    assert jitted.stats.hits + jitted.stats.segments > 0


def test_what_does_not_ask_is_recorded_once() -> None:
    f = torch.jit(lambda x: x * 2 + torch.ones(2, device="cuda:1"), fallback="error")
    for k in (0, 1, 0, 1):
        with torch.cuda.device(k):
            f(torch.ones(2, device="cuda:1"))
    assert (f.stats.traces, f.stats.hits) == (1, 3)


def test_a_call_that_sets_the_current_device_sets_it_each_time() -> None:
    def f(x: Any) -> Any:
        torch.cuda.set_device(1)
        return x * 2

    jitted = torch.jit(f)
    for before in (1, 1, 0, 0, 1):
        torch.cuda.set_device(before)
        jitted(torch.ones(2))
        assert torch.cuda.current_device() == 1
    torch.cuda.set_device(0)


# -- streams ---------------------------------------------------------------------------------------
def test_streams_bring_their_device() -> None:
    there, here = torch.cuda.Stream(device=1), torch.cuda.Stream(device=0)
    mine = torch.cuda.current_stream(0)
    for context in (torch.cuda.stream(there), there):
        with context:
            assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == there
            assert torch.ones(2, device="cuda").device == torch.ones(2).cuda().device == "cuda:1"
            with torch.cuda.stream(here), torch.cuda.stream(None):
                assert torch.cuda.current_stream() == here
            assert torch.cuda.current_stream() == there
            torch.cuda.set_stream(here)
        assert torch.cuda.current_device() == 0 and torch.cuda.current_stream() == mine
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
    torch.cuda.set_stream(there)
    assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == there
    torch.cuda.set_stream(torch.cuda.default_stream(1))
    torch.cuda.set_stream(torch.cuda.default_stream(0))
    assert torch.cuda.current_device() == 0


def test_events_are_of_one_device() -> None:
    there, here = torch.cuda.Stream(device=1), torch.cuda.Stream(device=0)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record(there)
    with pytest.raises(RuntimeError, match="Event device cuda:1 does not match"):
        first.record(here)
    last.record(here)
    with pytest.raises(RuntimeError, match="events of one device"):
        first.elapsed_time(last)


# -- GradScaler ------------------------------------------------------------------------------------
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
@pytest.mark.parametrize("bad", [None, 1], ids=["finite", "inf second"])
@pytest.mark.parametrize("second", ["cuda:1", "cpu"])
def test_the_scaler_looks_at_gradients_on_all_devices(second: str, bad: Any, jitted: bool) -> None:
    def trained(*places: str) -> Any:
        parameters = [torch.ones(3, device=d, requires_grad=True) for d in places]
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        scales = []

        def step(factors: Any) -> None:
            optimizer.zero_grad()
            terms = [(p * f.to(p.device)).sum() for p, f in zip(parameters, factors, strict=True)]
            scaler.scale(terms[0] + terms[1].to(places[0])).backward()
            scaler.step(optimizer)
            scaler.update()

        run = torch.jit(step, fallback="silent") if jitted else step
        for i in range(4):
            factors = [torch.tensor(float("inf") if i == 2 and k == bad else 2.0) for k in range(2)]
            run(factors)
            scales.append(scaler.get_scale())
        return scales, [p.tolist() for p in parameters]

    got, expected = trained("cuda:0", second), trained("cpu", "cpu")
    assert got[0] == expected[0] == [8.0, 8.0, *([8.0] * 2 if bad is None else [4.0] * 2)]
    assert got[1] == [pytest.approx(p, rel=1e-6) for p in expected[1]]


def test_the_scaler_with_an_optimizer_on_each_gpu() -> None:
    parameters = [torch.ones(3, device=f"cuda:{k}", requires_grad=True) for k in range(2)]
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in parameters]
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    for factor in (1.0, float("inf")):
        total = parameters[0].sum() + (parameters[1] * factor).sum().to("cuda:0")
        scaler.scale(total).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    assert scaler.get_scale() == 4.0
    assert [p.tolist() for p in parameters] == [[pytest.approx(x)] * 3 for x in (0.8, 0.9)]


# -- captures --------------------------------------------------------------------------------------
def _marked(y: Any) -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


REFUSED: dict[str, tuple[Any, str]] = {
    "copy": (lambda y: y.to("cuda:1"), "a copy between devices"),
    "copy into": (lambda y: torch.zeros(4, device="cuda:1").copy_(y), "a copy between devices"),
    "copy from": (lambda y: y.copy_(torch.zeros(4, device="cuda:1")), "a copy between devices"),
    "item": (lambda y: y.sum().item(), "a look at values"),
    "synchronize": (lambda y: torch.cuda.synchronize(), "cuda.synchronize"),
    "stream": (lambda y: torch.cuda.current_stream().synchronize(), "Stream.synchronize"),
    "query": (lambda y: torch.cuda.current_stream().query(), "Stream.query"),
    "event": (_marked, "an event that was recorded outside of a capture"),
    "empty_cache": (lambda y: torch.cuda.empty_cache(), "cuda.empty_cache"),
    "nested": (lambda y: _replayed(None), "another capture"),
    "switch": (lambda y: torch.cuda.set_stream(torch.cuda.Stream()), "work on another stream"),
    "waits": (
        lambda y: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()),
        "an event that was recorded outside of a capture",
    ),
}  # fmt: skip


def _replayed(body: Any) -> list[float]:
    x = torch.ones(4, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = x * 2 + 1
        if body is not None:
            body(y)
    x.fill_(5)
    g.replay()
    found: list[float] = y.tolist()
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused_and_the_state_is_usable(name: str) -> None:
    body, text = REFUSED[name]
    with pytest.raises(RuntimeError, match=rf"{text}[^(]*.*test_two_gpus\.py:\d+"):
        _replayed(body)
    assert torch.cuda.current_device() == 0
    assert not torch.cuda.is_current_stream_capturing()
    assert _replayed(None) == [11.0] * 4


def test_out_of_memory_in_a_capture_says_so() -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match="while work is captured") as found:
        _replayed(lambda y: torch.zeros(1 << 28, device="cuda"))
    assert "test_two_gpus.py:" in str(found.value)
    assert _replayed(None) == [11.0] * 4


# -- errors of the driver --------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}], ids=["plain", "graphs"])
def test_a_launch_that_fails_names_the_ops_and_the_line(
    options: Any, driver: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = torch.jit(lambda x: (x.sin() + x.cos()).sum() * 2, fallback="error", **options)
    x = torch.arange(6.0, device="cuda")
    f(x)

    def fail(*args: Any) -> None:
        raise CudaError("[cuda] cuLaunchKernel: too many resources (701)")

    with monkeypatch.context() as patched:
        patched.setattr(driver, "launch", fail)
        for call in (f, lambda x: x.tan()):
            with pytest.raises(CudaError, match=r"\(701\); it is a kernel of .*(sin|tan)") as found:
                call(x)
        assert found.type is CudaError
        with pytest.raises(CudaError, match=r"sin.* \(at .*test_two_gpus\.py:\d+"):
            f(x)
    assert f(x).item() == pytest.approx(((x.cpu().sin() + x.cpu().cos()).sum() * 2).item())
