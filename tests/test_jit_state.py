"""State that a jitted function sets: slots that hold tensors, requires_grad, in one graph.

Each program runs eagerly and under jit from the same start; results and state agree after each
call. Writes in place, views and aliases are test_jit_mutation.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.jit import jit
from jitgrad.pytree import flatten

CALLS = 6
Made = tuple[Callable[[Any], Any], Callable[[], Any]]


def show(value: Any) -> list[Any]:
    out = []
    for x in flatten(value)[0]:
        if isinstance(x, jg.Tensor):
            grad = None if not x.is_leaf or x.grad is None else x.grad.numpy().copy()
            out.append((x.detach().numpy().copy(), x.requires_grad, grad))
        else:
            out.append(x)
    return out


def history(make: Callable[[], Made], jitted: bool) -> tuple[list[Any], Any]:
    jg.manual_seed(0)
    step, state = make()
    f = jit(step, fallback="error", segments=False) if jitted else step
    out = []
    for k in range(CALLS):
        out.append(show((f(jg.tensor([1.0, 2.0, 3.0]) * k), state())))
    return out, f


def check(make: Callable[[], Made], traces: int) -> None:
    wanted, _ = history(make, False)
    got, f = history(make, True)
    for a, b in zip(got, wanted, strict=True):
        for x, y in zip(a, b, strict=True):
            if isinstance(y, tuple):
                np.testing.assert_allclose(x[0], y[0], rtol=1e-5, atol=1e-6)
                assert x[1] == y[1] and (x[2] is None) == (y[2] is None)
                if y[2] is not None:
                    np.testing.assert_allclose(x[2], y[2], rtol=1e-5, atol=1e-6)
            else:
                assert x == y
    assert (f.stats.traces, f.stats.hits) == (traces, CALLS - traces)


def items_of_a_dict() -> Made:
    held: dict[str, Any] = {"h": jg.zeros(3), "first": None}

    def step(x: Any) -> Any:
        held["h"] = held["h"] * 0.5 + x
        held["h"] = held["h"] + 1
        if held["first"] is None:
            held["first"] = x.clone()
        return held["h"].sum() + held["first"]

    return step, lambda: held


def elements_of_a_list() -> Made:
    held = [jg.zeros(3), jg.ones(3)]

    def step(x: Any) -> Any:
        held[0], held[1] = held[1], held[0] + x
        return held[0] * 2

    return step, lambda: held


def attributes() -> Made:
    held = SimpleNamespace(h=jg.zeros(3), last=jg.zeros(()))

    def step(x: Any) -> Any:
        held.h = (held.h + x).tanh()
        held.last = held.h.sum()
        return held.h * 2

    return step, lambda: (held.h, held.last)


def two_names_of_one_tensor() -> Made:
    held = {"a": jg.zeros(3)}
    held["b"] = held["a"]

    def step(x: Any) -> Any:
        held["a"] = held["a"] + x
        held["b"].add_(1)
        return held["a"] + held["b"]

    return step, lambda: held


def the_argument_is_kept() -> Made:
    held = {"a": jg.zeros(3)}

    def step(x: Any) -> Any:
        before, held["a"] = held["a"], x
        return before + x

    return step, lambda: held


def on_the_tape() -> Made:
    w = nn.Parameter(jg.tensor([1.0, 2.0, 3.0]))
    held = {"h": jg.zeros(3)}

    def step(x: Any) -> Any:
        held["h"] = held["h"].detach() * 0.5 + w * x
        return held["h"].sum()

    def state() -> Any:
        w.grad = None
        held["h"].sum().backward()
        return held, w

    return step, state


def set_by_one_way_only() -> Made:
    held = {"h": jg.zeros(3), "n": jg.zeros(())}

    def step(x: Any) -> Any:
        if x.sum() > 10:
            held["h"] = x * 2
        else:
            held["n"] = held["n"] + 1
        return held["h"] + held["n"]

    return step, lambda: held


def frozen_for_a_while() -> Made:
    model = nn.Linear(3, 2)

    def step(x: Any) -> Any:
        model.zero_grad()
        model.weight.requires_grad_(False)
        model(x).square().sum().backward()
        model.weight.requires_grad_(True)
        return model.bias.grad.clone()

    return step, lambda: list(model.parameters())


def frozen_discriminator() -> Made:
    """A GAN's step, with set_requires_grad as its code has it."""
    make, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    of_make = jg.optim.Adam(make.parameters(), lr=0.05)
    of_judge = jg.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)

    def set_requires_grad(net: Any, flag: bool) -> None:
        for p in net.parameters():
            p.requires_grad = flag

    def step(x: Any) -> Any:
        noise = jg.randn(2, 3)
        set_requires_grad(judge, True)
        of_judge.zero_grad()
        (F.softplus(-judge(x)).mean() + F.softplus(judge(make(noise).detach())).mean()).backward()
        of_judge.step()
        set_requires_grad(judge, False)
        of_make.zero_grad()
        loss = F.softplus(-judge(make(noise))).mean()
        loss.backward()
        of_make.step()
        return loss.detach()

    return step, lambda: [*make.parameters(), *judge.parameters()]


@pytest.mark.parametrize(
    ("make", "traces"),
    [
        (items_of_a_dict, 2), (elements_of_a_list, 1), (attributes, 1),
        (two_names_of_one_tensor, 2),
        (the_argument_is_kept, 1), (on_the_tape, 2), (set_by_one_way_only, 2),
        (frozen_for_a_while, 1), (frozen_discriminator, 2),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)  # fmt: skip
def test_state(make: Callable[[], Made], traces: int) -> None:
    check(make, traces)


def test_properties_and_slots_are_set_by_python() -> None:
    """What setting does is not known there: such a function is no one graph."""

    class Guarded:
        def __init__(self) -> None:
            self.__dict__["h"] = jg.zeros(3)
            self.__dict__["sets"] = []

        def __setattr__(self, name: str, value: Any) -> None:
            self.__dict__["sets"].append(name)
            self.__dict__[name] = value

    held = Guarded()

    @jit(fallback="silent", segments=False)
    def step(x: Any) -> Any:
        held.h = held.h + x
        return held.h

    for _ in range(3):
        step(jg.ones(3))
    assert held.h.tolist() == [3.0] * 3 and held.sets == ["h"] * 3 and step.stats.fallbacks == 3
