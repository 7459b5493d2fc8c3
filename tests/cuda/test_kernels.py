"""Fused kernels on Numba's CUDA simulator: each kind of fusion and schedule, against references and
against the CPU back end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cuda_graphs import close, compiled, normal, recorded, run, run_writing
from random_graphs import random_graph
from test_passes import reference

import jitgrad as jg
from jitgrad.compiler.interpret import interpret
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.pipeline import compile_graph
from jitgrad.runtime.errors import InternalError


def check(f: Any, *args: np.ndarray, scale: float = 1.0, **target: Any) -> Any:
    graph = recorded(f, *args)
    code = compiled(graph, **target)
    for got, want in zip(run(code, args), interpret(graph, args), strict=True):
        close(got, want, scale)
    return code


@pytest.mark.parametrize("shape", [(3, 40), (1, 200), (70, 5), (2, 1)])
def test_softmax_is_one_kernel(shape: tuple[int, ...]) -> None:
    code = check(lambda x: jg.softmax(x * 2, -1), normal(*shape))
    assert code.report.kernels == 1


def test_layer_norm_is_one_kernel_in_which_a_block_has_a_row() -> None:
    code = check(
        lambda x, w, b: jg.nn.functional.layer_norm(x, (50,), w, b),
        normal(4, 50), normal(50, seed=1), normal(50, seed=2),
    )  # fmt: skip
    assert code.report.kernels == 1
    (text,) = set(code.texts.values())
    assert "cuda.blockIdx.x" in text and "warps_sum(" in text


def test_rows_longer_than_shared_memory() -> None:
    check(lambda x: jg.softmax(x.exp(), -1).cumsum(-1), normal(3, 300), shared_bytes=256)


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_reductions(dim: Any) -> None:
    check(lambda x: ((x * x).sum(dim), x.amax(dim), x.mean(dim)), normal(37, 45), scale=4)


def test_large_reductions_are_two_launches() -> None:
    code = check(lambda x: (x.sum(), (x + 1).sum()), normal(300, 300), scale=50)
    assert any("blocks_" in symbol for symbol in code.shapes)
    code = check(lambda x: x.sum(0), normal(1100, 70), scale=50)
    assert any("blocks_" in symbol for symbol in code.shapes)


def test_argmax_over_everything_takes_the_first() -> None:
    x = normal(9, 50)
    x[3, 7] = x[5, 5] = 9.0
    check(lambda x: (x.argmax(), x.argmin(1), x.argmax(0)), x)


def test_matmul_with_its_epilogue_is_one_kernel() -> None:
    code = check(lambda a, b, c: jg.relu(a @ b + c) * 2, normal(19, 11), normal(11, 13), normal(13))
    assert code.report.kernels == 1


def test_long_contractions_are_split() -> None:
    code = check(lambda a, b: a.T @ b, normal(200, 5), normal(200, 3, seed=1), scale=4)
    assert any("kernel_sum" in symbol for symbol in code.shapes) or not code.target.simulated


def test_batched_transposed_half_contractions() -> None:
    def f(a: Any, b: Any) -> Any:
        return jg.einsum("bij,bkj->bik", a, b)

    check(f, normal(3, 6, 7), normal(3, 5, 7, seed=1))
    check(f, normal(2, 6, 7).astype(np.float16), normal(2, 5, 7, seed=1).astype(np.float16))


def test_convolution_with_its_gradients() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jg.nn.functional.conv2d(x, w, stride=2, padding=1).tanh()
        return jg.autograd.grad(y.sum(), (x, w))

    specs = [jg.TensorSpec(s, requires_grad=True) for s in [(2, 3, 7, 6), (4, 3, 3, 3)]]
    graph = jg.jit(f).lower(*specs).graph
    args = [normal(2, 3, 7, 6), normal(4, 3, 3, 3, seed=1)]
    for got, want in zip(run(compiled(graph), args), interpret(graph, args), strict=True):
        close(got, want, 8)


def test_scatter_and_gather() -> None:
    index = np.array([3, 1, 3, 0, 3])

    def f(w: Any, i: Any, g: Any) -> Any:
        return w[i] * 2, jg.zeros(4, 6).index_add(0, i, g)

    check(f, normal(4, 6), index, normal(5, 6, seed=1))


def test_a_bad_index_is_the_error_of_eager_code_and_nothing_is_written() -> None:
    graph = recorded(lambda w, i: w[i], normal(4, 6), np.array([1, 2]))
    with pytest.raises(IndexError, match="out of"):
        run(compiled(graph), [normal(4, 6), np.array([1, 9])])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(3, 150), (200, 3), (1, 64)])
def test_scans(shape: tuple[int, ...], reverse: bool) -> None:
    def f(x: Any) -> Any:
        y = x.flip(-1).cumsum(-1).flip(-1) if reverse else x.cumsum(-1)
        return y, (x > 0).to(jg.int64).cumsum(0), x.cummax(-1)

    check(f, normal(*shape), scale=8)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 16, 37])
def test_sorts_are_stable(count: int, descending: bool) -> None:
    x = np.round(normal(3, count) * 2)
    x[0, count // 2] = np.nan
    check(lambda x: jg.sort(x, -1, descending=descending, stable=True), x)
    check(lambda x: jg.topk(x, (count + 1) // 2, -1, largest=descending), x)


def test_philox_gives_the_bits_of_the_cpu() -> None:
    def f(x: Any) -> Any:
        return jg.rand(5, 7) + 0 * x, jg.randint(0, 1000, (4, 3)), jg.randn(6) * 1.0

    graph = recorded(f, np.zeros((5, 7), np.float32))
    args = [np.zeros(i.value.type.shape, i.value.type.dtype.np) for i in graph.inputs]
    want = compile_graph(graph).run(args)
    got = run(compiled(graph), args)
    for a, b in zip(got, want, strict=True):
        if a.shape == (6,):  # through log and cos, which are libdevice's
            close(a, b)
        else:
            np.testing.assert_array_equal(a, b)


def test_dims_that_change() -> None:
    graph = Graph()
    n = graph.env.dim("n", 6)
    from_ops = jg.compiler.ops.OPS
    x = graph.add_input(jg.compiler.types.TensorType((n, 5), jg.float32), "arg", "x")
    y = graph.add(from_ops["exp"], x)
    z = graph.add(from_ops["sum"], y, axes=(0,), keepdim=False)
    w = graph.add(from_ops["matmul"], graph.add(from_ops["permute"], x, axes=(1, 0)), y)
    graph.outputs = [y, z, w]
    code = compiled(graph)
    for size in (6, 2, 41):
        args = [normal(size, 5)]
        want = [np.exp(args[0]), np.exp(args[0]).sum(0), args[0].T @ np.exp(args[0])]
        for got, expected in zip(run(code, args), want, strict=True):
            close(got, expected, 8)


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    graph, args = random_graph(seed)
    want = reference(graph, args)
    got, after = run_writing(compiled(graph), args)
    n = len(graph.outputs)
    for a, b in zip(got, want[:n], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    written = {w.input: v for w, v in zip(graph.writes, want[n:], strict=True)}
    for i, a in enumerate(after):
        np.testing.assert_allclose(a, written.get(i, args[i]), rtol=2e-4, atol=2e-4)


def test_a_training_step_is_that_of_the_cpu() -> None:
    """Every kernel of a step with embedding, attention, cross-entropy and Adam."""
    jg.manual_seed(0)
    model = jg.nn.Sequential(
        jg.nn.Embedding(7, 8),
        jg.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        jg.nn.Linear(8, 7),
    )
    optimizer = jg.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)

    @jg.jit(fallback="error")
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = jg.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    x = jg.tensor(np.random.default_rng(0).integers(0, 7, (2, 5)))
    for _ in range(3):
        step(x, x)
    spec = step.specialisations[-1]
    graph = spec.trace.graph
    rng = np.random.default_rng(1)
    args = []
    for item in graph.inputs:
        t = item.value.type
        if t.dtype.is_floating_point:
            args.append(np.asarray(rng.uniform(0.1, 0.5, t.shape), t.dtype.np))
        else:
            args.append(np.asarray(rng.integers(1, 6, t.shape), t.dtype.np))
    cpu = [a.copy() for a in args]
    want = compile_graph(graph).run(cpu)
    got, after = run_writing(compiled(graph), args)
    for a, b in zip([*got, *after], [*want, *cpu], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(16, 16, 16), (21, 19, 37), (40, 17, 50)])
def test_halves_are_multiplied_on_tensor_cores(shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    kind = getattr(jg, dtype)
    a, b = normal(m, k), normal(k, n, seed=1)
    bias = normal(n, seed=2)
    args = [jg.tensor(x).to(kind)._data for x in (a, b, bias)]
    code = check(lambda a, b, c: jg.relu(a @ b + c), *args)
    assert any(f"mma_{'f16' if dtype == 'float16' else 'bf16'}(" in t for t in code.texts.values())


def test_large_tiles_and_ragged_edges() -> None:
    code = check(lambda a, b: jg.relu(a @ b) + 1, normal(19, 9), normal(9, 21, seed=1), scale=4)
    if code.target.simulated:  # on a GPU these are few
        assert any(shape.threads == 4 for shape in code.shapes.values())


@pytest.mark.parametrize(("dim", "count"), [(0, 8), (0, 9), (0, 21), (1, 21), (2, 17)])
def test_cat_of_many_is_a_launch_for_each_eight(dim: int, count: int) -> None:
    xs = []
    for k in range(count):
        shape = [2, 3, 2]
        shape[dim] = 1 + k % 3
        xs.append(jg.randn(shape))
    f = jg.jit(lambda *xs: jg.cat(xs, dim) * 2, fallback="error")
    there = [x.cuda() for x in xs]
    for _ in range(3):
        assert jg.equal(f(*there).cpu(), jg.cat(xs, dim) * 2)
    assert jg.equal(jg.cat(there, dim).cpu(), jg.cat(xs, dim))
    source = f.lower(*[jg.TensorSpec(x.shape, device="cuda") for x in xs]).cuda("sm_80")
    kernels = source.split("@cuda.jit")[1:]
    assert len(kernels) == -(-count // 8)
    assert all(len(re.findall(r"= x\d+\[", text)) <= 8 for text in kernels)


def test_kernels_of_one_text_and_several_dtypes_are_several() -> None:
    """What moves or compares elements reads the same for all dtypes."""

    def moved(x: Any) -> Any:
        return x.flip(1), x.t() + x.t(), jg.maximum(x, x), x.sort(0)[0], x.cumsum(1), x == x[:1]

    dtypes = ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")
    arrays = [np.array([[3, 1, 4], [1, 5, 9]], dtype) for dtype in dtypes]
    code = compiled(recorded(lambda *xs: tuple(y for x in xs for y in moved(x)), *arrays))
    for call in range(2):
        for got, want in zip(run(code, arrays), interpret(code.graph, arrays), strict=True):
            assert got.dtype == want.dtype and np.array_equal(got, want), call


def test_averages_by_a_table_of_indices_and_one_of_weights() -> None:
    x = jg.arange(240.0).reshape(2, 30, 4)
    pool = jg.jit(lambda x: jg.nn.functional.adaptive_avg_pool1d(x, 3), fallback="error")
    there = x.cuda().requires_grad_()
    for _ in range(3):
        assert jg.allclose(pool(there).cpu(), pool(x))


def test_the_simulator_takes_what_the_machine_code_would_be_made_for() -> None:
    code = compiled(recorded(lambda x: x * 2, normal(5)))
    if not code.target.simulated:
        pytest.skip("a GPU reads what it is given")
    ((function, shape),) = code._functions
    words = [np.zeros(5, kind[1:]) if kind[0] == "*" else 5 for kind in shape.kinds]
    function[1, 4](*words)
    words[0] = words[0].astype(np.float64)
    with pytest.raises(InternalError, match="float32.*launched with.*float64"):
        function[1, 4](*words)
