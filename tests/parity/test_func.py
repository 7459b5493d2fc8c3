"""jitgrad.func beside torch.func: every transform, nested every way, eager and under @jit."""

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad
from jitgrad import func
from jitgrad.pytree import flatten

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((3, 4)), RNG.standard_normal(4)


def in_place(t, f, x, w):
    def one(a):
        y = a.clone()
        y[0] = a.sum()
        y[1:].mul_(a[0])
        y += w
        z = t.zeros_like(a)
        z[:2] = y[:2]
        return z.add_(y)

    return (
        f.vmap(one)(x), f.jacrev(one)(x[0]), f.jacfwd(one)(x[0]), f.vmap(f.jacrev(one))(x),
        f.vmap(f.jacfwd(one))(x), f.grad(lambda v: f.vmap(lambda a: one(a * v))(x).sum())(w),
    )  # fmt: skip


def no_grad_inside(t, f, x, w):
    def one(a):
        with t.no_grad():
            c = a**2
        return (a * c).sum()

    outer = f.grad(lambda v: f.vmap(f.grad(lambda a: one(a * v)))(x).sum())(w)
    return f.grad(one)(x), f.vmap(f.grad(one))(x), outer


def no_grad_outside(t, f, x, w):
    with t.no_grad():
        return f.grad(lambda a: (a**2).sum())(x), f.vmap(f.grad(lambda a: (a**2 * w).sum()))(x)


def many_ops(t, f, x, w):
    def one(a):
        b = t.cat([a, w]).reshape(2, 4).transpose(0, 1)
        c = b @ b.t() + t.eye(4, dtype=a.dtype)
        d = t.softmax(c, -1).cumsum(0).flip(0)
        e = t.where(d > 0.3, d, c).logsumexp(1) + d.amax(0) + t.stack([a, w]).prod(0)
        some = e.gather(0, t.tensor([2, 0])), c.sort(-1)[0][:, ::2]
        return *some, e.unfold(0, 2, 1), a.expand(2, 4)

    return f.vmap(one)(x), f.jacrev(one)(x[0]), f.vmap(f.jacrev(one))(x), f.vmap(f.jacfwd(one))(x)


def unpooling(t, f, x, w):
    """A function whose derivative is no op's: straight through, with the values detached."""
    where = t.tensor([[0, 2, 5, 7]])

    def one(a):
        return t.nn.functional.max_unpool1d(a.reshape(1, 4), where, 2).sin()

    outer = f.grad(lambda v: t.stack([one(a * v) for a in x]).sum())(w)
    if t is jitgrad:  # PyTorch has no vmap of it
        outer = f.grad(lambda v: f.vmap(lambda a: one(a * v))(x).sum())(w)
    return f.jvp(one, (w,), (x[0],)), f.jacrev(one)(w), f.jacfwd(one)(w), outer


