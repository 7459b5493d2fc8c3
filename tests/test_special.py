"""Special functions in kernels and in references, against sums in long double; identities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels import Run
from test_math import ulps

import jitgrad as jg
from jitgrad.compiler.codegen.target import host
from jitgrad.compiler.kernels import (
    LoopKernel,
    Stage,
    Store,
)
from jitgrad.compiler.loops import (
    Array,
    Builder,
    axis,
    load,
)
from jitgrad.compiler.ops import OPS
from jitgrad.compiler.ops.quiet import Quiet
from jitgrad.compiler.ops.record import Accuracy, Elementwise
from jitgrad.runtime import dtypes

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 60, reason="the reference needs an extended long double"
)

NUMERICS = Path(__file__).resolve().parents[1] / "docs" / "numerics.md"
CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.where or case.attrs or 'everywhere'}")
    for op in OPS.values()
    if isinstance(op, Elementwise)
    for case in op.accuracy()
]
HEAD = "| op | where | bound |\n| --- | --- | --- |\n"


def bounds() -> str:
    """The table of docs/numerics.md: what the records state."""
    rows = []
    for parameters in CASES:
        op, case = parameters.values
        attrs = ", ".join(f"{k} = {v}" for k, v in case.attrs.items())
        where = ", ".join(text for text in (attrs, case.where) if text)
        unit = "ulp" if case.relative else "units"
        rows.append(f"| {op.name} | {where} | {case.bound:g} {unit} |\n")
    return HEAD + "".join(sorted(rows))


def test_docs_state_the_bounds() -> None:
    """Written by `python tests/test_special.py`."""
    assert bounds() in NUMERICS.read_text()


def compiled(op: Elementwise, x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    dtype = dtypes.from_numpy(x.dtype)
    source, out = Array("x", x.shape, dtype), Array("out", x.shape, dtype)
    body = op.scalar(Builder(), load(source, (axis(0),)), **attrs)
    kernel = LoopKernel(x.shape, [Stage((), (Store(out, (axis(0),), body),))])
    result = np.empty(x.shape, x.dtype)
    Run(kernel, host())({source: x, out: result})
    return result


def worst(op: Elementwise, case: Accuracy, dtype: str) -> float:
    (x,) = (a.astype(dtype) for a in case.args)
    with Quiet():
        want = op.reference(x.astype(np.float64), **case.attrs)
        got = compiled(op, x, case.attrs)
        if case.relative:
            error = ulps(got, want.astype(np.longdouble))
        else:
            scale = np.maximum(1, np.abs(want)) * np.finfo(x.dtype).eps
            error = np.where(got == want.astype(x.dtype), 0, np.abs(got - want) / scale)
            error = np.where(np.isnan(got) & np.isnan(want), 0, error)
    k = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    print(f"{op.name} {case.attrs} {x.dtype}: {error[k]:.2f} at {x[k]!r}: {got[k]!r}, {want[k]!r}")
    return float(error[k])


@pytest.mark.parametrize(("op", "case"), CASES)
def test_float64(op: Elementwise, case: Accuracy) -> None:
    assert worst(op, case, "float64") <= case.bound


@pytest.mark.parametrize(("op", "case"), CASES)
def test_float32(op: Elementwise, case: Accuracy) -> None:
    with np.errstate(all="ignore"):
        assert worst(op, case, "float32") <= 1


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


if __name__ == "__main__":
    before, after = NUMERICS.read_text().split(HEAD)
    rest = after[after.index("\n\n") + 1 :]
    NUMERICS.write_text(before + bounds() + rest)
