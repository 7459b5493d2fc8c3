"""Hooks of all Modules at once, and AdaptiveLogSoftmaxWithLoss, in both libraries."""

from __future__ import annotations

import numpy as np
import pytest
from parity.compare import LIBS, OURS, raises_alike, same, torch

import jitgrad
from jitgrad import nn
from jitgrad.nn.modules.module import (
    register_module_backward_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)

RNG = np.random.default_rng(0)


def modules(lib):
    return lib.t.nn.modules.module


def run(lib, register):
    """What hooks saw while a small net ran forward and backward."""
    t, seen = lib.t, []
    net = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.Tanh())
    for p in net.parameters():
        p.data.fill_(0.5)
    net[0].register_forward_hook(lambda m, args, out: seen.append("own"))
    net[0].register_full_backward_hook(lambda m, gi, go: seen.append("own backward"))

    def note(kind):
        return lambda m, *args, **kw: seen.append((kind, type(m).__name__, len(args), len(kw)))

    handles = register(modules(lib), note)
    try:
        x = t.ones(3, 2, requires_grad=True)
        net(x).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    count = len(seen)
    net(x)
    assert len(seen) == count + 1  # its own hook
    return seen


@pytest.mark.parametrize(
    "register",
    [
        lambda m, note: [m.register_module_forward_pre_hook(note("pre"))],
        lambda m, note: [m.register_module_forward_hook(note("forward"))],
        lambda m, note: [m.register_module_forward_hook(note("keywords"), with_kwargs=True)],
        lambda m, note: [m.register_module_full_backward_hook(note("backward"))],
        lambda m, note: [m.register_module_full_backward_pre_hook(note("before backward"))],
        lambda m, note: [
            m.register_module_forward_hook(note("one")),
            m.register_module_forward_pre_hook(note("two")),
            m.register_module_full_backward_hook(note("three")),
            m.register_module_forward_hook(note("four")),
        ],
    ],
)  # fmt: skip
def test_hooks_are_called_in_the_same_order(register) -> None:
    assert run(OURS, register) == run(LIBS[1], register)


def test_hooks_change_arguments_and_results() -> None:
    def code(lib):
        t, m = lib.t, modules(lib)
        net = t.nn.Sequential(t.nn.Identity(), t.nn.Tanh())
        handles = [
            m.register_module_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
            m.register_module_forward_hook(lambda mod, args, out: out + 1),
            m.register_module_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,)),
        ]
        try:
            x = t.arange(4.0).requires_grad_()
            y = net(x)
            y.sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        return y.detach(), x.grad

    for ours, theirs in zip(code(OURS), code(LIBS[1]), strict=True):
        same(ours, theirs, "", 10)


def test_the_deprecated_form() -> None:
    seen = []  # PyTorch remembers which form was used first in the process
    with register_module_backward_hook(lambda module, gi, go: seen.append(len(go))):
        with pytest.raises(RuntimeError, match="Cannot use both"):
            register_module_full_backward_hook(lambda *args: None)
        nn.Tanh()(jitgrad.ones(2, requires_grad=True)).sum().backward()
    assert seen == [1]


def test_always_called() -> None:
    def code(lib):
        m, seen = modules(lib), []

        class Bad(lib.t.nn.Module):
            def forward(self, x):
                raise KeyError("bad")

        hook = lambda mod, args, out: seen.append(out)  # noqa: E731
        with m.register_module_forward_hook(hook, always_call=True), pytest.raises(KeyError):
            Bad()(1)
        return seen

    assert code(OURS) == code(LIBS[1]) == [None]


def test_registration() -> None:
    def code(lib):
        t, m, seen = lib.t, modules(lib), []

        def note(kind):
            return lambda mod, name, value: seen.append((kind, name, type(value).__name__))

        handles = [
            m.register_module_parameter_registration_hook(note("parameter")),
            m.register_module_buffer_registration_hook(note("buffer")),
            m.register_module_module_registration_hook(note("module")),
        ]
        try:
            net = t.nn.Module()
            net.inner = t.nn.Linear(2, 2, bias=False)
            net.add_module("norm", t.nn.BatchNorm1d(2, affine=False))
            net.own = t.nn.Parameter(t.ones(2))
            net.register_buffer("none", None)
        finally:
            for handle in handles:
                handle.remove()
        return seen

    assert code(OURS) == code(LIBS[1])