CASES = {
    "unpooling": unpooling,
    "vmap": lambda t, f, x, w: f.vmap(lambda a: a.sin() * 2)(x),
    "vmap in_dims": lambda t, f, x, w: f.vmap(lambda a: (a * w[:3]).sum(), in_dims=1)(x),
    "vmap last dim": lambda t, f, x, w: f.vmap(lambda a, b: a.sum() * b, in_dims=(-1, None))(x, w),
    "vmap trees": lambda t, f, x, w: f.vmap(
        lambda d, c: {"s": d["x"].sum() * c, "t": (d["w"], c)}, in_dims=({"x": 0, "w": None}, 0)
    )({"x": x.t(), "w": w}, w),
    "vmap nested": lambda t, f, x, w: f.vmap(lambda a: f.vmap(lambda c: c * a.sum())(w))(x),
    "vmap nested, outer captured": lambda t, f, x, w: f.vmap(
        lambda a: f.vmap(lambda b: (a * b).sum() + w)(x)
    )(x),
    "vmap out_dims": lambda t, f, x, w: f.vmap(lambda a: t.outer(a, w), out_dims=2)(x),
    "vmap two out_dims": lambda t, f, x, w: f.vmap(
        lambda a: (t.outer(a, w), a), out_dims=(1, -1)
    )(x),
    "vmap chunks": lambda t, f, x, w: f.vmap(
        lambda a: (t.outer(a, w), a.sum()), out_dims=(1, 0), chunk_size=2
    )(x),
    "vmap detach": lambda t, f, x, w: f.grad(
        lambda v: f.vmap(lambda a: (a * v).detach() * v)(x).sum()
    )(w),
    "grad": lambda t, f, x, w: f.grad(lambda a: (a.sin() * w).sum())(x),
    "grad of grad": lambda t, f, x, w: f.grad(
        lambda a: f.grad(lambda b: (b**3).sum())(a).sin().sum()
    )(x),
    "grad argnums": lambda t, f, x, w: f.grad(lambda a, b: (a * b).sum(), argnums=(1, -2))(x, w),
    "grad of a dict": lambda t, f, x, w: f.grad(lambda d: (d["x"] * d["w"]).sum())(
        {"x": x, "w": w}
    ),
    "grad unused": lambda t, f, x, w: f.grad(lambda a: w.sum())(x),
    "grad_and_value": lambda t, f, x, w: f.grad_and_value(
        lambda a: ((a.sin() * w).sum(), a * 2), has_aux=True
    )(x),
    "per-sample gradients": lambda t, f, x, w: f.vmap(
        f.grad(lambda v, a: ((a * v).sum() - 1) ** 2), in_dims=(None, 0)
    )(w, x),
    "grad of vmap": lambda t, f, x, w: f.grad(
        lambda v: f.vmap(lambda a: (a * v).sum().tanh())(x).sum()
    )(w),
    "grad of vmap of grad": lambda t, f, x, w: f.grad(
        lambda v: f.vmap(f.grad(lambda a: (a * v).sum().tanh()))(x).sum()
    )(w),
    "vmap of grad of vmap": lambda t, f, x, w: f.vmap(
        f.grad(lambda a: f.vmap(lambda b: (a * b).sum().tanh())(x).sum())
    )(x),
    "jvp": lambda t, f, x, w: f.jvp(lambda a: a.sin() * w, (x,), (x * 2,)),
    "jvp trees": lambda t, f, x, w: f.jvp(
        lambda d, b: {"y": d["x"] * b}, ({"x": x}, w), ({"x": x * 2}, w + 1)
    ),
    "jvp detach": lambda t, f, x, w: f.jvp(lambda a: a.detach() * a.sin() * w, (x,), (x * 2,)),
    "jvp of grad": lambda t, f, x, w: f.jvp(
        f.grad(lambda a: (a.sin() * w).sum()), (x,), (x * 2,)
    ),
    "grad of jvp": lambda t, f, x, w: f.grad(
        lambda a: f.jvp(lambda b: b.sin() * w, (a,), (x * 2,))[1].sum()
    )(x),
    "jvp of jvp": lambda t, f, x, w: f.jvp(
        lambda a: f.jvp(lambda b: b.sin() * a * w, (a,), (x * 2,))[1], (x,), (x + 1,)
    ),
    "vmap of jvp": lambda t, f, x, w: f.vmap(
        lambda a: f.jvp(lambda b: b.sin() * a, (w,), (a * 2,))[1]
    )(x),
    "jvp of vmap": lambda t, f, x, w: f.jvp(
        lambda a: f.vmap(lambda b: (b.sin() * a).sum())(x), (w,), (w * 2,)
    ),
    "jvp of vmap of grad": lambda t, f, x, w: f.jvp(
        lambda a: f.vmap(f.grad(lambda b: (b.sin() * a).sum()))(x), (w,), (w * 2,)
    ),
    "vmap of jvp of grad": lambda t, f, x, w: f.vmap(
        lambda a: f.jvp(f.grad(lambda b: (b.sin() * a * w).sum()), (w,), (a,))[1]
    )(x),
    "jacrev": lambda t, f, x, w: f.jacrev(lambda a: a.sin() @ w)(x),
    "jacrev chunks": lambda t, f, x, w: f.jacrev(lambda a: a.sin() * w, chunk_size=5)(x),
    "jacfwd": lambda t, f, x, w: f.jacfwd(lambda a: a.sin() @ w)(x),
    "jacrev trees": lambda t, f, x, w: f.jacrev(
        lambda a, b: {"u": a.sin() @ b, "v": b * 2}, argnums=(0, 1)
    )(x, w),
    "jacfwd trees": lambda t, f, x, w: f.jacfwd(
        lambda a, b: {"u": a.sin() @ b, "v": b * 2}, argnums=(0, 1)
    )(x, w),
    "jac aux": lambda t, f, x, w: (
        f.jacrev(lambda a: (a.sin(), a * 2), has_aux=True)(w),
        f.jacfwd(lambda a: (a.sin(), w * 2), has_aux=True)(w),
    ),
    "hessian": lambda t, f, x, w: f.hessian(lambda a: (a.sin() @ w).prod())(x),
    "jacrev of jacfwd": lambda t, f, x, w: f.jacrev(f.jacfwd(lambda a: (a.sin() @ w).prod()))(x),
    "jacrev of jacrev": lambda t, f, x, w: f.jacrev(f.jacrev(lambda a: (a.sin() @ w).prod()))(x),
    "jacfwd of jacfwd": lambda t, f, x, w: f.jacfwd(f.jacfwd(lambda a: (a.sin() @ w).prod()))(x),
    "vmap of hessian": lambda t, f, x, w: f.vmap(f.hessian(lambda a: (a * w).sum().sin()))(x),
    "hessian of vmap": lambda t, f, x, w: f.hessian(
        lambda v: f.vmap(lambda a: (a * v).sum().sin())(x).sum()
    )(w),
    "vjp": lambda t, f, x, w: f.vjp(lambda a, b: a.sin() * b, x, w)[1](x),
    "vmap of vjp_fn": lambda t, f, x, w: f.vmap(f.vjp(lambda a: a.sin() * w, x)[1])(
        t.stack([x, x + 1])
    ),
    "grad of vjp": lambda t, f, x, w: f.grad(
        lambda a: f.vjp(lambda b: b.sin() * w, a)[1](x * 2)[0].sum()
    )(x),
    "many ops": many_ops,
    "in place": in_place,
    "no_grad inside": no_grad_inside,
    "no_grad outside": no_grad_outside,
}  # fmt: skip


