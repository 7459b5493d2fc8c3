"""Fifty training steps, eager and compiled: every parameter, buffer and optimizer state agrees.

The whole step is one function under @jit: forward with BatchNorm and dropout, backward, and the
update by SGD (momentum, weight decay) or AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.jit import jit

STEPS = 50


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)  # BatchNorm takes a bias away
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.out = nn.Linear(4 * 3 * 3, 5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(self.drop(x.flatten(1)))


def sgd(parameters: Any) -> Any:
    return optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)


def adamw(parameters: Any) -> Any:
    return optim.AdamW(parameters, lr=1e-3, weight_decay=0.05)


def train(
    make: Callable[[Any], Any],
    dtype: Any,
    compiled: bool,
    scheduled: bool = False,
    steps: int = STEPS,
) -> tuple[Any, Any, list[float], Any]:
    """(model, optimizer, losses, the jitted step or None) after some steps from a fixed start."""
    jg.manual_seed(7)
    net = Net().to(dtype)
    optimizer = make(net.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jit(step, fallback="error") if compiled else step
    rng = np.random.default_rng(3)
    losses = []
    for _ in range(steps):
        x = jg.from_numpy(rng.standard_normal((8, 1, 6, 6))).to(dtype)
        y = jg.from_numpy(rng.integers(0, 5, 8))
        if scheduled:
            optimizer.param_groups[0]["lr"] *= 0.97
        losses.append(float(run(x, y)))
    return net, optimizer, losses, run if compiled else None


def close(found: Any, wanted: Any, tolerance: float, name: str) -> None:
    """Equal to within `tolerance` of the tensor's largest magnitude (and dtype and shape)."""
    assert found.dtype is wanted.dtype and found.shape == wanted.shape
    x, y = found.detach().numpy(), wanted.detach().numpy()
    scale = float(np.abs(y).max(initial=0.0))
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def agree(a: tuple[Any, ...], b: tuple[Any, ...], tolerance: float) -> int:
    """Compares two trained models with their optimizers; returns how many tensors were compared."""
    (net, optimizer, losses, _), (other, fast, found, _) = a, b
    np.testing.assert_allclose(found, losses, rtol=tolerance)
    pairs = list(zip(net.state_dict().items(), other.state_dict().items(), strict=True))
    assert {name for (name, _), _ in pairs} >= {"norm.running_mean", "norm.running_var"}
    for (name, x), (same, y) in pairs:
        assert name == same
        close(y, x, tolerance, name)
    count = len(pairs)
    for (name, p), q in zip(net.named_parameters(), other.parameters(), strict=True):
        close(q.grad, p.grad, tolerance, f"{name}.grad")
        assert set(optimizer.state[p]) == set(fast.state[q])
        for key, value in optimizer.state[p].items():
            close(fast.state[q][key], value, tolerance, f"{key} of {name}")
            count += 1
    return count


@pytest.mark.parametrize("scheduled", [False, True], ids=["fixed rate", "schedule"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jg.float32, 1e-3), (jg.float64, 1e-11)])
@pytest.mark.parametrize("make", [sgd, adamw])
def test_fifty_steps(
    make: Callable[[Any], Any], dtype: Any, tolerance: float, scheduled: bool
) -> None:
    eager = train(make, dtype, False, scheduled)
    draws = jg.default_generator.draws
    fast = train(make, dtype, True, scheduled)
    assert jg.default_generator.draws == draws
    # The optimizer has state from the second step on: two traces.
    assert fast[3].stats.traces <= 2 and fast[3].stats.hits >= STEPS - 2
    parameters = 5
    each = 1 if make is sgd else 3
    assert agree(eager, fast, tolerance) == 8 + parameters * each


@pytest.mark.parametrize("make", [sgd, adamw])
def test_three_steps_in_float32(make: Callable[[Any], Any]) -> None:
    """Before rounding has had time to grow, agreement is to some ulp."""
    agree(train(make, jg.float32, False, steps=3), train(make, jg.float32, True, steps=3), 2e-5)
