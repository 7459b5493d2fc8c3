"""Points that a thread does at once, by wide loads and stores: the same numbers, aligned or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_graphs import close, compiled, normal, recorded, run

import jitgrad as torch
from jitgrad.compiler.interpret import interpret


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int16, np.uint8])
@pytest.mark.parametrize("count", [16, 19, 3])
def test_elementwise(dtype: Any, count: int) -> None:
    x, y = ((normal(count, seed=k) * 9).astype(dtype) for k in range(2))
    graph = recorded(lambda x, y: (x * y + x, x > y), x, y)
    code = compiled(graph)
    wide = sum(shape.wide for shape in code.shapes.values())
    assert (wide >= 4) == (count >= code.target.many)
    for got, want in zip(run(code, [x, y]), interpret(graph, [x, y]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x[:, 1:2], lambda x: x[:, ::2] + 1, lambda x: x.T * 2, lambda x: x.flip(1),
        lambda x: torch.cat([x, x * 2], 1), lambda x: x[1:].roll(1, 0) + x[:-1], lambda x: x + x[0],
        lambda x: torch.where(x > 0, x, x.T), lambda x: x.reshape(2, 8, 4, 4).sum(1),
        lambda x: (x.sum(-1), x.argmax(-1), (x * x).mean(-1)), lambda x: torch.softmax(x, -1) * x,
        lambda x: (x.sum(), x.argmin()),
    ],
)  # fmt: skip
def test_indices_of_every_kind(f: Any) -> None:
    x = normal(16, 16)
    graph = recorded(f, x)
    for got, want in zip(run(compiled(graph), [x]), interpret(graph, [x]), strict=True):
        close(got, want, 4)


def test_arrays_that_are_not_aligned_give_the_same_bits() -> None:
    x = normal(5, 32)
    flat = torch.zeros(161, device="cuda")
    odd = flat[1:].reshape(5, 32)
    odd.copy_(torch.tensor(x))
    even = torch.tensor(x, device="cuda")
    assert odd.data_ptr() % 16 == 4 and even.data_ptr() % 16 == 0
    for f in (lambda x: x * 2 + x, lambda x: x.sum(-1), lambda x: torch.softmax(x, -1)):
        run = torch.jit(f, fallback="error")
        for _ in range(2):
            assert torch.equal(run(even).cpu(), run(odd).cpu())
            assert torch.equal(f(even).cpu(), f(odd).cpu())


def test_more_points_than_the_grid_has_threads() -> None:
    x = normal(999)
    graph = recorded(lambda x: x.exp() - 1, x)
    code = compiled(graph)
    (got,) = run(code, [x])
    close(got, np.exp(x) - 1)
