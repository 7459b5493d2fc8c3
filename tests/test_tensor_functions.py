"""Functions and methods of tensors beyond the basic ones, against NumPy: statistics, scatters,
views, out=, random fills, copies and pickles; eager and compiled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

rng = np.random.default_rng(3)
X = rng.standard_normal((5, 6))
I = rng.integers(0, 5, (4, 6))  # noqa: E741
S = rng.standard_normal((4, 6))


def scattered(name: str, include_self: bool) -> np.ndarray:
    """scatter_reduce along dim 0 by NumPy's ufuncs, one element after another."""
    groups: dict[tuple[int, int], list[float]] = {}
    for k in np.ndindex(X.shape):
        groups[k] = [X[k]] if include_self else []
    for i, j in np.ndindex(I.shape):
        groups[int(I[i, j]), j].append(S[i, j])
    reduce = {"sum": np.sum, "prod": np.prod, "mean": np.mean, "amax": np.max, "amin": np.min}[name]
    out = X.copy()
    for k, values in groups.items():
        if values:
            out[k] = reduce(values)
    return out


# code, arrays, what NumPy says
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Any]] = {
    "quantile": (lambda x: x.quantile(0.3, 1), (X,), np.quantile(X, 0.3, 1)),
    "quantiles": (
        lambda x: x.quantile(jg.tensor([0.1, 0.7], dtype=jg.float64), 0, keepdim=True),
        (X,),
        np.quantile(X, [0.1, 0.7], 0, keepdims=True),
    ),
    "cov": (lambda x: x.cov(), (X,), np.cov(X)),
    "corrcoef": (lambda x: x.corrcoef(), (X,), np.corrcoef(X)),
    "trapezoid": (lambda x: jg.trapezoid(x, dx=0.5, dim=0), (X,), np.trapezoid(X, dx=0.5, axis=0)),
    "gradient": (lambda x: jg.gradient(x)[1], (X,), np.gradient(X, axis=1)),
    "histc": (lambda x: jg.histc(x, 4, -2, 2), (X,), np.histogram(X, 4, (-2, 2))[0].astype(float)),
    "cummax": (lambda x: x.cummax(1).values, (X,), np.maximum.accumulate(X, 1)),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), (X,), np.logaddexp.accumulate(X, 0)),
    "gcd": (lambda i: jg.gcd(i * 12, i * 18 - 6), (I,), np.gcd(I * 12, I * 18 - 6)),
    "lcm": (lambda i: jg.lcm(i * 4, i + 3), (I,), np.lcm(I * 4, I + 3)),
    "frexp": (lambda x: jg.frexp(x).mantissa, (X,), np.frexp(X)[0]),
    "isin": (lambda i: jg.isin(i, jg.tensor([1, 4])), (I,), np.isin(I, [1, 4])),
    "take": (lambda x, i: x.take(i), (X, I), np.take(X, I)),
    "as_strided": (
        lambda x: x.as_strided((4, 3), (2, 3), 1),
        (X,),
        np.lib.stride_tricks.as_strided(X.reshape(-1)[1:], (4, 3), (16, 24)),
    ),
    "bits": (lambda x: x.view(jg.int32), (X,), X.view(np.int32)),
    "block_diag": (lambda x: jg.block_diag(x[:1], x[0, 0]), (X,), None),
    "tril_indices": (lambda: jg.tril_indices(4, 3, 1), (), np.stack(np.tril_indices(4, 1, 3))),
    "vander": (lambda x: jg.vander(x[0], 4), (X,), np.vander(X[0], 4)),
    "kaiser": (
        lambda: jg.kaiser_window(9, False, 5.0, dtype=jg.float64),
        (),
        np.kaiser(9, 5.0),
    ),
    **{
        f"scatter_reduce {name} {own}": (
            lambda x, i, s, name=name, own=own: x.scatter_reduce(0, i, s, name, include_self=own),
            (X, I, S),
            scattered(name, own),
        )
        for name in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
}


