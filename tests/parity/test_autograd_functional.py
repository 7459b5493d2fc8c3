"""autograd.functional and autograd.forward_ad beside PyTorch's."""

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad
from jitgrad.pytree import flatten

RNG = np.random.default_rng(3)
X, W = RNG.standard_normal((2, 3)), RNG.standard_normal(3)


def one(x):
    return (x.sin() @ x.new_tensor([1.0, 2.0, 3.0])).exp()


def two(x, w):
    return x.sin() * w, (x @ w).exp()


def scalar(x):
    return (x**3).sum() * x.prod()


def scalar2(x, w):
    return ((x @ w) ** 3).sum()


def unused(x, w):
    return x.sum() * 2, w.sin()


def linear(x):
    return x.sum()


CASES = {
    "vjp": lambda f, x, w: f.vjp(one, x, w[:2]),
    "vjp of a scalar": lambda f, x, w: f.vjp(scalar, x),
    "vjp of tuples": lambda f, x, w: f.vjp(two, (x, w), (x, w[:2])),
    "vjp unused": lambda f, x, w: f.vjp(unused, (x, w), (x.sum(), w)),
    "jvp": lambda f, x, w: f.jvp(one, x, x * 2),
    "jvp of tuples": lambda f, x, w: f.jvp(two, (x, w), (x * 2, w + 1)),
    "jvp of one element": lambda f, x, w: f.jvp(scalar, x[:1, :1]),
    "vhp": lambda f, x, w: f.vhp(scalar, x, x + 1),
    "vhp of tuples": lambda f, x, w: f.vhp(scalar2, (x, w), (x + 1, w)),
    "hvp": lambda f, x, w: f.hvp(scalar, x, x + 1),
    "hvp of tuples": lambda f, x, w: f.hvp(scalar2, (x, w), (x + 1, w)),
    "hvp linear": lambda f, x, w: f.hvp(linear, x, x),
    "jacobian": lambda f, x, w: f.jacobian(one, x),
    "jacobian of tuples": lambda f, x, w: f.jacobian(two, (x, w)),
    "jacobian unused": lambda f, x, w: f.jacobian(unused, (x, w)),
    "jacobian vectorized": lambda f, x, w: f.jacobian(two, (x, w), vectorize=True),
    "jacobian vectorized unused": lambda f, x, w: f.jacobian(unused, (x, w), vectorize=True),
    "jacobian forward": lambda f, x, w: f.jacobian(
        two, (x, w), vectorize=True, strategy="forward-mode"
    ),
    "jacobian forward of one": lambda f, x, w: f.jacobian(
        one, x, vectorize=True, strategy="forward-mode"
    ),
    "jacobian strict": lambda f, x, w: f.jacobian(two, (x, w), strict=True),
    "hessian": lambda f, x, w: f.hessian(scalar, x),
    "hessian of tuples": lambda f, x, w: f.hessian(scalar2, (x, w)),
    "hessian vectorized": lambda f, x, w: f.hessian(scalar2, (x, w), vectorize=True),
    "hessian forward": lambda f, x, w: f.hessian(
        scalar2, (x, w), vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "hessian forward of one": lambda f, x, w: f.hessian(
        scalar, x, vectorize=True, outer_jacobian_strategy="forward-mode"
    ),
    "hessian linear": lambda f, x, w: f.hessian(linear, x),
}  # fmt: skip


def results(t, code, grad=False):
    x, w = t.from_numpy(X.copy()), t.from_numpy(W.copy())
    return flatten(code(t.autograd.functional, x, w))[0]


@pytest.mark.parametrize("name", CASES)
def test_functional(name):
    code = CASES[name]
    wanted = results(torch, code)

    def run(x, w):
        return code(jitgrad.autograd.functional, x, w)

    compiled = jitgrad.jit(run, fallback="error")
    args = (jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy()))
    for form in (run, compiled, compiled):
        found = flatten(form(*args))[0]
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"{name}, result {i}", 20)
            assert not a.requires_grad
    assert compiled.stats.hits == 1, compiled.explain_last_miss()


