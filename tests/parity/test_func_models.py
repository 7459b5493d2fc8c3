"""Programs that live on derivatives of derivatives, beside PyTorch: eager and under @jit.

MAML, a physics-informed network, a spring system, per-sample gradients, Hessian-vector products,
ensembles. Each program is one function of numbers to numbers, in both libraries.
"""

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad
import jitgrad.nn
from jitgrad import func
from jitgrad.pytree import flatten

RNG = np.random.default_rng(1)


def weights(sizes):
    out = {}
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        out[f"{2 * i}.weight"] = RNG.standard_normal((b, a)) / np.sqrt(a)
        out[f"{2 * i}.bias"] = RNG.standard_normal(b) * 0.1
    return out


def mlp(t, sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [t.nn.Linear(a, b), t.nn.Tanh()]
    return t.nn.Sequential(*layers[:-1]).double()


def maml(t, f, net, params, x, y, xq, yq):
    """Two inner steps for each task, the outer gradient through them: grad of vmap of grad."""
    F = t.nn.functional

    def loss(p, a, b):
        return F.mse_loss(f.functional_call(net, p, (a,)), b)

    def task(p, a, b, aq, bq):
        for _ in range(2):
            g = f.grad(loss)(p, a, b)
            p = {k: p[k] - 0.1 * g[k] for k in p}
        return loss(p, aq, bq)

    def outer(p):
        return f.vmap(task, in_dims=(None, 0, 0, 0, 0))(p, x, y, xq, yq).mean()

    return f.grad_and_value(outer)(params)


def maml_tape(t, f, net, params, x, y, xq, yq):
    """The same with autograd.grad(create_graph=True), as published code has it."""
    F = t.nn.functional
    leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
    total = 0
    for i in range(2):
        p = leaves
        for _ in range(2):
            inner = F.mse_loss(f.functional_call(net, p, (x[i],)), y[i])
            g = t.autograd.grad(inner, list(p.values()), create_graph=True)
            p = {k: v - 0.1 * d for (k, v), d in zip(p.items(), g, strict=True)}
        total = total + F.mse_loss(f.functional_call(net, p, (xq[i],)), yq[i]) / 2
    return t.autograd.grad(total, list(leaves.values())), total.detach()


def physics(t, f, net, params, x, y, xq, yq):
    """u'' + u' - u at points, and the gradient of its square: vmap of grad of grad, then grad."""

    def u(p, a):
        return f.functional_call(net, p, (a.reshape(1),)).sum()

    first = f.grad(u, argnums=1)
    second = f.grad(first, argnums=1)

    def residual(p, a):
        return second(p, a) + first(p, a) - u(p, a)

    def loss(p):
        r = f.vmap(residual, in_dims=(None, 0))(p, x.reshape(-1))
        return (r**2).mean()

    return f.grad_and_value(loss)(params)


def per_sample(t, f, net, params, x, y, xq, yq):
    def loss(p, a, b):
        return t.nn.functional.mse_loss(f.functional_call(net, p, (a.reshape(1, -1),)), b)

    a, b = x.reshape(-1, 1), y.reshape(-1, 1, 1)
    grads = f.vmap(f.grad(loss), in_dims=(None, 0, 0))(params, a, b)
    norms = sum((g.flatten(1) ** 2).sum(1) for g in grads.values()).sqrt()
    scale = (1 / norms).clamp(max=1.0)
    return {k: t.einsum("n,n...->...", scale, g) for k, g in grads.items()}, norms


def hvp(t, f, net, params, x, y, xq, yq):
    """Hessian times a vector in three ways, and the Hessian of the biases whole."""

    def loss(p):  # not mse_loss: PyTorch's own has no forward over reverse here (ZeroTensors)
        return ((f.functional_call(net, p, (x[0],)) - y[0]) ** 2).mean()

    v = {k: (d * 3).cos() for k, d in params.items()}
    forward = f.jvp(f.grad(loss), (params,), (v,))[1]
    reverse = f.vjp(f.grad(loss), params)[1](v)[0]

    def along(p):
        g = f.grad(loss)(p)
        return sum((g[k] * v[k]).sum() for k in p)

    twice = f.grad(along)(params)
    whole = f.hessian(lambda b: loss({**params, "0.bias": b}))(params["0.bias"])
    return forward, reverse, twice, whole


def tangent_kernel(t, f, net, params, x, y, xq, yq):
    """The neural tangent kernel by vjp and jvp, a function of vjp's captured by another."""

    def one(a, b):
        out, pull = f.vjp(lambda p: f.functional_call(net, p, (a,)), params)

        def row(g):
            return f.jvp(lambda p: f.functional_call(net, p, (b,)), (params,), pull(g))[1]

        return f.vmap(row)(t.eye(out.numel(), dtype=out.dtype))

    return f.vmap(f.vmap(one, (None, 0)), (0, None))(x[0], xq[1])


NETWORKS = {"maml": maml, "maml_tape": maml_tape, "physics": physics, "per_sample": per_sample,
            "hvp": hvp, "tangent_kernel": tangent_kernel}  # fmt: skip


def run_both(code, arrays, check_hits=True):
    """code(t, f, *tensors) in both libraries, ours eager and jitted; everything compared."""
    wanted = flatten(code(torch, torch.func, *[torch.from_numpy(a.copy()) for a in arrays]))[0]

    def run(*args):
        return code(jitgrad, func, *args)

    compiled = jitgrad.jit(run, fallback="error")
    for form in (run, compiled, compiled):
        found = flatten(form(*[jitgrad.from_numpy(a.copy()) for a in arrays]))[0]
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"result {i}", 100)
    assert compiled.stats.hits == 1, compiled.explain_last_miss()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    sizes = (1, 8, 8, 1)
    arrays = weights(sizes)
    data = [RNG.standard_normal((2, 5, 1)) for _ in range(4)]
    nets = {torch: mlp(torch, sizes), jitgrad: mlp(jitgrad, sizes)}

    def code(t, f, *args):
        params = dict(zip(arrays, args, strict=False))
        return NETWORKS[name](t, f, nets[t], params, *args[len(arrays) :])

    run_both(code, [*arrays.values(), *data])


