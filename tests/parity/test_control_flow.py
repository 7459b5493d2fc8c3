"""cond, while_loop and scan beside PyTorch's (which runs them through its own compiler)."""

import importlib

import numpy as np
import pytest
from parity.compare import LIBS, OURS, THEIRS, raises_alike, same

import jitgrad

rng = np.random.default_rng(2)
X = rng.standard_normal((5, 2, 3)).astype(np.float32)


def functions(lib):
    if lib is THEIRS:
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop

        return lib.t.cond, while_loop, scan
    return lib.t.cond, lib.t.while_loop, lib.t.scan


def results(code):
    out = []
    for lib in LIBS:
        try:
            out.append(code(lib, *functions(lib), lib.t.from_numpy(X.copy())))
        except Exception as error:
            if lib is THEIRS and "dynamo" in f"{type(error)}{error}".lower():
                pytest.skip(f"PyTorch cannot run it here: {type(error).__name__}")
            raise
    return out


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(dim, reverse):
    def code(lib, cond, while_loop, scan, x):
        def step(carry, x):
            new = lib.t.tanh(carry["h"] + x)
            return {"h": new}, new * 2

        start = {"h": lib.t.zeros([d for k, d in enumerate(x.shape) if k != dim])}
        last, ys = scan(step, start, x, dim=dim, reverse=reverse)
        return last["h"], ys

    for ours, theirs in zip(*results(code), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    def code(lib, cond, while_loop, scan, x):
        (x,) = (sign * x.abs(),)
        return cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x - 1,), (x,))

    ours, theirs = results(code)
    same(ours[0], theirs[0])


def test_while_loop():
    def code(lib, cond, while_loop, scan, x):
        start = (lib.t.zeros((), dtype=lib.t.int64), x)
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), start)

    for ours, theirs in zip(*results(code), strict=True):
        same(ours, theirs)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(n, reverse):
    """A linear recurrence, as state space models have it: values and gradients, eager, compiled."""
    found = []
    for lib, compiled in ((OURS, False), (OURS, True), (THEIRS, False)):
        module = importlib.import_module(f"{lib.t.__name__}._higher_order_ops.associative_scan")
        a, b = (lib.t.from_numpy(x) for x in recurrence(n))

        def run(a, b):
            a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
            x, y = module.associative_scan(  # noqa: B023
                lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b), dim=1, reverse=reverse,
                combine_mode="generic",
            )  # fmt: skip
            return x, y, *lib.t.autograd.grad((x.sin() + y * y).sum(), (a, b))  # noqa: B023

        if compiled:
            run = jitgrad.jit(run, fallback="error")
            run(a, b)
        found.append(run(a, b))
    for eager, jitted, theirs in zip(*found, strict=True):
        same(eager, theirs, scale=10)
        same(jitted, theirs, scale=10)


def recurrence(n):
    rng = np.random.default_rng(n)
    return rng.uniform(0.5, 1, (2, n, 3)), rng.standard_normal((2, n, 3))


@pytest.mark.parametrize(
    "options", [{"dim": 2}, {"dim": 0.5}, {"dim": 0, "combine_mode": "pointwise"},
                {"dim": 0, "combine_mode": "other"}, {"dim": 0, "reverse": 1}], ids=str,
)  # fmt: skip
def test_bad_associative_scans(options):
    def code(lib, x):
        module = importlib.import_module(f"{lib.t.__name__}._higher_order_ops.associative_scan")
        module.associative_scan(lambda a, b: a + b, x, **{"combine_mode": "generic", **options})

    raises_alike(code, np.ones((2, 3)))