def both(code: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> list[Any]:
    inputs = [jg.from_numpy(a.copy()) for a in arrays]
    f = jg.jit(fallback="error")(code)
    f(*inputs)
    return [code(*inputs), f(*inputs)]


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str) -> None:
    code, arrays, wanted = CASES[name]
    eager, compiled = both(code, arrays)
    assert eager.dtype is compiled.dtype
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-12, atol=1e-14)
    if wanted is not None:
        np.testing.assert_allclose(eager.numpy(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["prod", "amax", "mean"])
def test_gradient_of_scatter_reduce(name: str) -> None:
    index = jg.from_numpy(I)

    def f(x: Any, s: Any) -> Any:
        return x.scatter_reduce(0, index, s, name)

    x, s = (jg.from_numpy(a.copy()).requires_grad_() for a in (X, S))
    assert jg.autograd.gradcheck(f, (x, s))


def test_gradient_of_strided_views() -> None:
    """Elements that are shown twice get both cotangents; what is replaced gets none."""
    x = jg.arange(6.0, dtype=jg.float64).requires_grad_()
    assert jg.autograd.gradcheck(lambda x: (x * x).as_strided((3, 3), (1, 1)), (x,))
    src = jg.ones(2, 2, dtype=jg.float64).requires_grad_()
    assert jg.autograd.gradcheck(lambda x, s: x.as_strided_scatter(s, (2, 2), (3, 1)), (x, src))


# -- views in place --------------------------------------------------------------------------------
@pytest.mark.parametrize("compile_it", [False, True])
def test_view_in_place_on_the_tape(compile_it: bool) -> None:
    """As if the out-of-place view had been taken; writes through a view reach the base."""

    def f(x: Any) -> Any:
        base = x * 2
        part = base[1:]
        part.transpose_(0, 1)
        part.mul_(3)
        part.unsqueeze_(0)
        y = x * 5
        y.t_()
        return base.sum() + (part * part).sum() + (y * x.t()).sum()

    def g(x: Any) -> Any:
        base = x * 2
        part = base[1:] * 3
        base = jg.cat([base[:1], part])
        return base.sum() + (part * part).sum() + (x * 5 * x).sum()

    x, y = (jg.from_numpy(X.copy()).requires_grad_() for _ in range(2))
    run = jg.jit(fallback="error")(f) if compile_it else f
    for _ in range(3 if compile_it else 1):
        x.grad = None
        out = run(x)
        out.backward()
    wanted = g(y)
    wanted.backward()
    np.testing.assert_allclose(out.item(), wanted.item(), rtol=1e-13)
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-13)


def test_view_in_place_of_a_leaf() -> None:
    x = jg.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.t_()
    with jg.no_grad():
        x.t_()
    assert x.is_leaf and x.requires_grad and x.shape == (3, 2)
    x.sum().backward()
    assert x.grad is not None and x.grad.shape == (3, 2)


def test_view_in_place_inside_vmap() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.t_()
        y.unsqueeze_(1)
        part = y[1:]
        part.transpose_(0, 2)
        part.mul_(3)
        return y.sum(0), part

    x = jg.from_numpy(np.stack([X, X * 2]))
    for found, wanted in zip(jg.vmap(f)(x), zip(f(x[0]), f(x[1]), strict=True), strict=True):
        np.testing.assert_allclose(found.numpy(), jg.stack(list(wanted)).numpy())


def test_bits_are_shared() -> None:
    x = jg.zeros(4)
    x.view(jg.int32)[1] = 0x3F800000
    x.view(jg.uint8)[3] = 0x40
    assert x.tolist() == [2.0, 1.0, 0.0, 0.0]
    f = jg.jit(fallback="error")(lambda x: x.view(jg.int32).mul_(2))
    for _ in range(3):
        x = jg.ones(2)
        assert f(x).tolist() == [0x7F000000] * 2
        assert (x > 1e38).all()


# -- out= ------------------------------------------------------------------------------------------
def test_out_is_written_and_resized() -> None:
    out = jg.zeros(0)
    assert jg.add(jg.ones(3), 2, out=out) is out
    assert out.tolist() == [3.0] * 3
    with pytest.warns(UserWarning, match="resized"):
        jg.exp(jg.zeros(2, 2), out=out)
    assert out.shape == (2, 2)
    base = jg.zeros(4)
    jg.mul(jg.ones(2), 7, out=base[1:3])
    assert base.tolist() == [0, 7, 7, 0]
    values, indices = jg.zeros(0), jg.zeros(0, dtype=jg.int64)
    found = jg.sort(jg.tensor([3.0, 1.0]), out=(values, indices))
    assert found.values is values and indices.tolist() == [1, 0]
    with pytest.raises(RuntimeError, match=r"can't be cast.*in add\(out=\.\.\.\)"):
        jg.add(jg.ones(2), 1.5, out=jg.zeros(2, dtype=jg.int64))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        jg.exp(jg.ones(2, requires_grad=True), out=jg.zeros(2))
    with pytest.raises(TypeError, match="argument 'out' must be Tensor, not list"):
        jg.exp(jg.ones(2), out=[[1.0]])


