"""autograd.Function beside PyTorch's: contexts, marks, vmap, forward mode, transforms over it."""

import numpy as np
import pytest
from parity.compare import same, torch

import jitgrad
import jitgrad.autograd
from jitgrad import func
from jitgrad.pytree import flatten

RNG = np.random.default_rng(5)
X, W = RNG.standard_normal((3, 4)), RNG.standard_normal(4)


def cube(t):
    """One ctx for all, with a derivative that is not the true one (factor 4), to see it used."""

    class Cube(t.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, w):
            return x**3 * w, x + 1

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, w = inputs
            ctx.save_for_backward(x, w)
            ctx.save_for_forward(x, w)
            ctx.factor = 4

        @staticmethod
        def backward(ctx, g, h):
            x, w = ctx.saved_tensors
            gw = g * x**3
            if gw.ndim > w.ndim:
                gw = gw.sum(0)
            return g * ctx.factor * x * x * w + h, gw

        @staticmethod
        def jvp(ctx, dx, dw):
            x, w = ctx.saved_tensors
            return ctx.factor * x * x * w * dx + x**3 * dw, dx

    return Cube


def sorting(t):
    """A vmap staticmethod that says how."""

    class Sorting(t.autograd.Function):
        @staticmethod
        def forward(x, scale):
            return x.sort(-1)[0] * scale

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0] * ctx.scale, None

        @staticmethod
        def vmap(info, in_dims, x, scale):
            assert info.batch_size == 3 and info.randomness == "error" and in_dims[1] is None
            return Sorting.apply(x.movedim(in_dims[0], 0), scale), 0

    return Sorting


CASES = {
    "grad": lambda t, f, x, w: f.grad(lambda a: cube(t).apply(a, w)[0].sum())(x),
    "both outputs": lambda t, f, x, w: f.grad(
        lambda a, b: sum(y.sum() for y in cube(t).apply(a, b)), argnums=(0, 1)
    )(x, w),
    "second": lambda t, f, x, w: f.grad(
        lambda a: f.grad(lambda b: cube(t).apply(b, w)[0].sin().sum())(a).sum()
    )(x),
    "vmap": lambda t, f, x, w: f.vmap(lambda a: cube(t).apply(a, w))(x),
    "vmap of grad": lambda t, f, x, w: f.vmap(
        f.grad(lambda a, b: cube(t).apply(a, b)[0].sum(), argnums=(0, 1)), in_dims=(0, None)
    )(x, w),
    "grad of vmap": lambda t, f, x, w: f.grad(
        lambda a, b: sum(y.sin().sum() for y in f.vmap(lambda c: cube(t).apply(c, b))(a)),
        argnums=(0, 1),
    )(x, w),
    "grad of vmap of grad": lambda t, f, x, w: f.grad(
        lambda b: f.vmap(f.grad(lambda c: cube(t).apply(c, b)[0].sin().sum()))(x).sum()
    )(w),
    "jvp": lambda t, f, x, w: f.jvp(lambda a, b: cube(t).apply(a, b), (x, w), (x * 2, w + 1)),
    "jvp of one": lambda t, f, x, w: f.jvp(lambda a: cube(t).apply(a, w), (x,), (x * 2,)),
    "vmap of jvp": lambda t, f, x, w: f.vmap(
        lambda a: f.jvp(lambda c: cube(t).apply(c, w)[0], (a,), (a * 2,))
    )(x),
    "jvp of vmap": lambda t, f, x, w: f.jvp(
        lambda b: f.vmap(lambda c: cube(t).apply(c, b)[0])(x), (w,), (w + 1,)
    ),
    "jacrev": lambda t, f, x, w: f.jacrev(lambda a: cube(t).apply(a, w)[0])(w),
    "jacfwd": lambda t, f, x, w: f.jacfwd(lambda a: cube(t).apply(a, w)[0])(w),
    "own vmap": lambda t, f, x, w: f.vmap(lambda a: sorting(t).apply(a, 3.0))(x),
    "own vmap in grad": lambda t, f, x, w: f.grad(
        lambda b: f.vmap(lambda a: sorting(t).apply(a * b, 3.0))(x).sin().sum()
    )(w),
    "own vmap of grad": lambda t, f, x, w: f.vmap(
        f.grad(lambda a: sorting(t).apply(a, 3.0).sin().sum())
    )(x),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_transforms(name):
    code = CASES[name]
    wanted = flatten(code(torch, torch.func, *map(torch.from_numpy, (X.copy(), W.copy()))))[0]

    def run(x, w):
        return code(jitgrad, func, x, w)

    compiled = jitgrad.jit(run, fallback="error")
    args = [jitgrad.from_numpy(X.copy()), jitgrad.from_numpy(W.copy())]
    for form in (run, compiled, compiled):
        found = flatten(form(*args))[0]
        assert len(found) == len(wanted)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"{name}, result {i}", 10)


