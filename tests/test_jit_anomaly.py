"""detect_anomaly under @jit: compiled code checks gradients; the first NaN's line is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import jitgrad as jg
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection")
GOOD, BAD = jg.tensor([2.0, 3.0, 4.0]), jg.tensor([2.0, 0.5, 3.0])


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    with knob(fallback="error"):
        yield


def loss_of(x: Any, w: Any) -> Any:
    y = x * w
    z = y.log()
    return z.sqrt().sum()


LINE = loss_of.__code__.co_firstlineno
SQRT = rf"Function 'SqrtBackward0' returned nan values in its 0th output; .*anomaly.py:{LINE + 3}\b"


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def test_backward_inside() -> None:
    w = jg.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        w.grad = None
        loss = loss_of(x, w)
        loss.backward()
        return loss.detach()

    fast = jit(step)
    with jg.autograd.detect_anomaly():
        for f in (step, fast):
            f(GOOD), f(GOOD)
            before = w.grad.clone()
            with pytest.raises(RuntimeError, match=SQRT) as caught:
                f(BAD)
            if f is fast:
                assert f"made by sqrt(float32[3]) at {__file__}:{LINE + 3}" in notes(caught.value)
                assert w.grad.equal(before)  # a compiled call that fails has written nothing
    assert (fast.stats.traces, fast.stats.hits) == (1, 1)
    fast(BAD)  # outside, nobody looks
    fast(BAD)
    assert w.grad.isnan().any() and fast.stats.traces == 2


def test_backward_outside() -> None:
    fast = jit(loss_of)
    with jg.autograd.detect_anomaly():
        for f in (loss_of, fast, fast):
            w = jg.ones(3, requires_grad=True)
            f(GOOD, w).backward()
            with pytest.raises(RuntimeError, match=SQRT) as caught:
                f(BAD, w).backward()
    assert f"the first is made by sqrt(float32[3]) at {__file__}:{LINE + 3}" in notes(caught.value)
    assert fast.stats.traces == 1


def test_a_forward_that_was_compiled_without() -> None:
    fast = jit(loss_of)
    w = jg.ones(3, requires_grad=True)
    fast(GOOD, w)
    loss = fast(BAD, w)
    with jg.autograd.detect_anomaly(), pytest.raises(RuntimeError) as caught:
        loss.backward()
    assert f"the first is made by sqrt(float32[3]) at {__file__}:{LINE + 3}" in str(caught.value)


def test_a_nan_of_the_backward_alone() -> None:
    def f(x: Any) -> Any:
        return (x.sqrt() * 0).sum()  # 0 * inf at 0

    fast = jit(f)
    for g in (f, fast, fast):
        with jg.autograd.detect_anomaly():
            x = jg.tensor([0.0, 1.0], requires_grad=True)
            with pytest.raises(RuntimeError, match="SqrtBackward0.*returned nan"):
                g(x).backward()
    plain = jit(f)
    plain(x)
    y = plain(x)
    line = f.__code__.co_firstlineno + 1
    with jg.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=rf":{line} \(backward\)"):
        y.backward()


def test_without_looking_for_nan() -> None:
    fast = jit(loss_of)
    with jg.autograd.detect_anomaly(check_nan=False):
        for _ in range(2):
            w = jg.ones(3, requires_grad=True)
            fast(BAD, w).backward()
            assert w.grad.isnan().any()
    with jg.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
        fast(BAD, w).backward()


def test_ops_of_the_backward_name_the_line_of_the_forward() -> None:
    w = jg.ones(3, requires_grad=True)

    @jit
    def step(x: Any) -> Any:
        (g,) = jg.autograd.grad(loss_of(x, w), [w])
        return g

    step(GOOD)
    lines = {n.line for n in step.specialisations[0].trace.graph.nodes}
    assert f"{__file__}:{LINE + 3} (backward)" in lines
