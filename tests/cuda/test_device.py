"""Tensors on device="cuda", on Numba's CUDA simulator: eager code, jit, copies, cuda's names."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.compiler.ops import OPS
from jitgrad.runtime.cuda import arrays
from jitgrad.runtime.errors import CompileError, InternalError


def on_gpu(*shape: int, **more: Any) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape).to("cuda", **more)


# -- devices ---------------------------------------------------------------------------------------
def test_the_device() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() >= 1
    assert torch.cuda.current_device() == 0 and torch.cuda.get_device_name()
    assert torch.cuda.get_device_capability() >= (7, 5)
    assert torch.device("cuda") == "cuda" and torch.device("cuda").index is None
    assert torch.device("cuda", 0) == torch.device("cuda:0") == torch.device(0)
    assert repr(torch.device("cuda:0")) == "device(type='cuda', index=0)"
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    far = torch.device("cuda:99")  # can be named
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device=far)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d), lambda d: torch.tensor([1, 2], device=d),
        lambda d: torch.arange(5, device=d), lambda d: torch.randn(3, device=d),
        lambda d: torch.full((2,), 7, device=d), lambda d: torch.eye(3, device=d),
        lambda d: torch.linspace(0, 1, 4, device=d), lambda d: torch.ones(2).to(d),
        lambda d: torch.ones(2).cuda(), lambda d: torch.empty_like(torch.ones(2), device=d),
        lambda d: torch.as_tensor(np.ones(3), device=d), lambda d: torch.randint(5, (3,), device=d),
    ],
)  # fmt: skip
def test_tensors_are_made_on_it_with_the_values_of_the_cpu(make: Any) -> None:
    torch.manual_seed(4)
    x = make("cuda")
    torch.manual_seed(4)
    want = torch.ones(2) if make.__code__.co_names[-1] == "cuda" else make("cpu")
    assert x.is_cuda and not x.is_cpu and x.device == "cuda:0" and x.get_device() == 0
    assert isinstance(x._data, arrays.DeviceArray)
    assert torch.equal(x.cpu(), want) and x.dtype is want.dtype and not x.cpu().is_cuda


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.nonzero(), lambda x: x[0, 1].nonzero(), lambda x: x.nonzero(as_tuple=True),
        lambda x: torch.where(x > 0), lambda x: x.unique(dim=0),
        lambda x: x.unique(return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x, return_counts=True),
        lambda x: torch.bincount(x.long().reshape(-1)),
        lambda x: torch.bincount(x.long().reshape(-1), x.reshape(-1)),
        lambda x: torch.repeat_interleave(x.long().reshape(-1)),
        lambda x: torch.tril_indices(3, 2, device=x.device),
        lambda x: torch.triu_indices(3, 2, device=x.device),
        lambda x: x.new_tensor([1, 2]), lambda x: x.new_tensor(torch.ones(2)),
    ],
)  # fmt: skip
def test_results_whose_size_is_read_are_on_it(f: Any) -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
    for got, want in zip(_as_list(f(x.cuda())), _as_list(f(x)), strict=True):
        assert got.device == "cuda:0" and want.device == "cpu"
        assert torch.equal(got.cpu(), want) and got.dtype is want.dtype


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def test_like_and_new_stay_on_it() -> None:
    x = on_gpu(2, 3)
    for y in (torch.zeros_like(x), torch.full_like(x, 2.0), x.new_ones(3), torch.rand_like(x)):
        assert y.device == x.device
    assert x.to(torch.float64).device == x.device and x.to("cpu").device == "cpu"
    assert x.to(x.device) is x and x.to(torch.zeros(1, dtype=torch.int32)).dtype is torch.int32


def test_values_are_read_by_copies_only() -> None:
    x = on_gpu(2, 2)
    assert x.sum().item() == 10 and x.tolist() == [[1, 2], [3, 4]] and float(x[1, 1]) == 4
    assert bool((x > 0).all()) and "device='cuda:0'" in repr(x)
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    assert x.numpy(force=True).tolist() == x.tolist()
    for read in (lambda d: d + 1, np.sum, lambda d: d.tolist(), bool, np.isnan):
        with pytest.raises(InternalError, match="were to be read by the host"):
            read(x._data)


def test_mixed_devices_are_an_error_but_for_numbers() -> None:
    x = on_gpu(2, 2)
    with pytest.raises(RuntimeError, match=r"\[add\] Expected all .* cpu and cuda:0"):
        x + torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2)(x)
    with pytest.raises(RuntimeError, match=r"\[add\] Expected all .* cpu and cuda:0"):
        torch.add(x, 1, out=torch.ones(2, 2))
    assert (x * torch.tensor(2.0)).tolist() == [[2, 4], [6, 8]]


def test_what_only_the_cpu_has_says_so() -> None:
    with pytest.raises(CompileError, match="runs on the CPU only"):
        torch.linalg.inv(on_gpu(2, 2))
    nothing = torch.zeros(2, 0, 0, device="cuda")  # of two matrices without elements
    assert torch.linalg.inv(nothing).shape == (2, 0, 0)
    with pytest.raises(CompileError, match="runs on the CPU only"):
        torch.linalg.cholesky_ex(nothing)  # which has two numbers of what happened


# -- eager -----------------------------------------------------------------------------------------
def test_views_share_memory_and_writes_show() -> None:
    x = on_gpu(3, 4)
    first = x.data_ptr()
    row, column, turned = x[1], x[:, 2], x.T
    assert row.data_ptr() == first + 16 and turned.data_ptr() == first
    row.zero_()
    column += 10
    x[0, 0] = 5
    x[x > 20] = -1
    want = torch.arange(1.0, 13.0).reshape(3, 4)
    want[1] = 0
    want[:, 2] += 10
    want[0, 0] = 5
    want[want > 20] = -1
    assert torch.equal(x.cpu(), want) and torch.equal(turned.cpu(), want.T)
    assert torch.equal(turned.contiguous().cpu(), want.T)
    assert torch.equal(turned.reshape(-1).cpu(), want.T.reshape(-1))
    assert torch.equal(x.expand(2, 3, 4)[1].cpu(), want)


@pytest.mark.parametrize("name", sorted(name for name, op in OPS.items() if op.view))
def test_every_view_of_the_cpu_is_one(name: str) -> None:
    for sample in OPS[name].samples():
        x = torch.tensor(np.array(sample.args[0], order="C"))
        there = x.cuda()
        want, got = OPS[name](x, **sample.attrs), OPS[name](there, **sample.attrs)
        assert got.stride() == want.stride() and torch.equal(got.cpu(), want)
        shared = np.shares_memory(got._data, there._data)
        assert shared == np.shares_memory(want._data, x._data), sample.attrs


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].copy_(x[:-1]), lambda x: x[:-1].copy_(x[1:]),
        lambda x: x.copy_(x.flip(0)), lambda x: x.view(3, 3).copy_(x.view(3, 3).T),
        lambda x: x.view(3, 3).T.copy_(x.view(3, 3)), lambda x: x[::2].copy_(x[4:]),
        lambda x: x[1:].copy_(x[0]), lambda x: x[::2].copy_(x[::2]), lambda x: x.copy_(x),
        lambda x: x[3:].add_(x[:-3]), lambda x: x.__setitem__(slice(1, None), x[:-1]),
        lambda x: torch.add(x[1:], 1, out=x[:-1]), lambda x: x.set_(x[1:4]),
    ],
)  # fmt: skip
def test_writes_of_what_is_read(write: Any) -> None:
    """Also by a driver whose copies within memory must not overlap."""
    want, x, y = torch.arange(9.0), on_gpu(9) - 1, on_gpu(9) - 1
    write(want)
    write(x)
    assert torch.equal(x.cpu(), want)
    f = torch.jit(lambda y: (write(y), y * 1)[1], fallback="warn")
    for _ in range(3):
        y = on_gpu(9) - 1
        got = f(y)
    assert torch.equal(got.cpu(), want) and torch.equal(y.cpu(), want)


@pytest.mark.parametrize("jit", [False, True])
def test_indices_and_masks_may_be_on_the_cpu(jit: bool) -> None:
    i, mask = torch.tensor([2, 0, -1]), torch.tensor([True, False, True])

    def f(x: Any, i: Any, mask: Any) -> Any:
        y = x * 2
        y[i, 1] = -1
        y[mask] += 5
        y[:, mask[:2]] = 0
        return x[i], x[i, i.clamp(0, 1)], x[:, i.clamp(0, 1)], y

    run = torch.jit(f, fallback="error") if jit else f
    x = torch.arange(6.0).reshape(3, 2)
    for _ in range(3):
        for got, want in zip(run(x.cuda(), i, mask), f(x, i, mask), strict=True):
            assert got.device == "cuda:0" and torch.equal(got.cpu(), want)
    assert torch.equal(x.cuda()[mask].cpu(), x[mask])
    with pytest.raises(RuntimeError, match="on the same device"):
        _ = x[i.cuda()]


def _fill_parts(x: Any, y: Any) -> Any:
    x = x * 1
    x[1:3] = 5
    x[0] = torch.tensor([2.0, 3.0])
    x[:, 1] = y
    x[-1].copy_(y[:2])
    return x


@pytest.mark.parametrize("there", ["cuda", "cpu"])
def test_writes_of_what_is_on_another_device(there: str) -> None:
    """Also in compiled code; gradients go back to where they belong."""
    here = "cpu" if there == "cuda" else "cuda"
    found = []
    for devices, f in (
        (("cpu", "cpu"), _fill_parts), ((there, here), _fill_parts),
        ((there, here), torch.jit(_fill_parts, fallback="error")),
    ):  # fmt: skip
        x = torch.ones(5, 2).to(devices[0]).requires_grad_()
        y = torch.arange(5.0).to(devices[1]).requires_grad_()
        for _ in range(3):
            out = f(x, y)
        (out * torch.arange(10.0).reshape(5, 2).to(devices[0])).sum().backward()
        assert out.device.type == x.grad.device.type == devices[0] and y.grad.device == y.device
        found.append([t.detach().cpu().tolist() for t in (out, x.grad, y.grad)])
    assert found[1] == found[0] == found[2]


def test_copies() -> None:
    x = on_gpu(2, 3)
    y, z = x.clone(), copy.deepcopy(x)
    x.zero_()
    assert y.sum() == z.sum() == 21 and z.device == "cuda:0"
    host = torch.zeros(2, 3)
    host.copy_(y)
    assert host.sum() == 21
    x.copy_(host.T.reshape(2, 3))
    assert torch.equal(x.cpu(), host.T.reshape(2, 3))
    buffer = io.BytesIO()
    torch.save({"x": x}, buffer)
    buffer.seek(0)
    for where in ("cuda", torch.device("cuda:0"), {"cpu": "cuda:0"}, None, "cpu"):
        buffer.seek(0)
        back = torch.load(buffer, map_location=where)["x"]
        assert torch.equal(back.cpu(), x.cpu())
        assert back.device == ("cpu" if where in (None, "cpu") else "cuda:0")


def test_gradients_go_back_to_the_cpu() -> None:
    w = torch.ones(3, requires_grad=True)
    x = on_gpu(3, 3)
    ((x @ w.to("cuda")) ** 2).sum().backward()
    assert w.grad is not None and w.grad.device == "cpu"
    v = torch.ones(3, requires_grad=True)
    ((x.cpu() @ v) ** 2).sum().backward()
    torch.testing.assert_close(w.grad, v.grad)


# -- training --------------------------------------------------------------------------------------
def _cnn() -> Any:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(16, 3),
    )  # fmt: skip
    return model, torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2])


def _transformer() -> Any:
    model = nn.Sequential(
        nn.Embedding(7, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
        nn.Flatten(0, 1), nn.Linear(8, 7),
    )  # fmt: skip
    x = torch.tensor([[1, 2, 3], [4, 5, 6]])
    return model, x, x.flatten()


def _train(make: Any, optimizer: Any, device: str, jit: bool) -> list[float]:
    torch.manual_seed(0)
    model, x, y = make()
    model, x, y = model.to(device), x.to(device), y.to(device)
    made = optimizer(model.parameters())
    torch.manual_seed(1)

    def step(x: Any, y: Any) -> Any:
        made.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        return loss

    run = torch.jit(step, fallback="error") if jit else step
    return [float(run(x, y)) for _ in range(3)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("make", [_cnn, _transformer])
def test_training_gives_the_losses_of_the_cpu(make: Any, jit: bool) -> None:
    def adamw(parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2)

    want = _train(make, adamw, "cpu", False)
    np.testing.assert_allclose(_train(make, adamw, "cuda", jit), want, rtol=1e-5)


def _lstm(net: Any, x: Any) -> Any:
    y, (h, c) = net(x)
    return y, h, c


def _packed(net: Any, x: Any) -> Any:
    y, h = net(nn.utils.rnn.pack_padded_sequence(x, [5, 3]))
    return nn.utils.rnn.pad_packed_sequence(y)[0], h


def _ctc(net: Any, x: Any) -> Any:
    targets = torch.tensor([[1, 2], [3, 3]], device=x.device)
    return (nn.functional.ctc_loss(net(x).log_softmax(-1), targets, (5, 4), (2, 2)),)


def _scans(net: Any, x: Any) -> Any:
    last, all_ = torch.scan(lambda c, a: (c * 0.5 + a, c.sin()), torch.zeros_like(x[0]), x)
    back, none = torch.scan(lambda c, a: (c * 2, c + a), x[0], x[:0], reverse=True)
    return last, all_, back, none


def _chooses(net: Any, x: Any) -> Any:
    (big,) = torch.while_loop(lambda c: c.abs().sum() < 90, lambda c: (c * 2,), (x,))
    return big, torch.cond(x.sum() > 0, lambda a: a.exp(), lambda a: -a, (x,))


@pytest.mark.parametrize(
    ("f", "make"),
    [
        (_lstm, lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True)),
        (_packed, lambda: nn.GRU(4, 3)), (_ctc, lambda: nn.Linear(4, 4)),
        (_scans, nn.Identity), (_chooses, nn.Identity),
    ],
)  # fmt: skip
def test_control_flow_is_step_by_step(f: Any, make: Any) -> None:
    torch.manual_seed(1)
    x, net = torch.randn(5, 2, 4), make()
    found = []
    for device, run in (("cpu", f), ("cuda", f), ("cuda", torch.jit(f, fallback="warn"))):
        model = copy.deepcopy(net).to(device)
        for _ in range(1 if run is f else 3):
            model.zero_grad()
            here = x.clone().to(device).requires_grad_()
            out = run(model, here)
            sum(y.sum() for y in out).backward()
        assert all(y.device == here.device for y in out)
        grads = [p.grad for p in model.parameters()]
        found.append([y.detach().cpu() for y in (*out, here.grad, *grads)])
    for got in found[1:]:
        torch.testing.assert_close(got, found[0])
    assert run.stats.hits or f is _packed  # lengths in a tensor: eager


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_is_of_the_device_it_names(dtype: Any, jit: bool) -> None:
    def train(device: str) -> tuple[list[float], float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)
        x = torch.randn(5, 4).to(device)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                y = model(x)
                loss = y.float().pow(2).mean()
            assert y.dtype is dtype
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        run = torch.jit(step, fallback="error") if jit else step
        return [float(run(x)) for _ in range(4)], scaler.get_scale()

    (losses, scale), (want, same) = train("cuda"), train("cpu")
    np.testing.assert_allclose(losses, want, rtol=1e-2)
    assert scale == same == 256
    x = on_gpu(2, 2)
    with torch.autocast("cpu"):
        assert (x @ x).dtype is torch.float32 and (x.cpu() @ x.cpu()).dtype is torch.bfloat16
    with torch.autocast("cuda", dtype=dtype):
        assert (x @ x).dtype is dtype and (x.cpu() @ x.cpu()).dtype is torch.float32


def test_jit_runs_kernels_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    @torch.jit(fallback="error")
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(torch.relu(x @ w), -1), x.sum()

    x, w = on_gpu(3, 4), on_gpu(4, 5) / 20
    f(x, w)
    f(x, w)
    driver: Any = torch.runtime.cuda.device.device().driver
    launched, real = [], driver.launch
    monkeypatch.setattr(driver, "launch", lambda *args: (launched.append(args), real(*args))[1])
    y, total = f(x, w)
    assert len(launched) == f.specialisations[0].compiled.report.kernels == 3
    assert y.device == total.device == "cuda:0" and total.item() == 78
    torch.testing.assert_close(y.cpu(), torch.softmax(torch.relu(x.cpu() @ w.cpu()), -1))
    assert f.stats.hits >= 1


def test_code_that_looks_at_values_and_checks() -> None:
    x = on_gpu(2, 3)

    @torch.jit(fallback="error")
    def branches(x: Any) -> Any:
        return x * 2 if x.sum() > 3 else x

    @torch.jit
    def reads(x: Any) -> Any:
        return x * x.sum().item()

    @torch.jit(fallback="error")
    def listed(x: Any) -> Any:
        return x * 2 if (x[0] > 1).tolist() == [False, True, True] else x * -3

    checked = torch.jit(lambda x: (x * 2).softmax(-1), check=True)
    for _ in range(3):
        assert branches(x).sum().item() == 42 and branches(-x).sum().item() == -21
        assert reads(x).sum().item() == 21 * 21
        assert listed(x).sum().item() == 42 and listed(-x).sum().item() == 63
        assert checked(x).sum().item() == pytest.approx(2)
    y = x.detach().requires_grad_()
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan"):
        ((y - y).sqrt() * 0).sum().backward()


def test_sizes_that_change_are_one_compiled_function() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).cuda()

    @torch.jit(fallback="error")
    def f(i: Any) -> Any:
        x = model(i) + torch.arange(i.shape[1], device=i.device)[:, None]
        return torch.softmax(x.reshape(-1, 3), -1).sum(0)

    for size in (3, 5, 4, 6, 5):
        i = torch.arange(2 * size).reshape(2, size) % 7
        here = copy.deepcopy(model).cpu()
        want = torch.softmax((here(i) + torch.arange(size)[:, None]).reshape(-1, 3), -1).sum(0)
        torch.testing.assert_close(f(i.cuda()).cpu(), want)
    assert f.stats.traces <= 2 and f.stats.hits >= 2


def test_segments_write_on_the_device() -> None:
    x, total = on_gpu(2, 3), torch.zeros(3, device="cuda")
    seen = []

    @torch.jit
    def f(x: Any) -> Any:
        total.add_(x.sum(0))
        seen.append(float(total[0]))
        return x.T * total.sum()

    for n in range(4):
        y = f(x)
        assert seen[-1] == 5 * (n + 1) and y.device == "cuda:0"
        assert torch.equal(y.cpu(), x.cpu().T * 21 * (n + 1))


def test_a_bad_index_in_compiled_code_leaves_state_as_it_was() -> None:
    table = torch.zeros(4, 2, device="cuda")

    @torch.jit(fallback="error")
    def f(i: Any) -> Any:
        table.add_(1)
        return table[i]

    f(torch.tensor([1, 2], device="cuda"))
    f(torch.tensor([1, 2], device="cuda"))
    with pytest.raises(IndexError, match="out of"):
        f(torch.tensor([1, 9], device="cuda"))
    assert table.cpu().sum() == 2 * 8


# -- memory and streams ----------------------------------------------------------------------------
def test_memory_is_counted_and_given_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    x = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated() == before + 4096
    torch.cuda.reset_peak_memory_stats()
    del x
    assert torch.cuda.memory_allocated() == before < torch.cuda.max_memory_allocated()
    assert "allocated_bytes" in torch.cuda.memory_summary()
    reserved = sum(s["total_size"] for s in torch.cuda.memory_snapshot())
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] == reserved
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1 << 40, device="cuda"), lambda: torch.zeros(1 << 40, device="cuda"),
        lambda: torch.full((1 << 40,), 2, device="cuda"),
        lambda: torch.arange(1 << 40, device="cuda"), lambda: torch.rand(1 << 40, device="cuda"),
        lambda: torch.ones_like(on_gpu(1).expand(1 << 40)),
    ],
)  # fmt: skip
def test_tensors_are_not_made_by_way_of_the_host(make: Any) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate"):
        make()


def test_attributes_keep_the_sign_of_zero() -> None:
    x = on_gpu(3) - 5
    for f in (
        lambda k: torch.full((2,), k, device="cuda"),
        lambda k: torch.nn.functional.pad(x, (1, 1), value=k),
        lambda k: torch.nn.functional.hardtanh(x, k, 1.0),
    ):
        for k in (0, -0.0, 0.0, -0.0):
            assert torch.signbit(f(k))[0].item() == (str(k) == "-0.0")
        with torch.profiler.profile():  # kernels that are timed are kept by the same rule
            for k in (0.0, -0.0, 0, -0.0):
                assert torch.signbit(f(k))[0].item() == (str(k) == "-0.0")


def test_running_out_of_memory_says_who_holds_it() -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 400.00 GiB for clone"):
        torch.empty(1, device="cuda").expand(100 << 30).clone()


def test_streams_and_events() -> None:
    side = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        start.record()
        x = on_gpu(4) * 2
        end.record()
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != side
    torch.cuda.current_stream().wait_stream(side)
    side.synchronize()
    assert start.elapsed_time(end) > 0 and end.query() and side.query()
    assert x.tolist() == [2, 4, 6, 8]
    torch.cuda.synchronize()


def test_what_streams_and_events_say_of_themselves() -> None:
    here = torch.device("cuda", 0)
    urgent = torch.cuda.Stream(priority=-1)
    assert (urgent.device, urgent.priority) == (here, -1)
    assert urgent.stream_id == urgent.cuda_stream != torch.cuda.Stream().stream_id
    assert torch.cuda.ExternalStream(urgent.cuda_stream) == urgent
    assert torch.cuda.ExternalStream(urgent.cuda_stream).priority == -1
    assert torch.cuda.default_stream().priority == 0
    event = torch.cuda.Event()
    assert (event.device, event.cuda_event) == (None, 0)
    event.record(urgent)
    assert event.device == here and event.cuda_event > 0
    with pytest.raises(RuntimeError, match="not shared with other processes"):
        event.ipc_handle()


def test_the_generator_of_devices() -> None:
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == torch.initial_seed() == 7
    assert len(torch.cuda.default_generators) == torch.cuda.device_count()
    assert torch.cuda.default_generators[0] is torch.default_generator
