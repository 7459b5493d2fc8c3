"""What recording a call costs beside running it: counted, not timed."""

from __future__ import annotations

import gc
import sys
from collections import Counter

import pytest

import jitgrad as jg
from jitgrad import effects
from jitgrad.compiler.ops import OPS
from jitgrad.jit import JitFunction
from jitgrad.state import state


def recorded(monkeypatch, function, *args):
    """The events that the watcher saw while a call was recorded, by function; none is compiled."""
    seen: Counter[str] = Counter()
    real = effects.Profile.function

    def counting(self):
        inner = real(self)

        def watch(frame, event, arg):
            seen[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1
            inner(frame, event, arg)

        return watch

    monkeypatch.setattr(effects.Profile, "function", counting)
    monkeypatch.setattr(JitFunction, "_add", lambda self, spec: None)
    jg.jit(function, fallback="error")(*args)
    return seen


def test_the_watcher_rests_while_ops_are_applied(monkeypatch):
    def f(x):
        for _ in range(20):
            x = (x * 2).sin()
        x.add_(1)
        return x

    seen = recorded(monkeypatch, f, jg.ones(3))
    assert not [name for name in seen if name.startswith("jitgrad.compiler.")]
    assert not [name for name in seen if name.startswith("jitgrad.recorder.")]
    assert sum(seen.values()) < 45 * 41


def test_types_are_inferred_once(monkeypatch):
    """Dispatch infers a type when it is new; the graph takes it over."""
    calls: Counter[str] = Counter()
    for name in ("add", "sin"):
        real = type(OPS[name]).infer

        def infer(self, *types, real=real, name=name, **attrs):
            calls[name] += 1
            return real(self, *types, **attrs)

        monkeypatch.setattr(OPS[name], "infer", infer.__get__(OPS[name]), raising=False)

    def f(x):
        for _ in range(30):
            x = (x + x).sin()
        return x

    recorded(monkeypatch, f, jg.ones(7, 5))
    assert calls["add"] <= 2 and calls["sin"] <= 2


def test_the_watcher_is_back_after_an_error(monkeypatch):
    box = [0]

    @jg.jit(fallback="silent")
    def f(x, y):
        try:
            x @ y
        except RuntimeError:
            box[0] += 1  # an effect, behind the op that failed
        return x + 1

    x, y = jg.ones(2, 3), jg.ones(2, 3)
    for n in range(1, 4):
        assert f(x, y).equal(x + 1)
        assert box[0] == n
    assert state.watcher is None


def test_effects_between_ops_are_seen():
    ran = []

    @jg.jit(fallback="error")
    def f(x):
        y = x.exp()
        ran.extend([1])
        return y.log()

    for _ in range(3):
        f(jg.ones(2))
    assert len(ran) == 3 and f.stats.hits == 0


@pytest.mark.parametrize("shape", [(3,), (0, 2), ()])
def test_taken_over_types_are_those_of_the_graph(shape):
    """The verifier infers each node anew."""
    from_dispatch = jg.jit(lambda x: (x.sum() + x, x.exp().T if x.ndim == 2 else x))
    graph = from_dispatch.lower(jg.TensorSpec(shape)).graph
    for node in graph.nodes:
        found = node.op.infer(*[v.type for v in node.inputs], **node.attr)
        many = found if isinstance(found, tuple) else (found,)
        assert [(t.shape, t.dtype, t.device) for t in many] == [
            (v.type.shape, v.type.dtype, v.type.device) for v in node.outputs
        ]
        assert all(type(v.type.shape) is tuple for v in node.outputs)


def test_a_number_that_python_keeps_does_not_keep_what_the_recording_met():
    kept = []

    @jg.jit(fallback="error")
    def f(x, s):
        kept.extend([s])  # an effect: nothing comes of the recording
        return (x * s).sum() + W.sum()

    W, x = jg.ones(3), jg.ones(4)
    arrays = [sys.getrefcount(t._storage.array) for t in (x, W)]
    f(x, 0.5)
    gc.collect()
    assert kept == [0.5]
    assert [sys.getrefcount(t._storage.array) for t in (x, W)] == arrays
    assert f(x, 2.0) == 11 and kept == [0.5, 2.0]
