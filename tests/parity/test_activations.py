"""Activations: values and gradients, at kinks, far out, in all floating dtypes."""

import numpy as np
import pytest
from parity.compare import LIBS, check, raises_alike, same, torch

import jitgrad

KINKS = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0, -20.0, 0.5, -0.5, 2.5, 40.0, -40.0, 1e-3]

CASES = {
    "relu": lambda F, x: F.relu(x),
    "relu6": lambda F, x: F.relu6(x),
    "leaky_relu": lambda F, x: F.leaky_relu(x, 0.2),
    "elu": lambda F, x: F.elu(x, 0.7),
    "selu": lambda F, x: F.selu(x),
    "gelu": lambda F, x: F.gelu(x),
    "gelu tanh": lambda F, x: F.gelu(x, approximate="tanh"),
    "silu": lambda F, x: F.silu(x),
    "softplus": lambda F, x: F.softplus(x),
    "softplus 2 5": lambda F, x: F.softplus(x, 2.0, 5.0),
    "logsigmoid": lambda F, x: F.logsigmoid(x),
    "mish": lambda F, x: F.mish(x),
    "hardtanh": lambda F, x: F.hardtanh(x),
    "hardtanh 0.5 2.5": lambda F, x: F.hardtanh(x, -0.5, 2.5),
    "hardsigmoid": lambda F, x: F.hardsigmoid(x),
    "hardswish": lambda F, x: F.hardswish(x),
    "sigmoid": lambda F, x: F.sigmoid(x),
    "tanh": lambda F, x: F.tanh(x),
    "celu": lambda F, x: F.celu(x, 0.5),
    "hardshrink": lambda F, x: F.hardshrink(x),
    "softshrink": lambda F, x: F.softshrink(x, 1.0),
    "softsign": lambda F, x: F.softsign(x),
    "tanhshrink": lambda F, x: F.tanhshrink(x),
    "threshold": lambda F, x: F.threshold(x, 0.5, -2.0),
    "rrelu": lambda F, x: F.rrelu(x, 0.1, 0.4),
    "glu": lambda F, x: F.glu(x[: len(x) // 2 * 2], 0),
    "softmin": lambda F, x: F.softmin(x, 0),
    "softmax": lambda F, x: F.softmax(x, 0),
    "log_softmax": lambda F, x: F.log_softmax(x, -1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_and_gradients(name, dtype):
    rng = np.random.default_rng(1)
    x = np.concatenate([KINKS, rng.uniform(-8, 8, 40)]).astype(dtype)
    if "softm" in name:
        x = x / 8
    # PyTorch computes hardsigmoid and hardswish with 1/6 in float32; softmax's gradient cancels.
    loose = dtype is np.float64 and name in ("hardsigmoid", "hardswish")
    check(lambda lib, x: CASES[name](lib.F, x), x, scale=3e6 if loose else 4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(name, dtype):
    x = np.random.default_rng(2).uniform(-4, 4, 50).astype(np.float32)

    def code(lib, x):
        return CASES[name](lib.F, x.to(getattr(lib.t, dtype)))

    check(code, x, grad=False)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name):
    if name in ("hardswish", "hardsigmoid"):
        return  # PyTorch has none at the kinks
    x = np.random.default_rng(3).uniform(-3, 3, 12)
    x[0] = 0.0

    def code(lib, x):
        y = CASES[name](lib.F, x)
        (g,) = lib.t.autograd.grad((y * y).sum(), x, create_graph=True)
        return g

    check(code, x, scale=10)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("hardswish", "gelu", "gelu tanh")])
def test_infinities_and_nan(name):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30])
    if name in ("softmax", "log_softmax", "softmin"):
        x = x[3:]
    check(lambda lib, x: CASES[name](lib.F, x), x, grad=False)


@pytest.mark.parametrize("rank", range(5))
def test_softmax_without_dim(rank):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 2)[:rank])

    def code(lib, x):
        with pytest.warns(UserWarning, match="Implicit dimension"):
            return lib.F.softmax(x), lib.F.softmin(x), lib.nn.LogSoftmax()(x)

    check(code, np.asarray(x), scale=4)


@pytest.mark.parametrize(
    "name", ["relu", "relu6", "leaky_relu", "elu", "selu", "silu", "mish", "hardtanh",
             "hardsigmoid", "hardswish", "celu", "rrelu"],
)  # fmt: skip
def test_inplace(name):
    """In place: the argument holds the result and is what is returned; gradients agree."""

    def code(lib, x):
        y = x * 1
        z = getattr(lib.F, name)(y, inplace=True)
        assert z is y
        return z * 1

    check(code, np.random.default_rng(5).uniform(-4, 4, 20).astype(np.float32), scale=4)


IN_PLACE = {
    "relu_": (), "elu_": (0.7,), "celu_": (0.5,), "selu_": (), "leaky_relu_": (0.2,),
    "hardtanh_": (-2.0, 1.5), "threshold_": (0.5, -1.0), "rrelu_": (0.1, 0.3, False),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_forms(name):
    def code(lib, x):
        y = x * 1
        z = getattr(lib.F, name)(y, *IN_PLACE[name])
        assert z is y
        return z * 1

    check(code, np.random.default_rng(5).uniform(-4, 4, 20).astype(np.float32), scale=4)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 4, 3), (2, 4, 3, 2), (0, 4)])
@pytest.mark.parametrize("channels", [1, 4, 0])
def test_prelu(shape, channels):
    """One slope (as a vector or, for channels 0, as a scalar) or one for each channel."""
    if channels == 4 and len(shape) < 2:
        return
    x = np.asarray(np.random.default_rng(0).standard_normal(shape))
    w = np.asarray(np.random.default_rng(1).standard_normal((channels,) if channels else ()))
    check(lambda lib, x, w: lib.F.prelu(x, w), x, w)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim):
    x = np.random.default_rng(0).standard_normal((4, 6, 2))
    check(lambda lib, x: lib.F.glu(x, dim), x)
    check(lambda lib, x: lib.F.glu(x.transpose(0, 1)[1:5], dim), x)


