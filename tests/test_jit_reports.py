"""What jit counts and says: stats, misses, reasons; pure=True; check=True of backwards."""

from __future__ import annotations

import cProfile
import gc
import io
import logging
import os
import pathlib
import pstats
import random
import sys
import time
import types
import uuid
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn, optim
from jitgrad.compiler.ops.record import OPS
from jitgrad.explain import _worst
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob

X = jg.tensor([1.0, 2.0, 3.0])


# -- counts and misses -----------------------------------------------------------------------------
def test_a_forward_and_its_backward_are_two_compiles() -> None:
    w = jg.ones(3, requires_grad=True)

    @jit(fallback="error")
    def f(x: Any) -> Any:
        return (x * w).sum()

    f(X), f(X).backward()
    assert (f.stats.traces, f.stats.compiles, f.stats.hits) == (1, 2, 1)
    with jg.no_grad():
        f(X), f(X)
    assert (f.stats.traces, f.stats.compiles, f.stats.hits) == (2, 3, 2)


class Anonymous:
    def __repr__(self) -> str:
        return "<Anonymous>"


class Other(Anonymous):
    pass


LOOKS_ALIKE = {
    "object": (Anonymous(), Anonymous(), "another object that looks alike: <Anonymous>"),
    "class": (Anonymous(), Other(), f"a {__name__}.Anonymous -> a {__name__}.Other"),
    "type": (1, np.int64(1), "1 -> "),
    "long text": ("a" * 100, "a" * 99 + "b", "from 99: 'a' -> 'b'"),
    "function": (lambda x: x, lambda x: x, "function"),
}


@pytest.mark.parametrize("name", LOOKS_ALIKE)
def test_a_miss_says_what_differs(name: str) -> None:
    old, new, text = LOOKS_ALIKE[name]
    c = types.SimpleNamespace(v=old)

    @jit(fallback="error")
    def captured(x: Any) -> Any:
        return x * (1 if c.v is None else 2) + len(str(c.v))

    @jit(fallback="error")
    def passed(x: Any, v: Any) -> Any:
        return x * (1 if v is None else 2)

    captured(X), captured(X)
    c.v = new
    captured(X)
    passed(X, old), passed(X, old), passed(X, new)
    for f in (captured, passed):
        assert f.stats.traces == 2
        before, _, after = f.explain_last_miss().partition(" -> ")
        assert before.removeprefix("0: v: ") != after, "says that a thing became itself"
    assert text in captured.explain_last_miss()


def test_a_miss_by_order() -> None:
    d = {"a": 1.0, "b": 2.0}

    @jit(fallback="error")
    def f(x: Any) -> Any:
        for v in d.values():
            x = x * 2 + v
        return x

    f(X)
    d["a"] = d.pop("a")
    f(X)
    assert f.explain_last_miss() == "0: keys of d: ('a', 'b') -> ('b', 'a')"


def test_a_miss_by_hooks_of_an_argument() -> None:
    x = jg.zeros(3, requires_grad=True)
    x.register_hook(lambda g: g)

    @jit(fallback="silent")
    def g(x: Any) -> Any:
        return jg.autograd.grad((x * x).sum(), x)[0]

    g(jg.zeros(3, requires_grad=True)), g(x)
    assert "hooks" in g.explain_last_miss()


# -- reasons ---------------------------------------------------------------------------------------
REASONS = {
    "calls os.getpid()": lambda x: x * os.getpid(),
    "calls os.listdir()": lambda x: x * len(os.listdir(".")),
    "calls os.path.exists(), which calls os.stat()": lambda x: x * os.path.exists("/"),
    "calls pathlib.Path.exists()": lambda x: x * pathlib.Path("/").exists(),
    "calls random.Random.uniform()": lambda x: x * random.uniform(1, 2),
    "calls time.time()": lambda x: x * time.time(),
    "calls uuid.uuid4(), which calls os.urandom()": lambda x: x * len(str(uuid.uuid4())),
    "calls io.open()": lambda x: x * len(open(os.devnull).read()),  # noqa: SIM115
    "calls read() of StringIO": lambda x: x * len(io.StringIO("a").read()),
    "calls logging.Logger.debug()": lambda x: x * (LOGGER.debug("x") is None),
    "reads the environment (os.environ)": lambda x: x * len(dict(os.environ)),
    "reads the state of a random generator": lambda x: x * (jg.initial_seed() % 7),
}
LOGGER = logging.getLogger("jg.test_jit_reports")
LOGGER.addHandler(logging.StreamHandler(io.StringIO()))
LOGGER.setLevel(logging.DEBUG)
LOGGER.propagate = False


