"""Epilogues that go through many large arrays, as optimizers' do: their bits, at all edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.codegen.blocking import plan_blocks
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.kernels import ContractionKernel
from jitgrad.runtime.knobs import knob


def adam(x: Any, y: Any, p: Any, m: Any, v: Any, scale: Any) -> Any:
    d = (x @ y) * scale
    first, second = m * 0.9 + d * 0.1, v * 0.99 + d * d * 0.01
    return d, first, second, p - first / (second.sqrt() + 1e-8) * 0.01


def plans(f: Any) -> list[Any]:
    kernels = f.specialisations[-1].compiled.stages.kernels
    return [plan_blocks(k, host()) for k in kernels if isinstance(k, ContractionKernel)]


@pytest.mark.parametrize("dtype", [jg.float32, jg.float64])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [(256, 64, 256), (301, 70, 515), (97, 600, 1000), (1000, 17, 129), (270, 1, 300)],
)
def test_results_of_a_wide_epilogue(m: int, k: int, n: int, dtype: Any) -> None:
    jg.manual_seed(m)
    x, y = jg.randn(m, k, dtype=dtype), jg.randn(k, n, dtype=dtype)
    state = [jg.rand(m, n, dtype=dtype) for _ in range(3)]
    scale = jg.rand(n, dtype=dtype)
    f = jg.jit(adam, fallback="error")
    product = jg.jit(lambda x, y: x @ y, fallback="error")
    with knob(cache=False):
        for _ in range(2):
            found = f(x, y, *state, scale)
            d = product(x, y)
    assert [p.strip > 0 for p in plans(f)] == [True]
    wanted = [z.numpy() for z in (d, *state, scale)]
    d = wanted[0] * wanted[4]
    assert found[0].numpy().tobytes() == d.tobytes()  # whatever the epilogue
    one = np.dtype(d.dtype).type
    first = wanted[2] * one(0.9) + d * one(0.1)
    second = wanted[3] * one(0.99) + d * d * one(0.01)
    after = wanted[1] - first / (np.sqrt(second) + one(1e-8)) * one(0.01)
    for got, want in zip(found[1:], (first, second, after), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-6, atol=2e-6)


def test_a_wide_epilogue_with_other_layouts() -> None:
    """Turned state, a batch, and rows that are broadcast."""
    x, y = jg.randn(3, 150, 40), jg.randn(3, 40, 260)
    state = [jg.rand(260, 150).mT, jg.rand(3, 150, 260), jg.rand(3, 150, 1)]
    f = jg.jit(adam, fallback="error")
    for _ in range(2):
        found = f(x, y, *state, jg.ones(260))
    with jg.disable_jit():
        wanted = adam(x, y, *state, jg.ones(260))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [2, 8])
def test_bits_on_any_number_of_threads(threads: int) -> None:
    x, y = jg.randn(300, 300), jg.randn(300, 400)
    state = [jg.rand(300, 400) for _ in range(3)]
    f = jg.jit(adam, fallback="error")
    f(x, y, *state, jg.ones(400))
    before = jg.get_num_threads()
    bits = []
    try:
        for count in (1, threads):
            jg.set_num_threads(count)
            bits.append([z.numpy().tobytes() for z in f(x, y, *state, jg.ones(400))])
    finally:
        jg.set_num_threads(before)
    assert bits[0] == bits[1]
