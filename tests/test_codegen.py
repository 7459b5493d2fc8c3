"""Code generation for LoopKernel and SpecialKernel: kernels built by hand against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from kernels import Run

import jitgrad as jg
from jitgrad.compiler.codegen import llvm, objects
from jitgrad.compiler.codegen.columns import launch_columns
from jitgrad.compiler.codegen.target import Target, host, named
from jitgrad.compiler.kernels import (
    LoopKernel,
    Reduce,
    SpecialKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Builder,
    Expr,
    axis,
    check,
    const,
    dim,
    load,
    make,
    postorder,
    select,
)
from jitgrad.compiler.symbolic import ShapeEnv, hint, prod
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

SIZES = [0, 1, 7, 8, 9, 31, 33, 1000]
INTS = [dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64,
        dtypes.uint16, dtypes.uint32, dtypes.uint64]  # fmt: skip
FLOATS = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
X86 = host().triple.startswith("x86_64")


def levels() -> list[Target]:
    if not X86:
        return [host()]
    return [host(), *(named(host().triple, f"x86-64-v{n}") for n in (2, 3))]


def data(dtype: DType, shape: Sequence[int], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype is dtypes.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_floating_point:
        return (rng.standard_normal(shape) * 10).astype(dtype.np)
    info = np.iinfo(dtype.np)
    return rng.integers(info.min, info.max, shape, dtype=dtype.np, endpoint=True)


def pointwise(
    f: Callable[..., Expr], args: Sequence[np.ndarray], target: Target | None = None
) -> np.ndarray:
    """f over 1-d arrays."""
    n = len(args[0])
    arrays = [Array(f"x{k}", (n,), dtypes.from_numpy(a.dtype)) for k, a in enumerate(args)]
    body = f(*(load(a, (axis(0),)) for a in arrays))
    out = Array("out", (n,), body.dtype)
    kernel = LoopKernel((n,), [Stage((), (Store(out, (axis(0),), body),))])
    result = np.zeros(n, body.dtype.np)
    Run(kernel, target)({**dict(zip(arrays, args, strict=True)), out: result})
    return result


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """The same values; NaN equals NaN."""
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    return a.dtype == b.dtype and bool(np.array_equal(wide_a, wide_b, equal_nan=True))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int64, dtypes.uint8], ids=str)
def test_sizes(n: int, dtype: DType) -> None:
    x, y = data(dtype, (n,)), data(dtype, (n,), 1)
    assert equal(pointwise(lambda a, b: a * b + a, [x, y]), x * y + x)


def _wide(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Halves: through float32, then rounded."""

    def g(*args: np.ndarray) -> np.ndarray:
        if args[0].dtype.itemsize == 2 and args[0].dtype.kind not in "iu":
            return f(*(a.astype(np.float32) for a in args)).astype(args[0].dtype)
        return f(*args)

    return g


FLOAT_OPS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "abs": np.abs, "min": np.minimum, "max": np.maximum, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "rint": np.rint, "copysign": np.copysign,
    "sqrt": lambda x: np.sqrt(x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", sorted(FLOAT_OPS))
def test_float_ops(op: str, dtype: DType) -> None:
    special = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-40, 6e4, 0.5, 1e30])
    with np.errstate(all="ignore"):
        x, y = (v.ravel() for v in np.meshgrid(special, special))
        x = np.concatenate([x.astype(dtype.np), data(dtype, (50,))])
        y = np.concatenate([y.astype(dtype.np), data(dtype, (50,), 1)])
        args = [x] if op in ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint") else [x, y]
        want = _wide(FLOAT_OPS[op])(*args)
        for target in levels():
            assert equal(pointwise(lambda *a: make(op, *a), args, target), want), target.cpu


INT_OPS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "floordiv": np.floor_divide, "mod": np.remainder,
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", sorted(INT_OPS))
def test_int_ops(op: str, dtype: DType) -> None:
    x, y = data(dtype, (300,)), data(dtype, (300,), 1)
    y[::3] = y[::3] % 7
    if dtype.signed:
        x[:3], y[:3] = np.iinfo(dtype.np).min, -1
    if op in ("floordiv", "mod"):
        y[y == 0] = 3
    with np.errstate(all="ignore"):
        want = INT_OPS[op](x, y)
    assert equal(pointwise(lambda a, b: make(op, a, b), [x, y]), want)