def leaves(result):
    return [y for y in flatten(result)[0] if hasattr(y, "dtype")]


def theirs(code):
    return leaves(code(torch, torch.func, torch.from_numpy(X.copy()), torch.from_numpy(W.copy())))


@pytest.mark.parametrize("name", CASES)
def test_transforms(name):
    code = CASES[name]
    wanted = theirs(code)

    def run(x, w):
        return code(jitgrad, func, x, w)

    compiled = jitgrad.jit(run, fallback="error")
    args = [jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy())]
    for form in (run, compiled, compiled):
        found = leaves(form(*args))
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"{name}, result {i}", 10)
            assert not a.requires_grad
    assert compiled.stats.hits == 1


ERRORS = {
    "in place, the argument": lambda t, f, x, w: f.grad(lambda a: a.sin_().sum())(x),
    "in place, each argument": lambda t, f, x, w: f.vmap(f.grad(lambda a: a.sin_().sum()))(x),
    "in place, a view of it": lambda t, f, x, w: f.grad(lambda a: (a[0].mul_(2) + a).sum())(x),
    "in place": lambda t, f, x, w: f.vmap(lambda a: t.zeros(3, dtype=a.dtype).add_(a[:3]))(x),
    "item": lambda t, f, x, w: f.vmap(lambda a: a.sum().item())(x),
    "if": lambda t, f, x, w: f.vmap(lambda a: a if a.sum() > 0 else -a)(x),
    "random": lambda t, f, x, w: f.vmap(lambda a: a + t.rand(4))(x),
    "randomness": lambda t, f, x, w: f.vmap(lambda a: a, randomness="none")(x),
    "no scalar": lambda t, f, x, w: f.grad(lambda a: a)(x),
    "no tensor": lambda t, f, x, w: f.grad(lambda a: 1.0)(x),
    "no aux": lambda t, f, x, w: f.grad(lambda a: a.sum(), has_aux=True)(x),
    "integers": lambda t, f, x, w: f.grad(lambda a: a.sum())(t.arange(3)),
    "argnums": lambda t, f, x, w: f.grad(lambda a: a.sum(), argnums=1)(x),
    "argnums empty": lambda t, f, x, w: f.grad(lambda a: a.sum(), argnums=())(x),
    "argnums twice": lambda t, f, x, w: f.grad(lambda a: a.sum(), argnums=(0, 0))(x),
    "in_dims": lambda t, f, x, w: f.vmap(lambda a: a, in_dims=3)(x),
    "in_dims' structure": lambda t, f, x, w: f.vmap(lambda a: a, in_dims=(0, 0))(x),
    "in_dims None": lambda t, f, x, w: f.vmap(lambda a: a, in_dims=None)(x),
    "nothing mapped": lambda t, f, x, w: f.vmap(lambda a: a, in_dims=(None,))(x),
    "no inputs": lambda t, f, x, w: f.vmap(lambda: w)(),
    "a number mapped": lambda t, f, x, w: f.vmap(lambda a: a)(3),
    "sizes": lambda t, f, x, w: f.vmap(lambda a, b: a)(x, w),
    "out_dims": lambda t, f, x, w: f.vmap(lambda a: a, out_dims="x")(x),
    "out_dims' structure": lambda t, f, x, w: f.vmap(lambda a: (a, a), out_dims=(0, 0, 0))(x),
    "out_dim None": lambda t, f, x, w: f.vmap(lambda a: a, out_dims=None)(x),
    "no tensor out": lambda t, f, x, w: f.vmap(lambda a: 1)(x),
    "chunk_size": lambda t, f, x, w: f.vmap(lambda a: a, chunk_size=0)(x),
    "cotangents": lambda t, f, x, w: f.vjp(lambda a: a, x)[1]((x, x)),
    "integer outputs": lambda t, f, x, w: f.vjp(lambda a: a > 0, x),
    "primals": lambda t, f, x, w: f.jvp(lambda a: a, x, x),
    "tangents": lambda t, f, x, w: f.jvp(lambda a: a, (x,), (x, x)),
    "tangent's shape": lambda t, f, x, w: f.jvp(lambda a: a, (x,), (w,)),
    "jvp strict": lambda t, f, x, w: f.jvp(lambda a: w, (x,), (x,), strict=True),
    "jacrev chunk_size": lambda t, f, x, w: f.jacrev(lambda a: a, chunk_size=0)(x),
    "linearize": lambda t, f, x, w: f.linearize(lambda a: a.sin(), x)[1](w),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    code = ERRORS[name]
    with pytest.raises(Exception) as wanted:
        theirs(code)
    with pytest.raises(type(wanted.value)):
        code(jitgrad, func, jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy()))


