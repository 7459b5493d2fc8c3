"""Programs whose state changes between calls, each compared with plain Python at every call.

A program is a generator: it yields the function, and then once after each change of state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.jit import jit

Program = Callable[[], Iterator[Any]]


def programs() -> tuple[list[Program], Callable[[Program], Program]]:
    """A list, and the decorator that adds a program to it."""
    found: list[Program] = []

    def add(program: Program) -> Program:
        found.append(program)
        return program

    return found, add


def name_of(program: Program) -> str:
    return program.__name__


def parts(result: Any) -> list[Any]:
    """What is compared of a result: values, dtypes, requires_grad, all else as it is."""
    if isinstance(result, jg.Tensor):
        return [result.detach().numpy(), str(result.dtype), result.requires_grad]
    if isinstance(result, (tuple, list)):
        return [a for r in result for a in parts(r)]
    return [result]


def compare(program: Program, fallback: str) -> None:
    """After each change two calls of the jitted function give what the plain function gives."""
    steps = program()
    f = next(steps)
    fast = jit(f, fallback=fallback)
    x = jg.tensor([[1.0, 2.0, 3.0]])
    for n, _ in enumerate(itertools.chain([None], steps)):
        for _ in range(2):
            expected, got = parts(f(x)), parts(fast(x))
            assert len(expected) == len(got)
            for a, b in zip(expected, got, strict=True):
                if isinstance(a, np.ndarray):
                    np.testing.assert_allclose(b, a, 2e-6, 1e-6, err_msg=f"after change {n}")
                else:
                    assert type(a) is type(b) and a == b, f"after change {n}"
    if fallback == "error":
        assert fast.stats.hits, fast.explain_last_miss()
