"""Complex numbers without PyTorch: derivatives by differences, parts as views, what raises."""

import numpy as np
import pytest

import jitgrad as t
from jitgrad.autograd import gradcheck, gradgradcheck

RNG = np.random.default_rng(0)


def number(*shape):
    parts = RNG.standard_normal(shape), RNG.standard_normal(shape)
    return t.from_numpy(parts[0] + 1j * parts[1]).requires_grad_()


FUNCTIONS = {
    "product": lambda x: x.exp() * x.conj(),
    "abs": lambda x: x.abs(),
    "angle": lambda x: x.angle(),
    "sgn": lambda x: x.sgn(),
    "pow": lambda x: x ** (x * 0.3),
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "matmul": lambda x: x @ x.mH,
    "norm": lambda x: x.norm(),
    "std": lambda x: x.std(1),
    "polar": lambda x: t.polar(x.abs(), x.angle() * 2),
    "parts": lambda x: x.real * 2 + x.imag.exp(),
    "pinv": lambda x: t.linalg.pinv(x),
    "svdvals": lambda x: t.linalg.svdvals(x),
    "logdet": lambda x: t.logdet(x[:, :2] @ x[:, 1:] + 3),
    "solve": lambda x: t.linalg.solve(x[:, :2], x),
    "fft": lambda x: t.fft.fftn(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """Both modes, by vmap too, and second order."""
    x = number(2, 3)
    options = {"check_forward_ad": True, "check_batched_grad": True}
    assert gradcheck(FUNCTIONS[name], (x,), check_batched_forward_grad=True, **options)
    assert gradgradcheck(FUNCTIONS[name], (x,))


def test_gradcheck_sees_a_missing_conjugate():
    class Wrong(t.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2j

        @staticmethod
        def backward(ctx, g):
            return g * 2j

    assert not gradcheck(Wrong.apply, (number(2),), raise_exception=False)
    real = t.randn(2, dtype=t.float64, requires_grad=True)
    assert gradcheck(lambda x: x * 1j, (real,))  # a complex result of a real input


def test_parts_are_views():
    x = t.tensor([1 + 2j, 3 - 1j])
    x.real[0] = 5
    x.imag.mul_(2)
    t.view_as_real(x)[1, 0] = 7
    assert x.tolist() == [5 + 4j, 7 - 2j]
    pairs = t.zeros(2, 2)
    t.view_as_complex(pairs)[0] = 1 - 1j
    assert pairs.tolist() == [[1, -1], [0, 0]]
    x.real = t.tensor([0.0, 1.0])
    assert x.real.tolist() == [0, 1] and x.conj().tolist() == [-4j, 1 + 2j]


def test_descent_in_the_plane():
    """A complex parameter, compiled: |z^2 - w|^2 goes to 0."""
    z = t.nn.Parameter(t.tensor([1 + 1j, 2 - 1j], dtype=t.complex128))
    wanted = t.tensor([-3 + 4j, 5 + 12j], dtype=t.complex128)

    @t.jit(fallback="error")
    def loss_of():
        return (z * z - wanted).abs().square().sum()

    for _ in range(200):
        z.grad = None
        loss = loss_of()
        loss.backward()
        with t.no_grad():
            z -= 0.01 * z.grad
    assert loss.item() < 1e-12
