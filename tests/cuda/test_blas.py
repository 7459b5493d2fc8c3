"""Large products by cuBLAS: what it is told, read by a stand-in as its documentation says."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_blas import FakeBlas
from cuda_graphs import close, compiled, normal, recorded, run

import jitgrad as jg
from jitgrad.compiler.cuda_compiled import CudaCompiled
from jitgrad.compiler.interpret import interpret
from jitgrad.runtime.cuda import device
from jitgrad.runtime.cuda.blas import Blas, Gemm, Matrix
from jitgrad.runtime.cuda.driver import CudaError
from jitgrad.runtime.knobs import knobs

pytestmark = pytest.mark.skipif(knobs.cuda != "sim", reason="a stand-in in host memory")


@pytest.fixture
def library() -> Iterator[FakeBlas]:
    here, fake = device.device(), FakeBlas()
    here.blas = Blas(fake, lambda n, stream: here.allocator.allocate(n, stream, "cuBLAS"))
    yield fake
    del here.blas


def check(library: FakeBlas, f: Any, *args: np.ndarray, calls: int = 1) -> CudaCompiled:
    graph = recorded(f, *args)
    if len(graph.inputs) == len(args) > 1:  # these are in the order of their use
        given = dict(zip(inspect.signature(f).parameters, args, strict=False))
        args = tuple([given[x.name] for x in graph.inputs])
    code = compiled(graph, blas=True, blas_least=1)
    before = len(library.calls)
    for got, want in zip(run(code, args), interpret(graph, args), strict=True):
        close(got, want, 8)
    assert len(library.calls) - before == calls
    return code


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes(library: FakeBlas, dtype: str) -> None:
    a, b = (jg.tensor(normal(*s)).to(getattr(jg, dtype))._data for s in [(17, 20), (20, 19)])
    code = check(library, lambda a, b: a @ b, a, b)
    assert [shape.call is not None for shape in code.shapes.values()] == [True]


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda a, b: a.T @ b, [(20, 17), (20, 19)]),
        (lambda a, b: a @ b.T, [(17, 20), (19, 20)]),
        (lambda a, b: a.T @ b.T, [(20, 17), (19, 20)]),
        (lambda a, b: (a @ b).T.contiguous(), [(17, 20), (20, 19)]),
        (lambda a, b: a[2:19, 3:23] @ b[:, 1:20], [(20, 25), (20, 30)]),
        (lambda a, b: a[1] @ b[2, :, 3:20], [(2, 17, 20), (3, 20, 22)]),
        (lambda a, b: jg.einsum("bij,bjk->bik", a, b), [(3, 17, 20), (3, 20, 19)]),
        (lambda a, b: jg.einsum("bij,bkj->bik", a, b), [(3, 17, 20), (3, 19, 20)]),
        (lambda a, b: jg.einsum("ibj,jbk->ibk", a, b), [(17, 3, 20), (20, 3, 19)]),
        (lambda a, b: jg.einsum("bij,jk->bik", a, b), [(3, 17, 20), (20, 19)]),
        (lambda a, b: jg.einsum("ijb,bjk->ik", a, b), [(17, 5, 8), (8, 5, 19)]),
        (lambda a, b: jg.einsum("ixjb,xjbk->ik", a, b), [(17, 2, 5, 8), (2, 5, 8, 19)]),
    ],
)
def test_layouts(library: FakeBlas, f: Any, shapes: Any) -> None:
    check(library, f, *(normal(*s, seed=k) for k, s in enumerate(shapes)))


@pytest.mark.parametrize(("precision", "compute"), [("highest", 68), ("high", 77)])
def test_tf32_where_it_will_do(library: FakeBlas, precision: str, compute: int) -> None:
    jg.set_float32_matmul_precision(precision)
    try:
        check(library, lambda a, b: a @ b, normal(17, 20), normal(20, 19))
    finally:
        jg.set_float32_matmul_precision("highest")
    assert library.calls[-1]["compute"] == compute


def test_an_epilogue_is_a_kernel_after_it(library: FakeBlas) -> None:
    code = check(
        library, lambda a, b, c: jg.relu(a @ b + c) * 2, normal(17, 20), normal(20, 19), normal(19)
    )
    assert [shape.call is None for shape in code.shapes.values()] == [False, True]
    half = normal(16, 16).astype(np.float16)
    check(library, lambda a: (a @ a).float() + 1, half)


def test_small_products_and_convolutions_are_our_own(library: FakeBlas) -> None:
    graph = recorded(lambda a, b: a @ b, normal(64, 64), normal(64, 64))
    assert all(s.call is None for s in compiled(graph, blas=True).shapes.values())
    check(library, lambda a, b: a @ b, normal(17, 20), normal(20, 3), calls=0)
    x, w = normal(2, 16, 5, 5), normal(16, 16, 3, 3, seed=1)
    check(library, lambda x, w: jg.nn.functional.conv2d(x, w, padding=1), x, w, calls=0)
    ints = np.arange(400).reshape(20, 20)
    check(library, lambda x: x @ x, ints, calls=0)


def test_it_runs_on_the_current_stream_with_a_workspace_for_each(library: FakeBlas) -> None:
    graph = recorded(lambda a, b: a @ b, normal(16, 16), normal(16, 16))
    code = compiled(graph, blas=True, blas_least=1)
    side = jg.cuda.Stream()
    with jg.cuda.stream(side):
        run(code, [normal(16, 16), normal(16, 16)])
    run(code, [normal(16, 16), normal(16, 16)])
    assert library.streams == [side.cuda_stream, None]


def test_threads_do_not_take_each_others_stream(library: FakeBlas) -> None:
    blas, seen = device.device().blas, []
    plain = library.cublasGemmStridedBatchedEx

    def gemm(*args: Any) -> int:
        time.sleep(0.001)  # others may set their stream now
        seen.append((args[16].value, library.streams[-1]))
        return int(plain(*args))

    library.cublasGemmStridedBatchedEx = gemm  # type: ignore[method-assign]
    flat = Matrix("float32", 2, 1, 4)
    places = [np.zeros((2, 2), np.float32) for _ in range(4)]

    def work(stream: int) -> None:
        at = places[stream - 1].ctypes.data
        for _ in range(10):
            blas.gemm(Gemm(2, 2, 2, 1, flat, flat, flat), at, at, at, stream)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    own = {x.ctypes.data: k for k, x in enumerate(places, 1)}
    assert len(seen) == 40 and all(own[c] == stream for c, stream in seen)


def test_its_errors_are_told(library: FakeBlas) -> None:
    library.cublasGemmStridedBatchedEx = lambda *args: 13  # type: ignore[method-assign]
    graph = recorded(lambda a, b: a @ b, normal(16, 16), normal(16, 16))
    with pytest.raises(CudaError, match="cublasGemmStridedBatchedEx failed with status 13"):
        run(compiled(graph, blas=True, blas_least=1), [normal(16, 16), normal(16, 16)])


def test_eager_code_and_jit_use_it(library: FakeBlas) -> None:
    x = jg.tensor(normal(256, 256), device="cuda")
    f = jg.jit(lambda x: x @ x, fallback="error")
    for _ in range(3):
        got = f(x)
    assert len(library.calls) == 3
    np.testing.assert_allclose(got.cpu().numpy(), (x.cpu() @ x.cpu()).numpy(), rtol=2e-4, atol=1e-3)


def test_graphs_of_calls_have_their_workspace_before(library: FakeBlas) -> None:
    driver: Any = device.driver()
    f = jg.jit(lambda x: jg.relu(x @ x + 1), fallback="error", cuda_graphs=True)
    x = jg.tensor(normal(256, 256), device="cuda")
    allocated: list[int] = []
    here, begin, end = device.device(), driver.begin_capture, driver.end_capture

    def begun(index: int, stream: int) -> None:
        here.allocator.history = []
        begin(index, stream)

    def ended(index: int, stream: int) -> int:
        allocated.append(len(here.allocator.history or []))
        here.allocator.history = None
        return int(end(index, stream))

    driver.begin_capture, driver.end_capture = begun, ended
    try:
        for _ in range(6):
            got = f(x)
            np.testing.assert_allclose(
                got.cpu().numpy(), jg.relu(x.cpu() @ x.cpu() + 1).numpy(), rtol=2e-4, atol=1e-3
            )
            del got
    finally:
        del driver.begin_capture, driver.end_capture
    assert allocated and not any(allocated)