def test_random_activations():
    """rrelu and gumbel_softmax: what any draw keeps, and gradients through it."""
    x = np.random.default_rng(0).standard_normal((400, 5))
    for lib in LIBS:
        lib.t.manual_seed(0)
        leaf = lib.t.from_numpy(x).requires_grad_()
        y = lib.F.rrelu(leaf, 0.2, 0.4, training=True)
        (g,) = lib.t.autograd.grad(y.sum(), leaf)
        slope = g.numpy()[x < 0]
        assert (g.numpy()[x > 0] == 1).all() and slope.min() >= 0.2 and slope.max() <= 0.4
        assert abs(slope.mean() - 0.3) < 0.01
        np.testing.assert_allclose(y.detach().numpy(), x * g.numpy(), rtol=1e-12)
        soft = lib.F.gumbel_softmax(leaf * 0, tau=0.5, dim=1)
        np.testing.assert_allclose(soft.detach().numpy().sum(1), 1)
        lib.t.manual_seed(3)
        soft = lib.F.gumbel_softmax(leaf, tau=0.5)
        lib.t.manual_seed(3)
        hard = lib.F.gumbel_softmax(leaf, tau=0.5, hard=True)
        assert (hard.argmax(1) == soft.argmax(1)).all()
        assert set(hard.detach().numpy().ravel().round(9)) == {0.0, 1.0}
        weight = lib.t.arange(5, dtype=lib.t.float64)
        grads = [lib.t.autograd.grad((z * weight).sum(), leaf)[0].numpy() for z in (soft, hard)]
        np.testing.assert_allclose(*grads, rtol=1e-9, atol=1e-15)
        counts = lib.F.gumbel_softmax(leaf * 0 + weight.log1p(), hard=True).sum(0)
        np.testing.assert_allclose(counts.detach().numpy() / 400, np.arange(1, 6) / 15, atol=0.08)


BAD = {
    "glu odd": lambda lib, x: lib.F.glu(x, 0),
    "glu 0-d": lambda lib, x: lib.F.glu(x[0, 0]),
    "prelu weight": lambda lib, x: lib.F.prelu(x, x[0, :3]),
    "prelu dtype": lambda lib, x: lib.F.prelu(x, lib.t.ones(1)),
    "softshrink": lambda lib, x: lib.F.softshrink(x, -1.0),
    "celu": lambda lib, x: lib.F.celu(x, 0.0),
    "rrelu": lambda lib, x: lib.F.rrelu(x, 0.5, 0.2, True),
    "Softmax2d": lambda lib, x: lib.nn.Softmax2d()(x),
    "Hardtanh": lambda lib, x: lib.nn.Hardtanh(1, -1),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_raise_alike(name):
    raises_alike(BAD[name], np.ones((3, 4)))


def test_module_names_and_reprs():
    makers = [
        lambda nn: nn.ReLU(), lambda nn: nn.ReLU(inplace=True), lambda nn: nn.LeakyReLU(0.2),
        lambda nn: nn.ELU(0.5), lambda nn: nn.GELU("tanh"), lambda nn: nn.Softmax(1),
        lambda nn: nn.LogSoftmax(0), lambda nn: nn.Softplus(2, 10), lambda nn: nn.Hardtanh(-2, 2),
        lambda nn: nn.SiLU(), lambda nn: nn.Mish(), lambda nn: nn.SELU(), lambda nn: nn.Tanh(),
        lambda nn: nn.Sigmoid(), lambda nn: nn.LogSigmoid(), lambda nn: nn.Hardswish(),
        lambda nn: nn.Hardsigmoid(), lambda nn: nn.ReLU6(), lambda nn: nn.CELU(0.5, True),
        lambda nn: nn.GLU(1), lambda nn: nn.Hardshrink(0.3), lambda nn: nn.Softshrink(0.3),
        lambda nn: nn.Softsign(), lambda nn: nn.Tanhshrink(), lambda nn: nn.Threshold(0.1, 2, True),
        lambda nn: nn.RReLU().eval(), lambda nn: nn.PReLU(4).double(), lambda nn: nn.Softmin(0),
        lambda nn: nn.Hardtanh(-2, 2, inplace=True),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 4))
    for make in makers:
        ours, theirs = (make(lib.nn) for lib in LIBS)
        assert repr(ours).rstrip() == repr(theirs).rstrip()
        same(ours(LIBS[0].t.from_numpy(x)), theirs(torch.from_numpy(x)), repr(ours))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize(
    "name",
    ["elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "tanhshrink",
     "hardswish", "hardsigmoid", "hardshrink", "softshrink", "logsigmoid", "leaky_relu", "rrelu",
     "glu", "relu6", "hardtanh", "softmax", "dropout", "dropout1d"],
)  # fmt: skip
def test_integers(name, dtype):
    """Refused where PyTorch refuses them, with its dtype where it does not."""
    if dtype == "bool" and name in ("softsign", "tanhshrink", "relu6", "hardtanh"):
        return  # PyTorch has no such arithmetic for bools
    if dtype == "uint8" and name == "hardtanh":
        return  # nor negative numbers in uint8

    def call(module):
        x = module.ones(2, 4, dtype=getattr(module, dtype))
        return getattr(module.nn.functional, name)(x, *([0] if name == "softmax" else []))

    try:
        want = call(torch)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="float|Float"):
            call(jitgrad)
    else:
        same(call(jitgrad), want)
