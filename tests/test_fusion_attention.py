"""Attention as users write it: a kernel forward, one backward, no array of scores in memory.

Chains change no order of operations: the numbers are those of the kernels one by one, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import jit
from jitgrad.compiler import pipeline
from jitgrad.compiler.kernels import ChainKernel
from jitgrad.compiler.passes import chain_rows
from jitgrad.runtime.knobs import knob

Tensor = torch.Tensor
BATCH, HEADS, LENGTH, WIDTH = 4, 2, 160, 24
SCORES = 4 * BATCH * HEADS * LENGTH * LENGTH


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(s, -1) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Elementary ops only, other names."""
    affinity = torch.einsum("bhid,bhjd->bhij", q, k) * 0.2
    weight = torch.exp(affinity - affinity.amax(-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", weight / weight.sum(-1, keepdim=True), v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = (q @ k.mT) * 0.2
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return s.masked_fill(future, float("-inf")).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias that falls with the distance, for each head (ALiBi)."""
    at = torch.arange(q.shape[-2])
    slope = torch.tensor([0.5, 0.25])[:, None, None]
    s = q @ k.mT * 0.2 - slope * (at[:, None] - at[None, :]).abs()
    return torch.log_softmax(s, -1).exp() @ v


def library(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two heads of queries share one of keys and values."""
    k, v = k[:, :1], v[:, :1]
    f = torch.nn.functional.scaled_dot_product_attention
    return f(q, k, v, enable_gqa=True)


FORMS = [full, by_hand, causal, biased, library, grouped]


def operands() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3)]


def gradients(f: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def both(grad: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
        out = f(*args)
        return out.detach(), *torch.autograd.grad(out, args, grad)

    return both


def compiled(f: Callable[..., object], *args: Tensor) -> tuple[list[np.ndarray], object]:
    fast = jit(f, fallback="error")
    fast(*args)
    got = fast(*args)
    found = [s.compiled for s in fast.specialisations if s.compiled][-1]
    return [t.numpy() for t in (got if isinstance(got, tuple) else (got,))], found


@pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)
def test_one_chain(f: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    args = operands()
    plain = [a.detach() for a in args]
    grad = torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    for g, given in ((f, plain), (gradients(f), [grad, *args])):
        with knob(cache=False):
            got, found = compiled(g, *given)
            chains = [k for k in found.stages.kernels if isinstance(k, ChainKernel)]
            assert len(chains) == 1
            assert found.report.peak < SCORES / 2, found.report.peak
            assert all(a.numel < SCORES // 4 for a in found.stages.plan.offsets)
            with monkeypatch.context() as m:
                m.setattr(pipeline, "chain", lambda kernels, roots: kernels)
                apart, other = compiled(g, *given)
        assert other.report.kernels > found.report.kernels + 1
        assert other.report.bytes_after > 2 * found.report.bytes_after
        want = g(*given)
        for a, b, w in zip(got, apart, want if isinstance(want, tuple) else (want,), strict=True):
            assert a.tobytes() == b.tobytes()
            np.testing.assert_allclose(a, w.numpy(), rtol=1e-4, atol=2e-5)


class Layer(torch.nn.Module):
    """A self-attention layer of public GPT code."""

    def __init__(self, width: int, heads: int, p: float) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.heads, self.p = heads, p

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        parts = self.qkv(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in parts)
        w = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        w = torch.softmax(w.masked_fill(~seen, float("-inf")), -1)
        w = torch.nn.functional.dropout(w, self.p)
        return self.out((w @ v).transpose(1, 2).reshape(b, t, c))


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_training_step_computes_scores_again(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss lies between: the backward chain makes scores, and dropout's mask, once more."""

    def losses() -> tuple[list[float], object]:
        torch.manual_seed(0)
        layer = Layer(64, 2, p)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x = torch.randn(BATCH, 256, 64)

        @jit(fallback="error")
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = (layer(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        out = [step(x).item() for _ in range(4)]
        return out, [s.compiled for s in step.specialisations if s.compiled][-1]

    with knob(cache=False):
        got, found = losses()
        chains = [k for k in found.stages.kernels if isinstance(k, ChainKernel)]
        assert len(chains) == 2
        scores = BATCH * 2 * 256 * 256
        assert all(a.numel < scores for a in found.stages.plan.offsets)
        with monkeypatch.context() as m:
            m.setattr(pipeline, "chain", lambda kernels, roots: kernels)
            apart, other = losses()
    assert got == apart
    assert any(a.numel >= scores for a in other.stages.plan.offsets)
    assert found.report.peak < other.report.peak


def test_threads_do_not_matter() -> None:
    args = operands()
    grad = torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    before = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 8):
            torch.set_num_threads(n)
            results.append(compiled(gradients(causal), grad, *args)[0])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0], other, strict=True))


def test_products_that_share_nothing_private_stay_apart() -> None:
    """A result that the caller wants is written as a whole; small scores are left alone."""

    def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        w = torch.softmax(q @ k.mT, -1)
        return w @ v, w

    args = [a.detach() for a in operands()]
    got, _ = compiled(with_weights, *args)
    for a, w in zip(got, with_weights(*args), strict=True):
        np.testing.assert_allclose(a, w.numpy(), rtol=1e-4, atol=2e-5)
    small = [a[:, :, :8] for a in args]
    with knob(cache=False):
        got, found = compiled(full, *small)
    assert not any(isinstance(k, ChainKernel) for k in found.stages.kernels)
    np.testing.assert_allclose(got[0], full(*small).numpy(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shape", [(2, 4, 512, 16), (1, 8, 640, 8)], ids=str)
@pytest.mark.parametrize("f", [by_hand, causal, library], ids=lambda f: f.__name__)
def test_long_rows_come_in_blocks(
    f: Callable[..., Tensor], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, a thread has a block of rows of the scores at a time, not all of one head."""
    monkeypatch.setattr(chain_rows, "TILE_BYTES", 1 << 17)
    args = [torch.randn(*shape) for _ in range(3)]
    with knob(cache=False):
        got, found = compiled(f, *args)
        (one,) = [k for k in found.stages.kernels if isinstance(k, ChainKernel)]
        heads, length = shape[0] * shape[1], shape[2]
        assert one.tiles[0] >= 4 * heads
        assert found.stages.generated[one].scratch < 4 * length * length
        assert found.report.peak < 4 * length * length
        with monkeypatch.context() as m:
            m.setattr(pipeline, "chain", lambda kernels, roots: kernels)
            apart, _ = compiled(f, *args)
    assert got[0].tobytes() == apart[0].tobytes()
    np.testing.assert_allclose(got[0], f(*args).numpy(), rtol=1e-4, atol=2e-5)
