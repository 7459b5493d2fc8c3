"""Attention for GPUs, without one: no array of scores is planned, forward or backward, and the
kernels give what the references give (kernel_interpreter.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_interpreter import run_schedule
from test_passes import reference

import jitgrad as torch
from jitgrad.compiler.codegen.cuda.target import gpu_target
from jitgrad.compiler.kernels import ChainKernel, ContractionKernel
from jitgrad.compiler.options import Options
from jitgrad.compiler.pipeline import cuda_stages
from jitgrad.compiler.stages import Stages

Tensor = torch.Tensor
sdpa = torch.nn.functional.scaled_dot_product_attention
BATCH, HEADS, ROWS, COLUMNS, WIDTH = 2, 2, 12, 20, 5
SCORES = BATCH * HEADS * ROWS * COLUMNS
TARGET = replace(gpu_target("sm_80"), stream_least=128, stream_side=8)


def full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return torch.softmax(s, -1) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    affinity = torch.einsum("bhid,bhjd->bhij", q, k) * 0.2
    weight = torch.exp(affinity - affinity.amax(-1, keepdim=True))
    return torch.einsum("bhij,bhjd->bhid", weight / weight.sum(-1, keepdim=True), v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A boolean mask in memory; its first rows see nothing, and are 0."""
    at = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    return sdpa(q, k, v, attn_mask=at > 2)


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A bias that falls with the distance, for each head (ALiBi)."""
    at = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
    slope = torch.tensor([0.5, 0.25])[:, None, None]
    return torch.log_softmax(q @ k.mT * 0.2 - slope * at.abs(), -1).exp() @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k[:, :1], v[:, :1], enable_gqa=True)


def without_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores that are divided by the sums of their squares."""
    s = torch.relu(q @ k.mT)
    return s / (1 + (s * s).sum(-1, keepdim=True)) @ v


FORMS = [full, by_hand, causal, masked, biased, grouped, without_softmax]


def gradients(f: Callable[..., Tensor]) -> Callable[..., Any]:
    def both(grad: Tensor, *args: Tensor) -> Any:
        out = f(*args)
        return out.detach(), *torch.autograd.grad(out, args, grad)

    return both


def stages_of(f: Any, shapes: list[tuple[int, ...]], grads: bool = False) -> Stages:
    specs = [torch.TensorSpec(s, requires_grad=grads and n > 0) for n, s in enumerate(shapes)]
    lowered = torch.jit(f).lower(*specs)
    return cuda_stages(lowered.graph, lowered.options, TARGET)


def check(found: Stages) -> None:
    """Runs a planned graph on the NumPy machine beside the references."""
    rng = np.random.default_rng(0)
    types = [i.value.type for i in found.graph.inputs]
    arrays = [rng.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    got, faults = run_schedule(found.program, found.schedule, found.plan, [*arrays])
    assert not faults
    for x, want in zip(got, reference(found.graph, arrays), strict=True):
        np.testing.assert_allclose(x, want, rtol=2e-5, atol=2e-5)


def shapes(batch: int = BATCH, heads: int = HEADS) -> list[tuple[int, ...]]:
    lead = (batch, heads)
    return [(*lead, ROWS, WIDTH), *[(*lead, COLUMNS, WIDTH)] * 2]


def scores_in(found: Stages) -> list[Any]:
    """Arrays in memory that are as large as the scores, but for masks."""
    return [a for a in found.plan.offsets if a.numel >= SCORES and a.dtype.name != "bool"]


@pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)
def test_no_scores_are_in_memory(f: Callable[..., Tensor]) -> None:
    found = stages_of(f, shapes())
    assert any(isinstance(k, ChainKernel) for k in found.kernels)
    assert not any(isinstance(k, ContractionKernel) for k in found.kernels)
    assert not scores_in(found)
    check(found)


@pytest.mark.parametrize("f", FORMS, ids=lambda f: f.__name__)
def test_no_scores_are_in_memory_backward(f: Callable[..., Tensor]) -> None:
    grad = (BATCH, HEADS, ROWS, WIDTH)
    found = stages_of(gradients(f), [grad, *shapes()], grads=True)
    assert sum(isinstance(k, ChainKernel) for k in found.kernels) >= 5
    assert not scores_in(found)
    check(found)


def test_a_softmax_is_two_chains_of_which_one_has_maximum_and_sum() -> None:
    first, second = (k for k in stages_of(full, shapes()).kernels)
    assert isinstance(first, ChainKernel) and isinstance(second, ChainKernel)
    assert [len(s.reduces) for s in first.kernels[-1].stages] == [1, 1, 0]
    assert isinstance(second.kernels[-1], ContractionKernel)


@pytest.mark.parametrize(("batch", "heads"), [(1, 2), (2, 1), (1, 1)])
def test_dims_of_one_do_not_matter(batch: int, heads: int) -> None:
    found = stages_of(causal, shapes(batch, heads))
    assert sum(isinstance(k, ChainKernel) for k in found.kernels) == 2
    check(found)


def test_scores_that_are_wanted_are_stored() -> None:
    def weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(q @ k.mT, -1)
        return p, p @ v

    def first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(q @ k.mT, -1)
        return p @ v + p[..., :1]

    for f in (weights, first):
        found = stages_of(f, shapes())
        assert not any(isinstance(k, ChainKernel) for k in found.kernels)
        check(found)


def test_products_without_a_reduction_between_them_and_long_sums_are_stored() -> None:
    found = stages_of(lambda x, w, u: torch.relu(x @ w) @ u, [(64, 16), (16, 64), (64, 16)])
    assert not any(isinstance(k, ChainKernel) for k in found.kernels)
    wide = [(16, 300), (40, 300), (40, 300)]
    assert not any(isinstance(k, ChainKernel) for k in stages_of(full, wide).kernels)


def test_projections_are_stored_scores_are_not() -> None:
    """What scores are made of is smaller than they are: it is computed once."""

    def layer(x: Tensor, w: Tensor) -> Tensor:
        q, k, v = (x @ w[n] for n in range(3))
        return full(q, k, v)

    given: list[tuple[int, ...]] = [(40, 16), (3, 16, 16)]
    found = stages_of(layer, given)
    assert [type(k).__name__ for k in found.kernels].count("ChainKernel") == 2
    assert all(a.numel <= 40 * 16 for a in found.plan.offsets)
    check(found)


def test_small_scores_are_stored() -> None:
    lowered = torch.jit(full).lower(*[torch.TensorSpec(s) for s in shapes()])
    found = cuda_stages(lowered.graph, Options(), gpu_target("sm_80"))
    assert not any(isinstance(k, ChainKernel) for k in found.kernels)
