"""The tape: backward, grad, hooks, modes, Function, forward mode."""

import gc
import pickle
import threading
import tracemalloc
import weakref

import numpy as np
import pytest

import jitgrad as t
from jitgrad import autograd
from jitgrad.autograd import grad, gradcheck, gradgradcheck, jvp
from jitgrad.runtime.knobs import knob


def leaf(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return t.from_numpy(np.asarray(values)).requires_grad_()


def test_backward_accumulates():
    x = t.tensor([1.0, 2.0], requires_grad=True)
    (x * 3).sum().backward()
    first = x.grad
    assert first.tolist() == [3.0, 3.0]
    (x * x).sum().backward()
    assert x.grad.tolist() == [5.0, 7.0]
    assert x.grad is first  # accumulated in place, as PyTorch
    x.grad = None
    (x * 2).sum().backward()
    assert first.tolist() == [5.0, 7.0] and x.grad.tolist() == [2.0, 2.0]


def test_gradients_of_leaves_are_their_own():
    x, y = leaf(3), leaf(3, seed=1)
    seed = t.ones(3, dtype=t.float64)
    (x + y).backward(seed)
    assert x.grad._storage is not y.grad._storage
    x.grad.zero_()
    assert y.grad.tolist() == [1.0] * 3 and seed.tolist() == [1.0] * 3
    z = leaf(3)
    z.reshape(3).backward(seed)
    z.grad.zero_()
    assert seed.tolist() == [1.0] * 3
    w = leaf(3)
    seen = []
    w.register_hook(lambda g: seen.append(g))
    (w * 1).backward(seed)
    w.grad.zero_()
    assert seen[0].tolist() == [1.0] * 3
    a = leaf(1, 3)
    a.expand(2, 3).sum().backward()
    assert a.grad.tolist() == [[2.0] * 3]
    b = leaf(2, 2)
    b.sum().backward()
    b.grad.add_(1)  # not an expanded view


def test_shared_subexpression_and_diamond():
    x = leaf(4)
    y = x * 2
    z = (y * y + y).sum() + y.sum()
    z.backward()
    assert np.allclose(x.grad.numpy(), 2 * (2 * 2 * x.detach().numpy()) + 4)


def test_errors_of_backward():
    x = leaf(3)
    with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar"):
        (x * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        t.ones(1).backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (x * 2).backward(t.ones(2, dtype=t.float64))
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    with pytest.raises(RuntimeError, match="cannot be empty"):
        (x * x).sum().backward(inputs=[])


def test_retain_graph():
    x = leaf(3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert np.allclose(x.grad.numpy(), 4 * x.detach().numpy())


def test_backward_to_some_inputs():
    x, w = leaf(3), leaf(3, seed=1)
    y = x * w
    (y * 2).sum().backward(inputs=[w, y])
    assert x.grad is None and w.grad is not None
    assert y.grad.tolist() == [2.0] * 3


def test_grad():
    x, w = leaf(3), leaf(3, seed=1)
    y = x * w
    gy, gx = grad((y * y).sum(), [y, x])
    assert np.allclose(gy.numpy(), 2 * y.detach().numpy())
    assert np.allclose(gx.numpy(), (2 * y * w).detach().numpy())
    assert x.grad is None
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        grad((x * 2).sum(), [w])
    assert grad((x * 2).sum(), [w], allow_unused=True) == (None,)
    (zeros,) = grad((x * 2).sum(), [w], materialize_grads=True)
    assert zeros.tolist() == [0.0] * 3
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad((x * 2).sum(), [t.ones(3)])
    two = grad((x * x), [x, x], t.ones(3, dtype=t.float64))
    assert np.allclose(two[0].numpy(), two[1].numpy())
    (same,) = grad(x, x, t.ones(3, dtype=t.float64))
    assert same.tolist() == [1.0] * 3


def test_batched_grad():
    x = leaf(3)
    eye = t.eye(3, dtype=t.float64)
    (jacobian,) = grad(x * x, x, eye, is_grads_batched=True)
    assert np.allclose(jacobian.numpy(), np.diag(2 * x.detach().numpy()))


def test_only_what_leads_to_inputs_runs():
    x, w = leaf(3), leaf(3, seed=1)
    ran = []
    h = w * 1
    h.register_hook(lambda g: ran.append("h"))
    grad((x * h).sum(), x)
    assert ran == []


def test_higher_orders():
    x = t.tensor(1.3, dtype=t.float64, requires_grad=True)
    y = x**4
    for factor, power in ((4, 3), (12, 2), (24, 1), (24, 0)):
        (y,) = grad(y, x, create_graph=True)
        assert np.isclose(y.item(), factor * x.item() ** power)


def test_create_graph_in_backward():
    x = leaf(3)
    (x * x * x).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    first = x.grad
    x.grad = None
    (first * first).sum().backward()
    assert np.allclose(x.grad.numpy(), 36 * x.detach().numpy() ** 3)


FUNCTIONS = {
    "mlp": lambda x, w: ((x @ w).tanh() @ w.T).softmax(1),
    "norm": lambda x, w: (x / x.norm(dim=1, keepdim=True)) @ w,
    "max": lambda x, w: x.max(1).values * w.amax(),
    "logsumexp": lambda x, w: (x @ w).logsumexp(1) - (x @ w).log_softmax(0).sum(1),
    "var": lambda x, w: x.var(1) + w.std(),
    "sort": lambda x, w: x.sort(1).values * t.arange(4, dtype=t.float64) + x.topk(1).values,
    "where": lambda x, w: t.where(x > 0, x, x.exp()) @ w,
    "clamp": lambda x, w: x.clamp(-0.5, 0.5) @ w.clamp(min=0),
    "cumsum": lambda x, w: x.cumsum(1).cumprod(0) @ w,
    "gather": lambda x, w: x.gather(1, t.tensor([[0, 0], [1, 3], [2, 2]])) + w[0],
    "index": lambda x, w: x[[0, 0, 2]] @ w[:, [1, 0]],
    "mixed index": lambda x, w: x[:, [1, 2], None] * w[None, 1:3],
    "einsum": lambda x, w: t.einsum("ij,jk->ki", x, w) + t.einsum("ij,ij->", x, x),
    "cat": lambda x, w: t.cat([x, w.T, x * 2]) * t.stack([x[0], x[1]])[0],
    "split": lambda x, w: x.split(2, 1)[0] * x.chunk(2, 1)[1] + w.unbind(1)[0][:2],
    "repeat": lambda x, w: x.repeat(2, 1) @ w + x.roll(1, 0).repeat_interleave(2, 0) @ w,
    "tril": lambda x, w: x.tril() @ w.triu() + x.flip(1)[:, :2],
    "pow": lambda x, w: (x * x + 1) ** (w.sum() * 0.1) + x**3,
    "lerp": lambda x, w: x.lerp(x * x, 0.3) @ w,
    "expand": lambda x, w: x[:, None].expand(3, 2, 4).permute(2, 0, 1).flatten(1).sum(0),
    "median": lambda x, w: x.median(1).values + w.kthvalue(2, 0).values.sum(),
    "prod": lambda x, w: x.prod(1) + w.prod(),
    "diag": lambda x, w: x.diag_embed().sum(-1) @ w + x[:, :2].diag().sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_of_functions(name):
    f, args = FUNCTIONS[name], (leaf(3, 4), leaf(4, 2, seed=1))
    assert gradcheck(f, args)
    assert gradgradcheck(f, args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_agrees(name):
    f, args = FUNCTIONS[name], (leaf(3, 4).detach(), leaf(4, 2, seed=1).detach())
    along = tuple(leaf(*a.shape, seed=7).detach() for a in args)
    out, tangent = jvp(f, args, along)
    eps = 1e-6
    high = f(*(a + d * eps for a, d in zip(args, along, strict=True)))
    low = f(*(a - d * eps for a, d in zip(args, along, strict=True)))
    assert np.allclose(tangent.numpy(), ((high - low) / (2 * eps)).numpy(), atol=1e-5)
    assert np.allclose(out.numpy(), f(*args).numpy())


def test_forward_mode_through_writes_and_its_gradient():
    def f(x):
        y = x * 2
        y[0] = y[1] * x[2]
        y[1:].mul_(x[:2])
        return y.sum()

    x, d = leaf(3), leaf(3, seed=3).detach()
    _, tangent = jvp(f, x, d)
    (g,) = grad(f(x), x, create_graph=True)
    assert np.isclose(tangent.item(), (g * d).sum().item())

    def out_of_place(x):
        return (x * x * 2).tanh().sum()

    (g,) = grad(out_of_place(x), x, create_graph=True)
    (hd,) = grad(jvp(out_of_place, x, d)[1], x)
    (want,) = grad((g * d).sum(), x)
    assert np.allclose(hd.numpy(), want.numpy())


def test_gradcheck_finds_a_wrong_derivative():
    class Wrong(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    with pytest.raises(autograd.GradcheckError, match="Jacobian mismatch"):
        gradcheck(Wrong.apply, leaf(2))
    assert gradcheck(Wrong.apply, leaf(2), raise_exception=False) is False
    with pytest.warns(UserWarning, match="not a double precision"):
        gradcheck(lambda x: x, t.ones(2, requires_grad=True))


def test_only_what_wanted_gradients_read_is_saved():
    x, w = leaf(3), leaf(3, seed=1)
    h = x * 1
    y = h * 0.5  # the gradient reads 0.5 only
    h.zero_()
    c = t.ones(3, dtype=t.float64)
    z = w * c  # reads c; w is not kept
    with t.no_grad():
        w.zero_()
    (y.sum() + z.sum()).backward()
    assert x.grad.tolist() == [0.5] * 3 and w.grad.tolist() == [1.0] * 3
    assert [what for what, _ in (leaf(2, 2) @ t.ones(2, 2, dtype=t.float64)).grad_fn.saved] == [
        "operand 1"
    ]


def test_long_chain():
    x = t.ones(1, requires_grad=True)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward()
    assert x.grad.tolist() == [1.0]
    ref = weakref.ref(y.grad_fn)
    del y  # freed without recursion
    assert ref() is None


@knob(eager="numpy")  # a compiler's memory is not counted
def test_saved_memory_is_freed_as_backward_goes():
    x = t.ones(256, 256, requires_grad=True)
    size = x.nbytes
    tracemalloc.start()
    try:
        y = x
        for _ in range(20):
            y = (y * 1.01).exp().log()
        loss = y.sum()
        del y
        saved, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        loss.backward()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert saved > 20 * size  # of exp the result, which is log's operand
    assert peak < saved + 4 * size and left < 3 * size


def test_graph_is_freed_without_the_collector():
    gc.disable()
    try:
        x = leaf(3)
        y = x.exp()
        big = weakref.ref(y._storage)
        z = (y * y).sum()
        del y
        assert big() is not None  # saved
        z.backward()
        assert big() is None  # freed by backward though z is alive
    finally:
        gc.enable()


def test_modes():
    x = leaf(3)
    with t.no_grad():
        assert not (x * 2).requires_grad and not t.is_grad_enabled()
        with t.enable_grad():
            assert (x * 2).requires_grad
    assert t.is_grad_enabled()

    @t.no_grad()
    def f():
        return x * 2

    @t.no_grad
    def g():
        yield x * 2
        yield t.is_grad_enabled()

    assert not f().requires_grad
    items = list(g())
    assert not items[0].requires_grad and items[1] is False and t.is_grad_enabled()
    with t.set_grad_enabled(False):
        assert not t.is_grad_enabled()
    assert t.is_grad_enabled()
    t.set_grad_enabled(False)
    assert not t.is_grad_enabled()
    t.set_grad_enabled(True)
    with t.inference_mode():
        assert t.is_inference_mode_enabled() and not (x * 2).requires_grad
    with pytest.raises(ZeroDivisionError), t.no_grad():
        raise ZeroDivisionError
    assert t.is_grad_enabled()


def test_modes_are_of_the_thread():
    seen = []
    with t.no_grad():
        thread = threading.Thread(target=lambda: seen.append(t.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_integer_and_detached_outputs():
    x = leaf(3)
    assert not (x > 0).requires_grad and not x.argmax().requires_grad
    assert not x.detach().requires_grad and x.detach()._storage is x._storage
    assert not x.long().requires_grad
    values, indices = x.sort()
    assert values.requires_grad and not indices.requires_grad
    with pytest.raises(RuntimeError, match="floating point"):
        t.tensor([1]).requires_grad_()


def test_requires_grad_of_non_leaf():
    y = leaf(2) * 2
    with pytest.raises(RuntimeError, match="only change requires_grad flags of leaf"):
        y.requires_grad_(False)
    assert not y.is_leaf and leaf(2).is_leaf and t.ones(1).is_leaf


def test_hooks():
    x = leaf(3)
    order = []
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: order.append(("leaf", g.tolist())))
    x.register_post_accumulate_grad_hook(lambda p: order.append(("post", p.grad.tolist())))
    y.sum().backward()
    assert order == [("leaf", [20.0] * 3), ("post", [20.0] * 3)]
    handle.remove()
    x.grad = None
    (x * 2 + x).sum().backward()
    assert order[2] == ("leaf", [3.0] * 3)  # once, with the whole gradient
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        t.ones(1).register_hook(print)


def test_retain_grad():
    x = leaf(3)
    y = x * 2
    y.retain_grad()
    (y * y).sum().backward()
    assert np.allclose(y.grad.numpy(), 2 * y.detach().numpy())
    assert y.retains_grad


def test_node_hooks_and_names():
    x = leaf(2)
    y = (x * x).sum()
    node = y.grad_fn
    assert node.name() == "SumBackward0" and repr(node).startswith("<SumBackward0 object at 0x")
    ((mul, slot),) = node.next_functions
    assert mul.name() == "MulBackward0" and slot == 0
    assert mul.next_functions[0][0].name() == "torch::autograd::AccumulateGrad"
    assert mul.next_functions[0][0].variable is x
    assert mul.next_functions[0][0] == mul.next_functions[1][0]
    seen = []
    mul.register_hook(lambda gin, gout: seen.append((len(gin), len(gout))))
    mul.register_prehook(lambda gout: (gout[0] * 2,))
    y.backward()
    assert seen == [(2, 1)]
    assert np.allclose(x.grad.numpy(), 4 * x.detach().numpy())
    assert node.line.split(":")[0].endswith("test_autograd.py")


def test_grad_assignment():
    x = leaf(3)
    x.grad = t.ones(3, dtype=t.float64)
    with pytest.raises(RuntimeError, match=r"\[grad\] expected a gradient of type"):
        x.grad = t.ones(3)
    with pytest.raises(RuntimeError, match="expected a gradient"):
        x.grad = t.ones(2, dtype=t.float64)
    with pytest.raises(TypeError, match="expected to be a Tensor or None"):
        x.grad = 3
    del x.grad
    assert x.grad is None


class Cube(autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, False)
        return g * 3 * x * x * ctx.scale, None


def test_function():
    x = leaf(3)
    y = Cube.apply(x, 2.0)
    assert y.grad_fn.name() == "CubeBackward"
    assert gradcheck(lambda x: Cube.apply(x, 2.0), x)
    assert gradgradcheck(lambda x: Cube.apply(x, 2.0), x)
    with t.no_grad():
        assert not Cube.apply(x, 2.0).requires_grad
    with pytest.raises(RuntimeError, match="should not be instantiated"):
        Cube()


def test_function_that_saves_its_output_makes_no_cycle():
    class Exp(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    assert gradcheck(Exp.apply, leaf(3)) and gradgradcheck(Exp.apply, leaf(3))
    gc.disable()
    try:
        y = Exp.apply(leaf(3))
        ref = weakref.ref(y.grad_fn)
        del y
        assert ref() is None
    finally:
        gc.enable()
    y = Exp.apply(leaf(3))
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = Exp.apply(leaf(3)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_function_with_several_outputs():
    class Parts(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            sign = x.sign()
            ctx.mark_non_differentiable(sign)
            return x * 2, sign, x * x

        @staticmethod
        def backward(ctx, a, b, c):
            (x,) = ctx.saved_tensors
            return a * 2 + c * 2 * x

    x = leaf(3)
    double, sign, square = Parts.apply(x)
    assert double.requires_grad and not sign.requires_grad
    square.sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * x.detach().numpy())


def test_function_with_wrong_gradients():
    class Bad(autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        Bad.apply(leaf(2), leaf(2)).sum().backward()


def test_once_differentiable():
    class Once(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @autograd.once_differentiable
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(3)
    Once.apply(x).sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * x.detach().numpy())
    (g,) = grad(Once.apply(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_setup_context():
    class Square(autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    assert gradcheck(Square.apply, leaf(3))


def test_anomaly_names_the_line():
    x = t.tensor([0.0], requires_grad=True)
    with autograd.detect_anomaly():
        y = (x.sqrt() * 0).sum()
        with pytest.raises(RuntimeError, match="SqrtBackward0.*nan.*test_autograd.py"):
            y.backward()


def test_half_precision_seed_is_cast():
    x = t.ones(2, dtype=t.float16, requires_grad=True)
    (x * 2).backward(t.ones(2))
    assert x.grad.dtype is t.float16


def test_abstract_mode_runs_the_tape_without_data():
    from jitgrad.dispatch import abstract_mode

    with abstract_mode():
        x = t.zeros(3, 4).requires_grad_()
        w = t.ones(4, 2)
        loss = ((x @ w).tanh() - 1).pow(2).mean()
        loss.backward()
        assert loss._data is None and tuple(x.grad.shape) == (3, 4) and x.grad._data is None
        y = x * 2
        y[0] = 1.0
        y.sum().backward()
    with pytest.raises(RuntimeError, match="abstract"):
        loss.item()
    with pytest.raises(RuntimeError, match="is abstract"):
        loss + 1


def test_leaf_pickles_and_deepcopies():
    import copy

    x = leaf(3)
    x.grad = t.ones(3, dtype=t.float64)
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and np.array_equal(y.detach().numpy(), x.detach().numpy())
    z = copy.deepcopy(x)
    assert z.grad.tolist() == [1.0] * 3 and z._storage is not x._storage
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


# -- gradients that hooks and Functions give -------------------------------------------------------
def _on_result(hook, x):
    y = x * 2
    y.register_hook(hook)
    return y


def _on_leaf(hook, x):
    x.register_hook(hook)
    return x * 2


def _before_node(hook, x):
    y = x * 2
    y.grad_fn.register_prehook(lambda grads: (hook(grads[0]),))
    return y


def _after_node(hook, x):
    y = x * 2
    y.grad_fn.register_hook(lambda grads, outs: (hook(grads[0]), *grads[1:]))
    return y


def _after_module(hook, x):
    module = t.nn.Identity()
    module.register_full_backward_hook(lambda m, grads, outs: (hook(grads[0]),))
    return module(x) * 2


def _before_module(hook, x):
    module = t.nn.Identity()
    module.register_full_backward_pre_hook(lambda m, outs: (hook(outs[0]),))
    return module(x) * 2


PLACES = [_on_result, _on_leaf, _before_node, _after_node, _after_module, _before_module]


@pytest.mark.parametrize("place", PLACES)
def test_hooks_give_gradients_of_the_type_they_got(place):
    for hook, kind, text in (
        (lambda g: g.float(), RuntimeError, "has changed the type of value"),
        (lambda g: g[:2], RuntimeError, "has changed the size of value"),
        (lambda g: 3, TypeError, "expected Variable, but hook returned 'int'"),
    ):
        x = t.ones(3, dtype=t.float64, requires_grad=True)
        with pytest.raises(kind, match=text):
            place(hook, x).sum().backward()
        assert x.grad is None
    x = t.ones(3, dtype=t.float64, requires_grad=True)
    place(lambda g: g * 3, x).sum().backward()
    assert x.grad.tolist() == [6, 6, 6]


def test_hooks_of_nodes_give_a_gradient_for_each():
    x = t.ones(3, requires_grad=True)
    for found, kind, text in (
        ((None,) * 3, RuntimeError, r"incorrect number of values \(got 3, but expected 2\)"),
        (3, TypeError, "expected tuple, but hook returned 'int'"),
    ):
        y = x * 2
        y.grad_fn.register_hook(lambda grads, outs, found=found: found)
        with pytest.raises(kind, match=text):
            y.sum().backward()


def test_what_a_function_gives_is_summed_and_converted():
    class Wide(t.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return t.ones(2, 3, dtype=t.float64)

    x = t.ones(3, requires_grad=True)
    Wide.apply(x * 1).sum().backward()
    assert x.grad.tolist() == [2, 2, 2] and x.grad.dtype is t.float32
    with pytest.raises(RuntimeError, match="invalid gradient at index 0 - got"):
        Wide.apply(t.ones(4, requires_grad=True)).sum().backward()


NOTHING_SAVED = {
    "sum": lambda x: x.sum(),
    "view": lambda x: x.view(4).sum(),
    "select": lambda x: x[0].sum(),
    "clone": lambda x: x.clone().sum(),
    "cat": lambda x: t.cat([x, x]).sum(),
    "stack": lambda x: t.stack([x, x]).sum(),
    "add": lambda x: (x + 1).sum(),
    "sub": lambda x: (1 - x).sum(),
    "unbind": lambda x: x.unbind(0)[1].sum(),
    "roll": lambda x: x.roll(1).sum(),
    "cast": lambda x: x.double().sum(),
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", NOTHING_SAVED)
def test_nodes_that_saved_nothing_run_again(name, jitted):
    function = NOTHING_SAVED[name]
    if jitted:
        function = t.jit(function, fallback="error")
        function(leaf(2, 2))
    x = leaf(2, 2)
    y = function(x)
    y.backward()
    once = x.grad.clone()
    y.backward()
    assert (x.grad == 2 * once).all()
    (g,) = t.autograd.grad(y, x)
    assert (g == once).all()


def test_parts_of_what_saved_nothing_have_backwards_of_their_own():
    x = leaf(3)
    h = x + 1
    h[0].backward()
    h[1].backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]
    y = h * h
    y[0].backward()
    with pytest.raises(RuntimeError, match="second time"):
        y[1].backward()
