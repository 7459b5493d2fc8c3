"""jit: what training loops do to state between and inside of compiled calls: averages of weights,
gradients accumulated over micro-batches, weights loaded, resized and frozen between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.jit import jit

Run = Callable[[bool], tuple[list[Any], Any]]


def model_of(seed: int = 0) -> Any:
    jg.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def batch(k: int, n: int = 8) -> tuple[Any, Any]:
    rng = np.random.default_rng(k)
    return jg.tensor(rng.standard_normal((n, 4)).astype(np.float32)), jg.arange(n) % 3


def under(jitted: bool, f: Any) -> Any:
    return jit(f, fallback="error") if jitted else f


def averages(jitted: bool) -> tuple[list[Any], Any]:
    """An exponential moving average of the weights is kept by the step itself."""
    model = model_of()
    mean = copy.deepcopy(model)
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with jg.no_grad():
            for a, b in zip(mean.parameters(), model.parameters(), strict=True):
                a.mul_(0.9).add_(b, alpha=0.1)
            for a, b in zip(mean.buffers(), model.buffers(), strict=True):
                a.copy_(b)
        return loss.detach()

    f = under(jitted, step)
    return [*(f(*batch(k)) for k in range(5)), *mean.state_dict().values()], f


def accumulation(jitted: bool) -> tuple[list[Any], Any]:
    """Gradients of three micro-batches add up before each update; both are compiled."""
    model = model_of()
    optimizer = jg.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def micro(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        return loss.detach()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    f, g = under(jitted, micro), under(jitted, update)
    out = []
    for k in range(12):
        out.append(f(*batch(k)))
        if k % 3 == 2:
            out.append(model[0].weight.grad.clone())
            g()
    return [*out, *model.state_dict().values()], f


def inside(jitted: bool) -> tuple[list[Any], Any]:
    """The optimizer is made in the function, anew in each call. Its state is of no object that
    jit knows, so such a function runs in segments."""
    model = model_of()

    def fit(x: Any, y: Any) -> Any:
        optimizer = jg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.detach()

    f = under(jitted, fit)
    return [*(f(*batch(k)) for k in range(4)), *model.state_dict().values()], f


def loaded(jitted: bool) -> tuple[list[Any], Any]:
    """Weights are loaded, set and moved to other memory between calls; the model is evaluated."""
    model = model_of()
    f = under(jitted, lambda x: model(x).detach())
    x, _ = batch(0)
    out = []
    states = [model_of(k).state_dict() for k in range(3)]
    for k in range(6):
        model.load_state_dict(states[k % 3])
        out.append(f(x))
    model.load_state_dict(states[1], assign=True)
    out.append(f(x))
    model[0].weight = nn.Parameter(jg.ones(6, 4))
    model[3].bias.data = jg.zeros(3)
    out += [f(x), f(x)]
    model.eval()
    out += [f(x), f(x)]
    model.train()
    return [*out, f(x)], f


def resized(jitted: bool) -> tuple[list[Any], Any]:
    """A captured tensor grows, changes its dtype, and becomes a view."""
    held = {"t": jg.ones(3)}
    f = under(jitted, lambda x: (held["t"] * x).sum() + held["t"].shape[0])
    out = []
    for t in (jg.ones(3), jg.ones(5), jg.ones(7), jg.ones(7).double(), jg.ones(9)[::2],
              jg.ones(4, 2)):  # fmt: skip
        held["t"] = t
        out += [f(jg.tensor(2.0)), f(jg.tensor(3.0))]
    return out, f


def frozen(jitted: bool) -> tuple[list[Any], Any]:
    """requires_grad_ between calls: what is frozen gets no gradient and is not updated."""
    model = model_of()
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    f = under(jitted, step)
    out = []
    for k in range(9):
        model[0].requires_grad_(k % 3 != 1)
        f(*batch(k))
        out += [p.detach().clone() for p in model.parameters()]
        out.append(jg.tensor([p.grad is None for p in model.parameters()]))
    return out, f


@pytest.mark.parametrize(
    "run, traces",
    [(averages, 1), (accumulation, 2), (inside, 1), (loaded, 4), (resized, 5), (frozen, 4)],
)
def test_state(run: Run, traces: int) -> None:
    (found, f), (wanted, _) = run(True), run(False)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=2e-6)
    stats = f.stats
    assert stats.traces <= traces, f.explain_last_miss()
    assert stats.fallbacks == 0 and bool(stats.segments) is (run is inside)
    assert stats.hits or run is inside


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_state_begins_when_a_gradient_comes(name) -> None:
    """A parameter that is used from the third call on: state begins in that call, and each way of
    calling is recorded once."""

    def run(compiled: bool):
        a, b = (nn.Parameter(jg.tensor([1.0, -2.0, 0.0], dtype=jg.float64)) for _ in "ab")
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(jg.optim, name)([a, b], lr=0.1, **options)

        def step(both: bool):
            optimizer.zero_grad()
            loss = (a * a).sum() + ((b * a).sum() if both else 0)
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = jit(step, fallback="error") if compiled else step
        losses = [step(k > 1).item() for k in range(6)]
        state = {k: v.tolist() for p in (a, b) for k, v in optimizer.state[p].items()}
        return losses, a.tolist(), b.tolist(), state, step

    *eager, _ = run(False)
    *found, step = run(True)
    for x, y in zip(found[:3], eager[:3], strict=True):
        assert x == pytest.approx(y, rel=1e-12)
    assert found[3].keys() == eager[3].keys()
    assert step.stats.traces == 2 and step.stats.hits == 4 and step.stats.fallbacks == 0
