"""Compiled kernels of single ops in eager code: their bits, when they are made, and what happens
when one cannot be."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import op_cases
import pytest
from eager_programs import compiled_by, made_anew

import jitgrad as jg
from jitgrad import kernels
from jitgrad.compiler import one_node
from jitgrad.compiler.ops.record import OPS, Elementwise
from jitgrad.compiler.types import TensorType
from jitgrad.runtime.dtypes import from_numpy
from jitgrad.runtime.knobs import knob

F = jg.nn.functional


@pytest.fixture(autouse=True)
def auto():
    """Kernels as a user has them, made anew in each test."""
    with made_anew(kernels._each, kernels._families):
        yield


@pytest.fixture
def compilations(monkeypatch) -> list[str]:
    """The names of the ops that were compiled."""
    return compiled_by(monkeypatch, kernels, "compile_node")


def data(*shape: int, requires_grad: bool = False) -> Any:
    """Normal numbers that no kernel of jitgrad's made."""
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return jg.from_numpy(np.array(x)).requires_grad_(requires_grad)


def types_of(arrays: Any) -> tuple[TensorType, ...]:
    return tuple(TensorType(a.shape, from_numpy(a.dtype)) for a in arrays)


def chosen_samples() -> list[Any]:
    """Of each op that is ever worth a kernel: its first sample, and those that broadcast or lie
    in memory in an odd way."""
    found = []
    for op in op_cases.ALL_OPS:
        for k, s in enumerate(op.samples()):
            if k == 0 or s.note in ("strided", "broadcast", "b transposed", "batch of b"):
                found.append(pytest.param(op, s, id=f"{op.name}-{k}"))
    return found


@pytest.mark.parametrize(("op", "s"), chosen_samples())
def test_bits_are_those_of_compiled_code(op, s, monkeypatch):
    monkeypatch.setattr(kernels, "WORTH", 1)
    arrays = [np.asarray(a) for a in s.args]
    types = types_of(arrays)
    outs = op_cases.outputs(op.infer(*types, **s.attrs))
    kernel = kernels.kernel_of(op, types, outs, s.attrs, lambda *_: pytest.fail("ran by NumPy"))
    if kernel is None:
        light = op.view or op.host or not types or op.work(types, outs, s.attrs) == 0
        unlike = any(t.dtype.is_complex or t.numel == 0 for t in (*types, *outs))
        assert light or unlike or kernels._has_float(tuple(s.attrs.values()))
        return
    exact = kernels.compile_node(op, types, s.attrs)
    wanted = exact.run([np.array(a, order="C") for a in arrays])
    for got, want in zip(op_cases.outputs(kernel(*arrays)), wanted, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shapes", [
    [(400, 400), (400, 400)], [(8, 16, 40, 40), (16, 1, 1)], [(8, 16, 40, 40), ()],
    [(300, 1, 7), (1, 100, 7)], [(1, 200000), (1,)],
])  # fmt: skip
def test_elementwise_shapes_share_code(shapes, compilations):
    a, b = (data(*s) for s in shapes)
    for scale in (1, 2):  # the leading dim twice as long: the same code
        x = jg.cat([a] * scale)
        y = jg.cat([b] * scale) if a.shape == b.shape else b
        compilations.clear()
        np.testing.assert_array_equal((x * y).numpy(), x.numpy() * y.numpy())
        assert [name for name in compilations if name == "mul"] == ["mul"] * (scale == 1)


def test_shapes_that_change_get_symbolic_dims(compilations):
    w = data(64, 256)
    for rows in (4000, 4001, 4002, 4003, 4500, 5000, 4003):
        x = data(rows, 256)
        got = F.linear(x, w).numpy()
        exact = kernels.compile_node(OPS["matmul"], types_of((x.numpy(), w.numpy())),
                                     {"transpose_b": True})  # fmt: skip
        np.testing.assert_array_equal(got, exact.run([x.numpy(), w.numpy()])[0])
        compilations.remove("matmul")  # the one just made to compare with
    assert compilations.count("matmul") == kernels._EXACT + 1


@pytest.mark.parametrize("dtype", [jg.float32, jg.float64])
def test_random_shapes_share_code(dtype, compilations):
    for shape in ((40000,), (200, 201), (2, 3, 6701), (20003, 2)):
        found = []
        for mode in ("auto", "numpy"):
            jg.manual_seed(3)
            with knob(eager=mode):
                found.append(jg.randn(shape, dtype=dtype).numpy())
        np.testing.assert_array_equal(*found)
        assert found[0].shape == shape
    assert compilations == ["normal"]


def test_layers_of_a_network_have_code_of_their_own(compilations):
    """Shapes that differ in more than one size are no sign of a size that changes."""
    for rows, columns in ((512, 256), (1024, 512), (768, 300), (600, 700), (640, 800)):
        F.linear(data(500, columns), data(rows, columns))
    (family,) = kernels._families.values()
    assert compilations == ["matmul"] * 5 and not family.general


def test_two_sizes_that_change_get_symbolic_dims_in_the_end(compilations, monkeypatch):
    monkeypatch.setattr(kernels, "_MOST_EXACT", 4)
    for batch, length in ((8, 100), (9, 110), (10, 120), (11, 130), (12, 140), (13, 150), (14, 99)):
        q = data(batch, 4, length, 64)
        got = jg.matmul(q, q.mT)
        np.testing.assert_allclose(got.numpy(), np.matmul(q.numpy(), q.mT.numpy()), rtol=1e-3,
                                   atol=1e-4)  # fmt: skip
    assert compilations == ["matmul"] * 5


