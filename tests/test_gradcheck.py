"""gradcheck's options: each finds the kind of wrong derivative that it is for, and only that."""

from __future__ import annotations

from typing import Any

import pytest

import jitgrad as jg
from jitgrad.autograd import GradcheckError, gradcheck, gradgradcheck


def product(
    backward: float = 1.0, forward: float = 1.0, noise: float = 0.0, batched: float = 1.0,
    second: float = 1.0,
) -> Any:  # fmt: skip
    """x * y, with factors on what its derivatives give."""
    calls = [0.0]

    class Slope(jg.autograd.Function):
        """g * y, whose own derivative has a factor."""

        @staticmethod
        def forward(ctx: Any, g: Any, y: Any) -> Any:
            ctx.save_for_backward(g, y)
            return g * y

        @staticmethod
        def backward(ctx: Any, h: Any) -> Any:
            g, y = ctx.saved_tensors
            return h * y * second, h * g * second

        @staticmethod
        def jvp(ctx: Any, dg: Any, dy: Any) -> Any:
            raise AssertionError("not asked for")

    class Product(jg.autograd.Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            calls[0] += noise
            inside = batched if jg.autograd.engine.state.levels else 1.0
            factor = (backward + calls[0]) * inside
            return Slope.apply(g, y) * factor, g * x * factor

        @staticmethod
        def jvp(ctx: Any, dx: Any, dy: Any) -> Any:
            x, y = ctx.saved_tensors
            inside = batched if len(jg.autograd.engine.state.levels) else 1.0
            return (dx * y + x * dy) * forward * inside

    return Product.apply


def args() -> tuple[Any, Any]:
    x = jg.linspace(1, 2, 6, dtype=jg.float64).reshape(2, 3)
    return x.requires_grad_(), (x.detach() + 1).requires_grad_()


@pytest.mark.parametrize("fast_mode", [False, True])
def test_right_derivatives_pass(fast_mode: bool) -> None:
    assert gradcheck(
        product(), args(), check_forward_ad=True, check_batched_grad=True,
        check_batched_forward_grad=True, fast_mode=fast_mode,
    )  # fmt: skip
    assert gradgradcheck(product(), args(), fast_mode=fast_mode, check_batched_grad=True)
    assert gradgradcheck(
        lambda x, y: (x * y.sin()).exp(), args(), check_fwd_over_rev=True,
        gen_non_contig_grad_outputs=True, fast_mode=fast_mode,
    )  # fmt: skip


@pytest.mark.parametrize("fast_mode", [False, True])
def test_wrong_derivatives_are_found(fast_mode: bool) -> None:
    def fails(f: Any, match: str, check: Any = gradcheck, **options: Any) -> None:
        with pytest.raises(GradcheckError, match=match):
            check(f, args(), fast_mode=fast_mode, **options)
        assert not check(f, args(), fast_mode=fast_mode, raise_exception=False, **options)

    fails(product(backward=2.0), "^Jacobian mismatch for output 0 with respect to input 0")
    wrong = product(forward=2.0)
    assert gradcheck(wrong, args(), fast_mode=fast_mode)
    fails(wrong, "^Forward mode: Jacobian mismatch", check_forward_ad=True)
    assert gradcheck(
        product(backward=2.0), args(), check_backward_ad=False, check_forward_ad=True,
        fast_mode=fast_mode,
    )  # fmt: skip
    fails(product(noise=1e-7), "not reentrant")
    assert gradcheck(product(noise=1e-7), args(), nondet_tol=1e-3, fast_mode=fast_mode)
    assert gradcheck(product(batched=2.0), args(), fast_mode=fast_mode)
    fails(product(batched=2.0), "^Batched gradients", check_batched_grad=True)
    fails(product(second=2.0), "Jacobian mismatch", gradgradcheck)


def test_a_batched_forward_gradient_that_differs_is_found() -> None:
    def f(x: Any, y: Any) -> Any:
        return x * y * (2.0 if len(jg.autograd.engine.state.levels) > 1 else 1.0)

    options: dict[str, Any] = {"check_forward_ad": True}
    assert gradcheck(f, args(), **options)
    with pytest.raises(GradcheckError, match="^Batched forward gradients"):
        gradcheck(f, args(), check_batched_forward_grad=True, **options)


def test_options_that_do_not_go_together() -> None:
    for options in (
        {"check_backward_ad": False},
        {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
        {"check_batched_forward_grad": True},
    ):
        with pytest.raises(AssertionError):
            gradcheck(product(), args(), **options)
    with pytest.raises(ValueError, match="require gradient"):
        gradcheck(product(), [x.detach() for x in args()])


def test_a_gradient_of_another_dtype_is_converted() -> None:
    class Narrow(jg.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g.float()

    assert gradcheck(Narrow.apply, args()[:1])
