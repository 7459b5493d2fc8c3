"""Ops without a loop form (`Op.host`): compiled code calls their references."""

import threading

import numpy as np
import pytest

import jitgrad as t
from jitgrad.compiler.host_call import KEY
from jitgrad.compiler.ops.record import OPS
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob


def cholesky(x):
    return OPS["cholesky"](x)


def solve(a, b):
    return OPS["solve_triangular"](a, b, upper=False, transpose=False, unit=False)


def positive(n, seed=0):
    x = np.random.default_rng(seed).standard_normal((n, n)).astype(np.float32)
    return t.from_numpy(x @ x.T + np.eye(n, dtype=np.float32))


def calls(f):
    """How many calls into Python are in the one compiled trace of f."""
    kernels = [k for k, _ in f.specialisations[0].compiled.image.kernels]
    return kernels.count(KEY)


def test_values_between_kernels():
    def f(x, b):
        low = cholesky(x @ x.t() + 3 * t.eye(4))
        y = solve(low, b)
        return (y * y).sum(), low.exp()

    g = t.jit(f, fallback="error")
    for seed in range(3):
        t.manual_seed(seed)
        x, b = t.randn(4, 4), t.randn(4, 2)
        for got, want in zip(g(x, b), f(x, b), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    assert g.stats.compiles == 1 and calls(g) == 2


def test_operands_that_are_no_dense_memory():
    """A transposed argument, an expanded one, a result read twice."""
    f = t.jit(lambda a, b: solve(a.t(), b.expand(3, 2)), fallback="error")
    a, b = (
        t.from_numpy(np.triu(np.ones((3, 3), np.float32)) + np.eye(3, dtype=np.float32)),
        t.ones(1, 2),
    )
    for _ in range(2):
        np.testing.assert_allclose(
            f(a.t().contiguous().t(), b).numpy(), np.linalg.solve(a.t().numpy(), np.ones((3, 2))),
            rtol=1e-6,
        )  # fmt: skip
    same = t.jit(lambda a: solve(a, a), fallback="error")
    for _ in range(2):
        np.testing.assert_allclose(same(a.t().contiguous()).numpy(), np.eye(3), atol=1e-6)


def test_a_failure_writes_nothing():
    def f(x, w):
        w.add_(1)
        return cholesky(x).sum() + w.sum()

    g = t.jit(f, fallback="error")
    w = t.zeros(2)
    g(positive(3), w), g(positive(3), w)
    for _ in range(2):
        with pytest.raises(
            np.linalg.LinAlgError, match=r"\[cholesky\].*not positive-definite.*py:"
        ):
            g(-positive(3), w)
    assert w.tolist() == [2, 2]
    g(positive(3), w)
    assert w.tolist() == [3, 3] and g.stats.compiles == 1


def test_what_may_raise_runs_though_unused():
    f = t.jit(lambda x: (cholesky(x), x * 2)[1], fallback="error")
    f(positive(3)), f(positive(3))
    with pytest.raises(np.linalg.LinAlgError):
        f(-positive(3))


def test_gradients():
    def f(x, b):
        return solve(cholesky(x @ x.t() + 3 * t.eye(4)), b).square().sum()

    g = t.jit(f, fallback="error")
    b = t.ones(4, 2)
    found = []
    for h in (f, g, g):
        x = positive(4).requires_grad_()
        h(x, b).backward()
        found.append(x.grad.numpy())
    for got in found[1:]:
        np.testing.assert_allclose(got, found[0], rtol=1e-4, atol=1e-5)
    assert calls(g) == 2


def test_threads():
    f = t.jit(lambda x: cholesky(x) * 2, fallback="error")
    good = [positive(3, seed) for seed in range(4)]
    f(good[0]), f(good[0])
    wrong = []

    def work(k):
        want = np.linalg.cholesky(good[k].numpy()) * 2
        for i in range(50):
            if not np.allclose(f(good[k]).numpy(), want, atol=1e-5):
                wrong.append((k, i))
            try:
                f(-good[k])
            except np.linalg.LinAlgError:
                continue
            wrong.append((k, i, "nothing raised"))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_from_the_disk_cache(tmp_path):
    with knob(cache_dir=str(tmp_path), cache=True):
        for k in range(2):
            f = t.jit(lambda x: cholesky(x) + 1, fallback="error")
            got = [f(positive(3)).numpy() for _ in range(2)]
            assert f.specialisations[0].compiled.report.cached == (k == 1)
            np.testing.assert_allclose(got[1], np.linalg.cholesky(positive(3).numpy()) + 1, 1e-5)


def test_export_says_that_it_stays():
    with pytest.raises(CompileError, match="cholesky runs as a call into Python"):
        t.export(cholesky, positive(3)).native("libx.so")
