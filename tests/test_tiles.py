"""Kernels that turn memory around run in tiles (compiler/codegen/tiles.py): same bits, any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kernels import Run

import jitgrad as jg
from jitgrad.compiler.codegen.program import prepare
from jitgrad.compiler.codegen.target import Target, host, named
from jitgrad.compiler.codegen.tiles import tiled
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    Array,
    Expr,
    axis,
    load,
)
from jitgrad.runtime import dtypes

X86 = host().triple.startswith("x86_64")
TARGETS = [host(), *(named(host().triple, f"x86-64-v{n}") for n in (2, 3) if X86)]
SHAPES = [(130, 130), (128, 192), (16, 2000), (2001, 17), (257, 131)]


def run(
    shape: tuple[int, ...], body: Callable[..., Expr], xs: list[np.ndarray], target: Target,
    in_tiles: bool = True,
) -> np.ndarray:  # fmt: skip
    arrays = [Array(f"x{k}", x.shape, dtypes.from_numpy(x.dtype)) for k, x in enumerate(xs)]
    value = body(*arrays)
    out = Array("out", shape, value.dtype)
    index = tuple(axis(k) for k in range(len(shape)))
    kernel = LoopKernel(shape, [Stage((), (Store(out, index, value),))])
    assert (tiled(prepare(kernel), target) is not None) is in_tiles
    result = np.zeros(shape, value.dtype.np)
    Run(kernel, target)({**dict(zip(arrays, xs, strict=True)), out: result})
    return result


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int16, np.bool_])
def test_transposed_copies(dtype: type, target: Target) -> None:
    rng = np.random.default_rng(0)
    for m, n in SHAPES:
        x = rng.integers(0, 100, (n, m)).astype(dtype)
        got = run((m, n), lambda a: load(a, (axis(1), axis(0))), [x], target)
        assert np.array_equal(got, x.T)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
def test_with_operands_that_lie_both_ways(target: Target) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 70, 131)
    x = rng.standard_normal((3, 131, 70)).astype(np.float32)
    y = rng.standard_normal(shape).astype(np.float32)
    z = rng.standard_normal((131, 70)).astype(np.float32)
    w = rng.standard_normal(131).astype(np.float32)

    def body(x: Array, y: Array, z: Array, w: Array) -> Expr:
        i, j, k = axis(0), axis(1), axis(2)
        return (load(x, (i, k, j)) + load(y, (i, j, k))) * load(z, (k, j)) - load(w, (k,))

    want = (x.transpose(0, 2, 1) + y) * z.T - w
    assert np.array_equal(run(shape, body, [x, y, z, w], target), want)


def test_what_lies_along_the_stores_is_not_tiled() -> None:
    x = np.ones((200, 200), np.float32)
    run((200, 200), lambda a: load(a, (axis(0), axis(1))), [x], host(), in_tiles=False)
    small = np.ones((50, 50), np.float32)
    run((50, 50), lambda a: load(a, (axis(1), axis(0))), [small], host(), in_tiles=False)


def test_any_number_of_threads_and_symbolic_sizes() -> None:
    @jg.jit(fallback="error")
    def turned(x: jg.Tensor) -> jg.Tensor:
        return x.t().contiguous() * 2

    before = jg.get_num_threads()
    try:
        for threads in (1, 3):
            jg.set_num_threads(threads)
            for m, n in ((300, 200), (301, 200), (455, 200), (17, 200)):
                x = jg.randn(m, n)
                assert np.array_equal(turned(x).numpy(), x.numpy().T * 2)
    finally:
        jg.set_num_threads(before)
    assert turned.stats.compiles <= 3


@pytest.mark.parametrize("name", ["sin", "pow", "mixed"])
def test_code_out_of_line(name: str) -> None:
    """Arguments that need a slow way (huge ones to sin) in operands that lie either way."""
    f = {
        "sin": lambda x, y: x.sin() + y.sin(),
        "pow": lambda x, y: y.abs().pow(x) + y.sin() * x.cos(),
        "mixed": lambda x, y: jg.where(x > 0, y.sin(), x.tan()),
    }[name]
    x, y = jg.randn(150, 131), jg.randn(131, 150)
    x[3, 5] = x[149, 130] = y[7, 9] = y[130, 149] = 1e7
    straight = jg.jit(f, fallback="error")
    turned = jg.jit(lambda x, y: f(x.t(), y), fallback="error")
    results = []
    for _ in range(2):
        results = [straight(x.t().contiguous(), y).numpy(), turned(x, y).numpy()]
    assert np.array_equal(*results, equal_nan=True)
