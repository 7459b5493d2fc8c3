"""Captured programs, generated, give at each replay what eager code gives: numbers, tensors of the
CPU and constants are part of the captured work, whatever memory the graph uses again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import jitgrad as torch
from jitgrad import nn
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="one capture of each is enough")

_STEPS: list[Callable[[Any, float], Any]] = [
    lambda y, k: y * k,
    lambda y, k: k - y,
    lambda y, k: y + torch.tensor(k),
    lambda y, k: torch.where(y > k, y, k),
    lambda y, k: y.clamp(-k, k),
    lambda y, k: (y * k).relu() + k,
    lambda y, k: y / (y.abs().sum() + k),
    lambda y, k: torch.softmax(y * k, -1),
    lambda y, k: (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + k).sqrt(),
    lambda y, k: y.masked_fill(y < k, -k),
    lambda y, k: torch.full_like(y, k) + y,
]


def program(seed: int) -> Callable[[Any], Any]:
    """A function of a (3, 4) tensor: a chain of steps with numbers, which frees what it does not
    need."""
    rng = random.Random(seed)
    chosen = [(rng.choice(_STEPS), rng.randrange(1, 9) / 4) for _ in range(6)]

    def run(x: Any) -> Any:
        y = x
        for step, k in chosen:
            y = step(y, k)
        return y

    return run


@pytest.mark.parametrize("seed", range(12))
def test_generated_programs(seed: int) -> None:
    f = program(seed)
    x = torch.linspace(-2, 2, 12).view(3, 4).to("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    for k in (1.0, -0.5, 3.0):
        x.copy_(torch.linspace(-k, 2 * k, 12).view(3, 4))
        want = f(x)
        for _ in range(2):
            graph.replay()
            assert y.tolist() == want.tolist()


def test_a_chain_of_numbers() -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 3 * 5 * 7
    for _ in range(2):
        graph.replay()
        assert y.tolist() == [105.0] * 4


def test_a_check_after_freed_memory() -> None:
    """The cell in which a kernel flags a fault is none of the graph's memory either."""
    table, i = torch.arange(5.0, device="cuda"), torch.tensor([1, 2], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = table[i * 3 - 2 * i] * 2
        z = table[i + 1 - 1] * 3
    for at in ([1, 2], [4, 0]):
        i.copy_(torch.tensor(at))
        graph.replay()
        assert (y.tolist(), z.tolist()) == ([2.0 * k for k in at], [3.0 * k for k in at])


_OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: torch.optim.SGD(p, 0.1),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    lambda p: torch.optim.Adam(p, 0.05, capturable=True),
]


@pytest.mark.parametrize("number", range(len(_OPTIMIZERS)))
def test_whole_training_steps(number: int) -> None:
    """Forward, backward and update, captured after two steps, as eager code goes on."""
    x = torch.linspace(-1, 1, 12).view(3, 4).to("cuda")

    def begun() -> tuple[Any, Callable[[], Any]]:
        model = nn.Linear(4, 2)
        with torch.no_grad():
            model.weight.copy_(torch.arange(8.0).view(2, 4) / 10)
            model.bias.zero_()
        model.to("cuda")
        optimizer = _OPTIMIZERS[number](model.parameters())

        def step() -> Any:
            optimizer.zero_grad()
            loss = (model(x) * 2 - 1).pow(2).mean() * 3
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(2):
            step()
        return model, step

    model, step = begun()
    want = [step().item() for _ in range(3)]
    replayed, step = begun()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    got = []
    for _ in range(3):
        graph.replay()
        got.append(loss.item())
    assert got == want
    assert replayed.weight.tolist() == model.weight.tolist()
