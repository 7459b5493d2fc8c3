"""jit and Python numbers: floats are lifted, ints, bools and strings are guarded by value."""

from __future__ import annotations

import copy
import dataclasses
import fractions
import functools
import json
import math
import numbers
import statistics
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn, optim
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob

X = jg.tensor([1.0, 2.0, 3.0])


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def run(function: Any, values: list[tuple[Any, ...]]) -> Any:
    fast = jit(function)
    for args in values:
        expected = function(X, *args)
        got = fast(X, *args)
        np.testing.assert_array_equal(got.numpy(), expected.numpy())
        assert got.dtype is expected.dtype
    return fast


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * s,
        lambda x, s: s - x,
        lambda x, s: x * (1 - s) ** 2 / 3 + -s,
        lambda x, s: (x > s) * 1.0,
        lambda x, s: x.double() * s,
        lambda x, s: x.long() * s,
        lambda x, s: x.half() + abs(s) % 0.3 + s // 1,
        lambda x, s: jg.full((2,), s) + 1,
        lambda x, s: jg.tensor(s) + x,
        lambda x, s: x.clone().fill_(s),
    ],
)
def test_a_float_that_changes_is_one_trace(function: Any) -> None:
    fast = run(function, [(0.1,), (0.2,), (0.30000001,), (-1.5,), (1e30,)])
    assert fast.stats.traces == 1, fast.explain_last_miss()
    assert fast.stats.hits == 4


@dataclasses.dataclass
class Bounds:
    low: Any
    high: Any


def _matches(s: Any) -> int:
    match s:
        case int():
            return 2
        case float(value):
            return 3 + (value > 0.15)
    return 4


def _named(kind: Any) -> str:
    return kind.__name__


def _of_helper(values: Any) -> float:
    return sum(2.0 for v in values if type(v) is float)


@functools.singledispatch
def _dispatched(s: Any) -> float:
    return 1.0


@_dispatched.register
def _(s: float) -> float:
    return 2.0


ASKS_FOR_FLOATS = [
    lambda x, s: x * s if isinstance(s, float) else x,
    lambda x, s: x * (2 if isinstance(s, (int, float)) else 3),
    lambda x, s: x * (2 if isinstance(s, numbers.Number) else 3) + isinstance(s, numbers.Integral),
    lambda x, s: x * isinstance(s, numbers.Real) * issubclass(s.__class__, float),
    lambda x, s: x * (2 if type(s) is float else 3),
    lambda x, s: x * (2 if type(s * 2) is float else 3),
    lambda x, s: x * (2 if type((s, s)[0]) in (int, float) else 3),
    lambda x, s: x * len(_named(type(s))),
    lambda x, s: x * sum(t is float for t in map(type, [s, 1])),
    lambda x, s: x * _matches(s),
    lambda x, s: x * _of_helper([s, 1.0, 2]) * _of_helper((s, (s, s))),
    lambda x, s: x * _dispatched(s),
    lambda x, s: x * len(repr(s)) + len(str(s)) + len(f"{s!r}") + len("%s %r" % (s, s)),  # noqa: UP031
    lambda x, s: x * len(json.dumps({"s": [s]})) + len(repr(Bounds(s, s))),
    lambda x, s: x * dataclasses.asdict(Bounds(s, [s]))["low"],
    lambda x, s: x * s.is_integer() + s.as_integer_ratio()[0] % 7 + len(s.hex()) + s.real + s.imag,
    lambda x, s: x * divmod(s, 0.3)[1] + divmod(1, s + 3)[0],
    lambda x, s: x * float(fractions.Fraction(s)) + statistics.mean([s, 1.0]) + math.floor(s),
    lambda x, s: x * float(np.float32(3) * s) + float(s * np.float64(2)) + float(np.sqrt(s * s)),
    lambda x, s: x * float((np.ones(2, np.float32) * s).sum()) + str(np.float32(1) + s).__len__(),
    lambda x, s: x * float(np.clip(np.ones(2, np.float32), 0, s * s).sum()) + np.array([s]).sum(),
    lambda x, s: x * np.where(np.array([True]), s, 0.0).item() + np.full(2, s).sum(),
    lambda x, s: x * abs(complex(s)) + hash(s) % 7 + ({s: 5}[s] if s in (s, 1.0) else 0),
    lambda x, s: x * copy.copy(s) + copy.deepcopy([s])[0],
    lambda x, s: x.clamp(-s * s, s * s + 1) + F.leaky_relu(-x, s) + F.elu(-x, s * s),
    lambda x, s: x + F.dropout(x, min(s * s, 0.9), training=False) + jg.full_like(x, s),
]  # fmt: skip


