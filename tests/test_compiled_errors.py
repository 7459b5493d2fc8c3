"""Compiled code raises what eager code raises about values: the same type and text, of elements
that no result needs too, with all state as it was and later calls right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.link import find_linker
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.compiler.types import TensorType
from jitgrad.runtime import dtypes, load

X = jg.tensor(np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32))
Y = jg.tensor(np.random.default_rng(1).integers(0, 10, 16))
HIGH, LOW = Y.clone(), Y.clone()
HIGH[3], LOW[5] = 77, -77
ZERO, OTHER = Y + 1, Y.clone()
ZERO[6] = 0
TABLE = nn.Embedding(10, 4)

Case = tuple[str, Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]
CASES: list[Case] = [
    # all of the result is used
    ("index", lambda x, i: x[i], (X, Y), (X, HIGH)),
    ("index, two dims", lambda x, i: x[i, i], (X, Y), (X, LOW)),
    ("index_put", lambda x, i: x.clone().index_put_((i,), x[i] * 2), (X, Y), (X, LOW)),
    ("gather", lambda x, i: x.gather(1, i[:, None]), (X, Y), (X, HIGH)),
    ("gather, negative", lambda x, i: x.gather(1, i[:, None]), (X, Y), (X, -1 - Y)),
    ("scatter", lambda x, i: x.scatter(1, i[:, None], 0.0), (X, Y), (X, HIGH)),
    ("index_select", lambda x, i: x.index_select(0, i), (X, Y), (X, -1 - Y)),
    ("index_select, 0-d", lambda x, i: x[0, 0].index_select(0, i[:1]), (X, Y * 0), (X, Y + 1)),
    ("index_add", lambda x, i: x.index_add(0, i, x), (X, Y), (X, LOW)),
    ("index_copy", lambda x, i: x.index_copy(0, i, x), (X, Y), (X, HIGH)),
    ("embedding", lambda i: TABLE(i), (Y,), (HIGH,)),
    ("embedding, padding", lambda i: F.embedding(i, TABLE.weight, 2), (Y,), (LOW,)),
    ("cross_entropy", lambda x, i: F.cross_entropy(x, i), (X, Y), (X, HIGH)),
    ("cross_entropy, weight", lambda x, i: F.cross_entropy(x, i, x[0].exp()), (X, Y), (X, LOW)),
    ("nll_loss", lambda x, i: F.nll_loss(x, i), (X, Y), (X, LOW)),
    ("one_hot", lambda i: F.one_hot(i, 10), (Y,), (LOW,)),
    ("probabilities", lambda p: F.binary_cross_entropy(p, p), (X.sigmoid(),), (X,)),
    ("variance", lambda x, v: F.gaussian_nll_loss(x, x, v), (X, X.exp()), (X, -X.exp())),
    ("multi_margin", lambda x, i: F.multi_margin_loss(x, i), (X, Y), (X, LOW)),
    ("multilabel_margin", lambda x, i: F.multilabel_margin_loss(x, i), (X, X.long() * 0 + 2),
     (X, X.long() * 0 - 3)),
    ("quantile", lambda x, q: x.quantile(q), (X, X[0].sigmoid()), (X, X[0] * 2)),
    ("unravel_index", lambda i: jg.unravel_index(i, (2, 5))[1], (Y,), (HIGH,)),
    ("masked_scatter", lambda x, m: x.masked_scatter(m, x[:2]), (X, X > 1.5), (X, X > -1.5)),
    ("embedding_bag", lambda i: F.embedding_bag(i[None], TABLE.weight), (Y,), (LOW,)),
    ("offsets", lambda i, o: F.embedding_bag(i, TABLE.weight, o), (Y, Y[:2] * 0), (Y, Y[:2] + 1)),
    ("max_unpool", lambda x, i: F.max_unpool1d(x[:, None, :2], i, 2),
     (X, (X[:, None, :2] > 0).long()), (X, (X[:, None, :2] > 0).long() + 3)),
    ("bernoulli", lambda p: p.bernoulli() * 0, (X.sigmoid(),), (X,)),
    ("multinomial", lambda p: p.multinomial(3) * 0, (X.exp(),), (X,)),
    ("multinomial, no sum", lambda p: p.multinomial(3, True) * 0, (X.exp(),), (X * 0,)),
    ("take", lambda x, i: x.take(i), (X, Y), (X, HIGH * 100)),
    ("take_along_dim", lambda x, i: x.take_along_dim(i[:, None], 1), (X, Y), (X, HIGH)),
    ("scatter_reduce", lambda x, i: x.scatter_reduce(1, i[:, None], x, "amax"), (X, Y), (X, LOW)),
    ("floor_divide", lambda a, b: a // b, (Y, Y + 1), (Y, ZERO)),
    ("remainder", lambda a, b: a % b, (Y, Y + 1), (Y, ZERO)),
    ("where", lambda a, b: jg.where(b == 0, a, a // b), (Y, Y + 1), (Y, ZERO)),
    ("moved", lambda x, i: x[i].reshape(4, 4, 10).permute(2, 0, 1).flip(0) + 1, (X, Y), (X, HIGH)),
    ("product", lambda x, i: x[i] @ x.t(), (X, Y), (X, HIGH)),
    # none of it
    ("index, dead", lambda x, i: (x[i], x + 1)[1], (X, Y), (X, HIGH)),
    ("scatter, dead", lambda x, i: (x.scatter(1, i[:, None], 0.0), x)[1] * 2, (X, Y), (X, LOW)),
    ("division, dead", lambda a, b: (a // b, a + 1)[1], (Y, Y + 1), (Y, ZERO)),
    ("embedding, dead", lambda i: (TABLE(i), i + 1)[1], (Y,), (HIGH,)),
    ("cross_entropy, dead", lambda x, i: (F.cross_entropy(x, i), x + 1)[1], (X, Y), (X, LOW)),
    ("chain, dead", lambda x, i: (x[i].exp().sum(), x + 1)[1], (X, Y), (X, HIGH)),
    # a part of it
    ("index, sliced", lambda x, i: x[i][:2], (X, Y), (X, HIGH)),
    ("index, every other", lambda x, i: x[i][::2], (X, Y), (X, LOW)),
    ("index, one", lambda x, i: x[i][-1] * 2, (X, Y), (X, HIGH)),
    ("index, no columns", lambda x, i: x[:, :0][i], (X, Y), (X, HIGH)),
    ("division, sliced", lambda a, b: (a // b)[:2], (Y, Y + 1), (Y, ZERO)),
    ("division, sliced alike", lambda a, b: (a // b)[::3] + (a // b)[1::3], (Y[:15], Y[:15] + 1),
     (jg.arange(15), jg.arange(15) % 3 - 2)),
    ("columns", lambda x, i: x[i].t()[1:3] + 1, (X, Y), (X, HIGH)),
    ("one column, one row", lambda x, i: x[i].t()[1:3, ::4] + 1, (X, Y), (X, HIGH)),
    ("embedding, sliced", lambda i: TABLE(i)[8:], (Y,), (HIGH,)),
    ("cropped", lambda x, i: F.pad(x[i], (0, 0, -4, 0)), (X, Y), (X, HIGH)),
    ("padded", lambda x, i: F.pad(x[i], (0, 0, 2, 1)), (X, Y), (X, HIGH)),
    ("joined", lambda x, i: jg.cat([x[i], x])[4:], (X, Y), (X, HIGH)),
    ("indexed again", lambda x, i: x[i][i[:2] % 2], (X, Y), (X, HIGH)),
    ("pooled past", lambda x, i: F.max_pool1d(x[i].t(), 2, 4), (X, Y), (X, HIGH)),
    ("loss, sliced", lambda x, i: F.cross_entropy(x, i, reduction="none")[4:], (X, Y), (X, HIGH)),
    # of several errors the first in the program
    ("two", lambda x, i: (x[i] + x.gather(1, i[:, None]), x[:, i])[0], (X, Y), (X, HIGH)),
    ("two, dead first", lambda x, i: (x[:, i], x.gather(1, i[:, None]))[1], (X, Y), (X, HIGH)),
]  # fmt: skip


def failure(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[type, str]:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as caught:
        f(*args)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_same_error(case: Case) -> None:
    _, f, good, bad = case
    fast = jg.jit(f, fallback="error")
    want = f(*good)
    for _ in range(2):
        np.testing.assert_allclose(fast(*good).detach(), want.detach(), rtol=1e-5, atol=1e-6)
    assert failure(fast, bad) == failure(f, bad)
    np.testing.assert_allclose(fast(*good).detach(), want.detach(), rtol=1e-5, atol=1e-6)
    assert fast.stats.traces == 1


def test_the_text_names_function_value_bounds_and_line() -> None:
    fast = jg.jit(lambda i: TABLE(i), fallback="error")
    fast(Y)
    assert failure(fast, (HIGH,))[1].startswith(
        "[embedding] index 77 is out of bounds for dimension 0 with size 10 (at "
    )
    loss = jg.jit(F.cross_entropy, fallback="error")
    loss(X, Y)
    assert "[cross_entropy] Target -77 is out of bounds" in failure(loss, (X, LOW))[1]
    dead = jg.jit(lambda x, i: (x[i], x + 1)[1], fallback="error")
    dead(X, Y)
    assert f"(at {__file__}:" in failure(dead, (X, HIGH))[1]


def test_a_training_step_that_fails_changes_nothing() -> None:
    model = nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Linear(6, 10))
    optimizer = jg.optim.Adam(model.parameters(), lr=0.1)
    seen = jg.zeros((), dtype=jg.int64)

    @jg.jit(fallback="error")
    def step(i: jg.Tensor, y: jg.Tensor) -> jg.Tensor:
        seen.add_(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(i), y, reduction="none")
        loss.mean().backward()
        optimizer.step()
        return loss.detach()[:2]  # what is wrong in the other rows is an error all the same

    for _ in range(3):
        step(Y, OTHER)
    state = [p.detach().clone() for p in model.parameters()]
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    for args in ((HIGH, OTHER), (Y, LOW)):
        failure(step, args)
        assert seen.item() == 3
        for p, before in zip(model.parameters(), state, strict=True):
            assert (p == before).all()
        for s, exp_avg in zip(optimizer.state.values(), moments, strict=True):
            assert (s["exp_avg"] == exp_avg).all()
    step(Y, OTHER)
    assert seen.item() == 4


def test_gradients_through_a_checked_position() -> None:
    """The backward, called from outside, reads the positions that the forward has checked."""
    table = jg.randn(10, 4, requires_grad=True)
    fast = jg.jit(lambda w, i: F.embedding(i, w)[:5] * 2, fallback="error")
    for _ in range(2):
        table.grad = None
        fast(table, Y).sum().backward()
    want = np.zeros((10, 4), np.float32)
    np.add.at(want, Y.numpy()[:5], 2)
    assert table.grad is not None
    np.testing.assert_array_equal(table.grad, want)
    failure(fast, (table, HIGH))


def test_what_is_sure_to_be_computed_needs_no_check_of_its_own() -> None:
    """Kernels: one where the value's own does it, one more where it does not."""

    def kernels(f: Callable[..., Any], *args: Any) -> int:
        fast = jg.jit(f, fallback="error")
        fast(*args), fast(*args)
        return fast.specialisations[0].compiled.report.kernels

    for f in (
        lambda x, i: x[i] + 1,
        lambda x, i: x[i].reshape(-1) * 2,
        lambda x, i: x[i].t().flip(0) + 1,
        lambda x, i: x[i].reshape(4, 4, 10).permute(2, 0, 1) * x[0, 0],
        lambda x, i: x[i].t()[1:3] * 2,  # some columns of all rows
        lambda x, i: x.gather(1, i[:, None]).exp(),
        lambda x, i: TABLE(i),
        lambda x, i: ((i // 2)[1:], x + 1)[1],  # a divisor that is known
        lambda x, i: (i % 3)[::2] + 1,
    ):
        assert kernels(f, X, Y) == 1
    assert kernels(lambda x, i: (x[i], x + 1)[1], X, Y) == 2
    assert kernels(lambda x, i: (x[i], x[i] + 1, x + 1)[2], X, Y) == 2  # the same check once


def test_symbolic_dims() -> None:
    """Bounds that are sizes of the call."""
    g = Graph()
    n, m = g.env.dim("n", 8), g.env.dim("m", 5)
    x = g.add_input(TensorType((n,), dtypes.float32), "arg", "x")
    i = g.add_input(TensorType((m,), dtypes.int64), "arg", "i")
    picked = g.add(OPS["index"], x, i, dims=(0,))
    g.outputs = [g.add(OPS["slice"], picked, starts=(0,), stops=(2,), steps=(1,))]
    run = compile_graph(g).run
    for size in (8, 11):
        data = np.arange(size, dtype=np.float32)
        index = np.array([1, -1, 0, size - 1, 2, -size])
        np.testing.assert_array_equal(run([data, index])[0], [1, size - 1])
        index[4] = size
        with pytest.raises(IndexError, match=rf"index {size} is .* dimension 0 with size {size}"):
            run([data, index])


def test_bounds_that_the_dtype_does_not_reach() -> None:
    """A bound past the end of the dtype's numbers asks nothing of them; it does not wrap."""
    for dtype in (jg.int8, jg.uint8, jg.int32):
        i = jg.arange(100).to(dtype)
        fast = jg.jit(lambda i: jg.unravel_index(i, (20, 20))[0], fallback="error")
        for _ in range(2):
            assert fast(i).tolist() == (np.arange(100) // 20).tolist()
    g = Graph()
    x = g.add_input(TensorType((2,), dtypes.uint8), "arg", "x")
    attrs = {"low": 300, "high": None, "error": "ValueError", "text": "{value} is below 300"}
    g.outputs = [g.add(OPS["expect_range"], x, **attrs)]
    with pytest.raises(ValueError, match="7 is below 300"):
        compile_graph(g).run([np.array([7, 8], np.uint8)])


def test_the_check_mode_raises_it_too() -> None:
    fast = jg.jit(lambda x, i: x[i][:2], fallback="error", check=True)
    for _ in range(2):
        fast(X, Y)
    assert failure(fast, (X, HIGH)) == failure(fast.__wrapped__, (X, HIGH))


def test_an_exported_graph_and_its_library(tmp_path: Path) -> None:
    """The graph raises what eager code raises; a library says which function and bounds."""

    def f(x: jg.Tensor, i: jg.Tensor) -> jg.Tensor:
        return (F.embedding(i, x), x[i])[0][:2]

    exported = jg.export(f, X, Y)
    assert exported(X, Y).shape == (2, 10)
    assert failure(exported, (X, HIGH)) == failure(f, (X, HIGH))
    if find_linker() is None:
        pytest.skip("no linker")
    exported.native(tmp_path / "libpick.so")
    model = load(tmp_path / "libpick.so")
    np.testing.assert_array_equal(model(X.numpy(), Y.numpy()), exported(X, Y))
    with pytest.raises(RuntimeError, match=r"\[embedding\] index .* dimension 0 with size 16") as e:
        model(X.numpy(), HIGH.numpy())
    assert Path(__file__).name in str(e.value) and str(tmp_path) not in str(e.value)