def test_integer_division_never_traps() -> None:
    x = np.array([5, -5, np.iinfo(np.int32).min], np.int32)
    pointwise(lambda a, b: make("floordiv", a, b) + make("mod", a, b), [x, x * 0])


@pytest.mark.parametrize("dtype", [dtypes.bool_, *INTS, *FLOATS], ids=str)
@pytest.mark.parametrize("op", ["lt", "le", "eq", "ne"])
def test_comparisons(op: str, dtype: DType) -> None:
    x, y = data(dtype, (100,)), data(dtype, (100,), 1)
    y[::4] = x[::4]
    if dtype.is_floating_point:
        x[5] = y[6] = x[7] = y[7] = np.nan
    compare = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}[op]
    assert equal(pointwise(lambda a, b: make(op, a, b), [x, y]), compare(x, y))
    got = pointwise(lambda a, b: select(make(op, a, b), a, b), [x, y])
    assert equal(got, np.where(compare(x, y), x, y))


@pytest.mark.parametrize("to", [dtypes.bool_, *INTS, *FLOATS], ids=str)
@pytest.mark.parametrize("source", [dtypes.bool_, *INTS, *FLOATS], ids=str)
def test_casts(source: DType, to: DType) -> None:
    x = data(source, (200,))
    if source.is_floating_point and not to.is_floating_point and to is not dtypes.bool_:
        x = np.abs(x) if not to.signed else x
    if to is dtypes.bfloat16 and source in (
        dtypes.int64,
        dtypes.uint64,
        dtypes.int32,
        dtypes.uint32,
    ):
        want = x.astype(np.float32).astype(to.np)
    else:
        with np.errstate(all="ignore"):
            want = x.astype(to.np)
    for target in levels():
        assert equal(pointwise(lambda a: a.cast(to), [x], target), want), target.cpu


