"""Memory that nobody asked to save: what training steps keep for their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import jitgrad as jg
import jitgrad.nn as nn
import jitgrad.nn.functional as F
from jitgrad.compiler import pipeline
from jitgrad.compiler.kernels import kernel_reads, kernel_writes
from jitgrad.compiler.passes.faults import can_fault
from jitgrad.runtime.knobs import knob

LAYERS, BATCH, WIDTH = 3, 256, 256
WIDE = BATCH * 4 * WIDTH * 4  # bytes of the inside of a layer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: jg.Tensor) -> jg.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


def train_of(least: int, monkeypatch: Any) -> tuple[Any, nn.Module]:
    """A step that is spared from `least` bytes on, after three calls, and the model."""
    monkeypatch.setattr(pipeline, "WORTH_SPARING", least)
    jg.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(LAYERS)])
    optimizer = jg.optim.SGD(model.parameters(), lr=0.01)

    @jg.jit(fallback="error")
    def train(x: jg.Tensor) -> jg.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    x = jg.randn(BATCH, WIDTH)
    with knob(cache=False):
        for _ in range(3):
            train(x)
    return train, model


def run(least: int, monkeypatch: Any) -> tuple[Any, list[np.ndarray]]:
    """The report of such a step, and its parameters."""
    train, model = train_of(least, monkeypatch)
    report = train.specialisations[0].compiled.report
    return report, [p.detach().numpy() for p in model.parameters()]


def test_activations_are_computed_again(monkeypatch: Any) -> None:
    plain, expected = run(1 << 60, monkeypatch)
    spared, found = run(0, monkeypatch)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    # Of each layer, the sums before GELU are kept, its tanh, what comes out of it (1 each), and its
    # input, normalised and not (1/4 each). All but the sums and the plain input is computed again.
    assert plain.peak <= (LAYERS * 3.5 + 1.5) * WIDE
    assert spared.peak <= (LAYERS * 1.25 + 4.3) * WIDE
    assert spared.kernels > plain.kernels


def test_what_only_copies_are_read_of_is_not_stored(monkeypatch: Any) -> None:
    stages = train_of(0, monkeypatch)[0].specialisations[0].compiled.stages
    read = {a for k in stages.kernels for a in kernel_reads(k)}
    made = [a for k in stages.kernels for a in kernel_writes(k)]
    assert sum(a.name.endswith("_again") for a in made) >= LAYERS
    roots = {*stages.program.roots, *stages.schedule.home}
    assert not [a for a in made if a not in read and a not in roots]


def test_positions_that_are_known_delay_no_update() -> None:
    """Updates wait for what may fail; rows of a table at arange(n) are sure to be there."""
    jg.manual_seed(0)
    table, head = nn.Embedding(16, 32), nn.Linear(32, 8)
    optimizer = jg.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)

    @jg.jit(fallback="error")
    def train(x: jg.Tensor) -> jg.Tensor:
        optimizer.zero_grad()
        loss = head(x + table(jg.arange(16))).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with knob(cache=False):
        for _ in range(3):
            train(jg.ones(4, 16, 32))
    kernels = train.specialisations[0].compiled.stages.kernels
    assert len(kernels) > 3
    assert not any(map(can_fault, kernels))
