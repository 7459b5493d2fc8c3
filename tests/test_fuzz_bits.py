"""The bits of a result depend on its own computation only.

Generated programs are compiled with their results in another order, with fewer or more of them, and
with one thread or two; every result that is in both has the same bytes.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from copy import deepcopy

import numpy as np
import pytest
from fuzz.check import pictures
from fuzz.compare import Picture, Shown
from fuzz.generate import generate
from fuzz.program import Program

from jitgrad.jit import jit
from jitgrad.runtime.threads import get_num_threads, set_num_threads

COUNT = 40


def programs() -> list[Program]:
    made = (generate(random.Random(70_000 + n), length=10) for n in range(2 * COUNT))
    return [p for p in made if not p.backward and len(p.results) > 2][:COUNT]


def compiled(program: Program) -> list[Picture]:
    return pictures(program.text(), lambda f: jit(f, fallback="silent"), 3)


def bytes_of(pictures_: list[Picture], program: Program) -> list[dict[str, bytes]]:
    """For each call, the bytes of each tensor that is a result, by its expression."""
    out = []
    for p in pictures_:
        found, i = {}, 0
        for expression in program.results:
            shown = p.values.get(f"result[{i}]")
            if isinstance(shown, Shown):
                found[expression] = np.ascontiguousarray(shown.array).tobytes()
            i += leaves(ast.parse(expression, mode="eval").body)
        out.append(found)
    return out


def leaves(tree: ast.expr) -> int:
    """How many results an expression is."""
    if isinstance(tree, ast.Tuple | ast.List):
        return sum(map(leaves, tree.elts))
    return sum(map(leaves, tree.values)) if isinstance(tree, ast.Dict) else 1


def same_bits(a: list[dict[str, bytes]], b: list[dict[str, bytes]], text: str) -> int:
    compared = 0
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        for expression in x.keys() & y.keys():
            assert x[expression] == y[expression], f"call {k}: {expression}\n{text}"
            compared += k > 0
    return compared


def test_other_results_change_no_bits() -> None:
    compared = 0
    for program in programs():
        whole = bytes_of(compiled(program), program)
        turned = deepcopy(program)
        turned.results.reverse()
        fewer = deepcopy(program)
        del fewer.results[1:]
        for other in (turned, fewer):
            found = bytes_of(compiled(other), other)
            compared += same_bits(whole, found, program.text())
    assert compared > 2 * COUNT


@pytest.fixture
def threads() -> Iterator[None]:
    before = get_num_threads()
    yield
    set_num_threads(before)


LARGE = """
a = tensor('float32', (300, 257), 1)
b = tensor('float32', (257, 130), 2)
w = parameter('float32', (257,), 3)


def f():
    x = a @ b
    y = (a * w).softmax(1)
    loss = (y.sum(0) * w).sum() + x.tanh().mean()
    w.grad = None
    loss.backward()
    return [x, y, loss.detach(), a.sum(), a.sum(0), a.exp().cumsum(1), w.grad * 1, a.var(1)]


def between(k):
    pass


def arguments(k):
    return ()
"""


@pytest.mark.parametrize("which", ["generated", "large"])
@pytest.mark.usefixtures("threads")
def test_threads_change_no_bits(which: str) -> None:
    texts = [LARGE] if which == "large" else [p.text() for p in programs()[: COUNT // 2]]
    for text in texts:
        found = []
        for count in (1, 2):
            set_num_threads(count)
            found.append(pictures(text, lambda f: jit(f, fallback="silent"), 3))
        for one, two in zip(*found, strict=True):
            assert one.values.keys() == two.values.keys()
            for path, x in one.values.items():
                y = two.values[path]
                if isinstance(x, Shown):
                    assert x.array.tobytes() == y.array.tobytes(), f"{path}\n{text}"
