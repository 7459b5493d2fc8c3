"""Products of narrow operands in groups along k: bfloat16 in pairs, bytes in fours.

On processors without the instructions the same tests run on what converts such operands.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernels import Run

import jitgrad as jg
from jitgrad.compiler.codegen import target as targets
from jitgrad.compiler.codegen.dot import dot_of
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.kernels import ContractionKernel, Store
from jitgrad.compiler.loops import (
    Array,
    Builder,
    axis,
    load,
)
from jitgrad.compiler.symbolic import Dim, ShapeEnv
from jitgrad.runtime import dtypes
from jitgrad.runtime.dtypes import DType

BF16, F32 = dtypes.bfloat16, dtypes.float32
INT8, UINT8, INT32 = dtypes.int8, dtypes.uint8, dtypes.int32


def product(
    a: np.ndarray, b: np.ndarray, kinds: tuple[DType, DType], turned: tuple[bool, bool],
    target: Target | None = None, workers: int = 1, symbolic: bool = False, parts: int = 0,
) -> np.ndarray:  # fmt: skip
    """a @ b of the kernel; `turned` operands lie column-major."""
    (m, k), n = a.shape, b.shape[1]
    sizes = {"m": m, "n": n, "k": k}
    env = ShapeEnv()
    dims: list[Dim] = [m, n, k]
    if symbolic:
        dims = [env.dim(name, v) if v > 1 else v for name, v in sizes.items()]
    M, N, K = dims
    arrays = [Array("a", (M, K), kinds[0]), Array("b", (K, N), kinds[1])]
    for x, flip in zip(arrays, turned, strict=True):
        if flip:
            x.strides = (1, x.shape[0])
    acc = F32 if kinds[0].is_floating_point else INT32
    i, j, r = axis(0), axis(1), axis(2)
    builder = Builder()
    y = builder.contraction(
        (M, N), acc, batch=(), m=(0,), n=(1,), k=(K,),
        a=load(arrays[0], (i, r)).cast(acc), b=load(arrays[1], (r, j)).cast(acc), acc=acc,
        parts=parts,
    )  # fmt: skip
    out = np.full((m, n), 77, acc.np)
    kernel = ContractionKernel(y, [Store(y, (i, j), load(y, (i, j)))])
    given = {
        x: np.ascontiguousarray(v.T if flip else v)
        for x, v, flip in zip(arrays, (a, b), turned, strict=True)
    }
    assert Run(kernel, target)({**given, y: out}, sizes if symbolic else None, workers=workers) < 0
    return out


def brain(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(BF16.np)


def assert_within_bound(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """The bound of a sum in float32 of exact products."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    bound = (a.shape[1] + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(got - a @ b) <= bound)


def every_byte(rng: np.random.Generator, kind: DType, *shape: int) -> np.ndarray:
    info = np.iinfo(kind.np)
    x = rng.integers(info.min, info.max + 1, shape).astype(kind.np)
    x.flat[:2] = info.min, info.max
    return x


LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]
SIZES = [(1, 1, 1), (1, 40, 33), (13, 3, 31), (17, 16, 2), (29, 35, 300), (70, 67, 531)]
DEEP = [(19, 33, 1024), (30, 17, 1027), (5, 70, 2500)]  # blocks of bytes are deeper


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("m,n,k", SIZES)
def test_bfloat16(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(m)
    a, b = brain(rng, m, k), brain(rng, k, n)
    assert_within_bound(product(a, b, (BF16, BF16), turned), a, b)


@pytest.mark.parametrize("turned", LAYOUTS)
@pytest.mark.parametrize("m,n,k", SIZES + DEEP)
def test_bytes_are_exact(m: int, n: int, k: int, turned: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(m)
    a, b = every_byte(rng, INT8, m, k), every_byte(rng, INT8, k, n)
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(product(a, b, (INT8, INT8), turned), wanted)


@pytest.mark.parametrize("kinds", [(UINT8, INT8), (INT8, UINT8), (UINT8, UINT8)])
def test_unsigned_bytes(kinds: tuple[DType, DType]) -> None:
    rng = np.random.default_rng(0)
    a, b = every_byte(rng, kinds[0], 20, 75), every_byte(rng, kinds[1], 75, 37)
    wanted = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(product(a, b, kinds, (False, False)), wanted)


@pytest.mark.parametrize("kind", [BF16, INT8])
def test_bits_do_not_depend_on_threads_layouts_or_symbolic_dims(kind: DType) -> None:
    rng = np.random.default_rng(0)
    made = [brain(rng, 90, 301), brain(rng, 301, 70)]
    if kind is INT8:
        made = [every_byte(rng, INT8, *x.shape) for x in made]
    first = product(*made, (kind, kind), (False, False))
    for turned, workers, symbolic in (((True, True), 3, False), ((False, True), 1, True)):
        other = product(*made, (kind, kind), turned, None, workers, symbolic)
        assert first.tobytes() == other.tobytes()


def test_without_the_instructions() -> None:
    host = targets.host()
    if not host.triple.startswith("x86_64"):
        pytest.skip("for x86-64")
    level = targets.named(host.triple, "x86-64-v3")
    if level.vector_bytes > host.vector_bytes:
        pytest.skip("not on this processor")
    rng = np.random.default_rng(0)
    a, b = brain(rng, 20, 45), brain(rng, 45, 30)
    assert_within_bound(product(a, b, (BF16, BF16), (False, False), level), a, b)
    c, d = every_byte(rng, INT8, 20, 45), every_byte(rng, INT8, 45, 30)
    wanted = c.astype(np.int32) @ d.astype(np.int32)
    np.testing.assert_array_equal(product(c, d, (INT8, INT8), (False, False), level), wanted)


def test_nan_and_infinity() -> None:
    a = np.ones((3, 5), np.float32)
    a[0, 1], a[1, 2] = np.nan, np.inf
    b = np.ones((5, 4), np.float32)
    out = product(a.astype(BF16.np), b.astype(BF16.np), (BF16, BF16), (False, False))
    np.testing.assert_array_equal(out, np.array([[np.nan] * 4, [np.inf] * 4, [5.0] * 4]))


@pytest.mark.parametrize(
    "shape,weight", [((2, 5, 9, 11), (7, 5, 3, 2)), ((1, 16, 8, 8), (16, 16, 3, 3))]
)
def test_convolution(shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    """Windows are gathered into groups."""
    rng = np.random.default_rng(0)
    x, w = (jg.tensor(rng.standard_normal(s), dtype=jg.bfloat16) for s in (shape, weight))
    conv = jg.jit(lambda x, w: jg.nn.functional.conv2d(x, w, padding=1), fallback="error")
    wide = [t.to(jg.float64) for t in (x, w)]
    wanted = jg.nn.functional.conv2d(*wide, padding=1).numpy()
    got = conv(x, w).to(jg.float64).numpy()
    scale = jg.nn.functional.conv2d(*(t.abs() for t in wide), padding=1).numpy()
    assert np.all(np.abs(got - wanted) <= 2.0**-8 * np.abs(wanted) + 2.0**-16 * scale)


def test_which_products() -> None:
    x, y = (Array(name, (4, 4), BF16) for name in "xy")
    b = Builder()
    index = (axis(0), axis(1))
    reads = [load(v, index).cast(F32) for v in (x, y)]
    made = b.contraction((4,), F32, batch=(), m=(0,), n=(), k=(4,), a=reads[0], b=reads[1], acc=F32)
    plain = targets.named("x86_64-unknown-linux-gnu", "x86-64-v4")
    able = targets.named(
        "x86_64-unknown-linux-gnu", "x86-64-v4",
        "+avx512f,+avx512bw,+avx512vl,+avx512bf16,+avx512vnni",
    )  # fmt: skip
    assert dot_of(made.define, *reads, plain) is None
    found = dot_of(made.define, *reads, able)
    assert found is not None and found.group == 2
    computed = reads[0] + reads[0]  # no load: it is computed in float32 while it is packed
    assert dot_of(made.define, computed, reads[1], able) is None
