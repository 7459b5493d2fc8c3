"""Special functions, statistics, scatters, views and their kin: values, gradients, dtypes, eager
and compiled."""

import numpy as np
import pytest
from parity.compare import OURS, check, flat, numpy, tensors

import jitgrad

rng = np.random.default_rng(0)
x = rng.standard_normal((4, 5))
y = rng.standard_normal((3, 4, 5))
v = rng.standard_normal(7)
pos = np.abs(x) + 0.3
i45 = rng.integers(0, 4, (4, 5))


CASES = {}


def case(name, code, *arrays, jit=True, **how):
    CASES[name] = (code, arrays, jit, how)


for f in [
    "lgamma",
    "digamma",
    "i0",
    "erfinv",
    "special.i0e",
    "special.i1",
    "special.i1e",
    "special.erfcx",
    "special.ndtr",
    "special.log_ndtr",
    "special.entr",
    "special.ndtri",
]:

    def code(lib, x, f=f):
        g = lib.t
        for p in f.split("."):
            g = getattr(g, p)
        return g(x)

    arg = {
        "erfinv": np.tanh(x) * 0.99,
        "special.ndtri": 1 / (1 + np.exp(-3 * x)),
        "special.entr": pos,
    }.get(f, x * 3)
    case(f, code, arg, scale=50)
    case(f + "32", code, arg.astype("float32"), scale=5)
for n in range(4):
    case(f"polygamma{n}", lambda lib, x, n=n: lib.t.polygamma(n, x), pos * 4, scale=1e5)
case("polyneg", lambda lib, x: lib.t.polygamma(1, x), x * 3, scale=300)
case("mvlgamma", lambda lib, x: x.mvlgamma(3), pos + 2, scale=50)
case("zeta", lambda lib, x: lib.t.special.zeta(2.5, x), pos, scale=50)
case("xlog1py", lambda lib, x, y: lib.t.special.xlog1py(x, y), x, pos)
case("logcumsumexp", lambda lib, x: x.logcumsumexp(1), y, scale=10)
case("cummax", lambda lib, x: tuple(x.cummax(1)), y)
case("cummin", lambda lib, x: tuple(x.cummin(-1)), np.round(y))
nanx = x.copy()
nanx[1, 2] = np.nan
nanx[3, 0] = np.nan
case("cummaxnan", lambda lib, x: tuple(x.cummax(1)), nanx, grad=False)
case("mode", lambda lib, x: x.mode(1).values, np.round(x))
case("median", lambda lib, x: tuple(x.median(0)), x)
case("nanmedian", lambda lib, x: tuple(x.nanmedian(1, keepdim=True)), nanx, grad=False)
case("nanmedian0", lambda lib, x: x.nanmedian(), nanx, grad=False)
for it in ["linear", "lower", "higher", "midpoint", "nearest"]:
    case(
        "quantile" + it,
        lambda lib, x, q, it=it: x.quantile(q.detach(), 1, interpolation=it),
        x,
        np.array([0.1, 0.25, 0.8, 1.0]),
    )
    case(
        "nanquantile" + it,
        lambda lib, x, it=it: (
            x.nanquantile(0.3, 0, keepdim=True, interpolation=it),
            x.nanquantile(0.6),
        ),
        nanx,
        grad=False,
    )
case("quantile0", lambda lib, x: (x.quantile(0.3), x.quantile(0.3, dim=0, keepdim=True)), x)
case("quantilenan", lambda lib, x: x.quantile(0.3, 1), nanx, grad=False)
case(
    "trapz",
    lambda lib, x, y: (
        lib.t.trapezoid(x),
        lib.t.trapezoid(x, dx=0.3, dim=0),
        lib.t.trapezoid(x, y),
        lib.t.cumulative_trapezoid(x, y, dim=0),
        lib.t.trapezoid(x, y[0]),
    ),
    x,
    pos,
)
case(
    "gradient",
    lambda lib, x: (
        lib.t.gradient(x)
        + lib.t.gradient(x, spacing=(0.5, 2.0), edge_order=2)
        + lib.t.gradient(x, dim=1)
    ),
    x,
    scale=10,
)
case(
    "gradient2",
    lambda lib, x: lib.t.gradient(
        x, spacing=(lib.t.tensor([0.0, 1, 3, 4.5], dtype=lib.t.float64),), dim=0, edge_order=2
    ),
    x,
    scale=20,
)
case("histc", lambda lib, x: (lib.t.histc(x, 5), lib.t.histc(x, 4, -1, 1)), x, grad=False)
case(
    "histogram",
    lambda lib, x: (
        tuple(lib.t.histogram(x, 5)) + tuple(lib.t.histogram(x, 4, range=(-1.0, 1.0), density=True))
    ),
    x,
    grad=False,
)
case(
    "cov",
    lambda lib, x: (x.cov(), lib.t.cov(x, correction=0), lib.t.corrcoef(x), lib.t.cov(x[0])),
    x,
    scale=10,
)
case(
    "covw",
    lambda lib, x: (
        lib.t.cov(
            x,
            fweights=lib.t.tensor([1, 2, 3, 1, 2]),
            aweights=lib.t.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=lib.t.float64),
        ),
    ),
    x,
    scale=10,
)
case("renorm", lambda lib, x: x.renorm(2, 0, 1.5), x, scale=10)
case("dist", lambda lib, x, y: (lib.t.dist(x, y), lib.t.dist(x, y, 1)), x, pos, scale=10)
for red in ["sum", "prod", "mean", "amax", "amin"]:
    for inc in (True, False):
        case(
            f"scatter_reduce{red}{inc}",
            lambda lib, x, i, s, red=red, inc=inc: x.scatter_reduce(0, i, s, red, include_self=inc),
            x,
            i45[:3, :4],
            rng.standard_normal((3, 4)),
            scale=10,
        )
        if red != "sum":
            case(
                f"index_reduce{red}{inc}",
                lambda lib, x, i, s, red=red, inc=inc: x.index_reduce(
                    1, i, s, red, include_self=inc
                ),
                x,
                np.array([0, 2, 2]),
                rng.standard_normal((4, 3)),
                scale=10,
                grad=red not in ("amax", "amin"),
            )
