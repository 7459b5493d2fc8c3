"""Values and derivatives at special points: NaN, infinities, signed zeros, kinks, the largest and
the smallest numbers, ties. Elementwise functions are PyTorch's op database's; one expression a line
for those that take more than a tensor. What differs is in DIFFERENT, with its reason.

PyTorch itself is not of one mind about NaN in hardtanh, relu6, hardshrink, softshrink, hardswish,
elu and logit with eps: its vectors give one derivative, the rest of an array another. Ours is the
vectors'; so arrays here are long, and the rest is ordinary numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from parity.compare import LIBS, OURS, flat, numpy, torch
from parity.op_database import common, entries, label, lookup

NAN, INF = float("nan"), float("inf")
KINKS = [0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 1.5, 0.25]
# PyTorch has 1 / 6 in float32, in hardsigmoid.
BOUNDS = {"float32": 2e-5, "float64": 1e-7, "bfloat16": 2e-2}

DIFFERENT = {
    "special.entr": "the derivative at infinity: inf * (1 / inf) here",
    "special.log_ndtr": "the tail: ours is exact",
    "special.erfcx": "cancellation in the derivative",
    "special.ndtr": "the tail: ours is exact",
    "nn.functional.gelu": "infinity is infinity; the tail is exact",
    "digamma": "poles: PyTorch's derivative there is what sin rounds to",
    "polygamma": "poles and infinities, as digamma",
    "i0": "infinity: PyTorch multiplies it by 0",
    "special.i1": "infinity; PyTorch's derivative at NaN is 0.5",
    "special.i1e": "PyTorch's derivative at NaN is 0.5",
    "special.i0e": "PyTorch's tail is that of a polynomial",
    "expm1": "PyTorch's derivative cancels far below 0",
    "sinc": "PyTorch's derivative underflows near 0",
    "fill": "takes a value",
    "chalf": "no half complex numbers here",
}
WITHOUT = "special.airy_ai special.bessel special.modified special.scaled special.spherical"
"""PyTorch has no derivative of these: their values are test_special's."""


def points(dtype):
    limits = torch.finfo(getattr(torch, dtype))
    least = limits.smallest_normal * limits.eps
    large = [limits.max, limits.smallest_normal, least, *KINKS]
    special = [NAN, INF, -INF, 0.0, -0.0, *large, *(-x for x in large)]
    return np.array([*special * 2, *[0.3] * (128 - 2 * len(special))])


def outcome(lib, function, x, dtype):
    """Results, and the derivative of the sum of each of them."""
    x = lib.t.from_numpy(x.copy()).to(getattr(lib.t, dtype)).requires_grad_()
    results = [y for y in flat(function(x)) if hasattr(y, "requires_grad")]
    found = [y.detach() for y in results]
    for y in results:
        if y.requires_grad and not y.is_complex():
            ones = lib.t.ones_like(y)
            (g,) = lib.t.autograd.grad(y, x, ones, retain_graph=True, allow_unused=True)
            found.append(lib.t.zeros_like(x) if g is None else g + 0)
    return found


def expect_alike(ours, theirs, x, dtype):
    assert len(ours) == len(theirs)
    least = 2 * torch.finfo(getattr(torch, dtype)).smallest_normal
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = (v.astype(complex) if v.dtype.kind == "c" else v.astype(float)
                for v in (numpy(a), numpy(b)))  # fmt: skip
        with np.errstate(all="ignore"):
            near = np.abs(a - b) <= BOUNDS[dtype] * np.abs(b) + least
        alike = (a == b) | ((a != a) & (b != b)) | near
        if a.shape == x.shape:
            where = x[~alike][:8]
            assert alike.all(), f"result {i} at {where}: {a[~alike][:8]}, PyTorch {b[~alike][:8]}"
        assert alike.all(), f"result {i}: {a}, PyTorch {b}"


