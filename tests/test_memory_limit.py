"""jit(memory_limit=...): plans below a bound by computing again, with the same bits; its errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph

import jitgrad as jg
import jitgrad.nn as nn
import jitgrad.nn.functional as F
from jitgrad.compiler.options import Options
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.jit import jit
from jitgrad.runtime.errors import MemoryLimitError
from jitgrad.runtime.knobs import knob


def trainer(make: Callable[[], nn.Module], x: Any, limit: int | None = None) -> tuple[Any, Any]:
    """A jitted training step of a new model, always the same, and the model."""
    jg.manual_seed(0)
    model = make()
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return jit(step, fallback="error", memory_limit=limit), model


class Norms(nn.Module):
    """Blocks whose activations can be made again from others."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.body(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k in range(3):
            layers += [nn.Conv2d(4 if k else 2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.body(x)


MODELS = [
    pytest.param(Norms, (256, 48), id="norms"),
    pytest.param(Convolutions, (4, 2, 20, 20), id="convolutions"),
]


def compiled(step: Any) -> Any:
    return step.specialisations[0].compiled


@pytest.mark.parametrize(("make", "shape"), MODELS)
def test_a_bound_is_kept_and_changes_no_bit(make: Any, shape: tuple[int, ...]) -> None:
    x = jg.randn(*shape)
    free, model = trainer(make, x)
    losses = [free(x).item() for _ in range(4)]
    peak, kernels = compiled(free).report.peak, compiled(free).report.kernels
    for share in (0.85, 0.7):
        limit = int(peak * share)
        bound, other = trainer(make, x, limit)
        assert [bound(x).item() for _ in range(4)] == losses
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
        assert compiled(bound).report.peak <= limit
        assert compiled(bound).image.arena_bytes <= limit
        assert compiled(bound).report.kernels > kernels
        assert f"peak {compiled(bound).report.peak} " in str(bound.memory_plan())


def test_a_bound_that_is_no_bound_changes_nothing() -> None:
    x = jg.randn(256, 48)
    free, _ = trainer(Norms, x)
    wide, _ = trainer(Norms, x, 2**30)
    for step in (free, wide):
        for _ in range(3):
            step(x)
    assert compiled(wide).report.peak == compiled(free).report.peak
    assert compiled(wide).report.kernels == compiled(free).report.kernels


@pytest.mark.parametrize("fallback", ["error", "warn", "silent"])
def test_a_bound_that_cannot_be_kept_is_an_error_that_names_tensors(fallback: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return (a @ b).exp() @ b

    g = jit(f, fallback=fallback, memory_limit=1000)
    a, b = jg.randn(64, 32), jg.randn(32, 32)
    with pytest.raises(MemoryLimitError, match="at most 1000 bytes") as caught:
        for _ in range(2):
            g(a, b)
    text = str(caught.value)
    assert "float32[64, 32], 8192 bytes" in text
    assert "test_memory_limit.py" in text and "Raise the limit" in text


@pytest.mark.parametrize("seed", [2, 4, 5, 6, 9, 10, 13, 17, 34, 39])
def test_random_graphs_with_writes_keep_their_bits(seed: int) -> None:
    """Inputs are overwritten in these: of new contents nothing is made again."""
    graph, arrays = random_graph(seed, 60)
    with knob(cache=False):
        free = compile_graph(graph)
        bound = compile_graph(
            random_graph(seed, 60)[0], Options(memory_limit=int(free.report.peak * 0.9))
        )
    assert bound.report.peak <= free.report.peak * 0.9
    inputs = [[a.copy() for a in arrays] for _ in range(2)]
    results = [c.run(x) for c, x in zip((free, bound), inputs, strict=True)]
    for got, want in zip([*results[1], *inputs[1]], [*results[0], *inputs[0]], strict=True):
        np.testing.assert_array_equal(got, want)


def test_sizes_that_change_keep_the_bound_too() -> None:
    def f(x: Any, w: Any) -> Any:
        return ((x @ w).exp() @ w).tanh() @ w

    w = jg.randn(32, 32) * 0.1
    g = jit(f, fallback="error", dynamic=True, memory_limit=100_000)
    for rows in (16, 24, 100):
        x = jg.randn(rows, 32)
        np.testing.assert_allclose(g(x, w).numpy(), f(x, w).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(MemoryLimitError, match=r"float32\[4000, 32\], 512000 bytes"):
        g(jg.randn(4000, 32), w)
    assert g(jg.randn(50, 32), w).shape == (50, 32)


def test_lower_plans_for_the_bound() -> None:
    x = jg.TensorSpec((256, 48))
    free, _ = trainer(Norms, None)
    peak = free.lower(x).stages.plan.peak
    bound, _ = trainer(Norms, None, int(peak * 0.8))
    assert bound.lower(x).stages.plan.peak <= int(peak * 0.8)
    with pytest.raises(MemoryLimitError):
        trainer(Norms, None, 100)[0].lower(x).memory_plan()


def test_the_option_is_checked_and_copied() -> None:
    with pytest.raises(ValueError, match="memory_limit"):
        jit(F.relu, memory_limit=-1)
    for limit in ("1 MB", True, [5]):
        with pytest.raises(TypeError, match="memory_limit in bytes"):
            jit(F.relu, memory_limit=limit)
    g = jit(F.relu, memory_limit=77)
    assert copy.copy(g).memory_limit == 77
    model = jit(nn.Linear(2, 2), memory_limit=5, fallback="error")
    x = jg.randn(3, 2)
    assert model(x).shape == (3, 2)
