"""scan, while_loop and cond: eager against compiled, derivatives, vmap, randomness, refusals.

The records' own samples run in test_ops.py, test_op_derivatives.py and test_native.py.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import jitgrad
import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import nn
from jitgrad._higher_order_ops import associative_scan
from jitgrad.autograd import gradcheck, gradgradcheck
from jitgrad.compiler.ir import all_nodes
from jitgrad.compiler.parse import parse
from jitgrad.compiler.passes.simplify import simplify
from jitgrad.compiler.text import to_text
from jitgrad.compiler.verify import verify
from jitgrad.runtime import load
from jitgrad.runtime.errors import CompileError


def both(function, *args, grads=()):
    """function(*args) in eager mode and compiled, twice: results and gradients agree.

    Gives the jitted function.
    """

    def run(f):
        for x in grads:
            x.grad = None
        out = f(*args)
        many = out if isinstance(out, (tuple, list)) else (out,)
        found = [y.detach().numpy().copy() for y in many]
        return found + [x.grad.numpy().copy() for x in grads]

    eager = run(function)
    compiled = jg.jit(function, fallback="error")
    for _ in range(3):
        for a, b in zip(eager, run(compiled), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)
    assert compiled.stats.hits >= 2
    return compiled


def ops_of(compiled):
    """The names of the ops of the recorded graph, those of bodies not among them."""
    return [n.op.name for n in compiled.specialisations[0].trace.graph.nodes]


@pytest.fixture
def weights():
    jg.manual_seed(3)
    return jg.randn(3, 3, requires_grad=True), jg.randn(3, requires_grad=True)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_scan_trains(weights, steps, reverse):
    w, b = weights
    xs = jg.randn(steps, 2, 3, requires_grad=True)

    def step(h, x):
        h = jg.tanh(x + h @ w.t() + b)
        return h, {"h": h, "both": (h * x).sum(-1)}

    def train(h, xs):
        last, out = jg.scan(step, h, xs, reverse=reverse)
        loss = (last**2).sum() + out["h"].sin().sum() + out["both"].sum()
        loss.backward()
        return last, out["h"], out["both"]

    h = jg.randn(2, 3, requires_grad=True)
    compiled = both(train, h, xs, grads=[w, b, h, xs])
    assert ops_of(compiled).count("scan") == 2  # one each way


def test_steps_do_not_grow_the_graph(weights):
    w, _ = weights

    def last(h, xs):
        return jg.scan(lambda h, x: (jg.tanh(x + h @ w), None), h, xs)

    sizes = []
    for steps in (4, 400):
        compiled = jg.jit(lambda h, xs: last(h, xs)[0], fallback="error")
        compiled(jg.randn(2, 3), jg.randn(steps, 2, 3))
        sizes.append(len(list(all_nodes(compiled.specialisations[0].trace.graph))))
    assert sizes[0] == sizes[1]


def test_scan_gives_what_jax_documents():
    """The cumulative sum of lax.scan's documentation, with xs, along another dim, and length."""
    xs = jg.arange(6.0).reshape(2, 3)

    def add(total, x):
        return total + x, total + x

    total, sums = jg.scan(add, jg.zeros(2), xs, dim=1)
    assert total.tolist() == [3.0, 12.0] and sums.tolist() == xs.cumsum(1).tolist()
    count, none = jg.scan(lambda c, _: (c * 2, None), jg.ones(()), length=5)
    assert count.item() == 32 and none is None


def test_gradients_of_gradients():
    w = jg.randn(2, 2, dtype=jg.float64, requires_grad=True)
    xs = jg.randn(3, 2, dtype=jg.float64, requires_grad=True)
    h = jg.randn(2, dtype=jg.float64, requires_grad=True)

    @jg.jit(fallback="error")
    def f(h, xs, w):
        last, ys = jg.scan(lambda h, x: (jg.sin(h @ w) * x, h * x), h, xs)
        return last, ys

    f(h, xs, w)
    assert gradcheck(f, (h, xs, w))
    assert gradgradcheck(f, (h, xs, w))
    assert f.stats.fallbacks == 0


def test_gradient_inside_and_outside(weights):
    """A body may differentiate (a sampler), and be differentiated."""
    w, _ = weights

    def descend(x, _):
        x = x.detach().requires_grad_()
        (g,) = jg.autograd.grad(((x @ w) ** 2).sum() / 8, x, create_graph=True)
        return x - 0.1 * g, g.sum()

    def run(x):
        x, norms = jg.scan(descend, x, length=4)
        (x.sum() + norms.sum()).backward()
        return x, norms

    both(run, jg.randn(2, 3), grads=[w])


