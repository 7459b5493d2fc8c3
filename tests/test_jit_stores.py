"""What a function leaves in Python state, compiled: numbers that it assigns, what it appends.

Each program runs eagerly and under @jit(fallback="error"): results, and all that is left, are equal
at each call, and of equal types; calls are native, without segments, or in segments where stated.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.jit import jit
from jitgrad.runtime.errors import CompileError, FallbackWarning

X = jg.arange(6.0).reshape(2, 3) / 5
COUNT, LOG, STATE = 0, [], {"n": 2, "ema": 0.0, "last": None}
Made = tuple[Callable[[Any], Any], Callable[[], Any]]


def plain(x: Any) -> Any:
    """Values with their types; tensors as lists of numbers, with what they are on the tape."""
    if isinstance(x, jg.Tensor):
        about = (x.shape, str(x.dtype), x.requires_grad, x.is_leaf)
        return ("tensor", about, x.detach().reshape(-1).tolist())
    if isinstance(x, dict):
        return ("dict", list(x), plain(list(x.values())))
    if isinstance(x, (tuple, list)):
        return (type(x).__name__, *map(plain, x))
    return x


def assert_alike(a: Any, b: Any) -> None:
    assert type(a) is type(b), (a, b)
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b), (a, b)
        for x, y in zip(a, b, strict=True):
            assert_alike(x, y)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-6)
    else:
        assert a == b


def play(make: Callable[[], Made], calls: int, wrap: Any) -> tuple[list[Any], Any]:
    function, left = make()
    function = wrap(function)
    out = []
    for k in range(calls):
        out.append(plain(function(X + k)))
        out.append(plain(left()))
    return out, function


def check(make: Callable[[], Made], traces: int, segments: bool = False, calls: int = 9) -> Any:
    """Compares with eager calls; traces: recordings. segments: some calls run so."""
    expected, _ = play(make, calls, lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found, f = play(make, calls, jit(fallback="error"))
    assert_alike(found, expected)
    assert f.stats.traces == traces, f.explain_last_miss()
    assert bool(f.stats.segments) is segments
    assert segments or f.stats.hits == calls - traces
    return f


def global_number() -> Made:
    global COUNT
    COUNT = 0

    def f(x: Any) -> Any:
        global COUNT
        COUNT += x.shape[0]
        return x * COUNT

    return f, lambda: COUNT


def number_in_a_cell() -> Made:
    n = 5

    def f(x: Any) -> Any:
        nonlocal n
        n = n * 2 - 3
        return x + n

    return f, lambda: n


def attributes() -> Made:
    c = types.SimpleNamespace()

    class Config:
        count, ready, mean, name, best = 0, False, 0.0, "first", None

    config = Config()
    config.count, config.ready, config.mean, config.name, config.best = 0, False, 0.5, "a", None
    c.config = config

    def f(x: Any) -> Any:
        config.count += 1
        config.mean = 0.9 * config.mean + 0.1 * x.sum().item()
        if not config.ready:
            config.ready, config.name = True, "later"
        config.best = x.max().item()
        return x * config.count

    return f, lambda: vars(config)


def class_attribute() -> Made:
    class Counted:
        made = 3

    def f(x: Any) -> Any:
        Counted.made += 1
        return x - Counted.made

    return f, lambda: Counted.made


def module_attribute() -> Made:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.seen = 2, 0.0

        def forward(self, x: Any) -> Any:
            self.steps += 1
            self.seen = self.seen + x.shape[0] / 2
            return x * self.steps

    net = Net()
    return (lambda x: net(x)), lambda: (net.steps, net.seen)


def items() -> Made:
    STATE.update(n=2, ema=0.0, last=None)
    box = [0.5, 7]

    def f(x: Any) -> Any:
        STATE["n"] += 1
        STATE["ema"] += x.mean().item()
        box[0], box[1] = box[0] * 2, STATE["n"]
        return x * box[1]

    return f, lambda: (dict(STATE), list(box))


def cycle() -> Made:
    state = {"i": 0}

    def f(x: Any) -> Any:
        state["i"] = (state["i"] + 1) % 3
        return x * state["i"]

    return f, lambda: state["i"]


def toggle() -> Made:
    state = {"on": False}

    def f(x: Any) -> Any:
        state["on"] = not state["on"]
        return x + 1 if state["on"] else x - 1

    return f, lambda: state["on"]


def appends_numbers() -> Made:
    losses: list[Any] = []

    def f(x: Any) -> Any:
        loss = x.square().mean()
        losses.append(loss.item())
        losses.append((loss.item() * 2, x.shape[1], "text", None, [loss.item()]))
        losses.append({"a": loss.item(), "b": (1, loss)})
        return loss

    return f, lambda: losses


def appends_tensors() -> Made:
    global LOG
    LOG = []
    w = jg.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        y = (x * w).sum(0)
        LOG.append(y)
        LOG.append((y.detach()[1:], x))
        return y.exp()

    return f, lambda: LOG


def appends_to_attributes() -> Made:
    class Meter:
        def __init__(self) -> None:
            self.values: list[float] = []
            self.count = 0

        def update(self, v: Any) -> None:
            self.values.append(v.item())
            self.count += 1

    meter = Meter()

    def f(x: Any) -> Any:
        meter.update(x.max())
        meter.update(x.min())
        return x + 1

    return f, lambda: (meter.values, meter.count)


def branches() -> Made:
    state = {"high": 0, "low": 0, "best": 1e9}
    log: list[Any] = []

    def f(x: Any) -> Any:
        value = x.mean().item()
        if value > 3:
            state["high"] += 1
            log.append("high")
            return x * 2
        if value < state["best"]:
            state["best"] = value
        state["low"] += 1
        return x

    return f, lambda: (state, log)


PROGRAMS = {
    global_number: 2, number_in_a_cell: 2, attributes: 3, class_attribute: 2, module_attribute: 2,
    items: 2, cycle: 3, toggle: 2, appends_numbers: 1, appends_tensors: 1,
    appends_to_attributes: 2,
}  # fmt: skip


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda f: f.__name__)
def test_numbers_and_appends_are_left_by_compiled_calls(make: Callable[[], Made]) -> None:
    check(make, PROGRAMS[make])


def test_leaves_of_a_tree_leave_their_own() -> None:
    expected, _ = play(branches, 12, lambda f: f)
    found, f = play(branches, 12, jit(fallback="error"))
    assert_alike(found, expected)
    assert f.stats.hits > 0 and f.stats.segments == 0


def test_a_list_may_be_replaced_or_cleared_between_calls() -> None:
    state = types.SimpleNamespace(log=[])

    @jit(fallback="error")
    def f(x: Any) -> Any:
        state.log.append(x.sum().item())
        return x

    old = state.log
    for _ in range(3):
        f(X)
    state.log = []
    f(X), f(X)
    old.clear()
    f(X)
    assert old == [] and len(state.log) == 3 and f.stats.traces == 1


def test_a_long_list_is_no_reason() -> None:
    log = [0.0] * 50_000

    @jit(fallback="error")
    def f(x: Any) -> Any:
        log.append(x.sum().item())
        return x

    f(X), f(X)
    assert len(log) == 50_002 and f.stats.hits == 1


# -- what replay cannot leave ----------------------------------------------------------------------
def reads_the_list() -> Made:
    log: list[Any] = []

    def f(x: Any) -> Any:
        log.append(1)
        return x * len(log)

    return f, lambda: log


def reads_it_elsewhere() -> Made:
    log: list[Any] = []

    def last(x: Any) -> Any:
        return x + log[-1] * len(log)

    def f(x: Any) -> Any:
        log.append(2)
        return last(x)

    return f, lambda: log


def keeps_the_element() -> Made:
    log: list[Any] = []

    def f(x: Any) -> Any:
        element = {"a": x.sum().item()}
        log.append(element)
        return element

    return f, lambda: log


def needs_the_value() -> Made:
    state = {"i": 2}

    def f(x: Any) -> Any:
        state["i"] += 1
        return x * float(str(state["i"]))

    return f, lambda: state


def ever_new_text() -> Made:
    state = {"text": ""}

    def f(x: Any) -> Any:
        state["text"] += "x"
        return x + 1

    return f, lambda: state


@pytest.mark.parametrize(
    ("make", "traces"),
    [(reads_the_list, 1), (reads_it_elsewhere, 1), (keeps_the_element, 1), (needs_the_value, 2),
     (ever_new_text, 9)],
)  # fmt: skip
def test_other_effects_run_in_segments(make: Callable[[], Made], traces: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # of many recordings
        expected, _ = play(make, 12, lambda f: f)
        found, f = play(make, 12, jit(fallback="error"))
    assert_alike(found, expected)
    assert f.stats.segments > 0 and f.stats.traces == traces


def test_a_call_that_fails_leaves_nothing() -> None:
    state, log = {"n": 5}, []
    table = jg.arange(4.0)

    @jit(fallback="error")
    def f(i: Any) -> Any:
        state["n"] += 1
        log.append(state["n"])
        return table[i] * 2

    for _ in range(3):
        f(jg.tensor([1, 2]))
    assert f.stats.hits == 1
    with pytest.raises(IndexError):
        f(jg.tensor([1, 9]))
    assert state["n"] == 8 and log == [6, 7, 8]
    f(jg.tensor([1, 2]))
    assert state["n"] == 9 and log == [6, 7, 8, 9] and f.stats.hits == 2


def test_appends_of_others_meanwhile_are_not_repeated() -> None:
    log: list[Any] = []

    def other() -> None:
        log.append("other")

    class Shouts:
        """As another thread would, while the function is recorded."""

        def __init__(self) -> None:
            self.first = True

        def __add__(self, x: Any) -> Any:
            if self.first:
                self.first = False
                thread = threading.Timer(0, other)
                thread.start()
                thread.join()
            return x

    shouts = Shouts()

    def f(x: Any) -> Any:
        log.append("mine")
        return shouts + x

    fast = jit(f, fallback="silent")
    for _ in range(4):
        fast(X)
    assert log.count("other") == 1 and log.count("mine") == 4


def test_an_epoch_that_stores_move_hides_no_change() -> None:
    """A Module's counter bumps the epoch at each call; other changes are seen all the same."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps, self.scale = 2, 2.0
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            self.steps += 1
            return self.inner(x) * self.scale

    net = Net()
    fast = jit(net, fallback="error")
    other = jit(lambda x: x * net.steps, fallback="error")
    other(X)
    for _ in range(4):
        want = net.inner(X) * 2
        assert jg.allclose(fast(X), want)
        assert other(X).equal(X * net.steps)
    net.scale = 3.0
    assert jg.allclose(fast(X), net.inner(X) * 3)
    net.inner.weight = nn.Parameter(jg.ones(3, 3))
    assert jg.allclose(fast(X), net.inner(X) * 3)
    net.eval()
    fast(X)
    assert net.steps == 2 + 7 and net.inner(X).shape == (2, 3)


