"""Optimizers: one step by hand, convergence, groups, state; compiled steps against eager ones."""

import numpy as np
import pytest

import jitgrad as t
from jitgrad import nn, optim


def parameter(*numbers):
    return nn.Parameter(t.tensor(list(numbers), dtype=t.float64))


def test_sgd_by_hand():
    p = parameter(1.0, -2.0)
    o = optim.SGD([p], lr=0.1, momentum=0.5, weight_decay=0.2)
    v, x = None, p.detach().numpy().copy()
    for g in ([1.0, 1.0], [-2.0, 0.5], [0.0, 3.0]):
        p.grad = t.tensor(g, dtype=t.float64)
        o.step()
        d = np.array(g) + 0.2 * x
        v = d if v is None else 0.5 * v + d
        x = x - 0.1 * v
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-14)


def test_adam_by_hand():
    p = parameter(1.0, -2.0)
    o = optim.AdamW([p], lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3, amsgrad=True)
    x, m, v, top = p.detach().numpy().copy(), 0.0, 0.0, 0.0
    for k, g in enumerate(([1.0, 1.0], [-2.0, 0.5], [0.1, 3.0]), 1):
        p.grad = t.tensor(g, dtype=t.float64)
        o.step()
        g = np.array(g)
        x = x * (1 - 0.1 * 0.3)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        top = np.maximum(top, v)
        x = x - 0.1 * (m / (1 - 0.8**k)) / (np.sqrt(top / (1 - 0.9**k)) + 1e-6)
        np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-13)
    assert o.state[p]["step"].item() == 3 and o.state[p]["step"].dtype is t.float32


CASES = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.05, "amsgrad": True}),
]


@pytest.mark.parametrize("name,options", CASES, ids=str)
def test_compiled_step_is_eager(name, options):
    """The whole step under @jit with a learning rate that changes: no fallback, equal numbers."""
    runs = []
    for compiled in (False, True):
        t.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        optimizer = getattr(optim, name)(model.parameters(), **options)
        x, y = t.randn(16, 4, dtype=t.float64), t.arange(16) % 3

        def step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        if compiled:
            step = t.jit(step, fallback="error")
        losses = []
        for k in range(8):
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + k)
            losses.append(step(x, y).item())
        runs.append((losses, [p.detach().numpy() for p in model.parameters()], optimizer))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        assert a == pytest.approx(b, rel=1e-13)
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)
    assert runs[1][0][-1] < runs[1][0][0]
    assert step.stats.compiles <= 2  # the rate changes at every step; state is made in the first


@pytest.mark.parametrize("name,options", CASES, ids=str)
def test_minimises(name, options):
    p = parameter(3.0, -4.0)
    o = getattr(optim, name)([p], **{**options, "weight_decay": 0.0})
    for _ in range(400):
        o.zero_grad()
        ((p - 1) ** 2).sum().backward()
        o.step()
    np.testing.assert_allclose(p.detach().numpy(), 1, atol=1e-3)


def test_parameters_without_gradient_stay():
    a, b = parameter(1.0), parameter(2.0)
    o = optim.Adam([a, b])
    (a * 2).sum().backward()
    o.step()
    assert b.item() == 2.0 and b not in {k for k, s in o.state.items() if s}
    assert list(o.state_dict()["state"]) == [0]


def test_state_dict_is_separate_from_what_loads_it():
    p, q = parameter(1.0), parameter(1.0)
    a, b = optim.SGD([p], lr=0.1, momentum=0.9), optim.SGD([q], lr=0.2, momentum=0.9)
    (p * 2).sum().backward()
    a.step()
    b.load_state_dict(a.state_dict())
    (q * 2).sum().backward()
    b.step()
    assert a.state[p]["momentum_buffer"].item() == 2.0
    assert b.state[q]["momentum_buffer"].item() == 2.0 * 0.9 + 2.0
    b.param_groups[0]["lr"] = 5.0
    assert a.param_groups[0]["lr"] == 0.1


def test_groups():
    a, b = parameter(1.0), parameter(1.0)
    o = optim.SGD([{"params": a, "lr": 1.0}, {"params": [b]}], lr=0.5)
    (a + b).sum().backward()
    o.step()
    assert a.item() == 0.0 and b.item() == 0.5
    text = repr(o)
    assert "Parameter Group 1" in text and "lr: 0.5" in text


def test_named_parameters():
    m = nn.Linear(2, 2)
    o = optim.SGD(m.named_parameters(), lr=0.1)
    assert [p is q for p, q in zip(o.param_groups[0]["params"], m.parameters(), strict=True)]
