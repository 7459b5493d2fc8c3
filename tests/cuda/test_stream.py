"""Streamed attention (codegen/cuda/stream.py) against references: forward and backward, masks, odd
sizes, halves on tensor cores, and what is not a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_graphs import close, compiled, normal, run

import jitgrad as jg
from jitgrad.compiler.interpret import interpret
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.kernels import ChainKernel

sdpa = jg.nn.functional.scaled_dot_product_attention


def graph_of(f: Any, args: Sequence[np.ndarray]) -> tuple[Graph, list[np.ndarray]]:
    """What a function records, and its arguments in the order in which the graph has them."""
    specs = [jg.TensorSpec(a.shape, jg.tensor(a).dtype) for a in args]
    lowered = jg.jit(f).lower(*specs)
    return lowered.graph, [args[e.source.index] for e in lowered.trace.entries]


def check(f: Any, *args: np.ndarray, chains: int, scale: float = 1.0, **target: Any) -> Any:
    graph, args = graph_of(f, args)
    code = compiled(graph, stream_least=32, stream_side=4, **target)
    assert sum(isinstance(k, ChainKernel) for k in code.stages.kernels) == chains
    with np.errstate(all="ignore"):
        wanted = interpret(graph, args)
    for got, want in zip(run(code, args), wanted, strict=True):
        close(got, want, scale)
    return code


def gradients(f: Any) -> Any:
    def both(grad: Any, *args: Any) -> Any:
        args = tuple(a.detach().requires_grad_() for a in args)
        return jg.autograd.grad(f(*args), args, grad)

    return both


def operands(rows: int, columns: int, width: int, values: int = 0) -> list[np.ndarray]:
    lead = (1, 2)
    return [
        normal(*lead, rows, width), normal(*lead, columns, width, seed=1),
        normal(*lead, columns, values or width, seed=2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns", "width", "values"), [(16, 8, 4, 4), (11, 13, 3, 5), (9, 5, 6, 11)]
)
def test_forward(rows: int, columns: int, width: int, values: int) -> None:
    check(sdpa, *operands(rows, columns, width, values), chains=2, scale=4)


def test_causal_forward_and_backward() -> None:
    q, k, v = operands(10, 10, 4)

    def f(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True)

    check(gradients(f), normal(1, 2, 10, 4, seed=3), q, k, v, chains=5, scale=8)


def test_heads_in_groups_and_a_mask() -> None:
    q, k, v = operands(10, 12, 4)
    mask = np.random.default_rng(0).random((10, 12)) > 0.4
    mask[3] = False

    def f(q: Any, k: Any, v: Any, m: Any) -> Any:
        return sdpa(q, k[:, :1], v[:, :1], attn_mask=m, enable_gqa=True)

    check(f, q, k, v, mask, chains=3, scale=4)


def test_what_is_no_number_stays_in_its_rows() -> None:
    """A row that sees nothing, one with a NaN, one with an infinity, and one of the smallest."""
    q, k, v = operands(12, 9, 4)
    bias = np.zeros((12, 9), np.float32)
    bias[1] = -np.inf
    bias[2, 3] = np.nan
    bias[4, 8] = np.inf
    bias[6, :5] = -np.inf
    bias[7] = -3e38

    def f(q: Any, k: Any, v: Any, b: Any) -> Any:
        return jg.softmax(q @ k.mT + b, -1) @ v

    code = check(f, q, k, v, bias, chains=2, scale=4)
    (got,) = run(code, graph_of(f, [q, k, v, bias])[1])
    broken = np.isnan(got).any((0, 1, 3))
    assert np.flatnonzero(broken).tolist() == [1, 2, 4]


@pytest.mark.parametrize("dtype", [np.float16, jg.bfloat16])
def test_halves_on_tensor_cores(dtype: Any) -> None:
    kind = dtype if dtype is np.float16 else jg.tensor(0.0, dtype=dtype).numpy().dtype
    args = [x[:, :1].astype(kind) for x in operands(18, 20, 16)]

    def f(q: Any, k: Any, v: Any) -> Any:
        return sdpa(q, k, v, is_causal=True)

    code = check(f, *args, chains=2)
    assert "mma_" in "".join(code.texts.values())


def test_a_float32_product_of_scores_of_halves_keeps_its_precision() -> None:
    """Only the first contraction is of halves: where both are in a kernel, neither is on tensor
    cores."""
    q, k, v = operands(18, 20, 16)

    def f(q: Any, k: Any, v: Any) -> Any:
        return jg.softmax((q @ k.mT).float() * 0.2, -1) @ v

    code = check(f, *[x.astype(np.float16) for x in (q, k)], v, chains=2, scale=4)
    assert sorted("mma_" in text for text in set(code.texts.values())) == [False, True]


def test_other_reductions_than_a_softmax() -> None:
    def f(q: Any, k: Any, v: Any) -> Any:
        s = jg.relu(q @ k.mT)
        return (s / (1 + s.sum(-1, keepdim=True)) - s.amin(-1, keepdim=True)) @ v

    check(f, *operands(9, 10, 4), chains=2, scale=8)
