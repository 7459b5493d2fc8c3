"""Winograd's algorithm: against float64, at all edges; which convolutions; bits; epilogues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernels import Run

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.compiler.codegen import target as targets
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.kernels import ContractionKernel, Store
from jitgrad.compiler.loops import (
    Array,
    Builder,
    Expr,
    const,
    make,
)
from jitgrad.compiler.ops.conv_tiles import has_tiles
from jitgrad.compiler.symbolic import Dim, ShapeEnv
from jitgrad.runtime import dtypes

F32 = dtypes.float32
# 2e-6 of the results' standard deviation is a usual error, as is 1e-6 where products are summed;
# no error of one result is much more.
TYPICAL, WORST = 2e-6, 1.5e-5


def kernel_of(
    x: Array, w: Array, height: int, width: int, flipped: bool = False,
    epilogue: Callable[[Expr, tuple[Expr, ...]], Expr] | None = None,
) -> ContractionKernel:  # fmt: skip
    """conv(x, w) of height x width results; `flipped`: by w turned, as in an input gradient."""
    b = Builder()
    ax = b.axes(7)
    n, o, h, v, c, i, j = ax
    read_w = w[c, o, const(2, i.dtype) - i, const(2, j.dtype) - j] if flipped else w[o, c, i, j]
    outputs, inputs = (w.shape[1], w.shape[0]) if flipped else (w.shape[0], w.shape[1])
    y = b.contraction(
        (x.shape[0], outputs, height, width), F32, batch=(), m=(1,), n=(0, 2, 3),
        k=(inputs, 3, 3), a=read_w, b=x[n, c, h + i, v + j].cast(F32), acc=F32, winograd=True,
    )  # fmt: skip
    value = y[ax[:4]]
    return ContractionKernel(y, [Store(y, ax[:4], epilogue(value, ax[:4]) if epilogue else value)])


def whole(size: int) -> int:
    """The input's size for the whole tiles of so many results."""
    return -(-size // 4) * 4 + 2


def direct(x: np.ndarray, w: np.ndarray, height: int, width: int) -> np.ndarray:
    """In float64."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, :height, :width]
    return np.einsum("nchwij,ocij->nohw", view, w, optimize=True)


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    error = np.abs(got - wanted) / max(wanted.std(), 1e-30)
    assert np.sqrt(np.mean(error**2)) < TYPICAL
    assert error.max() < WORST


def run(
    n: int, c: int, o: int, height: int, width: int, target: Target | None = None,
    flipped: bool = False, workers: int = 1, symbolic: bool = False, last: bool = False,
    dtype: dtypes.DType = F32,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The kernel's results, and those of the definition. `last`: x lies channels last."""
    rng = np.random.default_rng(n + c + o + height + width)
    x = rng.standard_normal((n, c, whole(height), whole(width))).astype(dtype.np)
    w = rng.standard_normal((c, o, 3, 3) if flipped else (o, c, 3, 3)).astype(np.float32)
    count: Dim = ShapeEnv().dim("n", n) if symbolic else n
    xa, wa = Array("x", (count, *x.shape[1:]), dtype), Array("w", w.shape, F32)
    memory = np.ascontiguousarray(x)
    if last:
        memory = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        h, v = x.shape[2:]
        xa.strides = (c * h * v, 1, v * c, c)
    kernel = kernel_of(xa, wa, height, width, flipped)
    out = np.full((n, o, height, width), np.nan, np.float32)
    arrays = {xa: memory, wa: w, kernel.array: out}
    assert Run(kernel, target)(arrays, {"n": n} if symbolic else None, workers=workers) == -1
    if flipped:
        w = np.ascontiguousarray(w.transpose(1, 0, 2, 3)[..., ::-1, ::-1])
    return out, direct(x, w, height, width)


@pytest.mark.parametrize("height", [1, 4, 5, 9])
@pytest.mark.parametrize("width", [1, 3, 7, 13, 22, 68])
def test_sizes(height: int, width: int) -> None:
    assert_close(*run(2, 3, 5, height, width))


@pytest.mark.parametrize("c,o", [(1, 1), (16, 16), (17, 33), (64, 130)])
def test_channels(c: int, o: int) -> None:
    assert_close(*run(3, c, o, 14, 14))


def test_many_channels() -> None:
    assert_close(*run(1, 600, 16, 8, 8))


@pytest.mark.parametrize("options", [
    {"flipped": True}, {"symbolic": True}, {"last": True}, {"dtype": dtypes.float16},
], ids=str)  # fmt: skip
def test_operands(options: dict[str, object]) -> None:
    assert_close(*run(5, 18, 20, 6, 17, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_targets(level: str) -> None:
    host = targets.host()
    if not host.triple.startswith("x86_64"):
        pytest.skip("for x86-64")
    if targets.named(host.triple, level).vector_bytes > host.vector_bytes:
        pytest.skip("not on this processor")
    assert_close(*run(2, 17, 19, 10, 18, targets.named(host.triple, level)))


def test_bits_do_not_depend_on_threads_or_on_the_batch() -> None:
    one, _ = run(4, 20, 130, 15, 15)
    many, _ = run(4, 20, 130, 15, 15, workers=3)
    assert one.tobytes() == many.tobytes()
    symbolic, _ = run(4, 20, 130, 15, 15, symbolic=True)
    assert one.tobytes() == symbolic.tobytes()


def test_epilogue() -> None:
    """Bias by channel, a factor by column, a residual, and a maximum."""
    rng = np.random.default_rng(0)
    n, c, o, height, width = 2, 6, 7, 6, 11
    x = rng.standard_normal((n, c, whole(height), whole(width)), np.float32)
    w = rng.standard_normal((o, c, 3, 3), np.float32)
    bias, factor = rng.standard_normal(o, np.float32), rng.standard_normal(width, np.float32)
    residual = rng.standard_normal((n, o, height, width), np.float32)
    given = [("x", x), ("w", w), ("bias", bias), ("factor", factor), ("residual", residual)]
    arrays = {Array(name, a.shape, F32): a for name, a in given}
    xa, wa, ba, fa, ra = arrays

    def epilogue(value: Expr, at: tuple[Expr, ...]) -> Expr:
        return make("max", (value + ba[(at[1],)]) * fa[(at[3],)] + ra[at], const(0.0, F32))

    kernel = kernel_of(xa, wa, height, width, epilogue=epilogue)
    out = np.full((n, o, height, width), np.nan, np.float32)
    Run(kernel)({**arrays, kernel.array: out})
    wanted = (direct(x, w, height, width) + bias[:, None, None]) * factor + residual
    assert_close(out, np.maximum(wanted, 0))


def test_what_lies_outside_a_tile_does_not_reach_it() -> None:
    """A NaN reaches the tiles that read it, and no other."""
    x = np.ones((1, 2, 18, 18), np.float32)
    x[0, 1, 9, 9] = np.nan  # of the third and second tile each way: rows 4..9 and 8..13
    w = np.ones((3, 2, 3, 3), np.float32)
    xa, wa = Array("x", x.shape, F32), Array("w", w.shape, F32)
    kernel = kernel_of(xa, wa, 16, 16)
    out = np.zeros((1, 3, 16, 16), np.float32)
    Run(kernel)({xa: x, wa: w, kernel.array: out})
    bad = np.isnan(out[0, 0])
    assert bad[7:10, 7:10].all() and not bad[:4].any() and not bad[:, :4].any()
    assert not bad[12:].any() and not bad[:, 12:].any()
    np.testing.assert_allclose(out[0, 0][~bad], 18, rtol=1e-5)


def test_which_convolutions() -> None:
    def chosen(n: Dim, c: Dim, o: Dim, size: Dim, **other: object) -> bool:
        options = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "groups": 1,
                   "dtype": F32, **other}  # fmt: skip
        return has_tiles((n, o, size, size), c, **options)  # type: ignore[arg-type]

    assert chosen(1, 64, 64, 56) and chosen(8, 256, 256, 7) and chosen(1, 256, 256, 14)
    assert not chosen(1, 512, 512, 7)  # the filters cost more than the products
    assert not chosen(8, 3, 64, 56) and not chosen(0, 64, 64, 56) and not chosen(8, 64, 64, 1)
    for other in (
        {"kernel": (3, 5)}, {"kernel": (3,)}, {"stride": (2, 1)}, {"dilation": (1, 2)},
        {"groups": 2}, {"dtype": dtypes.float64}, {"dtype": dtypes.bfloat16},
    ):  # fmt: skip
        assert not chosen(8, 64, 64, 56, **other)
    env = ShapeEnv()
    s = env.dim("s", 56)
    assert chosen(s, 64, 64, 56) and not chosen(8, 64, 64, s)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_through_jit_with_gradients(padding: int) -> None:
    """Forward and input gradient; the second also where padding is more than the kernel's reach."""
    rng = np.random.default_rng(padding)
    x = rng.standard_normal((2, 18, 15, 21)).astype(np.float32)
    w = rng.standard_normal((20, 18, 3, 3)).astype(np.float32)

    def f(x: jg.Tensor, w: jg.Tensor) -> tuple[jg.Tensor, ...]:
        y = F.conv2d(x, w, padding=padding)
        return (y, *jg.autograd.grad((y * y).sum(), (x, w)))

    def run_in(dtype: jg.dtype) -> list[np.ndarray]:
        operands = [jg.tensor(a, dtype=dtype).requires_grad_() for a in (x, w)]
        return [t.detach().numpy() for t in jg.jit(f, fallback="error")(*operands)]

    for got, wanted in zip(run_in(jg.float32), run_in(jg.float64), strict=True):
        assert_close(got, wanted)
