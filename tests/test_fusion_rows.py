"""Counts of kernels and bytes of norms, softmaxes and losses as users write them from elementary
ops, forward and backward: fusion sees structure, not names. Values are compared with eager code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import jitgrad as torch
from jitgrad import jit
from jitgrad.runtime.knobs import knob

ROWS, COLUMNS = 600, 96
Tensor = torch.Tensor


def gibbs(energy: Tensor) -> Tensor:
    weight = torch.exp(energy - energy.amax(-1, keepdim=True))
    return weight / weight.sum(-1, keepdim=True)


def log_gibbs(energy: Tensor) -> Tensor:
    low = energy - energy.amax(-1, keepdim=True)
    return low - torch.log(torch.exp(low).sum(-1, keepdim=True))


def whiten(signal: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centred = signal - signal.mean(-1, keepdim=True)
    power = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(power + 1e-5) * gain + shift


def level(signal: Tensor, gain: Tensor) -> Tensor:
    return signal * torch.rsqrt(signal.pow(2).mean(-1, keepdim=True) + 1e-6) * gain


def standardise(table: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    centre = table.sum(0) / table.shape[0]
    spread = ((table - centre) ** 2).sum(0) / table.shape[0]
    return (table - centre) * torch.rsqrt(spread + 1e-5) * gain + shift


def surprise(score: Tensor, truth: Tensor) -> Tensor:
    return -log_gibbs(score).gather(1, truth[:, None]).mean()


def functional(name: str) -> Callable[..., Tensor]:
    f = torch.nn.functional
    return {
        "softmax": lambda x: f.softmax(x, -1),
        "log_softmax": lambda x: f.log_softmax(x, -1),
        "layer_norm": lambda x, w, b: f.layer_norm(x, (x.shape[-1],), w, b),
        "rms_norm": lambda x, w: f.rms_norm(x, (x.shape[-1],), w, 1e-6),
        "batch_norm": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        "cross_entropy": f.cross_entropy,
    }[name]


# forms, number of weights, kernels forward and with backward (a check of indices is one more)
FORMS = [
    (gibbs, "softmax", 0, 1, 1),
    (log_gibbs, "log_softmax", 0, 1, 1),
    (whiten, "layer_norm", 2, 1, 1),
    (level, "rms_norm", 1, 1, 1),
    (standardise, "batch_norm", 2, 1, 1),
    (surprise, "cross_entropy", -1, 2, 2),
]
CASES = [
    pytest.param(f, n, forward, both, id=f.__name__ if by_hand else name)
    for hand, name, n, forward, both in FORMS
    for by_hand in (True, False)
    for f in [hand if by_hand else functional(name)]
]


def arguments(weights: int) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, requires_grad=True)
    if weights < 0:
        return [x, torch.randint(0, COLUMNS, (ROWS,))]
    return [x, *(torch.randn(COLUMNS, requires_grad=True) for _ in range(weights))]


def gradients(f: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def both(grad: Tensor, *args: Tensor) -> tuple[Tensor, ...]:
        out = f(*args)
        wanted = [a for a in args if a.requires_grad]
        return torch.autograd.grad(out, wanted, grad if out.ndim else None)

    return both


def report(f: Callable[..., object]) -> tuple[int, float]:
    """Kernels, and bytes moved in units of the operand's."""
    found = f.specialisations[0].compiled.report  # type: ignore[attr-defined]
    return found.kernels, found.bytes_after / (4 * ROWS * COLUMNS)


def close(got: object, want: object) -> None:
    for g, w in zip(got, want, strict=True):  # type: ignore[call-overload]
        scale = float(np.abs(w.numpy()).max())
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=2e-5, atol=3e-6 * max(scale, 1e-3))


@pytest.mark.parametrize(("f", "weights", "forward", "both"), CASES)
def test_one_pass(f: Callable[..., Tensor], weights: int, forward: int, both: int) -> None:
    args = arguments(weights)
    grad = torch.randn(ROWS, COLUMNS)
    plain = [a.detach() for a in args]
    once = jit(f, fallback="error")
    once(*plain)
    close([once(*plain)], [f(*plain)])
    kernels, moved = report(once)
    assert kernels == forward
    assert moved < (2.3 if weights >= 0 else 1.3), moved  # reads and writes, no score of its own
    back = jit(gradients(f), fallback="error")
    back(grad, *args)
    close(back(grad, *args), gradients(f)(grad, *args))
    kernels, moved = report(back)
    assert kernels == both
    assert moved < (3.2 if weights >= 0 else 2.2), moved


