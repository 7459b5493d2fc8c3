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
    "norm": lambda x, s: x.norm(s),
    "tensor": lambda x, s: x * jg.tensor([s, 1.0]),
    "formatted": lambda x, s: x * s if f"{s:.3f}" != "2.000" else x,
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


def test_a_comparison_is_guarded_by_how_it_comes_out() -> None:
    def f(x: Any, s: float, t: float = 1.0) -> Any:
        y = x * s if s < 2 else x - s
        if s * 2 >= t + 1:
            y = y + 1
        return y, max(s, 0.75), s == t

    jitted = jit(f, fallback="error")
    for s in (0.1, 0.2, 0.5, 1.5, 2.0, 3.0, 0.3, 1.0, 0.99, float("nan"), 0.1):
        for t in (1.25, 3.25):
            got, want = jitted(jg.ones(2), s, t), f(jg.ones(2), s, t)
            assert repr(got) == repr(want)
    assert jitted.stats.traces == 5 and jitted.stats.fallbacks == 0
    jitted(jg.ones(2), 0.1, 0.1)
    assert "s == t: False -> True" in jitted.explain_last_miss()


def test_a_comparison_of_a_rate_is_guarded_by_how_it_comes_out() -> None:
    p = jg.nn.Parameter(jg.ones(2))
    o = jg.optim.SGD([p], lr=0.1)

    @jit(fallback="error")
    def step() -> Any:
        p.grad = jg.ones(2) * (1 if o.param_groups[0]["lr"] > 0.05 else 2)
        o.step()

    wanted = 1.0
    for k in range(8):
        rate = o.param_groups[0]["lr"] = 0.1 / (k + 1)
        step()
        wanted -= rate * (1 if rate > 0.05 else 2)
        np.testing.assert_allclose(p.detach().numpy(), [wanted] * 2, rtol=1e-5)
    assert step.stats.traces == 2


USES: dict[str, Any] = {
    "dropout": lambda x, s: F.dropout(x, s),
    "label_smoothing": lambda x, s: F.cross_entropy(x, jg.tensor([0, 1]), label_smoothing=s),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x.flip(0), beta=s),
    "huber_loss": lambda x, s: F.huber_loss(x, x.flip(0), delta=s + 0.01),
    "celu": lambda x, s: F.celu(x, s + 0.01),
    "bernoulli_": lambda x, s: x.clone().bernoulli_(s),
    "normal_": lambda x, s: x.clone().normal_(0, s),
    "addmm": lambda x, s: jg.addmm(jg.ones(2, 2), x, x.t(), alpha=s, beta=s * 2),
    "quantile": lambda x, s: x.quantile(s),
    "isclose": lambda x, s: jg.isclose(x, x * 1.2, rtol=s),
    "lerp": lambda x, s: x.lerp(x.flip(0), s),
    "pow": lambda x, s: x.abs() ** s,
}


@pytest.mark.parametrize("name", USES)
def test_what_functions_check_of_a_number_is_how_comparisons_come_out(name: str) -> None:
    """They stay inputs: few recordings, and eager's numbers at the borders, too."""
    x = jg.linspace(-2, 2, 6).reshape(2, 3)
    f = jit(USES[name], fallback="error")
    values = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.0, 1.0, 0.9, 0.25]
    for s in values:
        start = jg.get_rng_state()
        want = USES[name](x, s)
        jg.set_rng_state(start)
        np.testing.assert_allclose(f(x, s).numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    assert f.stats.traces <= 4


def test_comparisons_inside_vmap() -> None:
    def f(x: Any, s: float) -> Any:
        def row(r: Any) -> Any:
            half = r.shape[0] / 2
            y = r * 2 if half > 1.0 else r
            return (y + s if s * 2 > 1 else y).sum() * half

        return jg.vmap(row)(x)

    jitted = jit(f, fallback="error")
    for n in (2, 3, 4, 5, 1):
        for s in (0.1, 0.7, 0.3):
            got, want = jitted(jg.ones(3, n), s), f(jg.ones(3, n), s)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


N = np.int64(3)
OF_NUMPY: dict[str, Any] = {
    "eye": lambda x: jg.eye(N)[0] + x[:3],
    "arange": lambda x: jg.arange(N) * x[:3],
    "linspace": lambda x: jg.linspace(0, 1, N) + x[:3],
    "randperm": lambda x: jg.randperm(N, generator=jg.Generator().manual_seed(1)) + x[:3],
    "diag": lambda x: x.diag(N - 2),
    "narrow": lambda x: x.narrow(0, N - 2, N),
    "unfold": lambda x: x.unfold(0, N, N - 2),
    "one_hot": lambda x: F.one_hot(x.abs().long() % 3, N),
    "pool": lambda x: F.max_pool1d(x[None], N, N - 2),
    "where": lambda x: jg.where(x > 0, np.float32(0.5), x),
    "roll": lambda x: x.roll(N, N - 3),
    "repeat_interleave": lambda x: x.repeat_interleave(N),
    "movedim": lambda x: x[None].movedim(N - 3, N - 2),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_numbers_of_numpy_are_pythons(name: str) -> None:
    """In one graph and in segments; and nothing of them stays in the types that all code shares."""

    def in_segments(x: Any) -> Any:
        log.extend([x.sum().item()])
        return OF_NUMPY[name](x * 1)

    log: list[float] = []
    x = jg.randn(6)
    wanted = OF_NUMPY[name](x)
    assert all(type(d) is int for d in wanted.shape)
    for f in (jit(OF_NUMPY[name], fallback="error"), jit(in_segments, fallback="error")):
        for _ in range(3):
            assert f(x).equal(wanted) and f(x).dtype is wanted.dtype
        assert f.stats.hits + f.stats.segments > 0
