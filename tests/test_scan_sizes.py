"""Sizes inside of loops and branches may change: of carries, slices, what is captured, results."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jitgrad as jg
from jitgrad import runtime
from jitgrad.compiler.parse import parse
from jitgrad.compiler.text import to_text
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob

W = jg.tensor(np.random.default_rng(0).normal(0, 0.5, (3, 3)).astype(np.float32)).requires_grad_()


def recurrence(h: Any, xs: Any) -> Any:
    """A matrix product, a reduction and a size inside; (B, 3), (T, B, 3)."""

    def step(h: Any, x: Any) -> Any:
        h = jg.tanh(h @ W + x)
        return h, (h.sum(0) / h.shape[0], h.view(-1).cumsum(0))

    return jg.scan(step, h, xs)


def captures(h: Any, xs: Any) -> Any:
    """What the step captures has a size of its own."""
    table = jg.cat([h, h * 2])

    def step(c: Any, x: Any) -> Any:
        c = (c * 0.5 + x.mean(0) + table.mean(0)).tanh()
        return c, table * c

    return jg.scan(step, h[0], xs)


def rows_as_scores(h: Any, xs: Any) -> Any:
    """A product of two symbolic sizes, reshapes and slices of a size less one; wants B > 2."""

    def step(h: Any, x: Any) -> Any:
        b = h.shape[0]
        y = jg.cat([h, x], 1).view(b * 2, -1).sum(1).view(b, 2)
        s = jg.softmax(h @ x.t(), -1) @ x + jg.arange(b, dtype=jg.float32)[:, None] * 0.01
        return s, (y, s[: b - 1])

    return jg.scan(step, h, xs, reverse=True)


def loop_in_loop(h: Any, xs: Any) -> Any:
    """A scan and a branch in each step of a scan."""

    def step(h: Any, x: Any) -> Any:
        def inner(c: Any, y: Any) -> Any:
            c = (c + y).tanh()
            return c, c * x

        c, ys = jg.scan(inner, h, x.unsqueeze(0).expand(3, *x.shape))
        c = jg.cond(c.sum() > 0, lambda c: c * 2, lambda c: c - ys.sum(0), (c,))
        return c, ys.sum(0)

    return jg.scan(step, h, xs)


def branch(h: Any, xs: Any) -> Any:
    def yes(x: Any) -> Any:
        return (x.sin() + h).cumsum(0)

    def no(x: Any) -> Any:
        return (x * h).flip(0) * x.shape[0]

    return jg.cond(h.sum() > 0, yes, no, (xs,))


def steps_by_value(h: Any, xs: Any) -> Any:
    def more(i: Any, x: Any) -> Any:
        return (i < 5) & (x.abs().sum() < 1000)

    def step(i: Any, x: Any) -> Any:
        return i + 1, x @ W + x.mean(1, keepdim=True) + xs

    return jg.while_loop(more, step, (jg.tensor(0), xs), max_steps=6)[1]


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [y for x in tree for y in leaves(x)]
    return [tree]


def arguments(b: int, t: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(100 * b + t)
    h, xs = rng.normal(0, 0.5, (b, 3)), rng.normal(0, 0.5, (t, b, 3))
    made = [jg.tensor(x.astype(np.float32)).requires_grad_() for x in (h, xs)]
    return made[0], made[1]


def compare(fast: Any, plain: Any, b: int, t: int) -> None:
    """Results and gradients, compiled and eager."""
    args = arguments(b, t)
    found, wanted = leaves(fast(*args)), leaves(plain(*args))
    assert [x.shape for x in found] == [x.shape for x in wanted]
    sources = [*args, W]
    grads = []
    for results in (found, wanted):
        loss = sum((x.float() ** 2).mean() if x.numel() else x.sum() for x in results)
        grads.append(jg.autograd.grad(loss, sources, allow_unused=True))
    for x, y in zip([*found, *grads[0]], [*wanted, *grads[1]], strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=2e-4, atol=2e-5)


PROGRAMS = [recurrence, captures, rows_as_scores, loop_in_loop, branch, steps_by_value]


@pytest.mark.parametrize("f", PROGRAMS)
def test_one_recording_serves_all_sizes(f: Any) -> None:
    fast = jit(f, fallback="error")
    for b, t in ((4, 5), (6, 8), (3, 7), (5, 2), (9, 3), (3, 12), (6, 5)):
        compare(fast, f, b, t)
    assert fast.stats.traces == 2, fast.explain_last_miss()


KEPT = {f.__name__: jit(f, fallback="error") for f in PROGRAMS}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PROGRAMS), st.integers(0, 9), st.integers(0, 9))
def test_any_size_is_eager_codes(f: Any, b: int, t: int) -> None:
    """Sizes of 0 and 1, which are recorded for themselves, among them."""
    if f in (rows_as_scores, captures):
        b = max(b, 1)
    compare(KEPT[f.__name__], f, b, t)


def test_bits_are_those_of_code_for_one_size() -> None:
    fast = jit(recurrence, fallback="error")
    for b, t in ((4, 5), (7, 6), (9, 3), (7, 6)):
        fixed = jit(recurrence, fallback="error", dynamic=False)
        args = arguments(b, t)
        found = [leaves(f(*args)) for f in (fixed, fixed, fast)]  # the first call is eager
        if fast.stats.hits:
            assert all(x.equal(y) for x, y in zip(*found[1:], strict=True))
    assert fast.stats.hits == 2


def test_branches_on_values_below_a_loop() -> None:
    """Parts of a tree of traces hold bodies with the sizes of their tree."""

    def f(h: Any, xs: Any) -> Any:
        last, ys = jg.scan(lambda h, x: ((h + x).tanh(), h * h.shape[0]), h, xs)
        if last.sum() > 0:
            return ys.sum(0) + last
        return jg.scan(lambda c, y: (c + y, c), last, ys)[0]

    fast = jit(f, fallback="error")
    for b, t in ((4, 5), (6, 8), (3, 7), (5, 2), (9, 3), (4, 12)):
        for sign in (1.0, -1.0):
            h, xs = (x.detach().abs() * sign for x in arguments(b, t))
            np.testing.assert_allclose(fast(h, xs).numpy(), f(h, xs).numpy(), rtol=1e-4, atol=1e-5)
    assert fast.stats.traces <= 4


def test_random_draws_in_steps() -> None:
    def f(h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = h + x + jg.randn(h.shape[0], 3)
            return h, jg.nn.functional.dropout(h, 0.3)

        return jg.scan(step, h, xs)

    fast = jit(f, fallback="error")
    for b, t in ((4, 5), (6, 8), (3, 7), (6, 2)):
        args = arguments(b, t)
        results = []
        for g in (fast, f):
            jg.manual_seed(b)
            results.append([x.detach().numpy() for x in leaves(g(*args))])
        for x, y in zip(*results, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert fast.stats.traces == 2


def test_the_cache_and_memory_follow_the_sizes(tmp_path: Path) -> None:
    """An image from the disk cache plans the arenas of its bodies for each call's sizes."""

    def f(h: Any, xs: Any) -> Any:
        return loop_in_loop(h, xs * 1.5)

    with knob(cache_dir=str(tmp_path)):
        for cached in (False, True):
            fast = jit(f, fallback="error")
            for b, t in ((4, 5), (6, 8), (30, 3), (300, 2), (5, 9)):
                compare(fast, f, b, t)
            compiled = [s.compiled for s in fast.specialisations]
            assert [c.report.cached for c in compiled] == [cached] * 2
            (replan,) = [c._replan for c in compiled if c.syms]
            small, large = (replan({"s0": n, "s1": 4})[-1] for n in (9, 900))
            assert large > 20 * small
            del fast, compiled, replan
            gc.collect()