def test_pure_functions_skip_them() -> None:
    state, log = {"n": 2}, []

    @jit(pure=True, fallback="error")
    def f(x: Any) -> Any:
        state["n"] += 1
        log.append(x.sum().item())
        return x + 1

    for _ in range(3):
        f(X)
    assert state["n"] == 3 and len(log) == 1 and type(log[0]) is float and f.stats.hits == 2


def cached_write() -> Made:
    w = jg.zeros(3)

    @functools.cache
    def first() -> int:
        w.add_(1)
        return 2

    return lambda x: x * first() + w, lambda: w


def cached_append() -> Made:
    log: list[int] = []

    @functools.lru_cache(maxsize=2)
    def squares(n: int) -> tuple[int, ...]:
        log.append(n)
        return tuple(i * i for i in range(n))

    return lambda x: x + squares(x.shape[0])[-1], lambda: list(log)


def cached_draw() -> Made:
    jg.manual_seed(1)

    @functools.cache
    def first() -> bool:
        return bool(jg.rand(()) > 0.5)

    return lambda x: x * 2 if first() else x * 3, lambda: jg.get_rng_state().sum()


@pytest.mark.parametrize("make", [cached_write, cached_append, cached_draw])
def test_what_a_cached_function_did_is_not_done_again(make: Callable[[], Made]) -> None:
    check(make, 2)


def test_a_cache_that_each_call_fills() -> None:
    def make() -> Made:
        log: list[int] = []
        calls = [0]

        @functools.cache
        def noted(n: int) -> int:
            log.append(n)
            return n

        def f(x: Any) -> Any:
            calls[0] += 1
            return x + noted(calls[0])

        return f, lambda: list(log)

    check(make, 3, segments=True, calls=12)


def test_export_refuses_them() -> None:
    state = {"n": 2}

    def f(x: Any) -> Any:
        state["n"] += 1
        return x + 1

    with pytest.raises(CompileError, match=r"it changes state\['n'\]"):
        jg.export(f, X)


def test_guards_show_them() -> None:
    assert ".append(" in check(appends_numbers, 1).guards()
