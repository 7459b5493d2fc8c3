"""Kernels that read here or there go by pieces (compiler/codegen/pieces.py): same values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_tiles import TARGETS, run

import jitgrad as jg
from jitgrad.compiler.codegen.pieces import _changes, pieces
from jitgrad.compiler.codegen.program import prepare
from jitgrad.compiler.codegen.target import Target
from jitgrad.compiler.index import Simplifier
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    INDEX,
    Array,
    Expr,
    axis,
    const,
    load,
    make,
    select,
)
from jitgrad.runtime import dtypes


def test_where_comparisons_change() -> None:
    n = 12
    for a, b, op in itertools.product((-3, -2, -1, 1, 2, 3), range(-20, 21), ("lt", "le")):
        e = make(op, axis(0) * a, const(b, INDEX))
        holds = [a * x < b if op == "lt" else a * x <= b for x in range(n)]
        want = [x for x in range(1, n) if holds[x] != holds[x - 1]]
        assert _changes(Simplifier({0: n}), e, {0: n}).get(0, []) == want


def count(shape: tuple[int, ...], value: Expr) -> int:
    out = Array("out", shape, value.dtype)
    index = tuple(axis(k) for k in range(len(shape)))
    return len(pieces(prepare(LoopKernel(shape, [Stage((), (Store(out, index, value),))]))))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("along", [0, 1])
def test_concatenation(along: int, target: Target) -> None:
    rng = np.random.default_rng(0)
    for cut in (1, 31, 128, 299):
        shape = (300, 300)
        sizes = [tuple(n if k == along else 300 for k in range(2)) for n in (cut, 300 - cut)]
        x, y = (rng.standard_normal(s).astype(np.float32) for s in sizes)

        def body(a: Array, b: Array, cut: int = cut) -> Expr:
            here = (axis(0), axis(1))
            there = tuple(i - cut if k == along else i for k, i in enumerate(here))
            return select(make("lt", here[along], const(cut, INDEX)), load(a, here), load(b, there))

        arrays = [Array("x", x.shape, dtypes.float32), Array("y", y.shape, dtypes.float32)]
        assert count(shape, body(*arrays)) == 2
        got = run(shape, body, [x, y], target, in_tiles=False)
        assert np.array_equal(got, np.concatenate([x, y], along))


def test_what_is_not_cut() -> None:
    x = Array("x", (300, 300), dtypes.float32)
    small = Array("x", (30, 30), dtypes.float32)
    here = (axis(0), axis(1))
    first = make("lt", axis(1), const(100, INDEX))
    assert count((300, 300), select(first, load(x, here), const(0.0, dtypes.float32))) == 1
    few = make("lt", axis(1), const(10, INDEX))
    assert count((30, 30), select(few, load(small, here), load(small, here[::-1]))) == 1
    assert count((300, 300), select(first, load(x, here), load(x, here[::-1]))) == 2


def test_public_functions() -> None:
    x, y, z = jg.randn(70, 300), jg.randn(70, 200), jg.randn(70, 1)
    for f in (
        lambda: jg.cat([x, y, z], 1) * 2,
        lambda: jg.cat([x, x.flip(0)], 0).t().contiguous(),
        lambda: x.roll((3, 7), (0, 1)) + x,
        lambda: jg.stack([x, x + 1], 0),
        lambda: jg.nn.functional.pad(x, (3, 4), mode="circular"),
        lambda: jg.nn.functional.pad(x[None], (3, 4), mode="reflect"),
    ):
        compiled = jg.jit(f, fallback="error")
        compiled()
        assert np.array_equal(compiled().numpy(), f().numpy())