def test_small_sizes_stay_numpys(compilations):
    x = data(100, 100, requires_grad=True)
    F.softmax(x @ x + 1, -1).relu().sum().backward()
    assert compilations == []


def test_numpy_mode_never_compiles(compilations):
    x, y = data(1000, 300), data(1000, 300)
    by_kernel = x.sigmoid()
    assert compilations == ["sigmoid"]
    with knob(eager="numpy"):
        np.testing.assert_array_equal(
            x.sigmoid().numpy(), OPS["sigmoid"].reference(x.numpy())
        )  # the plan with the kernel is there, and not used
        y.exp()
    assert compilations == ["sigmoid"]
    np.testing.assert_array_equal(x.sigmoid().numpy(), by_kernel.numpy())


def test_a_recorded_call_compiles_none(compilations):
    @jg.jit(fallback="error")
    def f(x):
        return (x.exp() * 2).relu()

    x = data(1000, 300)
    f(x)
    assert compilations == []
    np.testing.assert_array_equal(f(x).numpy(), (x.exp() * 2).relu().numpy())
    assert sorted(compilations) == ["exp", "mul", "relu"]


def test_a_recorded_call_compiles_large_convolutions_alone(compilations, monkeypatch):
    monkeypatch.setattr(kernels, "MUCH", 300_000)
    large, small, w, v = data(2, 8, 20, 20), data(2, 8, 6, 6), data(8, 8, 3, 3), data(3200, 200)

    @jg.jit(fallback="error")
    def f(x, y):
        return F.conv2d(x, w, padding=1), F.conv2d(y, w), x.reshape(2, -1) @ v

    recorded = f(large, small)[0].numpy()
    assert compilations == ["conv"]
    np.testing.assert_array_equal(recorded, f(large, small)[0].numpy())


def test_a_network_has_jits_bits():
    model = jg.nn.Sequential(
        jg.nn.Conv2d(3, 16, 3, padding=1), jg.nn.ReLU(), jg.nn.MaxPool2d(2),
        jg.nn.Conv2d(16, 8, 3, stride=2), jg.nn.Flatten(),
    )  # fmt: skip
    x = data(16, 3, 64, 64)
    fast = jg.jit(model.__call__, fallback="error")
    with jg.no_grad():
        fast(x)
        np.testing.assert_array_equal(model(x).numpy(), fast(x).numpy())


def test_gradients_agree_with_numpys():
    def gradients() -> list[Any]:
        jg.manual_seed(0)
        conv, norm = jg.nn.Conv2d(3, 16, 3), jg.nn.BatchNorm2d(16)
        x = data(8, 3, 40, 40, requires_grad=True)
        y = F.gelu(F.max_pool2d(norm(conv(x)), 2))
        F.softmax(y.flatten(1), -1).square().sum().backward()
        return [p.grad.numpy() for p in (x, *conv.parameters(), *norm.parameters())]

    found = gradients()
    with knob(eager="numpy"):
        wanted = gradients()
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6 * np.abs(want).max() + 1e-9)


def test_gradients_own_their_memory():
    """A kernel's result becomes .grad as it is: no copy, and nothing else shows it."""
    x = data(600, 600, requires_grad=True)
    (x * 2).sum().backward()
    first = x.grad
    assert first.is_contiguous()
    first.add_(1)
    np.testing.assert_array_equal(first.numpy(), np.full((600, 600), 3, np.float32))
    x.grad = None
    (x * 2).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((600, 600), 2, np.float32))


def test_errors_are_the_references():
    base, index = jg.zeros(1000, 50), jg.zeros(400, 50, dtype=jg.int64)
    index[3, 7] = 1000
    messages = []
    for mode in ("auto", "numpy"):
        with knob(eager=mode), pytest.raises(RuntimeError) as caught:
            base.scatter_add(0, index, jg.ones(400, 50))
        messages.append(str(caught.value).split(" (at ")[0])
    assert messages[0] == messages[1] and "index 1000 is out of bounds" in messages[0]
    n, zero = jg.ones(500, 500, dtype=jg.int64), jg.zeros(500, 500, dtype=jg.int64)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        n.remainder(zero)


def test_a_kernel_that_fails_to_compile_warns_once(monkeypatch):
    def broken(graph: Any) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(one_node, "find_compiled", broken)
    x = data(500, 400)
    with pytest.warns(UserWarning, match=r"\[tanh\] expected to compile .* no such instruction"):
        y = x.tanh()
    np.testing.assert_array_equal(y.numpy(), np.tanh(x.numpy()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.tanh()
        data(100, 4000).tanh()


def test_elementwise_ops_of_all_shapes_have_no_guards():
    """Code of elementwise ops is made once for all sizes: it must not depend on any."""
    x = np.ones((3, 4), np.float32)
    for op in op_cases.ALL_OPS:
        if isinstance(op, Elementwise) and op.promotes == "same" and op.arity == 1 and op.public:
            types = types_of((x,))
            outs = op_cases.outputs(op.infer(*types))
            each = kernels._EachElement(op, types, outs, {}, op.reference)
            assert each._compile() is not None
            assert (op, (from_numpy(x.dtype),), (), ((True,),)) in kernels._each
