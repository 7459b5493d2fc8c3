"""A graph that was compiled before costs no compile: in memory, and on disk. Code is freed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import graph_cache
from jitgrad.compiler.codegen import objects
from jitgrad.compiler.image import Image
from jitgrad.compiler.ir import Graph
from jitgrad.compiler.symbolic import ShapeEnv
from jitgrad.jit import jit
from jitgrad.runtime import cache
from jitgrad.runtime.knobs import knob


@pytest.fixture(autouse=True)
def _strict(tmp_path: Path) -> Any:
    with knob(fallback="error", cache_dir=str(tmp_path / "cache")):
        yield


def report(f: Any) -> Any:
    return f.specialisations[0].compiled.report


def test_equal_graphs_share_code_whatever_their_names() -> None:
    w, v = jg.randn(419), jg.randn(419)  # a size that no other test has
    f, g, h = jit(lambda x: (x * w).sin()), jit(lambda y: (y * v).sin()), jit(lambda x: x * w)
    x = jg.randn(419)
    for function in (f, g, h):
        np.testing.assert_allclose(function(x).numpy(), function(x).numpy(), rtol=1e-6, atol=1e-7)
    assert not report(f).cached and report(g).cached and not report(h).cached
    assert set(report(g).milliseconds) == {"find"}  # no pass ran
    first, second = (k.specialisations[0].compiled for k in (f, g))
    assert first.loaded is second.loaded and first.graph is not second.graph
    np.testing.assert_allclose(g(x).numpy(), (x * v).sin().numpy(), rtol=1e-6, atol=1e-7)


def test_a_retrace_of_what_was_seen_compiles_nothing(monkeypatch: Any) -> None:
    f = jit(lambda x: x.exp() + 1)
    x = jg.randn(5)
    f(x), f(x)
    f.clear()
    gc.collect()
    monkeypatch.setattr(objects, "compile_object", None)  # would raise
    f(x), f(x)
    assert f.stats.traces == 2 and report(f).cached


def test_errors_name_the_line_of_this_function() -> None:
    def one(x: Any, i: Any) -> Any:
        return x[i]

    def two(x: Any, i: Any) -> Any:
        return x[i]

    for f in (one, two):
        fast = jit(f)
        fast(jg.arange(3), jg.tensor([0]))
        line = f.__code__.co_firstlineno + 1
        with pytest.raises(IndexError, match=rf"test_graph_cache.py:{line}\b"):
            fast(jg.arange(3), jg.tensor([7]))


def test_layouts_and_types_are_part_of_the_key() -> None:
    f = jit(lambda x: x * 2)
    x = jg.arange(12.0).reshape(3, 4)
    for y in (x, x.t(), x.double(), x[:, ::2]):
        for _ in range(2):
            np.testing.assert_array_equal(f(y).numpy(), y.numpy() * 2)
    assert f.stats.traces == 4


def test_dropping_functions_frees_their_code() -> None:
    gc.collect()
    before, code = len(graph_cache._loaded), len(objects._loaded)
    functions = [jit(lambda x, n=n: x.sin() * n) for n in range(5)]
    for f in functions:
        f(jg.ones(3)), f(jg.ones(3))
    assert len(graph_cache._loaded) == before + 5 and len(objects._loaded) > code
    del f, functions
    gc.collect()
    assert len(graph_cache._loaded) == before and len(objects._loaded) == code


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_memory_stays_flat_over_many_compiles(count: int) -> None:
    def compile_one(n: int) -> None:
        f = jit(lambda x: ((x + n) * x.exp()).sum() + n)
        f(jg.ones(64)), f(jg.ones(64))

    with knob(cache=False):  # what is compiled, not read from the disk: the compiler is loaded
        for n in range(30):
            compile_one(n)
        gc.collect()
        before = resident()
        for n in range(30, 30 + count):
            compile_one(n)
            if n % 50 == 0:  # garbage in cycles waits for the collector, and takes memory meanwhile
                gc.collect()
        gc.collect()
    assert resident() - before < count * 40_000 + 8_000_000  # LLVM alone takes 0.3 MB to keep one


WARM = """
import jitgrad as jg
from jitgrad import nn
jg.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = jg.optim.Adam(model.parameters())
@jg.jit(fallback="error")
def step(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
x = jg.randn(3, 4)
step(x), step(x), step(x)
import sys
spec = step.specialisations[0]
print(spec.compiled.report.cached, "jitgrad.compiler.pipeline" in sys.modules)
print([round(float(p.sum()), 5) for p in model.parameters()])
from jitgrad.runtime import cache
print(cache.stats().hits, cache.stats().misses, spec.compiled.report.kernels)
"""


def test_a_second_process_runs_no_pass_and_loads_no_code_generator(tmp_path: Path) -> None:
    env = {**os.environ, "JITGRAD_CACHE_DIR": str(tmp_path / "shared")}
    runs = [
        subprocess.run([sys.executable, "-c", WARM], env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    (first, one, _), (second, other, counts) = (r.stdout.splitlines() for r in runs)
    assert first == "False True", runs[0].stderr
    assert second == "True False" and one == other
    read, missed, kernels = map(int, counts.split())
    assert kernels > 2 and missed == 0
    assert read == 3, "the program is one file; the pool, and the key of its object, are the others"


def test_an_entry_that_is_no_image_counts_for_nothing(tmp_path: Path) -> None:
    with knob(cache=True, cache_dir=str(tmp_path / "junk")):
        for junk in (b"", b"{}", b"null\nx", b"[5, [[1]]]\n", b"[3, []]\nabc", b"\xff\n"):
            cache.put("image-of-nothing", junk)
            assert cache.get("image-of-nothing") == junk
            assert graph_cache._read("image-of-nothing") is None


ONE_OP = """
import sys
import jitgrad as jg
y = jg.full((1000, 1000), 0.5).sin().sum()
print(round(y.item(), 1), "jitgrad.compiler.pipeline" in sys.modules)
"""


def test_kernels_of_eager_code_are_found_without_the_compiler(tmp_path: Path) -> None:
    env = {**os.environ, "JITGRAD_CACHE_DIR": str(tmp_path / "shared"), "JITGRAD_EAGER": "auto"}
    runs = [
        subprocess.run([sys.executable, "-c", ONE_OP], env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    first, second = (r.stdout.split() for r in runs)
    assert first[1:] == ["True"] and second[1:] == ["False"], runs[1].stderr
    assert first[0] == second[0]


def test_modules_compile_once_for_equal_layers() -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    fast = [jit(layer) for layer in layers]
    x = jg.randn(2, 4)
    with jg.no_grad():
        for f, layer in zip(fast, layers, strict=True):
            f(x)
            np.testing.assert_allclose(f(x).numpy(), layer(x).numpy(), rtol=1e-5)
    assert [report(f.jitted).cached for f in fast] == [False, True, True]


RAGGED = """
import sys
import jitgrad as jg
import jitgrad.nn.functional as F
w = jg.arange(12.0).view(4, 3).div(7).requires_grad_()
table = jg.arange(40.0).view(10, 4) / 9
@jg.jit(fallback="error")
def step(i):
    w.grad = None
    y = F.softmax(table[i] @ w, 0)[: i.shape[0] // 2]
    (y.square().sum() * i.numel()).backward()
    return y.sum(), jg.scan(lambda c, x: (c + x.sum(), c * x), jg.zeros(4), table[i])[1]
for n in (4, 7, 5, 10):
    y, ys = step(jg.arange(n))
    print(round(float(y.sum()), 4), round(float(w.grad.abs().sum()), 4), round(float(ys.sum()), 3))
try:
    step(jg.tensor([3, 4, 11, 0, 1, 2]))
except IndexError as error:
    print("index 11 is out of bounds" in str(error))
spec = step.specialisations[0]
print(step.stats.traces, spec.compiled.report.cached, "jitgrad.compiler.pipeline" in sys.modules)
print(step.memory_plan())
"""


def test_graphs_with_symbolic_sizes_are_kept(tmp_path: Path) -> None:
    """A second process finds code, arena and guards; results, errors and the plan are the same."""
    env = {**os.environ, "JITGRAD_CACHE_DIR": str(tmp_path / "shared")}
    runs = [
        subprocess.run([sys.executable, "-c", RAGGED], env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    first, second = (r.stdout.splitlines() for r in runs)
    assert first[5] == "2 False True", runs[0].stderr
    assert second[5] == "2 True False", runs[1].stderr
    assert first[4] == "True" and first[:5] + first[6:] == second[:5] + second[6:]


def test_the_range_of_sizes_is_part_of_the_key() -> None:
    """What is known of sizes decides how code is made."""

    def f(x: Any) -> Any:
        return x.cumsum(0) * 431

    fast = [
        jit(f, dynamic_shapes={"x": {0: jg.Dim("n", max=n)}}) for n in (16, 64, 64)
    ]  # of which the last two are alike
    for g in fast:
        for n in (5, 9, 16):
            np.testing.assert_allclose(g(jg.ones(n)).numpy(), f(jg.ones(n)).numpy())
    assert [report(g).cached for g in fast] == [False, False, True]


def test_guards_that_compiling_made_come_with_the_code() -> None:
    """Code that holds for some sizes only says so wherever it is found."""
    env = ShapeEnv()
    n = env.dim("n", 8)
    graph = Graph(env=env)
    image = Image(sizes=["n"], guards=[("<", "n", "10", True)])
    assert [str(s) for s in graph_cache.sizes_of(graph, image) or []] == ["n"]
    assert [g.expression() for g in env.guards] == ["n < 10"] and n < 10
    env.hints["n"] = 12
    env.guards.clear()
    assert graph_cache.sizes_of(graph, image) is None and not env.guards


def test_programs_of_one_key_are_not_mixed() -> None:
    """Compiled for other sizes a graph is another program: its own code has its own arena. (Without
    a cache, and where threads compile the same at once, both are made.)"""

    def f(x: Any) -> Any:
        rows = (jg.arange(x.shape[0] // 2, dtype=jg.float64) * 2).long()
        return x.index_select(0, rows).square().sum()

    with knob(cache=False):
        for n in (7, 5, 4, 9):
            fast = jit(f, dynamic=True)
            for _ in range(3):
                x = jg.rand(n, 3, requires_grad=True)
                fast(x).backward()
                found, x.grad = x.grad, None
                f(x).backward()
                np.testing.assert_allclose(found.numpy(), x.grad.numpy(), 1e-6)
