"""Factories: where they make tensors, by `device`, by the default device, and in pinned memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import jitgrad as torch
from jitgrad import nn

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "full": ((2,), 1.0), "arange": (3,), "eye": (2,), "linspace": (0, 1, 3),
    "logspace": (0, 1, 3), "randint": (3, (2,)), "range": (0, 3), "tensor": ([1.0],),
    "as_tensor": ([1.0],), "asarray": ([1.0],), "empty_strided": ((2,), (1,)),
    "empty_permuted": ((2, 3), (1, 0)), "normal": (0.0, 1.0, (2,)), "tril_indices": (2, 2),
    "triu_indices": (2, 2), "full_like": (torch.ones(2), 1.0), "randint_like": (torch.ones(2), 3),
}  # fmt: skip
_OPTIONS = {"general_cosine": {"a": [0.5, 0.5]}}
# These follow an argument, as in PyTorch.
_FOLLOW = {"normal", "from_dlpack", "to_dlpack"}
_WINDOWS = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


def _factories() -> Iterator[Any]:
    for where in (torch, torch.fft, torch.signal.windows):
        public = getattr(where, "__all__", dir(where))
        for name in sorted({*public, *(_WINDOWS if where is torch else ())}):
            found = getattr(where, name)
            if name.startswith("_") or not inspect.isfunction(found) or name == "from_dlpack":
                continue
            if "device" in inspect.signature(found).parameters:
                yield pytest.param(found, name, id=name)


def _call(function: Any, name: str, **options: Any) -> Any:
    default = (torch.ones(2, device="cpu"),) if name.endswith("_like") else (2,)
    given = _ARGUMENTS.get(name, default)
    return function(*given, **_OPTIONS.get(name, {}), **options)


@pytest.mark.parametrize(("function", "name"), [*_factories()])
def test_factories(function: Any, name: str) -> None:
    names = inspect.signature(function).parameters
    assert _call(function, name).device == "cpu"
    there = _call(function, name, device="cuda")
    assert there.device == "cuda:0"
    with torch.device("cuda"):
        follows = name.endswith("_like") or name in _FOLLOW
        assert _call(function, name).device == ("cpu" if follows else "cuda:0")
        assert _call(function, name, device="cpu").device == "cpu"
    if "requires_grad" in names and there.is_floating_point():
        leaf = _call(function, name, device="cuda", requires_grad=True)
        assert leaf.is_leaf and leaf.requires_grad
    if "pin_memory" in names:
        pinned = _call(function, name, pin_memory=True)
        assert (
            pinned.is_pinned() and pinned.device == "cpu" and not _call(function, name).is_pinned()
        )
        with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
            _call(function, name, device="cuda", pin_memory=True)


def test_pinned_ones_made_like_another() -> None:
    x = torch.ones(2)
    for y in (x.new_zeros(2, pin_memory=True), x.new_full((2,), 3.0, pin_memory=True)):
        assert y.is_pinned() and y.dtype is x.dtype


def test_the_default_device() -> None:
    assert torch.get_default_device() == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.get_default_device() == "cuda:0" == torch.ones(2).device
        with torch.device("cpu"):
            assert torch.ones(2).device == "cpu" == torch.get_default_device()
            with torch.device("cuda:0"):
                assert torch.ones(2).is_cuda
        assert torch.tensor(1.0).is_cuda and torch.scalar_tensor(2).is_cuda
        x = torch.ones(2, 3, device="cpu")  # what computes with tensors stays where they are
        assert nn.functional.one_hot(torch.tensor([0, 1], device="cpu"), 2).device == "cpu"
        assert x.tril().device == x.unique().device == torch.zeros_like(x).device == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device == "cpu"
    with pytest.raises(RuntimeError, match="invalid device ordinal"), torch.device("cuda:7"):
        pass
    assert torch.ones(2).device == "cpu"


def test_modules_are_made_on_it() -> None:
    with torch.device("cuda"):
        model = nn.ModuleList([
            nn.Linear(2, 3), nn.Bilinear(2, 2, 2), nn.Conv2d(1, 2, 3), nn.BatchNorm1d(3),
            nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.LSTM(3, 2), nn.GRUCell(2, 2), nn.PReLU(),
            nn.Embedding(3, 2), nn.EmbeddingBag(3, 2), nn.MultiheadAttention(4, 2),
            nn.TransformerEncoderLayer(4, 2), nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3]),
            nn.RMSNorm(3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        ])  # fmt: skip
        lazy = nn.LazyLinear(2)
        lazy(torch.ones(1, 3))
    assert {t.device for t in (*model.parameters(), *model.buffers())} == {torch.device("cuda:0")}
    assert lazy.weight.is_cuda
    assert nn.Linear(2, 3).weight.device == "cpu"


def test_compiled_code_of_a_default_device_is_for_that_one() -> None:
    f = torch.jit(lambda: torch.ones(3) * 2, fallback="error")
    for device in ("cuda", "cpu", "cuda", "cpu"):
        with torch.device(device):
            assert all(f().device.type == device for _ in range(3))
    assert f.stats.traces == 2

    @torch.jit(fallback="error")
    def g(x: Any) -> Any:
        with torch.device("cuda"):
            return torch.arange(3.0) * 2, x + torch.ones(3, device="cpu")

    for _ in range(3):
        there, here = g(torch.ones(3))
        assert there.tolist() == [0, 2, 4] and there.is_cuda and here.tolist() == [2, 2, 2]
    assert torch.get_default_device() == "cpu"


def test_old_types() -> None:
    x = torch.ones(2).cuda()
    assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.FloatTensor)
    assert isinstance(x.cpu(), torch.FloatTensor) and not isinstance(x, torch.cuda.LongTensor)
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.long().type_as(torch.ones(1)).type() == "torch.FloatTensor"
    assert torch.ones(2).type_as(x).device == x.device
    for spec in ("torch.cuda.LongTensor", torch.cuda.LongTensor):
        y = torch.ones(2).type(spec)
        assert y.is_cuda and y.dtype is torch.int64
    assert x.type(torch.DoubleTensor).type() == "torch.DoubleTensor"
    assert x.type(torch.float64).type() == "torch.cuda.DoubleTensor"
    assert torch.cuda.FloatTensor([1, 2]).tolist() == [1, 2]
    assert torch.cuda.LongTensor(2, 3).device == x.device and x.new(2, 3).device == x.device
    assert x.new([1.0]).device == x.device
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    try:
        assert torch.zeros(2).type() == "torch.cuda.DoubleTensor"
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(2).type() == "torch.FloatTensor"
