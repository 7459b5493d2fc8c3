"""Several writes or sums to one place: the rules of docs/numerics.md, eager and compiled alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.runtime.knobs import knob

Arrays = tuple[np.ndarray, ...]


def data(count: int, dtype: str = "float32", seed: int = 0) -> Arrays:
    """base (4, 3), src (count, 3), positions along dim 0, per element and per row."""
    rng = np.random.default_rng(seed)
    base, src = rng.normal(size=(4, 3)).astype(dtype), rng.normal(size=(count, 3)).astype(dtype)
    return base, src, rng.integers(0, 4, (count, 3)), rng.integers(0, 4, count)


def along(combine: str, base: np.ndarray, src: np.ndarray, each: np.ndarray) -> Arrays:
    """By loops: (result, gradient of base, gradient of src) for cotangent 1, 2, 3, ..."""
    out, last = base.copy(), np.full(base.shape, -1)
    for n, (r, c) in enumerate(np.ndindex(*each.shape)):
        place = each[r, c], c
        out[place] = src[r, c] if combine == "set" else out[place] + src[r, c]
        last[place] = n
    g = np.arange(1, base.size + 1, dtype=base.dtype).reshape(base.shape)
    if combine == "sum":
        return out, g, g[each, np.arange(each.shape[1])]
    g_src = np.zeros_like(src)
    g_src.reshape(-1)[last[last >= 0]] = g[last >= 0]
    return out, np.where(last < 0, g, 0), g_src


def rows(combine: str, base: np.ndarray, src: np.ndarray, row: np.ndarray) -> Arrays:
    return along(combine, base, src, np.repeat(row[:, None], base.shape[1], 1))


def put(accumulate: bool) -> Callable[..., Any]:
    return lambda b, s, each, row: b.clone().index_put_((row,), s, accumulate)


def assign(b: Any, s: Any, each: Any, row: Any) -> Any:
    out = b.clone()
    out[row] = s
    return out


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Arrays]]] = {
    "scatter": (
        lambda b, s, each, row: b.scatter(0, each, s), lambda b, s, e, r: along("set", b, s, e)
    ),
    "scatter_add": (
        lambda b, s, each, row: b.scatter_add(0, each, s), lambda b, s, e, r: along("sum", b, s, e)
    ),
    "index_copy": (
        lambda b, s, each, row: b.index_copy(0, row, s), lambda b, s, e, r: rows("set", b, s, r)
    ),
    "index_add": (
        lambda b, s, each, row: b.index_add(0, row, s), lambda b, s, e, r: rows("sum", b, s, r)
    ),
    "index_put_": (put(False), lambda b, s, e, r: rows("set", b, s, r)),
    "accumulate": (put(True), lambda b, s, e, r: rows("sum", b, s, r)),
    "assignment": (assign, lambda b, s, e, r: rows("set", b, s, r)),
}  # fmt: skip


@pytest.mark.parametrize("count", [0, 3, 60])  # none, unrolled, a kernel that scatters
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str, count: int) -> None:
    f, wanted = CASES[name]
    base, src, each, row = data(count)
    cotangent = jg.arange(1.0, 13.0).reshape(4, 3)
    runs = []
    for g in (f, jg.jit(f, fallback="error")):
        b, s = (jg.tensor(x, requires_grad=True) for x in (base, src))
        for _ in range(2):
            b.grad = s.grad = None
            out = g(b, s, jg.tensor(each), jg.tensor(row))
            out.backward(cotangent)
        assert b.grad is not None and s.grad is not None
        runs.append([out.detach().numpy(), b.grad.numpy(), s.grad.numpy()])
    for eager, compiled, want in zip(*runs, wanted(base, src, each, row), strict=True):
        np.testing.assert_array_equal(eager, compiled)
        np.testing.assert_array_equal(eager, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["scatter_add", "index_add", "accumulate"])
def test_sums_of_halves_round_once(name: str, dtype: str) -> None:
    f, wanted = CASES[name]
    base, src, each, row = data(60)
    b, s = (jg.tensor(x).to(getattr(jg, dtype)) for x in (base, src))
    want, *_ = wanted(b.float().numpy(), s.float().numpy(), each, row)
    rounded = jg.tensor(want).to(b.dtype).float()
    for g in (f, jg.jit(f, fallback="error")):
        for _ in range(2):
            out = g(b, s, jg.tensor(each), jg.tensor(row))
            np.testing.assert_array_equal(out.float(), rounded)


def test_the_same_on_any_number_of_threads() -> None:
    base, src, each, row = data(20_000, seed=3)
    for name in ("scatter", "scatter_add", "index_put_", "accumulate"):
        f = CASES[name][0]
        runs = []
        for threads in (1, 3):
            with knob(num_threads=threads):
                fast = jg.jit(f, fallback="error")
                args = (jg.tensor(base), jg.tensor(src), jg.tensor(each), jg.tensor(row))
                fast(*args)
                runs.append(fast(*args).numpy())
        np.testing.assert_array_equal(runs[0], runs[1])
        np.testing.assert_array_equal(runs[0], f(*args))