case(
    "index_put",
    lambda lib, x, v: (
        x.index_put((lib.t.tensor([0, 1]), lib.t.tensor([2, 3])), v[:2]),
        x.index_put((lib.t.tensor([0, 0]),), v[:5], accumulate=True),
    ),
    x,
    v,
)
case(
    "put",
    lambda lib, x, v: (
        x.put(lib.t.tensor([0, 7, 3]), v[:3]),
        x.put(lib.t.tensor([1, 1, 3]), v[:3], accumulate=True),
        x.take(lib.t.tensor([[0, 3], [19, 1]])),
    ),
    x,
    v,
)
case(
    "slice_scatter",
    lambda lib, x, s: (
        x.slice_scatter(s[:2], 0, 1, 3),
        x.select_scatter(s[0], 0, 2),
        x.diagonal_scatter(s[:, 0].clone()[:4]),
        lib.t.slice_scatter(x, s[:, :2], 1, start=0, end=4, step=2),
    ),
    x,
    rng.standard_normal((4, 5)),
)
case(
    "as_strided",
    lambda lib, x: (
        x.as_strided((2, 3), (1, 2)),
        x.as_strided((3, 3), (2, 1), 1) * 2,
        lib.t.as_strided(x, (2, 2), (0, 1)),
    ),
    x,
)
case(
    "as_strided of views",
    lambda lib, x: ((x * 1)[1:].as_strided((2, 3), (1, 2)), (x * 1).t().as_strided((2, 3), (1, 2))),
    x,
)
case(
    "as_strided_scatter",
    lambda lib, x, s: x.as_strided_scatter(s, (2, 3), (5, 1), 1),
    x,
    rng.standard_normal((2, 3)),
    grad=False,
)
case(
    "masked_scatter",
    lambda lib, x, s: x.masked_scatter(x.detach() > 0, s),
    x,
    rng.standard_normal((5, 5)),
)
case(
    "blockdiag",
    lambda lib, x, v: (
        lib.t.block_diag(x, v, v[0]),
        lib.t.diagflat(x[:2, :2], 1),
        lib.t.combinations(v, 2),
        lib.t.combinations(v[:3], 2, True),
        lib.t.cartesian_prod(v[:2], v[:3]),
    ),
    x,
    v,
)
case("vander", lambda lib, v: (lib.t.vander(v), lib.t.vander(v, 3, increasing=True)), v, grad=False)
case("tri", lambda lib: (lib.t.tril_indices(3, 4, 1), lib.t.triu_indices(4, 3, -1)), grad=False)
case(
    "split",
    lambda lib, y: (
        y.hsplit(2)
        + y.vsplit(3)
        + y.dsplit([1, 3])
        + y.split_with_sizes([1, 2])
        + y.unsafe_chunk(2, 2)
    ),
    y[:, :4, :4],
)
case(
    "gcd",
    lambda lib, a, b: (lib.t.gcd(a, b), lib.t.lcm(a, b), a.gcd(b)),
    np.array([12, -18, 0, 7]),
    np.array([8, 27, 0, -21]),
    grad=False,
)
case("ldexp", lambda lib, x: (lib.t.ldexp(x, lib.t.tensor([1, 2, 3, 4, 5])),), x)
case(
    "frexp",
    lambda lib, x: tuple(lib.t.frexp(x)),
    np.array([0.0, -0.0, 1, -3.7, 1e-310, 1e300, np.inf, np.nan, 5e-324]),
    grad=False,
)
case("frexpg", lambda lib, x: lib.t.frexp(x)[0], x)
case(
    "frexp32",
    lambda lib, x: tuple(lib.t.frexp(x)),
    np.array([0.0, -0.0, 1, -3.7, 1e-42, 1e38, np.inf, np.nan], "float32"),
    grad=False,
)
case(
    "nextafter",
    lambda lib, a, b: lib.t.nextafter(a, b),
    np.array([0.0, 1, -1, np.inf, np.nan, 0.0]),
    np.array([1.0, 0, -5, 0, 1, -1]),
    grad=False,
)
case(
    "isin",
    lambda lib, a: (
        lib.t.isin(a, lib.t.tensor([1, 3])),
        lib.t.isin(a, 2),
        lib.t.isin(a, lib.t.tensor([1, 3]), invert=True),
    ),
    i45,
    grad=False,
)
case(
    "sumto", lambda lib, y: (y.sum_to_size(1, 5), y.sum_to_size((4, 5)), y.sum_to_size(3, 1, 1)), y
)
case(
    "unique",
    lambda lib, a: (
        lib.t.unique(a, return_inverse=True, return_counts=True)
        + lib.t.unique(a, dim=1, return_inverse=True, return_counts=True)
        + lib.t.unique_consecutive(a, return_inverse=True, return_counts=True)
        + (lib.t.unique_consecutive(a, dim=0),)
    ),
    i45,
    grad=False,
    jit=False,
)
case(
    "bincount",
    lambda lib, a, w: (
        lib.t.bincount(a, minlength=10),
        lib.t.bincount(a, w),
        lib.t.bincount(a, w.float()),
    ),
    i45[0],
    np.abs(x[0]),
    grad=False,
    jit=False,
)
case(
    "nzs",
    lambda lib, a: (lib.t.nonzero_static(a, size=4), a.nonzero_static(size=25, fill_value=-7)),
    i45 - 1,
    grad=False,
)
case("unravel", lambda lib, a: lib.t.unravel_index(a, (2, 3, 2)), i45, grad=False)
case(
    "windows",
    lambda lib: tuple(
        getattr(lib.t, n + "_window")(9, periodic=p, dtype=lib.t.float64)
        for n in ["hann", "hamming", "blackman", "bartlett", "kaiser"]
        for p in (True, False)
    ),
    grad=False,
    scale=100,
)
case(
    "viewd",
    lambda lib, x: (
        x.detach().view(lib.t.int32),
        x.detach().view(lib.t.int64),
        x.detach().view(lib.t.uint8),
        x.detach().float().view(lib.t.int16),
    ),
    x,
    grad=False,
)
case(
    "filld",
    lambda lib, x: (
        x.clone().fill_diagonal_(3.0),
        x.t().clone().fill_diagonal_(2.0, wrap=True),
        lib.t.zeros(3, 3, 3).fill_diagonal_(1),
        lib.t.zeros(7, 3).fill_diagonal_(1, wrap=True),
    ),
    x,
    grad=False,
)


