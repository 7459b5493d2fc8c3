"""Straight code: derivatives (autograd/straight.py) and updates (optim/straight.py) have the bits
of the vjp and the rule; fused records (fused.py) those of their parts."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import dispatch, fused
from jitgrad.autograd import bare, straight
from jitgrad.compiler.ops.record import OPS
from jitgrad.optim.optimizer import Optimizer, _updates
from jitgrad.optim.straight import Update


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


# -- fused records ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    ["linear", "linear of rows", "cross_entropy", "nll_loss", "gelu", "layer_norm", "plain norm"],
)
def test_fused_records_have_the_bits_of_their_parts(name, monkeypatch):
    function, arrays = {
        "linear": (F.linear, [uniform(2, 4, 5), uniform(3, 5), uniform(3)]),
        "linear of rows": (F.linear, [uniform(4, 5), uniform(3, 5), uniform(1)]),
        "cross_entropy": (F.cross_entropy, [uniform(2, 5, 2), np.array([[1, 2], [-100, 0]])]),
        "nll_loss": (F.nll_loss, [uniform(5), np.array(2)]),
        "gelu": (F.gelu, [uniform(4, 5)]),
        "layer_norm": (
            lambda x, w, b: F.layer_norm(x, (3, 5), w, b),
            [uniform(4, 3, 5), uniform(3, 5), uniform(3, 5, seed=1)],
        ),
        "plain norm": (lambda x: F.layer_norm(x, (5,)), [uniform(4, 5)]),
    }[name]  # fmt: skip
    leaves = [jg.tensor(a, requires_grad=a.dtype == np.float32) for a in arrays]
    assert isinstance(function(*leaves).grad_fn.op, fused.Fused)
    got = [gradients(function, arrays, hooked=False) for _ in range(straight.STRAIGHT + 1)]
    got += [gradients(function, arrays, hooked=True)]
    value = function(*leaves).detach().numpy()
    monkeypatch.setattr(fused, "fits", lambda record, xs: False)
    wanted = gradients(function, arrays, hooked=False)
    np.testing.assert_array_equal(value, function(*leaves).detach().numpy())
    for grads in got:
        for a, b in zip(wanted, grads, strict=True):
            assert (a is None) == (b is None)
            np.testing.assert_array_equal(a, b)


def test_fused_records_differentiate_twice():
    x = jg.tensor(uniform(4, 5, dtype=np.float64), requires_grad=True)
    w = jg.tensor(uniform(3, 5, dtype=np.float64), requires_grad=True)
    b = jg.zeros(3, dtype=jg.float64, requires_grad=True)
    y = jg.tensor([0, 2, -100, 1])
    assert jg.autograd.gradgradcheck(lambda *p: F.linear(*p).tanh(), (x, w, b))
    assert jg.autograd.gradgradcheck(lambda x: F.cross_entropy(x, y), (x,))
    assert jg.autograd.gradgradcheck(lambda x: F.nll_loss(x, y), (x,))
    assert jg.autograd.gradgradcheck(lambda x, w: F.gelu(F.layer_norm(x, (5,), w[0])), (x, w))


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 2), (2, 5, 3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_has_the_bits_of_its_composition(shape, affine):
    def run():
        norm = {2: jg.nn.BatchNorm1d, 3: jg.nn.BatchNorm1d, 4: jg.nn.BatchNorm2d}[len(shape)]
        layer = norm(shape[1], affine=affine, momentum=0.3)
        found = []
        for i in range(straight.STRAIGHT + 1):
            x = jg.tensor(uniform(*shape, seed=i), requires_grad=True)
            y = layer(x)
            y.backward(jg.linspace(-1, 1, y.numel()).reshape(y.shape))
            assert y.grad_fn.name() == "NativeBatchNormBackward0"
            found += [y, x.grad, layer.running_mean.clone(), layer.running_var.clone()]
            found += [p.grad for p in layer.parameters()]
        return [t.detach().numpy() for t in found]

    got = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "fits", lambda record, xs: False)
        wanted = run()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def test_a_fused_record_drops_what_its_parts_drop():
    x = jg.tensor(uniform(40, 40), requires_grad=True)
    for _ in range(straight.STRAIGHT + 1):
        x.grad = None
        y = F.dropout(x, 0.25)
        assert isinstance(y.grad_fn.op, fused.Fused)
        y.sum().backward()
        held = y.detach() != 0
        assert 0.6 < held.float().mean().item() < 0.9
        np.testing.assert_array_equal(
            x.grad.numpy(), np.where(held.numpy(), np.float32(1 / 0.75), 0)
        )
        np.testing.assert_array_equal(y.detach(), x.detach() * x.grad)


def test_large_operands_of_what_computes_again_are_composed():
    few, many = jg.ones(128, 128, requires_grad=True), jg.ones(129, 128, requires_grad=True)
    assert isinstance(F.layer_norm(few, (128,)).grad_fn.op, fused.Fused)
    assert not isinstance(F.layer_norm(many, (128,)).grad_fn.op, fused.Fused)
    assert F.layer_norm(many, (128,)).grad_fn.name() == "NativeLayerNormBackward0"


def test_a_fused_record_of_complex_numbers():
    def grads():
        x = jg.tensor([[1 + 2j, 3 - 1j]], requires_grad=True)
        w = jg.tensor([[2 - 1j, 1j], [0.5, 1 + 1j]], requires_grad=True)
        b = jg.tensor([1j, 2.0 + 0j], requires_grad=True)
        F.linear(x, w, b).abs().sum().backward()
        return [p.grad.tolist() for p in (x, w, b)]

    got = grads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "fits", lambda record, xs: False)
        assert grads() == got


def test_fused_records_save_what_gradients_read():
    x, w, b = jg.ones(2, 3), jg.ones(4, 3, requires_grad=True), jg.zeros(4, requires_grad=True)
    assert [n for n, _ in F.linear(x, w, b).grad_fn.saved] == ["operand 0"]
    assert [n for n, _ in F.linear(x, w.detach(), b).grad_fn.saved] == []
    y = F.linear(x, w, b).sum()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation: operand 0"):
        y.backward()


def test_no_graph_holds_a_fused_record():
    x, w, b = jg.ones(2, 3), jg.ones(4, 3, requires_grad=True), jg.zeros(4, requires_grad=True)

    @jg.jit(fallback="error")
    def f(x, w, b):
        return F.cross_entropy(F.linear(x, w, b), jg.tensor([0, 1]))

    f(x, w, b)
    (found,) = f.specialisations
    names = {n.op.name for n in found.trace.graph.nodes}
    assert {"matmul", "add", "select_at"} <= names
    assert not names & {"addmm", "nll_loss"}
    assert jg.vmap(lambda x: F.linear(x, w, b))(jg.ones(5, 2, 3)).shape == (5, 2, 4)


# -- optimizers ------------------------------------------------------------------------------------
RULES = {
    "SGD": lambda p: jg.optim.SGD(p, lr=0.1),
    "momentum": lambda p: jg.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "dampening": lambda p: jg.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2, maximize=False),
    "Adam": lambda p: jg.optim.Adam(p),
    "amsgrad": lambda p: jg.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda p: jg.optim.AdamW(p),
    "RMSprop": lambda p: jg.optim.RMSprop(p, momentum=0.9, centered=True),
    "Adagrad": lambda p: jg.optim.Adagrad(p, lr_decay=0.01),
    "Adadelta": lambda p: jg.optim.Adadelta(p),
    "Adamax": lambda p: jg.optim.Adamax(p),
    "NAdam": lambda p: jg.optim.NAdam(p),
    "RAdam": lambda p: jg.optim.RAdam(p),
    "ASGD": lambda p: jg.optim.ASGD(p),
}


def train(rule, steps=14, dtype=jg.float32):
    """Parameters and state after steps with a schedule that ends at 0."""
    params = [jg.tensor(uniform(3, 4, seed=i), dtype=dtype, requires_grad=True) for i in range(3)]
    params.append(jg.tensor(0.5, dtype=dtype, requires_grad=True))
    optimizer = RULES[rule](params)
    for i in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 * max(0, 10 - i) / 10
        optimizer.zero_grad()
        terms = [(p * (k + 1)).sin() * p[..., :1] for k, p in enumerate(params[:3])]
        sum([t.sum() for t in terms], params[3] ** 2).backward()
        optimizer.step()
    state = [x for p in params for x in optimizer.state[p].values() if x is not None]
    return optimizer, [x.detach().numpy().copy() for x in (*params, *state)], params


@pytest.mark.parametrize("dtype", [jg.float32, jg.float64])
@pytest.mark.parametrize("rule", RULES)
def test_updates_have_the_bits_of_the_rule(rule, dtype, monkeypatch):
    optimizer, got, _ = train(rule, dtype=dtype)
    made = [u for table in _updates[optimizer].values() for u in table.values()]
    assert made
    assert all(isinstance(u, Update) for u in made)
    monkeypatch.setattr(Optimizer, "_known_updates", lambda self: None)
    _, wanted, _ = train(rule, dtype=dtype)
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_schedule_makes_no_new_update():
    optimizer, _, _ = train("momentum")
    (table,) = _updates[optimizer].values()
    assert len(table) == 2  # of matrices, and of the 0-d parameter


def test_what_was_asked_of_a_number_is_asked_again():
    """Weight decay that becomes 0, and no more."""

    def run():
        p = jg.ones(3, requires_grad=True)
        optimizer = jg.optim.SGD([p], lr=0.1, weight_decay=0.5, momentum=0.9)
        seen = []
        for decay in (0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.25, 0.5):
            optimizer.param_groups[0]["weight_decay"] = decay
            p.grad = jg.full((3,), 0.25)
            optimizer.step()
            seen.append(p.tolist())
        return seen

    got = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "_known_updates", lambda self: None)
        assert run() == got


def test_updates_count_as_writes():
    optimizer, _, params = train("Adam")
    p = params[0]
    before = p._version
    y = (p * p).sum()
    optimizer.step()
    assert p._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        y.backward()
    assert f"at {__file__}" in str(caught.value)


def test_parameters_that_share_memory_or_are_views_keep_the_rule():
    def run():
        base = jg.arange(12.0).reshape(3, 4)
        a = base[:2].detach().requires_grad_()
        b = base[1:].detach().T.requires_grad_()
        optimizer = jg.optim.SGD([a, b], lr=0.1, momentum=0.5)
        for _ in range(6):
            a.grad, b.grad = a.detach() * 0.5, b.detach() * 0.25
            optimizer.step()
        return base.tolist()

    got = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "_known_updates", lambda self: None)
        assert run() == got


def test_a_rule_of_the_users_runs_at_each_step():
    class Counting(jg.optim.SGD):
        calls = 0

        def update(self, p, grad, state, h):
            self.calls += 1
            super().update(p, grad, state, h)

    p = jg.ones(3, requires_grad=True)
    optimizer = Counting([p], lr=0.1)
    for _ in range(6):
        p.grad = jg.ones(3)
        optimizer.step()
    assert optimizer.calls == 6


# -- when it is run --------------------------------------------------------------------------------
def kept_of(y):
    return y.grad_fn.known


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
        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                gradients(function, sample.args, hooked=False)
            assert str(raised.value) == str(error)
        return
    for _ in range(2):
        got = gradients(function, sample.args, hooked=False)
        for a, b in zip(wanted, got, strict=True):
            assert (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape)
            np.testing.assert_array_equal(a, b)
