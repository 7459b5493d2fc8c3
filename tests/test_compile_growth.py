"""What compiling costs grows with the graph, and no faster: counted, not timed."""

from __future__ import annotations

import gc
import random
from collections import Counter

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import index, loops, pipeline
from jitgrad.compiler.codegen import llvm
from jitgrad.compiler.options import Options
from jitgrad.compiler.passes import inline, reach, share
from jitgrad.compiler.pipeline import stages_of
from jitgrad.runtime.knobs import knob


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


def test_kernels_of_a_long_chain_are_alike_and_small():
    """What is compiled of ten times as many operations is a constant: kernels of one size, all but
    the first and the last the same one."""
    sizes = []
    for n in (100, 1000):

        def chain(x, n=n):
            for k in range(n):
                x = jg.tanh(x) + 0.1 if k % 2 else x * 1.01
            return x

        _, stages = stages_of(recorded(chain, jg.linspace(0.1, 0.9, 50)), Options())
        texts = [g.module_text for g in stages.generated.values()]
        assert len(set(texts)) <= 3
        sizes.append(sum(map(len, set(texts))))
    assert sizes[1] < 2 * sizes[0]


def test_long_chains_compile():
    def loop(x, w):
        for _ in range(1500):
            x = (x @ w).tanh()
        return x

    graph = recorded(loop, jg.randn(4, 4), jg.eye(4))
    assert len(graph.nodes) == 3000


def chain(n):
    def run(x):
        for i in range(n):
            x = x * 1.01 if i % 2 else x + 0.1
        return x

    return run, (jg.ones(8),)


def unrolled(n):
    w = (jg.randn(4, 4) * 0.3).requires_grad_()

    def step(x):
        w.grad = None
        h = x
        for _ in range(n):
            h = (h @ w).tanh()
        h.sum().backward()
        return w.grad

    return step, (jg.randn(4, 4),)


def towers(n):
    """Values that are made side by side, then added up one after the other."""
    w = jg.randn(4, 4)

    def run(x):
        parts = [(x + i) @ w for i in range(n)]
        total = parts[0]
        for part in parts[1:]:
            total = total * part
        return total

    return run, (jg.randn(4, 4),)


def slices(n):
    def run(x):
        return sum(x[i : i + 1] * 2 for i in range(n))

    return run, (jg.randn(n),)


def updates(n):
    def run(*parameters):
        for p in parameters:
            p.mul_(0.5)

    return run, [jg.randn(3) for _ in range(n)]


@pytest.mark.filterwarnings("ignore:.*step by step")
@pytest.mark.parametrize("make", [chain, unrolled, towers, slices, updates])
def test_passes_look_at_each_thing_a_few_times(make, monkeypatch):
    """From n steps to 4 n: what orders groups and kernels, and what walks expressions, looks at
    4 times as much."""
    looked: Counter[str] = Counter()
    relations: list[reach.Precedence] = []
    real_walk, real_start = loops.postorder, reach.Precedence.__init__

    def walk(roots):
        found = real_walk(roots)
        looked["expressions"] += len(found)
        return found

    def start(self):
        real_start(self)
        relations.append(self)

    for module in (loops, inline, index):
        monkeypatch.setattr(module, "postorder", walk)
    monkeypatch.setattr(reach.Precedence, "__init__", start)
    counts = []
    for n in (60, 240):
        function, args = make(n)
        looked.clear()
        relations.clear()
        compiled = jg.jit(function, fallback="error")
        with knob(cache=False):  # else passes may have run in another process
            compiled(*args)
        specialisation = compiled.specialisations[0]
        looked["visits"] = sum(r.visits for r in relations)
        looked["source"] = len(specialisation.source.splitlines())
        looked["nodes"] = len(specialisation.trace.graph.nodes)
        counts.append(dict(looked))
    assert counts[1]["visits"]
    for what, few in counts[0].items():
        assert counts[1][what] <= 4.6 * few + 100, (what, counts)


def test_precedence_answers_as_a_search_does():
    """On random relations without cycles, with questions between additions."""
    r = random.Random(0)
    for _ in range(30):
        relation: reach.Precedence[int] = reach.Precedence()
        before: dict[int, set[int]] = {}

        def search(starts, target, before=before):
            seen, stack = set(), list(starts)
            while stack:
                x = stack.pop()
                if x not in seen:
                    seen.add(x)
                    stack += before[x]
            return target in seen

        for x in range(40):
            before[x] = set(r.sample(range(x), min(x, r.randrange(3))))
            relation.add(x, before[x])
            for _ in range(6):
                starts = r.sample(range(x + 1), min(x + 1, r.randrange(1, 4)))
                target = r.randrange(x + 1)
                found = relation.must_follow(starts, target)
                assert found == search(starts, target)
                if not found and r.random() < 0.5:  # target may wait for them all
                    relation.add(target, starts)
                    before[target] |= set(starts)
        assert all(relation.level[p] < relation.level[x] for x in before for p in before[x])


def test_garbage_collection_waits_in_passes(monkeypatch):
    """What a pass keeps is not looked at again and again; and collection goes on, also when a pass
    fails."""
    inside = []
    real = pipeline.inline

    def watched(program):
        inside.append(gc.isenabled())
        return real(program)

    monkeypatch.setattr(pipeline, "inline", watched)
    assert gc.isenabled()
    with knob(cache=False):
        recorded(lambda x: x.sin() + 1, jg.ones(5))
    assert inside == [False] and gc.isenabled()
    run = pipeline._Runner(pipeline.Report())
    with pytest.raises(ZeroDivisionError), run.step("pass"):
        raise ZeroDivisionError
    assert gc.isenabled()


def test_what_rows_share_is_found_in_one_walk(monkeypatch):
    looked: Counter[int] = Counter()
    own_weight = share.own_weight

    def counting(e):
        looked[id(e)] += 1
        return own_weight(e)

    monkeypatch.setattr(share, "own_weight", counting)
    f = jg.jit(lambda x: (0.1 // x).softmax(-1), fallback="error")  # a long expression, in float64
    x = jg.rand(8, 40).double()
    with knob(cache=False):
        for _ in range(2):
            f(x)
    assert len(looked) > 3
    assert sum(looked.values()) <= 8 * len(looked)
