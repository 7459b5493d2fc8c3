"""Where the elements of matrices are in the registers of a warp, by the PTX ISA's own formulas.

The simulator has no tensor cores, so the real functions of device.py run here, as Python, for each
of the 32 lanes; the instruction is a model of what the ISA says of mma.m16n8k16."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_graphs import compiled, recorded, run

import jitgrad as jg
from jitgrad.compiler.codegen.cuda import simulated

_LOADS = ("part_a", "part_b", "words_a", "words_b")


def functions(cuda: Any, pair: Any) -> dict[str, Any]:
    """What loads registers in device.py, which imports numba's compiler, as plain Python."""
    path = inspect.getsourcefile(simulated)
    assert path is not None
    with open(path.replace("simulated.py", "device.py"), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    found: dict[str, Any] = {"cuda": cuda, "pair": pair, "word": lambda x, at: x[at]}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in _LOADS:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), "device.py", "exec"), found)
    return found


def test_registers_hold_what_the_isa_says() -> None:
    rng = np.random.default_rng(0)
    pitch = 24
    a, b = rng.integers(-8, 8, (16, 16)), rng.integers(-8, 8, (16, 8))
    tile_a, tile_b = np.zeros(16 * pitch, int), np.zeros(8 * pitch, int)
    for r in range(16):
        tile_a[r * pitch : r * pitch + 16] = a[r]
    for n in range(8):
        tile_b[n * pitch : n * pitch + 16] = b[:, n]
    lane = SimpleNamespace(threadIdx=SimpleNamespace(x=0))
    real = functions(lane, lambda x, at: (x[at], x[at + 1]))
    got_a, got_b = np.full((16, 16), 99), np.full((16, 8), 99)
    for number in range(32):
        lane.threadIdx.x = 96 + number  # the third warp
        group, place = number >> 2, number % 4
        # "The matrix fragments": a_i of i = 0..7, b_i of i = 0..3.
        for i, value in enumerate(np.ravel(real["part_a"](tile_a, 0, pitch))):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            col = place * 2 + (i & 1) + (8 if i >= 4 else 0)
            got_a[row, col] = value
        for i, value in enumerate(np.ravel(real["part_b"](tile_b, 0, pitch))):
            got_b[place * 2 + (i & 1) + (8 if i >= 2 else 0), group] = value
    np.testing.assert_array_equal(got_a, a)
    np.testing.assert_array_equal(got_b, b)


def test_registers_of_tf32_hold_what_the_isa_says() -> None:
    """mma.m16n8k8: a_i of i = 0..3, b_i of i = 0..1, one element each."""
    rng = np.random.default_rng(0)
    a, b, pitch = rng.integers(-8, 8, (16, 8)), rng.integers(-8, 8, (8, 8)), 12
    tile_a, tile_b = (np.zeros((16, pitch), int) for _ in range(2))
    tile_a[:, :8], tile_b[:8, :8] = a, b.T
    lane = SimpleNamespace(threadIdx=SimpleNamespace(x=0))
    real = functions(lane, None)
    got_a, got_b = np.full((16, 8), 99), np.full((8, 8), 99)
    for number in range(32):
        lane.threadIdx.x = 32 + number
        group, place = number >> 2, number % 4
        for i, value in enumerate(real["words_a"](tile_a.ravel(), 0, pitch)):
            got_a[group + (8 if i in (1, 3) else 0), place + (4 if i >= 2 else 0)] = value
        for i, value in enumerate(real["words_b"](tile_b.ravel(), 0, pitch)):
            got_b[place + 4 * i, group] = value
    np.testing.assert_array_equal(got_a, a)
    np.testing.assert_array_equal(got_b, b)


def test_tf32_is_rounded_to_11_bits() -> None:
    rounded = simulated.namespace(None)["round_tf32"]
    one = np.float32(1)
    for x, want in ((1, 1), (1 + 2**-11, 1 + 2**-10), (1 + 2**-12, 1), (-1 - 2**-11, -1 - 2**-10)):
        assert rounded(one * np.float32(x)) == np.float32(want)
    assert rounded(np.float32(np.inf)) == np.inf and np.isnan(rounded(np.float32(np.nan)))
    assert rounded(np.finfo(np.float32).max) == np.inf  # as cvt.rna.tf32 does


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_products_of_the_precision_that_was_asked_for(precision: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((2, 20, 24)).astype(np.float32) for _ in range(2))
    jg.set_float32_matmul_precision(precision)
    try:
        graph = recorded(lambda a, b: jg.relu(a @ b.mT) + 1, a, b)
    finally:
        jg.set_float32_matmul_precision("highest")
    code = compiled(graph)
    (got,) = run(code, [a, b])
    assert ("mma_tf32" in "".join(code.texts.values())) == (precision != "highest")

    def plain(x: np.ndarray) -> np.ndarray:
        return (x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32).astype(np.float64)

    left, right = (a, b) if precision == "highest" else (plain(a), plain(b))
    want = np.maximum(left.astype(np.float64) @ right.swapaxes(1, 2), 0) + 1
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_sums_are_where_the_isa_says() -> None:
    """The stand-in's thread has the elements of c that the ISA gives it; so micro.py's `place`."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((16, 16)).astype(np.float16)
    b = rng.standard_normal((16, 8)).astype(np.float16)
    lane = SimpleNamespace(threadIdx=SimpleNamespace(x=0))
    mma = simulated.namespace(lane)["mma_f16"]
    want = a.astype(np.float64) @ b.astype(np.float64)
    for number in range(32):
        lane.threadIdx.x = number
        sums = np.zeros(4, np.float32)
        mma((a.ravel(), 0, 16), (b.T.ravel(), 0, 16), sums, 0)
        for i in range(4):
            row = (number >> 2) + (8 if i >= 2 else 0)
            np.testing.assert_allclose(sums[i], want[row, number % 4 * 2 + (i & 1)], rtol=1e-6)
