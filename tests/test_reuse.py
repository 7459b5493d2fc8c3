"""Gradients in the memory of those that they replace: when, and when not; the bytes of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn as nn
import jitgrad.nn.functional as F


def step_of(**how: Any) -> tuple[nn.Module, Any, tuple[jg.Tensor, jg.Tensor]]:
    """A model, its compiled training step, which has run on old gradients, and what it takes."""
    jg.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 512))
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)

    @jg.jit(fallback="error", **how)
    def train(x: jg.Tensor, t: jg.Tensor) -> jg.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
        return loss

    given = jg.randn(16, 128), jg.randint(0, 512, (16,))
    for _ in range(3):
        train(*given)
    return model, train, given


def places(model: nn.Module) -> list[int]:
    return [p.grad.data_ptr() for p in model.parameters() if p.grad.numel() >= 1 << 14]


def test_new_gradients_take_the_memory_of_old_ones() -> None:
    model, train, given = step_of()
    before = places(model)
    assert len(before) == 2
    old = [id(p.grad) for p in model.parameters()]
    for _ in range(3):
        train(*given)
        assert places(model) == before
    assert old != [id(p.grad) for p in model.parameters()]
    (spec,) = train.specialisations
    biases_and_loss = (256 + 512 + 1) * 4
    assert spec.result_bytes() == biases_and_loss


def test_values_are_those_of_eager_code() -> None:
    model, train, given = step_of()
    plain, eager, _ = step_of()
    with jg.disable_jit():
        eager(*given)
    train(*given)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-7)


HOLDERS: dict[str, Callable[[jg.Tensor], Any]] = {
    "tensor": lambda g: g,
    "detached": lambda g: g.detach(),
    "view": lambda g: g[1:],
    "numpy": lambda g: g.numpy(),
    "part of numpy": lambda g: g.numpy()[1:, ::2],
    "buffer": lambda g: memoryview(g.numpy()),
    "dlpack": lambda g: np.from_dlpack(g),
    "shared by from_numpy": lambda g: jg.from_numpy(g.numpy()),
    "storage": lambda g: g.untyped_storage(),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_gradient_that_is_held_keeps_its_memory(kind: str) -> None:
    model, train, given = step_of()
    weight = model[2].weight
    held = HOLDERS[kind](weight.grad)
    wanted, place = weight.grad.numpy().copy(), weight.grad.data_ptr()
    train(*given)
    assert weight.grad.data_ptr() != place
    if kind == "storage":
        now = np.array(held.tolist(), np.uint8).view(np.float32).reshape(wanted.shape)
    elif kind == "view":
        now, wanted = held.numpy(), wanted[1:]
    elif kind == "part of numpy":
        now, wanted = held, wanted[1:, ::2]
    else:
        now = held.numpy() if isinstance(held, jg.Tensor) else np.asarray(held)
    np.testing.assert_array_equal(now, wanted)
    del held, now
    place = weight.grad.data_ptr()
    train(*given)
    assert weight.grad.data_ptr() == place


def test_slots_with_one_tensor_keep_it() -> None:
    model, train, given = step_of()
    shared = jg.ones(256, 128)
    model[0].weight.grad = shared
    other = nn.Linear(128, 256)
    other.weight.grad = shared
    del shared
    train(*given)
    np.testing.assert_array_equal(other.weight.grad.numpy(), np.ones((256, 128), np.float32))


def test_foreign_or_empty_slots() -> None:
    model, train, given = step_of()
    for new in (None, jg.ones(128, 256).t(), jg.from_numpy(np.ones((257, 128), "f4")[1:])):
        model[0].weight.grad = new
        train(*given)
        assert tuple(model[0].weight.grad.shape) == (256, 128)
        assert model[0].weight.grad is not new


def test_a_call_that_fails_leaves_gradients_as_they_were() -> None:
    model, train, given = step_of()
    before = [p.grad.numpy().copy() for p in model.parameters()]
    with pytest.raises(IndexError):
        train(given[0], jg.full((16,), 999))
    for p, g in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.grad.numpy(), g)


def test_gradients_that_are_added_to_are_operands() -> None:
    model = nn.Linear(128, 256)

    @jg.jit(fallback="error")
    def more(x: jg.Tensor) -> None:
        model(x).sum().backward()

    x = jg.ones(4, 128)
    for n in range(1, 6):
        more(x)
        np.testing.assert_allclose(model.weight.grad.numpy(), np.full((256, 128), 4.0 * n))


def test_checked_runs_take_memory_of_their_own() -> None:
    model, train, given = step_of(check=True)
    (spec,) = train.specialisations
    assert spec.namespace["lend"] is None
    train(*given)
    assert all(p.grad is not None for p in model.parameters())