def test_out_under_jit() -> None:
    def f(x: Any, out: Any) -> None:
        jg.add(x, 1, out=out)

    compiled = jg.jit(fallback="error")(f)
    out = jg.zeros(3)
    for k in range(3):
        compiled(jg.full((3,), float(k)), out)
        assert out.tolist() == [k + 1.0] * 3


# -- random fills ----------------------------------------------------------------------------------
FILLS: dict[str, tuple[Callable[..., Any], float, float]] = {  # code, mean, standard deviation
    "normal_": (lambda x: x.normal_(1.0, 2.0), 1.0, 2.0),
    "uniform_": (lambda x: x.uniform_(-1.0, 3.0), 1.0, 4 / 12**0.5),
    "bernoulli_": (lambda x: x.bernoulli_(0.25), 0.25, (0.25 * 0.75) ** 0.5),
    "exponential_": (lambda x: x.exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda x: x.geometric_(0.5), 2.0, 2**0.5),
    "log_normal_": (lambda x: x.log_normal_(0.0, 0.5), float(np.exp(0.125)), 0.6039),
    "random_": (lambda x: x.random_(2, 7), 4.0, 2**0.5),
}


@pytest.mark.parametrize("name", FILLS)
def test_fills(name: str) -> None:
    """Mean and spread of 40,000 numbers; the same numbers compiled; another draw each time."""
    code, mean, spread = FILLS[name]
    n = 40_000
    jg.manual_seed(5)
    eager = [code(jg.empty(n, dtype=jg.float64)).clone() for _ in range(3)]
    assert abs(eager[0].mean().item() - mean) < 6 * spread / n**0.5
    assert abs(eager[0].std().item() / spread - 1) < 0.06
    assert not eager[0].equal(eager[1])
    f = jg.jit(fallback="error")(lambda x: code(x))
    jg.manual_seed(5)
    for k in range(3):
        np.testing.assert_allclose(f(jg.empty(n, dtype=jg.float64)).numpy(), eager[k].numpy())


def test_cauchy_has_its_quartiles() -> None:
    jg.manual_seed(0)
    x = jg.empty(40_000, dtype=jg.float64).cauchy_(3.0, 2.0)
    found = x.quantile(jg.tensor([0.25, 0.5, 0.75], dtype=jg.float64))
    np.testing.assert_allclose(found.numpy(), [1.0, 3.0, 5.0], atol=0.1)


def test_poisson_and_binomial_follow_the_seed() -> None:
    rates = jg.full((20_000,), 3.5)
    jg.manual_seed(1)
    a, b = jg.poisson(rates), jg.poisson(rates)
    jg.manual_seed(1)
    assert jg.poisson(rates).equal(a) and not a.equal(b)
    assert abs(a.mean().item() - 3.5) < 0.1 and abs(a.var().item() - 3.5) < 0.2
    c = jg.binomial(jg.full((20_000,), 10.0), jg.full((20_000,), 0.3))
    assert abs(c.mean().item() - 3) < 0.1
    with pytest.raises(RuntimeError, match="invalid Poisson rate"):
        jg.poisson(jg.tensor([-1.0]))


# -- searching -------------------------------------------------------------------------------------
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("size", [0, 1, 5, 17, 64, 100])
def test_searchsorted(size: int, right: bool) -> None:
    """Few elements are compared one by one, many by bisection; NaN comes last."""
    ordered = np.sort(np.round(rng.standard_normal((2, size)) * 3), 1)
    values = np.append(np.round(rng.standard_normal((2, 30)) * 4), [[np.nan], [np.inf]], 1)
    for a, v in ((ordered[0], values), (ordered, values)):
        eager, compiled = both(lambda a, v: jg.searchsorted(a, v, right=right), (a, v))
        side: Any = "right" if right else "left"
        rows = [a, a] if a.ndim == 1 else list(a)
        wanted = np.stack([np.searchsorted(r, w, side) for r, w in zip(rows, v, strict=True)])
        np.testing.assert_array_equal(eager.numpy(), wanted)
        np.testing.assert_array_equal(compiled.numpy(), wanted)


