"""jit: ints of Python state that change between calls: from the second value on they are symbolic.
How often is recorded is counted; state holds plain ints throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from alike import assert_same

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import jit

STEP = 0
X = jg.tensor(np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32))


def calls(fast: Any, plain: Callable[..., Any], change: Callable[[int], None], count: int) -> None:
    for k in range(count):
        change(k)
        assert_same(fast(X), plain(X), 1e-5, 1e-5)


def use(n: Any, x: Any) -> Any:
    return x * n + (n + 1) // 2, x[-n:] if n <= 12 else x, n / 4, n


def test_globals() -> None:
    def f(x: Any) -> Any:
        return use(STEP, x)

    def change(k: int) -> None:
        global STEP
        STEP = k

    fast = jit(f, fallback="error")
    calls(fast, f, change, 20)
    assert type(STEP) is int
    # 0 and 1 for themselves; 2 to 12, and what `n <= 12` decides otherwise
    assert fast.stats.traces == 4 and fast.stats.hits == 16, fast.explain_last_miss()
    assert "2 <= STEP" in fast.guards() and "STEP <= 12" in fast.guards()


def test_cells() -> None:
    n = 3

    def f(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return use(n, y)

        return inner(x)

    def change(k: int) -> None:
        nonlocal n
        n = 3 + k

    fast = jit(f, fallback="error")
    calls(fast, f, change, 10)
    assert type(n) is int and fast.stats.traces == 2


class Windowed(nn.Module):
    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.window = 4
        self.config = {"n": [5, 6]}

    def forward(self, x: Any) -> Any:
        y = self.linear(x)[-self.window :] * self.size
        return y.sum(0) * self.config["n"][0], y.shape[0]


def test_attributes() -> None:
    """Of a Module (under the epoch), of its class, in dicts and lists."""
    model = Windowed()

    def change(k: int) -> None:
        model.window = 4 + k
        Windowed.size = 2 + k
        model.config["n"][0] = 5 + 2 * k

    fast = jit(model, fallback="error")
    calls(fast, model, change, 8)
    assert fast.stats.traces == 2 and fast.stats.hits == 6
    found = model.window, Windowed.size, model.config["n"][0]
    assert found == (11, 9, 19) and {*map(type, found)} == {int}
    model.window = 2.0  # type: ignore[assignment]
    with pytest.raises(TypeError):
        fast(X)
    model.window = 5
    calls(fast, model, lambda k: None, 2)
    del model.window
    with pytest.raises(AttributeError):
        fast(X)


def test_a_gradient_and_a_branch() -> None:
    state = {"step": 2}

    def f(x: Any) -> Any:
        z = x.detach().requires_grad_()
        y = (z * state["step"]).square().mean()
        if y > 40:
            y = y / state["step"]
        y.backward()
        return z.grad

    fast = jit(f, fallback="error")
    calls(fast, f, lambda k: state.update(step=2 + k), 12)
    assert fast.stats.traces <= 3 and type(state["step"]) is int


def test_values_that_code_needs() -> None:
    """range() fixes the value; each is recorded, and none is stale."""
    state = {"n": 2}

    def f(x: Any) -> Any:
        for _ in range(state["n"]):
            x = x * 2
        return x, f"{state['n']}"

    fast = jit(f, fallback="error")
    calls(fast, f, lambda k: state.update(n=2 + k % 3), 9)
    assert fast.stats.traces == 3


def test_code_that_asks_for_types() -> None:
    state = {"n": 2}

    def helper(n: Any) -> bool:
        return type(n) is int

    def f(x: Any) -> Any:
        return x * state["n"] if helper(state["n"]) else x

    fast = jit(f, fallback="error")
    calls(fast, f, lambda k: state.update(n=2 + k % 3), 9)
    assert fast.stats.traces == 3


def test_counters_that_the_function_writes() -> None:
    """Calls leave what eager ones leave: plain ints."""
    state, box = {"n": 2}, [0]

    def f(x: Any) -> Any:
        box[0] = state["n"]
        state["n"] += 1
        return x * state["n"]

    fast = jit(f, fallback="error")
    for k in range(6):
        state["n"] = 2 + 3 * k
        assert fast(X).equal(X * (3 + 3 * k))
        assert (state["n"], box[0]) == (3 + 3 * k, 2 + 3 * k)
        assert type(state["n"]) is type(box[0]) is int
    assert (fast.stats.traces, fast.stats.hits, fast.stats.segments) == (2, 4, 0)


def test_a_write_that_begins_later() -> None:
    """A function that comes to write an int that was symbolic runs in segments from there on."""
    state = {"n": 2, "count": False}

    def f(x: Any) -> Any:
        y = x * state["n"]
        if state["count"]:
            state["last"] = state["n"]
            state["n"] = state["n"] + 1
        return y

    fast = jit(f, fallback="error")
    for k in range(4):
        state["n"] = 2 + k
        assert fast(X).equal(X * (2 + k))
    state["count"] = True
    for k in range(4):
        assert fast(X).equal(X * (5 + k)) and (state["n"], state["last"]) == (6 + k, 5 + k)
        assert type(state["n"]) is type(state["last"]) is int


def test_an_error_leaves_ints() -> None:
    state = {"n": 2}

    def f(x: Any) -> Any:
        y = x[: state["n"]]
        if state["n"] > 3:
            raise ValueError("too many")
        return y

    fast = jit(f, fallback="error")
    for n in (2, 3):
        state["n"] = n
        fast(X)
    state["n"] = 7
    with pytest.raises(ValueError, match="too many"):
        fast(X)
    assert type(state["n"]) is int


def test_fixed() -> None:
    state = {"n": 2}

    def f(x: Any) -> Any:
        return x * state["n"]

    fast = jit(f, fallback="error", dynamic=False)
    calls(fast, f, lambda k: state.update(n=2 + k), 4)
    assert fast.stats.traces == 4


def test_powers_with_a_modulus() -> None:
    def f(x: Any) -> Any:
        return x * pow(STEP, 3, 7) + pow(STEP, STEP, STEP + 4), pow(STEP, -1, 11)

    def change(k: int) -> None:
        global STEP
        STEP = k % 4 + 3

    calls(jit(f, fallback="error"), f, change, 8)