@pytest.mark.parametrize("reason", REASONS)
@knob(segments=False)
def test_reasons_name_what_the_user_called(reason: str) -> None:
    f = jit(REASONS[reason], fallback="silent")
    f(X)
    assert f.eager[0].reason.removeprefix("it ").startswith(reason)
    assert __file__ in f.eager[0].line


def test_paths_as_text_are_pure() -> None:
    @jit(fallback="error")
    def f(x: Any) -> Any:
        return x * len(os.path.join("a", "b")) + len(os.fspath("abc"))

    assert f(X).equal(f(X)) and f.stats.hits == 1


# -- pure=True -------------------------------------------------------------------------------------
CALLS = {"n": 0, "scale": 2.0}
LOG: list[str] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.scale = 2.0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        CALLS["n"] += 1
        LOG.append("called")
        return x * self.scale * CALLS["scale"]


def test_pure_skips_what_the_function_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    f = jit(net, pure=True, fallback="error")
    for _ in range(4):
        np.testing.assert_array_equal(f(X).numpy(), 4 * X.numpy())
    assert f.stats.traces == 1 and f.stats.hits == 3
    assert (net.calls, CALLS["n"], len(LOG)) == (1, 1, 1)
    # What it only reads is guarded as ever.
    net.scale = 3.0
    np.testing.assert_array_equal(f(X).numpy(), 6 * X.numpy())
    monkeypatch.setitem(CALLS, "scale", 5.0)
    np.testing.assert_array_equal(f(X).numpy(), 15 * X.numpy())
    assert f.stats.traces == 3


@knob(segments=False)
def test_pure_skips_nothing_that_compiled_code_reads() -> None:
    w = [(jg.ones(3),)]

    @jit(pure=True, fallback="silent")
    def grows(x: Any) -> Any:
        y = x * w[0][0]
        w[0] = (jg.full((3,), 2.0),)
        return y

    grows(X)
    assert "changes w[0]" in grows.eager[0].reason
    p = nn.Parameter(jg.ones(3))
    optimizer = optim.SGD([p], lr=0.5)

    @jit(pure=True, fallback="silent")
    def schedules(x: Any) -> Any:
        p.grad = x.clone()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5

    for _ in range(3):
        schedules(X)
    np.testing.assert_allclose(p.detach().numpy(), 1 - 0.875 * X.numpy())


# -- check=True ------------------------------------------------------------------------------------
def test_check_runs_the_references_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    w = jg.ones(3, requires_grad=True)

    @jit(check=True, fallback="error")
    def f(x: Any) -> Any:
        return (x * w).sinh().sum()

    f(X).backward()
    f(X).backward()
    np.testing.assert_allclose(w.grad.numpy(), 2 * X.numpy() * np.cosh(X.numpy()), rtol=1e-5)
    loss = f(X)
    right = type(OPS["cosh"]).reference
    monkeypatch.setattr(
        type(OPS["cosh"]), "reference", lambda self, x, **attrs: right(self, x, **attrs) + 0.5
    )
    with pytest.raises(RuntimeError, match=r"\[cosh\] compiled code differs from the reference"):
        loss.backward()


def test_recording_under_a_profiler():
    """cProfile, a profile function of the user's: they go on after the recording."""
    seen = []

    def profile(frame, event, argument):
        seen.append(frame.f_code.co_name)

    def after():
        return 1

    f = jit(lambda x: x + 1, fallback="error")
    native = cProfile.Profile()
    native.enable()
    f(jg.ones(1)), f(jg.ones(1)), after()
    native.disable()
    assert gc.isenabled() and f.stats.hits == 1
    assert any(key[2] == "after" for key in pstats.Stats(native).stats)
    g = jit(lambda x: x + 1, fallback="error")
    sys.setprofile(profile)
    g(jg.ones(1)), after()
    sys.setprofile(None)
    assert "after" in seen and g.stats.traces == 1


def test_where_arrays_differ_most() -> None:
    a = np.array([[1.0, 2.0], [np.nan, 4.0]])
    assert _worst(a, a + [[0, 1e-3], [0, 0.5]]) == "at [1, 1] it gave 4, the reference 4.5"
    b = np.array([[1.0, 2.0], [3.0, 9.0]])
    assert _worst(a, b) == "at [1, 0] it gave nan, the reference 3"
    assert (
        _worst(np.array(1, np.int32), np.array(2, np.int32)) == "at [] it gave 1, the reference 2"
    )
