"""Values and derivatives of functions where few look: outside domains, of empty tensors, of size 1,
with bounds that are NaN. One expression a line; x is float64 and needs a gradient."""

import numpy as np
import pytest
from parity.compare import LIBS, check, flat, same

NAN, INF = float("nan"), float("inf")
POINTS = np.array([0.0, 0.25, 0.5, 1.0, 2.0, -1.0, NAN, INF, -INF])

CALLS = """
t.special.entr(x[:7])
t.logit(x)
t.logit(x[:6], 0.1)
t.logit(x[:6], 0.0)
t.clamp(x, min=nan)
t.clamp(x, max=t.tensor(nan, dtype=x.dtype))
t.clamp(x, 0, nan)
t.linalg.vector_norm(x[1:5].reshape(4, 1), 99, dim=1)
t.linalg.vector_norm(x[2], -99)
t.trapezoid(x[1:5].reshape(2, 2), x[1:5].reshape(2, 1, 1, 2), dim=0)
t.trapezoid(x[1:5], dx=0.5)
t.trapezoid(x[1:5].reshape(2, 2), x[1:5].reshape(2, 2), dim=0)
t.trapezoid(x[1:5].reshape(1, 2, 2), x[1:5].reshape(2, 2), dim=0)
t.cumulative_trapezoid(x[1:5].reshape(2, 2), x[1:5].reshape(2, 1, 1, 2), dim=0)
t.cross(x[:6].reshape(3, 2), x[1:7].reshape(3, 2))
t.gather(x, 0, t.tensor(2))
t.scatter(x, 0, t.tensor(2), x[4])
F.rms_norm(x[1:5], (4,), x[1:5].float())
F.rms_norm(x[1:5].half(), (4,), x[1:5].float())
F.binary_cross_entropy_with_logits(x[:3], x[1:4].float().detach())
F.binary_cross_entropy_with_logits(x[:3].float(), x[1:4].detach(), x[1:4].detach())
F.binary_cross_entropy(x[:3].float(), x[1:4].float().detach(), x[1:4].detach())
F.soft_margin_loss(x[:3].float(), x[1:4].detach())
F.multilabel_soft_margin_loss(x[:3], x[None, 1:4].detach())
""".strip().splitlines()

PLAIN = """
t.hypot(t.tensor([inf, -inf, nan, nan, inf]), t.tensor([nan, nan, inf, -inf, 1.0]))
t.hypot(t.tensor([inf, -inf, nan]).double(), t.tensor([nan, nan, -inf]).double())
t.scatter_reduce(t.ones(3), 0, t.tensor(2), t.tensor(2.), "amax")
t.cumulative_trapezoid(t.ones(0, 3), dim=0)
t.trapezoid(t.ones(0, 3), dim=0)
t.linalg.matrix_norm(t.ones(0, 3), 2)
t.linalg.matrix_norm(t.ones(3, 0), 1)
t.linalg.matrix_norm(t.ones(0, 3), inf)
t.all(t.ones(2, 3), dim=())
t.any(t.zeros(2, 3), dim=(), keepdim=True)
t.all(t.ones(2, 3, dtype=t.uint8), dim=())
t.histogram(t.ones(0), 2)
t.histogram(t.ones(0), 2, range=(0.0, 2.0))
t.histogramdd(t.ones(0, 2), [2, 2])[1]
t.linalg.matrix_rank(t.eye(3), atol=nan)
t.linalg.lstsq(t.eye(3)[:, :2], t.eye(3)).residuals
t.linalg.lstsq(t.eye(3)[:, :2], t.eye(3), driver="gelsd").residuals
t.lu_unpack(t.arange(24.).reshape(2, 3, 4), t.tensor([1, 2, 3], dtype=t.int32))
t.lu_unpack(t.arange(12.).reshape(1, 3, 4), t.tensor([3, 2, 3], dtype=t.int32))
t.cdist(t.ones(2, 0), t.ones(3, 0), inf)
F.pdist(t.ones(3, 0), inf)
t.ones(3).index_copy(0, t.tensor([1]), t.tensor(2.))
t.ones(4, 2, 3, 3).to(memory_format=t.channels_last)
t.ones(2).to(tensor=t.ones(2).double())
t.ones(2).sum(0, keepdim=True)
""".strip().splitlines()


