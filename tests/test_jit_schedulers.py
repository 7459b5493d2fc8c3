"""scheduler.step() in a compiled step: left to Python after each run, without recording anew."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import jitgrad
import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import jit
from jitgrad.optim import lr_scheduler as schedules


class Harmonic(schedules.LRScheduler):
    """A user's own."""

    def get_lr(self):
        return [base / (1 + self.last_epoch) for base in self.base_lrs]


SCHEDULES = {
    "StepLR": lambda o: schedules.StepLR(o, 2),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [2, 4]),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda epoch: 0.9),
    "ConstantLR": lambda o: schedules.ConstantLR(o, total_iters=3),
    "LinearLR": lambda o: schedules.LinearLR(o, total_iters=4),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, 9, 2.0),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.1, 2),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=12),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.5)], [3]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.5)]
    ),
    "a user's": Harmonic,
}


def train(make, compiled, steps=7, **options):
    """The losses, the rates and the step function of a short training run."""
    jitgrad.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = jitgrad.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)
    schedule = make(optimizer)
    x = jitgrad.randn(4, 3)

    def step(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    if compiled:
        step = jitgrad.jit(step, fallback="error")
    losses, rates = [], []
    for _ in range(steps):
        losses.append(step(x).item())
        rates.append([dict.copy(g) for g in optimizer.param_groups])
    return losses, [[g["lr"] for g in r] for r in rates], step, schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_trace_serves_all_epochs(name) -> None:
    eager = train(SCHEDULES[name], False)
    losses, rates, step, schedule = train(SCHEDULES[name], True)
    assert rates == eager[1] and len({str(r) for r in rates}) > 1
    assert losses == pytest.approx(eager[0], rel=1e-5)
    assert step.stats.compiles == 1 and step.stats.hits >= 5 and step.stats.fallbacks == 0
    saved, wanted = schedule.state_dict(), eager[3].state_dict()
    assert {k: v for k, v in saved.items() if k != "_schedulers"}.keys() == wanted.keys() - {
        "_schedulers"
    }
    assert saved["_last_lr"] == wanted["_last_lr"]


def test_two_optimizers() -> None:
    def run(compiled):
        jitgrad.manual_seed(0)
        models = [nn.Linear(2, 2), nn.Linear(2, 1)]
        optimizers = [jitgrad.optim.Adam(m.parameters(), lr=0.1) for m in models]
        plans = [schedules.ExponentialLR(o, g) for o, g in zip(optimizers, (0.5, 0.9), strict=True)]

        def step(x):
            for optimizer, plan in zip(optimizers, plans, strict=True):
                optimizer.zero_grad()
                loss = (models[1](models[0](x)) ** 2).sum()
                loss.backward()
                optimizer.step()
                plan.step()
            return loss.detach()

        step = jitgrad.jit(step, fallback="error") if compiled else step
        return [step(jitgrad.ones(3, 2)).item() for _ in range(5)], step

    eager, _ = run(False)
    found, step = run(True)
    assert found == pytest.approx(eager, rel=1e-5)
    assert step.stats.compiles == 1


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (lambda o, s: o.param_groups[0]["lr"], [0.5, 0.25, 0.125]),
        (lambda o, s: s.get_last_lr()[0], [0.5, 0.25, 0.125]),
        (lambda o, s: s.last_epoch, [1.0, 2.0, 3.0]),
    ],
)
def test_what_a_step_changed_is_not_read_stale(read, wanted) -> None:
    model = nn.Linear(2, 2)
    optimizer = jitgrad.optim.SGD(model.parameters(), lr=1.0)
    schedule = schedules.ExponentialLR(optimizer, 0.5)

    @jitgrad.jit(fallback="error")
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
        return x * read(optimizer, schedule)

    assert [step(jitgrad.ones(2))[0].item() for _ in range(3)] == wanted
    assert schedule.last_epoch == 3 and step.stats.hits == 0  # no graph that would know the rate


@pytest.mark.parametrize("metric", [lambda loss: loss, lambda loss: 0.5])
def test_a_schedule_by_a_metric(metric) -> None:
    optimizer = jitgrad.optim.SGD([jitgrad.ones(2, requires_grad=True)], lr=1.0)
    schedule = schedules.ReduceLROnPlateau(optimizer, patience=0)

    @jitgrad.jit(fallback="error")
    def step(x):
        loss = (x * 2).sum()
        schedule.step(metric(loss))
        return loss

    for _ in range(4):
        assert step(jitgrad.ones(2)).item() == 4.0
    assert schedule.last_epoch == 4 and schedule.get_last_lr()[0] == pytest.approx(1e-3)
    assert step.stats.segments > 0


def test_a_rate_in_a_tensor() -> None:
    """The schedule writes it, which is no number that Python could set."""
    rate = jitgrad.tensor(0.1)
    optimizer = jitgrad.optim.SGD([jitgrad.ones(2, requires_grad=True)], lr=rate)
    schedule = schedules.ExponentialLR(optimizer, 0.5)
    optimizer.step()

    @jitgrad.jit(fallback="error")
    def step(x):
        schedule.step()
        return x * optimizer.param_groups[0]["lr"]

    found = [step(jitgrad.ones(2))[0].item() for _ in range(3)]
    assert found == pytest.approx([0.05, 0.025, 0.0125]) and step.stats.segments > 0


def test_a_schedule_while_gradients_accumulate() -> None:
    """The rate is no guard of the calls that do not come to the optimizer's step."""
    model = nn.Linear(4, 3)
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)

    @jit(fallback="error")
    def step(x: Any, last: bool) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    plain = copy.deepcopy(model)
    other = jg.optim.SGD(plain.parameters(), lr=0.1)
    for k in range(16):
        optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.1 / (1 + k // 3)
        x = jg.randn(8, 4)
        step(x, k % 2 == 1)
        plain(x).square().mean().backward()
        if k % 2 == 1:
            other.step()
            other.zero_grad()
    assert jg.allclose(model.weight, plain.weight, atol=1e-6)
    assert step.stats.traces == 2, step.explain_last_miss()
