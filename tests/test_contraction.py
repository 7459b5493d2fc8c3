"""The contraction engine against NumPy: shapes, layouts, dtypes, epilogues, symbolic dims, bits.

Kernels are built by hand and called through ctypes, without fusion, planning or the pool.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitgrad.compiler.codegen import objects
from jitgrad.compiler.codegen import target as targets
from jitgrad.compiler.codegen.blocking import plan_blocks
from jitgrad.compiler.codegen.contraction import generate
from jitgrad.compiler.codegen.microkernel import choose_tile
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.kernels import ContractionKernel, Store
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    check,
    const,
    select,
)
from jitgrad.compiler.symbolic import Dim, ShapeEnv, Sym, evaluate, prod
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

F32, F64, BF16, F16 = dtypes.float32, dtypes.float64, dtypes.bfloat16, dtypes.float16
_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)


def aligned(nbytes: int) -> np.ndarray:
    """64-byte aligned memory, every byte 255, so that what is never written shows (as NaN)."""
    memory = np.full(nbytes + 64, 255, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + nbytes]


def run_blocks(call: Callable[..., None], total: int, grain: int, workers: int) -> None:
    """call(begin, end, worker) for all blocks, dealt out to `workers` threads."""

    def work(worker: int) -> None:
        for begin in range(worker * grain, total, workers * grain):
            call(begin, min(total, begin + grain), worker)

    threads = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def execute(
    kernel: ContractionKernel,
    arrays: Mapping[Array, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    workers: int = 1,
    target: Target | None = None,
) -> int:
    """Runs a kernel, each worker on a thread of its own; returns the error cell."""
    target = target or targets.host()
    code = generate(kernel, target)
    library = objects.Library.build([code], target)
    sizes = sizes or {}
    memory = dict(arrays)
    for w in code.workspace:
        memory[w] = aligned(max(64, evaluate(prod(w.shape), sizes) * w.dtype.itemsize))
    slots = {a: k for k, a in enumerate(memory)}
    scratch = aligned(max(64, code.scratch * workers))
    bufs = np.array([m.ctypes.data for m in (*memory.values(), scratch)], np.int64)
    words: list[int] = []
    error = np.array([2**63 - 1], np.int64)
    for launch in code.launches:
        args = []
        for operand in launch.operands:
            if isinstance(operand, Array):
                args.append(slots[operand])
            elif isinstance(operand, Sym):
                args.append(len(words))
                words.append(evaluate(operand, sizes))
            else:
                args.append(operand if isinstance(operand, int) else operand.tag)
        args.append(len(slots))
        table, size_words = np.array(args, np.int64), np.array([*words, 0], np.int64)
        ctx = np.array([0, error.ctypes.data, size_words.ctypes.data, workers, 0, 0, 0, 0])
        function = _KERNEL(library.address(code.key, launch.symbol))
        call = functools.partial(function, ctx.ctypes.data, bufs.ctypes.data, table.ctypes.data)
        run_blocks(call, evaluate(launch.total, sizes), launch.grain, workers)
    for w in code.workspace:
        if w.name.endswith("panels") and w.dtype.is_floating_point:
            used = memory[w][: evaluate(prod(w.shape), sizes) * w.dtype.itemsize]
            assert np.isfinite(used.view(w.dtype.np)).all() or not _finite(arrays), (
                "what memory held"
            )
    return int(error[0])


def _finite(arrays: Mapping[Array, np.ndarray]) -> bool:
    return all(np.isfinite(x.astype(np.float64)).all() for x in arrays.values())


def matmul_kernel(
    m: Dim, n: Dim, k: Dim, dtype: DType, acc: DType, batch: tuple[Dim, ...] = (),
    transposed: tuple[bool, bool] = (False, False), broadcast: bool = False,
) -> tuple[Array, Array, ContractionKernel]:  # fmt: skip
    """out[batch, m, n] = a @ b; `transposed` ones lie column-major; `broadcast`: b has no batch."""
    r = len(batch)
    a = Array("a", (*batch, m, k), dtype)
    b = Array("b", (*(() if broadcast else batch), k, n), dtype)
    for x, (rows, cols), flip in ((a, (m, k), transposed[0]), (b, (k, n), transposed[1])):
        if flip:
            lead = [prod(batch[i + 1 :]) * rows * cols for i in range(x.ndim - 2)]
            x.strides = (*lead, 1, rows)
    builder = Builder()
    ax = builder.axes(r + 3)
    b_lead = () if broadcast else ax[:r]
    out = builder.contraction(
        (*batch, m, n), dtype, batch=range(r), m=(r,), n=(r + 1,), k=(k,),
        a=a[(*ax[:r], ax[r], ax[r + 2])].cast(acc),
        b=b[(*b_lead, ax[r + 2], ax[r + 1])].cast(acc), acc=acc,
    )  # fmt: skip
    index = ax[: r + 2]
    return a, b, ContractionKernel(out, [Store(out, index, out[index])])


def operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype.is_floating_point:
        return rng.standard_normal(shape).astype(dtype.np)
    return rng.integers(-40, 40, shape).astype(dtype.np)


def laid_out(x: np.ndarray, flip: bool) -> np.ndarray:
    """The memory of x, column-major in its last two dims if `flip`."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if flip else np.ascontiguousarray(x)