def test_repeat_interleave_of_known_size_compiles() -> None:
    x, r = jg.from_numpy(X), jg.tensor([1, 0, 5, 2, 0, 1])
    f = jg.jit(fallback="error")(lambda x, r: x.repeat_interleave(r, 1, output_size=9))
    for _ in range(2):
        np.testing.assert_array_equal(f(x, r).numpy(), np.repeat(X, r.numpy(), 1))
    np.testing.assert_array_equal(x.repeat_interleave(r, 1).numpy(), np.repeat(X, r.numpy(), 1))


# -- copies ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [jg.float32, jg.bfloat16, jg.int64, jg.bool])
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_share_memory_as_their_originals_do(how: str, dtype: Any) -> None:
    x = jg.arange(12).to(dtype).reshape(3, 4)
    views = (x, x[1:, ::2], x.t(), x.as_strided((2, 2), (1, 4), 2), x[:1].expand(3, 4))
    made = pickle.loads(pickle.dumps(views)) if how == "pickle" else copy.deepcopy(views)
    for a, b in zip(made, views, strict=True):
        assert a.equal(b) and a.stride() == b.stride() and a.dtype is b.dtype
        assert a.untyped_storage() is made[0].untyped_storage()
    before = x.clone()
    made[1].zero_()
    views[1].zero_()
    assert all(a.equal(b) for a, b in zip(made, views, strict=True))
    assert not before.equal(x) or dtype is jg.bool


def test_pickled_attributes_and_gradients_flags() -> None:
    x = jg.ones(3, requires_grad=True)
    x.note = "kept"
    y = pickle.loads(pickle.dumps(x))
    assert y.requires_grad and y.is_leaf and y.note == "kept"
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(x * 2)


def test_storages() -> None:
    x = jg.arange(6.0)
    view = x[2:4]
    assert view.untyped_storage().data_ptr() == x.data_ptr()
    assert view.storage()[2] == 2.0 and len(view.storage()) == 6 and view.storage_offset() == 2
    with pytest.raises(RuntimeError, match="use Tensor.resize_"):
        x.untyped_storage().resize_(4)
    y = jg.zeros(0).set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    y[0, 0] = 9
    assert x[1] == 9 and y.tolist() == [[9, 2], [3, 4]]


def test_resize() -> None:
    """Within its memory a tensor stays on it; past it, it moves to memory of its own."""
    x = jg.arange(6.0)
    view = x[:]
    x.resize_(2, 2)
    x[0, 0] = 7
    assert view[0] == 7 and x.tolist() == [[7, 1], [2, 3]]
    x.resize_(8)
    x[0] = 8
    assert view[0] == 7 and x.tolist() == [8, 1, 2, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("code", ["poisson(x)", "distributions.Gamma(x, 1.0).rsample()"])
def test_the_first_draw_of_a_process_compiles(code: str) -> None:
    """What it imports meanwhile is no part of the function."""
    program = (
        "import jitgrad\n"
        f"f = jitgrad.jit(lambda x: jitgrad.{code}, fallback='error')\n"
        "for _ in range(3):\n    f(jitgrad.ones(3))\n"
        "print(f.stats.hits)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


def test_report_of_the_machine() -> None:
    assert "everything works" in jg.utils.collect_env.get_pretty_env_info()


@pytest.mark.parametrize("alpha", [1, 1.0, 2, 0.5])
def test_bools_are_not_subtracted_whatever_alpha_is(alpha) -> None:
    """So that jit, for which alpha may be any float, and eager code agree (found by the fuzzer)."""
    x, mask = jg.ones(3), jg.ones(3) > 0
    for f in (jg.sub, jg.Tensor.sub):
        with pytest.raises(RuntimeError, match="expected numbers; got bools"):
            f(x, mask, alpha=alpha)
    with pytest.raises(RuntimeError, match="expected numbers; got bools"):
        jg.rsub(x, mask, alpha=alpha)
