"""Second derivatives of functions that are linear in pieces: zeros, on the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu, "leaky_relu": F.leaky_relu, "hardtanh": F.hardtanh, "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.1, 0.5), "softshrink": F.softshrink,
    "hardshrink": F.hardshrink, "hardsigmoid": F.hardsigmoid,
    "prelu": lambda x: F.prelu(x, jg.full((1,), 0.3)), "pow": lambda x: x**1,
    "max_pool": lambda x: F.max_pool1d(x, 2), "relu_": lambda x: F.relu(x * 1, inplace=True),
    "half": lambda x: F.hardtanh(x.to(jg.bfloat16)),
}  # fmt: skip


def values() -> Any:
    return jg.tensor([[-1.5, -0.2, 0.3, 2.5], [4.0, -4.0, 0.7, 7.0]], requires_grad=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_second_derivative_is_zero(name: str, compiled: bool) -> None:
    def second(x: Any) -> Any:
        x = x.detach().requires_grad_()
        (g,) = jg.autograd.grad(FUNCTIONS[name](x).sum(), x, create_graph=True)
        assert g.requires_grad
        (h,) = jg.autograd.grad(g.sum(), x)
        return g.detach(), h

    run = jg.jit(second, fallback="error") if compiled else second
    (first,) = jg.autograd.grad(FUNCTIONS[name](x := values()).sum(), x)
    for _ in range(2):
        g, h = run(values())
        np.testing.assert_array_equal(g.numpy(), first.numpy())
        np.testing.assert_array_equal(h.numpy(), np.zeros((2, 4)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_net_of_pieces_with_second_derivatives(compiled: bool) -> None:
    """u'' of a net with relu is zero; what it is multiplied with still trains."""
    jg.manual_seed(0)
    w, v, c = jg.randn(1, 8), jg.randn(8, 1), jg.tensor(2.0, requires_grad=True)

    def loss(x: Any) -> Any:
        x = x.detach().requires_grad_()
        u = (x @ w).relu() @ v
        (du,) = jg.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = jg.autograd.grad(du.sum(), x, create_graph=True)
        return (c * u + du + 3 * ddu).square().mean(), ddu

    run = jg.jit(loss, fallback="error") if compiled else loss
    for _ in range(2):
        total, ddu = run(jg.linspace(-1, 1, 5)[:, None])
        np.testing.assert_array_equal(ddu.detach().numpy(), np.zeros((5, 1)))
        (g,) = jg.autograd.grad(total, c)
        assert float(g) != 0


def test_names_and_first_derivatives() -> None:
    x = values()
    assert F.leaky_relu(x).grad_fn.name() == "LeakyReluBackward0"
    y = F.leaky_relu(x, 0.25)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.where(x.detach().numpy() > 0, 1, 0.25))
    assert jg.autograd.gradcheck(
        F.hardtanh, (jg.tensor([-2.0, 0.3, 2.0], dtype=jg.float64, requires_grad=True),)
    )
    with pytest.raises(RuntimeError, match="does not require grad|not have been used"):
        (g,) = jg.autograd.grad((2 * x).sum(), x, create_graph=True)
        jg.autograd.grad(g.sum(), x)