def springs(t, f, positions, velocities, stiffness):
    """Masses on springs: forces by grad of the energy, a rollout, gradients through it."""

    def energy(q, k):
        d = q.unsqueeze(0) - q.unsqueeze(1)
        r = (d.pow(2).sum(-1) + t.eye(len(q), dtype=q.dtype)).sqrt()
        return 0.5 * (k * (r - 1) ** 2).sum() + (q**4).sum() * 0.01

    def rollout(q, v, k):
        for _ in range(4):
            v = v - 0.1 * f.grad(energy)(q, k)
            q = q + 0.1 * v
        return q, v

    def loss(q, v, k):
        a, b = rollout(q, v, k)
        return (a**2).sum() + (b * a).sum()

    gradients = f.grad(loss, argnums=(0, 1, 2))(positions, velocities, stiffness)
    many = f.vmap(rollout, in_dims=(None, 0, None))(
        positions, t.stack([velocities, velocities * 2]), stiffness
    )
    return gradients, many, f.jacfwd(lambda q: f.grad(energy)(q, stiffness))(positions)


def test_springs():
    run_both(springs, [RNG.standard_normal((4, 2)), RNG.standard_normal((4, 2)),
                       RNG.random((4, 4))])  # fmt: skip


def ensemble(t, f, x):
    def net(i):
        out = mlp(t, (3, 4, 2))
        with t.no_grad():
            for j, p in enumerate(out.parameters()):
                p.copy_(t.linspace(-1, 1 + i, p.numel(), dtype=p.dtype).reshape(p.shape) + j / 5)
        return out

    nets = [net(i) for i in range(3)]
    params, buffers = f.stack_module_state(nets)

    def call(p, b, a):
        return f.functional_call(nets[0], (p, b), (a,))

    each = f.vmap(call, in_dims=(0, 0, None))(params, buffers, x)
    own = f.vmap(call)(params, buffers, t.stack([x, x + 1, x * 2]))
    loss = (each**2).sum() + own.sum()
    loss.backward()
    return each, own, [p.grad for p in params.values()]


def test_ensemble():
    x = RNG.standard_normal((5, 3))
    found = flatten(ensemble(jitgrad, func, jitgrad.from_numpy(x)))[0]
    wanted = flatten(ensemble(torch, torch.func, torch.from_numpy(x)))[0]
    for a, b in zip(found, wanted, strict=True):
        same(a, b, scale=10)


class Tied:
    """A module with one weight under two names, and a buffer that forward writes."""

    def __new__(cls, t):
        class Net(t.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = t.nn.Linear(3, 3, bias=False)
                self.b = t.nn.Linear(3, 3, bias=False)
                self.b.weight = self.a.weight
                self.register_buffer("count", t.zeros(()))

            def forward(self, x, scale=1.0):
                self.count += 1
                return self.b(self.a(x)) * scale + self.count

        return Net()


def functional_calls(t, f, x, w):
    net = Tied(t)
    with t.no_grad():
        net.a.weight.copy_(t.linspace(0, 1, 9).reshape(3, 3))
    count = t.zeros(()) + 5
    out = [
        f.functional_call(net, {"a.weight": w}, x),
        f.functional_call(net, {"b.weight": w, "count": count}, (x,), {"scale": 2.0}),
        f.functional_call(net, {"a.weight": w}, (x,), tie_weights=False),
        f.functional_call(net, ({"a.weight": w}, {"count": count}), (x,), strict=False),
    ]

    def loss(v, c):  # PyTorch's grad refuses writes to captured tensors
        return f.functional_call(net, {"a.weight": v, "count": c, "other": w}, x).sum()

    grads = f.grad(loss)(w, t.zeros(()))
    return [*out, count, net.count, grads, net(x)]


def test_functional_call():
    x, w = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 3))
    pairs = zip(
        functional_calls(jitgrad, func, *[jitgrad.from_numpy(a).float() for a in (x, w)]),
        functional_calls(torch, torch.func, *[torch.from_numpy(a).float() for a in (x, w)]),
        strict=True,
    )
    for a, b in pairs:
        same(a, b)


@pytest.mark.parametrize(
    "given",
    [
        lambda w: {"c.weight": w},
        lambda w: {"a.weight": w, "b.weight": w + 1},
        lambda w: ({"a.weight": w}, {"a.weight": w}),
        lambda w: [w],
        lambda w: 3,
        lambda w: {"a.weight": 3},
    ],
)
def test_functional_call_errors(given):
    errors = []
    for t, f in ((torch, torch.func), (jitgrad, func)):
        net, w = Tied(t), t.ones(3, 3)
        with pytest.raises(Exception) as caught:
            f.functional_call(net, given(w), t.ones(2, 3))
        assert net.a.weight is net.b.weight  # restored
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


def test_strict_functional_call():
    for t, f in ((torch, torch.func), (jitgrad, func)):
        with pytest.raises(RuntimeError, match="Missing key"):
            f.functional_call(Tied(t), {"a.weight": t.ones(3, 3)}, t.ones(2, 3), strict=True)
