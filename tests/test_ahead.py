"""Kernels that go over rows more than once ask for memory ahead: which do, for what, and values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.nn.functional as F
from jitgrad.runtime.knobs import knob

CALL = re.compile(r"call void @\"?llvm.prefetch[^(]*\(ptr [^,]*, i32 ([01])")


def asked(f: Callable[..., Any], *args: Any, write: bool = False) -> int:
    """How many lines the code of f asks for, to read or to write them, in its text."""
    text = jg.jit(f).lower(*args).llvm()
    return CALL.findall(text).count(str(int(write)))


def large(*shape: int) -> Any:
    """An array beyond L2 on every machine that tests run on."""
    return jg.randn(*shape)


def test_which_kernels_ask() -> None:
    x = large(20000, 1000)
    assert asked(lambda x: F.softmax(x, -1), x) > 0
    assert asked(lambda x: F.layer_norm(x, (1000,)), x) > 0
    assert asked(lambda x: x.sum(-1), x) == 0  # one pass: the processor looks ahead by itself
    assert asked(lambda x: x * 2 + 1, x) == 0
    assert asked(lambda x: F.softmax(x, -1), x, write=True) > 0
    assert asked(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1), x, write=True) == 0
    assert asked(lambda x: F.softmax(x, -1), jg.randn(8, 1000), write=True) == 0
    assert asked(lambda x: F.softmax(x, -1), jg.randn(8, 1000)) == 0  # it lies in the cache


@pytest.mark.parametrize("shape", [(5000, 1000), (5000, 1001), (3, 1700, 999), (40000, 130)])
def test_values_where_rows_are_asked_for(shape: tuple[int, ...]) -> None:
    """Also at the last row, behind which there is none."""
    jg.manual_seed(0)
    x, g = large(*shape), large(*shape)

    def both(x: Any, g: Any) -> Any:
        x = x.detach().requires_grad_(True)
        y = F.softmax(x, -1)
        return y, jg.autograd.grad(y, x, g)[0]

    assert asked(both, x, g) > 0
    f = jg.jit(both, fallback="error")
    with knob(cache=False):
        for _ in range(2):
            found = f(x, g)
    wide = np.exp(x.numpy().astype(np.float64))
    y = wide / wide.sum(-1, keepdims=True)
    slope = y * (g.numpy() - (y * g.numpy()).sum(-1, keepdims=True))
    np.testing.assert_allclose(found[0].detach().numpy(), y, 1e-5)
    np.testing.assert_allclose(found[1].numpy(), slope, 1e-4, 1e-7)