def test_what_is_detached_gets_no_gradient(weights):
    w, b = weights

    def step(h, x):
        with jg.no_grad():
            scale = (h @ w).tanh()
            flipped = h.t()
        return h * scale + x + b.detach() * flipped.t().sum(), h * h.detach() * b

    def run(h, xs):
        last, ys = jg.scan(step, h, xs)
        (last.sum() + ys.sum()).backward()
        return last, ys

    h, xs = jg.randn(2, 3, requires_grad=True), jg.randn(4, 2, 3, requires_grad=True)
    w2 = w.detach()  # no gradient at all gets to w
    assert w2.grad is None
    both(run, h, xs, grads=[b, h, xs])
    assert w.grad is None


def test_local_tensors_may_be_changed_in_place(weights):
    _, b = weights

    def step(h, x):
        made = h * 2
        made += x
        made[0] = b * x[0]
        return made.tanh_(), made[1]

    def run(h, xs):
        last, ys = jg.scan(step, h, xs)
        (last.sum() + (ys**2).sum()).backward()
        return last, ys

    h, xs = jg.randn(2, 3, requires_grad=True), jg.randn(4, 2, 3)
    both(run, h, xs, grads=[b, h])


@pytest.mark.parametrize("what", ["carry", "captured"])
def test_changing_others_in_place_is_no_node(what):
    """Python runs such a loop, in segments; without them it is refused."""
    other = jg.zeros(3)

    def step(h, x):
        (h if what == "carry" else other).add_(x)
        return h * 1, None

    def run(h, xs):
        return jg.scan(step, h, xs)[0]

    with pytest.raises(CompileError, match="writes in place to a tensor that it did not make"):
        jg.jit(run, fallback="error", segments=False)(jg.zeros(3), jg.ones(2, 3))
    other.zero_()  # the call itself ran
    compiled = jg.jit(run, fallback="error")
    for k in range(1, 4):
        h = jg.zeros(3)
        last = compiled(h, jg.ones(2, 3))
        assert last.tolist() == ([2.0] * 3 if what == "carry" else [0.0] * 3)
        assert h.tolist() == ([1.0] * 3 if what == "carry" else [0.0] * 3)
        assert other.tolist() == ([0.0] * 3 if what == "carry" else [2.0 * k] * 3)
        assert not other.requires_grad


