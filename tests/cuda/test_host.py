"""What the library does on the host with tensors on a GPU: copies, or an error that says so. The
device's memory is none of the host's here (runtime/cuda/guarded.py): a read of it ends the process.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.runtime.cuda.arrays import DeviceArray
from jitgrad.runtime.errors import CompileError
from jitgrad.utils import data


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to("cuda")


def _loaded(x: Any, **more: Any) -> Any:
    stream = io.BytesIO()
    torch.save(x, stream)
    stream.seek(0)
    return torch.load(stream, **more)


# -- files -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: [x, x[0]], lambda x: [x[1:], x[:, 1]], lambda x: [x, x.detach()],
        lambda x: list(x.chunk(2)), lambda x: list(x.unbind(1)), lambda x: [x.t(), x.t()[1:]],
        lambda x: [x[1:, 1:], x[2:, 2:]], lambda x: [x.as_strided((3, 2), (4, 1), 2), x[0]],
        lambda x: [x.bfloat16(), x.bfloat16().t()], lambda x: [x[:0], x[:0].t()],
    ],
)  # fmt: skip
def test_tensors_that_share_memory_are_saved(make: Any, where: str) -> None:
    saved = make(on_gpu(4, 4))
    for back in (_loaded(saved, map_location=where), pickle.loads(pickle.dumps(saved))):
        for x, y in zip(saved, back, strict=True):
            assert torch.equal(x.cpu(), y.cpu()) and x.dtype is y.dtype
        for i, x in enumerate(saved):
            same = [x._storage is y._storage for y in saved]
            assert same == [back[i]._storage is y._storage for y in back] or not x.numel()


def test_a_model_with_tied_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
            self.head.weight = self.embed.weight

    model = Tied().cuda()
    state = _loaded(model.state_dict())
    other = Tied().cuda()
    other.load_state_dict(state)
    assert torch.equal(other.head.weight.cpu(), model.embed.weight.cpu())


def test_pickled_tensors_and_modules_come_back_on_the_device() -> None:
    x, model = on_gpu(2, 3), nn.Linear(3, 2).cuda()
    y, again = pickle.loads(pickle.dumps((x, model)))
    assert y.device == x.device and isinstance(y._data, DeviceArray) and torch.equal(x, y)
    assert again.weight.is_cuda and torch.equal(again(y).cpu(), model(x).cpu())


# -- storages --------------------------------------------------------------------------------------
def test_storages() -> None:
    x = torch.arange(6.0, device="cuda")
    assert x.storage().tolist() == x.tolist() and x.storage()[2] == 2.0
    whole = x.untyped_storage()
    here = torch.arange(6.0).untyped_storage()
    assert whole.tolist() == here.tolist() and whole[2] == here[2]
    assert whole.cpu().device == "cpu" and whole.cpu().tolist() == here.tolist()
    part = whole[4:12]
    assert part.device == x.device and part.tolist() == here[4:12].tolist()
    assert x.storage().cpu().tolist() == x.tolist() and x.storage().cpu().device == "cpu"


# -- data ------------------------------------------------------------------------------------------
def test_data_loaders_of_tensors_on_the_device() -> None:
    x, y = on_gpu(5, 2), torch.arange(5, device="cuda")
    for subset in (False, True):
        whole: Any = data.TensorDataset(x, y)
        whole = data.Subset(whole, [0, 1, 2, 3, 4]) if subset else whole
        batches = list(data.DataLoader(whole, batch_size=2))
        assert all(a.device == b.device == x.device for a, b in batches)
        assert torch.equal(torch.cat([a for a, _ in batches]).cpu(), x.cpu())
        assert [b.tolist() for _, b in batches] == [[0, 1], [2, 3], [4]]


def test_collate() -> None:
    for shape in ((), (2,), (0, 3)):
        samples = [torch.ones(shape, device="cuda") * k for k in range(3)]
        joined = data.default_collate([{"x": s} for s in samples])["x"]
        assert joined.device == samples[0].device
        assert torch.equal(joined.cpu(), torch.stack([s.cpu() for s in samples]))


# -- derivatives -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.func.jacrev(torch.exp)(x), lambda x: torch.func.jacfwd(torch.exp)(x),
        lambda x: torch.func.hessian(lambda x: x.exp().sum())(x),
        lambda x: torch.vmap(torch.func.jacrev(torch.exp))(x.reshape(3, 1)),
        lambda x: torch.autograd.functional.jacobian(torch.exp, x, vectorize=True),
        lambda x: torch.autograd.functional.jacobian(torch.exp, x),
        lambda x: torch.autograd.functional.hessian(lambda x: x.exp().sum(), x, vectorize=True),
    ],
)  # fmt: skip
def test_jacobians(f: Any) -> None:
    x = torch.tensor([0.0, 0.5, 1.0])
    got = f(x.cuda())
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), f(x))


# -- testing, export, modules ----------------------------------------------------------------------
def test_assert_close() -> None:
    x = on_gpu(2, 3)
    torch.testing.assert_close(x, x.clone())
    torch.testing.assert_close(x, x.cpu(), check_device=False)
    torch.testing.assert_close({"a": [x.bfloat16()]}, {"a": [x.bfloat16()]})
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(x, x + 1)
    with pytest.raises(AssertionError, match="'device' do not match: cuda:0 != cpu"):
        torch.testing.assert_close(x, x.cpu())


def test_exports_say_what_is_on_the_device() -> None:
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    with pytest.raises(CompileError, match=r"input 0 is on cuda:0; move it with \.cpu\(\)"):
        torch.export(model, x.cuda())
    there = nn.Linear(3, 2).cuda()
    with pytest.raises(CompileError, match="weight is on cuda:0"):
        torch.export(there, x)
    held = x.cuda()
    with pytest.raises(CompileError, match=r"mul reads or gives is on cuda:0.*test_host\.py"):
        torch.export(lambda x: x + (held * 2).cpu(), x)


def test_orthogonal_parametrizations() -> None:
    def made(device: str) -> torch.Tensor:
        layer = nn.Linear(3, 3, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.arange(9.0).reshape(3, 3).sin())
        return nn.utils.parametrizations.orthogonal(layer.to(device)).weight

    w = made("cuda")
    assert w.is_cuda
    torch.testing.assert_close(w.cpu(), made("cpu"))


def test_averaged_models_are_made_on_the_default_device() -> None:
    with torch.device("cuda"):
        averaged = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    assert averaged.n_averaged.is_cuda
    averaged.update_parameters(nn.Linear(2, 2).cuda())
    assert averaged.n_averaged.item() == 1
    here = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2), device="cuda")
    assert here.n_averaged.is_cuda


# -- the array interface ---------------------------------------------------------------------------
class _Given:
    def __init__(self, x: torch.Tensor, **changed: Any) -> None:
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changed}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"strides": (3,)}, "strides of whole elements"), ({"version": 99}, "version 3 at most"),
        ({"strides": (4, 4)}, "strides for shape"),
    ],
)  # fmt: skip
def test_array_interfaces_that_are_refused(changed: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        torch.as_tensor(_Given(on_gpu(4), **changed))


def test_array_interfaces_that_are_not_whole() -> None:
    x = on_gpu(4)
    with pytest.raises(ValueError, match="whole elements"):
        torch.as_tensor(_Given(x, data=(x.data_ptr() + 1, False), shape=(2,)))
    for key in ("shape", "typestr", "data", "version"):
        given = _Given(x)
        del given.__cuda_array_interface__[key]
        with pytest.raises(ValueError, match=key):
            torch.as_tensor(given)


# -- state -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("away", ["input", "running_mean", "running_var", "weight", "bias"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_stay_when_devices_do_not_fit(
    compiled: bool, away: str, momentum: float | None
) -> None:
    layer = nn.BatchNorm1d(3, momentum=momentum).cuda()
    run = torch.jit(layer) if compiled else layer
    x = torch.arange(12.0).reshape(4, 3).cuda()
    run(x)
    run(x)  # later calls, too
    if away == "input":
        x = x.cpu()
    else:
        held = getattr(layer, away)
        held.data = held.data.cpu()
    before = {k: v.cpu().clone() for k, v in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match="same device"):
        run(x)
    for k, v in layer.state_dict().items():
        assert torch.equal(v.cpu(), before[k]), k


@pytest.mark.parametrize("away", ["input", "running_mean"])
def test_statistics_stay_when_the_first_call_fails(away: str) -> None:
    for run in (lambda f: f, torch.jit):
        layer = nn.BatchNorm1d(3).cuda()
        x = torch.arange(12.0).reshape(4, 3)
        if away != "input":
            x, layer.running_mean = x.cuda(), torch.zeros(3)
        with pytest.raises(RuntimeError, match="same device"):
            run(layer)(x)
        assert layer.num_batches_tracked.item() == 0
        assert layer.running_mean.tolist() == [0, 0, 0]
        assert layer.running_var.tolist() == [1, 1, 1]
