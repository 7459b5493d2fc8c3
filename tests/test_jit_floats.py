"""jit: floats of Python state that change between calls: from the second value on they are inputs.
How often is recorded is counted; state holds plain floats throughout."""

from __future__ import annotations

import functools
import io
import json
import math
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import assert_same

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import jit

BETA = 0.0
X = jg.tensor(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))


def calls(fast: Any, plain: Callable[..., Any], change: Callable[[int], None], count: int) -> None:
    for k in range(count):
        change(k)
        assert_same(fast(X), plain(X), 1e-5, 1e-6)


def use(s: Any, x: Any) -> Any:
    return x * s + (1 - s) ** 2, x.half() * s, s * 2 + 1


def test_globals() -> None:
    def f(x: Any) -> Any:
        return use(BETA, x)

    def change(k: int) -> None:
        global BETA
        BETA = k / 8

    fast = jit(f, fallback="error")
    calls(fast, f, change, 10)
    assert type(BETA) is float and fast.stats.traces == 2, fast.explain_last_miss()


def test_cells() -> None:
    s = 0.5

    def f(x: Any) -> Any:
        return (lambda y: use(s, y))(x)

    def change(k: int) -> None:
        nonlocal s
        s = 0.5 + k

    fast = jit(f, fallback="error")
    calls(fast, f, change, 8)
    assert type(s) is float and fast.stats.traces == 2


class Annealed(nn.Module):
    temperature = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.beta = 0.0
        self.config = {"rates": [0.5, 0.25]}

    def forward(self, x: Any) -> Any:
        y = (self.linear(x) / self.temperature).softmax(-1)
        if self.beta > 0.5:
            y = y * 2
        return (y * self.beta).sum() + (1 - self.beta) * self.config["rates"][0], self.beta


def test_attributes() -> None:
    model = Annealed()

    def change(k: int) -> None:
        model.beta = k / 10
        Annealed.temperature = 2.0 + k
        model.config["rates"][0] = 0.5 + k

    fast = jit(model, fallback="error")
    calls(fast, model, change, 12)
    # 0.0 for itself, then below and above 0.5
    assert fast.stats.traces == 3 and "beta > 0.5" in fast.explain_last_miss()
    found = model.beta, Annealed.temperature, model.config["rates"][0]
    assert found == (1.1, 13.0, 11.5) and {*map(type, found)} == {float}
    model.beta = 1  # type: ignore[assignment]
    calls(fast, model, lambda k: None, 2)
    fast(X)[0].backward()
    assert model.linear.weight.grad is not None


def test_values_that_code_needs() -> None:
    """Text and math.f look at the value: each is recorded, and none is stale."""
    state = {"s": 0.5}

    def f(x: Any) -> Any:
        json.dumps(state)
        return x * math.exp(state["s"]), len(f"{state['s']}")

    fast = jit(f, fallback="error")
    calls(fast, f, lambda k: state.update(s=0.5 + k % 3), 9)
    assert fast.stats.traces == 3 and type(state["s"]) is float


def test_code_that_asks_for_types() -> None:
    state = {"s": 0.5}

    def f(x: Any) -> Any:
        return x * state["s"] if type(state["s"]) is float else x

    fast = jit(f, fallback="error")
    calls(fast, f, lambda k: state.update(s=0.5 + k % 3), 9)
    assert fast.stats.traces == 3


def test_floats_that_the_function_writes() -> None:
    """These run in segments, as ever; each holds a plain float afterwards."""
    state: dict[str, Any] = {"s": 0.5, "last": None, "write": False}

    def f(x: Any) -> Any:
        y = x * state["s"]
        if state["write"]:
            state["last"] = state["new"] = state["s"]
            state["s"] = state["s"] * 2
        return y

    fast = jit(f, fallback="error")
    for k in range(3):
        state["s"] = 0.5 + k
        assert fast(X).equal(X * (0.5 + k))
    assert fast.stats.traces == 2
    state["write"] = True
    for k in range(4):
        state["s"] = 1.5 + k
        assert fast(X).equal(X * (1.5 + k))
        assert state["last"] == 1.5 + k and state["s"] == 3.0 + 2 * k
        assert {type(state[key]) for key in ("s", "last", "new")} == {float}, k
    assert fast.stats.segments