@pytest.mark.parametrize("function", ASKS_FOR_FLOATS, ids=range(len(ASKS_FOR_FLOATS)))
def test_code_that_asks_whether_it_has_a_float(function: Any) -> None:
    run(function, [(0.1,), (0.25,), (-1.5,), (0.1,), (2.0,)])


def test_asking_isinstance_does_not_specialise() -> None:
    def function(x: Any, s: Any) -> Any:
        return x * s + s if isinstance(s, float) and isinstance(s, numbers.Number) else x

    assert run(function, [(0.1,), (0.2,), (3.0,)]).stats.traces == 1


def test_a_float_that_becomes_an_int_or_a_numpy_number() -> None:
    def function(x: Any, s: Any) -> Any:
        return x * (2 if type(s) is float else 3) + isinstance(s, float)

    run(function, [(2.0,), (2,), (np.float64(2.0),), (np.float32(2.0),), (True,), (2.0,)])


def test_floats_in_tuples_and_keywords() -> None:
    Pair = namedtuple("Pair", "a b")

    @jit
    def f(x: Any, betas: Any, pair: Any, *, lr: float) -> Any:
        return x * betas[0] + betas[1][0] * pair.a + pair.b - lr

    for i in range(4):
        got = f(X, (0.5 * i, (1.0 + i,)), Pair(2.0, 0.25 * i), lr=0.1 * i)
        expected = X.numpy() * np.float32(0.5 * i) + np.float32((1.0 + i) * 2.0)
        expected = expected + np.float32(0.25 * i) - np.float32(0.1 * i)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)
    assert f.stats.traces == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, s: x * 2 if s > 0.15 else x * 3,
        lambda x, s: x * float(s),
        lambda x, s: x * math.sqrt(s),
        lambda x, s: x * {0.1: 5, 0.2: 6}[s],
        lambda x, s: x * round(s, 1),
        lambda x, s: x if s - 0.05 else x + 1,
        lambda x, s: x * len(f"{s:.2f}"),
        lambda x, s: x * int(s * 10),
    ],
)
def test_looking_at_a_float_specialises(function: Any) -> None:
    fast = run(function, [(0.1,), (0.1,), (0.2,), (0.2,), (0.1,)])
    assert fast.stats.traces == 2, fast.explain_last_miss()
    assert fast.stats.hits == 3


def test_whether_a_float_is_zero_is_guarded() -> None:
    """Not its value: a weight decay that is scheduled is one trace, and another where it is off."""
    fast = run(
        lambda x, s: x * s if s else x + 1,
        [(0.1,), (0.2,), (-0.3,), (0.0,), (-0.0,), (0.5,), (math.nan,)],
    )
    assert fast.stats.traces == 2, fast.explain_last_miss()
    assert fast.explain_last_miss() == "0: s: not zero -> 0.0"


def _assigned(x: Any, s: Any) -> Any:
    out = jg.zeros_like(x, dtype=jg.uint8)
    out[:] = s
    return out


@pytest.mark.parametrize(
    "function",
    [
        _assigned,
        lambda x, s: jg.full((2,), s, dtype=jg.int8),
        lambda x, s: x.short().fill_(s),
        lambda x, s: x.int().masked_fill(x > 1, s),
        lambda x, s: x.clone().fill_(s),
        lambda x, s: jg.full((2,), s),
        lambda x, s: x.clamp(min=s),
        lambda x, s: x.add(x, alpha=s),
    ],
)
def test_a_float_that_a_dtype_does_not_hold_is_refused(function: Any) -> None:
    """In a call of compiled code, too; which holds for all numbers in range."""
    fast = run(function, [(0.5,), (2.0,), (0.75,), (7.0,)])
    traces = fast.stats.traces
    for wrong in (1e60, -1e60):
        with pytest.raises(RuntimeError, match="without overflow") as expected:
            function(X, wrong)
        with pytest.raises(RuntimeError, match="without overflow") as found:
            fast(X, wrong)
        assert str(found.value).split(" (at")[0] == str(expected.value).split(" (at")[0]
    np.testing.assert_array_equal(fast(X, 3.0).numpy(), function(X, 3.0).numpy())
    assert fast.stats.traces == traces + 2
    assert fast.stats.hits >= 3


