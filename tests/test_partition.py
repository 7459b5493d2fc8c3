"""What a compiled forward keeps for its backward: bytes are counted, gradients compared."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad.compiler.codegen import llvm
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.passes import partition
from jitgrad.jit import jit
from jitgrad.runtime.knobs import knob
from jitgrad.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def _strict() -> Any:
    with knob(fallback="error"):
        yield


def leaf(*shape: int, seed: int = 0) -> Any:
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return jg.tensor(data, requires_grad=True)


def pair_of(function: Callable[..., Any], *args: Any) -> Any:
    """The pair of a function, after its gradients were compared with the plain function's."""
    fast = jit(function)
    grads = []
    for f in (function, fast, fast):
        jg.manual_seed(3)
        out = f(*args)
        loss = sum((y * jg.arange(1.0, y.numel() + 1).reshape(y.shape)).sum() for y in
                   (out if isinstance(out, tuple) else (out,)))  # fmt: skip
        grads.append(jg.autograd.grad(loss, [x for x in args if x.requires_grad]))
    for a, b in zip(grads[0], grads[2], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)
    assert fast.stats.hits == 1
    return fast.specialisations[0].trace.pair


def kept(pair: Any) -> list[str]:
    """What is kept beside the inputs, by the op that makes it (or the input that is copied)."""
    return [
        v.node.op.name if v.node is not None else f"copy of {v.name}"
        for (kind, _), v in zip(pair.kept, pair.values, strict=True)
        if kind == "result"
    ]


N = 64


@pytest.mark.parametrize(("function", "names", "count"), [
    # cheap arithmetic is done again, from what is held anyway
    (lambda x: (x * x * 3 + x).square().sum(), [], 0),
    # what a product makes is kept, or what is made of it: once
    (lambda x: F.relu(x @ x + 1).square().sum(), ["relu"], 4 * N * N),
    # a mask of bools is a quarter of the numbers it was made of
    (lambda x: F.dropout(x.sin(), 0.5).sum(), ["ge"], N * N),
    # the sums of a row are dear, but small
    (lambda x: F.layer_norm(x, (N,)).square().sum(), ["sub", "rsqrt"], 4 * (N * N + N)),
    # results of a sort, a scan and a product are kept
    (lambda x: x.cumsum(0).square().sum(), ["cumsum"], 4 * N * N),
    # of a view and its base the smaller is kept
    (lambda x: (x @ x)[0].square().sum(), ["slice"], 4 * N),
    (lambda x: (x @ x).t().expand(3, N, N).square().sum(), ["matmul"], 4 * N * N),
])  # fmt: skip
def test_what_is_kept(function: Any, names: list[str], count: int) -> None:
    pair = pair_of(function, leaf(N, N))
    assert kept(pair) == names
    assert pair.kept_bytes == count


def test_fewer_bytes_than_eager_saves() -> None:
    jg.manual_seed(0)
    block = nn.Sequential(
        nn.Linear(N, 4 * N), nn.BatchNorm1d(4 * N), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * N, N)
    )
    saved = 0

    def pack(x: Any) -> Any:
        nonlocal saved
        saved += 0 if x.is_leaf else x.nbytes
        return x

    x = leaf(N, N)
    with jg.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        F.silu(block(x)).sum()
    pair = pair_of(lambda x: F.silu(block(x)).sum(), x)
    assert 0 < pair.kept_bytes < saved / 2


def test_a_long_chain_is_cut_into_pieces() -> None:
    def f(x: Any) -> Any:
        for _ in range(100):
            x = x + 1
        return x.cos().sum()

    assert kept(pair_of(f, leaf(N))) == ["add"]  # 100 additions cost more than to keep their sum


def test_windows_keep_what_is_right(monkeypatch: Any) -> None:
    def f(x: Any) -> Any:
        for i in range(6):
            x = F.relu(x @ x / N) + x * i
        return x.square().mean()

    whole = pair_of(f, leaf(N, N))
    monkeypatch.setattr(partition, "WINDOW", 5)
    parts = pair_of(f, leaf(N, N))  # compares the gradients
    assert whole.kept_bytes <= parts.kept_bytes <= 2 * whole.kept_bytes


def test_what_eager_does_not_save_may_change_before_backward() -> None:
    fast = jit(lambda x, w: (x * 2 + w.exp()).tanh())
    for _ in range(3):
        x, w = leaf(N), leaf(N, seed=1)
        y = fast(x, w)
        with jg.no_grad():
            x.add_(1)  # eager code saves neither x nor w
            w.mul_(0)
        y.sum().backward()
        x, w = leaf(N), leaf(N, seed=1)
        outer = 1 - (x * 2 + w.exp()).tanh() ** 2
    assert fast.stats.hits == 2
    again = [leaf(N), leaf(N, seed=1)]
    y = fast(*again)
    y.sum().backward()
    np.testing.assert_allclose(
        again[0].grad.numpy(), (2 * outer).detach().numpy(), rtol=2e-4, atol=1e-6
    )


def test_checkpointed_values_are_not_kept() -> None:
    w = leaf(N, N, seed=1)

    def part(x: Any) -> Any:
        return ((x @ w / N).tanh() @ w / N).tanh()

    def f(x: Any) -> Any:
        return checkpoint(part, checkpoint(part, x, use_reentrant=False), use_reentrant=False)

    plain = pair_of(lambda x: part(part(x)), leaf(N, N))
    less = pair_of(f, leaf(N, N))
    assert plain.kept_bytes == 4 * 4 * N * N  # each tanh, the result's among them
    assert less.kept_bytes == 4 * N * N  # what goes into the second part


def test_a_random_op_draws_the_same_when_it_runs_again() -> None:
    def part(x: Any) -> Any:
        return F.dropout(x, 0.5) * x

    pair = pair_of(lambda x: checkpoint(part, x, use_reentrant=False), leaf(N, N))
    assert [n.op.random for n in pair.backward.nodes].count(True) == 1
    assert pair.kept_bytes <= 16  # the seed, and the number of the draw


def test_nothing_kept_outlives_backward() -> None:
    fast = jit(lambda x: (x @ x).sigmoid() @ x)
    fast(leaf(N, N))
    x = leaf(N, N)
    y = fast(x)
    node = y.grad_fn
    arrays = [weakref.ref(a) for a, owner, _ in node.kept if owner is None]
    inputs = weakref.ref(x * 1)
    assert arrays and all(a() is not None for a in arrays)
    y.sum().backward()
    assert all(a() is None for a in arrays) and inputs() is None
    held = weakref.ref(fast(x))
    assert held() is None  # a result that nobody holds, and all that was kept for it, is freed


def test_row_constants_do_not_choose_the_direction_of_vectors() -> None:
    def f(x: Any, a: Any, b: Any, c: Any) -> Any:
        return ((x - a) * b * c).sum((0, 2, 3))

    fast = jit(f)
    args = [leaf(4, 32, 8, 8), *(leaf(1, 32, 1, 1, seed=i) for i in (1, 2, 3))]
    with jg.no_grad(), knob(cache=False):
        expected, _, got = f(*args), fast(*args), fast(*args)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)
    (kernel,) = fast.specialisations[0].compiled.stages.kernels
    assert "gather" not in llvm.generate(kernel, host()).module_text
