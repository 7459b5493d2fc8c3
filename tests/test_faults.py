"""What must be waited for before state is overwritten: checks that no earlier kernel made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn as nn
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    check,
    const,
    load,
    select,
)
from jitgrad.compiler.passes.faults import can_fault, must_be_waited_for
from jitgrad.jit import jit
from jitgrad.runtime import dtypes
from jitgrad.runtime.knobs import knob


def embedding_step() -> tuple[Any, nn.Module]:
    jg.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = jg.optim.SGD(model.parameters(), lr=0.1)

    def step(ids: Any) -> Any:
        optimizer.zero_grad()
        loss = model(ids).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return jit(step, fallback="error"), model


@pytest.mark.parametrize("shape", [(6,), (4, 5), (3, 1, 2)])
def test_the_backward_of_an_embedding_is_not_waited_for(shape: tuple[int, ...]) -> None:
    step, _ = embedding_step()
    ids = jg.randint(0, 11, shape)
    with knob(cache=False):  # with it there are no stages the second time
        for _ in range(3):
            step(ids)
    schedule = step.specialisations[0].compiled.stages.schedule
    kernels = [k for wave in schedule.waves for k in wave]
    waited = must_be_waited_for(kernels)
    later = [k for k in kernels if can_fault(k) and k not in waited]
    assert waited
    assert any("(backward)" in line for k in later for line in k.lines), "the embedding's"


@pytest.mark.parametrize("bad", [-12, 11, 99])
def test_a_bad_index_still_leaves_all_state_as_it_was(bad: int) -> None:
    step, model = embedding_step()
    good = jg.randint(0, 11, (4, 5))
    for _ in range(3):
        step(good)
    before = [p.detach().numpy().copy() for p in model.parameters()]
    grads = [p.grad.numpy().copy() for p in model.parameters()]
    ids = good.clone()
    ids[3, 4] = bad
    with pytest.raises(IndexError):
        step(ids)
    for p, old, grad in zip(model.parameters(), before, grads, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)
        np.testing.assert_array_equal(p.grad.numpy(), grad)
    step(good)
    assert not np.array_equal(next(model.parameters()).detach().numpy(), before[0])


def first_two(w: Any, ids: Any) -> Any:
    return w[ids[:2]]


def other_bound(w: Any, ids: Any) -> Any:
    return jg.cat([w, w])[ids]


def under_a_condition(w: Any, ids: Any) -> Any:
    return w[jg.where(ids > 100, ids, ids * 0)]


@pytest.mark.parametrize("look", [first_two, other_bound, under_a_condition])
def test_what_was_looked_at_in_part_or_otherwise_is_waited_for(look: Any) -> None:
    """The later kernel finds what the first did not: nothing may be overwritten before."""

    def f(w: Any, p: Any, ids: Any) -> Any:
        y = look(w, ids)
        p.mul_(y.sum() * 0 + 2)
        return jg.zeros(5, 3).index_add(0, ids, jg.ones(4, 3)), y

    g = jit(f, fallback="error")
    w, p = jg.randn(5, 3), jg.ones(70)
    for _ in range(3):
        g(w, p, jg.tensor([0, 1, 2, 4]))
    np.testing.assert_array_equal(p.numpy(), np.full(70, 8, np.float32))
    with pytest.raises(IndexError):
        g(w, p, jg.tensor([0, 1, 2, 7]))
    np.testing.assert_array_equal(p.numpy(), np.full(70, 8, np.float32))


IDS, OTHER = Array("ids", (20,), dtypes.int64), Array("other", (20,), dtypes.int64)
W = Array("w", (9,), dtypes.float32)


def reader(
    outer: tuple[int, ...], place: Expr, ids: Array = IDS, extent: int = 9, when: bool = False
) -> LoopKernel:
    """Reads w at ids[place], which it checks; under a condition if `when`."""
    body = load(W, (check(load(ids, (place,)).cast(INDEX), extent, "site"),))
    if when:
        body = select(axis(0) < const(3, INDEX), body, const(0.0, dtypes.float32))
    out = Array("out", outer, dtypes.float32)
    axes = tuple(axis(k) for k in range(len(outer)))
    return LoopKernel(outer, [Stage((), (Store(out, axes, body),))])


WHOLE = reader((20,), axis(0))
FOLDED = reader((4, 5), axis(0) * 5 + axis(1))


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        pytest.param(WHOLE, FOLDED, True, id="whole"),
        pytest.param(FOLDED, WHOLE, True, id="folded"),
        pytest.param(reader((4, 20), axis(1)), WHOLE, True, id="again and again"),
        pytest.param(WHOLE, reader((7,), axis(0) * 2 + 1), True, id="part of what is known"),
        pytest.param(reader((19,), axis(0)), WHOLE, False, id="all but one"),
        pytest.param(reader((10,), axis(0) * 2), WHOLE, False, id="every other"),
        pytest.param(reader((4, 5), axis(0) * 4 + axis(1)), WHOLE, False, id="overlapping"),
        pytest.param(reader((20,), axis(0), OTHER), WHOLE, False, id="another array"),
        pytest.param(reader((20,), axis(0), extent=10), WHOLE, False, id="another bound"),
        pytest.param(reader((20,), axis(0), when=True), WHOLE, False, id="under a condition"),
    ],
)
def test_what_makes_a_check_known(first: LoopKernel, second: LoopKernel, known: bool) -> None:
    assert must_be_waited_for([first, second]) == ([first] if known else [first, second])