def test_own_derivatives_inside_are_refused():
    class Double(jg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 100

    def run(h, xs):
        return jg.scan(lambda h, x: (Double.apply(h) + x, None), h, xs)[0].sum()

    h, xs = jg.ones(3, requires_grad=True), jg.ones(2, 3)
    compiled = jg.jit(run, fallback="silent")
    for _ in range(2):
        h.grad = None
        compiled(h, xs).backward()
        assert h.grad.tolist() == [10000.0] * 3
    assert compiled.stats.hits == 0


# -- nesting ---------------------------------------------------------------------------------------
def test_scan_in_scan(weights):
    w, b = weights

    def inner(h, x):
        h = jg.tanh(h @ w + x)
        return h, h.sum()

    def outer(h, xs):
        h, sums = jg.scan(inner, h, xs)
        return h * b, (sums * b.sum()).cumsum(0)

    def run(h, xs):
        h, ys = jg.scan(outer, h, xs)
        ((h**2).sum() + ys.sum()).backward()
        return h, ys

    h, xs = jg.randn(2, 3, requires_grad=True), jg.randn(3, 4, 2, 3, requires_grad=True)
    both(run, h, xs, grads=[w, b, h, xs])


def test_cond_in_scan_in_cond(weights):
    w, _ = weights

    def step(h, x):
        h = jg.cond(x.sum() > 0, lambda h: jg.sin(h @ w), lambda h: h * 0.5, (h,))
        return h, h.mean()

    def run(flag, h, xs):
        h, ys = jg.cond(
            flag.sum() > 0, lambda h, xs: jg.scan(step, h, xs), lambda h, xs: (h, xs[:, 0]), (h, xs)
        )
        ((h**2).sum() + ys.sum()).backward()
        return h, ys

    h, xs = jg.randn(3, requires_grad=True), jg.randn(5, 3)
    for flag in (jg.ones(2), -jg.ones(2)):
        w.grad = jg.zeros(3, 3)
        both(run, flag, h, xs, grads=[h])


def test_while_in_scan():
    def halve(x):
        return jg.while_loop(lambda x: x.abs().max() > 1, lambda x: (x / 2,), (x,))[0]

    def run(h, xs):
        return jg.scan(lambda h, x: (halve(h + x), h * 2), h, xs)

    compiled = both(run, jg.ones(3), jg.randn(6, 3) * 5)
    assert ops_of(compiled) == ["scan"]


# -- cond ------------------------------------------------------------------------------------------
def test_cond_chooses_and_differentiates(weights):
    w, b = weights

    def run(x):
        y = jg.cond(x.sum() > 0, lambda x: {"y": (x @ w).exp()}, lambda x: {"y": x.cos() + b}, (x,))
        y["y"].sum().backward()
        return y["y"]

    w.grad, b.grad = None, None
    x = jg.rand(2, 3)
    for sign in (1, -1):
        w.grad, b.grad = jg.zeros(3, 3), jg.zeros(3)

        def once(x):
            for p in (w, b):
                p.grad.zero_()
            return run(x)

        both(once, x * sign)
        assert bool(w.grad.any()) == (sign > 0)


def test_only_the_chosen_branch_runs():
    """The other one would raise."""
    table = jg.arange(4.0)

    def run(i):
        return jg.cond(i < 4, lambda i: table[i.reshape(1)], lambda i: jg.zeros(1), (i,))

    compiled = both(run, jg.tensor(2))
    assert compiled(jg.tensor(9)).tolist() == [0.0]


def test_cond_of_a_bool_is_python():
    assert jg.cond(True, lambda: 1, lambda: 2) == 1
    assert jg.cond(False, lambda x: x, lambda x: x * 2, (jg.ones(1),)).item() == 2.0


def test_cond_errors():
    with pytest.raises(RuntimeError, match="expected pred to have one element"):
        jg.cond(jg.ones(2) > 0, lambda: jg.ones(1), lambda: jg.ones(1))
    with pytest.raises(RuntimeError, match="expected true_fn to be callable"):
        jg.cond(True, 1, lambda: 2)
    compiled = jg.jit(
        lambda x: jg.cond(x.sum() > 0, lambda: jg.ones(2), lambda: jg.ones(3)), fallback="error"
    )
    with pytest.raises(RuntimeError, match=r"equal types; got \(float32\[2\]\) and \(float32\[3"):
        compiled(jg.ones(1))


# -- while_loop ------------------------------------------------------------------------------------
def test_while_loop_runs_as_python_does():
    def run(x):
        return jg.while_loop(lambda i, x: i < 7, lambda i, x: (i + 1, x * 1.5), (0, x))

    compiled = both(run, jg.ones(2, 2))
    count, x = compiled(jg.ones(2, 2))
    assert count.item() == 7 and x[0, 0].item() == pytest.approx(1.5**7)
    assert ops_of(compiled)[-1] == "while_loop"


def test_while_loop_backward_needs_a_bound(weights):
    w, _ = weights

    def run(x, bound):
        x, n = jg.while_loop(
            lambda x, n: (x.abs().max() > 1e-2) & (n < 6),
            lambda x, n: (jg.tanh(x @ w) * 0.5, n + 1),
            (x, 0),
            max_steps=bound,
        )
        (x**2).sum().backward()
        return x, n

    x = jg.randn(2, 3, requires_grad=True)
    both(lambda x: run(x, 10), x, grads=[x, w])
    with pytest.raises(RuntimeError, match="expected a maximum number of steps"):
        jg.jit(lambda x: run(x, None), fallback="error")(x)


def test_while_loop_with_no_bound_has_a_jvp():
    def grow(x):
        return jg.while_loop(lambda x: x.sum() < 100, lambda x: (x * x + 1,), (x,))[0]

    x, t = jg.full((2,), 1.5), jg.tensor([1.0, 0.5])
    y, along = jg.func.jvp(grow, (x,), (t,))
    h = 1e-3
    wanted = (grow(x + h * t) - grow(x - h * t)) / (2 * h)
    np.testing.assert_allclose(along.numpy(), wanted.numpy(), rtol=1e-2)


def test_max_steps_ends_the_loop():
    x = jg.while_loop(lambda x: x > 0, lambda x: (x + 1,), (jg.ones(()),), max_steps=3)[0]
    assert x.item() == 4.0


# -- vmap and jvp ----------------------------------------------------------------------------------
def test_vmap_over_all_three(weights):
    w, _ = weights

    def f(x, xs):
        h, ys = jg.scan(lambda h, x: (jg.sin(h @ w + x), h.sum()), x, xs)
        h = jg.cond(h.sum() > 0, lambda h: h * 2, lambda h: h - 1, (h,))
        h, n = jg.while_loop(lambda h, n: h.sum() < 20, lambda h, n: (h + n, n + 1), (h, 0))
        return h, ys, n

    x, xs = jg.randn(5, 3), jg.randn(5, 4, 3)
    with jg.no_grad():
        rows = [f(a, b) for a, b in zip(x, xs, strict=True)]
        found = jg.vmap(f)(x, xs)
    for k, y in enumerate(found):
        np.testing.assert_allclose(
            y.numpy(), np.stack([r[k].numpy() for r in rows]), rtol=1e-5, atol=1e-6
        )
    assert len({int(r[2]) for r in rows}) > 1  # some examples went on longer than others


def test_jvp_of_scan(weights):
    w = weights[0].detach().double()

    def f(h):
        return jg.scan(lambda h, x: (jg.sin(h @ w + x), h), h, jg.ones(4, 3, dtype=jg.float64))

    h, t = jg.randn(2, 3, dtype=jg.float64)
    (_, _), (along, _) = jg.func.jvp(f, (h,), (t,))
    d = 1e-5
    wanted = (f(h + d * t)[0] - f(h - d * t)[0]) / (2 * d)
    np.testing.assert_allclose(along.numpy(), wanted.numpy(), rtol=1e-7)


# -- randomness ------------------------------------------------------------------------------------
@pytest.mark.parametrize("nested", [False, True])
def test_draws_are_eager_codes(nested):
    """Each step draws the next numbers, of the default generator and of another one."""
    other = jg.Generator()

    def noise(x, _):
        x = x + jg.randn(3) * jg.rand(3, generator=other)
        return x, F.dropout(x, 0.5)

    def step(x, _):
        x, y = jg.scan(noise, x, length=2) if nested else noise(x, None)
        return x + jg.rand(3), y

    def run(x):
        x, ys = jg.scan(step, x, length=4, reverse=True)
        return x, ys, jg.rand(2)

    compiled = jg.jit(run, fallback="error")
    results = []
    for f in (run, compiled):
        jg.manual_seed(11)
        other.manual_seed(5)
        results.append([[y.numpy() for y in f(jg.zeros(3))] for _ in range(3)])
    for a, b in zip(*results, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert compiled.stats.hits == 2


# -- faults, calls into Python, text ---------------------------------------------------------------
def test_a_bad_index_inside_is_eagers_error(weights):
    table = jg.randn(4, 3)
    total = jg.zeros(3)

    def run(h, indices):
        last, _ = jg.scan(lambda h, i: (h + table.index_select(0, i), None), h, indices)
        total.copy_(last[0])
        return last

    compiled = jg.jit(run, fallback="error")
    good, bad = jg.tensor([[0, 1], [3, 2]]), jg.tensor([[0, 1], [3, 9]])
    for _ in range(2):
        compiled(jg.zeros(2, 3), good)
    before = total.clone()
    with pytest.raises(IndexError) as eager:
        run(jg.zeros(2, 3), bad)
    with pytest.raises(IndexError) as found:
        compiled(jg.ones(2, 3), bad)
    assert str(eager.value).split(" (at")[0] == str(found.value).split(" (at")[0]
    assert total.equal(before)  # nothing was written
    assert compiled(jg.zeros(2, 3), good).equal(run(jg.zeros(2, 3), good))


def test_an_unused_fault_is_found_too():
    table = jg.arange(4.0)

    def run(indices):
        jg.scan(lambda h, i: (h + table[i].sum(), None), jg.zeros(()), indices)
        return indices * 2

    compiled = both(run, jg.tensor([[1], [2]]))
    with pytest.raises(IndexError):
        compiled(jg.tensor([[1], [7]]))


def test_factorizations_inside():
    def run(a):
        step = lambda a, _: (jg.linalg.inv(a) + jg.eye(3), jg.linalg.det(a))  # noqa: E731
        last, dets = jg.scan(step, a, length=3)
        (last.sum() + dets.sum()).backward()
        return last, dets

    a = (jg.randn(3, 3) + 3 * jg.eye(3)).requires_grad_()
    compiled = both(run, a, grads=[a])
    with pytest.raises(RuntimeError, match="singular"):
        compiled(jg.zeros(3, 3, requires_grad=True))


def test_text_reads_back(weights):
    w = weights[0].detach()

    def run(h, xs):
        def step(h, x):
            return jg.cond(h.sum() > 0, lambda h: jg.sin(h @ w), lambda h: h, (h,)) + x, h

        last, ys = jg.scan(step, h, xs)
        last = jg.while_loop(lambda x: x.sum() < 3, lambda x: (x + 1,), (last,))[0]
        return last, ys

    compiled = both(run, jg.ones(3), jg.ones(4, 3))
    graph = compiled.specialisations[0].trace.graph
    text = to_text(graph)
    again = parse(text)
    verify(again)
    assert to_text(again) == text
    assert text.count("= graph body() {") >= 4  # the test, the body, the step, its two branches


def test_state_is_written_after_the_loop(weights):
    w, b = weights
    optimizer = jg.optim.SGD([w, b], lr=0.1, momentum=0.9)

    def train(h, xs):
        optimizer.zero_grad()
        last, _ = jg.scan(lambda h, x: (jg.tanh(x + h @ w + b), None), h, xs)
        loss = (last**2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    h, xs = jg.randn(2, 3), jg.randn(4, 2, 3)
    start = [p.detach().clone() for p in (w, b)]
    compiled = jg.jit(train, fallback="error")
    runs = []
    for f in (train, compiled):
        with jg.no_grad():
            for p, s in zip((w, b), start, strict=True):
                p.copy_(s)
        optimizer.state.clear()
        runs.append([f(h, xs).item() for _ in range(5)])
    np.testing.assert_allclose(*runs, rtol=1e-5)
    assert compiled.stats.hits >= 3


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match=r"\[scan\] expected combine_fn to return \(carry, result"):
        jg.scan(lambda c, x: c, jg.ones(1), jg.ones(2, 1))
    with pytest.raises(RuntimeError, match=r"\[scan\] expected a carry that stays float32\[1\]"):
        jg.scan(lambda c, x: (c.double(), None), jg.ones(1), jg.ones(2, 1))
    with pytest.raises(RuntimeError, match=r"expected xs of one length along dim 0, or length"):
        jg.scan(lambda c, x: (c, None), jg.ones(1), (jg.ones(2), jg.ones(3)))
    with pytest.raises(RuntimeError, match=r"\[while_loop\] expected carried_inputs to be a tuple"):
        jg.while_loop(lambda x: x < 1, lambda x: x, jg.ones(1))


# -- recurrent layers ------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_are_two_scans_a_direction(kind):
    jg.manual_seed(1)
    layer = getattr(nn, kind)(3, 4, num_layers=2, bidirectional=True)

    def train(x):
        for p in layer.parameters():
            p.grad = None
        y = layer(x)[0]
        (y**2).sum().backward()
        return y

    compiled = both(train, jg.randn(30, 2, 3), grads=[])
    assert ops_of(compiled).count("scan") == 8


# -- what the compiler makes of bodies -------------------------------------------------------------
def test_bodies_are_simplified_and_compute_what_is_read(weights):
    """A result, a carry and a captured tensor that nothing needs are not computed or read."""
    w, b = weights[0].detach(), weights[1].detach()

    def step(carry, x):
        h, unread, counter = carry
        h = jg.tanh(h + x) * 1.0
        return (h, unread @ w, counter + 1), (h.neg().neg(), (h * b).exp(), counter)

    def run(h, xs):
        (last, _, _), (ys, _, counts) = jg.scan(step, (h, h, jg.zeros(())), xs)
        return last, ys, counts

    compiled = both(run, jg.randn(3, 3), jg.randn(5, 3, 3))
    graph = simplify(compiled.specialisations[0].trace.graph)
    (node,) = [n for n in graph.nodes if n.op.name == "scan"]
    assert (node.attr["carries"], len(node.inputs), len(node.outputs)) == (2, 3, 4)
    ops = [n.op.name for n in node.attr["body"].graph.nodes]
    assert sorted(ops) == ["add", "add", "full", "tanh"]
    verify(graph)


def test_backward_reads_no_more_than_it_needs(weights):
    """Gradients of the weight only: nothing is computed for the inputs."""
    w, _ = weights

    def run(h, xs):
        last, ys = jg.scan(lambda h, x: (jg.tanh(x + h @ w), h), h, xs)
        (last.sum() + ys.sum()).backward()
        return last

    compiled = both(run, jg.randn(2, 3), jg.randn(4, 2, 3), grads=[w])
    graph = simplify(compiled.specialisations[0].trace.graph)
    forward, backward = [n for n in graph.nodes if n.op.name == "scan"]
    assert len(backward.outputs) == 2  # the carry's cotangent, and those of the products, stacked
    assert len(backward.inputs) == 4  # the carry, the cotangents of ys, h of each step, w; no xs
    verify(graph)
    assert to_text(parse(to_text(graph))) == to_text(graph)


@pytest.mark.skipif(shutil.which("cc") is None, reason="linking needs a C compiler")
def test_loops_leave_python(tmp_path):
    """A library runs scans, loops and branches: nested tables of rows."""
    layer = nn.GRU(3, 4)

    def run(x):
        y = layer(x)[0]
        y = jg.while_loop(lambda y, i: i < 5, lambda y, i: (y * 1.5, i + 1), (y, 0))[0]
        return jg.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))

    x = jg.randn(6, 2, 3)
    exported = jg.export(run, x)
    exported.native(tmp_path / "libloops.so")
    found = load(tmp_path / "libloops.so")(x.numpy())
    with jg.no_grad():
        np.testing.assert_allclose(np.asarray(found), run(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_body_that_looks_at_a_number():
    """x.item() in a body is refused with its reason, and the call runs in segments."""

    def f(h, xs):
        def step(h, x):
            return (h + x if x.sum().item() > 0 else h - x), h

        return jg.scan(step, h, xs)[0]

    fast = jg.jit(f)
    for k in range(3):
        h, xs = jg.ones(2), jg.arange(12.0).view(6, 2) - 5 - k
        np.testing.assert_allclose(fast(h, xs).numpy(), f(h, xs).numpy())
    assert "reads a tensor's value in Python (item)" in str(fast.explain())
    assert fast.stats.segments and not fast.stats.fallbacks


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_associative_scan_of_matrices(n, reverse):
    """Products of matrices, which do not commute, in a tree, along dims that are not the first."""
    x = np.random.default_rng(n).standard_normal((3, n, 3))

    def product(a, b):
        return {"m": a["m"] @ b["m"]}

    made = associative_scan(
        product, {"m": jitgrad.from_numpy(x)}, dim=-2, reverse=reverse, combine_mode="generic"
    )["m"].numpy()
    rows = list(x.swapaxes(0, 1))  # (n, 3, 3)
    order = range(n - 1, -1, -1) if reverse else range(n)
    expected, so_far = {}, None
    for i in order:
        so_far = rows[i] if so_far is None else so_far @ rows[i]
        expected[i] = so_far
    np.testing.assert_allclose(made, np.stack([expected[i] for i in range(n)], 1), rtol=1e-12)


def test_an_associative_scan_must_keep_types():
    x = jitgrad.ones(4)
    with pytest.raises(RuntimeError, match="expected combine_fn to return what it takes"):
        associative_scan(lambda a, b: (a + b) > 1, x, 0, combine_mode="generic")
    with pytest.raises(ValueError, match="at least one slice"):
        associative_scan(lambda a, b: a + b, jitgrad.ones(0), 0, combine_mode="generic")


@pytest.mark.parametrize("how", ["cond", "scan", "export"])
def test_writes_through_reshape_of_what_keeps_a_layout(how):
    """reshape copies where eager code does. (Inputs of exports are taken to be row-major.)"""

    def changed(x):
        a = x.t() + 1
        a.reshape(-1)[0] = -1
        b = (x + 1).reshape(-1)
        b[0] = -1
        return a + b[1]

    def f(x):
        if how == "cond":
            return jitgrad.cond(x.sum() > 0, changed, lambda x: x.t() * 1, (x,))
        if how == "scan":
            return jitgrad.scan(lambda c, x: (c, changed(x)), jitgrad.ones(1), x[None])[1][0]
        return changed(x)

    x = jitgrad.arange(6.0).reshape(2, 3)
    for given in (x, x.t().contiguous().t()):
        first = 3.0 if given is x or how == "export" else 1.0
        if how == "export":
            sizes = ({0: jg.Dim("n"), 1: jg.Dim("m")},)
            compiled = jg.export(f, given, dynamic_shapes=sizes)
        else:
            compiled = jitgrad.jit(f, fallback="error")
        for _ in range(3):
            assert compiled(given).tolist() == [[first, 6.0], [4.0, 7.0], [5.0, 8.0]]
        assert how == "export" or changed(given).tolist() == compiled(given).tolist()