def test_registration_may_replace() -> None:
    swap = modules(OURS).register_module_module_registration_hook(
        lambda module, name, value: nn.Identity() if isinstance(value, nn.Dropout) else None
    )
    with swap:
        net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        net.more = nn.Dropout()
    assert type(net[1]) is type(net.more) is nn.Identity


def test_compiled_functions_see_them() -> None:
    net, x = nn.Linear(2, 2), jitgrad.ones(3, 2)
    f = jitgrad.jit(lambda x: net(x), fallback="error")
    before = f(x), f(x)
    with register_module_forward_hook(lambda m, args, out: out * 2):
        for _ in range(2):
            assert jitgrad.allclose(f(x), before[0] * 2)
    with register_module_forward_pre_hook(lambda m, args: (args[0] * 0,)):
        for _ in range(2):
            assert jitgrad.allclose(f(x), net.bias.expand(3, 2))
    for _ in range(2):
        assert jitgrad.allclose(f(x), before[1])
    assert f.stats.traces == 3
    with register_module_full_backward_hook(lambda m, gi, go: (gi[0] * 2,)):
        x.requires_grad_()
        net(x).sum().backward()
        assert jitgrad.allclose(x.grad, 2 * net.weight.sum(0).expand(3, 2))


# -- AdaptiveLogSoftmaxWithLoss --------------------------------------------------------------------
def pair(bias=False):
    """The layer in both libraries, with the same parameters."""
    made = [lib.t.nn.AdaptiveLogSoftmaxWithLoss(8, 12, [3, 7], 2.0, bias) for lib in LIBS]
    state = {k: torch.from_numpy(v.numpy().copy()) for k, v in made[0].state_dict().items()}
    made[1].load_state_dict(state)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(20,), ()])
def test_adaptive_softmax(bias, shape) -> None:
    x = RNG.standard_normal((*shape, 8)).astype(np.float32)
    y = RNG.integers(0, 12, shape)
    results = []
    for lib, layer in zip(LIBS, pair(bias), strict=True):
        inputs = lib.t.from_numpy(x.copy()).requires_grad_()
        out = layer(inputs, lib.t.as_tensor(y))
        out.loss.backward()
        results.append([out.output, out.loss, inputs.grad, layer.head.weight.grad])
        if shape:
            results[-1] += [layer.log_prob(inputs), layer.predict(inputs)]
            results[-1] += [p.grad for p in layer.tail.parameters()]
    for ours, theirs in zip(*results, strict=True):
        same(ours.detach(), theirs.detach(), "", 30)


def test_adaptive_softmax_compiled() -> None:
    layer, _ = pair()
    f = jitgrad.jit(lambda x, y: (layer(x, y), layer.predict(x)), fallback="error")
    x, y = jitgrad.randn(20, 8), jitgrad.arange(20) % 12
    for _ in range(2):
        (found, best), expected = f(x, y), layer(x, y)
        np.testing.assert_allclose(found.output.detach(), expected.output.detach(), rtol=1e-5)
        assert best.equal(layer.predict(x))
        layer.zero_grad()
        found.loss.backward()
        compiled = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        expected.loss.backward()
        for a, p in zip(compiled, layer.parameters(), strict=True):
            np.testing.assert_allclose(a, p.grad, rtol=1e-4, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"Target values should be in \[0, 11\]"):
        f(x, y + 1)


@pytest.mark.parametrize(
    "code",
    [
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, []),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [5, 3]),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [0, 3]),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3, 8]),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3])(t.ones(3, 4), t.ones(2).long()),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3])(t.ones(2, 4), t.ones(2, 1).long()),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3])(t.ones(2, 4), t.full((2,), 8)),
        lambda t: t.nn.AdaptiveLogSoftmaxWithLoss(4, 8, [3])(t.ones(4), t.ones(1).long()),
    ],
)
def test_adaptive_softmax_errors(code) -> None:
    raises_alike(lambda lib: code(lib.t))
