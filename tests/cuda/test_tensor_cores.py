"""Where the elements of matrices are in the registers of a warp, by the PTX ISA's own formulas.

The simulator has no tensor cores, so the real functions of device.py run here, as Python, for each
of the 32 lanes; the instruction is a model of what the ISA says of mma.m16n8k16."""

from __future__ import annotations

import ast
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np

from jitgrad.compiler.codegen.cuda import simulated


def functions(cuda: Any, pair: Any) -> dict[str, Any]:
    """part_a and part_b of device.py, which imports numba's compiler, as plain Python."""
    path = inspect.getsourcefile(simulated)
    assert path is not None
    with open(path.replace("simulated.py", "device.py"), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    found: dict[str, Any] = {"cuda": cuda, "pair": pair}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("part_a", "part_b"):
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