def dirty(t):
    class Double(t.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 20  # told from the true one

    return Double


def test_dirty():
    found = []
    for t in (jitgrad, torch):
        x = t.from_numpy(X.copy()).requires_grad_()
        y = x * 3
        z = dirty(t).apply(y)
        assert z is y and y.grad_fn.name().startswith("Double")
        (y.sin() + z).sum().backward()
        v = t.from_numpy(X.copy()).requires_grad_()
        base = v * 3
        part = base[1]
        dirty(t).apply(part)
        base.cos().sum().backward()
        found.append((y.detach(), x.grad, base.detach(), v.grad))
    for a, b in zip(*found, strict=True):
        same(a, b, scale=10)
    for t in (jitgrad, torch):
        with pytest.raises(RuntimeError, match="leaf Variable"):
            dirty(t).apply(t.ones(2, requires_grad=True))


def marks(t):
    seen = []

    class Both(t.autograd.Function):
        @staticmethod
        def forward(ctx, x, n, y=None):
            a, b = x * n, (x > 0).to(x.dtype)
            ctx.mark_non_differentiable(b)
            ctx.set_materialize_grads(False)
            c = x + 0 if y is None else x + y
            ctx.save_for_backward(x, None, a)
            ctx.n = n
            return a, b, c, x

        @staticmethod
        def backward(ctx, ga, gb, gc, gx):
            seen.append((ctx.needs_input_grad, [g is None for g in (ga, gb, gc, gx)]))
            x, none, a = ctx.saved_tensors
            assert none is None
            total = None
            for g in (ga, gc, gx):
                if g is not None:
                    total = g * (x + a) if total is None else total + g
            return total, None, gc

    return Both, seen


def test_marks():
    found = []
    for t in (jitgrad, torch):
        Both, seen = marks(t)
        x = t.from_numpy(X.copy()).requires_grad_()
        y = t.from_numpy(X.copy())
        a, b, c, same_x = Both.apply(x, 3, y)
        assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, True)
        assert same_x is not x and same_x.grad_fn is a.grad_fn
        (a.sum() + same_x.sum()).backward()
        a, b, c, same_x = Both.apply(x, 3, y.clone().requires_grad_())
        c.sum().backward()
        found.append((x.grad, seen))
    same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def once(t):
    class Square(t.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @t.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

    return Square


def test_once_differentiable():
    for t in (jitgrad, torch):
        x = t.ones(3, requires_grad=True)
        (g,) = t.autograd.grad((once(t).apply(x) ** 2).sum(), x, create_graph=True)
        assert g.tolist() == [4.0] * 3
        with pytest.raises(RuntimeError, match="once_differentiable"):
            g.sum().backward()


@pytest.mark.parametrize("name", ["no jvp", "count", "shape", "jvp shape"])
def test_errors(name):
    kinds = []
    for t, f in ((torch, torch.func), (jitgrad, func)):

        class Bad(t.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x, y):
                return x * y

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

            @staticmethod
            def backward(ctx, g):
                return (g,) if name == "count" else (g.sum(0), None)

        class Wrong(Bad):
            @staticmethod
            def jvp(ctx, dx, dy):
                return dx.sum()

        x = t.ones(3, 2, requires_grad=True)
        with pytest.raises(Exception) as caught:
            if name == "no jvp":
                f.jvp(lambda a: Bad.apply(a, a), (x.detach(),), (x.detach(),))
            elif name == "jvp shape":
                f.jvp(lambda a: Wrong.apply(a, a), (x.detach(),), (x.detach(),))
            else:
                Bad.apply(x, 2.0).sum().backward()
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1] or issubclass(kinds[1], kinds[0]), kinds


def test_vjp_is_another_name_of_backward():
    for t in (jitgrad, torch):

        class Twice(t.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def vjp(ctx, g):
                return g * 3

        class Both(Twice):
            @staticmethod
            def backward(ctx, g):
                return g

        x = t.ones(2, requires_grad=True)
        Twice.apply(x).sum().backward()
        assert x.grad.tolist() == [3.0, 3.0]
        with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
            Both.apply(x).sum().backward()
