"""Random programs of views, views taken in place, and writes through all of them: values of every
tensor and all gradients are PyTorch's, and compiled ones are eager's."""

import random

import numpy as np
import pytest
from parity.compare import LIBS, OURS, torch

import jitgrad

KINDS = {
    "view": ["row", "transpose", "half", "unsqueeze"],
    "in place": ["transpose", "unsqueeze", "squeeze"],
    "write": ["mul", "add", "fill"],
    "read": ["mul"],
}


def program(seed):
    """Steps (which tensor, what, how)."""
    pick = random.Random(seed)
    steps = []
    for _ in range(pick.randint(2, 6)):
        what = pick.choice(["view", "in place", "write", "write", "read"])
        steps.append((pick.randrange(12), what, pick.choice(KINDS[what])))
    return steps


def run(steps, x, w):
    """All tensors that the program made, each times another number."""
    live = [x * 1]
    for which, what, how in steps:
        t = live[which % len(live)]
        if what == "read":
            live.append(t * w)
        elif what == "view":
            if how == "row" and t.ndim > 1:
                live.append(t[0])
            elif how == "transpose" and t.ndim > 1:
                live.append(t.transpose(0, 1))
            elif how == "half" and t.shape[0] > 1:
                live.append(t[:2])
            elif how == "unsqueeze":
                live.append(t.unsqueeze(0))
        elif what == "in place":
            if how == "transpose" and t.ndim > 1:
                t.transpose_(0, 1)
            elif how == "unsqueeze":
                t.unsqueeze_(0)
            elif how == "squeeze":
                t.squeeze_()
        elif how == "mul":
            t.mul_(w)
        elif how == "add":
            t.add_(w * 2)
        else:
            t.fill_(0.5)
    return [y * (i + 1) for i, y in enumerate(live)]


def operands(lib, seed):
    x = lib.t.from_numpy(np.random.default_rng(seed).standard_normal((3, 4)))
    return x.requires_grad_(), lib.t.tensor(1.7, dtype=lib.t.float64, requires_grad=True)


def outcome(lib, code, seed):
    """Values of all results, gradients of both operands."""
    x, w = operands(lib, seed)
    results = code(x, w)
    total = 0
    for i, r in enumerate(results):
        total = (
            total + (r * lib.t.arange(r.numel(), dtype=lib.t.float64).reshape(r.shape)).sum() * i
        )
        total = total + r.sum()
    total.backward()
    slope = 0.0 if w.grad is None else w.grad.item()
    return [*(r.detach().numpy().copy() for r in results), x.grad.numpy(), np.array(slope)]


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block", range(8))
def test_against_pytorch(block):
    agreed = 0
    for seed in range(block * 40, block * 40 + 40):
        steps = program(seed)
        try:
            theirs = outcome(LIBS[1], lambda x, w, s=steps: run(s, x, w), seed)
        except RuntimeError:  # PyTorch refuses some programs that jitgrad runs
            continue
        assert_same(outcome(OURS, lambda x, w, s=steps: run(s, x, w), seed), theirs)
        agreed += 1
    assert agreed > 20


@pytest.mark.parametrize("seed", range(24))
def test_compiled(seed):
    steps = program(seed)

    def code(x, w):
        return run(steps, x, w)

    try:
        eager = outcome(OURS, code, seed)
    except RuntimeError as error:
        pytest.skip(str(error))
    compiled = jitgrad.jit(fallback="error")(code)
    for _ in range(2):
        assert_same(outcome(OURS, compiled, seed), eager)


VIEWS_WITHOUT_GRAD = {
    "view": lambda p: p.view(-1),
    "index": lambda p: p[0],
    "t": lambda p: p.t(),
    "unbind": lambda p: p.unbind()[1],
    "detach": lambda p: p.detach(),
    "data": lambda p: p.data,
    "of_result": lambda p: (p * 2).view(-1),
    "of_view": lambda p: p.view(-1)[1:3],
}


@pytest.mark.parametrize("name", VIEWS_WITHOUT_GRAD)
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("how", ["eager", "jit", "no_grad jit"])
def test_views_made_without_grad_require_it_as_their_base(name, leaf, how):
    def facts(t, wrap):
        def f(p):
            with t.no_grad():
                return VIEWS_WITHOUT_GRAD[name](p)

        f = wrap(f)
        found = []
        for _ in range(3):
            p = t.ones(2, 3, requires_grad=True)
            base = p if leaf else p * 1
            if how == "no_grad jit":
                with t.no_grad():
                    v = f(base)
            else:
                v = f(base)
            found.append((v.requires_grad, v.is_leaf, v.grad_fn))
            w = v[:1]
            found.append((w.requires_grad, w.is_leaf))
            try:
                v.add_(1)
            except RuntimeError as error:
                found.append(str(error)[:45])
            try:
                v.numpy()
            except RuntimeError:
                found.append("requires grad")
            with t.no_grad():
                v.mul_(3)
                found.append((v.numpy().tolist(), base.numpy().tolist()))
        return found

    wrap = (lambda f: f) if how == "eager" else lambda f: jitgrad.jit(f, fallback="error")
    assert facts(jitgrad, wrap) == facts(torch, lambda f: f)
