"""uint16, uint32 and uint64 against PyTorch: making, casting, promotion, and what is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import jitgrad as jg

NAMES = ["uint16", "uint32", "uint64"]
CALLS = {
    "tensor": lambda t, d: t.tensor([1, 2, 3], dtype=d),
    "full": lambda t, d: t.full((2, 2), t.iinfo(d).max, dtype=d),
    "to": lambda t, d: t.arange(-2, 3).to(d),
    "from float": lambda t, d: t.tensor([0.0, 1.7, 65535.0]).to(d),
    "to float": lambda t, d: t.tensor([1, 40000], dtype=d).to(t.float32) / 3,
    "times float": lambda t, d: t.ones(3, dtype=d) * 2.5,
    "plus floats": lambda t, d: t.ones(3, dtype=d) + t.ones(3),
    "times int": lambda t, d: t.ones(3, dtype=d) * 2,
    "divided": lambda t, d: t.ones(3, dtype=d) / 2,
    "sum": lambda t, d: t.full((3,), 65535, dtype=d).sum(),
    "view": lambda t, d: t.arange(4, dtype=t.int64).view(d),
    "equal": lambda t, d: t.arange(3).to(d) == 1,
    "xor": lambda t, d: t.arange(3).to(d) ^ 1,
    "sort": lambda t, d: t.tensor([3, 1, 65535], dtype=d).sort()[0],
    "cat": lambda t, d: t.cat([t.ones(1, dtype=d)] * 2),
    "sin": lambda t, d: t.arange(3).to(d).sin(),
    "index": lambda t, d: t.arange(5).to(d)[1::2],
    "float": lambda t, d: t.promote_types(d, t.float16),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", NAMES)
def test_values(name, call) -> None:
    found, wanted = CALLS[call](jg, getattr(jg, name)), CALLS[call](torch, getattr(torch, name))
    if call == "float":
        assert str(found).split(".")[1] == str(wanted).split(".")[1]
        return
    assert str(found.dtype).split(".")[1] == str(wanted.dtype).split(".")[1]
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6)
    compiled = jg.jit(fallback="error")(lambda: CALLS[call](jg, getattr(jg, name)))
    for _ in range(2):
        np.testing.assert_allclose(compiled().numpy(), wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize("other", ["bool", "uint8", "int8", "int16", "int32", "int64", *NAMES])
@pytest.mark.parametrize("name", NAMES)
def test_promotion_with_other_integers(name, other) -> None:
    if name == other:
        assert jg.promote_types(getattr(jg, name), getattr(jg, other)) is getattr(jg, name)
        return
    for t in (torch, jg):
        with pytest.raises(RuntimeError):
            t.promote_types(getattr(t, name), getattr(t, other))
        with pytest.raises(RuntimeError):
            t.ones(2, dtype=getattr(t, name)) * t.ones(2, dtype=getattr(t, other))
