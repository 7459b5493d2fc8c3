"""Activations: values and gradients, at kinks, far out, in all floating dtypes."""

import numpy as np
import pytest
from parity.compare import LIBS, check, same, torch

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
    "softmax": lambda F, x: F.softmax(x, 0),
    "log_softmax": lambda F, x: F.log_softmax(x, -1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_and_gradients(name, dtype):
    rng = np.random.default_rng(1)
    x = np.concatenate([KINKS, rng.uniform(-8, 8, 40)]).astype(dtype)
    if "softmax" in name:
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
    if name in ("softmax", "log_softmax"):
        x = x[3:]
    check(lambda lib, x: CASES[name](lib.F, x), x, grad=False)


@pytest.mark.parametrize("rank", range(5))
def test_softmax_without_dim(rank):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 2)[:rank])
    with pytest.warns(UserWarning, match="Implicit dimension"):
        check(lambda lib, x: lib.F.softmax(x), np.asarray(x))


@pytest.mark.parametrize(
    "name", ["relu", "relu6", "leaky_relu", "elu", "selu", "silu", "mish", "hardtanh",
             "hardsigmoid", "hardswish"],
)  # fmt: skip
def test_inplace(name):
    """In place: the argument holds the result and is what is returned; gradients agree."""

    def code(lib, x):
        y = x * 1
        z = getattr(lib.F, name)(y, inplace=True)
        assert z is y
        return z * 1

    check(code, np.random.default_rng(5).uniform(-4, 4, 20).astype(np.float32), scale=4)


def test_module_names_and_reprs():
    makers = [
        lambda nn: nn.ReLU(), lambda nn: nn.ReLU(inplace=True), lambda nn: nn.LeakyReLU(0.2),
        lambda nn: nn.ELU(0.5), lambda nn: nn.GELU("tanh"), lambda nn: nn.Softmax(1),
        lambda nn: nn.LogSoftmax(0), lambda nn: nn.Softplus(2, 10), lambda nn: nn.Hardtanh(-2, 2),
        lambda nn: nn.SiLU(), lambda nn: nn.Mish(), lambda nn: nn.SELU(), lambda nn: nn.Tanh(),
        lambda nn: nn.Sigmoid(), lambda nn: nn.LogSigmoid(), lambda nn: nn.Hardswish(),
        lambda nn: nn.Hardsigmoid(), lambda nn: nn.ReLU6(),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 4))
    for make in makers:
        ours, theirs = (make(lib.nn) for lib in LIBS)
        assert repr(ours).rstrip() == repr(theirs).rstrip()
        same(ours(LIBS[0].t.from_numpy(x)), theirs(torch.from_numpy(x)), repr(ours))