@pytest.mark.parametrize("n", [1, 4, 16, 17])
def test_functions_of_functions_of_halves(n: int) -> None:
    """Both are computed in float64; LLVM made one rounding of two where the first is exact."""
    x = jg.linspace(-0.5, 0.5, n).half()

    @jg.jit(fallback="error")
    def f(x: Any) -> Any:
        return x.sin().asin()

    for _ in range(2):
        np.testing.assert_array_equal(f(x).numpy(), x.sin().asin().numpy())


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_half_conversions(dtype: DType) -> None:
    """All halves to float32; float32 and float64 bit patterns to halves, on every level."""
    halves = np.arange(2**16, dtype=np.uint16).view(dtype.np)
    patterns = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ties = (halves.astype(np.float64) + np.roll(halves, -1).astype(np.float64)) / 2
    with np.errstate(all="ignore"):
        ties = np.concatenate([ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
        for target in levels():
            assert equal(pointwise(lambda a: a.cast(dtypes.float32), [halves], target),
                         halves.astype(np.float32))  # fmt: skip
            assert equal(pointwise(lambda a: a.cast(dtype), [patterns], target),
                         patterns.astype(dtype.np))  # fmt: skip
            if dtype is dtypes.float16:
                assert equal(pointwise(lambda a: a.cast(dtype), [ties], target),
                             ties.astype(dtype.np))  # fmt: skip


def test_casts_out_of_range() -> None:
    """As cvttsd2si: the minimum integer; narrower integers are the low bits of an int32."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 2.0**63, 300.7, -1.5])
    low32, low64 = np.iinfo(np.int32).min, np.iinfo(np.int64).min
    for target in levels():
        got = pointwise(lambda a: a.cast(dtypes.int32), [x], target)
        assert got.tolist() == [low32] * 7 + [300, -1]
        got = pointwise(lambda a: a.cast(dtypes.int64), [x], target)
        assert got.tolist() == [low64] * 5 + [2**31, low64, 300, -1]
        got = pointwise(lambda a: a.cast(dtypes.uint8), [x], target)
        assert got.tolist() == [0] * 7 + [44, 255]


def test_layouts() -> None:
    """Broadcast, transposed, flipped, strided and gathered reads; 2-d blocks cut anywhere."""
    x, bias = Array("x", (6, 70), dtypes.float32), Array("bias", (70,), dtypes.float32)
    w = Array("w", (70, 6), dtypes.float32)
    s = Array("s", (6, 70), dtypes.float32, strides=(300, 2))
    out = Array("out", (6, 70), dtypes.float32)
    i, j = axis(0), axis(1)
    body = load(x, (i, j)) + load(bias, (const(69, INDEX) - j,)) * load(w, (j, i)) - load(s, (i, j))
    kernel = LoopKernel((6, 70), [Stage((), (Store(out, (i, j), body),))])
    run = Run(kernel)
    a, b, c = data(x.dtype, x.shape), data(x.dtype, (70,), 1), data(x.dtype, (70, 6), 2)
    d = data(x.dtype, (6, 300), 3)
    for grain, workers in itertools.product((33, 70, 1000), (1, 2)):
        got = np.zeros((6, 70), np.float32)
        run({x: a, bias: b, w: c, s: d, out: got}, grain=grain, workers=workers)
        assert equal(got, a + b[::-1] * c.T - d[:, :140:2])


def test_checked_gather() -> None:
    x, ids = Array("x", (70,), dtypes.float32), Array("ids", (50,), dtypes.int64)
    out = Array("out", (50,), dtypes.float32)
    index = check(load(ids, (axis(0),)).cast(INDEX), 70, "first")
    kernel = LoopKernel((50,), [Stage((), (Store(out, (axis(0),), load(x, (index,))),))])
    run = Run(kernel)
    a, n = data(x.dtype, (70,)), np.random.default_rng(0).integers(0, 70, 50)
    got = np.zeros(50, np.float32)
    assert run({x: a, ids: n, out: got}, sites=["other", "first"]) == -1
    assert equal(got, a[n])
    for bad in (70, -1):
        n[47] = bad
        assert run({x: a, ids: n, out: got}, sites=["other", "first"]) == 1


def reduction(
    shape: tuple[int, ...], axes: tuple[int, ...], combine: str, order: str, dtype: DType
) -> tuple[LoopKernel, Array, Array]:
    kept = [k for k in range(len(shape)) if k not in axes]
    index = [axis(0)] * len(shape)
    for n, k in enumerate((*kept, *axes)):
        index[k] = axis(n)
    x = Array("x", shape, dtype)
    local = Array("s", (), dtypes.int64 if combine.startswith("arg") else dtype)
    out = Array("out", tuple(shape[k] for k in kept), local.dtype)
    kernel = LoopKernel(
        out.shape,
        [
            Stage(tuple(shape[k] for k in axes),
                  reduces=(Reduce(local, load(x, index), combine, order),)),
            Stage((), (Store(out, tuple(axis(n) for n in range(len(kept))), load(local, ())),)),
        ],
        [local],
    )  # fmt: skip
    return kernel, x, out


SHAPES = [
    ((3, 1), (1,)), ((5, 7), (1,)), ((4, 64), (1,)), ((40, 3), (1,)), ((2, 129), (1,)),
    ((7, 1000), (1,)), ((2, 40000), (1,)), ((300000,), (0,)), ((3, 500, 7, 11), (1, 2, 3)),
    ((64, 3, 1000), (0, 2)), ((70001, 3), (0,)), ((300, 400), (0,)), ((5, 8, 40, 33), (0, 1, 2)),
    ((4, 0), (1,)), ((0, 4), (0,)), ((0, 4), (1,)), ((2, 600, 70), (1,)), ((64, 2048), (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.int64], ids=str)
def test_sums(shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType, monkeypatch) -> None:
    """Near NumPy's sum; the same bits on each level, for any blocks, by rows or by columns."""
    order = "lanes" if len(shape) - 1 in axes else "columns"
    kernel, x, out = reduction(shape, axes, "sum", order, dtype)
    a = (np.random.default_rng(0).standard_normal(shape) * 100).astype(dtype.np)
    results = []
    targets = levels() if dtype is dtypes.float32 else [host()]
    for target, split, rows in itertools.product(targets, (True, False), (True, False)):
        with monkeypatch.context() as m:
            if not split:
                m.setattr(llvm, "split", lambda program: ([program], []))
            if not rows:
                m.setattr(llvm, "launch_columns", lambda program: None)
            run = Run(kernel, target)
        for grain, workers in ((None, 1), (3, 2)):
            got = np.zeros(out.shape, dtype.np)
            run({x: a, out: got}, grain=grain, workers=workers)
            results.append(got)
    assert all(np.array_equal(results[0], r) for r in results)
    if dtype is dtypes.int64:
        assert equal(results[0], a.sum(axes))
        return
    exact = a.astype(np.longdouble).sum(axes)
    scale = np.abs(a.astype(np.float64)).sum(axes)
    assert np.all(np.abs(results[0] - exact) <= 8 * np.finfo(dtype.np).eps * scale)


@pytest.mark.parametrize("shape", [(300, 70), (700, 40), (3, 300, 70), (50, 100)], ids=str)
def test_what_all_rows_share_is_computed_once_a_column(shape: tuple[int, ...], monkeypatch) -> None:
    *batch, n, m = shape
    x, out = Array("x", shape, dtypes.float32), Array("out", shape, dtypes.float32)
    w = Array("w", (m,), dtypes.float32)
    total, squares = Array("t", (), dtypes.float32), Array("s", (), dtypes.float32)
    r = len(batch)
    lead, column, row = tuple(axis(k) for k in range(r)), axis(r), axis(r + 1)
    here = (*lead, row, column)
    centred = load(x, here) - load(total, ()) / float(n)
    spread = make("sqrt", load(squares, ()) / float(n) + 1e-5)
    value = centred / spread * make("sqrt", load(w, (column,)) * load(w, (column,)))
    kernel = LoopKernel(
        (*batch, m),
        [
            Stage((n,), reduces=(Reduce(total, load(x, here), "sum", "columns"),)),
            Stage((n,), reduces=(Reduce(squares, centred * centred, "sum", "columns"),)),
            Stage((n,), (Store(out, here, value),)),
        ],
        [total, squares],
    )
    found = []

    def launches(program):
        made = launch_columns(program)
        found.extend(made[0] if made else ())
        return made

    arrays = {x: data(dtypes.float32, shape), w: data(dtypes.float32, (m,), 1)}
    results = []
    for by_rows in (launches, lambda program: None):
        monkeypatch.setattr(llvm, "launch_columns", by_rows)
        run = Run(kernel)
        for workers, grain in ((1, None), (3, 1)):
            got = np.zeros(shape, np.float32)
            run(arrays | {out: got}, grain=grain, workers=workers)
            results.append(got)
    assert all(equal(results[0], r) for r in results)
    over_rows = [p for p in found if hint(p.outer.total) != m * prod(batch)]
    assert len(over_rows) == 3
    ops = [e.op for p in over_rows for e in postorder(p.exprs())]
    assert "sqrt" not in ops and ops.count("div") == 1  # of each element by its column's spread


@pytest.mark.parametrize("combine", ["prod", "max", "min", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("order", ["lanes", "columns"])
@pytest.mark.parametrize("n", [1, 5, 33, 1000, 70000])
def test_combines(combine: str, order: str, n: int) -> None:
    """Ties take the first; NaN is best."""
    shape, axes = ((6, n), (1,)) if order == "lanes" else ((n, 6), (0,))
    dtype = dtypes.bool_ if combine in ("any", "all") else dtypes.float32
    kernel, x, out = reduction(shape, axes, combine, order, dtype)
    a = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    if combine == "prod":
        a = np.where(a < 0, -1.0, 1.0).astype(np.float32)
    elif dtype is dtypes.bool_:
        a = a > (1 if combine == "any" else -2)
    else:
        view = a if order == "lanes" else a.T
        view[1] = -np.inf
        view[2] = np.inf
        view[3, n // 2] = view[3, n - 1] = np.nan
    got = np.zeros(out.shape, out.dtype.np)
    for target in levels():
        Run(kernel, target)({x: a, out: got}, grain=2)
        assert equal(got, getattr(np, combine)(a, axes[0])), target.cpu


@pytest.mark.parametrize(
    "orders", [("lanes",), ("columns",), ("columns", "lanes"), ("lanes", "columns")]
)
@pytest.mark.parametrize("outer", [(), (3,), (40,)])
@pytest.mark.parametrize("n", [1, 37, 700])
def test_store_over_what_the_stage_reduces(
    orders: tuple[str, ...], outer: tuple[int, ...], n: int
) -> None:
    """A stage may store in place of what it reads, whatever loops its reductions need."""
    p = len(outer)
    x, y = (Array(name, (*outer, n), dtypes.float32) for name in "xy")
    index = tuple(map(axis, range(p + 1)))
    value = load(x, index)
    sums = [Array(f"s{k}", (), dtypes.float32) for k in range(len(orders))]
    outs = [Array(f"o{k}", outer, dtypes.float32) for k in range(len(orders))]
    reduces = tuple(
        Reduce(s, value * value + float(k), "sum", order)
        for k, (s, order) in enumerate(zip(sums, orders, strict=True))
    )
    ends = tuple(Store(o, index[:p], load(s, ())) for o, s in zip(outs, sums, strict=True))
    kernel = LoopKernel(
        outer, [Stage((n,), (Store(y, index, value * 0.5),), reduces), Stage((), ends)], sums
    )
    a = data(dtypes.float32, x.shape)
    shared = a.copy()
    got = [np.zeros(outer, np.float32) for _ in outs]
    Run(kernel)({x: shared, y: shared, **dict(zip(outs, got, strict=True))})
    np.testing.assert_array_equal(shared, a * np.float32(0.5))
    for k, g in enumerate(got):
        want = (a.astype(np.float64) ** 2 + k).sum(-1)
        np.testing.assert_allclose(g, want, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 8, 37, 100, 1000])
def test_softmax(n: int) -> None:
    """Three stages with a row buffer; scratch belongs to the worker."""
    shape = (5, n)
    x, y = Array("x", shape, dtypes.float32), Array("y", shape, dtypes.float32)
    most, total = Array("m", (), dtypes.float32), Array("t", (), dtypes.float32)
    row = Array("row", (n,), dtypes.float32)
    i, j = axis(0), axis(1)
    value = load(x, (i, j))
    e = make("exp", value - load(most, ()))
    kernel = LoopKernel(
        (5,),
        [
            Stage((n,), reduces=(Reduce(most, value, "max"),)),
            Stage((n,), (Store(row, (j,), e),), (Reduce(total, e, "sum"),)),
            Stage((n,), (Store(y, (i, j), load(row, (j,)) / load(total, ())),)),
        ],
        [most, total, row],
    )
    a = data(dtypes.float32, shape)
    wide = np.exp((a - a.max(1, keepdims=True)).astype(np.float64))
    want = wide / wide.sum(1, keepdims=True)
    for workers in (1, 2):
        got = np.zeros(shape, np.float32)
        Run(kernel)({x: a, y: got}, grain=1, workers=workers)
        np.testing.assert_allclose(got, want, rtol=6e-7, atol=1e-38)


def test_symbolic_sizes() -> None:
    """One kernel for every size; the same bits as for static dims."""
    env = ShapeEnv()
    m, n = env.dim("m", 4), env.dim("n", 8)
    x, b = Array("x", (m, n), dtypes.float32), Array("b", (n,), dtypes.float32)
    out, local = Array("out", (m,), dtypes.float32), Array("s", (), dtypes.float32)
    value = load(x, (axis(0), axis(1))) * load(b, (axis(1),)) + dim(n).cast(dtypes.float32)
    kernel = LoopKernel(
        (m,),
        [Stage((n,), reduces=(Reduce(local, value, "sum"),)),
         Stage((), (Store(out, (axis(0),), load(local, ())),))],
        [local],
    )  # fmt: skip
    run = Run(kernel)
    for rows, columns in ((2, 2), (3, 7), (5, 1000), (2, 40000)):
        a, c = data(dtypes.float32, (rows, columns)), data(dtypes.float32, (columns,), 1)
        got = np.zeros(rows, np.float32)
        run({x: a, b: c, out: got}, {"m": rows, "n": columns})
        static, sx, sout = reduction((rows, columns), (1,), "sum", "lanes", dtypes.float32)
        want = np.zeros(rows, np.float32)
        Run(static)({sx: a * c + np.float32(columns), sout: want})
        assert equal(got, want)


def test_equal_kernels_share_code() -> None:
    """Names, sites and the outer size do not matter; dtypes do."""

    def code(name: str, n: int, site: str, dtype: DType) -> str:
        x, out = Array(name, (n,), dtype), Array(name + "o", (n,), dtype)
        index = check(axis(0), 7, site)
        body = load(x, (index,)) * 2
        kernel = LoopKernel((n,), [Stage((), (Store(out, (axis(0),), body),))])
        return llvm.generate(kernel, host()).key

    assert code("a", 100, "s", dtypes.float32) == code("b", 333, "t", dtypes.float32)
    assert code("a", 100, "s", dtypes.float32) != code("a", 100, "s", dtypes.float64)


def test_undefined_symbols_are_refused() -> None:
    text = "declare float @expf(float)\ndefine float @f(float %x) {\n" \
        "  %y = call float @expf(float %x)\n  ret float %y\n}\n"  # fmt: skip
    with pytest.raises(Exception, match="expf"):
        objects.compile_object(text, host())


@pytest.mark.parametrize("shape_along", [((5, 7), 1), ((5, 37), 0), ((3, 4, 9), 1), ((4, 0), 1)],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("flag", [False, True])
def test_scan_and_sort(shape_along: tuple[tuple[int, ...], int], flag: bool) -> None:
    shape, along = shape_along
    b = Builder()
    x = Array("x", shape, dtypes.float64)
    out = b.scan(shape, along, load(x, b.axes(len(shape))), "sum", flag)
    a, got = data(dtypes.float64, shape), np.zeros(shape)
    Run(SpecialKernel([out]))({x: a, out: got}, grain=3)
    want = np.flip(np.cumsum(np.flip(a, along), along), along) if flag else np.cumsum(a, along)
    assert equal(got, want)

    values, indices = b.sort(shape, along, load(x, b.axes(len(shape))), flag)
    a = np.random.default_rng(0).integers(0, 4, shape).astype(np.float64)
    if a.size:
        a.flat[a.size // 2] = np.nan
    order = np.zeros(shape, np.int64)
    Run(SpecialKernel([values, indices]))({x: a, values: got, indices: order}, grain=2)
    if flag:
        n = shape[along]
        want_order = np.flip(n - 1 - np.argsort(np.flip(a, along), along, kind="stable"), along)
    else:
        want_order = np.argsort(a, along, kind="stable")
    assert equal(order, want_order)
    assert equal(got, np.take_along_axis(a, want_order, along))


@pytest.mark.parametrize("n", [33, 250, 300, 3000])
@pytest.mark.parametrize("count", [1, 7, 33])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.uint8,
                                   dtypes.float64], ids=str)  # fmt: skip
def test_the_first_of_a_sort(dtype: DType, count: int, n: int) -> None:
    """Rows of random numbers, in order, with ties, alike, and with NaN."""
    a = np.random.default_rng(n).standard_normal((7, n)) * 50
    a[1], a[2] = np.sort(a[1]), np.sort(a[2])[::-1]
    a[3], a[4] = np.rint(a[3] / 40), 5
    if dtype.is_floating_point:
        a[5, :: n // 3], a[5, 1], a[6, ::2], a[6, 1::2] = np.nan, -np.inf, 0.0, -0.0
    else:
        a = np.abs(a)
    a = a.astype(dtype.np)
    keys = a.astype(np.float64)
    for target, flag in itertools.product(levels(), (False, True)):
        b = Builder()
        x = Array("x", a.shape, dtype)
        values, indices = b.sort(a.shape, 1, load(x, b.axes(2)), flag, count)
        got, order = np.zeros((7, count), dtype.np), np.zeros((7, count), np.int64)
        Run(SpecialKernel([values, indices]), target)({x: a, values: got, indices: order}, grain=2)
        want = np.argsort(keys, 1, kind="stable")
        if flag:
            want = np.flip(n - 1 - np.argsort(np.flip(keys, 1), 1, kind="stable"), 1)
        assert equal(order, want[:, :count])
        assert equal(got, np.take_along_axis(a, order, 1))


@pytest.mark.parametrize("n", [1, 7, 16, 33, 100])
@pytest.mark.parametrize(
    ("combine", "dtype"),
    [("max", dtypes.float32), ("min", dtypes.float64), ("max", dtypes.int64), ("sum", dtypes.int32),
     ("prod", dtypes.uint8), ("min", dtypes.int16), ("sum", dtypes.float32)],
    ids=str,
)  # fmt: skip
def test_scans_of_rows_and_of_columns(combine: str, dtype: DType, n: int) -> None:
    """The same bits, for signed zeros and NaN, too."""
    a = np.random.default_rng(n).integers(-2, 3, (11, n)).astype(dtype.np)
    if dtype.is_floating_point:
        a[a == 0] = np.random.default_rng(n).choice([0.0, -0.0], int((a == 0).sum()))
        a[2, n // 2] = a[3, n - 1] = np.nan
        a[4], a[5, n // 3 :] = -np.inf, np.inf
    for target in levels():
        got = []
        for along in (1, 0):
            b, operand = Builder(), a if along else np.ascontiguousarray(a.T)
            x = Array("x", operand.shape, dtype)
            out = b.scan(operand.shape, along, load(x, b.axes(2)), combine)
            result = np.zeros_like(operand)
            Run(SpecialKernel([out]), target)({x: operand, out: result}, grain=6)
            got.append(result if along else np.ascontiguousarray(result.T))
        assert got[0].tobytes() == got[1].tobytes()
    ufunc = {"max": np.maximum, "min": np.minimum, "sum": np.add, "prod": np.multiply}[combine]
    with np.errstate(all="ignore"):
        assert equal(got[0], ufunc.accumulate(a, 1, dtype=dtype.np))


@pytest.mark.parametrize("combine", ["set", "sum", "prod", "max", "min"])
def test_scatter(combine: str) -> None:
    b = Builder()
    ids, src = Array("ids", (20,), dtypes.int64), Array("src", (20, 33), dtypes.float32)
    base = Array("base", (6, 33), dtypes.float32)
    index = check(load(ids, (axis(2),)).cast(INDEX), 6, "s")
    value = load(src, (axis(2), axis(3)))
    out = b.scatter((6, 33), load(base, b.axes(2)), (20, 33), (index, axis(3)), value, combine)
    n = np.random.default_rng(0).integers(0, 6, 20)
    s, start = data(src.dtype, src.shape), data(base.dtype, base.shape, 1)
    got, want = np.zeros((6, 33), np.float32), start.copy()
    join = {"set": lambda a, b: b, "sum": np.add, "prod": np.multiply,
            "max": np.maximum, "min": np.minimum}[combine]  # fmt: skip
    for k in range(20):
        want[n[k]] = join(want[n[k]], s[k])
    run = Run(SpecialKernel([out]))
    assert run({ids: n, src: s, base: start, out: got}, sites=["s"], grain=20) == -1
    assert equal(got, want)


@pytest.mark.parametrize("n", [1, 100, 600, 3000])
@pytest.mark.parametrize("combine", ["sum", "max", "any"])
def test_sums_over_rows_beside_sums_of_rows(n: int, combine: str) -> None:
    """One pass over the rows gives both; the bits are those of a kernel of its own."""
    m = 70
    dtype = dtypes.bool_ if combine == "any" else dtypes.float32
    x, out = Array("x", (n, m), dtypes.float32), Array("out", (n, m), dtypes.float32)
    total, over = Array("s", (), dtypes.float32), Array("over", (m,), dtype)
    here = (axis(0), axis(1))
    value = load(x, here) - load(total, ())
    folded = make("lt", load(x, here), load(total, ())) if combine == "any" else value
    kernel = LoopKernel(
        (n,),
        [
            Stage((m,), reduces=(Reduce(total, load(x, here), "max"),)),
            Stage((m,), (Store(out, here, value), Store(over, (axis(1),), folded, combine))),
        ],
        [total],
    )
    a = data(dtypes.float32, (n, m))
    want = a - a.max(1, keepdims=True)
    for workers, grain in ((1, None), (3, 1)):
        got, sums = np.zeros((n, m), np.float32), np.zeros(m, dtype.np)
        Run(kernel)({x: a, out: got, over: sums}, grain=grain, workers=workers)
        assert equal(got, want)
        if combine == "any":
            assert equal(sums, (a < a.max(1, keepdims=True)).any(0))
            continue
        alone, ax, aout = reduction((n, m), (0,), combine, "columns", dtypes.float32)
        expected = np.zeros(m, np.float32)
        Run(alone)({ax: want, aout: expected})
        assert equal(sums, expected)
