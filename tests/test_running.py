"""Running products and extremes: how many passes they and their derivatives take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.kernels import SpecialKernel
from jitgrad.compiler.loops import Scan
from jitgrad.runtime.knobs import knob


def _scans(f: Any) -> list[Scan]:
    kernels = f.specialisations[-1].compiled.stages.kernels
    found = [a.define for k in kernels if isinstance(k, SpecialKernel) for a in k.arrays]
    return [d for d in found if isinstance(d, Scan)]


def _gradient(x: Any, dim: int) -> Any:
    return jg.autograd.grad(jg.cumprod(x, dim).sin().sum(), x)[0]


@pytest.mark.parametrize("dim", [0, 1])
def test_the_gradient_of_cumprod_is_one_recurrence(dim: int) -> None:
    f = jg.jit(_gradient, fallback="error")
    draws = jg.Generator().manual_seed(0)
    with knob(cache=False):
        for _ in range(3):
            x = (jg.rand(33, 70, generator=draws) * 0.2 + 0.9).requires_grad_()
            found = np.array(f(x, dim).tolist(), np.float32)
    factors = [d.factor is not None for d in _scans(f)]
    assert factors == [False, True]
    y = x.detach().double().requires_grad_()
    np.testing.assert_allclose(found, np.array(_gradient(y, dim).tolist()), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_cumprod_has_one_recording_for_all_lengths() -> None:
    f = jg.jit(_gradient, fallback="error")
    for n in (5, 9, 17, 64, 3, 100):
        x = (jg.rand(4, n) + 0.5).requires_grad_()
        found = np.array(f(x, 1).tolist(), np.float32)
        with jg.disable_jit():
            wanted = np.array(_gradient(x, 1).tolist(), np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert f.stats.traces <= 2


@pytest.mark.parametrize("at", [0, 3, 6])
def test_the_gradient_of_cumprod_where_elements_are_zero(at: int) -> None:
    x = jg.arange(1.0, 8.0)
    x[at] = 0
    assert jg.autograd.gradcheck(lambda x: jg.cumprod(x, 0), x.double().requires_grad_())
    assert jg.autograd.gradgradcheck(lambda x: jg.cumprod(x, 0), x.double().requires_grad_())


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_extremes_of_large_arrays_are_those_of_small_ones(name: str, dim: int) -> None:
    """Large ones run as one program in eager code, small ones op by op."""
    f = getattr(jg, name)
    x = jg.randint(-50, 50, (130, 200)).float()
    x[3, 70], x[7] = float("nan"), -0.0
    x.requires_grad_()
    values, indices = f(x, dim)
    assert type(values).__name__ == "Tensor" and f(x, dim).indices.dtype is jg.int64
    (g,) = jg.autograd.grad(values, x, jg.ones_like(values))
    for k in range(0, 130 if dim else 200, 17):
        part = (x[k : k + 1] if dim else x[:, k : k + 1]).detach().requires_grad_()
        few, places = f(part, dim)
        (h,) = jg.autograd.grad(few, part, jg.ones_like(few))
        for whole, one in ((values.detach(), few.detach()), (indices, places), (g, h)):
            whole = whole[k : k + 1] if dim else whole[:, k : k + 1]
            assert np.array(whole.numpy()).tobytes() == np.array(one.numpy()).tobytes()
