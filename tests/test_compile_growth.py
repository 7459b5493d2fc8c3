"""What compiling costs grows with the graph, and no faster: counted, not timed."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.codegen import llvm
from jitgrad.compiler.options import Options
from jitgrad.compiler.pipeline import stages_of


def recorded(function, *args):
    compiled = jg.jit(function, fallback="error")
    results = [np.asarray(compiled(*args)) for _ in range(2)]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    return compiled.specialisations[0].trace.graph


def test_steps_of_an_unrolled_loop_share_kernels(monkeypatch):
    """Reading xs[0], xs[1], ... is one kernel, whose place is an argument; so in a contraction."""
    w = jg.randn(6, 6) * 0.3

    def loop(h, xs):
        for t in range(xs.shape[0]):
            h = jg.softmax(h @ w + xs[t], -1) @ xs[t]
        return h

    made = []
    real = llvm.generate
    monkeypatch.setattr(llvm, "generate", lambda k, t: made.append(k) or real(k, t))
    recorded(loop, jg.randn(6, 6), jg.randn(40, 6, 6))
    assert len(made) <= 6  # the first and last step may differ from those between


@pytest.mark.parametrize("function", ["sin", "cos"])
def test_rare_code_of_a_chain_grows_with_its_length(function):
    """What a rare branch computes again does not depend on how much came before it."""
    sizes = []
    for n in (4, 8, 16):

        def chain(x, n=n):
            for _ in range(n):
                x = getattr(x * 1.5, function)()
            return x

        graph = recorded(chain, jg.linspace(0.1, 0.9, 50))
        _, stages = stages_of(graph, Options())
        sizes.append(sum(len(g.module_text) for g in stages.generated.values()))
    first, second, third = sizes
    assert third - second < 2.3 * (second - first)


def test_long_chains_compile():
    def loop(x, w):
        for _ in range(1500):
            x = (x @ w).tanh()
        return x

    graph = recorded(loop, jg.randn(4, 4), jg.eye(4))
    assert len(graph.nodes) == 3000
