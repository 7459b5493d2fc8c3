"""Random nests of transforms against the plain tape and loops.

A program is a random function of vectors (views, writes, detach, captured values) under one to
three transforms. The reference has each transform once more, from its definition: vmap as a loop,
Jacobians row by row with autograd.grad, jvp as Jacobian times tangent.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import func

Program = Any


# -- the reference -------------------------------------------------------------------------------
def _leaf(a: Any) -> Any:
    """a as an argument of its own, on the tape of a."""
    return a.clone() if a.requires_grad else a.detach().clone().requires_grad_()


def _rows(f: Any, a: Any) -> Any:
    own = _leaf(a)
    with jg.enable_grad():
        y = f(own)
        rows = [
            jg.autograd.grad(e, own, create_graph=True, allow_unused=True, materialize_grads=True)[
                0
            ]
            if e.requires_grad
            else jg.zeros_like(a)
            for e in y.reshape(-1).unbind(0)
        ]
    return jg.stack(rows)


def _vjp(f: Any, a: Any) -> Any:
    return f(_leaf(a)), lambda g: ((g.unsqueeze(1) * _rows(f, a)).sum(0),)


def _jvp(f: Any, primals: Any, tangents: Any) -> Any:
    (a,), (t,) = primals, tangents
    return f(a), _rows(f, a) @ t


def _vmap(f: Any, in_dims: Any = 0, out_dims: int = 0) -> Any:
    def mapped(*args: Any) -> Any:
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        rows = [
            f(*[a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)])
            for i in range(size)
        ]
        return jg.stack(rows, out_dims)

    return mapped


REFERENCE = SimpleNamespace(
    grad=lambda f: lambda a: _rows(lambda b: f(b).reshape(1), a)[0],
    vjp=_vjp,
    jvp=_jvp,
    vmap=_vmap,
    jacrev=lambda f: lambda a: _rows(f, a),
    jacfwd=lambda f: lambda a: _rows(f, a),
)


# -- programs ------------------------------------------------------------------------------------
def _in_place(x: Any, c: Any) -> Any:
    y = x + c * 0  # differs between examples where x or c does, as what is written must
    y[1:].mul_(c[0])
    y[0] = x.sum()
    y += c
    return y


def _into_zeros(x: Any, c: Any) -> Any:
    z = jg.zeros_like(x * c)
    z.copy_(c * x)
    z[:2] += x[1:]
    return z.exp_()


STEPS = {
    "sin": lambda x, c: x.sin(),
    "times": lambda x, c: x * c,
    "cat": lambda x, c: jg.cat([x[1:], c[:1]]),
    "in place": _in_place,
    "into zeros": _into_zeros,
    "views": lambda x, c: x.reshape(1, 3).t().reshape(3).flip(0) * 1.5,
    "detach": lambda x, c: x * x.detach().cos() + c.detach(),
    "sum": lambda x, c: x + x.sum() * 0.1,
    "where": lambda x, c: jg.where(x > c, x, c * x),
    "index": lambda x, c: x[jg.tensor([2, 0, 1])] * x[0],
    "outer": lambda x, c: jg.outer(x, c) @ x,
    "norm": lambda x, c: x / (x * x + 1).sum().sqrt(),
    "cumsum": lambda x, c: x.cumsum(0) * c,
    "sort": lambda x, c: x.sort()[0] * c,
    "softmax": lambda x, c: x.softmax(0) + c,
}


def base(rng: random.Random) -> Program:
    steps = [(STEPS[rng.choice(list(STEPS))], rng.randint(0, 5)) for _ in range(rng.randint(2, 5))]

    def f(lib: Any, x: Any, captured: list[Any]) -> Any:
        for step, i in steps:
            x = step(x, captured[i % len(captured)])
        return x

    return f


def under(kind: str, inner: Program) -> Program:
    def f(t: Any, a: Any, caps: list[Any]) -> Any:
        if kind == "grad":
            return t.grad(lambda x: inner(t, x, [*caps, x]).sum())(a)
        if kind == "vmap":
            return t.vmap(lambda x: inner(t, x, caps))(jg.stack([a, a * 2, caps[0]])).sum(0)
        if kind == "vmap captured":
            return t.vmap(lambda c: inner(t, a, [c, *caps]))(jg.stack([caps[0], a * 2])).sum(0)
        if kind == "vmap dims":
            both = t.vmap(lambda x, y: inner(t, x, [*caps, y]), in_dims=(1, None), out_dims=1)
            return both(jg.outer(a, caps[-1]), a).sum(1)
        if kind == "jvp":
            return t.jvp(lambda x: inner(t, x, caps), (a,), (caps[0],))[1]
        if kind == "jvp captured":
            return t.jvp(lambda c: inner(t, a, [c, *caps]), (caps[-1],), (a,))[1]
        if kind == "jacrev":
            return t.jacrev(lambda x: inner(t, x, caps))(a).sum(0)
        if kind == "jacfwd":
            return t.jacfwd(lambda x: inner(t, x, [x, *caps]))(a).sum(1)
        return t.vjp(lambda x: inner(t, x, caps), a)[1](caps[0])[0]

    return f


KINDS = ("grad", "vmap", "vmap captured", "vmap dims", "jvp", "jvp captured", "jacrev", "jacfwd",
         "vjp")  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_random_nests(seed: int) -> None:
    rng = random.Random(seed)
    program = base(rng)
    for _ in range(rng.randint(1, 3)):
        program = under(rng.choice(KINDS), program)
    values = np.random.default_rng(seed).standard_normal((3, 3)) * 0.7
    taped = rng.random() < 0.5

    def run(t: Any, *rows: Any) -> list[Any]:
        a, *caps = [r.detach().clone().requires_grad_(taped) for r in rows]
        y = program(t, a, caps)
        if not taped:
            return [y]
        if not y.requires_grad:
            return [y, *[jg.zeros_like(r) for r in rows]]
        grads = jg.autograd.grad(y.sum(), [a, *caps], allow_unused=True, materialize_grads=True)
        return [y.detach(), *grads]

    rows = [jg.from_numpy(v.copy()) for v in values]
    wanted = [w.detach().numpy() for w in run(REFERENCE, *rows)]
    compiled = jg.jit(lambda *rows: run(func, *rows), fallback="error")
    forms = [lambda *rows: run(func, *rows)]
    if seed % 4 == 0:
        forms += [compiled, compiled]
    for form in forms:
        found = [y.detach().numpy() for y in form(*rows)]
        for x, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, w, rtol=1e-8, atol=1e-8)
    if seed % 4 == 0:
        assert compiled.stats.hits == 1, compiled.explain_last_miss()
