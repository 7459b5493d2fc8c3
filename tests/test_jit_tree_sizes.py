"""Under @jit, functions whose result's size depends on values: the size is a branch of the tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.jit import jit
from jitgrad.pytree import flatten

INPUTS = [
    jg.tensor([[1.0, 0.0, 3.0], [-1.0, 2.0, 2.0]]),
    jg.tensor([[0.0, 0.0, 3.0], [-1.0, 2.0, 2.0]]),
    jg.tensor([[1.0, 1.0, 1.0], [-1.0, 2.0, -2.0]]),
    jg.zeros(2, 3),
    jg.tensor([[1.0, jg.nan, 1.0], [2.0, jg.nan, 0.0]]).nan_to_num(4.0).t().contiguous().t(),
]


def numbers(x: Any) -> Any:
    return x.abs().long().reshape(-1)


def masked_in_place(x: Any) -> Any:
    y = x.clone()
    y[x > 1] = 0
    y[y < 0] = y[y < 0] * 2
    y[0][x[0] > 0] += 1
    return y


def gradient_through_mask(x: Any) -> Any:
    x = x.detach().requires_grad_()
    (x[x > 0] ** 2).sum().backward()
    return x.grad


def gradient_outside(x: Any) -> Any:
    return x[x > 0].exp()


FUNCTIONS: dict[str, Any] = {
    "nonzero": lambda x: (x.nonzero(), x.nonzero(as_tuple=True), jg.argwhere(x > 0)),
    "nonzero of a number": lambda x: (jg.nonzero(x[0, 0]), jg.argwhere(x[0, 1])),
    "masks": lambda x: (x[x > 0], x.masked_select(x < 0), jg.where(x > 1)),
    "rows": lambda x: (x[x.sum(1) > 3], x[:, x[0] > 0] * 2, x[0][x[1] > 0]),
    "masked_in_place": masked_in_place,
    "bincount": lambda x: jg.bincount(numbers(x)),
    "weighted bincount": lambda x: (
        jg.bincount(numbers(x), x.reshape(-1)), jg.bincount(numbers(x), minlength=9),
    ),
    "unique": lambda x: (x.unique(), x.long().unique(return_inverse=True, return_counts=True)),
    "unique_consecutive": lambda x: jg.unique_consecutive(x, True, True),
    "repeat_interleave": lambda x: (
        x.reshape(-1).repeat_interleave(numbers(x)), jg.repeat_interleave(numbers(x)),
        x.repeat_interleave(numbers(x)[:1], dim=0),
    ),
    "one_hot": lambda x: jg.nn.functional.one_hot(x.abs().long()),
    "allclose": lambda x: (jg.allclose(x, x.relu()), jg.equal(x, x.abs())),
    "gradient_through_mask": gradient_through_mask,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_are_branches(name: str) -> None:
    function = FUNCTIONS[name]
    f = jit(function, fallback="error")
    for x in INPUTS * 3:
        got, want = flatten(f(x)), flatten(function(x))
        assert got[1] == want[1]
        for a, b in zip(got[0], want[0], strict=True):
            if isinstance(b, jg.Tensor):
                assert a.dtype is b.dtype and a.shape == b.shape
                np.testing.assert_array_equal(a.numpy(), b.numpy())
            else:
                assert a == b
    assert f.stats.hits >= 2 * len(INPUTS) and f.stats.fallbacks == 0


def test_masked_results_are_differentiated_outside() -> None:
    f = jit(gradient_outside, fallback="error")
    for x in INPUTS * 2:
        x = x.detach().requires_grad_()
        (got,) = jg.autograd.grad(f(x).sum(), x)
        (want,) = jg.autograd.grad(gradient_outside(x).sum(), x)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    assert f.stats.hits >= len(INPUTS)


@pytest.mark.parametrize("calls", [1, 3])
def test_what_they_refuse(calls: int) -> None:
    """Negative numbers raise what eager code raises, in the first call and in compiled ones."""
    count = jit(lambda x: jg.bincount(x), fallback="error")
    repeat = jit(lambda x: jg.repeat_interleave(x), fallback="error")
    for _ in range(calls - 1):
        count(jg.tensor([1, 2])), repeat(jg.tensor([1, 2]))
    for f, match in ((count, "1-d non-negative integral"), (repeat, "can not be negative")):
        with pytest.raises(RuntimeError, match=match):
            f(jg.tensor([1, -2]))
    with pytest.raises(RuntimeError, match="1-d non-negative"):
        jit(lambda x: jg.bincount(x), fallback="error")(jg.ones(2))


def test_empty_inputs() -> None:
    empty = jg.zeros(0)
    for name in ("nonzero", "masks", "unique", "unique_consecutive"):
        function = FUNCTIONS[name] if name != "masks" else (lambda x: x[x > 0])
        f = jit(function, fallback="error")
        for _ in range(2):
            for a, b in zip(flatten(f(empty))[0], flatten(function(empty))[0], strict=True):
                assert a.shape == b.shape and a.dtype is b.dtype
        assert f.stats.hits == 1


def test_guards_of_one_leaf_do_not_bind_the_others() -> None:
    """Which of two sizes is larger matters below where it was asked, and nowhere else."""

    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x.cumsum(0) * x.shape[0]
        if x.shape[0] > 6:
            return x[: x.shape[0] - 6].sum()
        return x.mean() * x.shape[0]

    fast = jg.jit(f, fallback="error")
    for n, sign in [(8, 1), (7, 1), (9, -1), (5, 1), (4, -1), (12, 1), (12, -1), (3, 1), (3, -1)]:
        x = jg.arange(1.0, n + 1) * sign
        assert jg.allclose(fast(x), f(x), rtol=1e-5)
    # 8 for itself; then a leaf for each way: positive, more than 6, up to 6.
    assert (fast.stats.traces, fast.stats.hits) == (4, 5), fast.explain_last_miss()
    assert fast.stats.compiles == 4  # the branch and three leaves
    assert "tree of 3 leaves" in str(fast.explain())