GRAPHS = {
    "vjp": lambda f, x, w: f.vjp(two, (x, w), (x * 2, w[:2]), create_graph=True),
    "jvp": lambda f, x, w: f.jvp(two, (x, w), (x * 2, w + 1), create_graph=True),
    "vhp": lambda f, x, w: f.vhp(scalar2, (x, w), (x + 1, w), create_graph=True),
    "hvp": lambda f, x, w: f.hvp(scalar2, (x, w), (x + 1, w), create_graph=True),
    "jacobian": lambda f, x, w: f.jacobian(two, (x, w), create_graph=True),
    "jacobian vectorized": lambda f, x, w: f.jacobian(
        two, (x, w), create_graph=True, vectorize=True
    ),
    "hessian": lambda f, x, w: f.hessian(scalar2, (x, w), create_graph=True),
    "hessian strict": lambda f, x, w: f.hessian(scalar, x, create_graph=True, strict=True),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_create_graph(name):
    found = []
    for t in (jitgrad, torch):
        x = t.from_numpy(X.copy()).requires_grad_()
        w = t.from_numpy(W.copy()).requires_grad_()
        ys = flatten(GRAPHS[name](t.autograd.functional, x, w))[0]
        sum((y * y.detach().cos()).sum() for y in ys).backward()
        found.append([*ys, x.grad] + ([] if w.grad is None else [w.grad]))
    assert len(found[0]) == len(found[1])
    for i, (a, b) in enumerate(zip(*found, strict=True)):
        same(a, b, f"result {i}", 20)


ERRORS = {
    "no tensor": lambda f, x, w: f.vjp(one, 3.0, w),
    "no tensor out": lambda f, x, w: f.vjp(lambda a: 3.0, x, w),
    "v missing": lambda f, x, w: f.vjp(one, x),
    "v's shape": lambda f, x, w: f.vjp(one, x, w),
    "v's length": lambda f, x, w: f.jvp(two, (x, w), (x,)),
    "strict vjp": lambda f, x, w: f.vjp(unused, (x, w), (x.sum(), x), strict=True),
    "strict outputs": lambda f, x, w: f.vjp(lambda a: w, x, w, strict=True),
    "strict jacobian": lambda f, x, w: f.jacobian(unused, (x, w), strict=True),
    "strict jvp": lambda f, x, w: f.jvp(linear, x, x, strict=True, create_graph=True),
    "strict hessian": lambda f, x, w: f.hessian(linear, x, strict=True),
    "strict hvp": lambda f, x, w: f.hvp(linear, x, x, strict=True),
    "strict vectorized": lambda f, x, w: f.jacobian(one, x, strict=True, vectorize=True),
    "forward not vectorized": lambda f, x, w: f.jacobian(one, x, strategy="forward-mode"),
    "forward create_graph": lambda f, x, w: f.jacobian(
        one, x, create_graph=True, strategy="forward-mode"
    ),
    "forward strict": lambda f, x, w: f.jacobian(
        one, x, strict=True, vectorize=True, strategy="forward-mode"
    ),
    "strategy": lambda f, x, w: f.jacobian(one, x, strategy="sideways"),
    "no scalar": lambda f, x, w: f.hessian(one, x),
    "two outputs": lambda f, x, w: f.hvp(two, (x, w), (x, w)),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    with pytest.raises(Exception) as wanted:
        results(torch, ERRORS[name])
    with pytest.raises(type(wanted.value)):
        results(jitgrad, ERRORS[name])


def dual(t):
    ad = t.autograd.forward_ad
    x = t.from_numpy(X.copy()).requires_grad_()
    w = t.from_numpy(W.copy())
    with ad.dual_level():
        a = ad.make_dual(x, x.detach() * 2)
        y = (a.sin() * w).cumsum(0)
        b = a.clone()
        b[0] = 0
        c = a.detach() * a
        out = [*ad.unpack_dual(y), *ad.unpack_dual(b.sum()), *ad.unpack_dual(c)]
        (g,) = t.autograd.grad(y.exp().sum(), x, create_graph=True)
        out += [*ad.unpack_dual(g)]
        none = ad.unpack_dual(w).tangent
        p = ad.unpack_dual(y).primal
        assert ad.unpack_dual(p * 2).tangent is None
        z = t.autograd.forward_ad.unpack_dual(y)
        out += [z.primal, z.tangent]
    assert none is None and ad.unpack_dual(y).tangent is None
    (second,) = t.autograd.grad(out[1].sum(), x)  # reverse over forward
    return [*out, second]


def test_forward_ad():
    for i, (a, b) in enumerate(zip(dual(jitgrad), dual(torch), strict=True)):
        same(a, b, f"result {i}", 10)


def test_forward_ad_of_a_module():
    found = []
    for t in (jitgrad, torch):
        ad = t.autograd.forward_ad
        net = t.nn.Linear(3, 2).double()
        with t.no_grad():
            net.weight.copy_(t.from_numpy(X.copy()))
            net.bias.copy_(t.ones(2))
        params = dict(net.named_parameters())
        with ad.dual_level():
            for name, p in params.items():
                delattr(net, name)
                setattr(net, name, ad.make_dual(p, p.detach().cos()))
            found.append(ad.unpack_dual(net(t.from_numpy(X.copy())).tanh()).tangent)
    same(*found)


@pytest.mark.parametrize("name", ["level", "nested", "shape", "integer", "exit"])
def test_forward_ad_errors(name):
    kinds = []
    for t in (torch, jitgrad):
        ad, x = t.autograd.forward_ad, t.ones(2)
        with pytest.raises(Exception) as caught:
            if name == "level":
                ad.make_dual(x, x)
            elif name == "exit":
                ad.exit_dual_level(level=3)
            else:
                with ad.dual_level():
                    if name == "nested":
                        with ad.dual_level():
                            pass
                    elif name == "shape":
                        ad.make_dual(x, t.ones(3))
                    else:
                        ad.make_dual(t.arange(2), t.arange(2))
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1]


def test_entering_a_level_by_hand():
    ad = jitgrad.autograd.forward_ad
    ad.enter_dual_level()
    a = ad.make_dual(jitgrad.ones(2), jitgrad.ones(2) * 3)
    assert ad.unpack_dual(a * 2).tangent.tolist() == [6.0, 6.0]
    ad.exit_dual_level()
    assert ad.unpack_dual(a).tangent is None
