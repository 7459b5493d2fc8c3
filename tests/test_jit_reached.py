"""jit: what a branch leaves out is not guarded, by counts of recordings."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.jit import jit
from jitgrad.runtime.errors import FallbackWarning

X = jg.ones(3)
FLAG, GROWS, CONFIG = False, [], {"sizes": [1], "deep": {"a": 1}}


def show(values: Any) -> None:
    print(values)


def global_list(x: Any) -> Any:
    if FLAG:
        show((len(GROWS), GROWS[-1]))
    return x * 2


def in_a_helper(x: Any) -> Any:
    return report(x) if FLAG else x * 2


def report(x: Any) -> Any:
    show(GROWS)
    return x * 2


def in_a_comprehension(x: Any) -> Any:
    if not FLAG:
        return x * 2
    return x * sum(v for v in GROWS)


def in_a_handler(x: Any) -> Any:
    try:
        return x * 2
    except ValueError:
        return x * len(GROWS)


def deep(x: Any) -> Any:
    if FLAG:
        return x * CONFIG["sizes"][-1]
    return x * 2


@pytest.mark.parametrize("function", [global_list, in_a_helper, in_a_handler, deep])
def test_what_was_not_reached_may_change(function: Callable[[Any], Any]) -> None:
    GROWS.clear()
    fast = jit(function, fallback="error")
    for k in range(6):
        assert fast(X).tolist() == [2.0] * 3
        GROWS.append(k)
        CONFIG["sizes"].append(k)
        CONFIG[str(k)] = k
    assert fast.stats.traces == 1 and fast.stats.hits == 5, fast.explain_last_miss()


def test_what_is_reached_later_is_seen() -> None:
    """The flag that led there is guarded, and then what is read there."""
    global FLAG
    GROWS[:] = [5.0]
    fast = jit(in_a_comprehension, fallback="error")
    fast(X), fast(X)
    GROWS[0] = 7.0
    try:
        FLAG = True
        for value in (7.0, 7.0, 3.0, 2.0):
            GROWS[0] = value
            assert fast(X).tolist() == [value] * 3
        FLAG = False
        assert fast(X).tolist() == [2.0] * 3
    finally:
        FLAG = False
    assert fast.stats.traces <= 4


def test_attributes() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.verbose, self.history, self.scale = False, [1], 2.0

        def step(self, x: Any) -> Any:
            if self.verbose:
                x = x * len(self.history)
            return x * self.scale

    trainer = Trainer()
    fast = jit(trainer.step, fallback="error")
    for k in range(5):
        assert fast(X).tolist() == [2.0] * 3
        trainer.history.append(k)
    trainer.history = [1, 2, 3]
    fast(X)
    assert fast.stats.traces == 1
    trainer.scale = 3.0
    assert fast(X).tolist() == [3.0] * 3
    trainer.verbose = True
    assert fast(X).tolist() == [9.0] * 3
    trainer.history.append(4)
    assert fast(X).tolist() == [12.0] * 3


def test_a_name_of_several_objects_is_read_where_one_of_them_is() -> None:
    a, b = types.SimpleNamespace(n=[1]), types.SimpleNamespace(n=[1])

    def f(x: Any, flag: bool) -> Any:
        if flag:
            return x * len(a.n)
        return x * len(b.n)

    fast = jit(f, fallback="error")
    for _ in range(2):
        assert fast(X, False).tolist() == [1.0] * 3
    b.n.append(2)
    assert fast(X, False).tolist() == [2.0] * 3
    a.n.append(2)
    assert fast(X, True).tolist() == [2.0] * 3


def test_computed_names_are_read() -> None:
    state = types.SimpleNamespace(n=[1], name="n")

    def f(x: Any, flag: bool) -> Any:
        if flag:
            return x * len(state.n)
        return x * len(getattr(state, state.name))

    fast = jit(f, fallback="error")
    for k in range(1, 4):
        assert fast(X, False).tolist() == [float(k)] * 3
        state.n.append(k)


def test_a_debugger_sees_all_and_all_is_guarded() -> None:
    GROWS.clear()
    fast = jit(global_list, fallback="error")
    lines: list[int] = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is global_list.__code__:
            lines.append(frame.f_lineno)
            return tracer
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        fast(X)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert len(lines) >= 3
    GROWS.append(1)
    assert fast(X).tolist() == [2.0] * 3
    assert fast.stats.traces == 2 and "length of GROWS" in fast.explain_last_miss()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_gradient_accumulation_is_recorded_once_for_each_path(kind: str) -> None:
    """No gradients yet; gradients; the step."""

    def make() -> tuple[Any, Any, Any]:
        jg.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = {
            "sgd": lambda: jg.optim.SGD(model.parameters(), lr=0.1),
            "momentum": lambda: jg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "adam": lambda: jg.optim.AdamW(model.parameters(), lr=0.01),
        }[kind]()

        def step(x: Any, y: Any, last: bool) -> Any:
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        return model, step, jg.arange(6) % 3

    (model, step, y), (other, plain, _) = make(), make()
    fast = jit(step, fallback="error")
    for i in range(20):
        x = jg.randn(6, 4)
        last = (i + 1) % 4 == 0
        assert jg.allclose(fast(x, y, last), plain(x, y, last), atol=1e-6)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert jg.allclose(p, q, atol=1e-5)
    assert fast.stats.traces == 3 and fast.stats.segments == 0, fast.explain_last_miss()


def test_the_storm_of_a_list_that_grows_says_the_way_out() -> None:
    grows: list[int] = []
    fast = jit(lambda x: x * len(grows), fallback="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        for k in range(10):
            fast(X)
            grows.append(k)
    (text,) = [str(w.message) for w in caught if "9th time" in str(w.message)]
    assert "length of grows: 7 -> 8" in text and "read it outside" in text and "append" in text
