"""Where the host waits for the device, counted on the driver: docs/gpu.md says where."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from other_driver import driven_by

import jitgrad as torch
from jitgrad.nn import functional as F
from jitgrad.runtime.cuda.simulator import SimulatedDriver
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="counts what the driver was given")


class _Counting(SimulatedDriver):
    """Counts copies to the host, too."""

    copies = 0

    def copy_out(self, device: int, host: int, of: int, nbytes: int, stream: int) -> None:
        self.copies += 1
        super().copy_out(device, host, of, nbytes, stream)


@pytest.fixture(autouse=True)
def driver() -> Iterator[_Counting]:
    with driven_by(_Counting(1 << 28)) as made:
        yield made


def _with_hook(x: Any) -> None:
    w = x.detach().requires_grad_()
    y = w * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.sum().backward()


def _zeroed(x: Any) -> None:
    w = torch.nn.Parameter(x)
    w.grad = x * 2
    torch.optim.SGD([w], 0.1, momentum=0.9).step()
    torch.optim.SGD([w], 0.1).zero_grad(set_to_none=False)


def _written(x: Any) -> None:
    x[0] = 5
    x[1:].fill_(2)
    x.zero_()


_NEVER: list[Callable[[Any, Any], Any]] = [
    lambda x, i: _with_hook(x),
    lambda x, i: _zeroed(x),
    lambda x, i: _written(x),
    lambda x, i: torch.func.grad(lambda a: a.sum())(x),
    lambda x, i: x[:1].expand(3, 2).clone(),
    lambda x, i: copy.deepcopy(x.t()),
]
_CHECKED: list[tuple[int, Callable[[Any, Any], Any]]] = [
    (1, lambda x, i: x[i]),
    (1, lambda x, i: x.gather(0, i[None])),
    (1, lambda x, i: x.scatter_add(0, i[None], x)),
    (1, lambda x, i: F.cross_entropy(x, i)),
    (2, lambda x, i: F.embedding(i, x)),
    (2, lambda x, i: x.index_add(0, i, x)),
    (1, torch.jit(lambda x, i: F.embedding(i, x).sum())),
]


@pytest.mark.parametrize(
    ("waits", "f"),
    [*((0, f) for f in _NEVER), *_CHECKED],
)
def test_where_the_host_waits(waits: int, f: Any, driver: _Counting) -> None:
    x, i = torch.ones(2, 2, device="cuda"), torch.tensor([0, 1], device="cuda")
    f(x, i)
    before = driver.waits, driver.copies
    f(x, i)
    assert (driver.waits - before[0], driver.copies - before[1]) == (waits, waits)