def linear(t, f, x, w):
    return f.linearize(lambda v, b: {"y": v.sin() * b}, x, w)[1](x * 2, w + 1)


def linear_of_many(t, f, x, w):
    return f.vmap(f.linearize(lambda v: v.sin() * w, x)[1])(t.stack([x, x + 1]))


@pytest.mark.parametrize("code", [linear, linear_of_many])
def test_linearize(code):
    found = code(jitgrad, func, jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy()))
    for a, b in zip(leaves(found), theirs(code), strict=True):
        same(a, b, scale=10)


def test_the_tape_goes_through():
    """backward() through transforms of tensors that require grad, captured and passed."""

    def code(t, f, x, w):
        x.requires_grad_()
        w.requires_grad_()
        y = f.grad(lambda a: (a**3 * w).sum())(x).sum()
        y = y + f.vmap(f.grad(lambda a: (a**3 * w).sum()))(x).sum()
        y = y + f.jvp(lambda a: a.sin() * w, (x,), (x * 2,))[1].sum()
        y = y + f.hessian(lambda v: (v**3).sum() * x.sum())(w).sum()
        y.backward()
        return x.grad, w.grad

    found = code(jitgrad, func, jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy()))
    for a, b in zip(found, theirs(code), strict=True):
        same(a, b, scale=10)


def test_writes_reach_the_argument():
    def code(t, f, x, w):
        def one(a):
            a[1:].mul_(2)
            return a.sum()

        return f.vmap(one, in_dims=1)(x), x

    found = code(jitgrad, func, jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy()))
    for a, b in zip(found, theirs(code), strict=True):
        same(a, b)
