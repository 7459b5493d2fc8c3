"""What recording a call costs beside running it: counted, not timed."""

from __future__ import annotations

import gc
import sys
from collections import Counter

import pytest

import jitgrad as jg
from jitgrad import effects, nn
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


def test_the_watcher_rests_while_the_tape_runs_and_an_optimizer_steps(monkeypatch):
    layers = [nn.Linear(4, 4) for _ in range(8)]
    optimizer = jg.optim.SGD([p for m in layers for p in m.parameters()], lr=0.1, momentum=0.9)

    def step(x):
        for m in layers:
            x = m(x).relu()
        x.sum().backward()
        optimizer.step()

    seen = recorded(monkeypatch, step, jg.ones(2, 4))
    for name in ("autograd.engine._walk", "autograd.engine._collect", "tape.node.run",
                 "optim.optimizer._step_one", "optim.sgd.update"):  # fmt: skip
        assert not seen["jitgrad." + name]


factor = 2.0


class Scaled(jg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * factor


class Own(jg.optim.SGD):
    def update(self, p, grad, state, h):
        super().update(p, grad * factor, state, h)


class Kept(nn.Parameter):
    def __mul__(self, other):
        return super().__mul__(factor)


def by_function(x, w):
    (Scaled.apply(x * w)).sum().backward()


def by_hook_of_a_tensor(x, w):
    y = x * w
    y.register_hook(lambda g: g * factor)
    y.sum().backward()


def by_hook_of_a_node(x, w):
    y = x * w
    y.grad_fn.register_prehook(lambda gs: (gs[0] * factor,))
    y.sum().backward()


def by_saved_tensors(x, w):
    with jg.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * factor):
        y = x * w
    y.sum().backward()


def by_a_rule(x, w):
    (x * w).sum().backward()
    Own([w], lr=1.0).step()


def by_a_rule_of_one_optimizer(x, w):
    (x * w).sum().backward()
    patched.step()


def by_a_class_of_tensors(x, w):
    (odd * x * w).sum().backward()
    w.grad.add_(odd.grad)


odd = Kept(jg.ones(3))
w_ = nn.Parameter(jg.ones(3))
patched = jg.optim.SGD([w_], lr=1.0)
patched.update = lambda p, g, state, h: p.sub_(g * factor)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "function",
    [by_function, by_hook_of_a_tensor, by_hook_of_a_node, by_saved_tensors, by_a_rule,
     by_a_rule_of_one_optimizer, by_a_class_of_tensors],
)  # fmt: skip
def test_code_of_users_inside_a_run_of_the_tape_and_a_step_is_watched(function, monkeypatch):
    """What it reads may change from call to call."""

    def run(f):
        found = []
        for k in (2.0, 2.0, 2.0, 5.0, 5.0, 2.0):
            monkeypatch.setitem(globals(), "factor", k)
            for p in (w_, odd):
                p.grad = None
                with jg.no_grad():
                    p.fill_(1.0)
            f(jg.arange(3.0), w_)
            found.append((w_.tolist(), w_.grad.tolist()))
        return found

    wanted = run(function)
    assert run(jg.jit(function, fallback="silent")) == wanted
    assert wanted[0] != wanted[3]


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
