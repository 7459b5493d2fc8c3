"""Sorts by digits and by blocks, and the three ways of scattering, against references."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_graphs import close, compiled, normal, recorded, run

import jitgrad as jg
from jitgrad.compiler.cuda_compiled import CudaCompiled
from jitgrad.compiler.interpret import interpret

_KINDS = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]


def check(f: Any, args: Sequence[np.ndarray], exact: bool = True, **target: Any) -> CudaCompiled:
    graph = recorded(f, *args)
    # Inputs are in the order of their first use.
    names = list(inspect.signature(f).parameters)
    args = [args[names.index(item.name)] for item in graph.inputs]
    code = compiled(graph, **target)
    for got, want in zip(run(code, args), interpret(graph, args), strict=True):
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            close(got, want)
    return code


def names(code: CudaCompiled) -> set[str]:
    return {symbol.partition("_")[0] for symbol in code.shapes}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", _KINDS)
def test_long_lines_are_sorted_by_digits(kind: str, descending: bool) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((2, 70)) * 5).round()
    x = (x > 0) if kind == "bool" else np.abs(x) if kind == "uint8" else x
    x = x.astype(kind)
    if x.dtype.kind == "f":
        x[0, 3:9] = [np.nan, -0.0, 0.0, np.inf, -np.inf, np.nan]
    code = check(lambda x: jg.sort(x, -1, descending=descending, stable=True), [x], long_line=48)
    assert {"keys", "count", "offsets", "move"} <= names(code)


@pytest.mark.parametrize("kind", ["int64", "float64"])
def test_all_bits_of_keys_count(kind: str) -> None:
    x = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 60)
    x[:4] = [2**63 - 1, -(2**63), 0, -1]
    check(lambda x: jg.sort(x)[0], [x.astype(kind)], long_line=48)


def test_sorts_along_other_dims_and_their_first() -> None:
    x = normal(60, 3)
    check(lambda x: jg.sort(x * 2, 0), [x], long_line=48)
    check(lambda x: jg.topk(x, 7, 0), [x], long_line=48)
    check(lambda x: jg.topk(x, 7, 0, largest=False)[1], [x], long_line=48)
    check(lambda x: jg.argsort(x.T, -1), [x], long_line=48)


# -- scatters --------------------------------------------------------------------------------------
_WAYS: dict[str, dict[str, int]] = {"segments": {"many_points": 1}, "order": {"many_points": 10**6}}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("kind", ["float32", "float16", "bool", "int8"])
def test_index_add(way: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    base, new = rng.standard_normal((6, 5)), rng.standard_normal((40, 5)) * 3
    base, new = ((x > 0 if kind == "bool" else x).astype(kind) for x in (base, new))
    index = rng.integers(0, 5, 40)  # the last row of the base stays
    if kind == "bool":
        code = check(lambda b, i, x: b.index_copy(0, i, x), [base, index, new], **_WAYS[way])
    else:
        code = check(lambda b, i, x: b.index_add(0, i, x), [base, index, new], **_WAYS[way])
    assert ("move" in names(code)) == (way == "segments")


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_reduce(way: str, reduce: str, dim: int) -> None:
    rng = np.random.default_rng(2)
    base, new = normal(5, 7), normal(5, 7, seed=1)
    index = rng.integers(0, 4, (5, 7))
    check(lambda b, i, x: b.scatter_reduce(dim, i, x, reduce), [base, index, new], **_WAYS[way])
    check(lambda b, i, x: b.scatter(dim, i, x), [base, index, new], **_WAYS[way])


@pytest.mark.parametrize("way", _WAYS)
def test_index_put_with_two_indices(way: str) -> None:
    rng = np.random.default_rng(2)
    i, j = rng.integers(0, 3, 30), rng.integers(-4, 4, 30)

    def f(x: Any, i: Any, j: Any, v: Any) -> Any:
        return x.index_put((i, j), v, accumulate=True), x.index_put((i, j), v)

    check(f, [normal(3, 4), i, j, normal(30)], **_WAYS[way])


@pytest.mark.parametrize("way", _WAYS)
def test_a_bad_index_is_an_error(way: str) -> None:
    index = np.arange(40) % 7
    with pytest.raises(IndexError, match="out of"):
        check(lambda b, i, x: b.index_add(0, i, x), [normal(6, 2), index, normal(40, 2)],
              **_WAYS[way])  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers_meet_by_atomics(kind: str) -> None:
    rng = np.random.default_rng(1)
    base, new = (rng.integers(-9, 9, n).astype(kind) for n in ((4, 3), (30, 3)))
    index = rng.integers(0, 4, 30)
    code = check(lambda b, i, x: b.index_add(0, i, x), [base, index, new])
    assert any("atomic_sum(" in text for text in code.texts.values())
    wide = np.repeat(index[:, None], 3, 1)
    for reduce in ("amax", "amin"):
        code = check(lambda b, i, x, r=reduce: b.scatter_reduce(0, i, x, r), [base, wide, new])
        assert any(f"atomic_{reduce[1:]}(" in text for text in code.texts.values())


def test_gradients_of_embeddings_repeat() -> None:
    """Sums of floats in the order of the points: the CPU's bits."""
    index = np.random.default_rng(0).integers(0, 3, (6, 8))

    def f(i: Any, w: Any) -> Any:
        y = jg.nn.functional.embedding(i, w)
        return jg.autograd.grad((y * y.detach()).sum(), w)[0]

    graph = jg.jit(f).lower(
        jg.TensorSpec((6, 8), jg.int64), jg.TensorSpec((4, 5), requires_grad=True)
    ).graph  # fmt: skip
    args = [index, normal(4, 5)]
    (got,), (again,) = run(compiled(graph), args), run(compiled(graph), args)
    (want,) = jg.compiler.pipeline.compile_graph(graph).run(args)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, again)