def scale(call):
    """What is rounded to another dtype on its way is compared as that."""
    return 1e10 if "half()" in call else 1e7 if "float()" in call else 1.0


def evaluated(lib, call, **names):
    scope = {"t": lib.t, "F": lib.F, "nan": NAN, "inf": INF, **names}
    return flat(eval(call, scope))


@pytest.mark.parametrize("call", CALLS)
def test_value_and_derivative(call):
    found = []
    for lib in LIBS:
        x = lib.t.from_numpy(POINTS.copy()).requires_grad_()
        results = evaluated(lib, call, x=x)
        sum(r.double().sum() for r in results).backward()
        found.append([*results, x.grad])
    for ours, theirs in zip(*found, strict=True):
        same(ours, theirs, call, scale(call))


@pytest.mark.parametrize("call", PLAIN)
def test_value(call):
    for ours, theirs in zip(*(evaluated(lib, call) for lib in LIBS), strict=True):
        same(ours, theirs, call, scale(call))


def test_sizes_that_are_bools():
    """A size of True is 1, and leaves the kernels of the size 1 alone."""
    for lib in LIBS:
        x = lib.t.ones(6)
        with pytest.raises(TypeError):
            lib.t.ones(2, 3).view("a")
        assert tuple(x.reshape(6, 1).shape) == (6, 1)
    ours = LIBS[0].t.ones(5)
    assert tuple(ours.reshape(5, True).shape) == tuple(ours.reshape(5, 1).shape) == (5, 1)


EQUAL = np.array([[3.0, 3.0, 3.0], [1.0, 2.0, 4.0]])

SPREADS = {
    "std": lambda lib, x: x.std(1),
    "all": lambda lib, x: x[0].std(),
    "correction": lambda lib, x: x.std(1, correction=0, keepdim=True),
    "one element": lambda lib, x: x[:, :1].std(1, unbiased=False),
    "std_mean": lambda lib, x: lib.t.std_mean(x, 1),
    "float32": lambda lib, x: x.float().std(1),
    "none left": lambda lib, x: x[:1].std(0),
}


@pytest.mark.filterwarnings("ignore:std():UserWarning")
@pytest.mark.parametrize("name", SPREADS)
def test_the_spread_of_equal_numbers_has_gradient_zero(name):
    check(SPREADS[name], EQUAL, scale=1e7 if name == "float32" else 1.0)


POLYNOMIAL = (
    lambda x: 2 + 4 * x + 6 * x**2 + 4 * x**3,
    lambda x: 4 + 12 * x + 12 * x**2,
    lambda x: 12 + 24 * x,
)
"""The derivatives of 2 (1 + x + x**2 + x**3) + x**4."""


@pytest.mark.parametrize("name", ["eager", "jit"])
@pytest.mark.parametrize("exponent", [0, 0.0, 1, 1.0, 2, 3, 2.0, -1.0, 2.5, "tensor"])
def test_higher_derivatives_of_powers_at_zero(exponent, name):
    """A term of power 0 makes no NaN of the second and third derivatives of a polynomial."""

    def derivatives(lib, x):
        e = lib.t.arange(4.0).double()[:, None] if exponent == "tensor" else exponent
        y, found = (2 * x**e).sum() + (x**4).sum(), []
        for _ in range(3):
            (y,) = lib.t.autograd.grad(y, x, create_graph=True)
            found.append(y)
            y = y.sum()
        return found

    points = np.array([0.0, 1.0, 3.0])
    results = []
    for lib in LIBS:
        x = lib.t.tensor(points, requires_grad=True)
        code = lambda x, lib=lib: derivatives(lib, x)  # noqa: E731
        if lib is LIBS[0] and name == "jit":
            code = lib.t.jit(code, fallback="error")
            code(x)
        results.append(code(x))
    for i, (ours, theirs) in enumerate(zip(*results, strict=True)):
        if exponent == "tensor":  # PyTorch's are NaN at 0
            theirs = LIBS[1].t.from_numpy(POLYNOMIAL[i](points))
        same(ours, theirs, f"derivative {i + 1}", 10)
