"""Fourier transforms against NumPy and finite differences, eager and compiled."""

import itertools

import numpy as np
import pytest

import jitgrad as t
from jitgrad.autograd import gradcheck, gradgradcheck

RNG = np.random.default_rng(0)
NORMS = (None, "backward", "ortho", "forward")


def number(*shape):
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_dim(name, norm):
    for n, dim in itertools.product((None, 1, 3, 5, 8), (-1, 0)):
        x = RNG.standard_normal((4, 5)) if name in ("rfft", "ihfft") else number(4, 5)
        found = getattr(t.fft, name)(t.from_numpy(x), n, dim, norm).numpy()
        wanted = getattr(np.fft, name)(x, n, dim, norm)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "irfft2"])
def test_several_dims(name, norm):
    x = RNG.standard_normal((3, 4, 5)) if name == "rfftn" else number(3, 4, 5)
    for s, dim in ((None, (0, 2)), ((4, 3), (1, 2)), ((2, 6), (-1, 0))):
        found = getattr(t.fft, name)(t.from_numpy(x), s, dim, norm).numpy()
        wanted = getattr(np.fft, name)(x, s, dim, norm)
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


FUNCTIONS = {
    "fft": (lambda x: t.fft.fft(x, 5, norm="ortho"), (2, 4)),
    "of complex": (lambda x: t.fft.ifftn(t.view_as_complex(x)), (3, 4, 2)),
    "rfft": (lambda x: t.fft.rfft(x), (2, 5)),
    "rfft2": (lambda x: t.fft.rfft2(x), (3, 4)),
    "irfft": (lambda x: t.fft.irfft(t.view_as_complex(x)), (2, 4, 2)),
    "irfft odd": (lambda x: t.fft.irfft(t.view_as_complex(x), 5), (2, 4, 2)),
    "hfft": (lambda x: t.fft.hfft(t.view_as_complex(x), norm="forward"), (2, 3, 2)),
    "ihfftn": (lambda x: t.fft.ihfftn(x), (3, 4)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_and_compiled(name):
    function, shape = FUNCTIONS[name]

    def parts(x):
        y = function(x)
        y = t.view_as_real(y) if y.is_complex() else y
        return y * y

    x = t.from_numpy(RNG.standard_normal(shape)).requires_grad_()
    assert gradcheck(parts, (x,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(parts, (x,))

    def step(x):
        loss = parts(x).sum()
        return function(x), *t.autograd.grad(loss, [x])

    compiled = t.jit(step, fallback="error")
    for _ in range(2):
        for a, b in zip(compiled(x), step(x), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), 1e-12, 1e-12)


def test_single_precision_stays():
    x = t.randn(4, 6)
    assert t.fft.fft(x).dtype is t.complex64
    assert t.fft.irfft(t.fft.rfft(x)).dtype is t.float32
    assert t.fft.fft(t.arange(3)).dtype is t.complex64
    np.testing.assert_allclose(t.fft.irfft(t.fft.rfft(x)).numpy(), x.numpy(), 1e-5, 1e-6)


def test_frequencies_and_shifts():
    for n in (1, 2, 5, 8):
        np.testing.assert_allclose(t.fft.fftfreq(n, 0.5).numpy(), np.fft.fftfreq(n, 0.5), 1e-6)
        np.testing.assert_allclose(t.fft.rfftfreq(n, 0.5).numpy(), np.fft.rfftfreq(n, 0.5), 1e-6)
        x = t.arange(n * 3).reshape(n, 3)
        np.testing.assert_array_equal(t.fft.fftshift(x).numpy(), np.fft.fftshift(x.numpy()))
        np.testing.assert_array_equal(t.fft.ifftshift(x, 0).numpy(), np.fft.ifftshift(x.numpy(), 0))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: t.fft.fft(t.ones(3), norm="other"), "Invalid normalization mode"),
        (lambda: t.fft.fft(t.ones(3), 0), "Invalid number of data points"),
        (lambda: t.fft.rfft(t.ones(3) * 1j), "expects a real input"),
        (lambda: t.fft.fftn(t.ones(3, 3), dim=(0, 0)), "must be unique"),
        (lambda: t.fft.fftn(t.ones(3, 3), (2,), (0, 1)), "same length"),
        (lambda: t.fft.fft(t.ones(3).half()), "Unsupported dtype"),
    ],
)
def test_errors(call, text):
    with pytest.raises(RuntimeError, match=text):
        call()