UNARY = [
    e
    for e in entries()
    if isinstance(e, common.UnaryUfuncInfo)
    and e.name not in DIFFERENT
    and not e.name.startswith(tuple(WITHOUT.split()))
    and not e.name.startswith(("polygamma", "special.polygamma", "mvlgamma"))
    and e.name not in ("nn.functional.threshold", "nn.functional.prelu", "nn.functional.rrelu")
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("entry", UNARY, ids=label)
def test_elementwise(entry, dtype):
    if getattr(torch, dtype) not in entry.dtypes:
        pytest.skip("not of floats")
    x, ours = points(dtype), lookup(entry.name)
    expect_alike(outcome(LIBS[0], ours, x, dtype), outcome(LIBS[1], entry.op, x, dtype), x, dtype)


ROWS = np.array(
    [
        [NAN, NAN, 1, 2], [1, NAN, NAN, 2], [1, 1, 1, 1], [INF, INF, 1, -INF], [-INF] * 4,
        [INF, 1, INF, NAN], [0.0, -0.0, 0.0, -0.0], [NAN] * 4, [2, 3, 3, 1], [INF, -INF, 0, 1],
        [3, 3, NAN, 3], [0, 0, 2, 3], [NAN, 0, 0, 1], [0, 1, 2, 3], [-1, -1, 2, 2], [INF, 0, 1, 2],
    ]
)  # fmt: skip

CALLS = """
x.clamp(-1, 2)
x.clamp(min=0)
x.clamp(max=3)
x.clamp(2, 1)
x.clamp(x.detach().flip(0), x.detach().flip(1))
F.hardtanh(x)
F.hardtanh(x, -2, 1.5)
F.relu6(x)
F.hardsigmoid(x)
F.hardswish(x)
F.hardshrink(x)
F.softshrink(x)
F.threshold(x, 0.5, 2.0)
F.leaky_relu(x)
F.huber_loss(x, x.flip(0).detach(), reduction="none")
F.smooth_l1_loss(x, x.flip(0).detach(), reduction="none")
F.hinge_embedding_loss(x, (x.detach() > 0).to(x.dtype) * 2 - 1, reduction="none")
F.margin_ranking_loss(x, x.flip(0), x.sign().detach(), reduction="none")
F.multi_margin_loss(x, t.zeros(16, dtype=t.int64), reduction="none")
F.multilabel_margin_loss(x, t.zeros(16, 4, dtype=t.int64), reduction="none")
t.hypot(x, x.flip(0))
t.hypot(x * 0, x * 0)
t.copysign(x, x.flip(0).nan_to_num())
t.copysign(x, -1.0)
t.logaddexp(x, x.flip(0))
t.logaddexp2(x, x.flip(0))
t.maximum(x, x.flip(0))
t.fmin(x, x.flip(0))
t.angle(x)
x.renorm(2, 0, 10.0)
x.max()
x.min()
x[8:9].max()
x.median()
x.nanmedian()
x[4].median()
x[3].median()
x.max(1)
x.min(1)
x.amax(1)
x.amin(1)
x.aminmax(dim=1)
x.argmax(1)
x.argmin(1)
x.sort(1)
x.sort(1, descending=True)
x.median(1)
x.cummax(1)
x.cummin(1)
x.norm(float("inf"), dim=1)
x.norm(float("-inf"), dim=1)
F.max_pool1d(x, 2, return_indices=True)
F.max_pool1d(x, 3, 1, 1, return_indices=True)
F.max_pool2d(x[None], 2, return_indices=True)
F.max_pool2d(x[None], (3, 2), 1, (1, 0), return_indices=True)
F.max_pool2d(x[None], 2, dilation=2, return_indices=True)
F.max_pool3d(x[None, None], (1, 2, 2), return_indices=True)
F.adaptive_max_pool1d(x, 2, return_indices=True)
F.adaptive_max_pool1d(x, 3, return_indices=True)
F.adaptive_max_pool2d(x[None], (3, 2), return_indices=True)
F.adaptive_max_pool2d(x[None], 1, return_indices=True)
F.adaptive_max_pool3d(x[None, None], (1, 3, 2), return_indices=True)
""".strip().splitlines()


@pytest.mark.parametrize("mode", ["eager", "jit"])
@pytest.mark.parametrize("call", CALLS)
def test_call(call, mode):
    dtypes = ["float64"] if mode == "jit" else ["float32", "float64", "bfloat16"]
    for dtype in dtypes:
        if dtype == "bfloat16" and "multi" in call:
            continue  # PyTorch has none
        found = []
        for lib in LIBS:

            def code(x, lib=lib):
                return eval(call, {"t": lib.t, "F": lib.F, "x": x})

            if lib is OURS and mode == "jit":
                jitted = lib.t.jit(lambda x, code=code: tuple(flat(code(x))), fallback="error")
                outcome(lib, jitted, ROWS, dtype)
                code = jitted
            found.append(outcome(lib, code, ROWS, dtype))
        expect_alike(*found, ROWS, dtype)
