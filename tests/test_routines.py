"""Routines: what contractions share is generated and compiled once; LLVM's threads; the budget."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.compiler.codegen import objects, workers
from jitgrad.compiler.codegen.kernelcode import ROUTINE
from jitgrad.compiler.codegen.target import host
from jitgrad.jit import jit
from jitgrad.runtime import cache
from jitgrad.runtime.knobs import knob


@pytest.fixture
def emitted(monkeypatch: Any) -> list[str]:
    """The symbols that LLVM is asked to make code of, with nothing compiled before."""
    names: list[str] = []
    made = workers.optimised

    def counted(text: str, *args: Any, **kwargs: Any) -> Any:
        names.extend(re.findall(r'^define [^@]*@"([^"]+)"', text, re.MULTILINE))
        return made(text, *args, **kwargs)

    monkeypatch.setattr(workers, "optimised", counted)
    monkeypatch.setattr(objects, "_objects", type(objects._objects)())
    return names


def products(*sizes: tuple[int, int, int]) -> list[tuple[Any, Any]]:
    return [(jg.randn(m, k), jg.randn(k, n)) for m, n, k in sizes]


def together(*pairs: Any) -> Any:
    return [a @ b for a, b in pairs]


def test_contractions_of_one_tile_share_their_routines(emitted: list[str]) -> None:
    pairs = products((140, 64, 48), (280, 96, 80), (420, 160, 112))
    with knob(cache=False):
        got = jit(together, fallback="error")(*pairs)
    for y, (a, b) in zip(got, pairs, strict=True):
        want = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-4)
    routines = [x for x in emitted if x.startswith(ROUTINE)]
    assert len(routines) == len(set(routines)), "each is compiled once"
    blocks = [x for x in emitted if x.endswith("_blocks")]
    assert len(blocks) == 3
    assert len(routines) == 4, "a micro-kernel, packings of both sides, an epilogue"


def test_drivers_are_not_optimised_and_compute_the_same(monkeypatch: Any) -> None:
    levels = {}
    emit = workers.emit_object

    def seen(module: Any, target: Any, driver: bool = False) -> bytes:
        names = [f.name for f in module.functions if not f.is_declaration]
        levels.update(dict.fromkeys(names, driver))
        return emit(module, target, driver)

    monkeypatch.setattr(workers, "emit_object", seen)
    monkeypatch.setattr(objects, "_objects", type(objects._objects)())
    # windows, a strided view, a fused producer, torn tiles, k in several blocks: all that a driver
    # does by itself, and all that it hands out
    jg.manual_seed(0)
    x, w, v = jg.randn(2, 40, 13, 11), jg.randn(37, 40, 3, 3), jg.randn(37, 1500)

    def f(x: Any, w: Any, v: Any) -> Any:
        y = F.conv2d(x, w, stride=2, padding=1)
        return y, (v.sin() @ v.T.exp() + 1).relu(), F.conv2d(x, w, padding=1)

    found = []
    for opt in ("2", "3"):
        with knob(cache=False, opt=opt):
            found.append([t.numpy() for t in jit(f, fallback="error")(x, w, v)])
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)
    drivers = {name for name, driver in levels.items() if driver}
    assert {name.split("_")[-1] for name in drivers} >= {"blocks", "filter"}
    assert not any(name.startswith((ROUTINE, "jg_")) for name in drivers)


@pytest.mark.parametrize("threads", [1, 4])
def test_any_number_of_compiling_threads_gives_the_same_bits(
    threads: int, emitted: list[str]
) -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        y = F.conv2d(x, w, padding=1).relu()
        return (y.flatten(1) @ v).softmax(1).sum(0), y.mean((0, 2, 3))

    jg.manual_seed(0)
    args = jg.randn(2, 3, 8, 8), jg.randn(4, 3, 3, 3), jg.randn(256, 32)
    with knob(cache=False, compile_threads=threads):
        found = [t.numpy() for t in jit(f, fallback="error")(*args)]
    assert len(emitted) > 2
    with knob(cache=False, eager="numpy"):
        for got, want in zip(found, f(*args), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=1e-5)
    _bits.setdefault("first", found)
    for got, want in zip(found, _bits["first"], strict=True):
        np.testing.assert_array_equal(got, want)


_bits: dict[str, list[np.ndarray]] = {}


def test_a_lost_routine_is_compiled_again(
    emitted: list[str], monkeypatch: Any, tmp_path: Any
) -> None:
    pairs = products((70, 33, 20))
    with knob(cache=True, cache_dir=str(tmp_path)):
        first = jit(together, fallback="error")
        want = first(*pairs)[0].numpy()
        routines = [x for x in emitted if x.startswith(ROUTINE)]
        assert routines
        read = cache.get
        lost = {objects.object_key(x, host()) for x in routines}
        for images in (True, False):  # an image comes with its routines
            first.clear()
            gc.collect()
            objects._objects.clear()
            emitted.clear()
            monkeypatch.setattr(
                cache, "get",
                lambda key, images=images: None
                if key in lost or (key.startswith("image-") and not images)
                else read(key),
            )  # fmt: skip
            np.testing.assert_array_equal(first(*pairs)[0].numpy(), want)
            assert [x for x in emitted if x.startswith(ROUTINE)] == ([] if images else routines)
        assert not [x for x in emitted if x.endswith("_blocks")], "that is still there"


def test_the_budget_names_each_phase(capsys: Any) -> None:
    with knob(cache=False, log="compile"):
        jit(lambda x, w: (x @ w).exp().sum(), fallback="error", name="work")(
            jg.randn(9, 20), jg.randn(20, 11)
        )
    err = capsys.readouterr().err
    assert re.search(r"\[compile\] work: +\d+\.\d ms, of which", err)
    for step in ("simplify", "lower", "inline", "fuse", "order", "generate", "memory", "llvm",
                 "load", "image"):  # fmt: skip
        assert re.search(rf"\[compile\]   {step} +\d+\.\d ms +\d+\.\d %\n", err), step
    assert re.search(r"LLVM in all threads: optimise \d+\.\d ms, emit \d+\.\d ms, load", err)