@pytest.mark.parametrize("values", [(1, 2), (True, False), ("a", "bb"), (None, 3), (1, True)])
def test_others_are_guarded_by_value(values: tuple[Any, Any]) -> None:
    def f(x: Any, v: Any) -> Any:
        return x * len(repr(v))

    fast = run(f, [(values[0],), (values[0],), (values[1],), (values[0],), (values[1],)])
    assert fast.stats.traces == 2
    assert fast.stats.hits == 3


def test_float_and_int_are_different_signatures() -> None:
    fast = run(lambda x, s: x.long() * s, [(2,), (2.0,), (2,), (3.0,)])
    assert fast.stats.traces == 2


def test_a_float_result_is_computed() -> None:
    @jit(fallback="error")
    def f(x: Any, s: float, out: Any) -> Any:
        out.add_(1)
        return x * s, s, 2 / s, [1.5, s]

    out = jg.zeros(1)
    for s in (0.5, 0.5, 0.25):
        y, again, inverse, both = f(X, s, out)
        assert type(inverse) is type(again) is float
        assert (again, inverse, both) == (s, 2 / s, [1.5, s])
        np.testing.assert_array_equal(y.numpy(), X.numpy() * np.float32(s))
    assert f.stats.traces == 1 and out.item() == 3
    with pytest.raises(ZeroDivisionError):
        f(X, 0.0, out)
    assert out.item() == 3  # a compiled call that fails writes nothing


def test_nan_and_signed_zero_when_specialised() -> None:
    def f(x: Any, s: float) -> Any:
        return x + (1 if str(float(s)) == "-0.0" else 2)

    fast = run(f, [(0.0,), (-0.0,), (0.0,), (math.nan,), (math.nan,)])
    assert fast.stats.traces == 3


def test_learning_rate_schedule_is_one_trace() -> None:
    w = nn.Parameter(jg.ones(3))
    optimizer = optim.SGD([w], lr=1.0)

    @jit
    def step(x: Any) -> None:
        optimizer.zero_grad()
        (x * w).sum().backward()
        optimizer.step()

    expected = np.ones(3, np.float32)
    for i in range(6):
        optimizer.param_groups[0]["lr"] = lr = 0.5**i
        step(X)
        expected = expected - X.numpy() * np.float32(lr)
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-6)
    assert step.stats.traces <= 2
    optimizer.param_groups[0]["lr"] = 1  # an int is guarded
    step(X)
    assert step.stats.traces <= 3
    np.testing.assert_allclose(w.detach().numpy(), expected - X.numpy(), rtol=1e-6)


def test_a_hyper_parameter_that_python_looked_at() -> None:
    w = nn.Parameter(jg.ones(3))
    optimizer = optim.SGD([w], lr=0.1, weight_decay=0.0)

    @jit
    def step(x: Any) -> None:
        optimizer.zero_grad()
        (x * w).sum().backward()
        optimizer.step()

    for _ in range(4):
        step(X)
    before, traces = w.detach().numpy().copy(), step.stats.traces
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step(X)
    assert step.stats.traces == traces + 1
    expected = before - np.float32(0.1) * (X.numpy() + np.float32(0.5) * before)
    np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-6)


def test_a_tensor_of_a_lifted_float_is_written() -> None:
    def function(x: Any, s: Any) -> Any:
        a = jg.tensor(s, dtype=jg.float64)
        a.add_(1)
        b = jg.full((), s, dtype=jg.float64)
        b.mul_(3)
        return x * a * b * jg.tensor(s, dtype=jg.float64) + jg.as_tensor(s)

    assert run(function, [(2.0,), (3.0,), (4.0,)]).stats.traces == 1


def test_equal_expressions_of_lifted_floats_are_one_input() -> None:
    def inputs(count: int) -> int:
        ps = [nn.Parameter(jg.ones(3)) for _ in range(count)]
        optimizer = optim.Adam(ps, lr=0.1)

        @jit
        def step(x: Any) -> None:
            for p in ps:
                p.grad = x.clone()
            optimizer.step()

        for _ in range(3):
            step(X)
        assert step.stats.hits == 2
        return sum(e.kind == "scalar" for e in step.specialisations[0].trace.entries)

    assert 0 < inputs(2) == inputs(6)

    def function(x: Any, s: Any) -> Any:
        t = s
        for _ in range(40):
            t = (t + t) / 2.0
        return x * (1 - s) + x * (1 - s) + x * (1.0 - s) + x * (s - 1) + t

    run(function, [(0.1,), (0.25,), (3.0,)])
