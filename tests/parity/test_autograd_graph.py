"""autograd.graph, anomaly detection and utils.checkpoint beside PyTorch's."""

import warnings

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad
import jitgrad.nn
import jitgrad.utils.checkpoint
import jitgrad.utils.data

RNG = np.random.default_rng(7)
X, W = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 4))
LIBS = (jitgrad, torch)


def tensors(t):
    return t.from_numpy(X.copy()).requires_grad_(), t.from_numpy(W.copy()).requires_grad_()


def test_saved_tensors_hooks():
    """What is packed comes back: here as another tensor, so that the hooks are seen to be used."""
    found = []
    for t in LIBS:
        x, w = tensors(t)
        log = []

        def pack(a, log=log):
            log.append(tuple(a.shape))
            return a.detach() * 2

        with t.autograd.graph.saved_tensors_hooks(pack, lambda a: a + 1):
            y = (x @ w).sin() * x
            z = t.nn.functional.softmax(y, 1)
        (z.exp().sum() + y.sum()).backward()
        found.append((z.detach(), x.grad, w.grad))
        assert log.count((3, 4)) >= 4 and (4, 4) in log
    for a, b in zip(*found, strict=True):
        same(a, b, scale=10)


def test_saved_tensors_hooks_of_functions_and_second_derivatives():
    found = []
    for t in LIBS:

        class Product(t.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                out = a * b
                ctx.save_for_backward(a, b, out)
                return out

            @staticmethod
            def backward(ctx, g):
                a, b, out = ctx.saved_tensors
                return g * b + out, g * a + out

        x, w = tensors(t)
        kept = []

        def pack(a, kept=kept):
            kept.append(a.detach().clone())
            return len(kept) - 1

        with t.autograd.graph.saved_tensors_hooks(pack, lambda i, kept=kept: kept[i]):
            y = Product.apply(x.exp(), w[:3])
            z = (y**3).sum()
        g = t.autograd.grad(z, (x, w), create_graph=True)
        (g[0] * g[1][:3]).sum().backward()
        found.append((*[a.detach() for a in g], x.grad, w.grad))
    for a, b in zip(*found, strict=True):
        same(a, b, scale=20)


def test_hooks_nest_and_may_be_forbidden():
    for t in LIBS:
        graph = t.autograd.graph
        x = t.ones(2, requires_grad=True)
        outer, inner, back = [], [], t.ones(2)
        with graph.saved_tensors_hooks(outer.append, lambda a, back=back: back):
            with graph.saved_tensors_hooks(inner.append, lambda a, back=back: back):
                y = x.exp()
            z = x.sin()
        assert len(outer) == 1 and len(inner) == 1
        (y + z).sum().backward()
        hooks = graph.saved_tensors_hooks(lambda a: a, lambda a: a)
        with graph.disable_saved_tensors_hooks("not here"):
            pytest.raises(RuntimeError, hooks.__enter__).match("not here")
        with graph.save_on_cpu():
            y = x.exp()
        y.sum().backward()
        with graph.allow_mutation_on_saved_tensors():
            a = x * 3
            b = a**2
            a.zero_()
            x.grad = None
            b.sum().backward()
        assert x.grad.tolist() == [18.0, 18.0]


def test_an_unpack_hook_must_give_a_tensor():
    for t in LIBS:
        x = t.ones(2, requires_grad=True)
        with t.autograd.graph.saved_tensors_hooks(lambda a: 1, lambda a: a):
            y = x.exp()
        with pytest.raises(TypeError, match="expected to be a Tensor"):
            y.sum().backward()


def test_multi_grad_hook():
    for t in LIBS:
        a, b = tensors(t)
        c, d = a @ b, (a @ b).exp()
        calls, firsts = [], []
        register = t.autograd.graph.register_multi_grad_hook

        def all_of(gs, calls=calls):
            calls.append([g is not None for g in gs])

        register((a, b, c, d), all_of)
        register((a, c), lambda g, firsts=firsts: firsts.append(tuple(g.shape)), mode="any")
        c.sum().backward(retain_graph=True)
        c.sum().backward(inputs=(a,), retain_graph=True)
        handle = register((c,), lambda gs, calls=calls: calls.append("c"))
        handle.remove()
        (c.sum() + d.sum()).backward()
        assert calls == [[True, True, True, False], [True, False, True, False], [True] * 4]
        assert firsts == [(3, 4)] * 3
        with pytest.raises(ValueError, match="mode"):
            register((a,), print, mode="some")


def test_edges_and_nodes():
    found = []
    for t in LIBS:
        x, w = tensors(t)
        y = (x @ w).sin()
        z = y.exp()
        graph = t.autograd.graph
        assert isinstance(z.grad_fn, graph.Node) and z.grad_fn.name() == "ExpBackward0"
        assert z.grad_fn._sequence_nr() > y.grad_fn._sequence_nr()
        z.grad_fn.metadata["note"] = 3
        assert z.grad_fn.metadata["note"] == 3
        edge, leaf = graph.get_gradient_edge(y), graph.get_gradient_edge(x)
        assert edge.node is y.grad_fn and edge.output_nr == 0
        first = t.autograd.grad(z.sum(), (edge, leaf), retain_graph=True)
        second = t.autograd.grad(edge, w, t.ones(3, 4, dtype=y.dtype), retain_graph=True)
        t.autograd.backward(edge, t.ones(3, 4, dtype=y.dtype), inputs=[leaf])
        found.append((*first, *second, x.grad))
        with pytest.raises(RuntimeError):
            graph.get_gradient_edge(t.ones(2))
        assert w.grad is None
    for a, b in zip(*found, strict=True):
        same(a, b, scale=10)


def test_anomaly():
    for t in LIBS:

        class Wrong(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                raise KeyError("in backward")

        x = t.zeros(2, requires_grad=True)
        assert not t.is_anomaly_enabled()
        with pytest.warns(UserWarning, match="Anomaly"), t.autograd.detect_anomaly():
            assert t.is_anomaly_enabled() and t.is_anomaly_check_nan_enabled()
            with warnings.catch_warnings(), pytest.raises(RuntimeError, match="nan values"):
                warnings.simplefilter("ignore")
                (x.sqrt() * 0).sum().backward()
        with t.autograd.set_detect_anomaly(True, check_nan=False):
            (x.sqrt() * 0).sum().backward()
            with warnings.catch_warnings(), pytest.raises(KeyError):
                warnings.simplefilter("ignore")
                Wrong.apply(x).sum().backward()
        t.set_anomaly_enabled(True, check_nan=False)
        assert t.is_anomaly_enabled() and not t.is_anomaly_check_nan_enabled()
        t.autograd.set_detect_anomaly(True)
        assert t.is_anomaly_enabled() and t.is_anomaly_check_nan_enabled()
        t.autograd.set_detect_anomaly(False)
        assert not t.is_anomaly_enabled()


def network(t):
    net = t.nn.Sequential(
        t.nn.Linear(4, 8), t.nn.Tanh(), t.nn.LayerNorm(8), t.nn.Linear(8, 4), t.nn.GELU()
    ).double()
    rng = np.random.default_rng(2)
    with t.no_grad():
        for p in net.parameters():
            p.copy_(t.from_numpy(rng.standard_normal(tuple(p.shape))))
    return net


def checkpointed(t, reentrant):
    checkpoint = t.utils.checkpoint.checkpoint
    net, extra = network(t), t.from_numpy(W.copy()).requires_grad_()
    x = t.from_numpy(X.copy()).requires_grad_()

    def block(a, scale, flags=None):
        out = net(a) @ extra  # a captured parameter, and a captured one of the module
        return {"y": out * scale, "n": out.detach(), "f": flags}

    keywords = {} if reentrant else {"flags": [1]}
    if reentrant:
        y = checkpoint(lambda a: block(a, 2.0)["y"], x * 3, use_reentrant=True)
    else:
        out = checkpoint(block, x * 3, 2.0, use_reentrant=False, **keywords)
        assert out["f"] == [1] and not out["n"].requires_grad
        y = out["y"]
    z = checkpoint(net, y, use_reentrant=reentrant, preserve_rng_state=False)
    (z.sin().sum() + y.sum()).backward()
    return [z.detach(), x.grad, extra.grad, *[p.grad for p in net.parameters()]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    for a, b in zip(*[checkpointed(t, reentrant) for t in LIBS], strict=True):
        same(a, b, scale=20)


def test_checkpoint_nested_sequential_and_second_derivatives():
    found = []
    for t in LIBS:
        point, net = t.utils.checkpoint, network(t)
        x = t.from_numpy(X.copy()).requires_grad_()

        def inner(a, net=net, point=point):
            return point.checkpoint(net, a.sin(), use_reentrant=False) * a

        y = point.checkpoint(inner, x, use_reentrant=False)
        (g,) = t.autograd.grad(y.exp().sum(), x, create_graph=True)
        (g**2).sum().backward()
        z = point.checkpoint_sequential(net, 2, x, use_reentrant=False)
        z = z + point.checkpoint_sequential(list(net), 3, x, use_reentrant=False)
        z.sum().backward(retain_graph=True)
        z.sum().backward()
        found.append([g.detach(), x.grad, *[p.grad for p in net.parameters()]])
    for a, b in zip(*found, strict=True):
        same(a, b, scale=50)


def test_checkpoint_without_an_input_that_requires_grad():
    for t in LIBS:
        net, x = network(t), t.from_numpy(X.copy())
        with pytest.warns(UserWarning, match="None of the inputs"):
            y = t.utils.checkpoint.checkpoint(net, x, use_reentrant=True)
        assert not y.requires_grad
        y = t.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        assert y.requires_grad
        with t.no_grad():
            assert not t.utils.checkpoint.checkpoint(net, x, use_reentrant=False).requires_grad


@pytest.mark.parametrize("name", ["differs", "fewer", "more", "keywords", "context", "check"])
def test_checkpoint_errors(name):
    kinds = []
    for t in LIBS:
        checkpoint = t.utils.checkpoint.checkpoint
        x, times = t.ones(3, requires_grad=True), [0]

        def f(a, times=times, t=t):
            times[0] += 1
            second = times[0] == 2
            if name == "differs":
                return (a[:2] if second else a).exp()
            if name == "fewer":
                return a.exp() if second else a.exp().sin()
            if name == "more":
                return a.exp().sin().cos() if second else a.exp()
            return a

        with pytest.raises(Exception) as caught:
            if name == "keywords":
                checkpoint(f, x, other=1, use_reentrant=True)
            elif name == "context":
                checkpoint(f, x, context_fn=lambda: None, use_reentrant=True)
            elif name == "check":
                checkpoint(f, x, determinism_check="no", use_reentrant=False).sum().backward()
            else:
                checkpoint(f, x, use_reentrant=False, early_stop=name != "more").sum().backward()
        kinds.append(type(caught.value).__name__)
    assert kinds[0] == kinds[1]


def test_variable():
    for t in LIBS:
        x = t.ones(2)
        v = t.autograd.Variable(x, requires_grad=True)
        assert isinstance(v, t.autograd.Variable) and isinstance(v, t.Tensor)
        assert isinstance(x, t.autograd.Variable) and not isinstance(3, t.autograd.Variable)
        assert v.is_leaf and v.requires_grad and not x.requires_grad
        assert v.data_ptr() == x.data_ptr()
        (v * 2).sum().backward()
        assert v.grad.tolist() == [2.0, 2.0]
        assert not t.autograd.Variable(x).requires_grad


AGAIN = {
    "mean": lambda t, x: x.mean(),
    "mean_half": lambda t, x: x.half().mean(1),
    "tril": lambda t, x: x.tril(),
    "triu": lambda t, x: x.triu(1),
    "diag": lambda t, x: t.diag(x[0]),
    "diag_embed": lambda t, x: t.diag_embed(x),
    "diagflat": lambda t, x: t.diagflat(x),
    "deg2rad": lambda t, x: x.deg2rad(),
    "rad2deg": lambda t, x: x.rad2deg(),
    "round": lambda t, x: x.round(decimals=2),
    "gradient": lambda t, x: t.gradient(x)[0],
    "lerp": lambda t, x: x.lerp(x + 1, 0.25),
    "lu_unpack": lambda t, x: t.lu_unpack(x, t.ones(4, dtype=t.int32))[1],
    "unfold": lambda t, x: t.nn.functional.unfold(x[None, None], 2),
    "nearest": lambda t, x: t.nn.functional.interpolate(x[None, None], size=(3, 7)),
    "bilinear": lambda t, x: t.nn.functional.interpolate(
        x[None, None], size=(3, 7), mode="bilinear"
    ),
    "mse_loss": lambda t, x: t.nn.functional.mse_loss(x, x.detach()),
    "var": lambda t, x: x.var(),
    "exp": lambda t, x: x.exp(),
}
RELEASED = {"mse_loss", "var", "exp"}


@pytest.mark.parametrize("name", AGAIN)
def test_backward_runs_again_where_nothing_is_released(name):
    def gradients(t, f):
        x = (t.arange(16.0).reshape(4, 4) % 7).requires_grad_()
        y = f(t, x).float().sum()
        y.backward()
        if name in RELEASED:
            with pytest.raises(RuntimeError, match="second time"):
                y.backward()
        else:
            y.backward()
        return x.grad.tolist()

    expected = gradients(torch, AGAIN[name])
    np.testing.assert_allclose(gradients(jitgrad, AGAIN[name]), expected, 1e-5, 1e-6)
    compiled = jitgrad.jit(lambda x: AGAIN[name](jitgrad, x), fallback="error")
    for _ in range(3):
        found = gradients(jitgrad, lambda t, x: compiled(x))
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