def vip(lib, x):
    y = x * 2
    y.t_()
    y.unsqueeze_(1)
    w = y.sum(0)
    y.squeeze_()
    y.swapaxes_(0, 1)
    return w, y * x


case("viewip", vip, x)


def vip2(lib, x):
    b = x * 2
    y = b[1:]
    y.transpose_(0, 1)
    y.mul_(3)
    y.unsqueeze_(0)
    return b * 1, y * 2


case("viewip2", vip2, x)


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name):
    code, arrays, _, how = CASES[name]
    check(code, *arrays, **how)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_compiled(name):
    """Compiled equals eager."""
    code, arrays, _, how = CASES[name]
    inputs = tensors(OURS, arrays, False)
    wanted = flat(code(OURS, *inputs))
    f = jitgrad.jit(fallback="error")(lambda *x: code(OURS, *x))
    f(*inputs)
    for a, b in zip(flat(f(*inputs)), wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        rtol = 2e-6 if a.dtype in (jitgrad.float32, jitgrad.float16) else 1e-11
        np.testing.assert_allclose(numpy(a), numpy(b), rtol=rtol, atol=1e-12)


SPECIAL_POINTS = ("atan2", "fmax", "fmin", "maximum", "minimum", "logaddexp", "logaddexp2",
                  "special.xlog1py")  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL_POINTS)
def test_derivatives_of_equal_operands_and_zeros(name):
    numbers = [0.0, -0.0, 1.0, -0.5, 2.0]
    a, b = np.meshgrid(numbers, numbers)
    a, b = (x.ravel() for x in (a, b))
    if name.endswith("xlog1py"):
        a, b = a[b > -1], b[b > -1]

    def code(lib, a, b):
        found = lib.t
        for part in name.split("."):
            found = getattr(found, part)
        return found(a, b)

    check(code, a, b)
