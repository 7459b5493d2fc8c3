"""Special functions in kernels and in references, against sums in long double; identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernels import Run
from test_math import ulps

import jitgrad as jg
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.loops import Array, Builder, LoopKernel, Stage, Store, axis, load
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.runtime import dtypes

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="the reference needs an extended long double"
)

rng = np.random.default_rng(11)
N = 1500
WIDE = np.exp(rng.uniform(-30, 30, N))
NEAR = rng.uniform(0.01, 12, N)
SIGNED = np.concatenate([rng.uniform(-30, 30, N), rng.uniform(-1, 1, N), [0.0, -0.0, np.nan]])
PLUS = np.concatenate([NEAR, WIDE, [1.0, 2.0, 0.5, 1.5, 8.5, np.inf, np.nan]])
MINUS = -rng.uniform(0, 20, N)

# name, attributes, arguments, bound in ulp (relative) or in units of 2^-52 max(1, |value|)
CASES = [
    ("lgamma", {}, PLUS, "unit", 5),
    ("lgamma", {}, MINUS, "unit", 12),
    ("polygamma", {"n": 0}, PLUS, "unit", 5),
    ("polygamma", {"n": 1}, PLUS, "ulp", 5),
    ("polygamma", {"n": 2}, PLUS, "ulp", 5),
    ("polygamma", {"n": 5}, PLUS, "ulp", 10),
    ("i0", {}, SIGNED * 10, "ulp", 300),
    ("i0e", {}, SIGNED * 10, "ulp", 10),
    ("i1", {}, SIGNED * 10, "ulp", 300),
    ("i1e", {}, SIGNED * 10, "ulp", 10),
    ("erfinv", {}, np.tanh(SIGNED), "ulp", 6),
    ("ndtri", {}, np.concatenate([np.exp(-NEAR * 20), rng.uniform(0, 1, N)]), "ulp", 8),
]


def compiled(name: str, x: np.ndarray, attrs: dict[str, int]) -> np.ndarray:
    dtype = dtypes.from_numpy(x.dtype)
    source, out = Array("x", x.shape, dtype), Array("out", x.shape, dtype)
    body = OPS[name].scalar(Builder(), load(source, (axis(0),)), **attrs)  # type: ignore[attr-defined]
    kernel = LoopKernel(x.shape, [Stage((), (Store(out, (axis(0),), body),))])
    result = np.empty(x.shape, x.dtype)
    Run(kernel, host())({source: x, out: result})
    return result


def worst(name: str, x: np.ndarray, attrs: dict[str, int], how: str) -> float:
    with Quiet():
        want = OPS[name].reference(x.astype(np.float64), **attrs)
        got = compiled(name, x, attrs)
        if how == "ulp":
            error = ulps(got, want.astype(np.longdouble))
        else:
            scale = np.maximum(1, np.abs(want)) * np.finfo(x.dtype).eps
            error = np.where(got == want.astype(x.dtype), 0, np.abs(got - want) / scale)
            error = np.where(np.isnan(got) & np.isnan(want), 0, error)
    k = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    print(f"{name} {attrs} {x.dtype}: {error[k]:.2f} at {x[k]!r}: {got[k]!r}, not {want[k]!r}")
    return float(error[k])


@pytest.mark.parametrize(("name", "attrs", "x", "how", "bound"), CASES)
def test_float64(name: str, attrs: dict[str, int], x: np.ndarray, how: str, bound: float) -> None:
    assert worst(name, x, attrs, how) <= bound


@pytest.mark.parametrize(("name", "attrs", "x", "how", "bound"), CASES)
def test_float32(name: str, attrs: dict[str, int], x: np.ndarray, how: str, bound: float) -> None:
    with np.errstate(all="ignore"):
        assert worst(name, x.astype(np.float32), attrs, "unit" if how == "unit" else "ulp") <= 1


def test_known_values() -> None:
    """Closed forms."""
    t = jg.tensor
    gamma = 0.5772156649015329
    x = t([1.0, 0.5, 2.0], dtype=jg.float64)
    known = [-gamma, -gamma - 2 * math.log(2), 1 - gamma]
    np.testing.assert_allclose(x.digamma().numpy(), known, rtol=1e-15)
    pi2 = math.pi**2
    np.testing.assert_allclose(x.polygamma(1).numpy(), [pi2 / 6, pi2 / 2, pi2 / 6 - 1], rtol=1e-15)
    factorials = [math.log(math.factorial(k)) for k in range(20)]
    n = jg.arange(20, dtype=jg.float64) + 1
    np.testing.assert_allclose(n.lgamma().numpy(), factorials, rtol=1e-15, atol=1e-15)
    s = t([2.0, 4.0], dtype=jg.float64)
    np.testing.assert_allclose(jg.special.zeta(s, 1.0).numpy(), [pi2 / 6, pi2**2 / 90], rtol=1e-15)
    half = jg.special.zeta(s, 0.5).numpy()  # (2^s - 1) zeta(s)
    np.testing.assert_allclose(half, [pi2 / 2, pi2**2 / 6], rtol=1e-15)


@pytest.mark.parametrize("compile_it", [False, True])
def test_inverses(compile_it: bool) -> None:
    """erf(erfinv(x)) is x, ndtr(ndtri(p)) is p, also far in the tail."""
    x = jg.linspace(-0.999, 0.999, 101, dtype=jg.float64)
    p = 10 ** jg.linspace(-300, -0.5, 101, dtype=jg.float64)

    def both(x, p):
        return jg.special.erfinv(x).erf(), jg.special.ndtr(jg.special.ndtri(p))

    f = jg.jit(fallback="error")(both) if compile_it else both
    back_x, back_p = f(x, p)
    back_x, back_p = f(x, p)
    np.testing.assert_allclose(back_x.numpy(), x.numpy(), rtol=1e-14, atol=1e-15)
    # a relative error of y in ndtri is one of 2 y^2 in p
    np.testing.assert_allclose(back_p.numpy(), p.numpy(), rtol=2e-12)


def test_derivatives_of_every_order_of_lgamma() -> None:
    x = jg.tensor([0.7, 3.2, -1.3], dtype=jg.float64, requires_grad=True)
    y = x.lgamma()
    for n in range(4):
        (y,) = jg.autograd.grad(y.sum(), x, create_graph=True)
        np.testing.assert_allclose(y.detach().numpy(), x.polygamma(n).detach().numpy(), rtol=1e-15)
