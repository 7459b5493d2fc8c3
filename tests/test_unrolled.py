"""The warning that names a Python loop which a recording has unrolled."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.unrolled import STEPS


def warnings_of(function, *args, calls=1, **options):
    compiled = jg.jit(function, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            compiled(*args)
    return [str(w.message) for w in caught if "step by step" in str(w.message)]


def rnn(steps):
    w = jg.eye(3) * 0.9

    def walk(h, xs):
        for t in range(steps):
            h = jg.tanh(h @ w + xs[t])  # the line
        return h

    return walk, (jg.zeros(2, 3), jg.ones(steps, 2, 3))


def test_names_the_line_the_count_and_the_way_out():
    function, args = rnn(STEPS + 5)
    (text,) = warnings_of(function, *args, calls=3)
    source = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "# the line" in text)
    assert f"{__file__}:{line} ran {STEPS + 5} times" in text
    assert "walk has a loop" in text and "jitgrad.scan(step, init, xs)" in text


@pytest.mark.parametrize("steps", [3, STEPS - 1])
def test_short_loops_are_nothing_to_tell(steps):
    function, args = rnn(steps)
    assert not warnings_of(function, *args)


def test_silence():
    function, args = rnn(STEPS + 1)
    assert not warnings_of(function, *args, fallback="silent")


def test_a_loop_that_trains_is_told_of_once_with_its_forward_line():
    function, (h, xs) = rnn(STEPS)
    w = jg.ones(3, requires_grad=True)

    def step(h, xs):
        w.grad = None
        function(h * w, xs).sum().backward()
        return w.grad

    (text,) = warnings_of(step, h, xs)
    assert f"ran {STEPS} times" in text and "(backward)" not in text


def test_what_is_side_by_side_is_no_loop():
    """An optimizer's step over many parameters; a loop whose steps know nothing of each other."""
    parameters = [nn.Parameter(jg.ones(2)) for _ in range(STEPS + 10)]
    optimizer = jg.optim.Adam(parameters)

    def step(x):
        optimizer.zero_grad()
        jg.stack([(p * x).sum() for p in parameters]).sum().backward()
        optimizer.step()

    assert not warnings_of(step, jg.ones(2))


def test_scan_is_one_step():
    w = jg.eye(3)

    def walk(h, xs):
        return jg.scan(lambda h, x: (jg.tanh(h @ w + x), h), h, xs)[0]

    assert not warnings_of(walk, jg.zeros(2, 3), jg.ones(STEPS * 2, 2, 3))
