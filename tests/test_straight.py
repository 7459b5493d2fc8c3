"""Derivatives as straight code (autograd/straight.py): the bits of the vjp, and when it is run."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import dispatch
from jitgrad.autograd import bare, straight
from jitgrad.compiler.ops.record import OPS


def gradients(function, arrays, hooked):
    """The gradients of sum(weights * function); by tensors where a hook looks on."""
    leaves = [jg.tensor(a, requires_grad=np.issubdtype(a.dtype, np.floating)) for a in arrays]
    y = function(*leaves)
    if hooked:
        seen, stack = set(), [y.grad_fn]
        while stack:
            node = stack.pop()
            if node in seen or node is None or not hasattr(node, "register_hook"):
                continue
            seen.add(node)
            node.register_hook(lambda new, old: None)
            stack.extend(fn for fn, _ in node.next_functions)
    y.backward(jg.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))
    return [None if x.grad is None else x.grad.numpy() for x in leaves]


def uniform(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape).astype(dtype)


FUNCTIONS = {
    "add broadcast": (lambda a, b: a + b, [uniform(4, 5), uniform(5)]),
    "sub broadcast": (lambda a, b: a - b, [uniform(4, 1), uniform(3, 1, 5)]),
    "mul, a number": (lambda a: a * 3.0, [uniform(4, 5)]),
    "div": (lambda a, b: a / b, [uniform(4, 5), uniform(4, 1)]),
    "pow": (lambda a, b: a**b, [uniform(4, 5), uniform(4, 5, seed=1)]),
    "0-d": (lambda a, b: (a * b).exp(), [uniform(), uniform()]),
    "float16": (lambda a, b: a * b, [uniform(4, 5, dtype="f2"), uniform(5, dtype="f2")]),
    "float64": (lambda a, b: a.tanh() * b, [uniform(3, dtype=np.float64)] * 2),
    "matmul": (lambda a, b: a @ b, [uniform(4, 5), uniform(5, 3)]),
    "matmul of a batch": (lambda a, b: a @ b, [uniform(2, 4, 5), uniform(5, 3)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), [uniform(2, 4, 5), uniform(3, 5), uniform(3)]),
    "relu": (lambda a: (a - 1).relu(), [uniform(40, 40)]),
    "where": (lambda a, b: jg.where(a > 1, a, b), [uniform(40, 40), uniform(40)]),
    "softmax": (lambda a: a.softmax(1), [uniform(4, 5)]),
    "log_softmax": (lambda a: a.log_softmax(0), [uniform(4, 5)]),
    "max": (lambda a: a.amax(1), [uniform(4, 5)]),
    "sum": (lambda a: a.sum((0, 2), keepdim=True), [uniform(4, 5, 2)]),
    "index": (lambda a: a[:, 1:4:2].T.reshape(-1), [uniform(4, 5)]),
    "cumsum": (lambda a: a.cumsum(1), [uniform(4, 5)]),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), [uniform(2, 3, 6, 6), uniform(4, 3, 3, 3)]),
    "max_pool": (lambda x: F.max_pool2d(x, 2), [uniform(2, 3, 6, 6)]),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), [uniform(4, 5)]),
    "gelu": (F.gelu, [uniform(4, 5)]),
    "cross_entropy": (F.cross_entropy, [uniform(4, 5), np.array([0, 4, 2, -100])]),
    "unused operand": (lambda a, b: (a * b.detach()) + b, [uniform(4, 5), uniform(4, 5)]),
    "twice": (lambda a: a * a + a, [uniform(4, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_bits(name):
    function, arrays = FUNCTIONS[name]
    wanted = gradients(function, arrays, hooked=True)
    for _ in range(straight.STRAIGHT + 2):
        got = gradients(function, arrays, hooked=False)
        for a, b in zip(wanted, got, strict=True):
            assert (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape)
            np.testing.assert_array_equal(a, b)


def kept_of(y):
    return y.grad_fn.kept


def test_made_at_the_third_use():
    x = jg.ones(7, 3, requires_grad=True)
    for _ in range(straight.STRAIGHT + 1):
        y = x * 2.5
        assert kept_of(y).run is None or _ == straight.STRAIGHT
        y.sum().backward()
    assert kept_of(y).run is not None
    assert kept_of(y).types[1] is None  # nobody wants the number's gradient


def test_versions_are_checked():
    w = jg.ones(3, 4, requires_grad=True)
    for _ in range(straight.STRAIGHT + 1):
        x = jg.ones(2, 3)
        (x @ w).sum().backward()
    x = jg.ones(2, 3)
    y = (x @ w).sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: operand 0"):
        y.backward()
    a = jg.ones(3, requires_grad=True)
    for _ in range(straight.STRAIGHT + 1):
        y = a.exp()
        y.sum().backward()
    y = a.exp()
    z = y.sum()
    with jg.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: its result"):
        z.backward()


def test_gradients_own_their_memory():
    """A gradient that two leaves get alike, or that the caller gave, is copied."""
    for _ in range(straight.STRAIGHT + 2):
        a, b = jg.ones(3, requires_grad=True), jg.ones(3, requires_grad=True)
        g = jg.full((3,), 2.0)
        (a + b).backward(g)
        a.grad.add_(1)
        g.zero_()
        assert a.grad.tolist() == [3.0] * 3
        assert b.grad.tolist() == [2.0] * 3


def test_saved_twice_and_second_derivatives():
    for _ in range(straight.STRAIGHT + 2):
        x = jg.tensor([2.0], requires_grad=True)
        y = x * x * x
        y.backward(retain_graph=True)
        y.backward()
        assert x.grad.item() == 24.0
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
        (g,) = jg.autograd.grad(x * x * x, x, create_graph=True)
        (h,) = jg.autograd.grad(g, x)
        assert h.item() == 12.0


def test_packed_tensors_are_unpacked():
    seen = []

    def unpack(x):
        seen.append(x)
        return x * 2

    w = jg.ones(3, requires_grad=True)
    for _ in range(straight.STRAIGHT + 1):
        (w * jg.full((3,), 3.0)).sum().backward()
    w.grad = None
    with jg.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        y = (w * jg.full((3,), 3.0)).sum()
    y.backward()
    assert seen
    assert w.grad.tolist() == [6.0] * 3


def cases():
    for record in list(OPS.values()):
        if record.differentiable and record.nout == 1 and not record.random and not record.bodies:
            for k, sample in enumerate(record.samples()):
                if any(np.issubdtype(a.dtype, np.floating) for a in sample.args):
                    yield pytest.param(record, sample, id=f"{record.name}-{k}")


@pytest.mark.parametrize(("record", "sample"), list(cases()))
def test_records(record, sample, monkeypatch):
    monkeypatch.setattr(bare, "STRAIGHT", 1)

    def function(*leaves):
        return dispatch.apply(record, leaves, dict(sample.attrs))

    try:
        wanted = gradients(function, sample.args, hooked=True)
    except (RuntimeError, NotImplementedError, IndexError) as error:
        pytest.skip(str(error))
    for _ in range(2):
        got = gradients(function, sample.args, hooked=False)
        for a, b in zip(wanted, got, strict=True):
            assert (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape)
            np.testing.assert_array_equal(a, b)
