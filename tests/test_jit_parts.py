"""Tensors that show different parts of one storage: `step(data[:, :-1], data[:, 1:])`.

They compile, and later calls may pass other parts; where one is written, the function runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob


def _data(requires_grad: bool = False) -> jg.Tensor:
    return jg.from_numpy(np.arange(30.0).reshape(5, 6)).requires_grad_(requires_grad)


PAIRS: dict[str, Callable[[jg.Tensor, int], tuple[jg.Tensor, ...]]] = {
    "shifted": lambda x, k: (x[k, :-1], x[k, 1:]),
    "shifted, flattened": lambda x, k: (x[k : k + 2], x[k + 1 : k + 3].reshape(-1).view(2, 6)),
    "columns": lambda x, k: (x[:, k], x[:, k + 1]),
    "the same part, made twice": lambda x, k: (x[k], x[k]),
    "three": lambda x, k: (x[:, k], x[:, k + 1], x[:, 5 - k]),
    "transposed": lambda x, k: (x[k : k + 2].t(), x[k + 1 : k + 3].t()),
    "unbound": lambda x, k: x.unbind(0)[k : k + 2],
    "split": lambda x, k: x.split(2, 1)[:2],
}


def _sum(*xs: jg.Tensor) -> jg.Tensor:
    out = xs[0] * 2
    for i, x in enumerate(xs[1:]):
        out = out - x.flip(0) * (i + 3)
    return out


@pytest.mark.parametrize("name", PAIRS)
def test_parts(name: str) -> None:
    f, x = jg.jit(_sum, fallback="error"), _data()
    for k in (0, 1, 2, 0):
        parts = PAIRS[name](x, k)
        assert f(*parts).tolist() == _sum(*parts).tolist()
        x.add_(1)
    assert f.stats.traces == 1 and f.stats.hits == 3


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_of_parts(name: str) -> None:
    f = jg.jit(_sum, fallback="error")
    for k in (0, 1, 2):
        grads = []
        for g in (f, _sum):
            x = _data(True)
            y = g(*PAIRS[name](x, k))
            (y * jg.arange(y.numel(), dtype=jg.float64).view(y.shape)).sum().backward()
            assert x.grad is not None
            grads.append(x.grad.tolist())
        assert grads[0] == grads[1]
    assert f.stats.hits == 2


def test_the_same_views_of_parts() -> None:
    def f(x: jg.Tensor, y: jg.Tensor) -> jg.Tensor:
        return x.t() - y.t() * 3 + x[0] * y[0] + x.view(-1)[1] - y.view(-1)[1]

    compiled, data = jg.jit(f, fallback="error"), _data().clone().view(6, 5)[:, :4]
    for k in (0, 1, 2):
        x, y = data[k : k + 1], data[k + 2 : k + 3]
        assert compiled(x, y).tolist() == f(x, y).tolist()
    assert compiled.stats.hits == 2


def test_backward_inside() -> None:
    @jg.jit(fallback="error")
    def f(x: jg.Tensor, y: jg.Tensor, w: jg.Tensor) -> jg.Tensor:
        loss = ((x * w - y) ** 2).sum()
        loss.backward()
        return loss.detach()

    data, w = _data(), jg.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=jg.float64, requires_grad=True)
    for k in (0, 1, 2):
        w.grad = None
        loss = f(data[k, :-1], data[k, 1:], w)
        grad, w.grad = w.grad, None
        assert f.__wrapped__(data[k, :-1], data[k, 1:], w).item() == loss.item()
        assert w.grad is not None and grad is not None and grad.tolist() == w.grad.tolist()
    assert f.stats.hits == 1 + 1  # the first of three was recorded


def test_results_on_their_memory() -> None:
    f = jg.jit(lambda x, y: (x[1:], y * 1, y.view(5, 1)), fallback="error")
    x = _data()
    for k in (0, 1, 2):
        a, b, c = f(x[k, :-1], x[k, 1:])
        x.mul_(-1)
        assert a.tolist() == x[k, 1:-1].tolist() and c.tolist() == x[k, 1:, None].tolist()
        assert b.tolist() == (-x[k, 1:]).tolist()
    assert f.stats.hits == 2


def test_a_view_of_another_argument_keeps_its_place() -> None:
    f, x = jg.jit(_sum, fallback="error"), _data()
    for k in (0, 1, 0):
        a = x[k]
        assert f(a, a[:]).tolist() == _sum(a, a).tolist()
        b = x[k : k + 2]
        assert f(b[1], b.sum(0)).tolist() == _sum(b[1], b.sum(0)).tolist()
        c = x[:2]
        assert f(c[0], c[k]).tolist() == _sum(c[0], c[k]).tolist()


def test_captured_parts() -> None:
    """Parts of one storage in a closure, in a list and beside an argument."""
    data = _data()
    rows = list(data)
    first, second = data[:2], data[3:]

    def f(x: jg.Tensor) -> jg.Tensor:
        total = x * 2
        for row in rows:
            total = total + row * x
        return total + first.sum() - second.sum()

    compiled = jg.jit(f, fallback="error")
    for k in (0, 1, 1, 2):
        assert compiled(data[k, :]).tolist() == f(data[k, :]).tolist()
        data.add_(1)
        first = data[:2]
    before = compiled.stats.hits
    assert before >= 1
    second = data[2:4]  # another part: seen
    assert compiled(data[2, :]).tolist() == f(data[2, :]).tolist()
    rows[0] = data[4]
    assert compiled(data[2, :]).tolist() == f(data[2, :]).tolist()
    rows[0] = jg.ones(6, dtype=jg.float64)  # another storage
    assert compiled(data[2, :]).tolist() == f(data[2, :]).tolist()


def test_a_captured_part_that_is_written() -> None:
    data, other = _data(), _data()
    rows, others = list(data), list(other)

    def make(parts: list[jg.Tensor]) -> Callable[[jg.Tensor], jg.Tensor]:
        def f(x: jg.Tensor) -> jg.Tensor:
            y = parts[0] * parts[1]
            parts[1].mul_(x)
            return y + parts[0] + parts[1]

        return f

    compiled, plain = jg.jit(make(rows), fallback="silent"), make(others)
    for _ in range(3):
        x = jg.tensor(2.0, dtype=jg.float64)
        assert compiled(x).tolist() == plain(x).tolist() and data.tolist() == other.tolist()


@pytest.mark.parametrize("order", ["write first", "read first"])
@pytest.mark.parametrize("to", [0, 1])
@knob(segments=False)
def test_a_part_that_is_written(order: str, to: int) -> None:
    def f(x: jg.Tensor, y: jg.Tensor) -> Any:
        before = x * y if order == "read first" else None
        (x, y)[to].mul_(2)
        return x + y if before is None else x + y + before

    x, y = _data(), _data()
    silent = jg.jit(f, fallback="silent")
    for k in (0, 1, 2):
        assert silent(x[k, :-1], x[k, 1:]).tolist() == f(y[k, :-1], y[k, 1:]).tolist()
        assert x.tolist() == y.tolist()
    assert silent.stats.fallbacks == 3
    with pytest.raises(CompileError, match="different parts of one storage"):
        jg.jit(f, fallback="error")(x[0, :-1], x[0, 1:])


def test_parts_of_two_storages_are_another_case() -> None:
    f, x, y = jg.jit(_sum, fallback="error"), _data(), _data()
    assert f(x[0], x[1]).tolist() == _sum(x[0], x[1]).tolist()
    assert f(x[0], y[1]).tolist() == _sum(x[0], y[1]).tolist()
    assert f.stats.traces == 2 and "share memory" in f.explain_last_miss()