def run_matmul(
    m: int, n: int, k: int, dtype: DType = F32, batch: tuple[int, ...] = (),
    transposed: tuple[bool, bool] = (False, False), broadcast: bool = False,
    symbolic: bool = False, workers: int = 1, target: Target | None = None, seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Returns (result, a, b)."""
    rng = np.random.default_rng(seed)
    acc = F32 if dtype in (BF16, F16) else dtype
    a = operand(rng, (*batch, m, k), dtype)
    b = operand(rng, (*(() if broadcast else batch), k, n), dtype)
    sizes: dict[str, int] = {}
    dims: list[Dim] = [m, n, k]
    if symbolic:
        env = ShapeEnv()
        sizes = {"m": m, "n": n, "k": k}
        dims = [env.dim(name, v) if v > 1 else v for name, v in sizes.items()]
    x, y, kernel = matmul_kernel(*dims, dtype, acc, batch, transposed, broadcast)
    out = np.full((*batch, m, n), 77, dtype.np)
    arrays = {x: laid_out(a, transposed[0]), y: laid_out(b, transposed[1]), kernel.array: out}
    execute(kernel, arrays, sizes, workers, target)
    return out, a, b


def assert_product(out: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: DType) -> None:
    """Within 2 sqrt(K) roundings of |a| @ |b| of the exact product (integers: equal)."""
    if not dtype.is_floating_point:
        np.testing.assert_array_equal(out, np.matmul(a, b))
        return
    wide = np.longdouble if dtype is F64 else np.float64
    exact = np.matmul(a.astype(wide), b.astype(wide))
    size = np.matmul(np.abs(a.astype(wide)), np.abs(b.astype(wide)))
    unit = {F64: 2.0**-53, F32: 2.0**-24}.get(dtype, 2.0**-24)
    bound = 2 * np.sqrt(a.shape[-1] + 1) * unit * size
    if dtype in (BF16, F16):
        bound = bound + np.abs(exact) * (2.0**-8 if dtype is BF16 else 2.0**-11) + 1e-7
    assert np.all(np.abs(out.astype(wide) - exact) <= bound)


SIZES = (0, 1, 5, 6, 7, 15, 16, 17, 100, 129)


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_sizes(m: int, n: int) -> None:
    # k takes all sizes too; two of them for each (m, n), so that every pair of dims meets
    i, j = SIZES.index(m), SIZES.index(n)
    for k in (SIZES[(i + j) % 10], SIZES[(i + 3 * j + 5) % 10]):
        out, a, b = run_matmul(m, n, k)
        assert_product(out, a, b, F32)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(0, 600),
    st.tuples(st.booleans(), st.booleans()), st.sampled_from([(), (3,), (2, 2)]),
    st.booleans(), st.sampled_from([F32, F64, BF16, F16, dtypes.int32, dtypes.int64]),
)  # fmt: skip
def test_any_matmul(m, n, k, transposed, batch, broadcast, dtype) -> None:
    out, a, b = run_matmul(m, n, k, dtype, batch, transposed, broadcast)
    assert_product(out, a, b, dtype)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.uint8, dtypes.int16])
def test_small_integers_wrap(dtype: DType) -> None:
    out, a, b = run_matmul(9, 20, 33, dtype)
    np.testing.assert_array_equal(out, np.matmul(a, b))


@pytest.mark.parametrize(
    "m,n,k",
    [(3, 5, 1000), (40, 50, 257), (1, 9, 5000), (8, 9, 20000), (200, 300, 520), (1, 1, 4096)],
)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_long_sums(m: int, n: int, k: int, dtype: DType) -> None:
    """K past one block and past one split."""
    out, a, b = run_matmul(m, n, k, dtype)
    assert_product(out, a, b, dtype)


@pytest.mark.parametrize(
    "m,n,k", [(5, 300, 40), (129, 100, 300), (1, 70, 600), (70, 1, 600), (16, 24, 9000), (33, 2, 5)]
)
def test_bits(m: int, n: int, k: int) -> None:
    """Neither layout, nor symbolic dims, nor threads, nor vector width change the bits."""
    base, *_ = run_matmul(m, n, k)
    for transposed in ((True, False), (False, True), (True, True)):
        assert np.array_equal(run_matmul(m, n, k, transposed=transposed)[0], base)
    assert np.array_equal(run_matmul(m, n, k, symbolic=True)[0], base)
    assert np.array_equal(run_matmul(m, n, k, workers=2)[0], base)


@pytest.mark.parametrize("m,n", [(1, 1), (1, 7), (1, 70), (70, 1), (1, 1100)])
@pytest.mark.parametrize("k", [1, 2, 7, 21, 300])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_one_row_or_column_in_any_layout(m: int, n: int, k: int, dtype: DType) -> None:
    """Rows in place, columns in place and packed panels make the same sums."""
    layouts = [(False, False), (False, True), (True, False), (True, True)]
    results = [run_matmul(m, n, k, dtype, transposed=t) for t in layouts]
    for out, a, b in results:
        assert_product(out, a, b, dtype)
        assert out.tobytes() == results[0][0].tobytes()


@pytest.mark.parametrize("m", [2, 5, 9, 12])
@pytest.mark.parametrize("n,k", [(17, 2100), (300, 9), (1100, 300), (130, 520), (700, 1100)])
@pytest.mark.parametrize("dtype", [F32, F64, dtypes.int32])
def test_few_rows_in_any_layout(m: int, n: int, k: int, dtype: DType) -> None:
    """A matrix in place, along its rows, and packed panels make the same sums."""
    kernel = matmul_kernel(m, n, k, dtype, dtype)[2]
    assert plan_blocks(kernel, targets.host()).in_place == "rows"
    out, a, b = run_matmul(m, n, k, dtype, workers=2)
    assert_product(out, a, b, dtype)
    for flips in ((True, False), (False, True)):
        assert run_matmul(m, n, k, dtype, transposed=flips)[0].tobytes() == out.tobytes()
    if k <= 300:
        assert run_matmul(m, n, k, dtype, symbolic=True)[0].tobytes() == out.tobytes()


@pytest.mark.parametrize("n,k", [(1024, 1024), (1500, 1400), (2100, 520), (300, 9000)])
def test_one_row_reads_long_stretches(n: int, k: int) -> None:
    """A task has blocks of k, rather than few columns, and the sums of one that has all."""
    kernel = matmul_kernel(1, n, k, F32, F32)[2]
    plan = plan_blocks(kernel, targets.host())
    assert plan.in_place == "rows" and isinstance(plan.tasks, int)
    assert plan.block_cols >= min(n, 1024) and plan.tasks >= 2
    out, a, b = run_matmul(1, n, k, workers=2)
    assert_product(out, a, b, F32)
    for flips in ((True, False), (False, True)):
        assert run_matmul(1, n, k, transposed=flips)[0].tobytes() == out.tobytes()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_columns_that_fill_no_vector_are_read_and_written_by_masks(dtype: DType) -> None:
    target = targets.host()
    if not target.has_masks:
        pytest.skip("the target has none")
    code = generate(matmul_kernel(33, 50, 47, dtype, dtype)[2], target)
    text = "".join(c.module_text for c in code.with_routines())
    assert text.count('call void @"llvm.masked.store') >= 1
    assert text.count('@"llvm.masked.load') >= 1


@pytest.mark.parametrize("n", [1, 7, 8, 17])
def test_columns_of_one_row_are_read_where_they_lie(n: int) -> None:
    """Also those that fill no vector: nothing is packed but the row."""
    target = targets.host()
    kernel = matmul_kernel(1, n, 64, F32, F32, transposed=(False, True))[2]
    assert plan_blocks(kernel, target).in_place == "columns"
    code = generate(kernel, target)
    assert not code.workspace and code.scratch < 64 * 16 * 4


def test_bits_by_target() -> None:
    """Targets with FMA agree whatever their vector width; those without, with each other."""
    host = targets.host()
    if host.arch != "x86_64" or not host.has_fma:
        pytest.skip("needs an x86-64 host with FMA")
    with_fma = targets.named(host.triple, "x86-64-v3")
    narrow = Target(**{**vars(with_fma), "vector_bytes": 16})
    for m, n, k in ((30, 50, 300), (1, 40, 70)):
        results = [run_matmul(m, n, k, target=t)[0] for t in (host, with_fma, narrow)]
        assert all(np.array_equal(r, results[0]) for r in results)
        plain = [targets.named(host.triple, c) for c in ("x86-64", "x86-64-v2")]
        results = [run_matmul(m, n, k, target=t)[0] for t in plain]
        assert np.array_equal(results[0], results[1])


def test_symbolic_batch() -> None:
    env = ShapeEnv()
    s = env.dim("s", 3)
    a, b, kernel = matmul_kernel(s * 2, s + 4, s, F32, F32, (s,))
    rng = np.random.default_rng(1)
    for value in (2, 3, 50):
        x = operand(rng, (value, 2 * value, value), F32)
        y = operand(rng, (value, value, value + 4), F32)
        out = np.zeros((value, 2 * value, value + 4), np.float32)
        execute(kernel, {a: x, b: y, kernel.array: out}, {"s": value})
        assert_product(out, x, y, F32)


def test_nan_and_infinity() -> None:
    """Padding of panels must not make NaN of infinities, nor zeros hide NaN."""
    a, b, kernel = matmul_kernel(7, 19, 5, F32, F32)
    x, y = np.ones((7, 5), np.float32), np.ones((5, 19), np.float32)
    x[6, 4], y[0, 18], y[1, 3] = np.inf, np.nan, -np.inf
    x[2, 1] = 0.0
    out = np.zeros((7, 19), np.float32)
    execute(kernel, {a: x, b: y, kernel.array: out})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, x @ y)


# -- convolution -----------------------------------------------------------------------------------
def windows(x: np.ndarray, kernel: int, stride: int) -> np.ndarray:
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))
    return view[:, :, ::stride, ::stride]


CONVS = [(2, 3, 10, 16, 3, 1), (3, 2, 9, 5, 3, 2), (4, 16, 12, 32, 3, 1), (1, 1, 6, 1, 5, 1),
         (2, 8, 7, 9, 1, 1), (2, 5, 30, 8, 3, 1), (2, 4, 11, 3, 2, 3)]  # fmt: skip


@pytest.mark.parametrize("n,c,size,o,window,stride", CONVS)
@pytest.mark.parametrize("symbolic", [False, True])
def test_convolution(n, c, size, o, window, stride, symbolic) -> None:
    """Forward and weight gradient, by composite axes; the batch symbolic or not."""
    rng = np.random.default_rng(0)
    out_size = (size - window) // stride + 1
    count: Dim = ShapeEnv().dim("n", n) if symbolic and n > 1 else n
    x = Array("x", (count, c, size, size), F32)
    w = Array("w", (o, c, window, window), F32)
    g = Array("g", (count, o, out_size, out_size), F32)
    builder = Builder()
    ax = builder.axes(7)
    y = builder.contraction(
        (count, o, out_size, out_size), F32, batch=(), m=(1,), n=(0, 2, 3), k=(c, window, window),
        a=w[ax[1], ax[4], ax[5], ax[6]],
        b=x[ax[0], ax[4], ax[2] * stride + ax[5], ax[3] * stride + ax[6]], acc=F32,
    )  # fmt: skip
    xv, wv = operand(rng, (n, c, size, size), F32), operand(rng, (o, c, window, window), F32)
    gv = operand(rng, (n, o, out_size, out_size), F32)
    view = windows(xv, window, stride).astype(np.float64)
    out = np.zeros(gv.shape, np.float32)
    execute(ContractionKernel(y, [Store(y, ax[:4], y[ax[:4]])]), {x: xv, w: wv, y: out}, {"n": n})
    exact = np.einsum("nchwij,ocij->nohw", view, wv)
    size_ = np.einsum("nchwij,ocij->nohw", np.abs(view), np.abs(wv))
    assert np.all(np.abs(out - exact) <= 2e-7 * size_ * 4)

    dw = builder.contraction(
        (o, c, window, window), F32, batch=(), m=(0,), n=(1, 2, 3), k=(count, out_size, out_size),
        a=g[ax[4], ax[0], ax[5], ax[6]],
        b=x[ax[4], ax[1], ax[5] * stride + ax[2], ax[6] * stride + ax[3]], acc=F32,
    )  # fmt: skip
    out = np.zeros(wv.shape, np.float32)
    kernel = ContractionKernel(dw, [Store(dw, ax[:4], dw[ax[:4]])])
    execute(kernel, {x: xv, g: gv, dw: out}, {"n": n}, workers=2)
    exact = np.einsum("nchwij,nohw->ocij", view, gv)
    size_ = np.einsum("nchwij,nohw->ocij", np.abs(view), np.abs(gv))
    assert np.all(np.abs(out - exact) <= 2e-7 * size_ * 8)


def test_grouped_convolution_in_one_dim() -> None:
    """Groups are a batch axis; channels are split by floordiv and mod of one output axis."""
    rng = np.random.default_rng(0)
    groups, c, o, size, window = 3, 2, 4, 20, 3
    x, w = Array("x", (2, groups, c, size), F32), Array("w", (groups, o, c, window), F32)
    builder = Builder()
    ax = builder.axes(6)  # n, g, o, t; c, i
    y = builder.contraction(
        (2, groups, o, size - window + 1), F32, batch=(1,), m=(2,), n=(0, 3), k=(c, window),
        a=w[ax[1], ax[2], ax[4], ax[5]], b=x[ax[0], ax[1], ax[4], ax[3] + ax[5]], acc=F32,
    )  # fmt: skip
    xv, wv = operand(rng, x.shape, F32), operand(rng, w.shape, F32)
    out = np.zeros((2, groups, o, size - window + 1), np.float32)
    execute(ContractionKernel(y, [Store(y, ax[:4], y[ax[:4]])]), {x: xv, w: wv, y: out})
    view = np.lib.stride_tricks.sliding_window_view(xv, window, 3)
    np.testing.assert_allclose(out, np.einsum("ngcti,goci->ngot", view, wv), rtol=1e-5, atol=1e-5)


# -- operands and epilogues ------------------------------------------------------------------------
def test_expressions_as_operands() -> None:
    """A product, a mask, a flip by index arithmetic, and padding by select."""
    rng = np.random.default_rng(0)
    m, n, k = 13, 21, 30
    a, s, b = Array("a", (m, k), F32), Array("s", (k,), F32), Array("b", (k - 2, n), F32)
    builder = Builder()
    builder.site = 0
    i, j, q = builder.axes(3)
    inside = (q >= 1) & (q < k - 1)
    clamped = builder.check(select(inside, q - 1, const(0, INDEX)), k - 2)
    left = select(a[i, q] > 0.0, a[i, k - 1 - q] * s[q], -1.0)
    right = select(inside, b[clamped, j], 0.0)
    out = builder.contraction(
        (m, n), F32, batch=(), m=(0,), n=(1,), k=(k,), a=left, b=right, acc=F32
    )
    av, sv, bv = (operand(rng, x.shape, F32) for x in (a, s, b))
    result = np.zeros((m, n), np.float32)
    execute(
        ContractionKernel(out, [Store(out, (i, j), out[i, j])]), {a: av, s: sv, b: bv, out: result}
    )
    lv = np.where(av > 0, av[:, ::-1] * sv, -1)
    rv = np.pad(bv, ((1, 1), (0, 0)))
    np.testing.assert_allclose(result, lv.astype(np.float64) @ rv, rtol=1e-5, atol=1e-5)


def test_check_flags_its_site() -> None:
    """An embedding row read by an index out of range is clamped, and its site reported."""
    table, ids, w = (
        Array("t", (5, 8), F32),
        Array("ids", (6,), dtypes.int64),
        Array("w", (8, 3), F32),
    )
    i, j, q = (axis(x) for x in range(3))
    row = check(ids[(i,)].cast(INDEX), 5, 42)
    out = Builder().contraction(
        (6, 3), F32, batch=(), m=(0,), n=(1,), k=(8,), a=table[row, q], b=w[q, j], acc=F32
    )
    rng = np.random.default_rng(0)
    tv, wv = operand(rng, (5, 8), F32), operand(rng, (8, 3), F32)
    result = np.zeros((6, 3), np.float32)
    kernel = ContractionKernel(out, [Store(out, (i, j), out[i, j])])
    index = np.array([0, 4, 2, 2, 1, 3])
    assert execute(kernel, {table: tv, ids: index, w: wv, out: result}) == 2**63 - 1
    np.testing.assert_allclose(result, tv[index] @ wv, rtol=1e-5, atol=1e-6)
    index[3] = 9
    assert execute(kernel, {table: tv, ids: index, w: wv, out: result}) == 42


@pytest.mark.parametrize(
    "m,n,k", [(5, 16, 7), (20, 40, 300), (150, 17, 33), (20, 4, 9000), (3, 0, 4), (7, 33, 0)]
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_epilogue(m: int, n: int, k: int, symbolic: bool) -> None:
    """Bias along both axes, relu, residual, a transposed bfloat16 copy, and a mask of indices."""
    sizes = {"m": m, "n": n, "k": k}
    env = ShapeEnv()
    M, N, K = (env.dim(s, v) if symbolic and v > 1 else v for s, v in sizes.items())
    a, b = Array("a", (M, K), BF16), Array("b", (K, N), BF16)
    bias, scale, rest = Array("u", (N,), F32), Array("v", (M,), F32), Array("r", (M, N), F32)
    first, second, third = (
        Array("o", (M, N), F32),
        Array("p", (N, M), BF16),
        Array("q", (M, N), F32),
    )
    i, j, q = (axis(x) for x in range(3))
    c = Builder().contraction(
        (M, N), F32, batch=(), m=(0,), n=(1,), k=(K,), a=a[i, q].cast(F32), b=b[q, j].cast(F32),
        acc=F32,
    )  # fmt: skip
    value: Expr = (c[i, j] + bias[(j,)]) * scale[(i,)]
    stores = [
        Store(first, (i, j), select(value > 0.0, value, 0.0) + rest[i, j]),
        Store(second, (j, i), value.cast(BF16)),
        Store(third, (i, j), select(j <= i, value, 0.0)),
    ]
    rng = np.random.default_rng(0)
    av, bv = operand(rng, (m, k), BF16), operand(rng, (k, n), BF16)
    uv, vv, rv = (operand(rng, s, F32) for s in ((n,), (m,), (m, n)))
    outs = [np.zeros((m, n), np.float32), np.zeros((n, m), BF16.np), np.zeros((m, n), np.float32)]
    for kernel_stores in (stores, stores[:1], stores[1:2]):
        kernel = ContractionKernel(c, kernel_stores)
        arrays = {a: av, b: bv, bias: uv, scale: vv, rest: rv}
        arrays |= dict(zip((first, second, third), outs, strict=True))
        execute(kernel, arrays, sizes, workers=2)
        want = (av.astype(np.float32) @ bv.astype(np.float32) + uv) * vv[:, None]
        close = {"rtol": 1e-4, "atol": 1e-3}
        if stores[0] in kernel_stores:
            np.testing.assert_allclose(outs[0], np.maximum(want, 0) + rv, **close)
        if stores[1] in kernel_stores:
            np.testing.assert_allclose(outs[1].T.astype(np.float32), want, rtol=1e-2, atol=1e-2)
        if stores[2] in kernel_stores:
            np.testing.assert_allclose(outs[2], np.tril(want), **close)


def test_accumulator_is_rounded_first() -> None:
    """The epilogue reads the contraction's own dtype: bfloat16, rounded once."""
    a, b = Array("a", (4, 9), BF16), Array("b", (9, 20), BF16)
    i, j, q = (axis(x) for x in range(3))
    c = Builder().contraction(
        (4, 20), BF16, batch=(), m=(0,), n=(1,), k=(9,), a=a[i, q].cast(F32), b=b[q, j].cast(F32),
        acc=F32,
    )  # fmt: skip
    wide = Array("w", (4, 20), F32)
    kernel = ContractionKernel(
        c, [Store(wide, (i, j), c[i, j].cast(F32)), Store(c, (i, j), c[i, j])]
    )
    rng = np.random.default_rng(0)
    out, narrow = np.zeros((4, 20), np.float32), np.zeros((4, 20), BF16.np)
    arrays = {a: operand(rng, (4, 9), BF16), b: operand(rng, (9, 20), BF16), wide: out, c: narrow}
    execute(kernel, arrays)
    assert np.array_equal(out, narrow.astype(np.float32))


def test_in_place_residual() -> None:
    """The output may share memory with an array that the epilogue reads at the same index."""
    a, b, kernel = matmul_kernel(20, 37, 11, F32, F32)
    i, j = axis(0), axis(1)
    rest, out = Array("r", (20, 37), F32), Array("o", (20, 37), F32)
    kernel = ContractionKernel(kernel.array, [Store(out, (i, j), kernel.array[i, j] + rest[i, j])])
    rng = np.random.default_rng(0)
    x, y, z = (operand(rng, s, F32) for s in ((20, 11), (11, 37), (20, 37)))
    shared = z.copy()
    execute(kernel, {a: x, b: y, rest: shared, out: shared})
    np.testing.assert_allclose(shared, x @ y + z, rtol=1e-5, atol=1e-5)


def test_equal_kernels_share_a_key() -> None:
    """Names of arrays are not part of the code."""
    host = targets.host()
    first = generate(matmul_kernel(8, 9, 10, F32, F32)[2], host)
    a, b, kernel = matmul_kernel(8, 9, 10, F32, F32)
    a.name, b.name, kernel.array.name = "x", "y", "z"
    assert generate(kernel, host).key == first.key
    assert generate(matmul_kernel(8, 9, 11, F32, F32)[2], host).key != first.key


# -- sides that are packed by a launch of their own, and equal shares ------------------------------
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_is_packed_once_for_many_blocks_of_columns(
    dtype: DType, flip: bool, batch: tuple[int, ...]
) -> None:
    m, n, k = 61, 509, 203
    kernel = matmul_kernel(m, n, k, dtype, F64 if dtype is F64 else F32, batch, (flip, False))[2]
    plan = plan_blocks(kernel, targets.host())
    assert "a" in plan.packed and plan.block_cols < n
    out, a, b = run_matmul(m, n, k, dtype, batch, (flip, False), workers=3)
    assert_product(out, a, b, dtype)


@pytest.mark.parametrize("m", [140, 301])
@pytest.mark.parametrize("workers", [1, 3])
def test_products_of_one_panel_read_a_where_it_lies(m: int, workers: int) -> None:
    n, k = 11, 300
    plan = plan_blocks(matmul_kernel(m, n, k, F32, F32)[2], targets.host())
    assert plan.direct_a == ((k, 1) if n <= plan.tile.nr else None)
    out, a, b = run_matmul(m, n, k, workers=workers)
    assert_product(out, a, b, F32)


def test_tiles_waste_little_and_count_their_loads() -> None:
    target = targets.target_of("x86-64-v4")
    tile = choose_tile(target, F32, 64, 512, 256)
    assert -(-64 // tile.mr) * tile.mr <= 65 and tile.nv > 1  # a vector of B serves few products
    assert choose_tile(replace(target, cpu="znver4"), F32, 64, 512, 256).nv == 1
    for rows in (64, 256):  # a torn panel costs more than whole ones of somewhat small tiles
        assert rows % choose_tile(target, F32, rows, rows, 128).mr == 0


@pytest.mark.parametrize("rows", range(2, 61))
@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
def test_few_rows_make_few_torn_panels_and_read_a_matrix_seldom(rows: int, cpu: str) -> None:
    tile = choose_tile(targets.target_of(cpu), F32, rows, 720, 256)
    panels = -(-rows // tile.mr)
    assert panels * tile.mr <= rows * 1.25 + 1
    assert panels <= -(-rows // 4)  # each reads the matrix


@pytest.mark.parametrize("m", [5, 17, 30, 36, 48])
@pytest.mark.parametrize(("n", "k"), [(33, 300), (183, 257), (530, 40), (700, 1100)])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True)])
def test_few_panels_of_rows_read_a_matrix_that_is_near(
    m: int, n: int, k: int, flips: tuple[bool, bool]
) -> None:
    plan = plan_blocks(matmul_kernel(m, n, k, F32, F32, (), flips)[2], targets.host())
    if max(m, n) * k > 1 << 15 and not plan.in_place:
        assert plan.direct_b == (not flips[1] and plan.tile.nv > 1)
    out, a, b = run_matmul(m, n, k, F32, (), flips, workers=3)
    assert_product(out, a, b, F32)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 784, 576), (128, 784, 64), (784, 96, 300)])
@pytest.mark.parametrize("threads", [2, 4])
def test_threads_get_equal_shares(m: int, n: int, k: int, threads: int) -> None:
    plan = plan_blocks(matmul_kernel(m, n, k, F32, F32)[2], targets.target_of("x86-64-v4"))
    blocks = [
        min(plan.block_rows, plan.M - i) * min(plan.block_cols, plan.N - j)
        for i in range(0, plan.M, plan.block_rows)
        for j in range(0, plan.N, plan.block_cols)
    ]
    work = [0] * threads
    for block in blocks:  # each goes to whoever is free first
        work[work.index(min(work))] += block
    assert max(work) <= 1.1 * m * n / threads
