"""Strides of composites of elementwise ops are PyTorch's, whatever the size: large ones run as one
compiled program in eager code, small ones as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parity.compare import torch

import jitgrad

Call = Callable[[Any, Any, Any], Any]

ACTIVATIONS = """
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6
    selu sigmoid silu softplus softshrink softsign tanhshrink
"""
LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div
    l1_loss mse_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
"""


def _named(name: str, *more: Any, **keywords: Any) -> Call:
    if name in LOSSES.split():
        return lambda t, x, y: getattr(t.nn.functional, name)(y, x, reduction="none")
    return lambda t, x, y: getattr(t.nn.functional, name)(y, *more, **keywords)


CALLS: dict[str, Call] = {
    **{name: _named(name) for name in (ACTIVATIONS + LOSSES).split()},
    "threshold": _named("threshold", 0.5, 0.1),
    "gelu_tanh": _named("gelu", approximate="tanh"),
    "glu": _named("glu", 1),
    "normalize": _named("normalize", dim=1),
    "prelu": lambda t, x, y: t.nn.functional.prelu(y, t.ones(y.shape[1])),
    "gaussian_nll_loss": lambda t, x, y: t.nn.functional.gaussian_nll_loss(
        y, x, y + 1, reduction="none"
    ),
    "lerp": lambda t, x, y: t.lerp(y, x, 0.25),
    "addcdiv": lambda t, x, y: t.addcdiv(y, x, x + 1),
    "logit": lambda t, x, y: y.logit(1e-6),
    "mvlgamma": lambda t, x, y: t.mvlgamma(y + 5, 2),
    "ldexp": lambda t, x, y: t.ldexp(y, x),
    "logcumsumexp": lambda t, x, y: y.logcumsumexp(1),
    "cummax": lambda t, x, y: y.cummax(1).values,
    "cosine_similarity": lambda t, x, y: t.cosine_similarity(y, x, dim=1),
    "pairwise_distance": lambda t, x, y: t.nn.functional.pairwise_distance(y, x),
    "tril": lambda t, x, y: y.tril(),
}
LAYOUTS: dict[str, Call] = {
    "permuted": lambda t, x, y: (x, y.permute(2, 1, 0)),
    "both": lambda t, x, y: (x.transpose(1, 2), y.transpose(0, 1)),
    "gaps": lambda t, x, y: (x, y[:, :, ::2].permute(2, 1, 0).repeat_interleave(2, 0)[::2]),
    "expanded": lambda t, x, y: (x.permute(1, 0, 2), y[:1].expand(y.shape).permute(1, 2, 0)),
}
SMALL, LARGE = 4, 32


def _operands(t: Any, layout: str, n: int) -> tuple[Any, Any]:
    numbers = np.arange(n**3, dtype=np.float32).reshape(n, n, n) * np.float32(7) % 11 / 11 + 0.01
    x, y = t.from_numpy(numbers.copy()), t.from_numpy(numbers[::-1].copy())
    first, second = LAYOUTS[layout](t, x, y)
    if layout == "gaps":
        first = first[: second.shape[0]]
        second = second.expand(second.shape)
    return first[: second.shape[0], : second.shape[1], : second.shape[2]], second


@pytest.mark.parametrize("name", CALLS)
def test_strides_do_not_depend_on_size(name: str) -> None:
    call = CALLS[name]
    compiled = jitgrad.jit(lambda x, y: call(jitgrad, x, y), fallback="error")
    for layout in LAYOUTS:
        for n in (SMALL, LARGE):
            expected = call(torch, *_operands(torch, layout, n))
            x, y = _operands(jitgrad, layout, n)
            made = [call(jitgrad, x, y)]
            if n == SMALL:
                made += [compiled(x, y), compiled(x, y)]
            else:
                y.requires_grad_(name not in ("cummax", "kl_div"))
                made.append(call(jitgrad, x, y).detach())
            for out in made:
                assert out.stride() == expected.stride(), (layout, n)
                np.testing.assert_allclose(out.numpy(), expected.numpy(), 2e-5, 2e-6)
