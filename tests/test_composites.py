"""Functions that run as one compiled program in eager code (composites.py): their numbers are those
of the ops that they are made of, whoever looks on, and types alone decide."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from eager_programs import compiled_by, made_anew

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad import composite_records, composites
from jitgrad.composite_records import Composite
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def auto():
    with made_anew(composites._known, composite_records._families):
        yield


@pytest.fixture
def compilations(monkeypatch) -> list[str]:
    """The names of the graphs that were compiled."""
    return compiled_by(monkeypatch, composite_records, "compile_small")


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def whole(bound: int, *shape: int) -> Any:
    return np.random.default_rng(bound).integers(0, bound, shape)


IMAGE, ROWS = (3, 8, 67, 71), (61, 7, 397)
C = [normal(8), normal(8, seed=1)]
CASES: dict[str, tuple[Any, list[Any]]] = {
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [normal(*IMAGE), *C]),
    "instance_norm": (lambda x, w: F.instance_norm(x, weight=w), [normal(*IMAGE), C[0]]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [normal(*IMAGE), *C]),
    "batch_norm, evaluation": (
        lambda x, w, b: F.batch_norm(x, b.detach(), w.detach() ** 2 + 1, w, b), [normal(*IMAGE), *C]
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (397,), w, b),
        [normal(*ROWS), normal(397), normal(397, seed=1)],
    ),
    "rms_norm": (lambda x, w: F.rms_norm(x, (7, 397), w), [normal(*ROWS), normal(7, 397)]),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), [normal(*IMAGE)]),
    "normalize": (F.normalize, [normal(*ROWS)]),
    "norm": (jg.norm, [normal(*ROWS)]),
    "norm of rows": (lambda x: jg.linalg.vector_norm(x, 3, 1), [normal(*ROWS)]),
    "largest norm": (lambda x: jg.linalg.vector_norm(x, float("inf"), 1), [normal(*ROWS)]),
    "cosine_similarity": (F.cosine_similarity, [normal(*ROWS), normal(*ROWS, seed=1)]),
    "pairwise_distance": (F.pairwise_distance, [normal(*ROWS), normal(*ROWS, seed=1)]),
    "cdist": (jg.cdist, [normal(301, 67), normal(67, 67)]),
    "tril": (lambda x: x.tril(-2), [normal(*ROWS)]),
    "triu": (lambda x: x.triu(3), [normal(*ROWS)]),
    "histc": (lambda x: jg.histc(x.detach(), 30, -2, 2), [normal(*ROWS)]),
    "logcumsumexp": (lambda x: jg.logcumsumexp(x, 1), [normal(*ROWS)]),
    "prelu": (F.prelu, [normal(*IMAGE), C[0]]),
    "gelu": (F.gelu, [normal(*ROWS)]),
    "hardtanh": (F.hardtanh, [normal(*ROWS)]),
    "mish": (F.mish, [normal(*ROWS)]),
    "linear": (F.linear, [normal(*ROWS), normal(31, 397), normal(31)]),
    "mse_loss": (F.mse_loss, [normal(*ROWS), normal(*ROWS, seed=1)]),
    "smooth_l1_loss": (
        lambda x, y: F.smooth_l1_loss(x, y, reduction="sum"),
        [normal(*ROWS), normal(*ROWS, seed=1)],
    ),
    "cross-entropy of two classes": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid(), reduction="none"),
        [normal(*ROWS), normal(*ROWS, seed=1)],
    ),
    "embedding_bag": (
        lambda w, i: F.embedding_bag(i, w, mode="mean", padding_idx=3),
        [normal(501, 67), whole(501, 99, 7)],
    ),
    "grid_sample": (
        lambda x, g: F.grid_sample(x, g, "bilinear", "reflection", False),
        [normal(*IMAGE), normal(3, 29, 31, 2)],
    ),
    "grid_sample, cubic": (
        lambda x, g: F.grid_sample(x, g, "bicubic", "zeros", True),
        [normal(*IMAGE), normal(3, 29, 31, 2)],
    ),
}  # fmt: skip


def results(name: str, dtype: Any = np.float32, again: bool = False) -> tuple[list[Any], Any]:
    """The values and gradients (`again`: and their gradients), and the name of the node."""
    function, arrays = CASES[name]
    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
    leaves = [jg.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays]
    y = function(*leaves)
    out = [y.detach().numpy()]
    if y.grad_fn is None:
        return out, None
    floats = [x for x in leaves if x.requires_grad]
    g = jg.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape).requires_grad_()
    grads = jg.autograd.grad(y, floats, g, create_graph=again)
    out += [x.detach().numpy() for x in grads]
    if again:
        total = sum((x * jg.linspace(0, 1, x.numel()).reshape(x.shape)).sum() for x in grads)
        more = jg.autograd.grad(total, [*floats, g], allow_unused=True)
        out += [None if x is None else x.numpy() for x in more]
    return out, y.grad_fn.name()


def assert_alike(got: list[Any], wanted: list[Any], rtol: float) -> None:
    for a, b in zip(got, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (abs(b).max() + 1e-6))


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_parts(name, compilations):
    got, label = results(name)
    assert compilations
    with knob(eager="numpy"):
        wanted, own = results(name)
    assert label == own
    assert_alike(got, wanted, 1e-4)


@pytest.mark.parametrize(
    "name",
    ["group_norm", "batch_norm", "layer_norm", "normalize", "cdist", "tril", "prelu", "hardtanh",
     "grid_sample"],
)  # fmt: skip
def test_second_derivatives_are_those_of_the_parts(name, compilations):
    got, _ = results(name, np.float64, again=True)
    assert compilations
    with knob(eager="numpy"):
        wanted, _ = results(name, np.float64, again=True)
    assert_alike(got, wanted, 1e-8)
    first, _ = results(name, np.float64)
    for a, b in zip(first, got, strict=False):  # with and without create_graph: the same bits
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["group_norm", "batch_norm", "cdist", "embedding_bag", "linear"])
def test_bits_do_not_depend_on_threads(name):
    before = jg.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 8):
            jg.set_num_threads(threads)
            found.append(results(name)[0])
    finally:
        jg.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def is_composite(y: Any) -> bool:
    return isinstance(y.grad_fn.op, Composite)


def test_who_looks_on_sees_the_ops():
    x = jg.tensor(normal(*IMAGE), requires_grad=True)
    assert is_composite(F.group_norm(x, 4))
    assert not is_composite(F.group_norm(x[:1, :, :9, :9], 4))  # little work
    with knob(eager="numpy"):
        assert not is_composite(F.group_norm(x, 4))
    seen = []
    with jg.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t):
        assert not is_composite(F.group_norm(x, 4))
    assert len(seen) > 1

    f = jg.jit(lambda x: F.group_norm(x, 4), fallback="error")
    for _ in range(2):
        y = f(x)
    names = {n.op.name for n in f.specialisations[0].trace.graph.nodes}
    assert {"rsqrt", "sum"} <= names
    np.testing.assert_allclose(y.detach(), F.group_norm(x, 4).detach(), atol=1e-5)
    each = jg.vmap(lambda a: F.group_norm(a.unsqueeze(0), 4))(x.detach())
    np.testing.assert_allclose(each[:, 0], y.detach(), atol=1e-5)


def test_a_backward_inside_of_a_recorded_function_is_one_of_ops():
    x = jg.tensor(normal(*IMAGE), requires_grad=True)

    def gradient(y):
        return jg.autograd.grad(y, x, jg.ones_like(y), retain_graph=True)[0]

    y = F.group_norm(x, 4) ** 2
    compiled = jg.jit(gradient, fallback="silent")
    wanted = gradient(y).numpy()
    for _ in range(3):
        np.testing.assert_allclose(compiled(y).numpy(), wanted, atol=1e-5)


def test_a_derivative_is_mapped_over_cotangents():
    x = jg.tensor(normal(*IMAGE), requires_grad=True)
    y = F.group_norm(x, 4)
    g = jg.tensor(normal(2, *IMAGE))
    (both,) = jg.autograd.grad(y, x, g, is_grads_batched=True, retain_graph=True)
    for k in range(2):
        (one,) = jg.autograd.grad(y, x, g[k], retain_graph=True)
        np.testing.assert_allclose(both[k], one, atol=1e-5)


def test_the_fourth_size_is_symbolic(compilations):
    for n in (5, 6, 7, 8, 9, 10):
        x = jg.tensor(normal(n, *IMAGE[1:]), requires_grad=True)
        y = F.group_norm(x, 4)
        (g,) = jg.autograd.grad(y.sum() + (y * y * y).sum(), x)
        with knob(eager="numpy"):
            z = F.group_norm(x, 4)
            (h,) = jg.autograd.grad(z.sum() + (z * z * z).sum(), x)
        np.testing.assert_allclose(y.detach(), z.detach(), atol=1e-5)
        np.testing.assert_allclose(g, h, atol=1e-4)
        assert compilations == ["group_normed", "group_normed_backward"] * min(n - 4, 4)


def test_statistics_of_a_batch_are_moved_once():
    x, w, b = (jg.tensor(a, requires_grad=True) for a in (normal(*IMAGE), *C))
    found = []
    for eager in ("auto", "numpy"):
        with knob(eager=eager):
            mean, var = jg.zeros(8), jg.ones(8)
            for _ in range(2):
                y = F.batch_norm(x, mean, var, w, b, True, 0.3)
            assert not mean.requires_grad
            found.append([y.detach().numpy(), mean.numpy(), var.numpy()])
    assert_alike(*found, 1e-5)


def test_errors_are_those_of_the_ops():
    w, i = jg.tensor(normal(501, 67)), jg.tensor(whole(501, 99, 7))
    i[5, 3] = 501
    texts = []
    for eager in ("auto", "numpy"):
        with knob(eager=eager), pytest.raises(RuntimeError, match="out of bounds") as caught:
            F.embedding_bag(i, w)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    with pytest.raises(RuntimeError, match=r"\[group_norm\]"):
        F.group_norm(jg.tensor(normal(*IMAGE)), 3)


def test_nan_and_infinity():
    a = normal(*IMAGE)
    a[0, 0, 3, 4], a[1, 5, 6, 7] = np.nan, np.inf
    x = jg.tensor(a)
    for f in (lambda: F.group_norm(x, 4), lambda: F.normalize(x), lambda: jg.norm(x, dim=(2, 3))):
        got = f().numpy()
        with knob(eager="numpy"):
            wanted = f().numpy()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_arguments_are_told_apart():
    @composites.composite
    def shifted(x, by, n=2):
        return (x * n + x) * by

    x = jg.tensor(normal(*ROWS))
    for by in (0.0, -0.0, 1, True, 1.0, 2):
        for kwargs in ({}, {"n": 3}, {"n": jg.tensor(2.0)}):
            y = shifted(x, by, **kwargs)
            z = shifted.__wrapped__(x, by, **kwargs)
            np.testing.assert_array_equal(np.signbit(y), np.signbit(z))
            np.testing.assert_allclose(y, z, rtol=1e-6)
    long = np.arange(2000.0, dtype=np.float32)
    for k in range(2):  # texts of long arrays leave numbers out

        @composites.composite
        def added(x, row):
            return x * 2 + jg.tensor(row[1000])

        long[1000] = k
        np.testing.assert_array_equal(added(x, long), x * 2 + k)


def test_what_cannot_be_a_composite_runs_as_written():
    calls = []

    @composites.composite
    def positive(x):
        calls.append(1)
        return x * 2 + 1 if x.sum() > 0 else x * 3 - 1

    @composites.composite
    def same(x):
        return x

    x = jg.tensor(abs(normal(*ROWS)))
    np.testing.assert_array_equal(positive(x), x * 2 + 1)
    np.testing.assert_array_equal(positive(-x), -x * 3 - 1)
    assert same(x) is x


def test_what_fails_to_compile_is_numpys(monkeypatch):
    def broken(graph: Any) -> Any:
        raise ValueError("no")

    monkeypatch.setattr(composite_records, "compile_small", broken)
    x = jg.tensor(normal(*IMAGE), requires_grad=True)
    with pytest.warns(UserWarning, match="group_normed"):
        y = F.group_norm(x, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (g,) = jg.autograd.grad(y, x, jg.ones_like(y))
    with knob(eager="numpy"):
        z = F.group_norm(x, 4)
        (h,) = jg.autograd.grad(z, x, jg.ones_like(z))
    np.testing.assert_allclose(y.detach(), z.detach(), atol=1e-6)
    np.testing.assert_allclose(g, h, atol=1e-6)


def test_a_write_to_what_was_saved_is_seen():
    x = jg.tensor(normal(*IMAGE), requires_grad=True)
    z = x * 1
    y = F.group_norm(z, 4)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_each_call_warns():
    x, y = jg.tensor(normal(*ROWS)), jg.tensor(normal(7, 397))
    for _ in range(3):
        with pytest.warns(UserWarning, match="broadcast"):
            F.mse_loss(x, y)


def test_only_what_the_derivative_reads_is_saved():
    x = jg.tensor(normal(*ROWS), requires_grad=True)
    z = x * 1
    y = z.tril()
    assert is_composite(y)
    z.add_(1)  # nothing of it is read
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, jg.ones_like(x).tril())


@pytest.mark.parametrize("count", [9, 601])
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(count, right, compilations):
    edges, x = np.sort(normal(count)), normal(*ROWS)
    x[0, 0, :9] = edges[:9]
    x[0, 1, 0] = np.nan
    got = jg.searchsorted(jg.tensor(edges), jg.tensor(x), right=right)
    assert len(compilations) == 1
    wanted = np.searchsorted(edges, x, "right" if right else "left")
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype is jg.int64


def test_memory_is_let_go_of():
    import gc
    import weakref

    x = jg.tensor(normal(*IMAGE), requires_grad=True)
    y = F.group_norm(x, 4)
    y.sum().backward()
    there = weakref.ref(x)
    del x, y
    gc.collect()
    assert there() is None
