"""Complex numbers without PyTorch: derivatives by differences, parts as views, what raises."""

import numpy as np
import pytest

import jitgrad as t
from jitgrad.autograd import gradcheck, gradgradcheck
from jitgrad.compiler.host_call import KEY
from jitgrad.runtime.errors import CompileError
from jitgrad.runtime.knobs import knob

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


def test_calls_only_for_arithmetic():
    """Movement of complex numbers is native: one call into Python, for the product."""
    f = t.jit(lambda x: (x * (2 - 1j)).T.flip(0)[:, 1:].reshape(-1), fallback="error")
    x = t.randn(3, 4, dtype=t.complex128)
    for _ in range(2):
        wanted = (x.numpy() * (2 - 1j)).T[::-1][:, 1:].reshape(-1)
        np.testing.assert_array_equal(f(x).numpy(), wanted)
    kernels = [k for k, _ in f.specialisations[0].compiled.image.kernels]
    assert kernels.count(KEY) == 1


def test_from_the_disk_cache(tmp_path):
    def body(x):
        padded = t.nn.functional.pad(x * (2 - 1j), (1, 0), value=0)
        return padded.cumsum(0) + t.full((1,), 3j), t.where(x.real > 0, x, 1j)

    x = t.randn(3, dtype=t.complex64)
    with knob(cache_dir=str(tmp_path), cache=True, verify=True):
        for k in range(2):
            f = t.jit(lambda x: body(x), fallback="error")
            for _ in range(2):
                for a, b in zip(f(x), body(x), strict=True):
                    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
            assert f.specialisations[0].compiled.report.cached == (k == 1)


def test_export_says_that_it_stays():
    with pytest.raises(CompileError, match="of complex numbers runs as a call into Python"):
        t.export(lambda x: (x * 2j).real, t.ones(2, dtype=t.complex64)).native("libx.so")


def test_what_is_not_defined():
    x = t.tensor([1 + 2j, 3 - 1j])
    for call in (x.max, x.sort, x.floor, x.relu, lambda: x < x, lambda: x % 2, lambda: x.clamp(0)):
        with pytest.raises(NotImplementedError, match="not defined for complex|real numbers; got"):
            call()
