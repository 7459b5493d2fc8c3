"""Kernels that read here or there go by pieces (compiler/codegen/pieces.py): same values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from test_tiles import TARGETS, run

import jitgrad as jg
import jitgrad.nn.functional as F
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
    loads,
    make,
    select,
)
from jitgrad.runtime import dtypes


def test_where_comparisons_change() -> None:
    n = 12
    for a, b, op in itertools.product(
        (-3, -2, -1, 1, 2, 3), range(-20, 21), ("lt", "le", "eq", "ne")
    ):
        e = make(op, axis(0) * a, const(b, INDEX))
        compared = {"lt": int.__lt__, "le": int.__le__, "eq": int.__eq__, "ne": int.__ne__}[op]
        holds = [compared(a * x, b) for x in range(n)]
        want = [x for x in range(1, n) if holds[x] != holds[x - 1]]
        assert _changes(Simplifier({0: n}), e, {0: n}).get(0, []) == want


def count(shape: tuple[int, ...], value: Expr) -> int:
    out = Array("out", shape, value.dtype)
    index = tuple(axis(k) for k in range(len(shape)))
    kernel = LoopKernel(shape, [Stage((), (Store(out, index, value),))])
    return sum(len(p.row_parts) or 1 for p in pieces(prepare(kernel)))


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
    first = make("lt", axis(1), const(200, INDEX))
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


_MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def test_choices_of_rows_are_one_read() -> None:
    x = Array("x", (300, 300), dtypes.float32)
    here = (axis(0), axis(1))
    mirrored = (const(299, INDEX) - axis(0), axis(1))
    value = select(make("lt", axis(0), const(100, INDEX)), load(x, here), load(x, mirrored))
    out = Array("out", (300, 300), dtypes.float32)
    program = prepare(LoopKernel((300, 300), [Stage((), (Store(out, here, value),))]))
    (piece,) = pieces(program)
    assert len(loads(piece.exprs())) == 1
    # a row that is read backwards is no choice of a place
    turned = (axis(0), const(299, INDEX) - axis(1))
    value = select(make("lt", axis(0), const(100, INDEX)), load(x, here), load(x, turned))
    assert count((300, 300), value) == 2


@pytest.mark.parametrize("shape", [(3, 5, 41, 62), (16, 7, 11, 19), (2, 3, 130, 33)])
@pytest.mark.parametrize(
    ("mode", "amounts"),
    [
        ("reflect", (3, 3, 3, 3)),
        ("reflect", (7, 0, 2, 9)),
        ("replicate", (1, 4, 0, 2)),
        ("replicate", (20, 20, 1, 1)),
        ("circular", (1, 1, 1, 1)),
        ("circular", (5, 18, 8, 3)),
        ("circular", (-2, 3, 1, -3)),
    ],
)
def test_padding_with_own_elements(
    shape: tuple[int, ...], mode: str, amounts: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    data = rng.standard_normal(shape).astype(np.float32)
    data.reshape(-1)[::37] = np.nan
    x = jg.from_numpy(data)
    widths = [(0, 0), (0, 0), amounts[2:], amounts[:2]]
    kept = tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(shape, widths, strict=True))
    grown = [(max(0, a), max(0, b)) for a, b in widths]
    want = np.pad(data[kept], grown, mode=_MODES[mode])
    compiled = jg.jit(lambda x: F.pad(x, amounts, mode=mode), fallback="error")
    for f in (lambda x: F.pad(x, amounts, mode=mode), compiled, compiled):
        assert np.array_equal(f(x).numpy(), want, equal_nan=True)
    assert np.array_equal(compiled(x[1:]).numpy(), want[1:], equal_nan=True)
    assert np.array_equal(compiled(x[2:]).numpy(), want[2:], equal_nan=True)  # a symbolic dim


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_of_padding_with_own_elements(mode: str) -> None:
    rng = np.random.default_rng(0)
    x = jg.from_numpy(rng.standard_normal((4, 6, 40, 50))).requires_grad_()
    g = jg.from_numpy(rng.standard_normal((4, 6, 45, 53)))

    def grad(x: jg.Tensor) -> jg.Tensor:
        return jg.autograd.grad(F.pad(x, (1, 2, 3, 2), mode=mode), x, g)[0]

    numbers = np.arange(x.numel()).reshape(x.shape)
    places = np.pad(numbers, [(0, 0), (0, 0), (3, 2), (1, 2)], mode=_MODES[mode])
    want = np.zeros(x.numel())
    np.add.at(want, places.reshape(-1), g.numpy().reshape(-1))
    compiled = jg.jit(grad, fallback="error")
    compiled(x)
    for f in (grad, compiled):
        np.testing.assert_allclose(f(x).numpy().reshape(-1), want, rtol=1e-12, atol=1e-12)
    kernels = compiled.specialisations[0].compiled.report.kernels
    assert kernels <= (6 if mode == "replicate" else 2)