def test_text_of_graphs_with_sizes_in_bodies() -> None:
    e = jg.export(
        loop_in_loop, *arguments(4, 5), dynamic_shapes={"h": {0: "b"}, "xs": {0: "t", 1: "b"}}
    )
    text = to_text(e.graph)
    assert "float32[b, 3] = arg" in text.split("graph body() {")[1]
    again = parse(text)
    assert to_text(again) == text
    bodies = [n.attr[name] for n in again.nodes for name in n.op.bodies]
    assert bodies and all(b.env is again.env for b in bodies)
    for b, t in ((2, 3), (1, 4), (5, 1)):
        args = arguments(b, t)
        for x, y in zip(leaves(e(*args)), leaves(loop_in_loop(*args)), strict=True):
            np.testing.assert_allclose(x.numpy(), y.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_with_changing_batches(kind: str) -> None:
    """A training step and inference record no more than twice."""
    jg.manual_seed(0)
    layer = getattr(jg.nn, kind)(3, 4, batch_first=True, bidirectional=True)
    forward = jit(lambda x: layer(x), fallback="error")
    optimizer = jg.optim.SGD(layer.parameters(), 0.1)

    def train(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (layer(x)[0] ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    fast = jit(train, fallback="error")
    for b, t in ((4, 5), (6, 8), (2, 8), (9, 3), (6, 5)):
        x = jg.randn(b, t, 3)
        for y, wanted in zip(leaves(forward(x)), leaves(layer(x)), strict=True):
            np.testing.assert_allclose(
                y.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5
            )
        before = {k: v.clone() for k, v in layer.state_dict().items()}
        loss = fast(x)
        made = {k: v.clone() for k, v in layer.state_dict().items()}
        layer.load_state_dict(before)
        np.testing.assert_allclose(loss.item(), train(x).item(), rtol=1e-5)
        for k, v in layer.state_dict().items():
            np.testing.assert_allclose(made[k].numpy(), v.numpy(), rtol=1e-4, atol=1e-6)
    assert forward.stats.traces == 2, forward.explain_last_miss()
    assert fast.stats.traces <= 3, fast.explain_last_miss()  # the first makes gradients


def test_recurrent_layers_in_segments() -> None:
    """Segments that are alike but for the batch share one code, loops in them too."""
    jg.manual_seed(0)
    layer = jg.nn.GRU(3, 4, batch_first=True)
    seen: list[float] = []

    def f(x: Any) -> Any:
        y = layer(x)[0]
        seen.append((y**2).mean().item())
        return y * seen[-1]

    fast = jit(f, fallback="error")
    for b, t in ((4, 5), (6, 8), (3, 7), (2, 2), (9, 3), (5, 12)):
        x = jg.randn(b, t, 3)
        found, wanted = fast(x), f(x)
        np.testing.assert_allclose(
            found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-5
        )
    assert fast.stats.segments and fast.stats.compiles <= 4


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_native_recurrent_layers_take_any_batch(kind: str, tmp_path: Path) -> None:
    jg.manual_seed(0)
    layer = getattr(jg.nn, kind)(3, 4, batch_first=True, bidirectional=True).eval()

    def f(x: Any) -> Any:
        return layer(x)[0]

    sizes = {0: jg.Dim("batch", max=64), 1: jg.Dim("time", min=1, max=20)}
    exported = jg.export(f, jg.randn(4, 5, 3), dynamic_shapes={"x": sizes})
    exported.native(tmp_path / "model.so")
    library = runtime.load(tmp_path / "model.so")
    for b, t in ((4, 5), (1, 5), (64, 20), (7, 3), (5, 1), (1, 1), (33, 11)):
        x = jg.randn(b, t, 3)
        np.testing.assert_allclose(library(x.numpy()), f(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert library(np.zeros((0, 5, 3), np.float32)).shape == (0, 5, 8)
