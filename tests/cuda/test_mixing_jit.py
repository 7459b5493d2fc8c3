"""Modules that are jitted, vmapped or called by others refuse tensors on other devices, as in eager
code."""

from __future__ import annotations

from typing import Any

import pytest

import jitgrad as torch
from jitgrad import nn


def _x(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="cuda")


CALLS: list[tuple[str, Any, tuple[int, ...]]] = [
    ("Linear", lambda: nn.Linear(3, 3), (2, 3)),
    ("Conv2d", lambda: nn.Conv2d(1, 1, 1), (1, 1, 2, 2)),
    ("BatchNorm1d", lambda: nn.BatchNorm1d(3), (2, 3)),
    ("LayerNorm", lambda: nn.LayerNorm(3), (2, 3)),
    ("PReLU", lambda: nn.PReLU(), (2, 3)),
    ("Sequential", lambda: nn.Sequential(nn.Linear(3, 3).cuda(), nn.Linear(3, 3)), (2, 3)),
    ("BCEWithLogitsLoss", lambda: nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "shape"), CALLS, ids=[c[0] for c in CALLS])
def test_jitted_modules(name: str, make: Any, shape: tuple[int, ...]) -> None:
    module = make()
    x = _x(*shape)
    given = (x, x) if name.endswith("Loss") else (x,)
    text = rf"\[{name}\] Expected all tensors to be on the same device.*cpu and cuda:0"
    with pytest.raises(RuntimeError, match=text):
        module(*given)
    for jitted in (torch.jit(module), torch.compile(module), torch.jit(module.forward)):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on the same device.*cpu and cuda:0"):
                jitted(*given)
    with pytest.raises(RuntimeError, match=text):
        torch.jit(module)(*given)


def test_modules_under_vmap() -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.vmap(nn.Linear(3, 3))(_x(2, 3))
    assert torch.vmap(nn.Linear(3, 3).cuda())(_x(2, 3)).is_cuda


def test_modules_with_tensors_that_they_do_not_use() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(3)
            self.register_buffer("unused", torch.ones(3))
            self.inner = nn.Linear(3, 3).cuda()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.inner(x), torch.zeros_like(x))

    module = Masked()
    module.unused = torch.ones(3)
    for f in (module, torch.jit(module)):
        for _ in range(2):
            assert f(_x(2, 3)).is_cuda
