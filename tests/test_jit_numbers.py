"""Floats among the arguments: which stay inputs, and the warning where each value records anew."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.jit import jit
from jitgrad.nn import functional as F
from jitgrad.runtime.errors import FallbackWarning


def test_the_weight_of_lerp_is_an_input() -> None:
    @jit(fallback="error")
    def f(a: Any, b: Any, w: float) -> Any:
        c = a.clone()
        c.lerp_(b, w)
        return c, jg.lerp(a, b, w).sum()

    a, b = jg.rand(5), jg.rand(5)
    for w in (0.1, 0.9, 0.5, -1.0, 0.0, 1.0, 2.5):
        got, want = f(a, b, w), f.__wrapped__(a, b, w)
        np.testing.assert_allclose(got[0].numpy(), want[0].numpy(), rtol=1e-6, atol=1e-7)
        if w in (0.0, 1.0):
            assert got[0].equal(b if w else a)
    assert f.stats.traces == 1
    a.requires_grad_()
    for w in (0.25, 0.75, 0.5):
        (grad,) = jg.autograd.grad(f(a, b, w)[1], a)
        assert grad.tolist() == [1 - w] * 5
    assert f.stats.traces == 2


LOOKS: dict[str, Any] = {
    "dropout": lambda x, s: F.dropout(x, s),
    "tensor": lambda x, s: x * jg.tensor([s, 1.0]),
    "compared": lambda x, s: x * s if s < 2 else x,
}


@pytest.mark.parametrize("name", LOOKS)
def test_the_fifth_recording_for_a_number_warns_once(name: str) -> None:
    look = LOOKS[name]

    @jit(fallback="error")
    def f(x: Any, s: float) -> Any:
        return look(x, s)

    x = jg.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(4):
            f(x, 0.1 + 0.1 * i)
            f(x, 0.1 + 0.1 * i)
    with pytest.warns(FallbackWarning, match="fifth time, as s is another number") as caught:
        f(x, 0.6)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(x, 0.7)
    assert f.stats.traces == 6


def test_recordings_for_other_reasons_do_not_warn() -> None:
    @jit(fallback="error")
    def shapes(x: Any, s: float) -> Any:
        return x[0] * float(s)

    silent = jit(lambda x, s: x * float(s), fallback="silent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(1, 8):
            shapes([jg.ones(2)] * n, 0.5 * n)
            silent(jg.ones(2), 0.5 * n)
    assert shapes.stats.traces == silent.stats.traces == 7