def test_what_a_recording_that_is_given_up_has_stored() -> None:
    state: dict[str, Any] = {"s": 0.5, "n": 2, "write": False}

    def f(x: Any) -> Any:
        y = x * state["s"] + state["n"]
        if state["write"]:
            state["kept"] = [state["s"], state["n"]]
            state["text"] = str(x.sum())  # ends the recording
        return y

    fast = jit(f, fallback="error")
    for k in range(6):
        state.update(s=0.5 + k, n=2 + k, write=k > 2)
        assert fast(X).equal(X * (0.5 + k) + (2 + k))
    assert [*map(type, state["kept"])] == [float, int] and state["kept"] == [5.5, 7]
    state.update(s=9.5, write=False)
    assert fast(X).equal(X * 9.5 + 7)


def test_other_threads_compute_with_floats() -> None:
    """While a call is recorded, its numbers stand for floats and ints to other threads."""
    state = {"s": 0.5, "n": 3}
    found: list[Any] = []
    kinds: list[str] = []

    def other() -> None:
        kinds.append(type(state["s"]).__name__)
        found.append((state["s"] * 2, 1 - state["s"], X * state["s"], state["n"] + 1))

    def look() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    def f(x: Any) -> Any:
        y = x * state["s"] + state["n"]
        if len(found) < 2:
            look()
        return y

    fast = jit(f, fallback="silent", segments=False)
    for k in range(3):
        state.update(s=0.5 + k, n=3 + k)
        fast(X[: k + 2])
    assert kinds == ["float", "HostScalar"]
    for k, (a, b, x, n) in enumerate(found):
        assert (a, b, n) == (1.0 + 2 * k, 0.5 - k, 4 + k) and x.equal(X * (0.5 + k))
        assert type(a) is type(b) is float and type(n) is int


def test_pure_keeps_what_it_changes() -> None:
    """What jit(pure=True) changes itself is no longer guarded, whatever it was."""
    count, total = [0], [0.5]

    @jit(pure=True, fallback="error")
    def f(x: Any) -> Any:
        count[0] += 1
        total[0] += 1.5
        return x * 2

    for n in (2, 3, 4, 5):
        count[0] += 5
        total[0] += 5.0
        f(jg.ones(n)), f(jg.ones(n))
    assert f.stats.traces == 2


def test_powers_that_are_complex() -> None:
    def f(x: Any) -> Any:
        return x * BETA**0.5, BETA**2, (-2.0) ** BETA, 2.0**BETA

    def seen(x: Any) -> Any:
        return x * (x.sum() * BETA).item() ** 0.5

    def change(k: int) -> None:
        global BETA
        BETA = (0.5, 0.75, -1.5, 2.0, 0.25, -0.5)[k]

    calls(jit(f, fallback="error"), f, change, 6)
    calls(jit(seen, fallback="error"), seen, change, 6)


def test_floats_that_are_no_ints() -> None:
    """floor, ceil and int raise what Python's floats raise."""

    def change(k: int) -> None:
        global BETA
        BETA = (0.5, 1.5, 2.0)[k]

    for whole in (math.floor, math.ceil, int):

        def f(x: Any, whole: Any = whole) -> Any:
            return x * whole(BETA)

        fast = jit(f, fallback="error")
        calls(fast, f, change, 3)
        globals()["BETA"] = math.inf
        with pytest.raises(OverflowError, match="infinity"):
            fast(X)


def test_a_cache_keeps_plain_numbers() -> None:
    @functools.cache
    def doubled(s: float) -> Any:
        return s * 2, [s + 1]

    fast = jit(lambda x, s: x * doubled(s)[0] - doubled(s)[1][0], fallback="error")
    for s in (1.5, 2.5, 1.5, 2.5):
        assert_same(fast(X, s), X * (s * 2) - (s + 1), 1e-6, 1e-6)
        assert [type(v) for v in (doubled(s)[0], *doubled(s)[1])] == [float, float]


def test_numbers_that_a_refused_call_keeps_are_floats() -> None:
    """The first call shows that the function runs in segments; what it was lent are floats then."""
    kept: dict[Any, Any] = {}
    holder = types.SimpleNamespace()

    @jit(fallback="error")
    def f(x: Any, s: float) -> Any:
        kept[s] = (s, [s * 2], {s + 1: -s})
        holder.pair = (s, s / 2)
        kept["function"] = lambda: s * 3
        print(f"{s}", file=io.StringIO())
        return x * s

    for s in (1.5, 2.5):
        assert f(X, s).equal(X * s)
        assert kept["function"]() == 3 * s
        del kept["function"]
        assert holder.pair == (s, s / 2) and {type(v) for v in holder.pair} == {float}
    want = {s: (s, [s * 2], {s + 1: -s}) for s in (1.5, 2.5)}
    assert kept == want and json.dumps(list(kept.items())) == json.dumps(list(want.items()))