def test_sums_along_both_axes_read_once() -> None:
    """Reductions along rows and along columns of one operand are one kernel."""

    @jit(fallback="error")
    def summary(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(0), x.amax(1), x.mean(1), x.amin(0), (x * x).sum(0)

    x = torch.randn(ROWS, COLUMNS)
    summary(x)
    close(summary(x), summary.__wrapped__(x))
    kernels, moved = report(summary)
    assert kernels == 1 and moved < 1.1


@pytest.mark.parametrize("shape", [(2, 300, 70), (1, 64), (700, 1), (33, 17), (3000, 40)], ids=str)
def test_awkward_shapes(shape: tuple[int, ...]) -> None:
    """Odd sizes, sizes of 1: values as eager, the same bits on any number of threads."""
    torch.manual_seed(1)
    x = torch.randn(*shape, requires_grad=True)
    gain = torch.randn(shape[-1], requires_grad=True)
    shift = torch.randn(shape[-1], requires_grad=True)
    grad = torch.randn(*shape)
    both = jit(gradients(whiten), fallback="error")
    both(grad, x, gain, shift)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 8):
            torch.set_num_threads(n)
            results.append(both(grad, x, gain, shift))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(
            a.numpy().tobytes() == b.numpy().tobytes()
            for a, b in zip(results[0], other, strict=True)
        )
    if shape[-1] > 1:
        close(results[0], gradients(whiten)(grad, x, gain, shift))


def test_nan_and_infinity_stay_in_their_row_and_column() -> None:
    x = torch.randn(ROWS, COLUMNS)
    x[3, 5], x[7, 9] = float("nan"), float("inf")
    x.requires_grad_()
    args = [x, torch.ones(COLUMNS, requires_grad=True), torch.zeros(COLUMNS, requires_grad=True)]
    grad = torch.randn(ROWS, COLUMNS)
    both = jit(gradients(whiten), fallback="error")
    both(grad, *args)
    for got, want in zip(both(grad, *args), gradients(whiten)(grad, *args), strict=True):
        assert np.array_equal(np.isnan(got.numpy()), np.isnan(want.numpy()))


def test_rows_of_any_number() -> None:
    """Symbolic rows: one kernel for all numbers of them, with the bits of kernels of fixed size."""
    torch.manual_seed(2)
    any_rows = jit(gradients(whiten), fallback="error")
    sums = jit(lambda x: ((x - x.mean(0)) ** 2).sum(0), fallback="error")
    for rows in (300, 700, 2048, 257, 40):
        x = torch.randn(rows, 64, requires_grad=True)
        weights = [torch.randn(64, requires_grad=True) for _ in range(2)]
        grad, before = torch.randn(rows, 64), x.detach().clone()
        fixed = jit(gradients(whiten), fallback="error")
        for f in (any_rows, fixed):
            f(grad, x, *weights)
        for a, b in zip(any_rows(grad, x, *weights), fixed(grad, x, *weights), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
        close(fixed(grad, x, *weights), gradients(whiten)(grad, x, *weights))
        assert torch.equal(x, before)
        y = before
        alone = jit(lambda x: ((x - x.mean(0)) ** 2).sum(0), fallback="error")
        for g in (sums, alone):
            g(y)
        assert sums(y).numpy().tobytes() == alone(y).numpy().tobytes()
    kernels = [s.compiled.report.kernels for s in any_rows.specialisations if s.compiled]
    assert len(kernels) == 2 and set(kernels) == {1}


def test_a_hessian_of_sums_and_products_is_merged():
    """Groups that merged more than once: none is left as a reader of what it makes itself."""

    def scalar(x):
        return (x**3).sum() * x.prod()

    x = torch.randn(2, 3, dtype=torch.float64)
    compiled = torch.jit(lambda x: torch.autograd.functional.hessian(scalar, x), fallback="error")
    with knob(cache=False):
        results = [compiled(x) for _ in range(2)]
    assert torch.allclose(results[1], torch.autograd.functional.hessian(scalar, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_sums_over_no_rows_beside_rows_are_written(dtype):
    x = torch.rand(0, 4).to(dtype)

    @jit(fallback="error")
    def f(x):
        y = 0.1 // x
        return y.count_nonzero(dim=0), y.sum(0), y.prod(0), y.softmax(-1)

    for _ in range(3):
        rubbish = [torch.full((4,), 7.0) for _ in range(50)]
        del rubbish
        counts, total, product, _ = f(x)
        assert counts.tolist() == total.tolist() == [0] * 4 and product.tolist() == [1] * 4
